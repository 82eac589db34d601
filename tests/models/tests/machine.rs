//! A machine for models: a few bytes of text that are loom's, stacks and slots that are not (each is one
//! context's alone while it matters), and processors that run the toy instruction set of probe-core's own
//! tests.

use crate::toy::backend::*;
use crate::toy::instructions::*;
use loom::sync::atomic::{AtomicU8, Ordering::*, fence};
use probe_core::arch::{Access, Arch, MemFault, Memory, Resume, SaveSet};
use probe_core::error::{Refusal, TextError};
use probe_core::host::{Blacklisted, Context, Host, Probeable, Symbol, Task, Watchpoints};
use probe_core::traps::Trap;
use probe_core::{CodeAddr, Probes, WatchRange};
use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where text begins: NOP, ADD r0 5, NOP, RETURN.
pub(crate) const TEXT: usize = 0x1000;
/// The function's bytes, and what nobody executes. A jump at its start takes all but the RETURN.
const CODE: [u8; 13] = [NOP, ADD, 0, 5, NOP, RETURN, NOP, NOP, NOP, NOP, NOP, NOP, NOP];
/// Where that lies.
pub(crate) const PADDING: std::ops::Range<usize> = 6..CODE.len();
/// Where a call returns to.
const HOME: usize = 0x100;
/// How many processors there are, and tasks.
const CPUS: usize = 3;
/// Where the stack of the first one begins.
const STACKS: usize = 0x10_0000;
const STACK_LEN: usize = 256;

/// Set in a return address that is signed, which none is.
pub(crate) const SIGNED: usize = 1 << 63;

pub(crate) fn arena_of(_: usize) -> usize {
    0
}

pub(crate) struct ModelMemory(RefCell<[u8; CPUS * STACK_LEN]>);

// SAFETY: loom runs one thread at a time, and no borrow lasts longer than a function that loom does not
// interrupt.
unsafe impl Sync for ModelMemory {}

// SAFETY: only the stacks are accessed.
unsafe impl Memory for ModelMemory {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let stacks = self.0.borrow();
        let found = addr.checked_sub(STACKS).and_then(|start| stacks.get(start..start + out.len()));
        out.copy_from_slice(found.ok_or(MemFault { addr, access: Access::Read })?);
        Ok(())
    }
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        let mut stacks = self.0.borrow_mut();
        let found = addr.checked_sub(STACKS).and_then(|start| stacks.get_mut(start..start + bytes.len()));
        found.ok_or(MemFault { addr, access: Access::Write })?.copy_from_slice(bytes);
        Ok(())
    }
}

loom::thread_local! {
    /// Which processor this thread is.
    static CPU: Cell<usize> = Cell::new(0);
    /// Which task runs there.
    static TASK: Cell<usize> = Cell::new(0);
}

pub(crate) struct ModelHost {
    text: [AtomicU8; CODE.len()],
    memory: ModelMemory,
    contexts: [Context<Toy>; CPUS],
    tasks: [Task<Toy>; CPUS],
}

// SAFETY: loom runs one thread at a time, and no borrow lasts longer than a function that loom does not
// interrupt.
unsafe impl Sync for ModelHost {}
// SAFETY: as above.
unsafe impl Send for ModelHost {}

/// Executable memory, at real addresses: the core reads its own words there. The same blocks in every
/// execution.
struct Blocks {
    all: Vec<&'static [Cell<u8>]>,
    taken: usize,
    freed: usize,
}

std::thread_local! {
    static BLOCKS: RefCell<Blocks> = const { RefCell::new(Blocks { all: Vec::new(), taken: 0, freed: 0 }) };
}

impl Blocks {
    fn take(&mut self) -> CodeAddr {
        if self.taken == self.all.len() {
            let layout = std::alloc::Layout::from_size_align(CHUNK, CHUNK).expect("a power of two");
            // SAFETY: the layout has a size.
            let memory = unsafe { std::alloc::alloc_zeroed(layout) };
            assert!(!memory.is_null());
            memory.expose_provenance();
            // SAFETY: just allocated, for good, and zeroed.
            self.all.push(unsafe { std::slice::from_raw_parts(memory.cast(), CHUNK) });
        }
        self.taken += 1;
        let block = self.all[self.taken - 1];
        block.iter().for_each(|cell| cell.set(0xff));
        CodeAddr::new(block.as_ptr().expose_provenance())
    }

    /// What lies from `at` to the end of its block.
    fn from(&self, at: usize) -> Option<&'static [Cell<u8>]> {
        let in_use = self.all[..self.taken].iter();
        in_use.copied().find_map(|block| block.get(at.checked_sub(block.as_ptr().addr())?..))
    }
}

fn block_from(at: usize) -> Option<&'static [Cell<u8>]> {
    BLOCKS.with_borrow(|blocks| blocks.from(at))
}

/// How many blocks are taken and not freed.
pub(crate) fn blocks_in_use() -> usize {
    BLOCKS.with_borrow(|blocks| blocks.taken - blocks.freed)
}

fn is_text(at: usize) -> bool {
    (TEXT..TEXT + CODE.len()).contains(&at)
}

