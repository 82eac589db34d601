// A toy instruction set, a toy processor and a toy host, for tests and for the example in the crate's
// documentation, which includes this file. Code lies in real memory at real addresses, one byte per cell, and is
// executed by `Cpu::run`: text, slots and return stubs alike.
//
// ENTRY, written 0xe1 and without effect, is what ENDBR is on x86: probes on a function's entry go behind it.

use probe_core::arch::{
    Access, Arch, Decoded, Entry, MemFault, Memory, Method, NativeArch, Regs, SaveSet, Site, Tail, TailPatch,
    Text,
};
use probe_core::host::{Blacklisted, Host, Notice, Probeable, Symbol};
use probe_core::{CodeAddr, Context, FaultVerdict, Probes, Refusal, Task, TextError, Trap};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};

// ---- the instruction set ------------------------------------------------------------------------------------------

pub const NOP: u8 = 0x10;
/// r[a] += b
pub const ADD: u8 = 0x11;
/// r[a] = the two bytes
pub const SET: u8 = 0x12;
/// To the arena's offset in the four bytes.
pub const JUMP: u8 = 0x13;
/// As JUMP, with the return address pushed.
pub const CALL: u8 = 0x14;
pub const RETURN: u8 = 0x15;
/// r[a] = the next instruction's address + b; stepped, and corrected after the step.
pub const ADDRESS: u8 = 0x16;
/// r[a] = memory at r[b]
pub const LOAD: u8 = 0x17;
/// memory at r[a] = r[b]
pub const STORE: u8 = 0x18;
/// A system call: r7 = the next instruction's address, and what the world's hook does.
pub const SYSTEM: u8 = 0x19;
/// Pushes r[a]; simulated.
pub const PUSH: u8 = 0x1a;
/// r[a] += 1; its slot borrows r6 for it.
pub const BORROW: u8 = 0x1b;
/// Jumps b bytes on if r[a] is not zero; simulated.
pub const BRANCH: u8 = 0x1c;
/// Cannot be probed.
pub const FORBIDDEN: u8 = 0x1d;
/// A system call that may be boosted, for the core to tell them from steps: as NOP.
pub const HALT: u8 = 0x1e;
/// r[a] -= 1
pub const SUB: u8 = 0x1f;
pub const ENTRY: u8 = 0xe1;
pub const BREAK: u8 = 0xcc;
pub const FOREIGN_BREAK: u8 = 0xcd;
/// In slots: jump to the address in the next eight bytes.
const SLOT_JUMP: u8 = 0xf0;
/// In return stubs.
const STUB: u8 = 0xf1;

pub const CHUNK: usize = 1 << 16;
const SLOT: usize = 32;
const OWN: usize = size_of::<usize>();

