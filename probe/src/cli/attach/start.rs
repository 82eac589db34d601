//! A program that the command starts, stopped, and puts the agent into before anything of its own has run.
//!
//! The agent tells threads apart by their thread pointers and numbers, so that the program first goes to
//! where its first thread has both: a dynamic one to its entry, before which its linker has mapped and
//! relocated all libraries and called none; a static one to where its C library has set up the thread. No
//! constructor has run at either place.
//!
//! The same is done with programs that followed ones execute ([`super::executed`]).

use super::agent::{Agent, What};
use super::image::{Image, PAGE};
use super::program::{self, Program, Since};
use super::request::{SET_MASK, address_of, ptrace};
use super::stop::MOMENT;
use super::tracee::Tracee;
use super::{failure, memory};
use crate::cli::failure::Failure;
use crate::cli::status::Status;
use crate::wire::Placed;
use crate::wire::request::what::{FOLLOW, START};
use libc::{c_int, pid_t};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What has become of the program.
pub(crate) enum Begun {
    /// It runs, with the agent in it.
    Running,
    /// The agent could not start in it, and has told why through the shared memory; the program is no more.
    Refused,
    /// A signal has ended it before.
    Ended(ExitStatus),
}

/// What the agent is put into.
pub(super) struct Child<'a> {
    pid: pid_t,
    /// A child of this thread's, which is to go on with these signals blocked. `None`: a process that this
    /// thread has seized, stopped behind an execution.
    mask: Option<&'a libc::sigset_t>,
    /// What ends the wait for such a process.
    is_over: Option<&'a AtomicBool>,
}

impl<'a> Child<'a> {
    /// A process that this thread has seized, stopped behind an execution, until `is_over`.
    pub(super) fn executed(pid: pid_t, is_over: &'a AtomicBool) -> Self {
        Self { pid, mask: None, is_over: Some(is_over) }
    }
}

/// A stop after the execution, or an end.
enum Brought {
    /// It is stopped where the agent can be put into it.
    There,
    Ended(ExitStatus),
}

/// What stops of system calls are marked by (`PTRACE_O_TRACESYSGOOD`).
const AT_A_CALL: c_int = libc::SIGTRAP | 0x80;

/// How many instructions after the call that tells a thread's number has the number been written down: the
/// next one writes it.
const STEPS: usize = 64;

/// How many system calls a program may make before it has a thread pointer: what glibc reads and maps first.
const MOST_CALLS_BEFORE: u32 = 64;

/// How many it may make from then on before it tells the kernel where its first thread's number is: for
/// glibc and musl that is the next one. glibc before 2.34 tells it in programs with threads only.
const MOST_CALLS_BEHIND: u32 = 16;

/// Of a program that makes so many, or that has made none when the trace ends.
const HAS_NO_THREAD: &str = "its C library tells no number of its first thread as it starts";

/// From a thread pointer of musl's to the thread's number: `tid` of `struct pthread` since 1.2.2, and before.
const NUMBER_OF_MUSL_AT: [usize; 2] = [48, 56];

/// In the child that is about to execute the program: it will be stopped by then, by a SIGTRAP. It is to run
/// with the signals in `mask` blocked, which [`begin`] sees to.
///
/// # Errors
/// It may not be debugged: somebody else does already.
pub(crate) fn to_be_stopped(mask: &libc::sigset_t) -> io::Result<()> {
    let mut open = *mask;
    // SAFETY: a set of our own.
    unsafe { libc::sigdelset(&mut open, libc::SIGTRAP) };
    // SAFETY: as above.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &open, std::ptr::null_mut()) };
    ptrace(libc::PTRACE_TRACEME, 0, 0, 0).map(drop)
}

/// Puts the agent into the child `pid` of this thread, which [`to_be_stopped`] has stopped, and lets it go
/// on.
///
/// # Errors
/// It cannot be traced. It is no more, and has not come to its `main`.
pub(crate) fn begin(pid: pid_t, mask: &libc::sigset_t, what: &What<'_>) -> Result<Begun, Failure> {
    let begun = begin_or_kill(pid, mask, what);
    if !matches!(begun, Ok(Begun::Running | Begun::Ended(_))) {
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
    }
    begun
}

/// Ends the child as it goes out of scope, unless it may live.
struct Doomed(Option<pid_t>);

