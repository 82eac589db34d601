//! Children that ask to be debugged (`PTRACE_TRACEME`), and programs that are.
//!
//! A debugger sees a signal before the process that it is sent to does, and takes every SIGTRAP for its own.
//! So a debugged process must not hit a breakpoint of ours:
//!
//! * A fork's child is given up when it asks: its text, which is its own memory, is restored
//!   ([`probe_host_linux::leave`]).
//! * A child of `vfork` shares its text with its parent, which may be probed and is its debugger. If the
//!   child stopped, both would hang, as the parent waits for it. So the child asks only when it executes a
//!   program, in one handler, with no breakpoint in between. Nobody can see that it asks so late, as its
//!   debugger stands still until then. An execution that would fail is found out before ([`super::trial`]),
//!   and fails without asking.
//! * A process that asks the command `probe` itself, its parent, goes on: `probe` lets it continue at each
//!   stop.
//! * A program that another debugger than the first program's debugs from its start, or that Valgrind runs,
//!   is left alone.

use super::process::{self, Muted, Reporter};
use super::trial::{self, Execution};
use super::{places, plant};
use crate::wire::{Meta, Plan, Region};
use probe_core::AnyProbe;
use probe_core::handler::Flow;
use probe_host_linux::{Hit, Kprobe, Native, StartError, sys};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a process asks that wants its parent to debug it.
const TRACE_ME: u32 = 0;

/// Whether executions are seen, so that a child may ask only then.
static SEES_EXECUTIONS: AtomicBool = AtomicBool::new(false);

