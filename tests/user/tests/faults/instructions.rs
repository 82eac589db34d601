//! Faults raised by a probed instruction.

use super::*;
use machine::{FORK_PLACE, JUMPED, PC, REGISTERS, REGISTERS_AT, STEPPED, cases, function};
use probe_host_linux::Probe;

/// Defines functions of two numbers, each of which is `$start`, one instruction that may fault, and `$back`,
/// where the handler sends the program after the fault; and [`function`], which finds them.
macro_rules! functions {
    ($start:expr, $back:expr; $($name:ident $end:ident $insn:expr;)*) => {
        $(core::arch::global_asm!(concat!(
            ".pushsection .text\n.balign 64\n.type ", stringify!($name), ", %function\n",
            ".globl ", stringify!($name), "\n", stringify!($name), ":\n", $start, "\n", $insn, "\n",
            ".globl ", stringify!($end), "\n", stringify!($end), ":\n", $back, "\n",
            ".size ", stringify!($name), ", . - ", stringify!($name), "\n.popsection"
        ));)*
        unsafe extern "C" {
            $(static $name: u8;
            static $end: u8;)*
        }
        /// Where the code of the function of that name is, and its end.
        pub(crate) fn function(name: &str) -> (usize, usize) {
            match name {
                $(stringify!($name) => ((&raw const $name).addr(), (&raw const $end).addr()),)*
                _ => unreachable!("no function is called {name}"),
            }
        }
    };
}

probe_arch_native::native_module!(mod machine by family);

/// A function that faults, its arguments, the signal.
struct Case {
    name: &'static str,
    arguments: (usize, usize),
    signal: i32,
}

impl Case {
    fn new(name: &'static str, first: usize, second: usize, signal: i32) -> Self {
        Self { name, arguments: (first, second), signal }
    }
}

/// What the program's handler has seen: signal, code, address, and the registers that the function has set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    signal: i32,
    code: i32,
    addr: usize,
    registers: Vec<usize>,
}

static SEEN: std::sync::Mutex<Option<Seen>> = std::sync::Mutex::new(None);
static END: AtomicUsize = AtomicUsize::new(0);

extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's, or what stands for it.
    let info = unsafe { &*info };
    let words = context.cast::<u8>().wrapping_add(REGISTERS_AT).cast::<usize>();
    // SAFETY: the kernel's structure has its registers there.
    let read = |word: &usize| unsafe { words.wrapping_add(*word).read() };
    let registers = REGISTERS.iter().chain([&PC]).map(read).collect();
    // SAFETY: a fault's siginfo has an address.
    let addr = unsafe { info.si_addr() } as usize;
    let seen = Seen { signal, code: info.si_code, addr, registers };
    *SEEN.lock().expect("nobody panics with it") = Some(seen);
    // SAFETY: as above.
    unsafe { words.wrapping_add(PC).write(END.load(Relaxed)) };
}

/// Calls a function by the address of its code.
fn call(code: usize, (first, second): (usize, usize)) -> usize {
    type Function = extern "C" fn(usize, usize) -> usize;
    // With ELFv1 a function's address is that of its descriptor; these use no TOC and no environment.
    let descriptor = [code, 0, 0];
    let pointer = if cfg!(target_abi = "elfv1") { descriptor.as_ptr() } else { code as *const usize };
    // SAFETY: the code of such a function, or its descriptor.
    let function: Function = unsafe { std::mem::transmute(black_box(pointer)) };
    function(first, second)
}

/// A page of a file that ends before it.
fn beyond_the_end() -> usize {
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"empty".as_ptr(), 0) };
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn run(case: &Case) -> Seen {
    let (code, end) = function(case.name);
    END.store(end, Relaxed);
    call(code, case.arguments);
    SEEN.lock().expect("nobody panics with it").take().expect("it has faulted")
}

/// How the instructions are probed.
#[derive(Clone, Copy, Debug)]
enum How {
    Boosted,
    Stepped,
    Jumped,
}

fn plant(name: &str, how: How) -> Vec<Probe> {
    let offsets = if matches!(how, How::Jumped) { JUMPED } else { STEPPED };
    let probe = |offset: &isize| {
        let probe = Kprobe::at(probe_core::Place::symbol(name).offset(*offset)).pre(|_| ());
        if matches!(how, How::Stepped) { probe.post(|_| ()) } else { probe }
    };
    let planted = probes().register_all(offsets.iter().map(probe)).expect("nothing here is refused");
    if matches!(how, How::Jumped) {
        probes().jumps().lay().expect("text can be written");
    }
    planted
}

/// Signal, code, address and registers are those of the bare program, however the instruction is run.
#[test]
fn hit_9_a_fault_of_a_probed_instruction_is_that_of_the_bare_program() {
    let _alone = alone();
    probes();
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
        action(signal, note, 0);
    }
    for case in cases(beyond_the_end()) {
        let bare = run(&case);
        assert_eq!(bare.signal, case.signal, "{}", case.name);
        for how in [How::Boosted, How::Stepped, How::Jumped] {
            let planted = plant(case.name, how);
            for round in 1..=3 {
                assert_eq!(run(&case), bare, "{} {how:?}, round {round}", case.name);
                assert!(planted.iter().all(|probe| probe.counters().hits == round), "{} {how:?}", case.name);
            }
            // Nothing is left of the hit that did not end.
            assert_eq!(flt_work(3), 23);
        }
    }
}