pub fn len_of(opcode: u8) -> Option<usize> {
    Some(match opcode {
        NOP | RETURN | FORBIDDEN | HALT | ENTRY | BREAK | FOREIGN_BREAK => 1,
        SYSTEM | PUSH | BORROW => 2,
        ADD | SUB | ADDRESS | LOAD | STORE | BRANCH => 3,
        SET => 4,
        JUMP | CALL => 5,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ToyRegs {
    pub pc: usize,
    pub sp: usize,
    pub r: [usize; 8],
    /// Whether interruptions are kept away.
    pub is_masked: bool,
}

impl Regs for ToyRegs {
    fn pc(&self) -> CodeAddr {
        CodeAddr::new(self.pc)
    }
    fn set_pc(&mut self, pc: CodeAddr) {
        self.pc = pc.as_usize();
    }
    fn sp(&self) -> usize {
        self.sp
    }
    fn names() -> &'static [(&'static str, usize)] {
        &[("r0", 0), ("r1", 1), ("r2", 2), ("r3", 3), ("r4", 4), ("r5", 5), ("r6", 6), ("r7", 7)]
    }
    fn register(&self, index: usize) -> Option<usize> {
        self.r.get(index).copied()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToyPlan {
    insn: [u8; 5],
}

#[derive(Clone, Copy, Default)]
pub struct Borrowed(Option<usize>);

#[derive(Debug)]
pub enum Toy {}

static JPROBE_RETURN: AtomicU8 = AtomicU8::new(BREAK);

fn word<M: Memory>(memory: &M, at: usize) -> Result<usize, MemFault> {
    memory.read_usize(at)
}

// SAFETY: slots hold the original instruction, or one with the same effect after `after_step`, and end as `tail` says.
unsafe impl Arch for Toy {
    type Regs = ToyRegs;
    type Plan = ToyPlan;
    type StepState = Borrowed;

    const NAME: &'static str = "toy";
    const BREAKPOINT: &'static [u8] = &[BREAK];
    const INSN_ALIGN: usize = 1;
    const MAX_INSN_LEN: usize = 5;
    const SLOT_LEN: usize = SLOT;
    const SLOT_REACH: usize = usize::MAX;
    const STUB_LEN: usize = 16;

    fn insn_len(bytes: &[u8]) -> Option<usize> {
        len_of(*bytes.first()?).filter(|len| *len <= bytes.len())
    }
    fn is_breakpoint(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(&(BREAK | FOREIGN_BREAK)))
    }
    fn decode(site: &Site<'_>) -> Result<Decoded<ToyPlan>, Refusal> {
        let mut insn = [0; 5];
        let read = site.text.read(site.at, &mut insn);
        let refused = Refusal::not_an_instruction("toy.unknown", "no such instruction");
        let len = Self::insn_len(&insn[..read]).ok_or(refused)?;
        insn[len..].fill(0);
        let method = match insn[0] {
            FORBIDDEN => return Err(Refusal::unsupported("toy.forbidden", "this instruction is forbidden")),
            NOP | ADD | SUB | SET | LOAD | STORE | HALT => Method::Boost,
            ADDRESS | SYSTEM | BORROW => Method::Step,
            _ => Method::Simulate,
        };
        Ok(Decoded { plan: ToyPlan { insn }, len_bytes: len as u8, method })
    }
    fn entry_offset(text: &dyn Text, function: CodeAddr, _local_entry: u8) -> usize {
        let mut first = [0];
        usize::from(text.read(function, &mut first) == 1 && first[0] == ENTRY)
    }
    fn is_system_call(plan: &ToyPlan) -> bool {
        plan.insn[0] == SYSTEM
    }
    fn keeps_state(plan: &ToyPlan) -> bool {
        plan.insn[0] == BORROW
    }
    fn breakpoint_address(regs: &ToyRegs) -> CodeAddr {
        CodeAddr::new(regs.pc - 1)
    }
    fn simulate<M: Memory>(
        plan: &ToyPlan,
        place: CodeAddr,
        regs: &mut ToyRegs,
        memory: &M,
    ) -> Result<(), MemFault> {
        let insn = plan.insn;
        let next = place.as_usize() + len_of(insn[0]).unwrap();
        let absolute =
            || arena_of(place.as_usize()) + u32::from_le_bytes(insn[1..5].try_into().unwrap()) as usize;
        match insn[0] {
            JUMP => regs.pc = absolute(),
            CALL => {
                memory.write_usize(regs.sp - 8, next)?;
                regs.sp -= 8;
                regs.pc = absolute();
            }
            RETURN => {
                regs.pc = word(memory, regs.sp)?;
                regs.sp += 8;
            }
            PUSH => {
                memory.write_usize(regs.sp - 8, regs.r[usize::from(insn[1])])?;
                regs.sp -= 8;
                regs.pc = next;
            }
            BRANCH if regs.r[usize::from(insn[1])] != 0 => regs.pc = next + usize::from(insn[2]),
            _ => regs.pc = next,
        }
        Ok(())
    }
    fn fill_slot(
        plan: &ToyPlan,
        insn: &[u8],
        place: CodeAddr,
        _slot: CodeAddr,
        tail: Tail,
        out: &mut [u8],
    ) -> Result<(), Refusal> {
        assert_eq!(out.len(), SLOT - OWN);
        out.fill(BREAK);
        if plan.insn[0] == BORROW {
            out[..3].copy_from_slice(&[ADD, 6, 1]);
            return Ok(());
        }
        out[..insn.len()].copy_from_slice(insn);
        out[insn.len()] = if tail == Tail::Jump { SLOT_JUMP } else { BREAK };
        let back = place.as_usize() + insn.len();
        out[insn.len() + 1..insn.len() + 9].copy_from_slice(&(back as u64).to_le_bytes());
        Ok(())
    }
    fn tail(_: &ToyPlan, len: usize, _: CodeAddr, _: CodeAddr, tail: Tail) -> Option<TailPatch> {
        let byte = if tail == Tail::Jump { SLOT_JUMP } else { BREAK };
        Some(TailPatch { offset: len as u8, len_bytes: 1, bytes: [byte, 0, 0, 0] })
    }
    fn before_step(plan: &ToyPlan, _: CodeAddr, slot: CodeAddr, regs: &mut ToyRegs) -> Borrowed {
        regs.pc = slot.as_usize();
        if plan.insn[0] != BORROW {
            return Borrowed(None);
        }
        let kept = regs.r[6];
        regs.r[6] = regs.r[usize::from(plan.insn[1])];
        Borrowed(Some(kept))
    }
    fn after_step(
        plan: &ToyPlan,
        len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut ToyRegs,
        state: &Borrowed,
    ) {
        let moved = slot.as_usize().wrapping_sub(place.as_usize());
        match (plan.insn[0], state.0) {
            (ADDRESS, _) => {
                let register = &mut regs.r[usize::from(plan.insn[1])];
                *register = register.wrapping_sub(moved);
            }
            (SYSTEM, _) => regs.r[7] = regs.r[7].wrapping_sub(moved),
            (BORROW, Some(kept)) => {
                let value = std::mem::replace(&mut regs.r[6], kept);
                regs.r[usize::from(plan.insn[1])] = value;
            }
            _ => {}
        }
        regs.pc = place.as_usize() + len;
    }
    fn abort_step(_: &ToyPlan, place: CodeAddr, regs: &mut ToyRegs, state: &Borrowed) {
        if let Some(kept) = state.0 {
            regs.r[6] = kept;
        }
        regs.pc = place.as_usize();
    }
    fn argument<M: Memory>(regs: &ToyRegs, index: usize, memory: &M) -> Option<usize> {
        match index {
            0..3 => Some(regs.r[index]),
            _ => word(memory, regs.sp + 8 * (index - 2)).ok(),
        }
    }
    fn return_value(regs: &ToyRegs) -> usize {
        regs.r[0]
    }
    fn set_return_value(regs: &mut ToyRegs, value: usize) {
        regs.r[0] = value;
    }
    fn entry<M: Memory>(regs: &ToyRegs, memory: &M) -> Result<Entry, MemFault> {
        Ok(Entry { return_address: CodeAddr::new(word(memory, regs.sp)?), frame: regs.sp })
    }
    fn set_return_address<M: Memory>(regs: &mut ToyRegs, to: CodeAddr, memory: &M) -> Result<(), MemFault> {
        memory.write_usize(regs.sp, to.as_usize())
    }
    fn may_return<M: Memory>(frame: usize, stub: CodeAddr, _sp: usize, memory: &M) -> bool {
        word(memory, frame).is_ok_and(|found| found == stub.as_usize())
    }
    fn fill_stubs(chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
        assert_eq!(out.len(), CHUNK - OWN);
        assert_eq!(chunk.as_usize() % CHUNK, 0);
        assert_eq!(trampoline, Self::return_trampoline(SaveSet::General));
        for stub in out.chunks_mut(Self::STUB_LEN) {
            stub[0] = STUB;
        }
        out[1..9].copy_from_slice(&handler.to_ne_bytes());
        out.len() / Self::STUB_LEN
    }
    fn enter_jprobe<M: Memory>(
        regs: &mut ToyRegs,
        handler: usize,
        return_to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault> {
        // The caller's argument area: copied, so that the handler has its own.
        let sp = regs.sp - 64;
        for offset in (8..40).step_by(8) {
            memory.write_usize(sp + offset, word(memory, regs.sp + offset)?)?;
        }
        memory.write_usize(sp, return_to.as_usize())?;
        regs.sp = sp;
        regs.pc = handler;
        Ok(())
    }
}

// SAFETY: `Cpu::run` is the trampoline, and the breakpoint stands where it is said to.
unsafe impl NativeArch for Toy {
    fn return_trampoline(_: SaveSet) -> CodeAddr {
        CodeAddr::new(0x7_0000)
    }
    fn jprobe_return_trap() -> CodeAddr {
        CodeAddr::new((&raw const JPROBE_RETURN).expose_provenance())
    }
    unsafe fn publish(_: CodeAddr, _: usize) {}
}

// ---- the machine ----------------------------------------------------------------------------------------------------

/// One block of memory: text at its start, data and stacks after it.
pub const ARENA: usize = 1 << 20;
/// Where data begins.
pub const DATA: usize = 1 << 19;

fn arena_of(at: usize) -> usize {
    at & !(ARENA - 1)
}

fn block(len: usize) -> usize {
    let layout = std::alloc::Layout::from_size_align(len, len).unwrap();
    // Past any allocator that tests count with.
    // SAFETY: the layout has a size.
    let memory = unsafe { std::alloc::GlobalAlloc::alloc_zeroed(&std::alloc::System, layout) };
    assert!(!memory.is_null());
    memory.expose_provenance()
}

fn cell<'a>(at: usize) -> &'a AtomicU8 {
    // SAFETY: the callers have checked that `at` lies in a block of this module's, which are never freed.
    unsafe { &*std::ptr::with_exposed_provenance::<AtomicU8>(at) }
}

pub struct ToyMemory {
    arena: usize,
}

impl ToyMemory {
    fn check(&self, addr: usize, len: usize, access: Access) -> Result<(), MemFault> {
        let start = if access == Access::Read { self.arena } else { self.arena + DATA };
        let is_inside = addr >= start && addr.saturating_add(len) <= self.arena + ARENA;
        if is_inside { Ok(()) } else { Err(MemFault { addr, access }) }
    }
}

// SAFETY: only the arena is accessed.
unsafe impl Memory for ToyMemory {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        self.check(addr, out.len(), Access::Read)?;
        for (offset, byte) in out.iter_mut().enumerate() {
            *byte = cell(addr + offset).load(SeqCst);
        }
        Ok(())
    }
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        self.check(addr, bytes.len(), Access::Write)?;
        for (offset, byte) in bytes.iter().enumerate() {
            cell(addr + offset).store(*byte, SeqCst);
        }
        Ok(())
    }
}

#[derive(Clone)]
pub struct ToySymbol {
    pub name: String,
    pub start: usize,
    pub len: usize,
    pub module: Option<String>,
}

pub type SystemHook = fn(&'static World, &mut ToyRegs);

/// When text is looked at or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    BeforeRead,
    AfterRead,
    BeforeWrite,
    AfterWrite,
}

/// What happens at such a moment; nothing happens while it runs.
pub type TextHook = Box<dyn FnMut(Moment) + Send>;

/// The toy host: a program with one arena.
pub struct ToyHost {
    pub memory: ToyMemory,
    pub symbols: Mutex<Vec<ToySymbol>>,
    contexts: Mutex<Vec<&'static Context<Toy>>>,
    pub blacklist: Mutex<Vec<(usize, usize, String)>>,
    next_text: AtomicUsize,
    next_stack: AtomicUsize,
    /// Writes of text and slots so far.
    pub writes: AtomicUsize,
    pub syncs: AtomicUsize,
    /// The number of the write that fails, counted down; 0: none does.
    pub failing_write: AtomicUsize,
    /// Every write from the failing one on fails.
    pub fails_for_good: AtomicBool,
    /// How many more chunks of executable memory there are.
    pub chunks_left: AtomicUsize,
    /// Chunks that are allocated now.
    pub live_chunks: AtomicIsize,
    pub pins: AtomicIsize,
    pub notices: Mutex<Vec<Notice>>,
    /// The contexts that were stopped for good.
    pub stopped: (Mutex<Vec<ToyRegs>>, Condvar),
    /// Whether `context` finds room.
    pub has_contexts: AtomicBool,
    /// What SYSTEM does.
    pub system_hook: Mutex<Option<SystemHook>>,
    pub text_hook: Mutex<Option<TextHook>>,
}

type Mine = (usize, &'static Context<Toy>, &'static Task<Toy>);

thread_local! {
    /// This thread's context and task in each world.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

impl ToyHost {
    fn mine(&self) -> (&'static Context<Toy>, &'static Task<Toy>) {
        let id = self.memory.arena;
        MINE.with_borrow_mut(|mine| {
            if let Some((_, context, task)) = mine.iter().find(|(world, ..)| *world == id) {
                return (*context, *task);
            }
            let context: &'static Context<Toy> = Box::leak(Box::new(Context::new()));
            let task: &'static Task<Toy> = Box::leak(Box::new(Task::new()));
            self.contexts.lock().unwrap().push(context);
            mine.push((id, context, task));
            (context, task)
        })
    }

    /// Makes this thread's next calls run as another task on another context; the old ones are given back.
    pub fn swap_task(&self, to: Option<(&'static Context<Toy>, &'static Task<Toy>)>) {
        let id = self.memory.arena;
        MINE.with_borrow_mut(|mine| mine.retain(|(world, ..)| *world != id));
        if let Some((context, task)) = to {
            MINE.with_borrow_mut(|mine| mine.push((id, context, task)));
        }
    }

    pub fn current(&self) -> (&'static Context<Toy>, &'static Task<Toy>) {
        self.mine()
    }

    /// Does something to text, between the hook's two moments.
    fn touch_text<R>(&self, moments: [Moment; 2], touch: impl FnOnce() -> R) -> R {
        let mut hook = self.text_hook.lock().unwrap().take();
        if let Some(hook) = &mut hook {
            hook(moments[0]);
        }
        let result = touch();
        if let Some(mut hook) = hook {
            hook(moments[1]);
            *self.text_hook.lock().unwrap() = Some(hook);
        }
        result
    }
}

// SAFETY: the arena and the chunks stay mapped; what else is owed is kept at each function.
unsafe impl Host for ToyHost {
    type Arch = Toy;
    type Memory = ToyMemory;
    const SAVE_SET: SaveSet = SaveSet::General;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let at = at.as_usize();
        if (at >= self.memory.arena && at < self.memory.arena + ARENA) || is_chunk(at) {
            return self.touch_text([Moment::BeforeRead, Moment::AfterRead], || {
                for (offset, byte) in out.iter_mut().enumerate() {
                    *byte = cell(at + offset).load(SeqCst);
                }
                out.len()
            });
        }
        0
    }
    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        self.writes.fetch_add(1, SeqCst);
        match self.failing_write.load(SeqCst) {
            0 => {}
            1 => {
                if !self.fails_for_good.load(SeqCst) {
                    self.failing_write.store(0, SeqCst);
                }
                return Err(TextError::Denied(at, 13));
            }
            more => self.failing_write.store(more - 1, SeqCst),
        }
        self.touch_text([Moment::BeforeWrite, Moment::AfterWrite], || {
            // The last byte first: what decides comes when the rest is there.
            for (offset, byte) in bytes.iter().enumerate().rev() {
                cell(at.as_usize() + offset).store(*byte, SeqCst);
            }
        });
        Ok(())
    }
    fn sync_cores(&self) {
        self.syncs.fetch_add(1, SeqCst);
        membarrier();
    }
    fn alloc_exec(&self, len_bytes: usize, _near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        assert_eq!(len_bytes, CHUNK);
        self.chunks_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).ok()?;
        self.live_chunks.fetch_add(1, SeqCst);
        let is_free = |chunk: &Chunk| !chunk.is_used.swap(true, SeqCst);
        let index = CHUNKS.iter().position(is_free).expect("more chunks than tests need");
        let chunk = &CHUNKS[index];
        if chunk.base.load(SeqCst) == 0 {
            chunk.base.store(block(CHUNK), SeqCst);
            CHUNKS_MADE.fetch_max(index + 1, SeqCst);
        }
        Some(CodeAddr::new(chunk.base.load(SeqCst)))
    }
    unsafe fn free_exec(&self, at: CodeAddr, len_bytes: usize) {
        assert_eq!(len_bytes, CHUNK);
        self.chunks_left.fetch_add(1, SeqCst);
        self.live_chunks.fetch_sub(1, SeqCst);
        for offset in 0..CHUNK {
            // No instruction: who still runs here is found out.
            cell(at.as_usize() + offset).store(0xff, SeqCst);
        }
        let chunk = CHUNKS.iter().find(|chunk| chunk.base.load(SeqCst) == at.as_usize()).unwrap();
        assert!(chunk.is_used.swap(false, SeqCst), "freed twice");
    }
    fn context(&self) -> Option<&Context<Toy>> {
        self.has_contexts.load(SeqCst).then(|| self.mine().0)
    }
    fn task(&self) -> Option<&Task<Toy>> {
        Some(self.mine().1)
    }
    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Toy>)) {
        self.contexts.lock().unwrap().iter().for_each(|context| visit(context));
    }
    fn parallelism(&self) -> usize {
        7
    }
    fn memory(&self) -> &ToyMemory {
        &self.memory
    }
    fn enter_slot(&self, regs: &mut ToyRegs) -> u64 {
        u64::from(std::mem::replace(&mut regs.is_masked, true))
    }
    fn leave_slot(&self, regs: &mut ToyRegs, kept: u64) {
        regs.is_masked = kept != 0;
    }
    fn pin(&self) {
        self.pins.fetch_add(1, SeqCst);
    }
    fn unpin(&self) {
        self.pins.fetch_sub(1, SeqCst);
    }
    fn find_symbols(&self, name: &str, found: &mut dyn FnMut(&Symbol<'_>)) {
        for symbol in self.symbols.lock().unwrap().iter().filter(|symbol| symbol.name == name) {
            found(&as_symbol(symbol));
        }
    }
    fn symbol_at(&self, at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>)) {
        let at = at.as_usize();
        let symbols = self.symbols.lock().unwrap();
        if let Some(symbol) =
            symbols.iter().find(|symbol| at >= symbol.start && at < symbol.start + symbol.len)
        {
            found(&as_symbol(symbol));
        }
    }
    fn probeable(&self, at: CodeAddr) -> Probeable {
        let at = at.as_usize();
        if at < self.memory.arena || at >= self.memory.arena + DATA {
            return Probeable::NotText;
        }
        let blacklist = self.blacklist.lock().unwrap();
        match blacklist.iter().any(|(start, end, _)| at >= *start && at < *end) {
            true => Probeable::Blacklisted,
            false => Probeable::Yes,
        }
    }
    fn for_each_blacklisted(&self, visit: &mut dyn FnMut(&Blacklisted<'_>)) {
        for (start, end, name) in self.blacklist.lock().unwrap().iter() {
            visit(&Blacklisted { start: CodeAddr::new(*start), end: CodeAddr::new(*end), name });
        }
    }
    fn relax(&self) {
        std::thread::yield_now();
    }
    fn notice(&self, notice: Notice) {
        self.notices.lock().unwrap().push(notice);
    }
    fn stop(&self, regs: &ToyRegs) -> ! {
        eprintln!("stopped: {regs:x?}");
        self.stopped.0.lock().unwrap().push(*regs);
        self.stopped.1.notify_all();
        loop {
            std::thread::park();
        }
    }
}

