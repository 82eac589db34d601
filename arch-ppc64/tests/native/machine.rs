//! A machine that executes one instruction from a given state, in place or under a probe, and says what
//! happened.
//!
//! The instruction stands in a page of traps. Signals do the rest: a trap in the test itself brings the state
//! into the processor, the next trap or fault takes it out. Under a probe the place holds a `trap`, and the
//! handler does what the core would do with the backend's answers.

use crate::state::State;
use probe_arch_ppc64::Endian as _;
use probe_arch_ppc64::{Kept, Native, NativeEndian, Plan, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Decoded, MemFault, Memory, Method, NativeArch, Site, Tail, Text};
use std::arch::asm;
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard};

/// How an instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    /// In place, unprobed.
    Bare,
    /// By `Arch::simulate`.
    Simulate,
    /// In a slot with this tail.
    Slot(Tail),
}

/// What ended the execution.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) signal: i32,
    pub(crate) state: State,
}

const PAGE: usize = 0x1_0000;
/// Text: the place in the middle of traps that branches may land on.
const TEXT_LEN: usize = 8 * PAGE;
/// How far `b` reaches to either side (Power ISA 3.1B, Book I, 2.4: LI is 24 bits of words). Nobody can
/// access it: a branch out of the text ends where it leads, and runs nothing of what the process happens to
/// have there.
const REACH: usize = 1 << 25;
const SLOTS_LEN: usize = PAGE;
const SIGNALS: [i32; 5] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// The one machine of the process: its signal handlers and mappings are global.
pub(crate) struct Machine {
    text: usize,
    slots: usize,
    data: usize,
    data_len: usize,
}

static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);

/// What the signal handler works on.
struct Run {
    host: State,
    start: State,
    outcome: Outcome,
    phase: Phase,
    probe: Option<Probe>,
    mode: Mode,
    traps: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Idle,
    Enter,
    Running,
}

#[derive(Clone, Copy)]
struct Probe {
    place: CodeAddr,
    slot: CodeAddr,
    decoded: Decoded<Plan>,
    kept: Kept,
}

struct Shared(UnsafeCell<Run>);

// SAFETY: used under the lock of `MACHINE` and by the signal handler of the thread that holds it.
unsafe impl Sync for Shared {}

static RUN: Shared = Shared(UnsafeCell::new(Run {
    host: State::ZERO,
    start: State::ZERO,
    outcome: Outcome { signal: 0, state: State::ZERO },
    phase: Phase::Idle,
    probe: None,
    mode: Mode::Bare,
    traps: 0,
}));

/// Takes the machine for the calling thread.
pub(crate) fn machine() -> MutexGuard<'static, Option<Machine>> {
    let mut guard = MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    use_own_signal_stack();
    if guard.is_none() {
        *guard = Some(Machine::new());
    }
    guard
}

/// No memory can be accessed: no ppc64 instruction is simulated with any.
struct NoMemory;

// SAFETY: every access fails and has no effect.
unsafe impl Memory for NoMemory {
    fn read(&self, addr: usize, _: &mut [u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: probe_core::arch::Access::Read })
    }
    fn write(&self, addr: usize, _: &[u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: probe_core::arch::Access::Write })
    }
}

/// The text that `Arch::decode` sees: the place's words and traps around them.
struct Around<'a> {
    place: usize,
    words: &'a [u32],
}

impl Text for Around<'_> {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        for (index, byte) in out.iter_mut().enumerate() {
            let at = at.as_usize() + index;
            let word = at.checked_sub(self.place).and_then(|o| self.words.get(o / 4)).copied();
            *byte = NativeEndian::bytes(word.unwrap_or(TRAP))[at % 4];
        }
        out.len()
    }
}

pub(crate) const TRAP: u32 = 0x7fe0_0008;

