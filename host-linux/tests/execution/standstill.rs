//! A thread that stands still while another one executes programs, at moments that a tracer chooses.

use super::*;
use std::io::{Read as _, Write as _};

/// How often a thread is asked to stand still by [`stands_for_executions`]: frames for so many handlers have
/// no room on any stack here.
const STANDSTILLS: usize = 200;

/// In a child: one thread executes what is no program, the other one does nothing else than stand still for
/// it. Writes that one's number, begins when it has read a byte, and writes another one when it is done.
fn stands_for_executions(file: &CStr, mut to: std::io::PipeWriter, mut from: std::io::PipeReader) -> i32 {
    ignore_traps();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (begun, stands) = std::sync::mpsc::channel();
        scope.spawn({
            let is_done = &is_done;
            move || {
                // SAFETY: has no preconditions.
                begun.send(unsafe { libc::gettid() }).unwrap();
                while !is_done.load(Relaxed) {
                    core::hint::spin_loop();
                }
            }
        });
        to.write_all(&stands.recv().unwrap().to_ne_bytes()).unwrap();
        from.read_exact(&mut [0]).unwrap();
        let none = [std::ptr::null()];
        for _ in 0..STANDSTILLS {
            // SAFETY: a string, and lists without an element.
            let result = unsafe { libc::execve(file.as_ptr(), none.as_ptr(), none.as_ptr()) };
            assert_eq!((result, common::errno().load(Relaxed)), (-1, libc::ENOEXEC));
        }
        to.write_all(&[0]).unwrap();
        is_done.store(true, Relaxed);
    });
    0
}

/// A mask in the kernel's report on a thread: all signals where there is no such thread any more.
fn reported(process: libc::pid_t, thread: libc::pid_t, mask: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix(mask));
    bits.map_or(u64::MAX, |bits| u64::from_str_radix(bits.trim(), 16).unwrap())
}

/// Traces `thread` of the child `process` until it ends, which begins when `begun` is written, and tells in
/// `done` when it has asked for the last standstill. Wherever a system call of the thread ends with the
/// question for one open, it waits there for that question, which so comes at the first moment that it can.
fn asked_at_every_chance(
    process: libc::pid_t,
    thread: libc::pid_t,
    mut begun: std::io::PipeWriter,
    done: &std::io::PipeReader,
) {
    use std::os::fd::AsRawFd as _;
    const OF_CALL: i32 = libc::SIGTRAP | 0x80;
    let asking = 1_u64 << (libc::SIGBUS - 1);
    let ptrace = |request, data: i32| {
        let data = data as usize as *mut libc::c_void;
        // SAFETY: the thread is of a child of this process; `data` is options or a signal.
        let answer = unsafe { libc::ptrace(request, thread, std::ptr::null_mut::<libc::c_void>(), data) };
        // The end of its process does not wait for it.
        assert!(answer == 0 || common::errno().load(Relaxed) == libc::ESRCH);
    };
    let is_done = || {
        let mut done = libc::pollfd { fd: done.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&mut done, 1, 0) != 0 }
    };
    ptrace(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD);
    ptrace(libc::PTRACE_INTERRUPT, 0);
    let (mut is_begun, mut asked) = (false, 0);
    loop {
        let mut status = 0;
        // SAFETY: a place for the status.
        assert_eq!(unsafe { libc::waitpid(thread, &mut status, libc::__WALL) }, thread);
        if !libc::WIFSTOPPED(status) {
            assert_eq!(status, 0, "asked {asked} times");
            assert!(asked >= STANDSTILLS / 2, "{asked}");
            return;
        }
        let signal = libc::WSTOPSIG(status);
        let is_of_signal = signal != OF_CALL && status >> 16 == 0;
        asked += usize::from(is_of_signal && signal == libc::SIGBUS);
        while signal == OF_CALL && reported(process, thread, "SigBlk:") & asking == 0 && !is_done() {
            if reported(process, thread, "SigPnd:") & asking != 0 {
                break;
            }
            std::thread::yield_now();
        }
        ptrace(libc::PTRACE_SYSCALL, if is_of_signal { signal } else { 0 });
        if !is_begun {
            is_begun = begun.write_all(&[0]).is_ok();
        }
    }
}

#[test]
fn hit_6_a_thread_stands_still_again_only_when_its_handler_has_returned() {
    // QEMU has no `ptrace` for what it runs, and no thread stands still there.
    if is_emulated() {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work_by_trap();
    let file = not_a_program();
    let (ready, begins) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    // SAFETY: the child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = stands_for_executions(&file, ready.1, begins.0);
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    let (mut from, mut thread) = (ready.0, [0; 4]);
    from.read_exact(&mut thread).unwrap();
    asked_at_every_chance(child, libc::pid_t::from_ne_bytes(thread), begins.1, &from);
    std::fs::remove_file(std::path::Path::new(file.to_str().unwrap())).unwrap();
    let mut status = 0;
    // SAFETY: a place for the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    drop((probe, guard));
}
