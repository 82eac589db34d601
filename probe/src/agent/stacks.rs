//! Stacks of hits: who has called. No lock, no allocation, no fault.
//!
//! The frames are walked in the hit ([`probe_unwind::walk`]), by what the loaded objects say of their frames
//! in memory. Which those are is kept up to date outside of hits: at the start, and whenever the loader says
//! so.

use super::objects::{self, Loaded};
use super::process::{self, Agent, Reporter};
use crate::def::MAX_STACK;
use crate::wire::Reservation;
use probe_core::CodeAddr;
use probe_core::arch::{Memory, Regs as _};
use probe_elf_symbols::file::{Mapped, eh_frame};
use probe_host_linux::{FRAMES, Regs, probes};
use probe_unwind::walk::{EXACT, End, Object, Registers, Walker, header};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// The most bytes of a stack: a word that says why it ends, and the frames.
pub(super) const MOST_BYTES: usize = 8 * (1 + MAX_STACK);

#[cfg(target_pointer_width = "32")]
use libc::{Elf32_Ehdr as FileHeader, Elf32_Phdr as Header};
#[cfg(target_pointer_width = "64")]
use libc::{Elf64_Ehdr as FileHeader, Elf64_Phdr as Header};

/// Where the agent itself begins and ends.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

static WALKER: Walker = Walker::new(&FRAMES);

/// For each of the machine's registers its number there and here; known once stacks are wanted.
static NUMBERS: OnceLock<Box<[(u16, usize)]>> = OnceLock::new();

/// From here on stacks can be walked. Not in a hit.
pub(super) fn start() {
    let known = Regs::names();
    let number = |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let numbered = (0..).zip(FRAMES.names.iter().copied());
    let link = FRAMES.link.map(|name| (FRAMES.return_address, name));
    let numbers = numbered.chain(link).filter_map(|(register, name)| Some((register, number(name)?)));
    if NUMBERS.set(numbers.collect()).is_ok() {
        objects_changed();
    }
}

/// Other objects are loaded than before. Not in a hit.
pub(super) fn objects_changed() {
    if NUMBERS.get().is_none() {
        return;
    }
    let mut all: Vec<Object> = Vec::new();
    // SAFETY: `add` takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut all).cast()) };
    if all.iter().any(|object| object.header_len == 0) {
        all = with_headers(all);
    }
    // SAFETY: it has no preconditions.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let vdso = std::ptr::with_exposed_provenance::<FileHeader>(vdso);
    // SAFETY: where there is one, the kernel has mapped it, for good.
    if let Some(file) = unsafe { vdso.as_ref() } {
        all.extend(itself(file).filter(|vdso| vdso.header_len != 0 && !all.contains(vdso)));
    }
    // Whoever maps the agent need not have told the loader.
    if let Some(own) = own() {
        OWN[0].store(own.start, Ordering::Relaxed);
        OWN[1].store(own.end, Ordering::Relaxed);
        if own.header_len != 0 && !all.contains(&own) {
            all.push(own);
        }
    }
    WALKER.set_objects(&all);
}

/// Whether any probe wants them.
pub(super) fn are_wanted() -> bool {
    NUMBERS.get().is_some()
}

/// Where the objects are that the command knows.
static TOLD: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// The command knows these.
pub(super) fn note_told(loaded: &[Loaded]) {
    if let Ok(mut told) = TOLD.try_lock() {
        *told = loaded.iter().map(Loaded::range).collect();
    }
}

/// Tells the command of objects that it does not know: frames may be in them. Not in a hit.
pub(super) fn tell_new(agent: &Agent, loaded: &[Loaded]) {
    // The lock is taken in a forked child if a thread of its parent was here.
    let Ok(mut told) = TOLD.try_lock() else { return };
    if !are_wanted() {
        return;
    }
    for object in loaded.iter().filter(|object| !told.contains(&object.range())) {
        Reporter::new(agent.region).send(&object.record(agent.image));
    }
    *told = loaded.iter().map(Loaded::range).collect();
}

unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _len: usize, all: *mut c_void) -> c_int {
    // SAFETY: the list of `objects_changed`, used by nobody else meanwhile.
    let all = unsafe { &mut *all.cast::<Vec<Object>>() };
    // SAFETY: the loader passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: the loader's table of program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    all.extend(object(headers, info.dlpi_addr as usize));
    0
}

/// An object with these headers at `bias`; the header of its frames has no length where there is none.
fn object(headers: &[Header], bias: usize) -> Option<Object> {
    let range = |kind: u32| {
        headers.iter().filter(move |header| header.p_type == kind).map(move |header| {
            let start = bias.wrapping_add(header.p_vaddr as usize);
            (start, start.wrapping_add(header.p_memsz as usize))
        })
    };
    let (start, end) = range(libc::PT_LOAD).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    let (header, header_end) = range(libc::PT_GNU_EH_FRAME).next().unwrap_or_default();
    Some(Object { start, end, header, header_len: header_end.wrapping_sub(header) })
}

/// The agent itself: its handlers of signals call the program's.
fn own() -> Option<Object> {
    unsafe extern "C" {
        /// The linker's: where this object begins.
        static __ehdr_start: FileHeader;
    }
    // SAFETY: the first bytes of this object, which are mapped with it and never change.
    itself(unsafe { &__ehdr_start })
}

