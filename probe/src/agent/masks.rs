//! Keeps libc from blocking SIGTRAP, or from taking its handler away, behind our back.
//!
//! libc blocks all signals in several places by a system call of its own that no interposition sees: while it starts
//! and ends threads, in `posix_spawn`, in `abort`. A breakpoint that is hit there would end the process. So those
//! system calls get a probe of their own, which takes the signals that probes live on out of the set that is about to
//! be blocked. The same for actions: a child of `posix_spawn` resets those that it is told to (`POSIX_SPAWN_SETSIGDEF`),
//! and goes on through `dup2` and `execve`. The calls are found by their code: the system call's number as a constant,
//! the call a few instructions later.
//!
//! On architectures for which this is not written, functions that libc is known to call in such places are refused.

use super::objects::Loaded;
use probe_core::host::Host;
use probe_core::{AnyProbe, CodeAddr};
use probe_host_linux::Native;
use std::collections::HashMap;

/// Functions that libc calls while it has blocked all signals, where those calls are not probed.
const CALLED_WITH_SIGNALS_BLOCKED: [&str; 10] = [
    "clone",
    "__clone",
    "__clone2",
    "clone3",
    "__clone3",
    "__clone_internal",
    "__ctype_init",
    "_setjmp",
    "madvise",
    "__madvise",
];

/// Functions that return more than once: a second return would come to a call that is over.
const RETURNS_TWICE: [&str; 15] = [
    "setjmp",
    "_setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "vfork",
    "__vfork",
    "__libc_vfork",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "getcontext",
    "swapcontext",
    "__clone_internal",
    "savectx",
];

/// Functions that tell by their return address who calls them.
const LOOKS_AT_CALLER: [&str; 6] =
    ["dlopen", "dlmopen", "dlsym", "dlvsym", "__libc_dlopen_mode", "__libc_dlsym"];

/// The functions that must not be probed, whatever their instructions are, by address: they have many names.
pub(super) struct Refusals {
    at_return: HashMap<CodeAddr, &'static str>,
    always: HashMap<CodeAddr, &'static str>,
}

impl Refusals {
    /// Looks the functions up.
    pub(super) fn new() -> Self {
        let mut at_return = HashMap::new();
        add(&mut at_return, &RETURNS_TWICE, "it returns more than once");
        add(&mut at_return, &LOOKS_AT_CALLER, "it tells by its return address who calls it");
        let mut always = HashMap::new();
        if !cfg!(target_arch = "x86_64") {
            let why = "libc calls it with all signals blocked, where a breakpoint would end the program";
            add(&mut always, &CALLED_WITH_SIGNALS_BLOCKED, why);
        }
        Self { at_return, always }
    }

    /// Why the function at `at` must not be probed.
    pub(super) fn get(&self, at: CodeAddr, is_return: bool) -> Option<&'static str> {
        self.always.get(&at).or_else(|| self.at_return.get(&at).filter(|_| is_return)).copied()
    }
}

fn add(refused: &mut HashMap<CodeAddr, &'static str>, names: &[&str], why: &'static str) {
    for name in names {
        probe_host_linux::probes().host().find_symbols(name, &mut |symbol| {
            refused.insert(symbol.start.wrapping_add(usize::from(symbol.local_entry)), why);
        });
    }
}

/// The probes on libc's own calls of `rt_sigprocmask` and `rt_sigaction`.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn probes(_objects: &[Loaded]) -> Vec<AnyProbe<Native>> {
    Vec::new()
}

