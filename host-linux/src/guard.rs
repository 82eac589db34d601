//! The guard keeps libc from blocking SIGTRAP and from taking our handlers away, at the boundary to the
//! kernel.
//!
//! A breakpoint that is hit while SIGTRAP is blocked ends the process; the kernel leaves no choice. libc
//! blocks all signals by system calls that no interposition sees: while it starts and ends threads, in
//! `fork`, in `posix_spawn` (whose child goes on through `sigaction`, `dup2` and `execve`), in `abort`.
//! Programs do so with full sets.
//!
//! So each of these system calls has a probe, whose handler makes the call in the program's place. A mask
//! comes into force in the signal frame, without the signals that a hit raises
//! ([`signals::NEVER_BLOCKED`]); what the program has blocked of these is written down, and what is sent
//! meanwhile waits (the module `wished`). An action for one of our signals is kept behind our handler
//! ([`signals::install_action`]). `sigaltstack` keeps the program's stack behind a bigger one, as a hit needs
//! room. The calls are found by their code: the number as a constant, the call a few instructions later.
//!
//! The module `execution` hands on what is ignored, blocked and pending; `waits` is for a libc whose waiting
//! calls are not to be found.
//!
//! The module `by_number` sees what goes through libc's `syscall`; the module `children` gives each child a
//! thread block and handlers of its own.
//!
//! The guard serves every program that is probed, whoever embeds this crate: it acts at libc's own system
//! calls, under all names. An agent that is loaded before libc (`agent/hooks` of `probe trace`) interposes
//! functions for the work that handlers cannot do, and for masks and actions while no guard is planted.
//!
//! Not covered: signal handlers may run while `sigsuspend`, `ppoll` or the like waits with our signals in its
//! set; a `signalfd` that is to tell of our signals; system calls that the program makes without libc.

mod by_number;
mod children;
mod execution;
mod waits;

