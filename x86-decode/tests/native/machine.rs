//! Runs one instruction on this processor from a chosen state, and tells the state after it.
//!
//! A trap is the way in and out: at an `int3` the signal handler replaces all registers by the wanted ones;
//! the code under test then runs into another `int3` (the arena is full of them) or into a fault, where the
//! handler notes the registers and puts the old ones back. The handler has its own stack.

use super::{CONTEXT_AT, Context, Native, StepBack as _, gregs_of, regs_of};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

/// How a run ended, with the registers there. At a breakpoint the program counter is the breakpoint's
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) signal: i32,
    pub(crate) regs: Native,
    pub(crate) floating: Floating,
}

/// The floating-point state that is set before a run and compared after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floating {
    vectors: [u128; 4],
    /// The upper halves of YMM0 to YMM3, where there are any.
    upper: [u128; 4],
    /// ZMM17, and K3, where there are any.
    more: [u128; 5],
    /// MXCSR, and the status word of x87 with the number of values on its stack: one before a run, unless it
    /// is a light one.
    status: [u32; 2],
}

/// Whether runs start with the x87 state and the upper halves of YMM0 to YMM15 as after a reset.
pub(crate) static LIGHT: AtomicBool = AtomicBool::new(false);

struct Exchange {
    wanted: UnsafeCell<Option<Native>>,
    kept: UnsafeCell<Option<Context>>,
    outcome: UnsafeCell<Option<Outcome>>,
}

// SAFETY: used by the one thread that holds `MACHINE`, and by the signal handler that interrupts it.
unsafe impl Sync for Exchange {}

static EXCHANGE: Exchange =
    Exchange { wanted: UnsafeCell::new(None), kept: UnsafeCell::new(None), outcome: UnsafeCell::new(None) };
/// 0: no run; 1: about to enter; 2: running.
static PHASE: AtomicU8 = AtomicU8::new(0);
static MACHINE: Mutex<()> = Mutex::new(());

/// The exclusive use of the processor's state.
pub(crate) struct Machine(#[expect(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

impl Machine {
    pub(crate) fn take() -> Self {
        static HANDLERS: Once = Once::new();
        let guard = MACHINE.lock().unwrap_or_else(|poison| poison.into_inner());
        HANDLERS.call_once(|| {
            for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
                // SAFETY: all-zero is a valid sigaction.
                let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                // SAFETY: the handler touches only what this module owns.
                let done = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
                assert_eq!(done, 0);
            }
        });
        own_signal_stack();
        Self(guard)
    }

    /// Runs from `regs` until a breakpoint or a fault.
    pub(crate) fn run(&self, regs: &Native) -> Outcome {
        // SAFETY: no handler runs between here and the trap below, and the lock is held.
        unsafe { *EXCHANGE.wanted.get() = Some(*regs) };
        PHASE.store(1, Ordering::SeqCst);
        let floating = with_fixed_floating_point();
        assert_eq!(PHASE.load(Ordering::SeqCst), 0);
        // SAFETY: the run is over.
        let outcome = unsafe { (*EXCHANGE.outcome.get()).take() }.expect("the handler has noted the outcome");
        Outcome { floating, ..outcome }
    }
}

/// Zeroes the vector registers that only 64-bit mode has.
#[cfg(target_arch = "x86_64")]
macro_rules! zero_the_upper_eight {
    () => {
        "xorps xmm8, xmm8\nxorps xmm9, xmm9\nxorps xmm10, xmm10\nxorps xmm11, xmm11\n\
         xorps xmm12, xmm12\nxorps xmm13, xmm13\nxorps xmm14, xmm14\nxorps xmm15, xmm15"
    };
}
#[cfg(target_arch = "x86")]
macro_rules! zero_the_upper_eight {
    () => {
        ""
    };
}

/// Sets ZMM17 and K3, where there are any; only 64-bit mode has the former.
#[cfg(target_arch = "x86_64")]
macro_rules! set_more {
    () => {
        "test {has}, 4\njz 6f\nvbroadcasti32x4 zmm17, [{before} + 16]\nkmovq k3, [{before} + 48]\n6:"
    };
}
#[cfg(target_arch = "x86_64")]
macro_rules! get_more {
    () => {
        "test {has}, 4\njz 6f\nvmovdqu64 [{after} + 128], zmm17\nkmovq [{after} + 192], k3\n6:"
    };
}
#[cfg(target_arch = "x86")]
macro_rules! set_more {
    () => {
        "test {has}, 4\njz 6f\nkmovq k3, [{before} + 48]\n6:"
    };
}
#[cfg(target_arch = "x86")]
macro_rules! get_more {
    () => {
        "test {has}, 4\njz 6f\nkmovq [{after} + 192], k3\n6:"
    };
}

