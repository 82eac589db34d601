// A toy world: a host with its probes, and a processor that runs code out of real memory, one byte per cell:
// text, slots and return stubs alike. Included by the documentation's example, too.

use super::backend::*;
use super::instructions::*;
use super::machine::*;
use probe_core::arch::{MemFault, Memory, Resume};
use probe_core::traps::{FaultVerdict, Trap};
use probe_core::{CodeAddr, Probes};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, RwLock};

/// One program of its own.
pub struct World {
    pub probes: Probes<ToyHost>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The function returned to where the run had begun.
    Returned,
    /// HALT.
    Halted,
    /// A breakpoint that nobody wanted.
    Trapped(usize),
    /// A fault that nobody handled.
    Faulted(MemFault),
    /// No instruction.
    Undefined(usize),
    /// It went on for too long.
    Timeout,
}

impl World {
    pub fn new() -> &'static Self {
        let arena = block(ARENA);
        let host = ToyHost {
            in_flight: RwLock::default(),
            memory: ToyMemory { arena },
            world: OnceLock::new(),
            questions: AtomicUsize::new(0),
            symbols: Mutex::default(),
            contexts: Mutex::default(),
            blacklist: Mutex::default(),
            refused: Mutex::default(),
            arrivals: Mutex::default(),
            next_text: AtomicUsize::new(arena + 64),
            next_stack: AtomicUsize::new(arena + ARENA),
            writes: AtomicUsize::new(0),
            syncs: AtomicUsize::new(0),
            stretches: AtomicUsize::new(0),
            stretch_depth: AtomicUsize::new(0),
            puts_off: AtomicBool::new(false),
            put_off: Mutex::default(),
            failing_write: AtomicUsize::new(0),
            fails_for_good: AtomicBool::new(false),
            chunks_left: AtomicUsize::new(1000),
            chunks_asked: AtomicUsize::new(0),
            live_chunks: AtomicIsize::new(0),
            pins: AtomicIsize::new(0),
            notices: Mutex::default(),
            stopped: Default::default(),
            panics_at_stop: AtomicBool::new(false),
            has_contexts: AtomicBool::new(true),
            has_single_step: AtomicBool::new(false),
            has_watchpoints: AtomicBool::new(false),
            watched: Default::default(),
            fails_to_watch: AtomicBool::new(false),
            system_hook: Mutex::default(),
            text_hook: Mutex::default(),
            waits: AtomicUsize::new(0),
            waiting: Mutex::default(),
        };
        let world: &'static Self = Box::leak(Box::new(Self { probes: Probes::new(host) }));
        assert!(world.host().world.set(world).is_ok());
        world
    }

    pub fn host(&self) -> &ToyHost {
        self.probes.host()
    }

    pub fn arena(&self) -> usize {
        self.host().memory.arena
    }

    /// Puts code into text, under a name, and gives its address.
    pub fn function(&self, name: &str, code: &[u8]) -> usize {
        self.function_in(name, None, code)
    }

    pub fn function_in(&self, name: &str, module: Option<&str>, code: &[u8]) -> usize {
        let start = self.host().next_text.fetch_add((code.len() + 15) & !15, SeqCst);
        assert!(start + code.len() <= self.arena() + DATA);
        self.put(start, code);
        let symbol = ToySymbol { name: name.into(), start, len: code.len(), module: module.map(Into::into) };
        self.host().symbols.lock().unwrap().push(symbol);
        start
    }

    /// Writes memory past all checks.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        for (offset, byte) in bytes.iter().enumerate() {
            cell(at + offset).store(*byte, SeqCst);
        }
    }

    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        (0..len).map(|offset| cell(at + offset).load(SeqCst)).collect()
    }

    /// All text.
    pub fn text(&self) -> Vec<u8> {
        self.bytes(self.arena(), self.host().next_text.load(SeqCst) - self.arena())
    }

    pub fn call(&self, to: usize) -> [u8; 5] {
        self.absolute(CALL, to)
    }

    pub fn jump(&self, to: usize) -> [u8; 5] {
        self.absolute(JUMP, to)
    }

    fn absolute(&self, opcode: u8, to: usize) -> [u8; 5] {
        let offset = ((to - self.arena()) as u32).to_le_bytes();
        [opcode, offset[0], offset[1], offset[2], offset[3]]
    }

    /// A stack of its own, 4 KiB.
    pub fn stack(&self) -> usize {
        let top = self.host().next_stack.fetch_sub(4096, SeqCst);
        assert!(top - 4096 > self.arena() + DATA);
        top - 128
    }

    /// Calls a function with arguments on a fresh stack; gives its registers at the end.
    pub fn run(&'static self, function: usize, arguments: &[usize]) -> (End, ToyRegs) {
        let mut cpu = self.cpu(function, arguments);
        let end = cpu.run(100_000);
        (end, cpu.regs)
    }

    /// As [`World::run`]; the function has to return, and its value is given.
    pub fn value(&'static self, function: usize, arguments: &[usize]) -> usize {
        let (end, regs) = self.run(function, arguments);
        assert_eq!(end, End::Returned, "{regs:x?}");
        regs.r[0]
    }

    pub fn cpu(&'static self, function: usize, arguments: &[usize]) -> Cpu {
        let sp = STACKS.with_borrow_mut(|stacks| {
            let known = stacks.iter().position(|(world, _)| *world == self.arena());
            known.map(|index| stacks.swap_remove(index).1)
        });
        let top = sp.unwrap_or_else(|| self.stack());
        let mut regs = ToyRegs { pc: function, sp: top - 8, ..ToyRegs::default() };
        regs.r[..arguments.len().min(3)].copy_from_slice(&arguments[..arguments.len().min(3)]);
        for (index, argument) in arguments.iter().enumerate().skip(3) {
            self.put(regs.sp + 8 * (index - 2), &argument.to_ne_bytes());
        }
        let home = self.arena();
        self.put(regs.sp, &home.to_ne_bytes());
        Cpu { world: self, regs, home, top, trace: Vec::new() }
    }
}

