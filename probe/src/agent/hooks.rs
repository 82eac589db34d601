//! Functions of libc that the agent interposes: what neither a handler nor the guard can do.
//!
//! The guard ([`probe_host_linux::guard`]) probes the system calls by which libc changes signal masks,
//! actions and alternate stacks, and makes them in the handler. It sees the calls that libc makes for itself,
//! which bind to no symbol and pass every interposed function by. Interposed functions are needed where a
//! handler cannot be:
//!
//! * **Registering, allocating, taking locks.** `dlclose` marks the probes of unloaded objects as gone,
//!   `pthread_create` grows pools of return probes that run low, `_exit`, `_Exit`, `execve`, `execv`,
//!   `execvp` and `execvpe` publish the counters and hand the agent on. (The rest of that family cannot be
//!   interposed: [`super::exec`].)
//! * **Waiting.** `sigsuspend`, `pselect`, `ppoll` and `epoll_pwait` block with a mask of their own, so the
//!   call cannot be made inside a hit. The mask is cleaned before the call: a breakpoint that is hit while
//!   SIGTRAP is blocked ends the process.
//! * **No guard.** It comes with the first batch of probes, and not at all where it finds no system calls (an
//!   unknown C library). `sigaction` and `signal` keep the program's action behind ours until then;
//!   `sigprocmask` and `pthread_sigmask` never block the signals of a hit.

use super::environment::Changed;
use super::executed::File;
use super::process::failed;
use super::runner::{self, Execution};
use super::{masks, plant, process};
use probe_host_linux::signals::{self, NEVER_BLOCKED, OWNED, program_action};
use probe_host_linux::sys::{self, Action, Restorer, SignalSet};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Signals in the words of a `sigset_t`.
const WORDS: usize = 8 / size_of::<usize>();

/// A function of the next object behind this one, looked up at its first use.
struct Next {
    name: &'static std::ffi::CStr,
    addr: AtomicUsize,
}

impl Next {
    const fn new(name: &'static std::ffi::CStr) -> Self {
        Self { name, addr: AtomicUsize::new(0) }
    }

    fn addr(&self) -> usize {
        let known = self.addr.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: a NUL-terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        if found == 0 {
            std::process::abort();
        }
        self.addr.store(found, Ordering::Relaxed);
        found
    }
}

/// The functions that the interposed ones hide.
macro_rules! real {
    ($($name:ident),*) => {
        #[allow(non_upper_case_globals, reason = "they are called as the functions are")]
        mod real {
            use super::Next;
            $(pub(super) static $name: Next = Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("not a name"),
                },
            );)*
            pub(super) static ALL: &[&Next] = &[$(&$name),*];
        }
    };
}

real!(
    sigaction,
    signal,
    sigprocmask,
    pthread_sigmask,
    sigsuspend,
    ppoll,
    pselect,
    epoll_pwait,
    dlclose,
    pthread_create,
    execve,
    execvpe
);

/// Looks all of them up: `dlsym` may be probed later.
pub(super) fn start() {
    real::ALL.iter().for_each(|next| {
        next.addr();
    });
}

/// Calls the function that an interposed one hides, with the same type.
macro_rules! next {
    ($name:ident: fn($($type:ty),*) $(-> $result:ty)?; $($argument:expr),*) => {{
        // SAFETY: libc's function of that name has this type.
        let function = unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) $(-> $result)?>(real::$name.addr())
        };
        // SAFETY: the caller of the interposed function keeps the promises of the real one.
        unsafe { function($($argument),*) }
    }};
}

fn is_active() -> bool {
    process::agent().is_some() && !process::is_given_up()
}

/// The signals of a `sigset_t`.
fn signals_of(set: &libc::sigset_t) -> SignalSet {
    // SAFETY: a `sigset_t` begins with the kernel's words.
    let words = unsafe { (&raw const *set).cast::<[usize; WORDS]>().read() };
    let shifted =
        words.iter().enumerate().map(|(i, word)| (*word as u64) << (i * (usize::BITS as usize % 64)));
    SignalSet::from_bits(shifted.fold(0, |bits, word| bits | word))
}

/// Puts signals into a `sigset_t`.
fn put_signals(set: &mut libc::sigset_t, signals: SignalSet) {
    let bits = signals.bits();
    let words: [usize; WORDS] = std::array::from_fn(|i| (bits >> (i * (usize::BITS as usize % 64))) as usize);
    // SAFETY: a `sigset_t` begins with the kernel's words.
    unsafe { (&raw mut *set).cast::<[usize; WORDS]>().write(words) };
}