use self::by_number::change_action;
use crate::arch::{Leads, Load, Regs, SYSCALL, branch_target};
use crate::lock::Lock;
use crate::signals::waiting::{self, Answer};
use crate::signals::{self, interrupted, wished};
use crate::symbols::arrival;
use crate::symbols::objects::{self, Object, Role};
use crate::sys::{AltStack, SignalSet};
use crate::{Hit, Kprobe, Native, Probe, blacklist, memory, process};
use core::ffi::c_int;
use probe_core::arch::{Arch, Memory, Regs as _};
use probe_core::error::BatchError;
use probe_core::handler::Flow;
use probe_core::host::Host as _;
use probe_core::{AnyProbe, CodeAddr, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a whole number of instructions is read.
const WINDOW: usize = 64;

/// Keeps the probes on libc's system calls planted, until it is dropped.
#[derive(Debug)]
pub struct Guard(Vec<Probe>);

impl Guard {
    /// Whether the calls were found. If not (another libc, another architecture), code that libc runs with
    /// all signals blocked must not be probed.
    pub fn is_complete(&self) -> bool {
        !self.0.is_empty()
    }

    /// Guards C libraries, too, that were loaded meanwhile in a namespace of their own (`dlmopen`). Without
    /// it, such a library's `sigaction` takes our handlers away.
    ///
    /// # Errors
    /// As [`guard`].
    pub fn renew(&mut self) -> Result<(), BatchError> {
        if self.is_complete() {
            self.0.extend(process::probes().register_all(later_probes())?);
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.is_complete() {
            // It has been changed before.
            let _ = signals::block_during_traps();
        }
    }
}

/// Guards this process: see [`crate::guard`]. Call it before anything is probed, and before signals are
/// blocked.
///
/// From then on asynchronous signals wait for the end of a hit without being blocked during it
/// ([`signals::defer_asynchronous`]), which makes hits cheaper and lets those of several threads scale.
///
/// # Errors
/// The calls cannot be probed; nothing has changed.
///
/// # Panics
/// As [`crate::probes`].
pub fn guard() -> Result<Guard, BatchError> {
    let (registry, probes) = (process::probes(), probes());
    if !probes.is_empty() {
        signals::adopt_mask();
    }
    let guard = registry.register_all(probes).map(Guard).inspect_err(|_| signals::give_mask_back())?;
    if guard.is_complete() {
        // The kernel refuses no action that it has taken before.
        let _ = signals::defer_asynchronous();
    }
    Ok(guard)
}

/// The guard's probes, for a caller that registers them in a batch of its own. Empty where the calls are not
/// found.
pub fn probes() -> Vec<AnyProbe<Native>> {
    let objects = objects::snapshot();
    let libc = libraries(&objects);
    libc.iter().for_each(|object| object.is_guarded.store(true, Ordering::Relaxed));
    probes_in(&libc)
}

/// The C libraries, or the program that has one in it.
fn libraries(objects: &[Arc<Object>]) -> Vec<&Arc<Object>> {
    let is_library = |object: &&Arc<Object>| object.role != Role::Program && objects::is_libc(&object.name);
    let mut found: Vec<&Arc<Object>> = objects.iter().filter(is_library).collect();
    if found.is_empty() {
        found.extend(objects.iter().filter(|object| object.role == Role::Program));
    }
    found
}

/// The guard's probes in C libraries that were loaded, in a namespace of their own (`dlmopen`), since
/// [`probes`] or this was called last.
pub fn later_probes() -> Vec<AnyProbe<Native>> {
    let objects = objects::snapshot();
    let is_new = |object: &&Arc<Object>| {
        object.role == Role::Foreign && !object.is_guarded.swap(true, Ordering::Relaxed)
    };
    probes_in(&objects.iter().filter(is_new).collect::<Vec<_>>())
}

/// The system calls of a C library that the guard has probes on.
#[derive(Debug, Default)]
struct Calls {
    /// Where one is made, which of `SyscallCode::calls` it is, and which of [`ANSWERED`].
    answered: Vec<(usize, usize, usize)>,
    /// Where one that waits is made, which of `SyscallCode::calls` it is, and its number.
    waits: Vec<(usize, usize, libc::c_long)>,
    /// Where `clone3` is made, how long that is, and which of `SyscallCode::calls` it is.
    clone3: Vec<(usize, usize, usize)>,
}

/// The calls that handlers answer in the kernel's place.
const ANSWERED: [(libc::c_long, Handler); 4] = [
    (libc::SYS_rt_sigprocmask, change_mask),
    (libc::SYS_rt_sigaction, change_action),
    (libc::SYS_sigaltstack, change_stack),
    (libc::SYS_rt_sigpending, tell_pending),
];

impl Calls {
    /// Looks for them in an object's text, which `read` reads, as that of one instruction set.
    fn find(object: &Object, read: &dyn Fn(usize, usize, &mut [u8]) -> usize) -> Self {
        let mut found = Self::default();
        let sets: BTreeSet<usize> = SYSCALL.loads.iter().map(|load| load.set).collect();
        let executable = object.segments.iter().filter(|segment| segment.is_executable);
        for (segment, &set) in executable.flat_map(|segment| sets.iter().map(move |set| (segment, set))) {
            let mut text = vec![0; segment.end - segment.start];
            let len = read(segment.start, set, &mut text);
            let text = &text[..len];
            let at = |(offset, call): (usize, usize)| (segment.start + offset, call);
            // In a static program this crate's own calls are found, too.
            let is_theirs = |&(at, _): &(usize, usize)| !blacklist::covers(object, at);
            for (index, (number, _)) in ANSWERED.into_iter().enumerate() {
                let theirs = calls(text, set, number as u32).into_iter().map(at).filter(is_theirs);
                found.answered.extend(theirs.map(|(at, call)| (at, call, index)));
            }
            for number in waiting::WAITS {
                let theirs = calls(text, set, number as u32).into_iter().map(at).filter(is_theirs);
                found.waits.extend(theirs.map(|(at, call)| (at, call, number)));
            }
            let clone3 = instant_calls(text, set, libc::SYS_clone3 as u32).into_iter();
            found
                .clone3
                .extend(clone3.map(|(offset, len_bytes, call)| (segment.start + offset, len_bytes, call)));
        }
        found
    }
}

/// What [`read_ahead`] has found.
static FOUND: Lock<Vec<(Arc<Object>, Calls)>> = Lock::new(Vec::new());

/// Reads what registering probes would read: the symbols, unwind tables and restartable sequences of the
/// objects whose module `is_meant` (`None`: the program), and the system calls of the C library, for
/// [`probes`]. Then it is known when threads stand still for the probes. Call it before [`crate::start`], and
/// before there are probes of anybody's.
#[doc(hidden)]
pub fn read_ahead(is_meant: &dyn Fn(Option<&str>) -> bool) {
    let objects = objects::snapshot();
    for object in objects.iter().filter(|object| object.role != Role::Foreign) {
        if is_meant(object.module()) || objects::is_libc(&object.name) {
            object.index();
            object.sequences();
            let text = object.segments.iter().find(|segment| segment.is_executable);
            text.map(|text| arrival::of(object, text.start));
        }
    }
    // No probe stands anywhere yet.
    let read = |at, _, text: &mut [u8]| memory::read_some(at, text);
    let found = |object: &Arc<Object>| (object.clone(), Calls::find(object, &read));
    let found = libraries(&objects).into_iter().map(found).collect();
    *FOUND.lock() = found;
}

/// The calls of an object.
fn calls_of(object: &Arc<Object>) -> Calls {
    let mut ahead = FOUND.lock();
    if let Some(known) = ahead.iter().position(|(known, _)| Arc::ptr_eq(known, object)) {
        return ahead.swap_remove(known).1;
    }
    drop(ahead);
    // Who has planted probes before the guard may have some on these calls: what stands on instructions of
    // one set is taken off where text is read as that set's.
    Calls::find(object, &|at, set, text| crate::host::PROBES.original_text(CodeAddr::new(at | set), text))
}

/// The guard's probes in these objects.
fn probes_in(libc: &[&Arc<Object>]) -> Vec<AnyProbe<Native>> {
    let (mut found, mut has_waits) = (Vec::new(), false);
    for object in libc {
        let calls = calls_of(object);
        let answered = calls.answered.iter().map(|&(at, call, index)| {
            let (number, handler) = ANSWERED[index];
            probe(at, call, number, handler)
        });
        found.extend(answered);
        let waits = calls.waits.iter();
        found.extend(waits.map(|&(at, call, number)| {
            probe_with(at, call, number, move |regs| waiting::begin_wait(regs, call))
        }));
        has_waits |= !calls.waits.is_empty();
        found.extend(
            calls.clone3.iter().map(|&(at, len_bytes, call)| children::probe_on_clone3(at, len_bytes, call)),
        );
    }
    if !found.is_empty() {
        found.extend(children::probes_on_functions(libc, !has_waits));
    }
    found
}

/// What loads numbers in one instruction set.
fn loads(set: usize) -> impl Iterator<Item = &'static Load> {
    SYSCALL.loads.iter().filter(move |load| load.set == set)
}

/// The instructions in `text` that load `number` right before a system call: the offset, with its instruction
/// set, how long the two are, and which of `SyscallCode::calls` it is.
fn instant_calls(text: &[u8], set: usize, number: u32) -> Vec<(usize, usize, usize)> {
    let found = loads(set).flat_map(|load| {
        load.find(text, number).filter_map(|at| {
            let call = call_at(text, at + load.len_bytes)?;
            Some((at, load.len_bytes + SYSCALL.calls[call].len_bytes, call))
        })
    });
    found.collect()
}

/// The instructions in `text` that make system call `number`: the offset, with its instruction set, and which
/// of `SyscallCode::calls` it is.
fn calls(text: &[u8], set: usize, number: u32) -> BTreeMap<usize, usize> {
    let mut found = BTreeMap::new();
    for load in loads(set) {
        load.find(text, number).for_each(|start| follow(text, start + load.len_bytes, &mut found));
    }
    found
}

/// Which of `SyscallCode::calls` lies at an offset.
fn call_at(text: &[u8], at: usize) -> Option<usize> {
    SYSCALL.call_at(CodeAddr::new(at), &|from, out| {
        let found = text.get(from..).and_then(|rest| rest.get(..out.len()));
        found.is_some_and(|bytes| {
            out.copy_from_slice(bytes);
            true
        })
    })
}

/// Follows all paths from `start` to the first instruction on each that makes a system call.
fn follow(text: &[u8], start: usize, found: &mut BTreeMap<usize, usize>) {
    // The same place is looked at again only where it is reached by fewer steps.
    let mut seen = BTreeMap::new();
    let mut next = vec![(start, SYSCALL.between)];
    while let Some((at, left)) = next.pop() {
        let address = CodeAddr::new(at);
        let insn = text.get(Native::first_byte(address).as_usize()..);
        let Some(insn) = insn.filter(|insn| !insn.is_empty()) else { continue };
        if let Some(call) = call_at(text, at) {
            found.insert(at, call);
            continue;
        }
        let is_old = seen.get(&at).is_some_and(|&before| before >= left);
        let Some(left) = left.checked_sub(1).filter(|_| !is_old) else { continue };
        seen.insert(at, left + 1);
        let leads = (SYSCALL.leads)(address, insn);
        let window = &insn[..insn.len().min(WINDOW)];
        if matches!(leads, Leads::Elsewhere | Leads::Either)
            && let Some(target) = branch_target(window, address)
        {
            next.push((target.as_usize(), left));
        }
        if matches!(leads, Leads::On | Leads::Either)
            && let Some(len) = Native::insn_len(address, &window[..window.len().min(Native::MAX_INSN_LEN)])
        {
            next.push((at + len, left));
        }
    }
}

/// Makes a system call in the program's place: takes its arguments, returns its result, or `None` to let the
/// program make it.
type Handler =
    fn(&[usize; 4], &dyn Fn(usize, &mut [u8]) -> bool, &dyn Fn(usize, &[u8]) -> bool) -> Option<isize>;

/// A probe on an instruction that makes system call `number`, if the number is that.
fn probe(at: usize, call: usize, number: libc::c_long, handler: Handler) -> AnyProbe<Native> {
    probe_with(at, call, number, move |regs| {
        let memory = crate::host::PROBES.host().memory();
        let arguments = core::array::from_fn(|index| (SYSCALL.argument)(regs, index));
        let read = |at: usize, out: &mut [u8]| memory.read(at, out).is_ok();
        let write = |at: usize, bytes: &[u8]| memory.write(at, bytes).is_ok();
        handler(&arguments, &read, &write).map_or(Answer::Made, Answer::Result)
    })
}

/// As [`probe`], with the registers.
fn probe_with(
    at: usize,
    call: usize,
    number: libc::c_long,
    handler: impl Fn(&mut Regs) -> Answer + Send + Sync + 'static,
) -> AnyProbe<Native> {
    // SAFETY: decoding from an instruction that loads the call's number leads here.
    let place = unsafe { Place::unchecked(CodeAddr::new(at)) };
    let pre = move |hit: &mut Hit<'_>| {
        if (SYSCALL.number)(hit.regs(), call) != number as usize {
            return Flow::Continue;
        }
        let next = hit.regs().pc().wrapping_add(SYSCALL.calls[call].len_bytes);
        let regs: &mut Regs = hit.regs_mut();
        match handler(regs) {
            Answer::Made => return Flow::Continue,
            Answer::Elsewhere => {}
            Answer::Result(result) => {
                (SYSCALL.set_result)(regs, call, result);
                regs.set_pc(next);
            }
        }
        Flow::Redirected
    };
    // By a trap: the mask that is changed is the one in its frame.
    Kprobe::at(place).pre(pre).without_jump().into()
}