impl Drop for Doomed {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // SAFETY: our own child, not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

fn begin_or_kill(pid: pid_t, mask: &libc::sigset_t, what: &What<'_>) -> Result<Begun, Failure> {
    let mut tracee = None;
    // Gone before the tracee, which would let the child go on.
    let mut doomed = Doomed(Some(pid));
    let begun = put(&Child { pid, mask: Some(mask), is_over: None }, what, &mut tracee);
    if matches!(begun, Ok(Begun::Running | Begun::Ended(_))) {
        doomed.0 = None;
    }
    begun
}

/// Puts the agent into a child, which goes on as `stopped` is dropped.
///
/// # Errors
/// It cannot be traced.
pub(super) fn put(
    child: &Child<'_>,
    what: &What<'_>,
    stopped: &mut Option<Tracee>,
) -> Result<Begun, Failure> {
    let pid = child.pid;
    let half_way = |error: &io::Error| failure::half_way(pid, "starting it", error);
    let image = Image::parse(what.agent).map_err(|why| Failure::new(why).with(Status::Failed))?;
    match bring(child).map_err(|error| half_way(&error))? {
        Brought::There => {}
        Brought::Ended(status) => return Ok(Begun::Ended(status)),
    }
    let program = Program::look(pid, what.follows, Since::Now)?;
    let tracee = stopped.insert(Tracee::of_stopped(pid)?);
    let nowhere = Placed { agent: 0..0, entry: 0, stack: 0..0, ledger: 0 };
    let mut agent = Agent::new(pid, &program, nowhere, what.follows);
    let how = if child.mask.is_some() { START } else { FOLLOW };
    let started = agent.put(tracee, &image).and_then(|()| agent.start(tracee, how, what));
    if child.mask.is_none() && !matches!(started, Ok(true)) {
        let _ = agent.take_away(tracee);
    }
    if !started.map_err(|error| half_way(&error))? {
        return Ok(Begun::Refused);
    }
    what.region.note_placed(pid.cast_unsigned(), &agent.placed);
    Ok(Begun::Running)
}

/// Lets the child go on to where it has a thread.
fn bring(child: &Child<'_>) -> io::Result<Brought> {
    let pid = child.pid;
    if child.mask.is_some() {
        if let Some(status) = go(child, None, |status| libc::WSTOPSIG(status) == libc::SIGTRAP)? {
            return Ok(Brought::Ended(status));
        }
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as usize)?;
    }
    let ended = match program::entry_behind_linker(pid) {
        Some(entry) => to_entry(child, entry)?,
        None => to_thread(child)?,
    };
    if let Some(status) = ended {
        return Ok(Brought::Ended(status));
    }
    let Some(mask) = child.mask else { return Ok(Brought::There) };
    // The kernel's set is the first word of libc's.
    // SAFETY: plain bits, of which there are more.
    let mut bits: u64 = unsafe { std::ptr::from_ref(mask).cast::<u64>().read_unaligned() };
    ptrace(SET_MASK, pid, size_of::<u64>(), address_of(&mut bits))?;
    Ok(Brought::There)
}

/// Lets a dynamic program go on to its entry; `Some`: it has ended before.
fn to_entry(child: &Child<'_>, entry: usize) -> io::Result<Option<ExitStatus>> {
    let pid = child.pid;
    const BREAKPOINT: usize = 0xcc;
    let word = memory::read_word(pid, entry).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
    ptrace(libc::PTRACE_POKETEXT, pid, entry, word & !0xff | BREAKPOINT)?;
    let is_there = |status| {
        libc::WSTOPSIG(status) == libc::SIGTRAP && regs(pid).is_ok_and(|regs| regs.rip as usize == entry + 1)
    };
    let came = go(child, Some(libc::PTRACE_CONT), is_there);
    if matches!(came, Ok(Some(_))) {
        return came;
    }
    ptrace(libc::PTRACE_POKETEXT, pid, entry, word)?;
    came?;
    let mut regs = regs(pid)?;
    regs.rip = entry as u64;
    ptrace(libc::PTRACE_SETREGS, pid, 0, address_of(&mut regs))?;
    Ok(None)
}

