//! Programs that a followed one executes and that no dynamic linker of glibc's starts, with `-f`: the agent
//! is put into them as into one that the command starts ([`super::start`]).
//!
//! The agent of the process that is about to execute one calls ([`crate::wire`]), and waits for an answer. A
//! thread of the command's debugs the process (which sends it nothing), answers, and is told of the execution
//! before the program's first instruction. Where anything goes wrong, the program goes on without an agent.

use super::agent::What;
use super::keeper::Keeper;
use super::memory;
use super::request::ptrace;
use super::start::{self, Child};
use super::stop::{Stop, wait};
use super::tracee::Tracee;
use crate::cli::failure::Failure;
use crate::cli::foreign::Foreign;
use crate::cli::program::{self, Way};
use crate::cli::summary::NotFollowed;
use crate::wire::{Call, Calls};
use libc::pid_t;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long an execution may take that was about to happen.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many programs that were not followed are named.
const MOST_NAMED: usize = 1 << 10;

/// How many calls are seen to at the same time; further ones wait, as long as their callers do.
const MOST_SEEN_TO: usize = 32;

/// What is waited where many are seen to already.
const BREATH: Duration = Duration::from_millis(1);

/// How many are taken between two looks at whether all is over: a program may write ever new ones.
const MOST_AT_ONCE: usize = 16;

/// The part of the command that waits for the end of a process that it has started: while somebody else
/// debugs that process, who waits for it would be told of its stops.
pub(crate) trait Waits: Sync {
    /// From now on, or no longer, nobody waits for process `pid`.
    fn hold(&self, pid: pid_t, is_held: bool);
}

/// What all threads use.
struct Common<'a> {
    what: &'a What<'a>,
    keeper: &'a Keeper,
    waits: Option<&'a dyn Waits>,
    is_over: &'a AtomicBool,
    not_followed: Mutex<Vec<NotFollowed>>,
    /// The processes that a thread of ours debugs.
    seized: Mutex<BTreeSet<pid_t>>,
}

/// A call with the thread that sees to it. One that nobody has answered is refused as this is dropped.
struct Asked<'a> {
    call: Option<Call>,
    living: &'a AtomicUsize,
}

impl<'a> Asked<'a> {
    fn new(call: Call, living: &'a AtomicUsize) -> Self {
        living.fetch_add(1, Ordering::Relaxed);
        Self { call: Some(call), living }
    }

    fn answer(&mut self, is_followed: bool) {
        if let Some(call) = self.call.take() {
            call.answer(is_followed);
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.answer(false);
        self.living.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends the answering as it goes out of scope.
struct Over<'a> {
    is_over: &'a AtomicBool,
    calls: &'a Calls,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.calls.end();
    }
}

/// Answers calls while `run` runs, if any; returns what it does, and which programs were not followed. The
/// agents call from [`crate::wire::Calls::begin`] on.
pub(crate) fn while_answering<T>(
    answers: Option<(&What<'_>, &Keeper)>,
    waits: Option<&dyn Waits>,
    run: impl FnOnce() -> T,
) -> (T, Vec<NotFollowed>) {
    let Some((what, keeper)) = answers else { return (run(), Vec::new()) };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| answer_calls(what, keeper, waits, &is_over));
        let over = Over { is_over: &is_over, calls: what.region.calls() };
        let done = run();
        drop(over);
        (done, answering.join().unwrap_or_default())
    })
}

/// Answers calls until `is_over` and [`crate::wire::Calls::end`].
fn answer_calls(
    what: &What<'_>,
    keeper: &Keeper,
    waits: Option<&dyn Waits>,
    is_over: &AtomicBool,
) -> Vec<NotFollowed> {
    let not_followed = Mutex::new(Vec::new());
    let common = &Common { what, keeper, waits, is_over, not_followed, seized: Mutex::default() };
    let living = &AtomicUsize::new(0);
    let calls = what.region.calls();
    std::thread::scope(|scope| {
        while !is_over.load(Ordering::Acquire) {
            let made = calls.made();
            let room = MOST_SEEN_TO.saturating_sub(living.load(Ordering::Relaxed));
            for call in std::iter::from_fn(|| calls.next()).take(room.min(MOST_AT_ONCE)) {
                let mut asked = Asked::new(call, living);
                // One for which there is no thread is dropped.
                let _ = Builder::new().spawn_scoped(scope, move || common.answer(&mut asked));
            }
            if room > MOST_AT_ONCE {
                calls.wait(made);
            } else {
                std::thread::sleep(BREATH);
            }
        }
        std::iter::from_fn(|| calls.next()).take(MOST_AT_ONCE).for_each(|call| call.answer(false));
    });
    common.not_followed.lock().map_or_else(|_| Vec::new(), |mut all| std::mem::take(&mut *all))
}