/// `rt_sigprocmask(how, set, old, len)`.
fn change_mask(
    &[how, set, old, len]: &[usize; 4],
    read: &dyn Fn(usize, &mut [u8]) -> bool,
    write: &dyn Fn(usize, &[u8]) -> bool,
) -> Option<isize> {
    if len != size_of::<SignalSet>() {
        return None;
    }
    let mut bytes = [0; 8];
    if set != 0 && !read(set, &mut bytes) {
        return Some(-(libc::EFAULT as isize));
    }
    let wanted = SignalSet::from_memory(bytes);
    let before = wished::interrupted_mask()?;
    let after = match how as c_int {
        _ if set == 0 => before,
        libc::SIG_BLOCK => before.union(wanted),
        libc::SIG_UNBLOCK => SignalSet::from_bits(before.bits() & !wanted.bits()),
        libc::SIG_SETMASK => wanted,
        _ => return Some(-(libc::EINVAL as isize)),
    };
    // The kernel blocks these two for nobody; QEMU 7.2 does, where they come from a signal frame.
    wished::set_interrupted_mask(after.without(libc::SIGKILL).without(libc::SIGSTOP));
    if old != 0 && !write(old, &before.to_memory()) {
        return Some(-(libc::EFAULT as isize));
    }
    Some(0)
}

