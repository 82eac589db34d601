//! Watchpoints in a process: which threads they see, and what a fork does to them. The conformance suite has
//! the rest.
//!
//! Where the system gives no breakpoint events (an emulator, a container, another processor) there is nothing
//! to see: each test says so and ends.

#![allow(clippy::undocumented_unsafe_blocks, reason = "what a test may do is plain from its name")]

use probe_host_linux::probe_core::Watchpoint;
use probe_host_linux::probe_core::host::Host;
use probe_host_linux::{LinuxProcess, Native, probes};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, mpsc};

/// There are four registers, and tests run at the same time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

type Watch = probe_host_linux::probe_core::Watch<LinuxProcess>;

/// Watches `cell` for writes; `None` where there is no such power.
fn watch(cell: &'static AtomicUsize) -> Option<Watch> {
    if let Err(reason) = probes().host().watchpoints() {
        eprintln!("skipped: {}", reason.sentence);
        return None;
    }
    let watchpoint = Watchpoint::<Native>::at(cell.as_ptr().addr(), size_of::<usize>()).write();
    Some(probes().watch(watchpoint).unwrap())
}

#[test]
fn threads_from_before_and_from_after_are_watched() {
    static CELL: AtomicUsize = AtomicUsize::new(0);
    let _alone = alone();
    let (go, wait) = mpsc::channel();
    let before = std::thread::spawn(move || {
        wait.recv().unwrap();
        CELL.store(1, SeqCst);
    });
    let Some(watch) = watch(&CELL) else {
        go.send(()).unwrap();
        return before.join().unwrap();
    };
    go.send(()).unwrap();
    before.join().unwrap();
    assert_eq!(watch.counters().hits, 1);
    std::thread::spawn(|| {
        CELL.store(2, SeqCst);
        std::thread::spawn(|| CELL.store(3, SeqCst)).join().unwrap();
    })
    .join()
    .unwrap();
    CELL.store(4, SeqCst);
    assert_eq!(watch.counters().hits, 4);
    drop(watch);
    CELL.store(5, SeqCst);
}

/// A child that kept the parent's events open would keep its registers in use.
#[test]
fn a_child_is_not_watched_and_keeps_no_register() {
    static CELL: AtomicUsize = AtomicUsize::new(0);
    let _alone = alone();
    let Some(watched) = watch(&CELL) else { return };
    let (mut pipe, mut ready) = ([0; 2], [0; 2]);
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
    let mut byte = 0_u8;
    let child = unsafe { libc::fork() };
    if child == 0 {
        CELL.store(1, SeqCst);
        let hits = watched.counters().hits as i32;
        unsafe { libc::write(ready[1], (&raw const byte).cast(), 1) };
        // Until the parent is done.
        unsafe { libc::close(pipe[1]) };
        unsafe { libc::read(pipe[0], (&raw mut byte).cast(), 1) };
        unsafe { libc::_exit(hits) };
    }
    // The child has come out of its fork.
    assert_eq!(unsafe { libc::read(ready[0], (&raw mut byte).cast(), 1) }, 1);
    CELL.store(2, SeqCst);
    assert_eq!(watched.counters().hits, 1);
    drop(watched);
    static CELLS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
    let all: Vec<Watch> = CELLS.iter().map(|cell| watch(cell).unwrap()).collect();
    CELLS.iter().for_each(|cell| cell.store(1, SeqCst));
    assert!(all.iter().all(|watch| watch.counters().hits == 1));
    drop(all);
    unsafe { libc::close(pipe[1]) };
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    for end in [pipe[0], ready[0], ready[1]] {
        unsafe { libc::close(end) };
    }
}