impl Machine {
    fn new() -> Self {
        let text = map(REACH + TEXT_LEN + SLOTS_LEN + REACH, libc::PROT_NONE) + REACH;
        protect(text, TEXT_LEN + SLOTS_LEN, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        // One page of data between pages that nobody can access.
        // SAFETY: asks for a number.
        let data_len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let data = map(data_len + 2 * PAGE, libc::PROT_NONE) + PAGE;
        protect(data, data_len, libc::PROT_READ | libc::PROT_WRITE);
        for signal in SIGNALS {
            install(signal);
        }
        let machine = Self { text, slots: text + TEXT_LEN, data, data_len };
        machine.write(text, &[TRAP; TEXT_LEN / 4]);
        machine
    }

    /// Where the instruction stands.
    pub(crate) fn place(&self) -> usize {
        self.text + TEXT_LEN / 2
    }

    /// Addresses in text that hold traps.
    pub(crate) fn landings(&self) -> [usize; 4] {
        [self.place() + 0x40, self.place() - 0x40, self.text + 0x100, self.text + TEXT_LEN - 0x100]
    }

    /// The middle of the data.
    pub(crate) fn data(&self) -> usize {
        self.data + self.data_len / 2
    }

    fn write(&self, at: usize, words: &[u32]) {
        for (index, word) in words.iter().enumerate() {
            // SAFETY: callers pass addresses of the text and slot mapping, which is writable and used by
            // nobody else.
            unsafe {
                (at as *mut u32).add(index).write_volatile(u32::from_ne_bytes(NativeEndian::bytes(*word)))
            };
        }
        // SAFETY: mapped, as above.
        unsafe { Native::publish(CodeAddr::new(at), words.len() * 4) };
    }

    /// All memory that instructions may change.
    pub(crate) fn data_mut(&mut self) -> &mut [u64] {
        // SAFETY: the page is mapped; nobody else uses it while `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.data as *mut u64, self.data_len / 8) }
    }

    /// What the backend decides about `words` at the place.
    pub(crate) fn decode(&self, words: &[u32]) -> Result<Decoded<Plan>, probe_core::error::Refusal> {
        let at = CodeAddr::new(self.place());
        let text = Around { place: self.place(), words };
        let function = Some((at, CodeAddr::new(self.place() + words.len() * 4)));
        Native::decode(&Site { at, function, text: &text })
    }

    /// Executes the instruction in `words` from `start` (whose nip is ignored).
    pub(crate) fn execute(&mut self, words: &[u32], start: &State, mode: Mode) -> Outcome {
        let place = self.place();
        let probe = match mode {
            Mode::Bare => None,
            _ => Some(self.plant(words, mode)),
        };
        self.write(place, words);
        if probe.is_some() {
            self.write(place, &[TRAP]);
        }
        let run = RUN.0.get();
        // SAFETY: the lock is held (`self` comes out of it) and the handler is idle.
        unsafe {
            (*run).start = *start;
            (*run).start.regs.nip = place as u64;
            (*run).probe = probe;
            (*run).mode = mode;
            (*run).traps = 0;
            (*run).phase = Phase::Enter;
        }
        // SAFETY: the handler brings every register back before the next instruction is executed; memory may
        // have changed.
        unsafe { asm!("trap") };
        self.write(place, &[TRAP; 2]);
        // SAFETY: as above; the handler is idle again.
        let run = unsafe { &*run };
        assert!(run.phase == Phase::Idle);
        run.outcome
    }

    /// Fills the slot of a probe on `words`.
    fn plant(&self, words: &[u32], mode: Mode) -> Probe {
        let decoded = self.decode(words).expect("refused instructions are not executed");
        let (place, slot) = (CodeAddr::new(self.place()), CodeAddr::new(self.slots));
        let bytes: Vec<u8> = words.iter().flat_map(|word| NativeEndian::bytes(*word)).collect();
        if let Mode::Slot(tail) = mode {
            let mut out = [0; Native::SLOT_LEN - 8];
            let insn = &bytes[..usize::from(decoded.len_bytes)];
            Native::fill_slot(&decoded.plan, insn, place, slot, tail, &mut out).expect("the slot is near");
            let out: Vec<u32> =
                out.as_chunks::<4>().0.iter().map(|bytes| NativeEndian::word(*bytes)).collect();
            self.write(self.slots, &out);
        } else {
            assert_eq!(decoded.method, Method::Simulate);
        }
        Probe { place, slot, decoded, kept: Kept::default() }
    }
}

fn map(len: usize, protection: i32) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

/// Changes the protection of a part of what `map` returned.
fn protect(at: usize, len: usize, protection: i32) {
    // SAFETY: the machine's own mapping, which nobody uses yet.
    let failed = unsafe { libc::mprotect(at as *mut _, len, protection) };
    assert_eq!(failed, 0);
}

fn use_own_signal_stack() {
    const LEN: usize = 0x4_0000;
    let stack = libc::stack_t {
        ss_sp: map(LEN, libc::PROT_READ | libc::PROT_WRITE) as *mut _,
        ss_flags: 0,
        ss_size: LEN,
    };
    // SAFETY: the mapping is never unmapped (a test thread has at most a few).
    let failed = unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
    assert_eq!(failed, 0);
}

fn install(signal: i32) {
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler is async-signal-safe.
    let failed = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert_eq!(failed, 0);
}

/// One step of the run. Uses no thread-local storage: r13 may be anything.
unsafe extern "C" fn on_signal(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<u8>();
    // SAFETY: the thread that holds the machine's lock is the one that is interrupted.
    let run = unsafe { &mut *RUN.0.get() };
    match run.phase {
        Phase::Idle => {
            // SAFETY: ends the process without running anything else; a fault outside a run is a bug of the
            // test.
            unsafe {
                let mut state = State::ZERO;
                state.load(context);
                let message = format!("signal {signal} outside a run, nip {:#x}\n", state.regs.nip);
                libc::write(2, message.as_ptr().cast(), message.len());
                libc::_exit(99)
            }
        }
        Phase::Enter => {
            // SAFETY: a signal frame of this thread.
            unsafe { run.host.load(context) };
            run.host.regs.nip += 4;
            run.start.regs.msr = run.host.regs.msr;
            run.phase = Phase::Running;
            // SAFETY: as above.
            unsafe { run.start.store(context) };
        }
        Phase::Running => {
            let mut state = State::ZERO;
            // SAFETY: a signal frame of this thread.
            unsafe { state.load(context) };
            let ended = on_event(run, signal, &mut state.regs);
            if ended {
                run.outcome = Outcome { signal, state };
                run.phase = Phase::Idle;
                state = run.host;
            }
            // SAFETY: as above.
            unsafe { state.store(context) };
        }
    }
}

/// Does with the event what the core would do, and says whether it is the program's own.
fn on_event(run: &mut Run, signal: i32, regs: &mut PtRegs) -> bool {
    run.traps += 1;
    let Some(probe) = &mut run.probe else { return true };
    let Probe { place, slot, decoded, .. } = *probe;
    let plan = &decoded.plan;
    let len = usize::from(decoded.len_bytes);
    let nip = Native::breakpoint_address(regs);
    let in_slot = nip >= slot && nip < slot.wrapping_add(Native::SLOT_LEN);
    if signal == libc::SIGTRAP && nip == place && run.traps == 1 {
        match run.mode {
            Mode::Simulate => {
                Native::simulate(plan, place, regs, &NoMemory).expect("nothing to fault on");
            }
            Mode::Slot(_) => probe.kept = Native::before_step(plan, place, slot, regs),
            Mode::Bare => return true,
        }
        return false;
    }
    if signal == libc::SIGTRAP && nip == slot.wrapping_add(len) {
        Native::after_step(plan, len, place, slot, regs, &probe.kept);
        return false;
    }
    if in_slot {
        Native::abort_step(plan, place, regs, &probe.kept);
    }
    true
}