/// The set without the signals that a hit raises.
fn without_ours(set: &libc::sigset_t) -> libc::sigset_t {
    let mut set = *set;
    let kept = signals_of(&set).bits() & !NEVER_BLOCKED.bits();
    put_signals(&mut set, SignalSet::from_bits(kept));
    set
}

/// A pointer to the cleaned copy of what `mask` points to, or NULL. What is to be blocked from now on: the
/// guard sees to it itself.
///
/// # Safety
/// `mask` is NULL or points to a set.
unsafe fn to_be_blocked(
    mask: *const libc::sigset_t,
    room: &mut Option<libc::sigset_t>,
) -> *const libc::sigset_t {
    if masks::is_planted() {
        return mask;
    }
    // SAFETY: the caller's promise.
    unsafe { cleaned(mask, room) }
}

/// As [`to_be_blocked`], of what is blocked during a wait.
///
/// # Safety
/// `mask` is NULL or points to a set.
unsafe fn cleaned(mask: *const libc::sigset_t, room: &mut Option<libc::sigset_t>) -> *const libc::sigset_t {
    if !is_active() {
        return mask;
    }
    // SAFETY: the caller's promise.
    match unsafe { mask.as_ref() } {
        None => mask,
        Some(set) => room.insert(without_ours(set)),
    }
}

/// Waits by `call`, which is told what the kernel may block of `mask`.
///
/// # Safety
/// `mask` is NULL or points to a set.
unsafe fn wait(mask: *const libc::sigset_t, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { mask.as_ref() }).filter(|_| is_active()) else { return call() };
    signals::while_waiting(signals_of(mask), call).unwrap_or_else(|| failed(libc::EINTR) as c_int)
}

/// # Safety
/// As `sigaction(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_active() || masks::is_planted() {
        return next!(sigaction: fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int; signal, new, old);
    }
    // SAFETY: the caller's promise.
    let new = unsafe { new.as_ref() };
    if !OWNED.contains(&signal) {
        let cleaned = new.map(|new| libc::sigaction { sa_mask: without_ours(&new.sa_mask), ..*new });
        let new = cleaned.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        return next!(sigaction: fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int; signal, new, old);
    }
    let action = new.map(|new| Action {
        handler: new.sa_sigaction,
        flags: new.sa_flags as usize,
        restorer: Restorer::NONE,
        mask: signals_of(&new.sa_mask),
    });
    let before = program_action(signal, action.as_ref());
    // SAFETY: the caller's promise.
    if let Some(old) = unsafe { old.as_mut() } {
        old.sa_sigaction = before.handler;
        old.sa_flags = before.flags as c_int;
        old.sa_restorer = None;
        put_signals(&mut old.sa_mask, before.mask);
    }
    0
}

/// # Safety
/// As `signal(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if !is_active() || masks::is_planted() || !OWNED.contains(&signal) {
        return next!(signal: fn(c_int, usize) -> usize; signal, handler);
    }
    let mask = SignalSet::EMPTY.with(signal);
    let action = Action { handler, flags: libc::SA_RESTART as usize, restorer: Restorer::NONE, mask };
    program_action(signal, Some(&action)).handler
}

/// # Safety
/// As `sigprocmask(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    let mut room = None;
    // SAFETY: the caller's promise.
    let set = if how == libc::SIG_UNBLOCK { set } else { unsafe { to_be_blocked(set, &mut room) } };
    next!(sigprocmask: fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int; how, set, old)
}

/// # Safety
/// As `pthread_sigmask(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    let mut room = None;
    // SAFETY: the caller's promise.
    let set = if how == libc::SIG_UNBLOCK { set } else { unsafe { to_be_blocked(set, &mut room) } };
    next!(pthread_sigmask: fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int; how, set, old)
}

/// # Safety
/// As `sigsuspend(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigsuspend(mask: *const libc::sigset_t) -> c_int {
    let mut room = None;
    // SAFETY: the caller's promise.
    let cleaned = unsafe { cleaned(mask, &mut room) };
    let suspend = || next!(sigsuspend: fn(*const libc::sigset_t) -> c_int; cleaned);
    // SAFETY: as above.
    unsafe { wait(mask, suspend) }
}

