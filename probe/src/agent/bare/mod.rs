//! What stands for a C library in an agent that is mapped into a running program.
//!
//! Such an agent must not call the program's libc: its threads were stopped anywhere, and hold its locks.
//! So the functions of libc that this crate, its dependencies and Rust's standard library name are
//! defined here, by system calls, and the object has no undefined symbol (tested in `cli/attach/image`).
//! Where one cannot do what libc's does, it fails: nothing of that is used in a running program.
//!
//! [`calls`] one system call each · [`files`] paths and folders · [`memory`] the heap · [`objects`] the
//! loaded objects and the vDSO · [`process`] what a process knows of itself · [`thread`] a thread's
//! `errno` · [`unwind`] panics, which abort.

mod calls;
mod files;
mod memory;
mod objects;
mod process;
mod thread;
mod unwind;

/// Makes it ready; later calls do nothing.
pub(super) fn start() {
    process::start();
}

/// What is told of `errno`: see [`thread::learn`]. Before, `errno` is a word of ours.
pub(super) fn learn_errno(errno_location: usize, errno_behind: isize) {
    thread::learn(errno_location, errno_behind);
}