// SAFETY: what is owed is kept at each function.
unsafe impl Host for ModelHost {
    type Arch = Toy;
    type Memory = ModelMemory;
    const SAVE_SET: SaveSet = SaveSet::General;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let at = at.as_usize();
        if is_text(at) {
            let len = out.len().min(TEXT + CODE.len() - at);
            for (offset, byte) in out[..len].iter_mut().enumerate() {
                *byte = self.text[at - TEXT + offset].load(Acquire);
            }
            return len;
        }
        let cells = block_from(at).unwrap_or_default();
        out.iter_mut().zip(cells).for_each(|(byte, cell)| *byte = cell.get());
        out.len().min(cells.len())
    }
    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        let from = at.as_usize();
        if is_text(from) {
            for (offset, byte) in bytes.iter().enumerate() {
                self.text[from - TEXT + offset].store(*byte, Release);
            }
        } else if let Some(cells) = block_from(from) {
            bytes.iter().zip(cells).for_each(|(byte, cell)| cell.set(*byte));
        } else {
            return Err(TextError::Unmapped(at));
        }
        Ok(())
    }
    fn sync_cores(&self) {
        // The other half of the barrier is a fence here, too.
        fence(SeqCst);
    }
    fn alloc_exec(&self, len_bytes: usize, _near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        assert_eq!(len_bytes, CHUNK);
        Some(BLOCKS.with_borrow_mut(Blocks::take))
    }
    unsafe fn free_exec(&self, at: CodeAddr, _: usize) {
        // No instruction: who still runs here is found out.
        block_from(at.as_usize()).expect("a block").iter().for_each(|cell| cell.set(0xff));
        BLOCKS.with_borrow_mut(|blocks| blocks.freed += 1);
    }
    fn context(&self) -> Option<&Context<Toy>> {
        self.contexts.get(CPU.with(Cell::get))
    }
    fn task(&self) -> Option<&Task<Toy>> {
        Some(&self.tasks[TASK.with(Cell::get)])
    }
    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Toy>)) {
        self.contexts.iter().for_each(visit);
    }
    fn parallelism(&self) -> usize {
        CPUS
    }
    fn memory(&self) -> &ModelMemory {
        &self.memory
    }
    fn find_symbols(&self, name: &str, found: &mut dyn FnMut(&Symbol<'_>)) {
        if name == "f" {
            found(&FUNCTION);
        }
    }
    fn symbol_at(&self, at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>)) {
        if is_text(at.as_usize()) {
            found(&FUNCTION);
        }
    }
    fn probeable(&self, at: CodeAddr) -> Probeable {
        if is_text(at.as_usize()) { Probeable::Yes } else { Probeable::NotText }
    }
    fn for_each_blacklisted(&self, _: &mut dyn FnMut(&Blacklisted<'_>)) {}
    fn watchpoints(&self) -> Result<&dyn Watchpoints, Refusal> {
        Ok(self)
    }
    fn relax(&self) {
        loom::thread::yield_now();
    }
    fn stop(&self, regs: &ToyRegs) -> ! {
        panic!("stopped: {regs:x?}")
    }
}

const FUNCTION: Symbol<'static> =
    Symbol { name: "f", start: CodeAddr::new(TEXT), len_bytes: CODE.len(), module: None, local_entry: 0 };

pub(crate) type Machine = Probes<ModelHost>;

/// A machine that lives as long as the model's closure needs it, and is not freed: the core's statics never
/// are.
pub(crate) fn machine() -> &'static Machine {
    BLOCKS.with_borrow_mut(|blocks| (blocks.taken, blocks.freed) = (0, 0));
    let host = ModelHost {
        text: CODE.map(AtomicU8::new),
        memory: ModelMemory(RefCell::new([0; CPUS * STACK_LEN])),
        contexts: [const { Context::new() }; CPUS],
        tasks: core::array::from_fn(|task| {
            let stack = STACKS + task * STACK_LEN;
            Task::on_stack(stack..stack + STACK_LEN)
        }),
    };
    Box::leak(Box::new(Probes::new(host)))
}

/// Code for which there is no room for a context.
pub(crate) const NOWHERE: usize = CPUS;

/// Makes this thread that processor, with a task of its own.
pub(crate) fn be(cpu: usize) {
    be_with(cpu, cpu);
}

/// Makes this thread that processor, which runs that task.
pub(crate) fn be_with(cpu: usize, task: usize) {
    CPU.with(|cell| cell.set(cpu));
    TASK.with(|cell| cell.set(task));
}

/// Runs the function once, on this thread's processor, in its task; what it returns.
pub(crate) fn call(machine: &'static Machine) -> usize {
    finish(machine, enter(machine))
}

/// Calls the function and runs its first instruction.
pub(crate) fn enter(machine: &'static Machine) -> ToyRegs {
    let sp = STACKS + (TASK.with(Cell::get) + 1) * STACK_LEN - 64;
    let mut regs = ToyRegs { pc: TEXT, sp, ..ToyRegs::default() };
    machine.host().memory.write_usize(sp, HOME).expect("a stack");
    step(machine, &mut regs);
    regs
}