/// A handler on one of libc's functions.
type Handler = fn(&mut Hit<'_>) -> Flow;

/// The functions by which a process can ask.
const FUNCTIONS: [(&str, Handler); 2] = [("ptrace", on_ptrace), ("syscall", on_syscall)];

/// The probes on them. `sees_executions`: the functions that execute programs are probed, too.
pub(super) fn probes_on_functions(sees_executions: bool) -> Vec<AnyProbe<Native>> {
    SEES_EXECUTIONS.store(sees_executions, Ordering::Relaxed);
    let places = FUNCTIONS
        .iter()
        .flat_map(|&(name, handler)| places::in_libc(&[name]).into_iter().map(move |at| (at, handler)));
    places.map(|(at, handler)| Kprobe::at(at).pre(handler).into()).collect()
}

/// `ptrace(request, …)`.
fn on_ptrace(hit: &mut Hit<'_>) -> Flow {
    if hit.argument(0).is_none_or(|request| request as u32 != TRACE_ME) {
        return Flow::Continue;
    }
    probe_host_linux::lead_to(hit.regs_mut(), trace_me as *const ());
    Flow::Redirected
}

/// `syscall(number, …)`.
fn on_syscall(hit: &mut Hit<'_>) -> Flow {
    match hit.argument(0).map(|number| number as c_long) {
        Some(libc::SYS_ptrace) if hit.argument(1) == Some(TRACE_ME as usize) => {
            probe_host_linux::lead_to(hit.regs_mut(), trace_me as *const ());
            Flow::Redirected
        }
        Some(libc::SYS_execve | libc::SYS_execveat) => lead_execution(hit, execution_by_number as *const ()),
        _ => Flow::Continue,
    }
}

/// Runs in place of libc's function when the program has asked to be debugged. Outside of a hit.
extern "C" fn trace_me() -> c_long {
    let asked = if probe_host_linux::is_guest() {
        if SEES_EXECUTIONS.load(Ordering::Relaxed) {
            trial::may_be_traced().inspect(|()| process::ask_at_execution())
        } else {
            trial::ask_to_be_traced()
        }
    } else {
        if !is_child_of_command() {
            give_up();
        }
        trial::ask_to_be_traced()
    };
    asked.map_or_else(process::failed, |()| 0)
}

/// Whether the parent is `probe` itself.
fn is_child_of_command() -> bool {
    let command = process::agent().map(|agent| agent.region.reader_process());
    // SAFETY: has no preconditions.
    let parent = unsafe { sys::call(libc::SYS_getppid, []) };
    command.is_some_and(|command| parent == Ok(command as usize))
}

/// Makes this process what it would be without us, for good.
fn give_up() {
    plant::publish_all();
    let _muted = Muted::new();
    process::give_up();
    // What text could not be written stays a breakpoint, which the debugger sees.
    let _ = probe_host_linux::leave();
}

/// Called where a function begins that executes a program. If the process has asked to be debugged, `instead`
/// runs in that function's place, outside of the hit: the child's hits are those of its parent's thread, and
/// must have ended.
pub(super) fn lead_execution(hit: &mut Hit<'_>, instead: *const ()) -> Flow {
    if !process::asks_at_execution() {
        return Flow::Continue;
    }
    probe_host_linux::lead_to(hit.regs_mut(), instead);
    Flow::Redirected
}

/// As `execve(2)`.
pub(super) extern "C" fn execve(path: usize, arguments: usize, environment: usize) -> c_long {
    execute(libc::SYS_execve, [path, arguments, environment, 0, 0])
}

/// As `fexecve(3)`.
pub(super) extern "C" fn fexecve(file: c_int, arguments: usize, environment: usize) -> c_long {
    let nothing = c"".as_ptr().expose_provenance();
    execute(
        libc::SYS_execveat,
        [file as usize, nothing, arguments, environment, libc::AT_EMPTY_PATH as usize],
    )
}

/// As `execveat(2)`.
pub(super) extern "C" fn execveat(
    folder: c_int,
    path: usize,
    arguments: usize,
    environment: usize,
    flags: c_int,
) -> c_long {
    execute(libc::SYS_execveat, [folder as usize, path, arguments, environment, flags as usize])
}

/// As `syscall(2)` with one of their numbers.
extern "C" fn execution_by_number(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_long {
    execute(number, [first, second, third, fourth, fifth])
}

/// Asks to be debugged and executes a program: nothing between the two may be hit.
fn execute(number: c_long, arguments: [usize; 5]) -> c_long {
    let execution = Execution { number, arguments };
    // Where it fails the child goes on: perhaps it tries another one.
    if let Err(errno) = execution.would_run().and_then(|()| trial::ask_to_be_traced()) {
        return process::failed(errno);
    }
    execution.run();
    // What the trial could not tell. A breakpoint would stop this process, and with it its parent, for good.
    loop {
        // SAFETY: ends this child, as a shell does that cannot execute a program.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [NOT_EXECUTED as usize]) };
    }
}

/// The exit status of a child that could not execute its program.
const NOT_EXECUTED: c_int = 127;

/// Whether this program is left alone: Valgrind runs it, or a debugger that is not the first program's has it
/// from its start, one that is traced itself. If so, the command is told. What concerns the first program is
/// not told here: that one is warned of its debugger, and refused where Valgrind runs it.
pub(super) fn is_left_alone(region: &Region, image: u32) -> bool {
    let of_debugger =
        |debugger| format!("{} debugs this program, and would see the breakpoints", name_of(debugger));
    let debugger = debugger();
    if image == 1 {
        debugger.into_iter().for_each(|debugger| region.set_debugger(debugger));
        return false;
    }
    // A debugger sees no system call of ours in this program: the look at its objects makes two.
    let of_debugger = debugger.filter(|&debugger| region.debugger() != debugger).map(of_debugger);
    let of_valgrind = || probe_host_linux::is_in_valgrind().then(|| StartError::Valgrind.to_string());
    let Some(reason) = of_debugger.or_else(of_valgrind) else { return false };
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let reporter = Reporter::new(*region);
    let definitions = Plan::decode_all(region.config()).map_or(0, |plans| plans.len());
    for definition in 0..definitions as u32 {
        let symbol = program.display().to_string();
        reporter.send(&Meta::Refused { image, definition, symbol, reason: reason.clone() });
    }
    true
}

/// The name of a process.
fn name_of(process: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// The process that debugs this one.
fn debugger() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|&process| process != 0)
}
