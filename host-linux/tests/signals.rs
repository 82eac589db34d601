//! The program's own signals: its handlers are called as if no probe were there, and it dies as it would.

mod common;
probe_arch_native::native_module!(
    #[allow(dead_code, reason = "of use to other tests")]
    mod trap
);

use common::{End, alone, code, count, counter, in_child};
use probe_core::Place;
use probe_core::arch::Arch;
use probe_host_linux::{Kprobe, Native, probes, signals};
use std::hint::black_box;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use trap::{AFTER_TRAP, PC_OFFSET, breakpoint};

static CALLS: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static ADDR: AtomicUsize = AtomicUsize::new(0);
static PC: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn sig_work(x: usize) -> usize {
    black_box(x) * 5 + 1
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn sig_store(to: *mut usize, value: usize) {
    // SAFETY: the callers pass valid pointers, or mean to fault.
    unsafe { *black_box(to) = value }
}

/// Installs `handler` as the program's action, the way an agent does.
fn program_handler(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    use probe_host_linux::sys::{Action, Restorer, SignalSet};
    let action = Action {
        handler: handler as *const () as usize,
        flags: libc::SA_SIGINFO as usize,
        restorer: Restorer::NONE,
        mask: SignalSet::EMPTY,
    };
    signals::program_action(signal, Some(&action));
}

extern "C" fn remember(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CALLS.fetch_add(1, Relaxed);
    SIGNAL.store(signal, Relaxed);
    // SAFETY: the kernel's, or what stands for it.
    let info = unsafe { &*info };
    // SAFETY: the signals that come here carry an address, or zero.
    ADDR.store(unsafe { info.si_addr() } as usize, Relaxed);
    PC.store(pc_of(context), Relaxed);
}

fn pc_of(context: *mut libc::c_void) -> usize {
    // SAFETY: the kernel's structure.
    unsafe { context.cast::<u8>().wrapping_add(PC_OFFSET).cast::<usize>().read() }
}

#[test]
fn a_sent_sigtrap_goes_to_the_program() {
    let _alone = alone();
    let probe = probes().register(Kprobe::at("sig_work").pre(|_| ())).unwrap();
    program_handler(libc::SIGTRAP, remember);
    let before = count(&CALLS);
    // SAFETY: the handler is installed.
    unsafe { libc::raise(libc::SIGTRAP) };
    assert_eq!(count(&CALLS), before + 1);
    assert_eq!(sig_work(2), 11);
    assert_eq!(probe.counters().hits, 1);
    drop(probe);
}

#[test]
fn hit_5_a_foreign_breakpoint_goes_to_the_program_untouched() {
    let _alone = alone();
    probes();
    extern "C" fn skip(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        remember(signal, info, context);
        // SAFETY: the kernel's structure; its program counter is moved on to the next instruction.
        unsafe { *context.cast::<u8>().wrapping_add(PC_OFFSET).cast::<usize>() += AFTER_TRAP };
    }
    program_handler(libc::SIGTRAP, skip);
    let before = count(&CALLS);
    breakpoint();
    assert_eq!(count(&CALLS), before + 1);
    assert_eq!(SIGNAL.load(Relaxed), libc::SIGTRAP);
}

#[test]
fn without_a_handler_the_program_dies_of_its_own_signals() {
    let _alone = alone();
    let probe = probes().register(Kprobe::at("sig_store").pre(|_| ())).unwrap();
    let default = probe_host_linux::sys::Action::DEFAULT;
    for signal in signals::OWNED {
        let end = in_child(|| {
            signals::program_action(signal, Some(&default));
            // SAFETY: dies of it.
            unsafe { libc::raise(signal) };
            3
        });
        assert_eq!(end, End::Signal(signal));
    }
    let end = in_child(|| {
        signals::program_action(libc::SIGSEGV, Some(&default));
        sig_store(black_box(16 as *mut usize), 1);
        3
    });
    assert_eq!(end, End::Signal(libc::SIGSEGV));
    drop(probe);
}

#[test]
fn hit_9_a_fault_of_a_probed_instruction_reaches_the_programs_handler_as_if_in_place() {
    let _alone = alone();
    let start = code(sig_store as *const ());
    // Padding behind the last instruction is none.
    let mut places = instructions(start);
    places.retain(|&at| probes().explain(&Place::addr(at.into())).is_ok());
    let hits = counter();
    let all = probes()
        .register_all(places.iter().map(|&at| {
            Kprobe::at(Place::addr(at.into())).pre(|_| ()).post(move |_| {
                hits.fetch_add(1, Relaxed);
            })
        }))
        .unwrap();
    static BUFFER: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    extern "C" fn mend(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        remember(signal, info, context);
        // Whatever register holds the bad address gets a good one.
        for i in 0..60 {
            // SAFETY: the registers lie within the structure.
            let word = unsafe { &mut *context.cast::<usize>().wrapping_add(i) };
            if *word == 16 {
                *word = (&raw const BUFFER[0]) as usize;
            }
        }
    }
    let before = count(&CALLS);
    program_handler(libc::SIGSEGV, mend);
    sig_store(black_box(16 as *mut usize), 99);
    assert_eq!(count(&CALLS), before + 1);
    assert_eq!(SIGNAL.load(Relaxed), libc::SIGSEGV);
    assert_eq!(count(&ADDR), 16);
    assert!(places.contains(&count(&PC)), "{:#x} is no instruction of {start:#x}", count(&PC));
    assert_eq!(BUFFER[0].load(Relaxed), 99);
    assert!(count(hits) > 1);
    drop(all);
}

fn instructions(start: usize) -> Vec<usize> {
    use probe_core::host::Host;
    let mut places = Vec::new();
    let mut at = start;
    let mut is_inside = true;
    while is_inside {
        places.push(at);
        let mut bytes = [0; 16];
        // SAFETY: text of this program.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), 16) };
        at += Native::insn_len(at.into(), &bytes).unwrap();
        is_inside = false;
        probes().host().symbol_at(at.into(), &mut |symbol| is_inside = symbol.start.as_usize() == start);
    }
    places
}

#[test]
fn hit_12_signals_during_hits_lose_nothing() {
    static TICKS: AtomicUsize = AtomicUsize::new(0);
    static WRONG: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn tick(_: i32) {
        // The handler runs probed code itself.
        if sig_work(3) != 16 {
            WRONG.fetch_add(1, Relaxed);
        }
        TICKS.fetch_add(1, Relaxed);
    }
    let _alone = alone();
    let (pre, post) = (counter(), counter());
    let probe = probes()
        .register(
            Kprobe::at("sig_work")
                .pre(move |_| {
                    pre.fetch_add(1, Relaxed);
                })
                .post(move |_| {
                    post.fetch_add(1, Relaxed);
                }),
        )
        .unwrap();
    common::install(libc::SIGALRM, tick);
    // SAFETY: of this thread.
    let this = unsafe { libc::pthread_self() } as usize;
    // To this thread alone, one after the other, at changing moments of its hits.
    let sender = std::thread::spawn(move || {
        for number in 0..500 {
            // SAFETY: the thread waits for this one.
            assert_eq!(unsafe { libc::pthread_kill(this as libc::pthread_t, libc::SIGALRM) }, 0);
            while count(&TICKS) == number {
                std::thread::yield_now();
            }
            (0..number * 7 % 500).for_each(|_| core::hint::spin_loop());
        }
    });
    let mut calls = 0_usize;
    while count(&TICKS) < 500 {
        for i in 0..100 {
            assert_eq!(sig_work(i), i * 5 + 1);
        }
        calls += 100;
    }
    sender.join().unwrap();
    // SAFETY: back to the default.
    unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
    let counters = probe.counters();
    let total = calls + count(&TICKS);
    assert_eq!(count(&WRONG), 0);
    assert_eq!(counters.hits + counters.missed_nested, total as u64, "{counters:?}");
    assert_eq!(count(pre) as u64, counters.hits);
    assert_eq!(count(post), count(pre));
    drop(probe);
}

#[test]
fn our_handlers_are_in_place() {
    let _alone = alone();
    probes();
    assert!(signals::are_installed());
}

/// A way out of a signal's handler that no unwind table covers, as musl's on every architecture and the
/// kernel's on aarch64: unwinders know it by its bytes. Not where they do not: ppc64 has a table always,
/// LLVM's knows only aarch64's.
#[cfg(any(
    target_arch = "aarch64",
    all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "x86"))
))]
mod way_out {
    use super::*;
    use probe_core::CodeAddr;
    use std::arch::global_asm;
    use std::panic::catch_unwind;