fn as_symbol(symbol: &ToySymbol) -> Symbol<'_> {
    Symbol {
        name: &symbol.name,
        start: CodeAddr::new(symbol.start),
        len_bytes: symbol.len,
        module: symbol.module.as_deref(),
        local_entry: 0,
    }
}

/// Executable memory of all worlds: reused, never unmapped.
static CHUNKS: [Chunk; 4096] =
    [const { Chunk { base: AtomicUsize::new(0), is_used: AtomicBool::new(false) } }; 4096];

/// How many of them have ever been used.
static CHUNKS_MADE: AtomicUsize = AtomicUsize::new(0);

struct Chunk {
    base: AtomicUsize,
    is_used: AtomicBool,
}

fn is_chunk(at: usize) -> bool {
    let chunks = CHUNKS.iter().take(CHUNKS_MADE.load(SeqCst));
    chunks.map(|chunk| chunk.base.load(SeqCst)).any(|base| base != 0 && at >= base && at < base + CHUNK)
}

/// A full barrier on every thread of the process.
#[cfg(all(target_os = "linux", not(miri)))]
fn membarrier() {
    use std::sync::Once;
    static REGISTER: Once = Once::new();
    const PRIVATE_EXPEDITED: i32 = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    let call = |command: i32| {
        // SAFETY: the call takes no memory.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        assert_eq!(result, 0);
    };
    REGISTER.call_once(|| call(REGISTER_PRIVATE_EXPEDITED));
    call(PRIVATE_EXPEDITED);
}