/// Traps into the handler with a fixed floating-point state; returns what the run has made of it.
fn with_fixed_floating_point() -> Floating {
    let before: [u128; 4] = [0x1111_2222 << 70, 0x3333_4444 << 30, 0x5555_6666 << 50, 0x7777_8888];
    let has = usize::from(std::is_x86_feature_detected!("avx"))
        | usize::from(LIGHT.load(Ordering::Relaxed)) << 1
        | usize::from(std::is_x86_feature_detected!("avx512bw")) << 2;
    let mut after = [0u128; 13];
    // MXCSR after a reset.
    let mut status = [0x1f80u32, 0];
    // ID and NT stay as the last code under test has left them, as the kernel's signal return does not set
    // them: hence the POPF. SAFETY: the handler of this trap diverts to the code under test and comes back
    // right behind the `int3` with all general registers as they are here; what else changes is named.
    unsafe {
        std::arch::asm!(
            "push 0x202",
            // POPF of the full width, which has no common name in the two modes.
            ".byte 0x9d",
            "fninit",
            "ldmxcsr [{status}]",
            "test {has}, 2",
            "jnz 5f",
            "fld1",
            "5:",
            // Those that are not compared may be read.
            "test {has}, 1",
            "jz 4f",
            "vzeroall",
            "4: xorps xmm4, xmm4",
            "xorps xmm5, xmm5",
            "xorps xmm6, xmm6",
            "xorps xmm7, xmm7",
            zero_the_upper_eight!(),
            "movups xmm0, [{before}]",
            "movups xmm1, [{before} + 16]",
            "movups xmm2, [{before} + 32]",
            "movups xmm3, [{before} + 48]",
            set_more!(),
            "test {has}, 2",
            "jnz 2f",
            "test {has}, 1",
            "jz 2f",
            "vinsertf128 ymm0, ymm0, [{before} + 48], 1",
            "vinsertf128 ymm1, ymm1, [{before} + 32], 1",
            "vinsertf128 ymm2, ymm2, [{before} + 16], 1",
            "vinsertf128 ymm3, ymm3, [{before}], 1",
            "2: int3",
            "test {has}, 1",
            "jz 3f",
            "vextractf128 [{after} + 64], ymm0, 1",
            "vextractf128 [{after} + 80], ymm1, 1",
            "vextractf128 [{after} + 96], ymm2, 1",
            "vextractf128 [{after} + 112], ymm3, 1",
            "3:",
            get_more!(),
            "movups [{after}], xmm0",
            "movups [{after} + 16], xmm1",
            "movups [{after} + 32], xmm2",
            "movups [{after} + 48], xmm3",
            "stmxcsr [{status}]",
            "fnstsw [{status} + 4]",
            "fninit",
            before = in(reg) before.as_ptr(),
            after = in(reg) after.as_mut_ptr(),
            has = in(reg) has,
            status = in(reg) status.as_mut_ptr(),
            clobber_abi("C"),
        );
    }
    let [a, b, c, d, e, f, g, h, more @ ..] = after;
    Floating { vectors: [a, b, c, d], upper: [e, f, g, h], more, status }
}

/// A signal stack of this thread's own, large enough for AVX-512 frames.
fn own_signal_stack() {
    thread_local!(static STACK: Vec<u8> = vec![0; 256 << 10]);
    STACK.with(|stack| {
        let alternate = libc::stack_t { ss_sp: stack.as_ptr() as *mut _, ss_flags: 0, ss_size: stack.len() };
        // SAFETY: the memory lives as long as the thread.
        assert_eq!(unsafe { libc::sigaltstack(&alternate, std::ptr::null_mut()) }, 0);
    });
}

/// Clears AC, which the run may have set and a signal does not clear: copies of memory are made with
/// misaligned vectors, which AMD's processors check, too.
fn allow_misaligned() {
    // SAFETY: changes one flag, which no compiled code depends on.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("pushfq", "and dword ptr [rsp], 0xfffbffff", "popfq");
    }
    // SAFETY: as above.
    #[cfg(target_arch = "x86")]
    unsafe {
        std::arch::asm!("pushfd", "and dword ptr [esp], 0xfffbffff", "popfd");
    }
}

extern "C" fn on_signal(signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    allow_misaligned();
    let machine = context.wrapping_byte_add(CONTEXT_AT).cast::<Context>();
    // SAFETY: the kernel passes a ucontext that is ours until we return.
    let machine = unsafe { &mut *machine };
    match PHASE.load(Ordering::SeqCst) {
        1 if signal == libc::SIGTRAP => {
            PHASE.store(2, Ordering::SeqCst);
            // SAFETY: the thread that owns the exchange is interrupted.
            unsafe { *EXCHANGE.kept.get() = Some(*machine) };
            // SAFETY: as above.
            if let Some(wanted) = unsafe { *EXCHANGE.wanted.get() } {
                gregs_of(&wanted, machine);
            }
        }
        2 => {
            let mut regs = regs_of(machine);
            if signal == libc::SIGTRAP {
                regs.step_back();
            }
            PHASE.store(0, Ordering::SeqCst);
            let outcome = Outcome { signal, regs, floating: Floating::default() };
            // SAFETY: as above. The floating-point state stays where the kernel has put it.
            unsafe { *EXCHANGE.outcome.get() = Some(outcome) };
            // SAFETY: as above.
            if let Some(kept) = unsafe { *EXCHANGE.kept.get() } {
                *machine = kept;
            }
        }
        // A fault of the test itself.
        // SAFETY: ends the process.
        _ => unsafe { libc::_exit(100 + signal) },
    }
}
