//! Programs that are executed in this one's place: they inherit what this one ignores and blocks of our
//! signals.
//!
//! The call is made by a function in the place of libc's, so that no hit is open meanwhile, and only where
//! there is something to inherit.

use crate::Hit;
use crate::arch;
use crate::signals::execution;
use crate::sys::fail;
use core::ffi::{c_int, c_long};
use probe_core::handler::Flow;
use std::io::Write as _;

/// `execve(path, argv, envp)`.
pub(super) fn before_execve(hit: &mut Hit<'_>) -> Flow {
    in_its_place(hit, execve as *const () as usize)
}

/// `execveat(directory, path, argv, envp, flags)`.
pub(super) fn before_execveat(hit: &mut Hit<'_>) -> Flow {
    in_its_place(hit, execveat as *const () as usize)
}

/// `fexecve(file, argv, envp)`.
pub(super) fn before_fexecve(hit: &mut Hit<'_>) -> Flow {
    in_its_place(hit, fexecve as *const () as usize)
}

/// `syscall(number, …)` with the number of one of them.
pub(super) fn before_execution_by_number(hit: &mut Hit<'_>) -> Flow {
    in_its_place(hit, execution_by_number as *const () as usize)
}

fn in_its_place(hit: &mut Hit<'_>, function: usize) -> Flow {
    if !execution::hands_on() {
        return Flow::Continue;
    }
    arch::enter(hit.regs_mut(), function);
    Flow::Redirected
}

extern "C" fn execve(path: usize, argv: usize, envp: usize) -> c_int {
    fail(execute(libc::SYS_execve, [path, argv, envp, 0, 0]))
}

extern "C" fn execveat(directory: c_int, path: usize, argv: usize, envp: usize, flags: c_int) -> c_int {
    fail(execute(libc::SYS_execveat, [directory as usize, path, argv, envp, flags as usize]))
}

extern "C" fn fexecve(file: c_int, argv: usize, envp: usize) -> c_int {
    if file < 0 || argv == 0 || envp == 0 {
        return fail(libc::EINVAL);
    }
    let flags = libc::AT_EMPTY_PATH as usize;
    let mut errno =
        execute(libc::SYS_execveat, [file as usize, c"".as_ptr().expose_provenance(), argv, envp, flags]);
    if errno == libc::ENOSYS {
        let mut path = [0; 32];
        // It is long enough.
        let _ = write!(&mut path[..], "/proc/self/fd/{file}");
        errno = execute(libc::SYS_execve, [path.as_ptr().expose_provenance(), argv, envp, 0, 0]);
    }
    fail(errno)
}

extern "C" fn execution_by_number(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
) -> c_long {
    fail(execute(number, [first, second, third, fourth, fifth])) as c_long
}

fn execute(number: c_long, arguments: [usize; 5]) -> c_int {
    // SAFETY: the program's own call.
    unsafe { execution::execute(number, arguments) }
}