/// A handler that is to run once runs once, also where the fault came from a slot.
#[test]
fn hit_9_sa_resethand_holds_for_a_fault_in_a_slot() {
    let _alone = alone();
    let end = in_child(|| {
        let case = &cases(0)[0];
        let (code, end) = function(case.name);
        let _planted = plant(case.name, How::Stepped);
        action(case.signal, note, libc::SA_RESETHAND);
        END.store(end, Relaxed);
        call(code, case.arguments);
        if SEEN.lock().expect("nobody panics with it").take().is_none() {
            return 1;
        }
        call(code, case.arguments);
        2
    });
    assert_eq!(end, End::Signal(cases(0)[0].signal));
}

/// The program's handler is not run with SIGTRAP blocked, whatever its mask says: what it calls is probed.
#[test]
fn a_fault_handler_that_blocks_everything_may_call_what_is_probed() {
    extern "C" fn work(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        END.fetch_add(flt_work(1) - 9, Relaxed);
        note(signal, info, context);
    }
    let _alone = alone();
    let end = in_child(|| {
        let case = &cases(0)[0];
        let (code, end) = function(case.name);
        let _planted = plant(case.name, How::Stepped);
        let work_probe = probes().register(Kprobe::at("flt_work").pre(|_| ())).expect("it is a function");
        use probe_host_linux::sys::{Action, Restorer, SignalSet};
        let action = Action {
            handler: work as *const () as usize,
            flags: libc::SA_SIGINFO as usize,
            restorer: Restorer::NONE,
            mask: SignalSet::ALL,
        };
        probe_host_linux::signals::program_action(case.signal, Some(&action));
        END.store(end, Relaxed);
        call(code, case.arguments);
        i32::from(work_probe.counters().hits != 1)
    });
    assert_eq!(end, End::Exit(0));
}

/// A fork in the middle of a step: both sides go on behind it, and both run the post handler.
#[test]
fn hit_11_a_probed_fork_comes_back_twice() {
    static POSTS: AtomicUsize = AtomicUsize::new(0);
    let _alone = alone();
    let end = in_child(|| {
        let place = probe_core::Place::symbol("flt_fork").offset(FORK_PLACE);
        let probe = Kprobe::at(place).pre(|_| ()).post(|_| {
            POSTS.fetch_add(1, SeqCst);
        });
        let probe = probes().register(probe).expect("a system call can be probed");
        // This process has one thread; the child only computes and exits.
        let child = call(function("flt_fork").0, (0, 0)) as i32;
        if child == 0 {
            let is_well = POSTS.load(SeqCst) == 1 && flt_work(1) == 9;
            // SAFETY: ends the child.
            unsafe { libc::_exit(if is_well { 33 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        let is_well = waited == child && libc::WEXITSTATUS(status) == 33;
        i32::from(!(is_well && POSTS.load(SeqCst) == 1 && probe.counters().hits == 1))
    });
    assert_eq!(end, End::Exit(0));
}

/// The child of a vfork borrows memory, stack and this thread's state, and ends in the middle of a hit (by
/// `exit_group`: see docs/emulators.md): what follows in the parent is counted, however often.
#[test]
fn hit_11_a_probed_vfork_leaves_the_parent_as_it_was() {
    static POSTS: AtomicUsize = AtomicUsize::new(0);
    let _alone = alone();
    for is_optimising in [false, true] {
        let end = in_child(|| {
            probes().jumps().set_automatic(is_optimising.into());
            let (start, end) = function("flt_vfork");
            let place = |at: usize| probe_core::Place::addr(at.into());
            let places = (start..end).filter(|&at| probes().explain(&place(at)).is_ok());
            let planted = places.map(|at| {
                Kprobe::at(place(at)).pre(|_| ()).post(|_| {
                    POSTS.fetch_add(1, SeqCst);
                })
            });
            let planted = probes().register_all(planted).expect("nothing here is refused");
            let after =
                probes().register(Kprobe::at("flt_work").pre(|_| ()).post(|_| ())).expect("a function");
            for round in 1..30 {
                let child = call(start, (0, 0)) as i32;
                let mut status = 0;
                // SAFETY: `status` is writable.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                let is_well = waited == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7;
                let counters = after.counters();
                if !is_well
                    || flt_work(1) != 9
                    || after.counters().hits != round
                    || counters.missed_nested != 0
                {
                    eprintln!("{round}: {child} {waited} {status:#x}, {counters:?}");
                    return 1;
                }
            }
            drop((planted, after));
            i32::from(POSTS.load(SeqCst) < 29 * 8)
        });
        assert_eq!(end, End::Exit(0), "optimising: {is_optimising}");
    }
}
