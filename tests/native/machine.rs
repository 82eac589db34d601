//! A machine for one instruction: puts it into an arena of breakpoints, runs it from given registers and
//! memory, and reports where and with what state it stopped.

use libc::{c_int, c_void};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Memory, Method, NativeArch, Regs, Tail};
use probe_core::error::Refusal;
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard};

const STACK: usize = 1 << 16;
/// Behind the arena, for the slot.
const SLOT_PAGE: usize = 4096;

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

/// What is left when the instruction has been executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome<R, F, A> {
    /// SIGTRAP where the next instruction (a breakpoint of the arena) was reached, else the fault.
    pub(crate) signal: c_int,
    pub(crate) regs: R,
    /// What else the signal's frame tells.
    pub(crate) frame: F,
    /// What only the registers themselves tell, behind the trap.
    pub(crate) after: A,
    pub(crate) data: Vec<u8>,
}

pub(crate) type RegsOf<O> = <<O as Own>::Backend as Arch>::Regs;
pub(crate) type OutcomeOf<O> = Outcome<RegsOf<O>, <O as Own>::Frame, <O as Own>::After>;

/// What is the architecture's.
pub(crate) trait Own: Sized + 'static {
    type Backend: NativeArch<Regs: Copy + Default + PartialEq + std::fmt::Debug>;
    /// What a run begins with beside general registers and memory.
    type Start;
    /// See [`Outcome::frame`].
    type Frame: Clone + PartialEq + std::fmt::Debug;
    /// See [`Outcome::after`].
    type After: Clone + PartialEq + std::fmt::Debug;

    /// Code: the place in the middle of breakpoints.
    const ARENA: usize;
    /// Before the arena: what direct jumps reach, and nobody else may have.
    const FORBIDDEN_BEFORE: usize;
    /// The same behind the slot.
    const FORBIDDEN_BEHIND: usize;
    /// Where in the arena the instruction lies.
    const PLACE: usize;
    /// Data that loads and stores may hit.
    const DATA: usize;
    /// How far the trap is from the instruction behind it where [`Own::launch`] traps.
    const TRAP_LEN: usize;

    /// Where the state is while an instruction runs.
    fn shared() -> &'static Shared<Self>;

    /// An instruction as it lies in memory.
    fn bytes(word: u32) -> [u8; 4] {
        word.to_le_bytes()
    }

    fn classify(word: u32) -> Result<(<Self::Backend as Arch>::Plan, Method), Refusal>;

    /// The breakpoints of the arena, `at` an offset into it.
    fn filler(at: usize) -> [u8; 4];

    /// Makes the signals that the instruction may end with come to [`on_signal`].
    fn install_handlers();

    /// Loads the other registers and traps; the handler goes on from there and comes back after the trap.
    fn launch(start: &Self::Start) -> Self::After;

    /// What simulated instructions read, with the arena and the data in it.
    fn memory(arena: usize, data: usize) -> impl Memory;
}

/// The state of a run, from its launch to its outcome.
pub(crate) struct Shared<O: Own>(UnsafeCell<Option<State<O>>>);

// SAFETY: used only by the holder of `LOCK` and by the signal handler that interrupts it.
unsafe impl<O: Own> Sync for Shared<O> {}

impl<O: Own> Shared<O> {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }
}

static LOCK: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Launching,
    Running,
    Stepping,
}

struct State<O: Own> {
    phase: Phase,
    run: Run,
    home: RegsOf<O>,
    regs: RegsOf<O>,
    plan: <O::Backend as Arch>::Plan,
    method: Method,
    kept: <O::Backend as Arch>::StepState,
    len_bytes: usize,
    place: usize,
    slot: usize,
    arena: usize,
    data: usize,
    outcome: Option<(c_int, RegsOf<O>, O::Frame)>,
}

pub(crate) struct Machine<O: Own> {
    _lock: MutexGuard<'static, ()>,
    /// `PROT_*` of the arena beside reading and executing.
    protection: c_int,
    arena: usize,
    slot: usize,
    data: usize,
    _own: std::marker::PhantomData<O>,
}