/// A process that this thread debugs, which goes on as this is dropped.
struct Seized<'a> {
    pid: pid_t,
    common: &'a Common<'a>,
    /// Whether it is stopped.
    is_stopped: bool,
}

impl Drop for Seized<'_> {
    fn drop(&mut self) {
        let mut signal = 0;
        if !self.is_stopped {
            let _ = ptrace(libc::PTRACE_INTERRUPT, self.pid, 0, 0);
            // One that has come first is for the process: no execution has.
            if let Some(Stop::Signal(come)) = wait(self.pid, Instant::now() + PATIENCE) {
                signal = come;
            }
        }
        // One that has been detached from refuses.
        let _ = ptrace(libc::PTRACE_DETACH, self.pid, 0, signal as usize);
        self.common.leave(self.pid);
    }
}

impl Common<'_> {
    /// Answers one call, and sees to the process until its program runs.
    fn answer(&self, asked: &mut Asked<'_>) {
        let Some(pid) = asked.call.as_ref().map(|call| call.pid.cast_signed()) else { return };
        let seized = if self.is_followed(pid) { self.seize(pid) } else { None };
        asked.answer(seized.is_some());
        let Some(mut seized) = seized else { return };
        let Some(program) = self.executed(&mut seized) else { return };
        let put = self.put(pid);
        if let Err(failure) = put
            && let Ok(mut all) = self.not_followed.lock()
        {
            let (program, reason) = (Foreign::new(program), Foreign::new(failure.to_string()));
            let known = all.iter().position(|known| known.program == program && known.reason == reason);
            match known {
                Some(known) => all[known].times += 1,
                None if all.len() < MOST_NAMED => all.push(NotFollowed { program, reason, times: 1 }),
                None => {}
            }
        }
    }

    /// Whether a process that calls has the shared memory, so that it is one that is traced, or has made
    /// itself one: who writes there may name any.
    fn is_followed(&self, pid: pid_t) -> bool {
        let own = std::process::id().cast_signed();
        let of = |pid| {
            let maps = memory::maps(pid).unwrap_or_default();
            maps.iter().filter(|map| map.is_region()).map(|map| map.inode).collect::<Vec<_>>()
        };
        let ours = of(own);
        pid != own && of(pid).iter().any(|inode| ours.contains(inode))
    }

    /// Debugs a process; `None`: it cannot be debugged, or another thread of ours does already.
    fn seize(&self, pid: pid_t) -> Option<Seized<'_>> {
        if !self.seized.lock().is_ok_and(|mut seized| seized.insert(pid)) {
            return None;
        }
        if let Some(waits) = self.waits {
            waits.hold(pid, true);
        }
        let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACESYSGOOD;
        match ptrace(libc::PTRACE_SEIZE, pid, 0, options as usize) {
            Ok(_) => Some(Seized { pid, common: self, is_stopped: false }),
            Err(_) => {
                self.leave(pid);
                None
            }
        }
    }

    /// No thread of ours debugs process `pid` any more.
    fn leave(&self, pid: pid_t) {
        if let Some(waits) = self.waits {
            waits.hold(pid, false);
        }
        if let Ok(mut seized) = self.seized.lock() {
            seized.remove(&pid);
        }
    }

    /// Waits for the execution, and returns what is executed; `None`: nothing is.
    fn executed(&self, seized: &mut Seized<'_>) -> Option<String> {
        const STEP: Duration = Duration::from_millis(50);
        let (pid, until) = (seized.pid, Instant::now() + PATIENCE);
        while Instant::now() < until && !self.is_over.load(Ordering::Acquire) {
            let (how, signal) = match wait(pid, Instant::now() + STEP) {
                None => continue,
                Some(Stop::Executed) => {
                    seized.is_stopped = true;
                    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
                    return Some(program.display().to_string());
                }
                Some(Stop::Ending | Stop::Gone) => {
                    seized.is_stopped = true;
                    return None;
                }
                Some(Stop::Signal(signal)) => (libc::PTRACE_CONT, signal),
                Some(Stop::WithGroup) => (libc::PTRACE_LISTEN, 0),
                Some(Stop::Interrupted | Stop::Cloned) => (libc::PTRACE_CONT, 0),
            };
            let _ = ptrace(how, pid, 0, signal as usize);
        }
        None
    }

    /// Puts the agent into what was executed.
    fn put(&self, pid: pid_t) -> Result<(), Failure> {
        match program::way_into(format!("/proc/{pid}/exe").as_ref())? {
            Way::Put => {}
            // Another program than the agent has seen.
            Way::Loaded => return Ok(()),
        }
        self.keeper.watch(pid);
        let mut tracee: Option<Tracee> = None;
        start::put(&Child::executed(pid, self.is_over), self.what, &mut tracee).map(drop)
    }
}