/// The object that begins with this header, linked to begin at 0.
fn itself(file: &FileHeader) -> Option<Object> {
    let start = std::ptr::from_ref(file).expose_provenance();
    let at = std::ptr::with_exposed_provenance(start.wrapping_add(file.e_phoff as usize));
    // SAFETY: so many headers lie there, in the first segment.
    let headers: &[Header] = unsafe { std::slice::from_raw_parts(at, usize::from(file.e_phnum)) };
    object(headers, start)
}

/// Headers that were made for objects without one; they stay for good.
static MADE: Mutex<Vec<Object>> = Mutex::new(Vec::new());

/// The objects, each with a header: made where there is none, as in static programs.
fn with_headers(mut all: Vec<Object>) -> Vec<Object> {
    // The lock is taken in a forked child if a thread of its parent was here.
    let Ok(mut made) = MADE.try_lock() else { return all };
    let loaded = objects::loaded();
    made.retain(|made| all.iter().any(|object| (object.start, object.end) == (made.start, made.end)));
    for object in all.iter_mut().filter(|object| object.header_len == 0) {
        let is_same = |other: &&Object| (other.start, other.end) == (object.start, object.end);
        if let Some(known) = made.iter().find(is_same) {
            *object = *known;
            continue;
        }
        let found = loaded.iter().find(|loaded| loaded.range() == (object.start, object.end));
        // What has none that can be made is not looked at again.
        *object = found.and_then(|found| made_header(found, object)).unwrap_or(*object);
        made.push(*object);
    }
    all.retain(|object| object.header_len != 0);
    all
}

fn made_header(loaded: &Loaded, object: &Object) -> Option<Object> {
    let (addr, len) = eh_frame(&Mapped::open(&loaded.path).ok()?)?;
    let start = loaded.bias.wrapping_add(usize::try_from(addr).ok()?);
    let len = usize::try_from(len).ok()?;
    let is_inside = start >= object.start && start.checked_add(len).is_some_and(|end| end <= object.end);
    let section = std::ptr::with_exposed_provenance(start);
    // SAFETY: bytes of a loaded object, which the loader keeps while this runs.
    let section = is_inside.then(|| unsafe { std::slice::from_raw_parts(section, len) })?;
    let header = Vec::leak(header(&FRAMES, section, start)?);
    Some(Object { header: header.as_ptr().expose_provenance(), header_len: header.len(), ..*object })
}

/// Leaves out the agent's own frames, but for the one that a signal's handler returns to, which the program
/// has without us, too. Returns how many are left.
fn without_own(frames: &mut [u64], len: usize) -> usize {
    let (start, end) = (OWN[0].load(Ordering::Relaxed) as u64, OWN[1].load(Ordering::Relaxed) as u64);
    let mut kept = 0;
    for index in 0..len {
        let Some(&frame) = frames.get(index) else { break };
        let is_signal = frames.get(index + 1).is_some_and(|next| index + 1 < len && next & EXACT != 0);
        if (start..end).contains(&(frame & !EXACT)) && !is_signal {
            continue;
        }
        if let Some(at) = frames.get_mut(kept) {
            *at = frame;
            kept += 1;
        }
    }
    kept
}

/// Where a walk begins.
pub(super) struct Start<'a, M> {
    pub(super) regs: &'a Regs,
    pub(super) memory: &'a M,
    /// Whether the thread is in a function that returns: it has left it already.
    pub(super) returns: bool,
}

/// Walks; a word that says how the walk has ended, and the frames.
fn walk<M: Memory>(from: &Start<'_, M>, depth: usize) -> ([u64; 1 + MAX_STACK], usize) {
    let mut words = [0; 1 + MAX_STACK];
    let Some(((end, frames), numbers)) = words.split_first_mut().zip(NUMBERS.get()) else {
        return (words, 0);
    };
    let home =
        |addr: usize| probes().real_return_address(CodeAddr::new(addr)).map_or(addr, CodeAddr::as_usize);
    let is_exact = !from.returns;
    let pc = from.regs.pc().as_usize();
    let mut registers = Registers::new(if is_exact { pc } else { home(pc) });
    for (register, number) in numbers {
        registers.set(&FRAMES, *register, from.regs.register(*number).unwrap_or(0));
    }
    registers.set(&FRAMES, FRAMES.stack_pointer, from.regs.sp());
    if FRAMES.link.is_none() && FRAMES.return_address as usize >= FRAMES.names.len() {
        // The program counter's own number.
        registers.set(&FRAMES, FRAMES.return_address, registers.pc);
    }
    let depth = depth.min(frames.len());
    let walked =
        WALKER.walk(&registers, is_exact, from.memory, home, frames.get_mut(..depth).unwrap_or_default());
    *end = match walked.end {
        End::Outermost => 0,
        End::Full => 1,
        End::Lost => 2,
    };
    let len = without_own(frames, walked.len);
    (words, 1 + len)
}

/// Appends the stack to an event.
pub(super) fn put<M: Memory>(from: &Start<'_, M>, depth: usize, out: &mut Reservation<'_>) {
    let (words, len) = walk(from, depth);
    for word in words.iter().take(len) {
        out.put_u64(*word);
    }
}

/// The same as a text to be counted by.
pub(super) fn text<'a, M: Memory>(from: &Start<'_, M>, depth: usize, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let (mut words, len) = walk(from, depth);
    let [end, ..] = &mut words;
    *end |= u64::from(process::agent()?.image) << 32;
    let (pieces, _) = room.as_chunks_mut::<8>();
    let pieces = pieces.get_mut(..len)?;
    pieces.iter_mut().zip(words).for_each(|(piece, word)| *piece = word.to_ne_bytes());
    Some(pieces.as_flattened())
}
