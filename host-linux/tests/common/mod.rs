//! The common part of the tests. Probes are process-wide, so every test of a program takes the one lock.
#![allow(dead_code, unreachable_pub, reason = "not every test program uses everything")]

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to set probes.
pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As `signal(2)`, but the whole set is written: libc's leaves a part as it was, in which QEMU 7.2 looks for
/// the mask on riscv64 (docs/emulators.md).
pub fn install(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: all zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the tests' handlers keep to what a handler may do.
    assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
}

/// Blocks signals in the calling thread.
pub fn block(signals: &[i32]) {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: a set to be filled.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: it has been filled.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) }, 0);
}

/// A counter for a handler, which lives for ever.
pub fn counter() -> &'static AtomicUsize {
    Box::leak(Box::new(AtomicUsize::new(0)))
}

/// A counter's value.
pub fn count(counter: &AtomicUsize) -> usize {
    counter.load(Relaxed)
}

/// The address of a function's code.
pub fn code(function: *const ()) -> usize {
    if cfg!(target_abi = "elfv1") {
        // SAFETY: on that ABI a function pointer points to its descriptor.
        unsafe { function.cast::<usize>().read() }
    } else {
        function as usize
    }
}

/// How a forked child has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
}

/// Runs `body` in a forked child and waits for its end; the child's exit status is what `body` returns.
pub fn in_child(body: impl FnOnce() -> i32) -> End {
    // SAFETY: the child runs `body` and leaves by `_exit`; libtest's other threads are not there.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // No core files, please.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure is valid.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Exit(libc::WEXITSTATUS(status))
    }
}

/// This thread's errno.
pub fn errno() -> &'static std::sync::atomic::AtomicI32 {
    // SAFETY: it has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid as long as the thread lives, and used by it alone.
    unsafe { std::sync::atomic::AtomicI32::from_ptr(errno) }
}

/// Runs `body` in a bare thread (not one of Rust's) and waits until the kernel says that it has ended.
pub fn in_thread(body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void) {
    struct Start {
        body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
        number: AtomicI32,
    }
    extern "C" fn run(start: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: whoever has made the thread keeps it until the thread has ended.
        let start = unsafe { &*start.cast::<Start>() };
        // SAFETY: it has no preconditions.
        start.number.store(unsafe { libc::gettid() }, Relaxed);
        (start.body)(core::ptr::null_mut())
    }
    let mut start = Start { body, number: AtomicI32::new(0) };
    let mut id = std::mem::MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: `id` is writable, `run` is a thread function for a `Start`.
    let made =
        unsafe { libc::pthread_create(id.as_mut_ptr(), std::ptr::null(), run, (&raw mut start).cast()) };
    assert_eq!(made, 0);
    // SAFETY: filled in by the call that has succeeded.
    let id = unsafe { id.assume_init() };
    // SAFETY: made just now and joined once.
    unsafe { libc::pthread_join(id, std::ptr::null_mut()) };
    // An emulator lets the thread be joined a moment before its own thread ends.
    let process = std::process::id().cast_signed();
    // SAFETY: signal 0 only asks whether there is such a thread.
    while unsafe { libc::syscall(libc::SYS_tgkill, process, start.number.load(Relaxed), 0) } == 0 {
        std::thread::yield_now();
    }
}

/// As [`has_run_alone`], where an emulator runs the test.
///
/// QEMU 7.2 cannot make a thread in the forked child of a process that has several (its plugins count the
/// parent's).
pub fn has_run_in_own_process(test: &str) -> bool {
    std::env::var_os("PROBE_RUNNER").is_some() && has_run_alone(test)
}

/// Runs the calling test again in a process without threads of other tests; `true`: done.
pub fn has_run_alone(test: &str) -> bool {
    const MARK: &str = "PROBE_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return false;
    }
    let runner = std::env::var("PROBE_RUNNER").unwrap_or_default();
    let program = std::env::current_exe().expect("this program has a file");
    let mut words: Vec<_> = runner.split_whitespace().map(Into::into).collect();
    words.push(program.into_os_string());
    let mut command = std::process::Command::new(&words[0]);
    command.args(&words[1..]).env(MARK, "1");
    let output = command.args(["--exact", test, "--test-threads=1"]).output().expect("the runner starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    true
}