impl<O: Own> Machine<O> {
    /// With `protection` for the arena's pages beside reading and executing.
    pub(crate) fn new(protection: c_int) -> Self {
        let lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        O::install_handlers();
        use_a_stack_of_its_own();
        let arena = map(Self::all(), libc::PROT_NONE) + O::FORBIDDEN_BEFORE;
        let data = map(O::DATA, libc::PROT_READ | libc::PROT_WRITE);
        let slot = arena + O::ARENA;
        let _own = std::marker::PhantomData;
        let machine = Self { _lock: lock, protection, arena, slot, data, _own };
        machine.open();
        for at in (0..O::ARENA + SLOT_PAGE).step_by(4) {
            store(arena + at, &O::filler(at));
        }
        machine.seal();
        machine
    }

    /// How much is mapped.
    const fn all() -> usize {
        O::FORBIDDEN_BEFORE + O::ARENA + SLOT_PAGE + O::FORBIDDEN_BEHIND
    }

    /// Makes the arena executable again after [`Machine::open`].
    fn seal(&self) {
        protect(self.arena, O::ARENA, libc::PROT_READ | libc::PROT_EXEC | self.protection);
        protect(self.slot, SLOT_PAGE, libc::PROT_READ | libc::PROT_EXEC);
        for (at, len) in [(self.place(), 8), (self.slot, O::Backend::SLOT_LEN)] {
            // SAFETY: mapped and readable.
            unsafe { O::Backend::publish(CodeAddr::new(at), len) };
        }
    }

    fn open(&self) {
        protect(self.arena, O::ARENA + SLOT_PAGE, libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Where the instruction lies.
    pub(crate) fn place(&self) -> usize {
        self.arena + O::PLACE
    }

    pub(crate) fn arena(&self) -> usize {
        self.arena
    }

    pub(crate) fn data(&self) -> usize {
        self.data
    }

    /// Puts `word` at the place, or a breakpoint there and the slot, as `run` asks.
    pub(crate) fn prepare(&self, word: u32, run: Run) {
        let (plan, method) = O::classify(word).expect("not refused");
        let bytes = O::bytes(word);
        let len_bytes = O::Backend::insn_len(CodeAddr::new(self.place()), &bytes).expect("an instruction");
        self.open();
        store(self.place(), &O::filler(O::PLACE));
        store(self.place(), &bytes[..len_bytes]);
        if run != Run::Bare {
            store(self.place(), O::Backend::BREAKPOINT);
        }
        if method != Method::Simulate {
            let tail = if run == Run::Probed { Tail::Jump } else { Tail::Breakpoint };
            let mut slot = vec![0xff; O::Backend::SLOT_LEN - 8];
            let (place, at) = (CodeAddr::new(self.place()), CodeAddr::new(self.slot));
            let insn = &bytes[..len_bytes];
            O::Backend::fill_slot(&plan, insn, place, at, tail, &mut slot).expect("in reach");
            store(self.slot, &slot);
        }
        self.seal();
        // SAFETY: the lock is held and no signal is expected.
        let state = unsafe { &mut *O::shared().0.get() };
        *state = Some(State {
            phase: Phase::Idle,
            run,
            home: RegsOf::<O>::default(),
            regs: RegsOf::<O>::default(),
            plan,
            method,
            kept: Default::default(),
            len_bytes,
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
        store(at, &O::bytes(word));
        self.seal();
        // SAFETY: mapped and readable.
        unsafe { O::Backend::publish(CodeAddr::new(at), 4) };
    }

    /// Runs what [`Machine::prepare`] has put there from `regs` (with pc = the place), `start` and `data`.
    pub(crate) fn run(&self, regs: &RegsOf<O>, start: &O::Start, data: &[u8]) -> OutcomeOf<O> {
        store(self.data, data);
        // SAFETY: the lock is held and no signal is expected.
        if let Some(state) = unsafe { &mut *O::shared().0.get() } {
            state.regs = *regs;
            state.regs.set_pc(CodeAddr::new(self.place()));
            state.phase = Phase::Launching;
            state.outcome = None;
        }
        let after = O::launch(start);
        // SAFETY: the lock is held and no signal is expected.
        let state = unsafe { &mut *O::shared().0.get() };
        let outcome = state.as_mut().and_then(|state| state.outcome.take());
        let (signal, regs, frame) = outcome.expect("the instruction has stopped");
        let mut data = vec![0; O::DATA];
        // SAFETY: `data` is mapped.
        unsafe { core::ptr::copy_nonoverlapping(self.data as *const u8, data.as_mut_ptr(), O::DATA) };
        Outcome { signal, regs, frame, after, data }
    }
}

impl<O: Own> Drop for Machine<O> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nothing runs there.
        unsafe { libc::munmap((self.arena - O::FORBIDDEN_BEFORE) as *mut c_void, Self::all()) };
        // SAFETY: as above.
        unsafe { libc::munmap(self.data as *mut c_void, O::DATA) };
    }
}

/// A signal at `regs`, which is changed to where the thread goes on; `frame` reads what else its frame tells.
pub(crate) fn on_signal<O: Own>(signal: c_int, regs: &mut RegsOf<O>, frame: impl FnOnce() -> O::Frame) {
    // SAFETY: the interrupted thread holds the lock and waits in `launch`.
    let Some(state) = (unsafe { &mut *O::shared().0.get() }) else { die(signal, regs) };
    let Some(signal) = state.on_signal(signal, regs) else { return };
    state.outcome = Some((signal, *regs, frame()));
    *regs = state.home;
    regs.set_pc(regs.pc().wrapping_add(O::TRAP_LEN));
    state.phase = Phase::Idle;
}

/// Makes `handler` that of the signals that the instruction may end with.
pub(crate) fn install(handler: *const ()) {
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: all zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the handler keeps to what a handler may do.
        let result = unsafe { libc::sigaction(signal, &action, core::ptr::null_mut()) };
        assert_eq!(result, 0);
    }
}

/// Every test has its own thread: the stack pointer of the instruction may be anything.
fn use_a_stack_of_its_own() {
    let stack = libc::stack_t {
        ss_sp: map(STACK, libc::PROT_READ | libc::PROT_WRITE) as *mut c_void,
        ss_flags: 0,
        ss_size: STACK,
    };
    // SAFETY: the stack stays mapped for good.
    let result = unsafe { libc::sigaltstack(&stack, core::ptr::null_mut()) };
    assert_eq!(result, 0);
}

fn map(len: usize, prot: c_int) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0) };
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

