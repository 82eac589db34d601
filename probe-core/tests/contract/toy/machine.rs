// The toy machine, as a host: memory at real addresses, symbols, text that is written through hooks. Included
// by the documentation's example, too.

use super::backend::*;
use super::instructions::*;
use super::world::World;
use probe_core::arch::{Access, MemFault, Memory, SaveSet};
use probe_core::error::{Refusal, TextError};
use probe_core::host::{
    Arrival, Blacklisted, Context, Host, Notice, Probeable, Symbol, Task, Waiting, Watchpoints,
};
use probe_core::{CodeAddr, WatchRange};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, OnceLock, RwLock};

/// One block of memory: text at its start, data and stacks after it.
pub const ARENA: usize = 1 << 20;
/// Where data begins.
pub const DATA: usize = 1 << 19;

/// Set in a return address that is signed. Nothing of the toy makes one.
pub const SIGNED: usize = 1 << 63;

pub fn arena_of(at: usize) -> usize {
    at & !(ARENA - 1)
}

pub fn block(len: usize) -> usize {
    let layout = std::alloc::Layout::from_size_align(len, len).unwrap();
    // Past any allocator that tests count with.
    // SAFETY: the layout has a size.
    let memory = unsafe { std::alloc::GlobalAlloc::alloc_zeroed(&std::alloc::System, layout) };
    assert!(!memory.is_null());
    memory.expose_provenance()
}

pub fn cell<'a>(at: usize) -> &'a AtomicU8 {
    // SAFETY: the callers have checked that `at` lies in a block of this module's, which are never freed.
    unsafe { &*std::ptr::with_exposed_provenance::<AtomicU8>(at) }
}

