//! What the machine for one instruction (`tests/native`) is told of riscv64: what lies where, the registers
//! beside the general ones, the signal's frame.

use crate::shared::machine::{self, Own, Shared, on_signal};
use libc::{c_int, c_void};
use probe_arch_riscv64::{Plan, PtRegs, Riscv64};
use probe_core::arch::{Access, MemFault, Memory, Method};
use probe_core::error::Refusal;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) type Machine = machine::Machine<Core>;
pub(crate) type Outcome = machine::OutcomeOf<Core>;

/// F0 to F31 and FCSR.
pub(crate) type Floats = ([u64; 32], u32);

pub(crate) struct Core;

static SHARED: Shared<Core> = Shared::new();

impl Own for Core {
    type Backend = Riscv64;
    type Start = Floats;
    type Frame = Floats;
    type After = Option<Box<Vectors>>;

    const ARENA: usize = 1 << 16;
    // `jal` reaches 1 MiB.
    const FORBIDDEN_BEFORE: usize = 2 << 20;
    const FORBIDDEN_BEHIND: usize = 2 << 20;
    // A full instruction lies across two words.
    const PLACE: usize = Self::ARENA / 2 + 0x42;
    const DATA: usize = 1 << 13;
    const TRAP_LEN: usize = 2;

    fn shared() -> &'static Shared<Self> {
        &SHARED
    }

    fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
        Riscv64::classify(word)
    }

    /// `c.ebreak`, twice.
    fn filler(_at: usize) -> [u8; 4] {
        0x9002_9002_u32.to_le_bytes()
    }

    /// For the thread that holds the lock.
    fn install_handlers() {
        let pointer: usize;
        // SAFETY: reads a register.
        unsafe { core::arch::asm!("mv {}, tp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
        // SAFETY: a word of zeros at first.
        unsafe { &native_thread_pointer }.store(pointer, Ordering::Relaxed);
        machine::install(native_on_signal as *const ());
    }

    fn launch((floats, fcsr): &Floats) -> Option<Box<Vectors>> {
        launch(floats, *fcsr)
    }

    fn memory(_arena: usize, _data: usize) -> impl Memory {
        NoMemory
    }
}

/// What [`launch`] loads, and what it finds afterwards where there are vector registers. The handler leaves
/// those alone, so they are looked at behind the trap.
#[derive(Clone, Debug, PartialEq)]
#[repr(C, align(8))]
pub(crate) struct Vectors {
    v: [u8; 32 * Self::LONGEST],
    /// VL, VTYPE, VCSR, VSTART.
    control: [u64; 4],
}

impl Vectors {
    /// The longest register that there is room for, in bytes.
    const LONGEST: usize = 64;

    /// Whether this core has them.
    pub(crate) fn exist() -> bool {
        const V: u64 = 1 << (b'V' - b'A');
        // SAFETY: reads what the kernel has told the process.
        unsafe { libc::getauxval(libc::AT_HWCAP) & V != 0 }
    }
}

/// Loads the other registers and traps; the handler goes on from there and comes back after the trap.
#[inline(never)]
fn launch(floats: &[u64; 32], fcsr: u32) -> Option<Box<Vectors>> {
    let v = core::array::from_fn(|index| (index * 7 + index / 256) as u8);
    let mut vectors = Vectors::exist().then(|| Box::new(Vectors { v, control: [0; 4] }));
    let at = vectors.as_mut().map_or(core::ptr::null_mut(), |vectors| &raw mut **vectors);
    // SAFETY: every register that the handler does not give back is declared; general registers come back
    // from `home`. Compiled code without V keeps nothing in vector registers.
    unsafe {
        core::arch::asm!(
            ".option push",
            ".option arch, +v",
            ".macro native_vectors op",
            "mv t0, a2",
            "slli t1, t1, 3",
            ".irp n, 0, 8, 16, 24",
            "\\op v\\n, (t0)",
            "add t0, t0, t1",
            ".endr",
            ".endm",
            "beqz a2, 2f",
            "csrr t1, vlenb",
            "csrw vstart, zero",
            "native_vectors vl8re8.v",
            "csrw vcsr, zero",
            "vsetvli t0, zero, e32, m1, ta, ma",
            "2:",
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "fld f\\n, 8*\\n(a0)",
            ".endr",
            "fscsr a1",
            "c.ebreak",
            "fscsr zero",
            "beqz a2, 3f",
            "li t1, 2044",
            "add t0, a2, t1",
            "csrr t1, vl",
            "sd t1, 4(t0)",
            "csrr t1, vtype",
            "sd t1, 12(t0)",
            "csrr t1, vcsr",
            "sd t1, 20(t0)",
            "csrr t1, vstart",
            "sd t1, 28(t0)",
            "csrw vstart, zero",
            "csrr t1, vlenb",
            "native_vectors vs8r.v",
            "3:",
            ".purgem native_vectors",
            ".option pop",
            inout("a0") floats.as_ptr() => _, inout("a1") fcsr => _, inout("a2") at => _,
            out("fs0") _, out("fs1") _, out("fs2") _, out("fs3") _, out("fs4") _, out("fs5") _, out("fs6") _,
            out("fs7") _, out("fs8") _, out("fs9") _, out("fs10") _, out("fs11") _,
            clobber_abi("C"),
        );
    }
    vectors
}

const _: () = assert!(core::mem::offset_of!(Vectors, control) == 2048);

core::arch::global_asm!(
    r#"
    .pushsection .text.native_on_signal, "ax", @progbits
    // The interrupted instruction may have had anything in the thread pointer.
    .globl native_on_signal
native_on_signal:
    lla t0, native_thread_pointer
    ld tp, (t0)
    j native_on_signal_in_rust
    .popsection
    .pushsection .bss.native_thread_pointer, "aw", @nobits
    .balign 8
    .globl native_thread_pointer
native_thread_pointer:
    .zero 8
    .popsection
    "#
);

unsafe extern "C" {
    fn native_on_signal();
    static native_thread_pointer: AtomicUsize;
}

/// Where `uc_mcontext` begins: with pc and X1 to X31, F0 to F31 and FCSR behind them.
const MCONTEXT: usize = 176;

#[unsafe(no_mangle)]
extern "C" fn native_on_signal_in_rust(signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let registers = context.wrapping_byte_add(MCONTEXT);
    // SAFETY: the kernel passes a `ucontext_t` to a handler with SA_SIGINFO.
    let words = unsafe { &mut *registers.cast::<[u64; 32]>() };
    let [pc, x1_to_x31 @ ..] = *words;
    let mut regs = PtRegs { pc, x1_to_x31, status: 0 };
    on_signal::<Core>(signal, &mut regs, || {
        // SAFETY: as above.
        let floats = unsafe { registers.wrapping_byte_add(256).cast::<[u64; 32]>().read() };
        // SAFETY: as above.
        let fcsr = unsafe { registers.wrapping_byte_add(512).cast::<u32>().read() };
        (floats, fcsr)
    });
    words[0] = regs.pc;
    words[1..].copy_from_slice(&regs.x1_to_x31);
}

/// Nothing that is simulated touches memory.
struct NoMemory;

// SAFETY: every access fails without effect.
unsafe impl Memory for NoMemory {
    fn read(&self, addr: usize, _: &mut [u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Read })
    }

    fn write(&self, addr: usize, _: &[u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Write })
    }
}