/// The probes on libc's own calls of `rt_sigprocmask` and `rt_sigaction`.
#[cfg(target_arch = "x86_64")]
pub(super) fn probes(objects: &[Loaded]) -> Vec<AnyProbe<Native>> {
    let is_libc =
        |object: &&Loaded| object.name.starts_with("libc.so") || object.name.starts_with("libpthread.so");
    let calls = objects.iter().filter(is_libc).flat_map(|object| object.text()).flat_map(|(start, len)| {
        // SAFETY: a loaded segment of code, readable, that nobody writes to: nothing is planted yet.
        let text = unsafe { std::slice::from_raw_parts(start as *const u8, len) };
        x86_64::CALLS.iter().flat_map(move |call| {
            x86_64::calls(text, call.number).map(move |offset| x86_64::probe(start + offset, call))
        })
    });
    calls.collect()
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::super::process;
    use probe_core::arch::{Arch, Memory, Regs as _};
    use probe_core::{AnyProbe, CodeAddr, Flow, Hit, Place};
    use probe_host_linux::signals::{OWNED, OWNED_SET, program_action};
    use probe_host_linux::sys::Action;
    use probe_host_linux::{Kprobe, Native, threads};
    use std::sync::atomic::Ordering;

    /// A system call that libc must not make as it is.
    pub(super) struct Call {
        pub(super) number: u8,
        handler: fn(&mut Hit<'_, Native>) -> Flow,
    }

    pub(super) const CALLS: [Call; 2] = [
        Call { number: libc::SYS_rt_sigprocmask as u8, handler: clean },
        Call { number: libc::SYS_rt_sigaction as u8, handler: keep_action },
    ];

    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// How many instructions may lie between the number and the call.
    const BETWEEN: usize = 3;

    /// The offsets of the `syscall` instructions that are preceded by `mov $number,%eax`.
    pub(super) fn calls(text: &[u8], number: u8) -> impl Iterator<Item = usize> + '_ {
        let load = [0xb8, number, 0, 0, 0];
        let starts = text.windows(load.len()).enumerate().filter(move |(_, bytes)| **bytes == load);
        starts.filter_map(move |(start, _)| {
            let mut at = start + load.len();
            for _ in 0..=BETWEEN {
                let rest = text.get(at..)?;
                if rest.starts_with(&SYSCALL) {
                    return Some(at);
                }
                // Nothing that jumps, calls or returns may come between.
                if matches!(rest.first()?, 0x70..=0x7f | 0xc2 | 0xc3 | 0xcc | 0xe0..=0xe3 | 0xe8..=0xeb | 0xff) {
                    return None;
                }
                at += Native::insn_len(&rest[..rest.len().min(Native::MAX_INSN_LEN)])?;
            }
            None
        })
    }

    pub(super) fn probe(at: usize, call: &Call) -> AnyProbe<Native> {
        // SAFETY: decoding from an instruction that loads the call's number leads here.
        let place = unsafe { Place::unchecked(CodeAddr::new(at)) };
        let (number, handler) = (u64::from(call.number), call.handler);
        let pre = move |hit: &mut Hit<'_, Native>| {
            if hit.regs().rax == number { handler(hit) } else { Flow::Continue }
        };
        Kprobe::at(place).pre(pre).into()
    }

    /// `rt_sigprocmask`: replaces the set by one without our signals.
    fn clean(hit: &mut Hit<'_, Native>) -> Flow {
        let (how, set) = (hit.regs().rdi as i32, hit.regs().rsi as usize);
        if how == libc::SIG_UNBLOCK || set == 0 {
            return Flow::Continue;
        }
        let mut bytes = [0; 8];
        if let (Ok(()), Some(words)) = (hit.memory().read(set, &mut bytes), threads::words()) {
            let wanted = u64::from_ne_bytes(bytes);
            let cleaned = wanted & !OWNED_SET.bits();
            if cleaned != wanted {
                words[2].store(cleaned as usize, Ordering::Relaxed);
                hit.regs_mut().rsi = words[2].as_ptr() as u64;
            }
        }
        Flow::Continue
    }

    /// `rt_sigaction`: for one of our signals the program's action is kept behind ours, as the interposed functions do. A
    /// child that still shares the program's memory must not change that; what it executes begins with the default.
    fn keep_action(hit: &mut Hit<'_, Native>) -> Flow {
        let (signal, new, old) = (hit.regs().rdi as i32, hit.regs().rsi as usize, hit.regs().rdx as usize);
        if !OWNED.contains(&signal) || hit.regs().r10 != 8 {
            return Flow::Continue;
        }
        let memory = hit.memory();
        let new = if new == 0 { None } else { read_action(&memory, new) };
        let new = new.filter(|_| !process::shares_memory());
        let before = program_action(signal, new.as_ref());
        let result = if old == 0 { Ok(()) } else { write_action(&memory, old, &before) };
        let result = result.map_or(-i64::from(libc::EFAULT), |()| 0);
        let next = hit.regs().pc().wrapping_add(SYSCALL.len());
        let regs = hit.regs_mut();
        regs.rax = result.cast_unsigned();
        regs.set_pc(next);
        Flow::Redirected
    }

    /// The kernel's `struct sigaction` is [`Action`], word by word.
    fn read_action(memory: &impl Memory, at: usize) -> Option<Action> {
        let word = |index: usize| memory.read_usize(at + index * 8).ok();
        let mask = probe_host_linux::sys::SignalSet::from_bits(word(3)? as u64);
        Some(Action { handler: word(0)?, flags: word(1)?, restorer: word(2)?, mask })
    }

    fn write_action(
        memory: &impl Memory,
        at: usize,
        action: &Action,
    ) -> Result<(), probe_core::arch::MemFault> {
        let words = [action.handler, action.flags, action.restorer, action.mask.bits() as usize];
        words.iter().enumerate().try_for_each(|(index, word)| memory.write_usize(at + index * 8, *word))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn calls_are_found_by_their_code() {
            const NUMBER: [u8; 5] = [0xb8, 14, 0, 0, 0];
            let mut text = vec![0x90; 16];
            text.extend(NUMBER);
            text.extend([0x48, 0x89, 0xe2]); // mov %rsp,%rdx
            text.extend([0x0f, 0x05, 0xc3]);
            text.extend(NUMBER);
            text.extend([0xc3, 0x0f, 0x05]); // a return comes between
            assert_eq!(calls(&text, 14).collect::<Vec<_>>(), [24]);
            assert_eq!(calls(&text, 13).count(), 0);
        }
    }
}