thread_local! {
    /// Stacks that are free for this thread's next calls.
    static STACKS: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

/// A processor.
pub struct Cpu {
    world: &'static World,
    pub regs: ToyRegs,
    home: usize,
    top: usize,
    /// Every pc, in slots and stubs, too.
    pub trace: Vec<usize>,
}

/// The eight bytes behind an opcode.
fn word_of(insn: &[u8; 9]) -> usize {
    let [_, word @ ..] = *insn;
    u64::from_le_bytes(word) as usize
}

impl Drop for Cpu {
    fn drop(&mut self) {
        let (arena, top) = (self.world.arena(), self.top);
        let _ = STACKS.try_with(|stacks| stacks.borrow_mut().push((arena, top)));
    }
}

/// What one instruction did to the run.
pub type Stepped = Result<(), End>;

impl Cpu {
    /// Where the return address of its first function lies.
    pub fn start_of_stack(&self) -> usize {
        self.top - 8
    }

    /// Runs until the function returns, or for `limit` instructions.
    pub fn run(&mut self, limit: usize) -> End {
        for _ in 0..limit {
            if self.regs.pc == self.home {
                return End::Returned;
            }
            if let Err(end) = self.step() {
                return end;
            }
        }
        End::Timeout
    }

    /// The bytes at the program counter, as one instruction sees them: what is written in two stages with a
    /// synchronisation between is not seen half.
    fn fetch(&self) -> [u8; 9] {
        let _in_flight = self.world.host().in_flight.read().unwrap();
        std::array::from_fn(|offset| match offset == 0 || self.is_code(self.regs.pc + offset) {
            true => cell(self.regs.pc + offset).load(SeqCst),
            false => 0,
        })
    }

    fn is_code(&self, at: usize) -> bool {
        let arena = self.world.arena();
        (at >= arena && at < arena + DATA)
            || is_chunk(at)
            || at == (&raw const JPROBE_RETURN).expose_provenance()
    }

    /// Executes one instruction, or traps.
    pub fn step(&mut self) -> Stepped {
        let pc = self.regs.pc;
        if cfg!(debug_assertions) {
            self.trace.push(pc);
        }
        if !self.is_code(pc) {
            return Err(End::Undefined(pc));
        }
        // Once: a breakpoint may come meanwhile.
        let insn = self.fetch();
        match insn[0] {
            BREAK => return self.trap(),
            FOREIGN_BREAK => return Err(End::Trapped(pc)),
            SLOT_JUMP => {
                self.regs.pc = word_of(&insn);
                return Ok(());
            }
            jump @ DETOUR_JUMP..=LAST_DETOUR_JUMP => {
                self.regs.pc = detour_of(pc, jump).ok_or(End::Undefined(pc))?;
                return Ok(());
            }
            DETOUR_CALL | ENTRY_CALL => return self.call_from_detour(word_of(&insn), insn[0] == ENTRY_CALL),
            STUB => {
                self.return_from_stub(pc);
                return Ok(());
            }
            _ => {}
        }
        self.execute(pc, &insn)
    }

    fn execute(&mut self, pc: usize, insn: &[u8; 9]) -> Stepped {
        let opcode = insn[0];
        let Some(len) = len_of(opcode) else { return Err(End::Undefined(pc)) };
        let (a, b) = (usize::from(insn[1]), usize::from(insn[2]));
        let memory = &self.world.host().memory;
        let mut regs = self.regs;
        regs.pc = pc + len;
        let done = match opcode {
            ADD => {
                regs.r[a] = regs.r[a].wrapping_add(b);
                Ok(())
            }
            SUB => {
                regs.r[a] = regs.r[a].wrapping_sub(b);
                Ok(())
            }
            SET => {
                regs.r[a] = usize::from(u16::from_le_bytes([insn[2], insn[3]]));
                Ok(())
            }
            ADDRESS => {
                regs.r[a] = pc + len + b;
                Ok(())
            }
            BORROW => {
                regs.r[a] = regs.r[a].wrapping_add(1);
                Ok(())
            }
            LOAD => memory.read_usize(regs.r[b]).map(|value| regs.r[a] = value),
            STORE => memory.write_usize(regs.r[a], regs.r[b]),
            SYSTEM => {
                regs.r[7] = pc + len;
                let hook = *self.world.host().system_hook.lock().unwrap();
                if let Some(hook) = hook {
                    hook(self.world, &mut regs);
                }
                Ok(())
            }
            JUMP | CALL | RETURN | PUSH | BRANCH => {
                let mut operands = [0; 5];
                operands[..len].copy_from_slice(&insn[..len]);
                simulated(operands, CodeAddr::new(pc), &mut regs, memory)
            }
            HALT => return Err(End::Halted),
            _ => Ok(()),
        };
        match done {
            Ok(()) => {
                self.regs = regs;
                if regs.is_stepped { self.trap_after_step() } else { Ok(()) }
            }
            Err(fault) => self.fault(fault),
        }
    }

    /// The trap of a processor that was told to execute one instruction.
    fn trap_after_step(&mut self) -> Stepped {
        match step_trap(&self.world.probes, &mut self.regs) {
            Trap::Handled => Ok(()),
            _ => Err(End::Trapped(self.regs.pc)),
        }
    }

    /// The breakpoint trap: what a kernel's trap code does.
    fn trap(&mut self) -> Stepped {
        let pc = self.regs.pc;
        self.regs.pc += 1;
        match self.world.probes.traps().breakpoint(&mut self.regs) {
            Trap::Handled => Ok(()),
            Trap::NotOurs => {
                self.regs.pc = pc;
                Err(End::Trapped(pc))
            }
            Trap::Fault(fault) => self.fault(fault),
        }
    }

    fn fault(&mut self, fault: MemFault) -> Stepped {
        match self.world.probes.traps().fault(&mut self.regs, 14) {
            FaultVerdict::Handled => Ok(()),
            FaultVerdict::NotOurs | FaultVerdict::Restored => Err(End::Faulted(fault)),
        }
    }

    /// What a backend's trampoline does for detours; `follows`: at the entry of a followed function, where
    /// that the return address is a stub now is to be told, unless it was one before.
    fn call_from_detour(&mut self, word: usize, follows: bool) -> Stepped {
        let memory = &self.world.host().memory;
        let target = |sp| memory.read_usize(sp).unwrap_or(0);
        let is_stub = |target| is_chunk(target) && cell(target).load(SeqCst) == STUB;
        let before = target(self.regs.sp);
        // SAFETY: the word is that of a detour, which begins with the handler and the place.
        let called = unsafe { std::ptr::with_exposed_provenance::<Called>(word).read() };
        let mut regs = ToyRegs { pc: called.place, ..self.regs };
        let resume = (called.handler)(word, &raw mut regs);
        let is_followed = matches!(resume, Resume::Followed | Resume::ChangedFollowed);
        let has_changed = is_stub(target(self.regs.sp)) && !is_stub(before);
        if follows && matches!(resume, Resume::Unchanged | Resume::Changed) || is_followed {
            assert_eq!((is_followed, follows), (has_changed, true), "{resume:?} at {:#x}", self.regs.pc);
        }
        match resume {
            Resume::Unchanged | Resume::Followed => {
                assert_eq!(regs.r, self.regs.r);
                self.regs.pc += 9;
                return Ok(());
            }
            Resume::Changed | Resume::ChangedFollowed => {
                self.regs = ToyRegs { pc: self.regs.pc + 9, sp: self.regs.sp, ..regs };
                return Ok(());
            }
            Resume::Moved => regs.pc = self.regs.pc + 9,
            Resume::Redirected => {}
        }
        self.regs.r[0] = (&raw mut regs).expose_provenance();
        self.regs.pc = (&raw const DETOUR_RESUME).expose_provenance();
        self.trap()
    }

    fn return_from_stub(&mut self, stub: usize) {
        let base = stub & !(CHUNK - 1);
        let word = std::array::from_fn(|offset| cell(base + 1 + offset).load(SeqCst));
        let handler = usize::from_ne_bytes(word);
        let handler = std::ptr::with_exposed_provenance::<()>(handler);
        // SAFETY: the word is the handler that `fill_stubs` was given, which has this type.
        let handler: extern "C" fn(usize, *mut ToyRegs) -> Resume = unsafe { std::mem::transmute(handler) };
        let before = self.regs;
        if handler(stub, &raw mut self.regs) == Resume::Unchanged {
            assert_eq!(self.regs.r[1..], before.r[1..]);
        }
    }
}

/// What a detour's word leads to.
#[repr(C)]
struct Called {
    handler: extern "C" fn(usize, *mut ToyRegs) -> Resume,
    place: usize,
}

/// Whether an emulator runs this, where what takes seconds takes minutes; so large numbers are smaller there.
/// This code has nothing of the architecture.
pub fn is_emulated() -> bool {
    std::env::var_os("PROBE_RUNNER").is_some()
}