/// Where the call returns to that runs in its first instruction.
pub(crate) fn return_address(machine: &'static Machine, regs: &ToyRegs) -> CodeAddr {
    CodeAddr::new(machine.host().memory.read_usize(regs.sp).expect("a stack"))
}

/// Runs it to its end, in the same task; what it returns.
pub(crate) fn finish(machine: &'static Machine, mut regs: ToyRegs) -> usize {
    while regs.pc != HOME {
        step(machine, &mut regs);
    }
    regs.r[0]
}

fn step(machine: &'static Machine, regs: &mut ToyRegs) {
    let mut insn = [0; 9];
    let at = regs.pc;
    let read = machine.host().read_text(CodeAddr::new(regs.pc), &mut insn[..1]);
    let len = match insn[0] {
        SLOT_JUMP | DETOUR_CALL | ENTRY_CALL => 9,
        opcode => len_of(opcode).unwrap_or(1),
    };
    assert_eq!(read, 1, "nothing lies at {:#x}", regs.pc);
    // What stands behind a breakpoint is another instruction's.
    if is_text(at) {
        // The whole instruction is fetched at once, and its first byte says that it still stands there.
        insn[1..].iter_mut().zip(&CODE[at - TEXT + 1..]).for_each(|(byte, code)| *byte = *code);
    } else if insn[0] != BREAK && len > 1 {
        machine.host().read_text(CodeAddr::new(regs.pc + 1), &mut insn[1..len]);
    }
    match insn[0] {
        BREAK => {
            regs.pc += 1;
            let trap = machine.traps().breakpoint(regs);
            assert!(matches!(trap, Trap::Handled), "nobody's breakpoint at {at:#x}: {trap:?}");
        }
        SLOT_JUMP => {
            regs.pc = u64::from_le_bytes(insn[1..].try_into().expect("eight bytes")) as usize;
        }
        STUB => return_from_stub(machine, regs),
        jump @ DETOUR_JUMP..=LAST_DETOUR_JUMP => regs.pc = detour_of(at, jump).expect("a detour"),
        DETOUR_CALL | ENTRY_CALL => {
            let word = u64::from_le_bytes(insn[1..].try_into().expect("eight bytes")) as usize;
            call_from_detour(word, insn[0] == ENTRY_CALL, regs);
        }
        NOP => regs.pc += 1,
        ADD => {
            regs.r[usize::from(insn[1])] += usize::from(insn[2]);
            regs.pc += 3;
        }
        RETURN => {
            let plan = ToyPlan { insn: [RETURN, 0, 0, 0, 0] };
            Toy::simulate(&plan, CodeAddr::new(regs.pc), regs, &machine.host().memory).expect("a stack");
        }
        other => panic!("{other:#x} at {:#x} is no instruction", regs.pc),
    }
}

/// Jumps of one model at a time: where they lead is one table's to say.
pub(crate) fn with_jumps() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    DETOURS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    alone
}

/// What the trampoline does that a detour calls: at its beginning, or behind its first copy.
fn call_from_detour(word: usize, follows: bool, regs: &mut ToyRegs) {
    let [jumped, _, _, followed, copied] = Machine::detour_handlers();
    let at = regs.pc;
    let is_first = |(_, entry): &&(usize, usize)| *entry == at;
    let place = DETOURS.lock().expect("a table").iter().find(is_first).map(|(place, _)| *place);
    // As real ones, it does not look at what the detour says: either of the first handlers does what is to be
    // done.
    let handler = match place {
        Some(_) if follows => followed,
        Some(_) => jumped,
        None => copied,
    };
    regs.pc = place.unwrap_or(TEXT);
    let resume = handler(word, std::ptr::from_mut(regs));
    assert!(resume != Resume::Redirected && resume != Resume::Moved, "{resume:?}: no model asks for that");
    regs.pc = at + 9;
}

/// A reference to what register 0 watches, as this thread's processor sees it.
pub(crate) fn touch_watched(machine: &'static Machine) {
    machine.traps().watchpoint(&mut ToyRegs { pc: TEXT, ..ToyRegs::default() }, 0);
}

// SAFETY: a trap may still be under way: whoever disarms a register has it wait for nobody.
unsafe impl Watchpoints for ModelHost {
    fn count(&self) -> usize {
        1
    }
    fn check(&self, _: &WatchRange) -> Result<(), Refusal> {
        Ok(())
    }
    fn arm(&self, _: usize, _: &WatchRange) -> Result<(), Refusal> {
        Ok(())
    }
    fn disarm(&self, _: usize) {}
}

/// What the trampoline does.
fn return_from_stub(machine: &'static Machine, regs: &mut ToyRegs) {
    let stub = regs.pc;
    let mut word = [0; 8];
    machine.host().read_text(CodeAddr::new((stub & !(CHUNK - 1)) + 1), &mut word);
    let handler = std::ptr::with_exposed_provenance::<()>(usize::from_ne_bytes(word));
    // SAFETY: the word is the handler that `fill_stubs` was given, which has this type.
    let handler: extern "C" fn(usize, *mut ToyRegs) = unsafe { std::mem::transmute(handler) };
    handler(stub, std::ptr::from_mut(regs));
}
