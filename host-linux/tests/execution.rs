//! Programs that are executed in this one's place: they inherit what it ignores of the signals that probes
//! live on (HIT_13).

mod common;

use common::{End, alone, has_run_in_own_process, in_child};
use probe_host_linux::{Kprobe, Kretprobe, Probe, guard_signals, probes};
use std::ffi::CStr;
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn execution_work(x: usize) -> usize {
    black_box(x) * 7
}

/// By a trap: what is ignored when it is raised ends the process.
fn on_work_by_trap() -> Probe {
    probes().register(Kprobe::at("execution_work").pre(|_| ()).without_jump()).unwrap()
}

fn on_work() -> Probe {
    probes().register(Kprobe::at("execution_work").pre(|_| ())).unwrap()
}

/// Executes a shell that ends with 0 if it ignores `signals` and no others of ours, each way; each one's end.
/// What is not there is executed first. `others`: how many other threads there are.
fn executed_ignoring(signals: &[i32], ways: &[Execute], others: usize) -> Vec<End> {
    let ours = [libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGILL];
    let mask = |signals: &[i32]| signals.iter().fold(0_u64, |bits, signal| bits | 1 << (signal - 1));
    let one = |&way: &Execute| {
        in_child(|| {
            for signal in ours {
                let handler = if signals.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL };
                // SAFETY: no handler.
                unsafe { libc::signal(signal, handler) };
            }
            let wanted = format!(
                "while read name bits; do [ $name = SigIgn: ] && exit $(((0x$bits & {}) != {})); done; exit 9",
                mask(&ours),
                mask(signals)
            );
            let script = std::ffi::CString::new(format!("{{ {wanted}; }} </proc/self/status")).unwrap();
            for _ in 0..others {
                std::thread::spawn(|| {
                    while execution_work(6) == 42 {
                        std::thread::yield_now();
                    }
                });
            }
            way(c"/nowhere/at/all", &script);
            if common::errno().load(Relaxed) != libc::ENOENT || execution_work(6) != 42 {
                return 98;
            }
            way(c"/bin/sh", &script);
            99
        })
    };
    ways.iter().map(one).collect()
}

/// Executes the shell at this path with this script.
type Execute = fn(&CStr, &CStr);

fn by_execve(path: &CStr, script: &CStr) {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
    // SAFETY: NULL-terminated lists of strings.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), argv[3..].as_ptr()) };
}

fn by_execl(path: &CStr, script: &CStr) {
    let none = std::ptr::null::<std::ffi::c_char>();
    // SAFETY: a NULL-terminated list of strings.
    unsafe { libc::execl(path.as_ptr(), c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), none) };
}

fn by_fexecve(path: &CStr, script: &CStr) {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
    // SAFETY: a string.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
    if file >= 0 {
        // SAFETY: NULL-terminated lists of strings.
        unsafe { libc::fexecve(file, argv.as_ptr(), argv[3..].as_ptr()) };
    }
}

/// Whether libc's `fexecve` executes anything: not where it wants a system call (`execveat`, QEMU 7.2 on
/// riscv64) that is not there.
fn has_fexecve() -> bool {
    let none = [std::ptr::null()];
    // SAFETY: no such descriptor, and lists without an element.
    let answer = unsafe { libc::fexecve(i32::MAX, none.as_ptr(), none.as_ptr()) };
    answer == -1 && common::errno().load(Relaxed) != libc::ENOSYS
}

fn by_number(path: &CStr, script: &CStr) {
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), std::ptr::null()];
    // SAFETY: NULL-terminated lists of strings.
    unsafe { libc::syscall(libc::SYS_execve, path.as_ptr(), argv.as_ptr(), argv[3..].as_ptr()) };
}

#[test]
fn hit_13_what_is_ignored_is_ignored_by_what_is_executed() {
    if has_run_in_own_process("hit_13_what_is_ignored_is_ignored_by_what_is_executed") {
        return;
    }
    let _alone = alone();
    let mut ways: Vec<Execute> = vec![by_execve, by_execl, by_number];
    // With the guard it works all the same.
    ways.extend(has_fexecve().then_some(by_fexecve as Execute));
    let sets = [&[libc::SIGTRAP, libc::SIGSEGV][..], &[libc::SIGBUS, libc::SIGFPE, libc::SIGILL], &[]];
    let all = || sets.map(|signals| executed_ignoring(signals, &ways, 0));
    let bare = all();
    // QEMU has handlers of its own for two of them.
    let is_emulated = std::env::var_os("PROBE_RUNNER").is_some();
    assert!(is_emulated || bare.iter().flatten().all(|end| *end == End::Exit(0)), "{bare:?}");
    let guard = guard_signals().unwrap();
    let probe = on_work();
    assert_eq!(all(), bare);
    // Others on the same function: their returns are those of what stands in its place.
    let hit = probes().register(Kprobe::at("execve").pre(|_| ())).unwrap();
    let call = probes().register(Kretprobe::at("execve").exit(|_, ()| ())).unwrap();
    assert_eq!(all(), bare);
    drop((hit, call, probe, guard));
}