/// # Safety
/// As `ppoll(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut room = None;
    // SAFETY: the caller's promise.
    let cleaned = unsafe { cleaned(mask, &mut room) };
    let poll = || {
        next!(ppoll: fn(*mut libc::pollfd, libc::nfds_t, *const libc::timespec, *const libc::sigset_t) -> c_int;
            files, count, timeout, cleaned)
    };
    // SAFETY: as above.
    unsafe { wait(mask, poll) }
}

/// # Safety
/// As `pselect(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    readable: *mut c_void,
    writable: *mut c_void,
    except: *mut c_void,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut room = None;
    // SAFETY: the caller's promise.
    let cleaned = unsafe { cleaned(mask, &mut room) };
    let select = || {
        next!(pselect: fn(
                c_int, *mut c_void, *mut c_void, *mut c_void, *const libc::timespec, *const libc::sigset_t) -> c_int;
            count, readable, writable, except, timeout, cleaned)
    };
    // SAFETY: as above.
    unsafe { wait(mask, select) }
}

/// # Safety
/// As `epoll_pwait(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout_ms: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut room = None;
    // SAFETY: the caller's promise.
    let cleaned = unsafe { cleaned(mask, &mut room) };
    let wait_for_events = || {
        next!(epoll_pwait: fn(c_int, *mut libc::epoll_event, c_int, c_int, *const libc::sigset_t) -> c_int;
            epoll, events, most, timeout_ms, cleaned)
    };
    // SAFETY: as above.
    unsafe { wait(mask, wait_for_events) }
}

/// # Safety
/// As `dlclose(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let result = next!(dlclose: fn(*mut c_void) -> c_int; handle);
    if is_active() {
        let _muted = process::Muted::new();
        probe_host_linux::objects_changed();
    }
    result
}

/// A new thread may need one more followed call: pools that run low grow before it starts (RET_2).
///
/// # Safety
/// As `pthread_create(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    // Not by `probes`, which asks the loader what has gone: that would be as if the program did (EVT_1).
    if is_active()
        && let Ok(probes) = probe_host_linux::start()
        && probes.pools().are_low()
    {
        let _muted = process::Muted::new();
        // Without memory for it calls are missed, and counted.
        let _ = probes.pools().grow(0);
    }
    next!(
        pthread_create: fn(*mut libc::pthread_t, *const libc::pthread_attr_t, *mut c_void, *mut c_void) -> c_int;
        thread, attributes, start, argument
    )
}

/// # Safety
/// As `_exit(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    process::end_calls();
    plant::publish_all();
    loop {
        // SAFETY: ends all threads of the process.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [status as usize]) };
    }
}

/// # Safety
/// As `_Exit(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the same function by another name.
    unsafe { _exit(status) }
}

/// # Safety
/// As `execve(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let changed = unsafe { before_exec(Some(path), environment) };
    let environment = changed.as_ref().map_or(environment, Changed::as_ptr);
    // SAFETY: the caller's promise.
    let execution = unsafe { Execution::new(path, argv, environment) };
    let (path, argv, environment) = execution
        .as_ref()
        .map_or((path, argv, environment), |instead| (instead.path(), instead.argv(), instead.environment()));
    next!(execve: fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int; path, argv, environment)
}

/// # Safety
/// As `execv(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, argv, current_environment()) }
}

/// # Safety
/// As `execvpe(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(
    file: *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise: a string.
    if let Some(path) = runner::find(unsafe { std::ffi::CStr::from_ptr(file) }) {
        // SAFETY: the caller's promise.
        return unsafe { execve(path.as_ptr(), argv, environment) };
    }
    // SAFETY: the caller's promise.
    let changed = unsafe { before_exec(None, environment) };
    let environment = changed.as_ref().map_or(environment, Changed::as_ptr);
    next!(execvpe: fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int; file, argv, environment)
}

/// # Safety
/// As `execvp(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, argv, current_environment()) }
}

/// Publishes the counters and prepares the environment before this program may be replaced by another, where
/// no probe does that ([`super::exec`]).
///
/// # Safety
/// What `execve(2)` takes.
unsafe fn before_exec(path: Option<*const c_char>, environment: *const *const c_char) -> Option<Changed> {
    if super::exec::is_seen() {
        return None;
    }
    plant::publish_all();
    // SAFETY: the caller's promise.
    unsafe { Changed::new(path.map(|path| File::path(path.expose_provenance())), environment) }
}

fn current_environment() -> *const *const c_char {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: libc's variable; who changes it while another thread executes a program is lost anyway.
    unsafe { environ }
}
