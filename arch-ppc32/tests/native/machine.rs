//! What the machine for one instruction (`tests/native`) is told of ppc32: what lies where, the registers
//! beside the general ones, the signal's frame.

use crate::shared::machine::{self, Own, Shared, on_signal};
use libc::{c_int, c_void};
use probe_arch_ppc32::{Plan, Ppc32, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, MemFault, Memory, Method, Site, Text};
use probe_core::error::Refusal;

pub(crate) type Machine = machine::Machine<Core>;
pub(crate) type Outcome = machine::OutcomeOf<Core>;

/// f0 to f31 and FPSCR.
pub(crate) type Floats = [u64; 33];

pub(crate) struct Core;

static SHARED: Shared<Core> = Shared::new();

impl Own for Core {
    type Backend = Ppc32;
    type Start = Floats;
    type Frame = Floats;
    type After = ();

    const ARENA: usize = 1 << 17;
    // `b` reaches 32 MiB.
    const FORBIDDEN_BEFORE: usize = 32 << 20;
    const FORBIDDEN_BEHIND: usize = 32 << 20;
    const PLACE: usize = Self::ARENA / 2;
    const DATA: usize = 1 << 13;
    const TRAP_LEN: usize = 4;

    fn shared() -> &'static Shared<Self> {
        &SHARED
    }

    fn bytes(word: u32) -> [u8; 4] {
        word.to_be_bytes()
    }

    fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
        let at = CodeAddr::new(0x1000);
        let function = Some((at, at.wrapping_add(4)));
        let decoded = Ppc32::decode(&Site { at, function, text: &Alone(word) })?;
        Ok((decoded.plan, decoded.method))
    }

    /// `trap`.
    fn filler(_at: usize) -> [u8; 4] {
        0x7fe0_0008_u32.to_be_bytes()
    }

    fn install_handlers() {
        machine::install(handle as *const ());
    }

    fn launch(floats: &Floats) {
        launch(floats);
    }

    fn memory(_arena: usize, _data: usize) -> impl Memory {
        NoMemory
    }
}

/// The text of a function of one instruction.
struct Alone(u32);

impl Text for Alone {
    fn read(&self, _at: CodeAddr, out: &mut [u8]) -> usize {
        let len = out.len().min(4);
        out[..len].copy_from_slice(&self.0.to_be_bytes()[..len]);
        len
    }
}

/// Loads the other registers and traps; the handler goes on from there and comes back after the trap.
#[inline(never)]
fn launch(floats: &Floats) {
    // SAFETY: every register that the handler does not give back is declared; general registers come back
    // from `home`.
    unsafe {
        core::arch::asm!(
            "lfd 0, 256({at}); mtfsf 255, 0",
            ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "lfd \\n, 8*\\n({at})",
            ".endr",
            "trap",
            at = in(reg_nonzero) floats.as_ptr(),
            out("f14") _, out("f15") _, out("f16") _, out("f17") _, out("f18") _, out("f19") _, out("f20") _,
            out("f21") _, out("f22") _, out("f23") _, out("f24") _, out("f25") _, out("f26") _, out("f27") _,
            out("f28") _, out("f29") _, out("f30") _, out("f31") _,
            clobber_abi("C"),
        );
    }
}

/// Where `uc_mcontext` begins: r0 to r31, nip, msr, orig_r3, ctr, link, xer, ccr; behind 48 words f0 to f31
/// and FPSCR.
const MCONTEXT: usize = 192;

/// Uses no thread-local storage: r2 may be anything.
extern "C" fn handle(signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let registers = context.wrapping_byte_add(MCONTEXT);
    // SAFETY: the kernel passes a `ucontext_t` to a handler with SA_SIGINFO; the registers lie there.
    let words = unsafe { &mut *registers.cast::<[u32; 39]>() };
    let mut regs = PtRegs {
        gpr: core::array::from_fn(|index| words[index]),
        nip: words[32],
        ctr: words[35],
        link: words[36],
        xer: words[37],
        ccr: words[38],
        ..PtRegs::default()
    };
    let floats = registers.wrapping_byte_add(192).cast::<Floats>();
    let mut has_ended = false;
    on_signal::<Core>(signal, &mut regs, || {
        has_ended = true;
        // SAFETY: as above.
        unsafe { floats.read_unaligned() }
    });
    if has_ended {
        // The exceptions that the instruction may have enabled are not for the test to take.
        let fpscr = floats.cast::<u64>().wrapping_add(32);
        // SAFETY: as above.
        unsafe { fpscr.write_unaligned(0) };
    }
    words[..32].copy_from_slice(&regs.gpr);
    words[32] = regs.nip;
    words[35..].copy_from_slice(&[regs.ctr, regs.link, regs.xer, regs.ccr]);
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
