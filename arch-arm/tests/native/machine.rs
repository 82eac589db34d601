//! A machine for one instruction: it runs with chosen registers and floating-point registers, and what it
//! leaves is read. A signal's return loads the registers; the breakpoint behind the instruction, or a fault,
//! ends it.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use probe_arch_arm::PtRegs;
use probe_core::arch::{Access, MemFault, Memory};
use std::sync::Mutex;

/// The size of the code, and of the data.
pub(crate) const LEN: usize = 0x4000;
/// What a branch reaches, and a page.
const GUARD: usize = (1 << 25) + 0x1000;
/// Where in the code the instruction lies, and where its slot.
pub(crate) const PLACE: usize = 0x2000;
pub(crate) const SLOT: usize = 0x3800;

/// D0 to D31 and FPSCR.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Floats {
    pub(crate) d: [u64; 32],
    pub(crate) fpscr: u32,
}

/// What an instruction starts with, or leaves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct State {
    pub(crate) regs: PtRegs,
    pub(crate) floats: Floats,
    /// The signal that has ended it.
    pub(crate) signal: c_int,
}

struct Exchange(UnsafeCell<(State, Option<libc::ucontext_t>)>);

// SAFETY: one test at a time has the machine, and its thread's handlers run in it.
unsafe impl Sync for Exchange {}

static EXCHANGE: Exchange = Exchange(UnsafeCell::new((
    State {
        regs: PtRegs { r: [0; 15], pc: 0, cpsr: 0, orig_r0: 0 },
        floats: Floats { d: [0; 32], fpscr: 0 },
        signal: 0,
    },
    None,
)));
static IS_RUNNING: AtomicBool = AtomicBool::new(false);
static ONE: Mutex<()> = Mutex::new(());

/// What of CPSR a process sees: flags, Q, GE, IT, T.
pub(crate) const VISIBLE: u32 = 0xfe0f_fc20;

/// The record of floating point in a signal frame: Linux's `struct vfp_sigframe`.
const VFP_MAGIC: u32 = 0x5646_5001;

/// D0 to D31, two words each, and FPSCR.
fn floats_of(context: &mut libc::ucontext_t) -> &mut [u32; 65] {
    // SAFETY: the space for records has twice as many words, and is the frame's own.
    let record = unsafe { &mut *(&raw mut context.uc_regspace).cast::<(u32, u32, [u32; 65])>() };
    assert_eq!(record.0, VFP_MAGIC, "no floating point in the signal frame");
    &mut record.2
}

/// R0 to R15.
fn registers_of(context: &mut libc::ucontext_t) -> &mut [u32; 16] {
    // SAFETY: they lie side by side in Linux's `struct sigcontext`.
    unsafe { &mut *(&raw mut context.uc_mcontext.arm_r0).cast() }
}

fn load(state: &State, context: &mut libc::ucontext_t) {
    let registers = registers_of(context);
    registers[..15].copy_from_slice(&state.regs.r);
    registers[15] = state.regs.pc;
    let kept = context.uc_mcontext.arm_cpsr & !VISIBLE;
    context.uc_mcontext.arm_cpsr = kept | state.regs.cpsr & VISIBLE;
    let floats = floats_of(context);
    for (words, value) in floats.as_chunks_mut::<2>().0.iter_mut().zip(state.floats.d) {
        *words = [value as u32, (value >> 32) as u32];
    }
    floats[64] = state.floats.fpscr;
}

fn store(context: &mut libc::ucontext_t, signal: c_int) -> State {
    let registers = *registers_of(context);
    let cpsr = context.uc_mcontext.arm_cpsr & VISIBLE;
    let floats = floats_of(context);
    let d =
        core::array::from_fn(|index| u64::from(floats[2 * index]) | u64::from(floats[2 * index + 1]) << 32);
    let regs =
        PtRegs { r: core::array::from_fn(|index| registers[index]), pc: registers[15], cpsr, orig_r0: 0 };
    State { regs, floats: Floats { d, fpscr: floats[64] }, signal }
}