/// `rt_sigpending(set, len)`.
fn tell_pending(
    &[set, len, ..]: &[usize; 4],
    _: &dyn Fn(usize, &mut [u8]) -> bool,
    write: &dyn Fn(usize, &[u8]) -> bool,
) -> Option<isize> {
    if len != size_of::<SignalSet>() {
        return None;
    }
    let is_told = write(set, &wished::pending()?.to_memory());
    Some(if is_told { 0 } else { -(libc::EFAULT as isize) })
}

/// `sigaltstack(new, old)`.
fn change_stack(
    &[new, old, ..]: &[usize; 4],
    read: &dyn Fn(usize, &mut [u8]) -> bool,
    write: &dyn Fn(usize, &[u8]) -> bool,
) -> Option<isize> {
    let error = |errno: c_int| Some(-(errno as isize));
    let mut bytes = [0; size_of::<AltStack>()];
    if new != 0 && !read(new, &mut bytes) {
        return error(libc::EFAULT);
    }
    let wanted = (new != 0).then(|| AltStack::from_memory(bytes));
    if wanted
        .is_some_and(|wanted| !matches!(wanted.flags & !AUTODISARM, 0 | libc::SS_ONSTACK | libc::SS_DISABLE))
    {
        return error(libc::EINVAL);
    }
    let before = interrupted::interrupted_stack()?;
    if let Some(wanted) = wanted {
        if before.flags & libc::SS_ONSTACK != 0 {
            return error(libc::EPERM);
        }
        let is_none = wanted.flags & !AUTODISARM == libc::SS_DISABLE;
        if !is_none && wanted.len_bytes < LEAST_STACK {
            return error(libc::ENOMEM);
        }
        let wanted = if is_none { AltStack { base: 0, len_bytes: 0, ..wanted } } else { wanted };
        // SS_ONSTACK is taken for none.
        if !interrupted::set_interrupted_stack(&AltStack {
            flags: wanted.flags & !libc::SS_ONSTACK,
            ..wanted
        }) {
            return None;
        }
    }
    if old != 0 && !write(old, &before.to_memory()) {
        return error(libc::EFAULT);
    }
    Some(0)
}

/// `SS_AUTODISARM`.
const AUTODISARM: c_int = 1 << 31;

/// The kernel's `MINSIGSTKSZ`.
const LEAST_STACK: usize = libc::MINSIGSTKSZ;