    // The no-op: unwinders look up the address before a return address. A function: not a part of whatever
    // stands before, which may be the hit path's.
    global_asm!(
        ".text",
        ".p2align 4",
        "nop",
        ".globl sig_way_out",
        ".hidden sig_way_out",
        ".type sig_way_out, %function",
        "sig_way_out:"
    );
    #[cfg(target_arch = "x86_64")]
    global_asm!("mov rax, 15", "syscall");
    #[cfg(target_arch = "x86")]
    global_asm!("mov eax, 173", "int 0x80");
    #[cfg(target_arch = "aarch64")]
    global_asm!("mov x8, #139", "svc #0");
    global_asm!(".size sig_way_out, . - sig_way_out");

    #[cfg(target_arch = "x86_64")]
    const STARTS: [usize; 2] = [0, 7];
    #[cfg(target_arch = "x86")]
    const STARTS: [usize; 2] = [0, 5];
    #[cfg(target_arch = "aarch64")]
    const STARTS: [usize; 2] = [0, 4];

    unsafe extern "C" {
        static sig_way_out: u8;
    }
    // Not libc's: musl's functions have no unwind tables, and that of glibc's `kill` on i386 does not tell
    // where EBX is kept.
    #[cfg(target_arch = "aarch64")]
    global_asm!(
        ".p2align 2",
        ".globl sig_kill",
        ".hidden sig_kill",
        "sig_kill: .cfi_startproc",
        "mov x8, #129",
        "svc #0",
        "ret",
        ".cfi_endproc"
    );
    #[cfg(target_arch = "x86")]
    global_asm!(
        ".globl sig_kill",
        ".hidden sig_kill",
        "sig_kill: .cfi_startproc",
        "push ebx",
        ".cfi_adjust_cfa_offset 4",
        ".cfi_rel_offset ebx, 0",
        "mov eax, 37",
        "mov ebx, [esp + 8]",
        "mov ecx, [esp + 12]",
        "int 0x80",
        "pop ebx",
        ".cfi_adjust_cfa_offset -4",
        ".cfi_restore ebx",
        "ret",
        ".cfi_endproc"
    );
    unsafe extern "C-unwind" {
        #[cfg_attr(target_arch = "x86_64", link_name = "kill")]
        fn sig_kill(process: i32, signal: i32) -> i32;
    }