#[test]
fn hit_13_what_no_hit_raises_is_ignored_by_what_a_process_of_several_threads_executes() {
    let test = "hit_13_what_no_hit_raises_is_ignored_by_what_a_process_of_several_threads_executes";
    if has_run_in_own_process(test) {
        return;
    }
    let _alone = alone();
    let all = || executed_ignoring(&[libc::SIGFPE, libc::SIGILL], &[by_execve, by_number], 2);
    let bare = all();
    assert!(bare.iter().all(|end| *end == End::Exit(0)), "{bare:?}");
    let guard = guard_signals().unwrap();
    let probe = on_work();
    assert_eq!(all(), bare);
    drop((probe, guard));
}

/// Whether an emulator runs the tests: it keeps two of the signals for itself, and no thread stands still
/// there.
fn is_emulated() -> bool {
    std::env::var_os("PROBE_RUNNER").is_some()
}

#[test]
fn hit_13_what_hits_raise_is_ignored_by_what_a_process_of_several_threads_executes() {
    let test = "hit_13_what_hits_raise_is_ignored_by_what_a_process_of_several_threads_executes";
    if is_emulated() || has_run_in_own_process(test) {
        return;
    }
    let _alone = alone();
    let ways: [Execute; 4] = [by_execve, by_execl, by_fexecve, by_number];
    let sets = [&[libc::SIGTRAP, libc::SIGSEGV][..], &[libc::SIGBUS, libc::SIGFPE, libc::SIGILL]];
    let all = || sets.map(|signals| executed_ignoring(signals, &ways, 3));
    let bare = all();
    assert!(bare.iter().flatten().all(|end| *end == End::Exit(0)), "{bare:?}");
    let guard = guard_signals().unwrap();
    let probe = on_work_by_trap();
    for _ in 0..10 {
        assert_eq!(all(), bare);
    }
    drop((probe, guard));
}

#[test]
fn hit_13_two_threads_that_execute_at_once_hand_on_what_is_ignored() {
    if is_emulated()
        || has_run_in_own_process("hit_13_two_threads_that_execute_at_once_hand_on_what_is_ignored")
    {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work_by_trap();
    let both: Execute = |path, script| {
        let ready = std::sync::atomic::AtomicUsize::new(0);
        let execute_at_once = || {
            ready.fetch_add(1, Relaxed);
            while ready.load(Relaxed) < 2 {
                core::hint::spin_loop();
            }
            by_execve(path, script);
        };
        std::thread::scope(|scope| {
            scope.spawn(execute_at_once);
            execute_at_once();
        });
        common::errno().store(libc::ENOENT, Relaxed);
    };
    for _ in 0..80 {
        assert_eq!(executed_ignoring(&[libc::SIGTRAP], &[both], 1), [End::Exit(0)]);
    }
    drop((probe, guard));
}

/// A file that may be executed, and that no kernel can.
fn not_a_program() -> std::ffi::CString {
    use std::os::unix::fs::PermissionsExt as _;
    let path = std::env::temp_dir().join(format!("execution-{}", std::process::id()));
    std::fs::write(&path, "?").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap()
}

#[test]
fn hit_7_other_threads_go_on_when_an_execution_fails() {
    if has_run_in_own_process("hit_7_other_threads_go_on_when_an_execution_fails") {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work_by_trap();
    let file = not_a_program();
    let end = in_child(|| {
        ignore_traps();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Relaxed) {
                        assert_eq!(execution_work(6), 42);
                        std::thread::yield_now();
                    }
                });
            }
            let none = [std::ptr::null()];
            for _ in 0..1_000 {
                // SAFETY: a string, and lists without an element.
                let result = unsafe { libc::execve(file.as_ptr(), none.as_ptr(), none.as_ptr()) };
                assert_eq!((result, common::errno().load(Relaxed)), (-1, libc::ENOEXEC));
                assert_eq!(execution_work(6), 42);
            }
            is_done.store(true, Relaxed);
        });
        0
    });
    std::fs::remove_file(std::path::Path::new(file.to_str().unwrap())).unwrap();
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}