/// Lets a static program go on to where its first thread has its number; `Some`: it has ended before.
fn to_thread(child: &Child<'_>) -> io::Result<Option<ExitStatus>> {
    let pid = child.pid;
    // The kernel tells a thread its number as it hears where to clear that.
    // The event of an execution comes before that call's end.
    let mut is_inside = child.mask.is_none();
    let (mut before, mut behind, mut has_told) = (0, 0, false);
    let is_enough = |status| {
        let is_call = libc::WSTOPSIG(status) == AT_A_CALL;
        is_inside ^= is_call;
        if !is_call || is_inside {
            return false;
        }
        let Ok(regs) = regs(pid) else { return false };
        *if regs.fs_base == 0 { &mut before } else { &mut behind } += 1;
        has_told = regs.orig_rax as i64 == libc::SYS_set_tid_address;
        has_told || before > MOST_CALLS_BEFORE || behind > MOST_CALLS_BEHIND
    };
    if let Some(status) = go(child, Some(libc::PTRACE_SYSCALL), is_enough)? {
        return Ok(Some(status));
    }
    if !has_told {
        return Err(io::Error::other(HAS_NO_THREAD));
    }
    let told = regs(pid)?;
    let number = told.rax as u32;
    let of_glibc = told.rdi.wrapping_sub(told.fs_base) as usize;
    let places = NUMBER_OF_MUSL_AT.into_iter().chain((of_glibc < PAGE).then_some(of_glibc));
    let places: Vec<usize> = places.map(|at| (told.fs_base as usize).wrapping_add(at)).collect();
    for _ in 0..STEPS {
        let is_number = |&at: &usize| memory::read_word(pid, at).is_some_and(|word| word as u32 == number);
        if places.iter().any(is_number) {
            return Ok(None);
        }
        let is_step = |status| libc::WSTOPSIG(status) == libc::SIGTRAP;
        if let Some(status) = go(child, Some(libc::PTRACE_SINGLESTEP), is_step)? {
            return Ok(Some(status));
        }
    }
    Err(io::Error::other("its C library keeps no number of its first thread where `probe` knows it"))
}

fn regs(pid: pid_t) -> io::Result<libc::user_regs_struct> {
    // SAFETY: registers are plain numbers.
    let mut regs = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, pid, 0, address_of(&mut regs))?;
    Ok(regs)
}

/// Lets the child go on (`None`: it does) to a stop that `is_there`, which is asked of each; `Some`: it has
/// ended before. It gets the signals that stop it.
///
/// # Errors
/// The operating system's. It has not come there until all is over, and is stopped somewhere.
fn go(
    child: &Child<'_>,
    how: Option<libc::c_uint>,
    mut is_there: impl FnMut(c_int) -> bool,
) -> io::Result<Option<ExitStatus>> {
    let pid = child.pid;
    if let Some(how) = how {
        ptrace(how, pid, 0, 0)?;
    }
    let mut is_over = child.is_over;
    loop {
        let Some(status) = next_status(pid, is_over)? else {
            is_over = None;
            ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
            continue;
        };
        if !libc::WIFSTOPPED(status) {
            return Ok(Some(ExitStatus::from_raw(status)));
        }
        let (event, signal) = (status >> 16, libc::WSTOPSIG(status));
        if child.mask.is_none() && event == libc::PTRACE_EVENT_EXIT {
            // Its parent is to be told of its end, and may be this process.
            ptrace(libc::PTRACE_DETACH, pid, 0, 0)?;
            return Ok(Some(ExitStatus::from_raw(0)));
        }
        if event == 0 && is_there(status) {
            return Ok(None);
        }
        if child.is_over.is_some() && is_over.is_none() {
            if event == libc::PTRACE_EVENT_STOP {
                return Err(io::Error::other(HAS_NO_THREAD));
            }
            // Any other stop takes the place of an interruption's.
            ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
        }
        if event == libc::PTRACE_EVENT_STOP && signal != libc::SIGTRAP {
            // With its whole group, until it is continued.
            ptrace(libc::PTRACE_LISTEN, pid, 0, 0)?;
            continue;
        }
        let signal = if event == 0 && signal != AT_A_CALL { signal as usize } else { 0 };
        ptrace(how.unwrap_or(libc::PTRACE_CONT), pid, 0, signal)?;
    }
}

/// What has become of the child; `None`: nothing until `is_over`.
fn next_status(pid: pid_t, is_over: Option<&AtomicBool>) -> io::Result<Option<c_int>> {
    /// How often to look before sleeping, and how long at the most.
    const EAGERLY: u32 = 200;
    const LONGEST: Duration = Duration::from_millis(10);
    let mut looks = 0_u32;
    loop {
        let mut status = 0;
        let options = if is_over.is_some() { libc::__WALL | libc::WNOHANG } else { libc::__WALL };
        // SAFETY: our own child, or one that this thread traces, and a place for its status.
        let done = unsafe { libc::waitpid(pid, &raw mut status, options) };
        if done == pid {
            return Ok(Some(status));
        }
        if done < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        if is_over.is_some_and(|is_over| is_over.load(Ordering::Acquire)) {
            return Ok(None);
        }
        looks = looks.saturating_add(1);
        match looks.checked_sub(EAGERLY) {
            None => std::thread::yield_now(),
            Some(late) => std::thread::sleep(MOMENT.saturating_mul(late).min(LONGEST)),
        }
    }
}