    extern "C-unwind" fn panics(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        std::panic::resume_unwind(Box::new(7));
    }

    fn is_caught() -> bool {
        let process = std::process::id() as i32;
        // SAFETY: the handler is `panics`, which leaves by unwinding; a forked child has no other thread that
        // could run it.
        catch_unwind(|| unsafe { sig_kill(process, libc::SIGUSR2) }).is_err_and(|what| what.is::<i32>())
    }

    /// REG_6: the attempt to probe it, refused or not, does not keep a panic from passing it.
    #[test]
    fn reg_6_a_panic_passes_a_signal_frame_whose_way_out_was_to_be_probed() {
        const SA_RESTORER: usize = 0x0400_0000;
        let _alone = alone();
        let at = (&raw const sig_way_out) as usize;
        let flags = libc::SA_SIGINFO as usize | libc::SA_NODEFER as usize | SA_RESTORER;
        // The kernel's structure: handler, flags, way out, and an empty mask of eight bytes.
        let action = [panics as *const () as usize, flags, at, 0, 0];
        let (none, mask_len) = (std::ptr::null_mut::<usize>(), 8);
        // SAFETY: the structure is whole, and its handler and way out live as long as the program.
        let set =
            unsafe { libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR2, action.as_ptr(), none, mask_len) };
        assert_eq!(set, 0);
        assert_eq!(in_child(|| i32::from(!is_caught())), End::Exit(0), "bare");
        for start in STARTS {
            let addr = CodeAddr::new(at + start);
            // SAFETY: an instruction starts there.
            let place = unsafe { Place::unchecked(addr) };
            let probe = probes().register(Kprobe::at(place).pre(|_| ()));
            assert_eq!(in_child(|| i32::from(!is_caught())), End::Exit(0), "{start}");
            let refusal = probe.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refusal.contains("way out"), "{refusal}");
        }
    }
}