#[test]
fn hit_13_no_wait_is_interrupted_by_an_execution_of_what_is_not_there() {
    if has_run_in_own_process("hit_13_no_wait_is_interrupted_by_an_execution_of_what_is_not_there") {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work_by_trap();
    let end = in_child(|| {
        ignore_traps();
        let waiter = std::thread::spawn(|| {
            // SAFETY: no descriptors.
            unsafe { libc::poll(std::ptr::null_mut(), 0, 300) }
        });
        while !waiter.is_finished() {
            execute_nothing();
        }
        waiter.join().unwrap().abs()
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}

/// Executes a shell in a thread that has SIGBUS blocked, while the process is sent SIGTRAP, which only that
/// thread has not blocked: it ends with 0 if no SIGBUS is pending there.
fn executed_while_passed_on() -> i32 {
    extern "C" fn on_trap(_: i32) {}
    common::install(libc::SIGTRAP, on_trap);
    let executes = std::thread::spawn(|| {
        common::block(&[libc::SIGBUS]);
        let wanted = "while read name bits; do [ $name = ShdPnd: ] && exit $(((0x$bits | 0x$own) & 64)); \
                      [ $name = SigPnd: ] && own=$bits; done; exit 9";
        let script = std::ffi::CString::new(format!("{{ {wanted}; }} </proc/self/status")).unwrap();
        by_execve(c"/bin/sh", &script);
    });
    common::block(&[libc::SIGTRAP]);
    let process = std::process::id().cast_signed();
    while !executes.is_finished() {
        // SAFETY: a signal that has a handler.
        unsafe { libc::kill(process, libc::SIGTRAP) };
        // Not faster than it is handled.
        assert!((0..20).all(|_| execution_work(6) == 42));
    }
    99
}

#[test]
fn hit_13_a_program_that_is_executed_inherits_no_signal_of_ours() {
    if is_emulated() || has_run_in_own_process("hit_13_a_program_that_is_executed_inherits_no_signal_of_ours")
    {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work_by_trap();
    let ends: Vec<End> = (0..100).map(|_| in_child(executed_while_passed_on)).collect();
    // The one that was sent may be pending, and ends what has no handler for it.
    let allowed = [End::Exit(0), End::Signal(libc::SIGTRAP)];
    assert!(ends.iter().all(|end| allowed.contains(end)), "{ends:?}");
    drop((probe, guard));
}

#[test]
fn hit_13_an_action_that_is_installed_while_another_thread_executes_stays() {
    extern "C" fn on_fault(_: i32) {}
    if has_run_in_own_process("hit_13_an_action_that_is_installed_while_another_thread_executes_stays") {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work();
    let end = in_child(|| {
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let mut lost = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    execute_nothing();
                }
            });
            for _ in 0..2_000 {
                // SAFETY: the handler does nothing.
                unsafe { libc::signal(libc::SIGFPE, libc::SIG_IGN) };
                execution_work(6);
                // SAFETY: as above.
                unsafe { libc::signal(libc::SIGFPE, on_fault as *const () as usize) };
                execution_work(6);
                // SAFETY: as above.
                let found = unsafe { libc::signal(libc::SIGFPE, libc::SIG_DFL) };
                lost += i32::from(found != on_fault as *const () as usize);
            }
            is_done.store(true, Relaxed);
        });
        lost.min(9)
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}

/// Nothing is there.
fn execute_nothing() {
    let none = [std::ptr::null()];
    // SAFETY: a string, and lists without an element.
    let result = unsafe { libc::execve(c"/nowhere/at/all".as_ptr(), none.as_ptr(), none.as_ptr()) };
    assert_eq!((result, common::errno().load(Relaxed)), (-1, libc::ENOENT));
}

/// Ignores SIGTRAP.
fn ignore_traps() {
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGTRAP, libc::SIG_IGN) };
}

#[test]
fn hit_7_other_threads_are_hit_while_one_executes_a_program() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work();
    let end = in_child(|| {
        ignore_traps();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Relaxed) {
                    assert_eq!(execution_work(6), 42);
                }
            });
            (0..2_000).for_each(|_| execute_nothing());
            is_done.store(true, Relaxed);
        });
        0
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}

#[test]
fn hit_12_a_signals_handler_is_hit_while_its_thread_executes_a_program() {
    extern "C" fn on_alarm(_: i32) {
        assert_eq!(execution_work(6), 42);
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work();
    let end = in_child(|| {
        ignore_traps();
        // SAFETY: the handler calls a pure function.
        unsafe { libc::signal(libc::SIGALRM, on_alarm as *const () as usize) };
        for after in 0..5_000 {
            // One signal each: one that comes at intervals leaves a slow machine no time for anything else.
            let once = libc::timeval { tv_sec: 0, tv_usec: 1 + after % 50 };
            let timer =
                libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: once };
            // SAFETY: a valid structure.
            unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
            execute_nothing();
        }
        0
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}

#[path = "execution/standstill.rs"]
mod standstill;
