//! A machine for one instruction: puts it into an arena of breakpoints, runs it from given registers and
//! memory, and reports where and with what state it stopped.

use libc::{c_int, c_void, siginfo_t, ucontext_t};
use probe_arch_aarch64::{Aarch64, Plan, PtRegs, StepState};
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, MemFault, Memory, Method, NativeArch, Tail};
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard};

/// Code: [`Machine::place`] in the middle of breakpoints.
pub(crate) const ARENA: usize = 1 << 20;
/// Behind the arena: what literals may not be loaded from.
const FORBIDDEN: usize = 1 << 20;
/// Data that loads and stores may hit.
pub(crate) const DATA: usize = 1 << 11;
const STACK: usize = 1 << 16;
const BRK: u32 = 0xd429_6aa0;
const PROT_BTI: c_int = 0x10;

/// How the instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// In place, without a probe.
    Bare,
    /// As a probe without a post handler: simulated, or in a slot that jumps back, or stepped.
    Probed,
    /// In a slot that ends in a breakpoint.
    ProbedWithPost,
    /// In a slot without [`Arch::before_step`], as the core does where it has no room for a frame.
    WithoutFrame,
}

/// Whether the arena's pages are guarded (FEAT_BTI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Plain,
    Guarded,
}

/// What is left when the instruction has been executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// SIGTRAP where the next instruction (a breakpoint of the arena) was reached, else the fault.
    pub signal: c_int,
    pub regs: PtRegs,
    pub vectors: [u128; 32],
    pub fpsr: u32,
    pub fpcr: u32,
    pub data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Launching,
    Running,
    Stepping,
}

struct State {
    phase: Phase,
    run: Run,
    home: PtRegs,
    regs: PtRegs,
    plan: Plan,
    method: Method,
    kept: StepState,
    place: usize,
    slot: usize,
    arena: usize,
    data: usize,
    outcome: Option<(c_int, PtRegs, [u128; 32], u32, u32)>,
}

struct Shared(UnsafeCell<Option<State>>);

// SAFETY: used only by the holder of `LOCK` and by the signal handler that interrupts it.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(None));
static LOCK: Mutex<()> = Mutex::new(());

pub(crate) struct Machine {
    _lock: MutexGuard<'static, ()>,
    pages: Pages,
    arena: usize,
    slot: usize,
    data: usize,
}

