//! What lies on the stack of a stopped thread: frames of signal handlers, with the mask that the thread has
//! again behind them, and the code that they have interrupted.

use super::masks::OURS;
use super::memory::{self, Mapping};
use libc::pid_t;
use std::io;
use std::ops::Range;

const WORD: usize = size_of::<usize>();

/// How much of a stack is looked at.
const MOST: usize = 8 << 20;

/// In a signal frame, whose first word is the address that the handler returns to: the `ucontext_t`, and
/// in it its flags, its link, the program counter, the segments' word and the mask.
const CONTEXT: usize = 8;
const LINK: usize = CONTEXT + 8;
const PC: usize = CONTEXT + 40 + 8 * 16;
const SEGMENTS: usize = CONTEXT + 40 + 8 * 18;
const MASK: usize = CONTEXT + 296;

/// The segment of 64-bit code.
const CODE_SEGMENT: usize = 0x33;

/// `mov rax, 15; syscall`: what handlers return to.
const RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The places in `code`, which lies at `start`, that return from handlers.
pub(super) fn restorers(start: usize, code: &[u8]) -> Vec<usize> {
    let found = code.windows(RETURN.len()).enumerate().filter(|(_, bytes)| *bytes == RETURN);
    found.map(|(at, _)| start + at).collect()
}

/// The words from the stack pointer to the end of the stack.
fn words(pid: pid_t, sp: usize, maps: &[Mapping]) -> Vec<usize> {
    let from = sp & !(WORD - 1);
    let Some(stack) = maps.iter().find(|map| (map.start..map.end).contains(&from)) else { return Vec::new() };
    let mut bytes = vec![0; (stack.end - from).min(MOST)];
    if memory::read(pid, from, &mut bytes).is_err() {
        return Vec::new();
    }
    bytes.chunks_exact(WORD).map(|word| word.try_into().map_or(0, usize::from_ne_bytes)).collect()
}

/// A handler's frame.
struct Frame {
    /// Where its mask is.
    mask_at: usize,
    mask: u64,
    /// What it returns to.
    restorer: usize,
    /// Where the interrupted code goes on.
    pc: usize,
}

/// The frames on a stack of handlers that return to one of `restorers`.
fn frames(pid: pid_t, sp: usize, maps: &[Mapping], restorers: &[usize]) -> Vec<Frame> {
    let words = words(pid, sp, maps);
    let frame = |at: usize| {
        let word = |offset: usize| words.get(at + offset / WORD).copied();
        let is_frame = word(LINK)? == 0 && word(SEGMENTS)? & 0xffff == CODE_SEGMENT;
        is_frame.then_some(Frame {
            mask_at: (sp & !(WORD - 1)) + at * WORD + MASK,
            mask: word(MASK)? as u64,
            restorer: words[at],
            pc: word(PC)?,
        })
    };
    (0..words.len()).filter(|&at| restorers.contains(&words[at])).filter_map(frame).collect()
}

/// Lets a thread that is in handlers not block what must never be blocked when it leaves them.
///
/// # Errors
/// The memory cannot be written.
pub(super) fn clean(pid: pid_t, sp: usize, maps: &[Mapping], restorers: &[usize]) -> io::Result<()> {
    for frame in frames(pid, sp, maps, restorers).iter().filter(|frame| frame.mask & OURS != 0) {
        memory::write(pid, frame.mask_at, &(frame.mask & !OURS).to_ne_bytes())?;
    }
    Ok(())
}

/// The agent's code.
pub(super) struct Code {
    /// Where it is.
    pub(super) ranges: Vec<Range<usize>>,
    /// What its handlers return to, and those of the program.
    pub(super) restorers: Vec<usize>,
}

impl Code {
    /// Whether `pc` is in it.
    pub(super) fn holds(&self, pc: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&pc))
    }

    /// Whether a thread with this stack pointer is in a handler that the agent has called, or in one that has
    /// interrupted its code.
    pub(super) fn is_below(&self, pid: pid_t, sp: usize, maps: &[Mapping]) -> bool {
        let frames = frames(pid, sp, maps, &self.restorers);
        frames.iter().any(|frame| self.holds(frame.restorer) || self.holds(frame.pc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restorers_are_found_by_their_bytes() {
        let mut code = vec![0x90; 40];
        code[7..16].copy_from_slice(&RETURN);
        assert_eq!(restorers(0x1000, &code), [0x1007]);
        assert_eq!(restorers(0x1000, &code[..15]), [0; 0]);
    }

    #[test]
    fn a_stack_is_read_to_its_end() {
        let words_here = [0x1234_usize, 0x5678, 0x9abc];
        let start = words_here.as_ptr().addr();
        let map = Mapping {
            start,
            end: start + size_of_val(&words_here),
            is_executable: false,
            offset: 0,
            inode: 0,
            name: String::new(),
        };
        let pid = std::process::id().cast_signed();
        assert_eq!(words(pid, start + WORD, &[map]), words_here[1..]);
        assert_eq!(words(pid, start, &[]), [0; 0]);
    }
}