pub struct ToyMemory {
    pub arena: usize,
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
    /// Held for reading while an instruction is fetched.
    pub in_flight: RwLock<()>,
    pub memory: ToyMemory,
    /// Whose host it is.
    pub world: OnceLock<&'static World>,
    /// What has been asked about symbols and places.
    pub questions: AtomicUsize,
    pub symbols: Mutex<Vec<ToySymbol>>,
    pub contexts: Mutex<Vec<&'static Context<Toy>>>,
    pub blacklist: Mutex<Vec<(usize, usize, String)>>,
    /// Where nothing may be probed, and why.
    pub refused: Mutex<Vec<(std::ops::Range<usize>, Refusal)>>,
    /// How places are come to, where the host can tell.
    pub arrivals: Mutex<Vec<(usize, Arrival)>>,
    pub next_text: AtomicUsize,
    pub next_stack: AtomicUsize,
    /// Writes of text and slots so far.
    pub writes: AtomicUsize,
    pub syncs: AtomicUsize,
    /// Stretches of writes so far, those within others left out; and how many are begun.
    pub stretches: AtomicUsize,
    pub stretch_depth: AtomicUsize,
    /// Whether writes are put off to the end of a stretch: for tests with one context.
    pub puts_off: AtomicBool,
    pub put_off: Mutex<Vec<(usize, Vec<u8>)>>,
    /// The number of the write that fails, counted down; 0: none does.
    pub failing_write: AtomicUsize,
    /// Every write from the failing one on fails.
    pub fails_for_good: AtomicBool,
    /// How many more chunks of executable memory there are.
    pub chunks_left: AtomicUsize,
    /// How often one was asked for.
    pub chunks_asked: AtomicUsize,
    /// Chunks that are allocated now.
    pub live_chunks: AtomicIsize,
    pub pins: AtomicIsize,
    pub notices: Mutex<Vec<Notice>>,
    /// The contexts that were stopped for good.
    pub stopped: (Mutex<Vec<ToyRegs>>, Condvar),
    /// Whether a context that is stopped ends the test.
    pub panics_at_stop: AtomicBool,
    /// Whether `context` finds room.
    pub has_contexts: AtomicBool,
    /// Whether slots are stepped by the processor.
    pub has_single_step: AtomicBool,
    /// Whether there are watchpoints: two, which [`ToyHost::watched`] shows.
    pub has_watchpoints: AtomicBool,
    /// The addresses that the registers watch; 0: none.
    pub watched: [AtomicUsize; 2],
    /// Arming one fails.
    pub fails_to_watch: AtomicBool,
    /// What SYSTEM does.
    pub system_hook: Mutex<Option<SystemHook>>,
    pub text_hook: Mutex<Option<TextHook>>,
    /// How often somebody has waited for a moment.
    pub waits: AtomicUsize,
    /// The tasks that wait, and their stacks.
    pub waiting: Mutex<Vec<(&'static Task<Toy>, std::ops::Range<usize>)>>,
}

pub type Mine = (usize, &'static Context<Toy>, &'static Task<Toy>);

thread_local! {
    /// This thread's context and task in each world.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

impl ToyHost {
    /// A question whose answer may need locks of the program: never under the registry's.
    fn asked(&self) {
        self.questions.fetch_add(1, SeqCst);
        let is_free = self.world.get().is_none_or(|world| world.probes.events().can_be_told());
        assert!(is_free, "the host is asked under the registry's lock");
    }

    fn mine(&self) -> (&'static Context<Toy>, &'static Task<Toy>) {
        let id = self.memory.arena;
        MINE.with_borrow_mut(|mine| {
            if let Some((_, context, task)) = mine.iter().find(|(world, ..)| *world == id) {
                return (*context, *task);
            }
            let context: &'static Context<Toy> = Box::leak(Box::new(Context::new()));
            let task: &'static Task<Toy> = Box::leak(Box::new(Task::new()));
            // SAFETY: it is this thread's, which alone gets it.
            unsafe { task.own_every_stack() };
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

    /// Stores what was put off.
    fn store_put_off(&self) {
        for (at, bytes) in std::mem::take(&mut *self.put_off.lock().unwrap()) {
            self.store(at, &bytes);
        }
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        self.touch_text([Moment::BeforeWrite, Moment::AfterWrite], || {
            // The last byte first: what decides comes when the rest is there.
            for (offset, byte) in bytes.iter().enumerate().rev() {
                cell(at + offset).store(*byte, SeqCst);
            }
        });
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
        self.store_put_off();
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
        if self.stretch_depth.load(SeqCst) != 0 && self.puts_off.load(SeqCst) {
            self.put_off.lock().unwrap().push((at.as_usize(), bytes.to_vec()));
        } else {
            self.store(at.as_usize(), bytes);
        }
        Ok(())
    }
    fn begin_writes(&self) {
        let depth = self.stretch_depth.fetch_add(1, SeqCst);
        self.stretches.fetch_add(usize::from(depth == 0), SeqCst);
    }
    fn end_writes(&self) {
        if self.stretch_depth.fetch_sub(1, SeqCst) == 1 {
            self.store_put_off();
        }
    }
    fn sync_cores(&self) {
        self.store_put_off();
        drop(self.in_flight.write().unwrap());
        self.syncs.fetch_add(1, SeqCst);
        membarrier();
    }
    fn alloc_exec(&self, len_bytes: usize, _near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        assert_eq!(len_bytes, CHUNK);
        self.chunks_asked.fetch_add(1, SeqCst);
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
        // No instruction: who still runs here is found out.
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(at.as_usize());
        // SAFETY: a chunk, which lives for ever and which nobody uses any more, says the caller.
        unsafe { memory.write_bytes(0xff, CHUNK) };
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
    fn for_each_waiting(&self, visit: &mut dyn FnMut(&Waiting<'_, Toy>)) {
        for (task, stack) in self.waiting.lock().unwrap().iter() {
            visit(&Waiting { task, stack: stack.clone(), elsewhere: &[] });
        }
    }
    fn parallelism(&self) -> usize {
        7
    }
    fn memory(&self) -> &ToyMemory {
        &self.memory
    }
    fn enter_slot(&self, regs: &mut ToyRegs) -> u64 {
        let is_masked = u64::from(std::mem::replace(&mut regs.is_masked, true));
        match self.has_single_step.load(SeqCst) {
            true => is_masked | u64::from(begin_step(regs)) << 1 | 1 << 2,
            false => is_masked,
        }
    }
    fn leave_slot(&self, regs: &mut ToyRegs, kept: u64) {
        regs.is_masked = kept & 1 != 0;
        if kept >> 2 != 0 {
            end_step(regs, kept as u32 >> 1 & 1);
        }
    }
    fn pin(&self) {
        self.pins.fetch_add(1, SeqCst);
    }
    fn unpin(&self) {
        self.pins.fetch_sub(1, SeqCst);
    }
    fn find_symbols(&self, name: &str, found: &mut dyn FnMut(&Symbol<'_>)) {
        self.asked();
        for symbol in self.symbols.lock().unwrap().iter().filter(|symbol| symbol.name == name) {
            found(&as_symbol(symbol));
        }
    }
    fn symbol_at(&self, at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>)) {
        self.asked();
        let at = at.as_usize();
        let symbols = self.symbols.lock().unwrap();
        if let Some(symbol) =
            symbols.iter().find(|symbol| at >= symbol.start && at < symbol.start + symbol.len)
        {
            found(&as_symbol(symbol));
        }
    }
    fn probeable(&self, at: CodeAddr) -> Probeable {
        self.asked();
        let at = at.as_usize();
        if at < self.memory.arena || at >= self.memory.arena + DATA {
            return Probeable::NotText;
        }
        if let Some((_, refusal)) = self.refused.lock().unwrap().iter().find(|(range, _)| range.contains(&at))
        {
            return Probeable::Refused(*refusal);
        }
        let blacklist = self.blacklist.lock().unwrap();
        match blacklist.iter().any(|(start, end, _)| at >= *start && at < *end) {
            true => Probeable::Blacklisted,
            false => Probeable::Yes,
        }
    }
    fn arrival(&self, at: CodeAddr) -> Arrival {
        self.asked();
        let arrivals = self.arrivals.lock().unwrap();
        let known = arrivals.iter().find(|(place, _)| *place == at.as_usize());
        known.map_or(Arrival::Unknown, |(_, arrival)| *arrival)
    }

    fn for_each_blacklisted(&self, visit: &mut dyn FnMut(&Blacklisted<'_>)) {
        for (start, end, name) in self.blacklist.lock().unwrap().iter() {
            visit(&Blacklisted { start: CodeAddr::new(*start), end: CodeAddr::new(*end), name });
        }
    }
    fn watchpoints(&self) -> Result<&dyn Watchpoints, Refusal> {
        const NONE: Refusal = Refusal::unsupported("host.no_watchpoints", "a toy without watchpoints");
        if self.has_watchpoints.load(SeqCst) { Ok(self) } else { Err(NONE) }
    }

    fn relax(&self) {
        self.waits.fetch_add(1, SeqCst);
        std::thread::yield_now();
    }
    fn notice(&self, notice: Notice) {
        self.notices.lock().unwrap().push(notice);
    }
    fn stop(&self, regs: &ToyRegs) -> ! {
        eprintln!("stopped: {regs:x?}");
        assert!(!self.panics_at_stop.load(SeqCst), "a return is lost");
        self.stopped.0.lock().unwrap().push(*regs);
        self.stopped.1.notify_all();
        loop {
            std::thread::park();
        }
    }
}

// SAFETY: nothing traps by itself.
unsafe impl Watchpoints for ToyHost {
    fn count(&self) -> usize {
        self.watched.len()
    }

    fn check(&self, range: &WatchRange) -> Result<(), Refusal> {
        let is_possible = range.len_bytes == 8;
        if is_possible { Ok(()) } else { Err(Refusal::invalid("toy.range", "eight bytes or none")) }
    }

    fn arm(&self, index: usize, range: &WatchRange) -> Result<(), Refusal> {
        if self.fails_to_watch.load(SeqCst) {
            return Err(Refusal::unsupported("toy.busy", "somebody else has the registers"));
        }
        self.watched[index].store(range.addr, SeqCst);
        Ok(())
    }

    fn disarm(&self, index: usize) {
        self.watched[index].store(0, SeqCst);
    }
}

pub fn as_symbol(symbol: &ToySymbol) -> Symbol<'_> {
    Symbol {
        name: &symbol.name,
        start: CodeAddr::new(symbol.start),
        len_bytes: symbol.len,
        module: symbol.module.as_deref(),
        local_entry: 0,
    }
}

/// Executable memory of all worlds: reused, never unmapped.
pub static CHUNKS: [Chunk; 4096] =
    [const { Chunk { base: AtomicUsize::new(0), is_used: AtomicBool::new(false) } }; 4096];

/// How many of them have ever been used.
pub static CHUNKS_MADE: AtomicUsize = AtomicUsize::new(0);

pub struct Chunk {
    pub base: AtomicUsize,
    pub is_used: AtomicBool,
}

pub fn is_chunk(at: usize) -> bool {
    let chunks = CHUNKS.iter().take(CHUNKS_MADE.load(SeqCst));
    chunks.map(|chunk| chunk.base.load(SeqCst)).any(|base| base != 0 && at >= base && at < base + CHUNK)
}

/// A full barrier on every thread of the process.
#[cfg(all(target_os = "linux", not(miri)))]
pub fn membarrier() {
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
pub fn membarrier() {
    std::sync::atomic::fence(SeqCst);
}