fn map(len: usize, prot: c_int) -> usize {
    // SAFETY: a new anonymous mapping.
    let at = unsafe {
        libc::mmap(core::ptr::null_mut(), len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn protect(at: usize, len: usize, prot: c_int) {
    // SAFETY: the mappings of `Machine`.
    let result = unsafe { libc::mprotect(at as *mut c_void, len, prot) };
    assert_eq!(result, 0, "mprotect");
}

fn store(at: usize, bytes: &[u8]) {
    // SAFETY: `at` is in a mapping of `Machine` that is writable now.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

impl Machine {
    pub(crate) fn new(pages: Pages) -> Self {
        let lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        install_handlers();
        let arena = map(ARENA + 4096 + FORBIDDEN, libc::PROT_READ | libc::PROT_WRITE);
        protect(arena + ARENA + 4096, FORBIDDEN, libc::PROT_NONE);
        // Breakpoints that differ from each other: they are the literals that are loaded, too.
        for (index, at) in (arena..arena + ARENA + 4096).step_by(4).enumerate() {
            store(at, &(0xd420_0000 | ((index as u32).wrapping_mul(0x9e37) & 0xffff) << 5).to_le_bytes());
        }
        let machine = Self {
            _lock: lock,
            pages,
            arena,
            slot: arena + ARENA,
            data: map(DATA, libc::PROT_READ | libc::PROT_WRITE),
        };
        machine.seal();
        machine
    }

    /// Makes the arena executable again after [`Machine::open`].
    fn seal(&self) {
        let guard = if self.pages == Pages::Guarded { PROT_BTI } else { 0 };
        protect(self.arena, ARENA, libc::PROT_READ | libc::PROT_EXEC | guard);
        protect(self.slot, 4096, libc::PROT_READ | libc::PROT_EXEC);
        // SAFETY: mapped and readable.
        unsafe { Aarch64::publish(CodeAddr::new(self.place()), 8) };
        // SAFETY: mapped and readable.
        unsafe { Aarch64::publish(CodeAddr::new(self.slot), Aarch64::SLOT_LEN) };
    }

    fn open(&self) {
        protect(self.arena, ARENA + 4096, libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Where the instruction lies.
    pub(crate) fn place(&self) -> usize {
        self.arena + ARENA / 2 + 0x40
    }

    pub(crate) fn arena(&self) -> usize {
        self.arena
    }

    pub(crate) fn data(&self) -> usize {
        self.data
    }

    /// Puts `word` at the place, or a breakpoint there and the slot, as `run` asks.
    pub(crate) fn prepare(&self, word: u32, run: Run) {
        let (plan, method) = Aarch64::classify(word).expect("not refused");
        self.open();
        let at_place = if run == Run::Bare { word } else { BRK };
        store(self.place(), &at_place.to_le_bytes());
        if method != Method::Simulate {
            let tail = if run == Run::Probed { Tail::Jump } else { Tail::Breakpoint };
            let mut slot = [0xff; Aarch64::SLOT_LEN - 8];
            Aarch64::fill_slot(
                &plan,
                &word.to_le_bytes(),
                CodeAddr::new(self.place()),
                CodeAddr::new(self.slot),
                tail,
                &mut slot,
            )
            .expect("in reach");
            store(self.slot, &slot);
        }
        self.seal();
        // SAFETY: the lock is held and no signal is expected.
        let state = unsafe { &mut *STATE.0.get() };
        *state = Some(State {
            phase: Phase::Idle,
            run,
            home: PtRegs::default(),
            regs: PtRegs::default(),
            plan,
            method,
            kept: StepState::default(),
            place: self.place(),
            slot: self.slot,
            arena: self.arena,
            data: self.data,
            outcome: None,
        });
    }

    /// Stores `word` at `at` in the arena: a landing pad for a branch, say.
    pub(crate) fn plant(&self, at: usize, word: u32) {
        self.open();
        store(at, &word.to_le_bytes());
        self.seal();
        // SAFETY: mapped and readable.
        unsafe { Aarch64::publish(CodeAddr::new(at), 4) };
    }

    /// Runs what [`Machine::prepare`] has put there from `regs` (with pc = the place), `vectors` and `data`.
    pub(crate) fn run(&self, regs: &PtRegs, vectors: &[u128; 32], data: &[u8]) -> Outcome {
        store(self.data, data);
        // SAFETY: the lock is held and no signal is expected.
        if let Some(state) = unsafe { &mut *STATE.0.get() } {
            state.regs = PtRegs { pc: self.place() as u64, ..*regs };
            state.phase = Phase::Launching;
            state.outcome = None;
        }
        launch(vectors);
        // SAFETY: the lock is held and no signal is expected.
        let state = unsafe { &mut *STATE.0.get() };
        let (signal, regs, vectors, fpsr, fpcr) =
            state.as_mut().and_then(|state| state.outcome.take()).expect("the instruction has stopped");
        let mut after = vec![0; DATA];
        // SAFETY: `data` is mapped.
        unsafe { core::ptr::copy_nonoverlapping(self.data as *const u8, after.as_mut_ptr(), DATA) };
        Outcome { signal, regs, vectors, fpsr, fpcr, data: after }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nothing runs there.
        unsafe { libc::munmap(self.arena as *mut c_void, ARENA + 4096 + FORBIDDEN) };
        // SAFETY: as above.
        unsafe { libc::munmap(self.data as *mut c_void, DATA) };
    }
}

/// Loads the vector registers and traps; the handler goes on from there and comes back after the trap.
#[inline(never)]
fn launch(vectors: &[u128; 32]) {
    // SAFETY: every register that the handler does not give back is declared; general registers come back
    // from `home`.
    unsafe {
        core::arch::asm!(
            "ldp q0, q1, [x9, #0]", "ldp q2, q3, [x9, #32]", "ldp q4, q5, [x9, #64]",
            "ldp q6, q7, [x9, #96]", "ldp q8, q9, [x9, #128]", "ldp q10, q11, [x9, #160]",
            "ldp q12, q13, [x9, #192]", "ldp q14, q15, [x9, #224]", "ldp q16, q17, [x9, #256]",
            "ldp q18, q19, [x9, #288]", "ldp q20, q21, [x9, #320]", "ldp q22, q23, [x9, #352]",
            "ldp q24, q25, [x9, #384]", "ldp q26, q27, [x9, #416]", "ldp q28, q29, [x9, #448]",
            "ldp q30, q31, [x9, #480]",
            "mrs x10, fpcr", "mrs x11, fpsr", "msr fpsr, xzr", "msr fpcr, xzr",
            "brk #1",
            "msr fpcr, x10", "msr fpsr, x11",
            in("x9") vectors, out("x10") _, out("x11") _,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _,
            out("v15") _,
            clobber_abi("C"),
        );
    }
}

fn install_handlers() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
            // SAFETY: all zero is a valid `sigaction`.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            // SAFETY: the handler keeps to what a handler may do.
            let result = unsafe { libc::sigaction(signal, &action, core::ptr::null_mut()) };
            assert_eq!(result, 0);
        }
    });
    // Every test has its own thread: the stack pointer of the instruction may be anything.
    let stack = libc::stack_t {
        ss_sp: map(STACK, libc::PROT_READ | libc::PROT_WRITE) as *mut c_void,
        ss_flags: 0,
        ss_size: STACK,
    };
    // SAFETY: the stack stays mapped for good.
    let result = unsafe { libc::sigaltstack(&stack, core::ptr::null_mut()) };
    assert_eq!(result, 0);
}

extern "C" fn on_signal(signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a `ucontext_t` to a handler with SA_SIGINFO.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    // `regs`, `sp`, `pc` and `pstate` of `mcontext_t` are a `PtRegs` in place.
    let regs = (&raw mut context.uc_mcontext.regs).cast::<PtRegs>();
    // SAFETY: as said, and exclusively borrowed from the context.
    let regs = unsafe { &mut *regs };
    // SAFETY: the interrupted thread holds the lock and waits in `launch`.
    let Some(state) = (unsafe { &mut *STATE.0.get() }) else { die(signal, regs) };
    let Some(signal) = state.on_signal(signal, regs) else { return };
    let (vectors, fpsr, fpcr) = floating_point(context);
    state.outcome = Some((signal, *regs, vectors, fpsr, fpcr));
    *regs = state.home;
    regs.pc += 4;
    state.phase = Phase::Idle;
}

fn die(signal: c_int, regs: &PtRegs) -> ! {
    eprintln!("unexpected signal {signal} at {:#x}", regs.pc);
    // SAFETY: ends the process.
    unsafe { libc::_exit(101) }
}

impl State {
    /// Returns the signal that the instruction has stopped with for good.
    fn on_signal(&mut self, signal: c_int, regs: &mut PtRegs) -> Option<c_int> {
        let in_slot = (self.slot..self.slot + Aarch64::SLOT_LEN).contains(&(regs.pc as usize));
        match self.phase {
            Phase::Idle => die(signal, regs),
            Phase::Launching => {
                self.home = *regs;
                *regs = self.regs;
                self.phase = Phase::Running;
                None
            }
            Phase::Running if self.run != Run::Bare && regs.pc as usize == self.place => {
                if signal != libc::SIGTRAP {
                    die(signal, regs);
                }
                self.probed(regs)
            }
            // A boosted slot, or one without a frame: resolved by its address alone.
            Phase::Running if in_slot => self.finish(signal, regs, StepState::default()),
            Phase::Running => Some(signal),
            Phase::Stepping if in_slot => self.finish(signal, regs, self.kept),
            Phase::Stepping => die(signal, regs),
        }
    }

    /// The breakpoint at the place.
    fn probed(&mut self, regs: &mut PtRegs) -> Option<c_int> {
        let place = CodeAddr::new(self.place);
        let slot = CodeAddr::new(self.slot);
        match (self.method, self.run) {
            (Method::Simulate, _) => {
                let memory = Regions { text: (self.arena, ARENA), data: (self.data, DATA) };
                // A host would raise this fault.
                if Aarch64::simulate(&self.plan, place, regs, &memory).is_err() {
                    return Some(libc::SIGSEGV);
                }
            }
            (Method::Step, Run::WithoutFrame) | (Method::Boost, _) => regs.pc = self.slot as u64,
            (Method::Step, _) => {
                self.kept = Aarch64::before_step(&self.plan, place, slot, regs);
                self.phase = Phase::Stepping;
            }
        }
        None
    }

    /// A trap or a fault in the slot.
    fn finish(&mut self, signal: c_int, regs: &mut PtRegs, kept: StepState) -> Option<c_int> {
        let place = CodeAddr::new(self.place);
        let slot = CodeAddr::new(self.slot);
        self.phase = Phase::Running;
        if signal != libc::SIGTRAP {
            Aarch64::abort_step(&self.plan, place, regs, &kept);
            return Some(signal);
        }
        Aarch64::after_step(&self.plan, 4, place, slot, regs, &kept);
        None
    }
}

/// FPSIMD_MAGIC's record in the frame: vectors, FPSR, FPCR.
fn floating_point(context: &ucontext_t) -> ([u128; 32], u32, u32) {
    const FPSIMD_MAGIC: u32 = 0x4650_8001;
    // SAFETY: the frame's records follow `uc_mcontext`, 16-byte aligned; the kernel ends them with a zero
    // magic.
    let end = (&raw const context.uc_mcontext).cast::<u8>();
    let mut at = end.addr() + 8 + size_of::<PtRegs>();
    at = at.next_multiple_of(16);
    loop {
        let record = end.with_addr(at).cast::<[u32; 4]>();
        // SAFETY: as above.
        let [magic, size, fpsr, fpcr] = unsafe { *record };
        if magic == FPSIMD_MAGIC {
            let vectors = end.with_addr(at + 16).cast::<[u128; 32]>();
            // SAFETY: as above.
            return (unsafe { *vectors }, fpsr, fpcr);
        }
        assert!(magic != 0 && size != 0, "no FPSIMD record");
        at += size as usize;
    }
}

/// The memory that literals may be loaded from.
pub(crate) struct Regions {
    pub text: (usize, usize),
    pub data: (usize, usize),
}

// SAFETY: accesses outside the two mappings fail without effect.
unsafe impl Memory for Regions {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let inside = |(at, len): (usize, usize)| addr >= at && addr + out.len() <= at + len;
        if !inside(self.text) && !inside(self.data) {
            return Err(MemFault { addr, access: Access::Read });
        }
        // SAFETY: inside a readable mapping.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        let (at, len) = self.data;
        if addr < at || addr + bytes.len() > at + len {
            return Err(MemFault { addr, access: Access::Write });
        }
        // SAFETY: inside a writable mapping.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        Ok(())
    }
}