extern "C" fn handle(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's, for this handler.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: `Machine::run` waits for this handler.
    let (state, kept) = unsafe { &mut *EXCHANGE.0.get() };
    if signal == libc::SIGUSR1 {
        *kept = Some(*context);
        load(state, context);
        IS_RUNNING.store(true, Ordering::Relaxed);
        return;
    }
    if !IS_RUNNING.swap(false, Ordering::Relaxed) {
        // A defect of the test itself.
        // SAFETY: it ends the process.
        unsafe { libc::abort() };
    }
    *state = store(context, signal);
    let kept = kept.take().expect("it was entered");
    context.uc_mcontext = kept.uc_mcontext;
    context.uc_regspace = kept.uc_regspace;
}

/// Code and data of the machine's own; one at a time.
pub(crate) struct Machine {
    pub(crate) code: usize,
    pub(crate) data: usize,
    _one: std::sync::MutexGuard<'static, ()>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let map = |len: usize, access: c_int| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new memory.
            let at = unsafe { libc::mmap(core::ptr::null_mut(), len, access, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            at as usize
        };
        let (read, write, execute) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        // Nothing else lies so near that an instruction reaches it, and data are not executed.
        let between = |access: c_int| {
            let at = map(GUARD + LEN + GUARD, libc::PROT_NONE) + GUARD;
            // SAFETY: that memory is this machine's.
            assert_eq!(unsafe { libc::mprotect(at as *mut c_void, LEN, access) }, 0);
            at
        };
        let (code, data) = (between(read | write | execute), between(read | write));
        let stack =
            libc::stack_t { ss_sp: map(4 * LEN, read | write) as *mut c_void, ss_flags: 0, ss_size: 4 * LEN };
        // SAFETY: the memory is never unmapped.
        assert_eq!(unsafe { libc::sigaltstack(&stack, core::ptr::null_mut()) }, 0);
        for signal in [libc::SIGUSR1, libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
            // SAFETY: all zeros is an action.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: the handler is as `SA_SIGINFO` wants it.
            assert_eq!(unsafe { libc::sigaction(signal, &action, core::ptr::null_mut()) }, 0);
        }
        Self { code, data, _one: one }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.holds(at, bytes.len()));
        // SAFETY: it lies in the machine's memory; nothing refers to that.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        assert!(self.holds(at, out.len()));
        // SAFETY: as in `write`.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, out.as_mut_ptr(), out.len()) };
    }

    fn holds(&self, at: usize, len: usize) -> bool {
        [self.code, self.data].iter().any(|start| at.wrapping_sub(*start) <= LEN - len)
    }

    /// All of the code and the data.
    pub(crate) fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; 2 * LEN];
        self.read(self.code, &mut bytes[..LEN]);
        self.read(self.data, &mut bytes[LEN..]);
        bytes
    }

    pub(crate) fn set_memory(&self, bytes: &[u8]) {
        self.write(self.code, &bytes[..LEN]);
        self.write(self.data, &bytes[LEN..]);
    }

    /// Runs from `state` on to a breakpoint or a fault.
    pub(crate) fn run(&self, state: &State) -> State {
        unsafe extern "C" {
            fn __clear_cache(start: *mut c_void, end: *mut c_void);
        }
        // SAFETY: the machine's code.
        unsafe { __clear_cache(self.code as *mut c_void, (self.code + LEN) as *mut c_void) };
        // SAFETY: no handler runs now.
        unsafe { (*EXCHANGE.0.get()).0 = *state };
        // SAFETY: the handler comes back here.
        unsafe { libc::raise(libc::SIGUSR1) };
        // SAFETY: the handlers have run.
        unsafe { (*EXCHANGE.0.get()).0 }
    }
}

// SAFETY: an access that is not wholly inside fails without effect.
unsafe impl Memory for Machine {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        if !self.holds(addr, out.len()) {
            return Err(MemFault { addr, access: Access::Read });
        }
        Machine::read(self, addr, out);
        Ok(())
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        if !self.holds(addr, bytes.len()) {
            return Err(MemFault { addr, access: Access::Write });
        }
        Machine::write(self, addr, bytes);
        Ok(())
    }
}
