//! A machine for one instruction: puts it into an arena of breakpoints, runs it from given registers and memory, and
//! reports where and with what state it stopped.

use libc::{c_int, c_void};
use probe_arch_riscv64::{Plan, PtRegs, Riscv64};
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, MemFault, Memory, Method, NativeArch, Tail};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Code: [`Machine::place`] in the middle of breakpoints.
pub(crate) const ARENA: usize = 1 << 16;
/// Before and behind the arena: what direct jumps reach, and nobody else may have.
const FORBIDDEN: usize = 2 << 20;
/// Data that loads and stores may hit.
pub(crate) const DATA: usize = 1 << 13;
const STACK: usize = 1 << 16;
/// `c.ebreak`.
const BREAKPOINT: [u8; 2] = 0x9002_u16.to_le_bytes();

/// How the instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// In place, without a probe.
    Bare,
    /// As a probe without a post handler: simulated, or in a slot that jumps back.
    Probed,
    /// In a slot that ends in a breakpoint.
    ProbedWithPost,
}

/// F0 to F31 and FCSR.
pub(crate) type Floats = ([u64; 32], u32);

/// What is left when the instruction has been executed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// SIGTRAP where the next instruction (a breakpoint of the arena) was reached, else the fault.
    pub signal: c_int,
    pub regs: PtRegs,
    pub floats: Floats,
    pub vectors: Option<Box<Vectors>>,
    pub data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Launching,
    Running,
}

struct State {
    phase: Phase,
    run: Run,
    home: PtRegs,
    regs: PtRegs,
    plan: Plan,
    method: Method,
    len_bytes: usize,
    place: usize,
    slot: usize,
    outcome: Option<(c_int, PtRegs, Floats)>,
}

struct Shared(UnsafeCell<Option<State>>);

// SAFETY: used only by the holder of `LOCK` and by the signal handler that interrupts it.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(None));
static LOCK: Mutex<()> = Mutex::new(());

pub(crate) struct Machine {
    _lock: MutexGuard<'static, ()>,
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
    pub(crate) fn new() -> Self {
        let lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        install_handlers();
        let arena = map(FORBIDDEN + ARENA + 4096 + FORBIDDEN, libc::PROT_NONE) + FORBIDDEN;
        let data = map(DATA, libc::PROT_READ | libc::PROT_WRITE);
        let machine = Self { _lock: lock, arena, slot: arena + ARENA, data };
        machine.open();
        for at in (arena..arena + ARENA + 4096).step_by(2) {
            store(at, &BREAKPOINT);
        }
        machine.seal();
        machine
    }

    /// Makes the arena executable again after [`Machine::open`].
    fn seal(&self) {
        protect(self.arena, ARENA + 4096, libc::PROT_READ | libc::PROT_EXEC);
        // SAFETY: mapped and readable.
        unsafe { Riscv64::publish(CodeAddr::new(self.arena), ARENA + 4096) };
    }

    fn open(&self) {
        protect(self.arena, ARENA + 4096, libc::PROT_READ | libc::PROT_WRITE);
    }

    /// Where the instruction lies: a full one, across two words.
    pub(crate) fn place(&self) -> usize {
        self.arena + ARENA / 2 + 0x42
    }

    pub(crate) fn arena(&self) -> usize {
        self.arena
    }

    pub(crate) fn data(&self) -> usize {
        self.data
    }

    /// Puts `word` at the place, or a breakpoint over its first half there and the slot, as `run` asks.
    pub(crate) fn prepare(&self, word: u32, run: Run) {
        let (plan, method) = Riscv64::classify(word).expect("not refused");
        let bytes = word.to_le_bytes();
        let len_bytes = Riscv64::insn_len(&bytes).expect("an instruction");
        self.open();
        store(self.place(), &[BREAKPOINT, BREAKPOINT].concat());
        store(self.place(), &bytes[..len_bytes]);
        if run != Run::Bare {
            store(self.place(), Riscv64::BREAKPOINT);
        }
        if method != Method::Simulate {
            let tail = if run == Run::Probed { Tail::Jump } else { Tail::Breakpoint };
            let mut slot = [0xff; Riscv64::SLOT_LEN - 8];
            let (place, at) = (CodeAddr::new(self.place()), CodeAddr::new(self.slot));
            Riscv64::fill_slot(&plan, &bytes[..len_bytes], place, at, tail, &mut slot).expect("in reach");
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
            len_bytes,
            place: self.place(),
            slot: self.slot,
            outcome: None,
        });
    }

    /// Runs what [`Machine::prepare`] has put there from `regs` (with pc = the place), `floats` and `data`.
    pub(crate) fn run(&self, regs: &PtRegs, floats: &Floats, data: &[u8]) -> Outcome {
        store(self.data, data);
        // SAFETY: the lock is held and no signal is expected.
        if let Some(state) = unsafe { &mut *STATE.0.get() } {
            state.regs = PtRegs { pc: self.place() as u64, ..*regs };
            state.phase = Phase::Launching;
            state.outcome = None;
        }
        let vectors = launch(&floats.0, floats.1);
        // SAFETY: the lock is held and no signal is expected.
        let state = unsafe { &mut *STATE.0.get() };
        let (signal, regs, floats) =
            state.as_mut().and_then(|state| state.outcome.take()).expect("the instruction has stopped");
        let mut after = vec![0; DATA];
        // SAFETY: `data` is mapped.
        unsafe { core::ptr::copy_nonoverlapping(self.data as *const u8, after.as_mut_ptr(), DATA) };
        Outcome { signal, regs, floats, vectors, data: after }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let start = (self.arena - FORBIDDEN) as *mut c_void;
        // SAFETY: mapped by `new`; nothing runs there.
        unsafe { libc::munmap(start, FORBIDDEN + ARENA + 4096 + FORBIDDEN) };
        // SAFETY: as above.
        unsafe { libc::munmap(self.data as *mut c_void, DATA) };
    }
}