fn die(signal: c_int, regs: &impl Regs) -> ! {
    eprintln!("unexpected signal {signal} at {}", regs.pc());
    // SAFETY: ends the process.
    unsafe { libc::_exit(101) }
}

impl<O: Own> State<O> {
    /// Returns the signal that the instruction has stopped with for good.
    fn on_signal(&mut self, signal: c_int, regs: &mut RegsOf<O>) -> Option<c_int> {
        let pc = regs.pc().as_usize();
        let in_slot = (self.slot..self.slot + O::Backend::SLOT_LEN).contains(&pc);
        match self.phase {
            Phase::Idle => die(signal, regs),
            Phase::Launching => {
                self.home = *regs;
                *regs = self.regs;
                self.phase = Phase::Running;
                None
            }
            Phase::Running if self.run != Run::Bare && pc == self.place => {
                if signal != libc::SIGTRAP {
                    die(signal, regs);
                }
                self.probed(regs)
            }
            // A boosted slot, or one without a frame: resolved by its address alone.
            Phase::Running if in_slot => self.finish(signal, regs, Default::default()),
            Phase::Running => Some(signal),
            Phase::Stepping if in_slot => self.finish(signal, regs, self.kept),
            Phase::Stepping => die(signal, regs),
        }
    }

    /// The breakpoint at the place.
    fn probed(&mut self, regs: &mut RegsOf<O>) -> Option<c_int> {
        let (place, slot) = (CodeAddr::new(self.place), CodeAddr::new(self.slot));
        match (self.method, self.run) {
            (Method::Simulate, _) => {
                let memory = O::memory(self.arena, self.data);
                // A host would raise this fault.
                if O::Backend::simulate(&self.plan, place, regs, &memory).is_err() {
                    return Some(libc::SIGSEGV);
                }
            }
            (Method::Step, Run::WithoutFrame) | (Method::Boost, _) => regs.set_pc(slot),
            (Method::Step, _) => {
                self.kept = O::Backend::before_step(&self.plan, place, slot, regs);
                self.phase = Phase::Stepping;
            }
        }
        None
    }

    /// A trap or a fault in the slot.
    fn finish(
        &mut self,
        signal: c_int,
        regs: &mut RegsOf<O>,
        kept: <O::Backend as Arch>::StepState,
    ) -> Option<c_int> {
        let (place, slot) = (CodeAddr::new(self.place), CodeAddr::new(self.slot));
        self.phase = Phase::Running;
        if signal != libc::SIGTRAP {
            O::Backend::abort_step(&self.plan, place, regs, &kept);
            return Some(signal);
        }
        O::Backend::after_step(&self.plan, self.len_bytes, place, slot, regs, &kept);
        None
    }
}