/// Under Miri the light half of the barrier is a fence, so that this is one, too.
#[cfg(any(not(target_os = "linux"), miri))]
fn membarrier() {
    std::sync::atomic::fence(SeqCst);
}

// ---- the world: a host, its probes, and a processor to run its code ---------------------------------------------------

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
            memory: ToyMemory { arena },
            symbols: Mutex::default(),
            contexts: Mutex::default(),
            blacklist: Mutex::default(),
            next_text: AtomicUsize::new(arena + 64),
            next_stack: AtomicUsize::new(arena + ARENA),
            writes: AtomicUsize::new(0),
            syncs: AtomicUsize::new(0),
            failing_write: AtomicUsize::new(0),
            fails_for_good: AtomicBool::new(false),
            chunks_left: AtomicUsize::new(1000),
            live_chunks: AtomicIsize::new(0),
            pins: AtomicIsize::new(0),
            notices: Mutex::default(),
            stopped: Default::default(),
            has_contexts: AtomicBool::new(true),
            system_hook: Mutex::default(),
            text_hook: Mutex::default(),
        };
        Box::leak(Box::new(Self { probes: Probes::new(host) }))
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

impl Drop for Cpu {
    fn drop(&mut self) {
        let (arena, top) = (self.world.arena(), self.top);
        let _ = STACKS.try_with(|stacks| stacks.borrow_mut().push((arena, top)));
    }
}