/// What [`launch`] loads, and what it finds afterwards where there are vector registers. The handler leaves those alone, so
/// they are looked at behind the trap.
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
    // SAFETY: every register that the handler does not give back is declared; general registers come back from
    // `home`. Compiled code without V keeps nothing in vector registers.
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

/// For the thread that holds the lock.
fn install_handlers() {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mv {}, tp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    // SAFETY: a word of zeros at first.
    unsafe { &native_thread_pointer }.store(pointer, Ordering::Relaxed);
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL] {
        // SAFETY: all zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = native_on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: the handler keeps to what a handler may do.
        let result = unsafe { libc::sigaction(signal, &action, core::ptr::null_mut()) };
        assert_eq!(result, 0);
    }
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

/// Where `uc_mcontext` begins: with pc and X1 to X31, F0 to F31 and FCSR behind them.
const MCONTEXT: usize = 176;

#[unsafe(no_mangle)]
extern "C" fn native_on_signal_in_rust(signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let registers = context.wrapping_byte_add(MCONTEXT);
    // SAFETY: the kernel passes a `ucontext_t` to a handler with SA_SIGINFO.
    let words = unsafe { &mut *registers.cast::<[u64; 32]>() };
    let [pc, x1_to_x31 @ ..] = *words;
    let mut regs = PtRegs { pc, x1_to_x31, status: 0 };
    // SAFETY: the interrupted thread holds the lock and waits in `launch`.
    let Some(state) = (unsafe { &mut *STATE.0.get() }) else { die(signal, &regs) };
    if let Some(signal) = state.on_signal(signal, &mut regs) {
        // SAFETY: as above.
        let floats = unsafe { registers.wrapping_byte_add(256).cast::<[u64; 32]>().read() };
        // SAFETY: as above.
        let fcsr = unsafe { registers.wrapping_byte_add(512).cast::<u32>().read() };
        state.outcome = Some((signal, regs, (floats, fcsr)));
        regs = PtRegs { pc: state.home.pc + 2, ..state.home };
        state.phase = Phase::Idle;
    }
    words[0] = regs.pc;
    words[1..].copy_from_slice(&regs.x1_to_x31);
}

fn die(signal: c_int, regs: &PtRegs) -> ! {
    eprintln!("unexpected signal {signal} at {:#x}", regs.pc);
    // SAFETY: ends the process.
    unsafe { libc::_exit(101) }
}

impl State {
    /// Returns the signal that the instruction has stopped with for good.
    fn on_signal(&mut self, signal: c_int, regs: &mut PtRegs) -> Option<c_int> {
        let in_slot = (self.slot..self.slot + Riscv64::SLOT_LEN).contains(&(regs.pc as usize));
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
                self.probed(regs);
                None
            }
            Phase::Running if in_slot => self.finish(signal, regs),
            Phase::Running => Some(signal),
        }
    }

    /// The breakpoint at the place.
    fn probed(&mut self, regs: &mut PtRegs) {
        if self.method != Method::Simulate {
            regs.pc = self.slot as u64;
            return;
        }
        let simulated = Riscv64::simulate(&self.plan, CodeAddr::new(self.place), regs, &NoMemory);
        simulated.expect("nothing that is simulated touches memory");
    }

    /// A trap or a fault in the slot.
    fn finish(&mut self, signal: c_int, regs: &mut PtRegs) -> Option<c_int> {
        let (place, slot) = (CodeAddr::new(self.place), CodeAddr::new(self.slot));
        if signal != libc::SIGTRAP {
            Riscv64::abort_step(&self.plan, place, regs, &());
            return Some(signal);
        }
        Riscv64::after_step(&self.plan, self.len_bytes, place, slot, regs, &());
        None
    }
}

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