/// What one instruction did to the run.
type Stepped = Result<(), End>;

impl Cpu {
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

    fn fetch(&self, offset: usize) -> u8 {
        cell(self.regs.pc + offset).load(SeqCst)
    }

    fn is_code(&self, at: usize) -> bool {
        let arena = self.world.arena();
        (at >= arena && at < arena + DATA) || is_chunk(at) || at == Toy::jprobe_return_trap().as_usize()
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
        let opcode = self.fetch(0);
        match opcode {
            BREAK => return self.trap(),
            FOREIGN_BREAK => return Err(End::Trapped(pc)),
            SLOT_JUMP => {
                let target: [u8; 8] = std::array::from_fn(|offset| self.fetch(1 + offset));
                self.regs.pc = u64::from_le_bytes(target) as usize;
                return Ok(());
            }
            STUB => {
                self.return_from_stub(pc);
                return Ok(());
            }
            _ => {}
        }
        self.execute(pc, opcode)
    }

    fn execute(&mut self, pc: usize, opcode: u8) -> Stepped {
        let Some(len) = len_of(opcode) else { return Err(End::Undefined(pc)) };
        let (a, b) = (usize::from(self.fetch(1)), usize::from(self.fetch(2)));
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
                regs.r[a] = usize::from(u16::from_le_bytes([self.fetch(2), self.fetch(3)]));
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
                let mut insn = [0; 5];
                for (offset, byte) in insn[..len].iter_mut().enumerate() {
                    *byte = self.fetch(offset);
                }
                insn[0] = opcode;
                Toy::simulate(&ToyPlan { insn }, CodeAddr::new(pc), &mut regs, memory)
            }
            HALT => return Err(End::Halted),
            _ => Ok(()),
        };
        match done {
            Ok(()) => {
                self.regs = regs;
                Ok(())
            }
            Err(fault) => self.fault(fault),
        }
    }

    /// The breakpoint trap: what a kernel's trap code does.
    fn trap(&mut self) -> Stepped {
        let pc = self.regs.pc;
        self.regs.pc += 1;
        match self.world.probes.breakpoint(&mut self.regs) {
            Trap::Handled => Ok(()),
            Trap::NotOurs => {
                self.regs.pc = pc;
                Err(End::Trapped(pc))
            }
            Trap::Fault(fault) => self.fault(fault),
        }
    }

    fn fault(&mut self, fault: MemFault) -> Stepped {
        match self.world.probes.fault(&mut self.regs, 14) {
            FaultVerdict::Handled => Ok(()),
            FaultVerdict::NotOurs | FaultVerdict::Restored => Err(End::Faulted(fault)),
        }
    }

    fn return_from_stub(&mut self, stub: usize) {
        let base = stub & !(CHUNK - 1);
        let word = std::array::from_fn(|offset| cell(base + 1 + offset).load(SeqCst));
        let handler = usize::from_ne_bytes(word);
        let handler = std::ptr::with_exposed_provenance::<()>(handler);
        // SAFETY: the word is the handler that `fill_stubs` was given, which has this type.
        let handler: extern "C" fn(*mut ToyRegs, usize) = unsafe { std::mem::transmute(handler) };
        handler(&raw mut self.regs, stub);
    }
}
