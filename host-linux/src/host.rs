//! This process as a [`Host`].

use crate::arch::{Native, Regs};
use crate::lock::Lock;
use crate::memory::{self, ProcessMemory};
use crate::signals::interrupted;
use crate::symbols::objects::{self, Object, Role};
use crate::symbols::{arrival, ifunc};
use crate::text::{TextAccess, TextWriter};
use crate::{blacklist, exec, sync, sys, threads, unwind, watch};
use core::cell::Cell;
use probe_core::arch::{Arch, SaveSet};
use probe_core::error::{Refusal, TextError};
use probe_core::host::{Arrival, Blacklisted, Context, Host, Notice, Probeable, Symbol, Task, Watchpoints};
use probe_core::{CodeAddr, Probes};
use probe_elf_symbols::index::{Entry, Kind};

/// This process as a host of probes. There is one: [`crate::probes`].
pub struct LinuxProcess {
    pub(crate) text: TextWriter,
    memory: ProcessMemory,
    log: Lock<fn(&str)>,
}

/// The one collection of probes in this process.
pub(crate) static PROBES: Probes<LinuxProcess> = Probes::new(LinuxProcess {
    text: TextWriter::new(),
    memory: ProcessMemory::new(),
    log: Lock::new(|message| eprintln!("{message}")),
});

/// What to do about functions whose code is chosen at run time (`STT_GNU_IFUNC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indirect {
    /// Their resolver is called: they stand for the code that it has chosen.
    Resolve,
    /// They are left out: their object is not relocated yet, so that its resolvers cannot run.
    LeftOut,
}

impl LinuxProcess {
    /// How text is written in this process.
    pub fn text_access(&self) -> TextAccess {
        self.text.access()
    }

    /// Sends messages about probes to `log` instead of standard error.
    pub fn set_log(&self, log: fn(&str)) {
        *self.log.lock() = log;
    }

    pub(crate) fn log(&self, message: &str) {
        let log = *self.log.lock();
        log(message);
    }

    /// Calls `visit` with every code symbol of every loaded object; the second argument is the object's file
    /// name.
    ///
    /// For globs and near matches. Indirect functions appear under their resolver's address.
    pub fn for_each_symbol(&self, visit: &mut dyn FnMut(&Symbol<'_>, &str)) {
        for object in objects::snapshot().iter().filter(|object| object.role != Role::Foreign) {
            for entry in object.index().entries().iter().filter(|entry| entry.kind != Kind::Data) {
                visit(&symbol(object, entry), &object.name);
            }
        }
    }

    /// Calls `found` with every function called `name`, as [`Host::find_symbols`] does.
    pub fn find_functions(&self, name: &str, indirect: Indirect, found: &mut dyn FnMut(&Symbol<'_>)) {
        self.find_functions_within(&|_| true, name, indirect, found);
    }

    /// As [`LinuxProcess::find_functions`], in those objects alone whose module `is_meant`, `None` for the
    /// program; the symbols of others are not read.
    pub fn find_functions_within(
        &self,
        is_meant: &dyn Fn(Option<&str>) -> bool,
        name: &str,
        indirect: Indirect,
        found: &mut dyn FnMut(&Symbol<'_>),
    ) {
        let objects = objects::snapshot();
        let is_found = Cell::new(false);
        let mut find = |object: &Object| {
            object.index().find(name, &mut |entry| {
                is_found.set(is_found.get() || entry.kind != Kind::Data);
                match entry.kind {
                    Kind::Function | Kind::Label => found(&symbol(object, entry)),
                    Kind::Indirect if indirect == Indirect::Resolve => {
                        found(&resolve_indirect(object, entry))
                    }
                    Kind::Indirect | Kind::Data => {}
                }
            });
        };
        let ours = objects.iter().filter(|object| !blacklist::is_hidden(object) && is_meant(object.module()));
        ours.clone().filter(|object| object.role != Role::Loader).for_each(|object| find(object));
        // The loader has private copies of much of libc (strlen, memcpy): nobody means those.
        if !is_found.get() {
            ours.filter(|object| object.role == Role::Loader).for_each(|object| find(object));
        }
    }

    /// The address of the data symbol `name`, with its length in bytes; the main program's first.
    pub fn data_symbol(&self, name: &str) -> Option<(usize, usize)> {
        let objects = objects::snapshot();
        objects.iter().filter(|object| !blacklist::is_hidden(object)).find_map(|object| {
            let mut found = None;
            object.index().find(name, &mut |entry| {
                if entry.kind == Kind::Data && found.is_none() {
                    found = Some((object.bias.wrapping_add(entry.addr), entry.len_bytes));
                }
            });
            found
        })
    }

    /// The file name of the object that `at` lies in.
    pub fn object_name(&self, at: CodeAddr) -> Option<String> {
        objects::at(at.as_usize()).map(|object| object.name.clone())
    }
}

/// A symbol as the core sees it.
fn symbol<'a>(object: &'a Object, entry: &Entry) -> Symbol<'a> {
    let index = object.index();
    // The entry is one of the index's: only its name must be found again with the object's lifetime.
    Symbol {
        name: index.name(entry),
        start: CodeAddr::new(object.bias.wrapping_add(entry.addr)),
        len_bytes: entry.len_bytes,
        module: object.module(),
        local_entry: entry.local_entry,
    }
}

/// Why a restartable sequence forbids a probe at `at` (REG_20).
fn sequence_at(object: &Object, at: usize) -> Option<Refusal> {
    let first_byte = Native::first_byte(CodeAddr::new(at)).as_usize();
    object.sequences().refusal(first_byte.wrapping_sub(object.bias) as u64, || insn_len(at))
}

/// How long the instruction at `at` is.
fn insn_len(at: usize) -> Option<usize> {
    let mut insn = [0; 16];
    let wanted = Native::MAX_INSN_LEN.min(insn.len());
    let first_byte = Native::first_byte(CodeAddr::new(at)).as_usize();
    let read = memory::read_some(first_byte, &mut insn[..wanted]);
    Native::insn_len(CodeAddr::new(at), &insn[..read])
}

/// The implementation that an indirect function resolves to; its length comes from the unwind table.
fn resolve_indirect<'a>(object: &'a Object, entry: &Entry) -> Symbol<'a> {
    let index = object.index();
    let number = index.entries().iter().position(|e| core::ptr::eq(e, entry)).unwrap_or(0) as u32;
    let known = object.resolved.lock().iter().copied().find(|known| known.2 == number);
    let (start, len_bytes, _) = known.unwrap_or_else(|| {
        let code = ifunc::resolve(object.bias.wrapping_add(entry.addr));
        let bounds = object.eh_frame_header.and_then(|header| crate::symbols::eh_frame::find(header, code));
        let len = bounds.filter(|bounds| bounds.0 == code).map_or(0, |bounds| bounds.1);
        object.resolved.lock().push((code, len, number));
        (code, len, number)
    });
    // The resolver's local entry says nothing of the implementation's. One that has no symbol left is called
    // by its address only, that of its global entry.
    let implementation = index.covering(start.wrapping_sub(object.bias));
    let own = implementation.filter(|found| found.addr == start.wrapping_sub(object.bias));
    let local_entry = own.map_or(0, |own| own.local_entry);
    Symbol { start: CodeAddr::new(start), len_bytes, local_entry, ..symbol(object, entry) }
}

// SAFETY: text is read without faulting and written through an alias, or by unprotecting where the self-test
// has shown that the alias does not work; every thread that may run a handler has a block that
// `for_each_context` visits until the kernel says that the thread is dead; `sync_cores` uses the kernel's
// core synchronisation; what the hit path runs is blacklisted.
unsafe impl Host for LinuxProcess {
    type Arch = Native;
    type Memory = ProcessMemory;

    const SAVE_SET: SaveSet = SaveSet::Full;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        self.text.store_waiting_at(at.as_usize(), out.len());
        memory::read_some(at.as_usize(), out)
    }

    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        // SAFETY: the caller's promise.
        unsafe { self.text.write_text(at, bytes) }
    }

    fn begin_writes(&self) {
        self.text.begin_stretch();
    }

    fn end_writes(&self) {
        self.text.end_stretch();
    }

    fn sync_cores(&self) {
        self.text.store_waiting();
        sync::cores();
    }

    // What runs the program's functions stores first: text and points agree there.
    fn alloc_exec(&self, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        self.text.store_waiting();
        exec::alloc(len_bytes, near)
    }

    unsafe fn free_exec(&self, at: CodeAddr, len_bytes: usize) {
        self.text.store_waiting();
        // SAFETY: the caller's promise.
        unsafe { sys::unmap(at.as_usize(), len_bytes) };
    }

    fn stubs_added(&self, chunk: CodeAddr, len_bytes: usize, table: usize) {
        self.text.store_waiting();
        unwind::add(chunk, len_bytes, table);
    }

    fn stubs_removed(&self, chunk: CodeAddr) {
        self.text.store_waiting();
        unwind::remove(chunk);
    }

    #[inline]
    fn context(&self) -> Option<&Context<Native>> {
        threads::current_or_new().map(|block| &block.context)
    }

    #[inline]
    fn task(&self) -> Option<&Task<Native>> {
        threads::current_or_new().map(|block| &block.task)
    }

    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Native>)) {
        threads::for_each(visit);
    }

    fn parallelism(&self) -> usize {
        std::thread::available_parallelism().map_or(1, Into::into)
    }

    #[inline]
    fn memory(&self) -> &ProcessMemory {
        &self.memory
    }

    fn enter_slot(&self, _regs: &mut Regs) -> u64 {
        // All signals blocked stands for "not in a handler of ours": then there is nothing to restore.
        interrupted::block_asynchronous().map_or(u64::MAX, sys::SignalSet::bits)
    }

    fn leave_slot(&self, _regs: &mut Regs, kept: u64) {
        if kept != u64::MAX {
            interrupted::unblock_asynchronous(sys::SignalSet::from_bits(kept));
        }
    }

    #[inline]
    fn pin(&self) {
        threads::keep_errno();
    }

    #[inline]
    fn unpin(&self) {
        // In a trap, the handler's own call is the last one.
        threads::restore_errno(None);
    }

    fn enter_copy(&self) {
        threads::lend_errno();
    }

    fn leave_copy(&self) {
        threads::take_errno_back();
    }

    fn find_symbols(&self, name: &str, found: &mut dyn FnMut(&Symbol<'_>)) {
        self.find_functions(name, Indirect::Resolve, found);
    }

    fn symbol_at(&self, at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>)) {
        let Some(object) = objects::at(at.as_usize()) else { return };
        // An address of A32 may be that of a byte of a T32 function, whose symbol has bit 0 set.
        let either = [at, Native::same_set(at, CodeAddr::new(1))];
        let entries =
            either.iter().filter_map(|at| object.index().covering(at.as_usize().wrapping_sub(object.bias)));
        let covers = |symbol: &Symbol<'_>| {
            let offset =
                Native::first_byte(at).as_usize().wrapping_sub(Native::first_byte(symbol.start).as_usize());
            Native::same_set(symbol.start, at) == symbol.start || offset < symbol.len_bytes
        };
        if let Some(symbol) = entries.map(|entry| symbol(&object, entry)).find(covers) {
            return found(&symbol);
        }
        let resolved = object.resolved.lock().iter().copied().find(|&(start, len, _)| {
            let offset = at.as_usize().wrapping_sub(start);
            offset < len || offset == 0
        });
        if let Some((start, len_bytes, number)) = resolved {
            let entry = &object.index().entries()[number as usize];
            found(&Symbol { start: CodeAddr::new(start), len_bytes, ..symbol(&object, entry) });
        }
    }

    fn probeable(&self, at: CodeAddr) -> Probeable {
        match objects::at(at.as_usize()) {
            Some(object) if !object.holds_text(at.as_usize()) => Probeable::NotText,
            Some(object) if object.role == Role::Vdso => Probeable::Blacklisted,
            Some(object) if blacklist::covers(&object, at.as_usize()) => Probeable::Blacklisted,
            Some(object) => sequence_at(&object, at.as_usize()).map_or(Probeable::Yes, Probeable::Refused),
            None => Probeable::NotText,
        }
    }

    /// Nobody else patches the text of a process: all bytes of an instruction have its first one's answer.
    fn all_probeable(&self, start: CodeAddr, end: CodeAddr) -> Probeable {
        let mut at = start;
        while at < end {
            match self.probeable(at) {
                Probeable::Yes => at = at.wrapping_add(insn_len(at.as_usize()).unwrap_or(1).max(1)),
                forbidden => return forbidden,
            }
        }
        Probeable::Yes
    }

    fn arrival(&self, at: CodeAddr) -> Arrival {
        let at = at.as_usize();
        let Some(object) = objects::at(at) else { return Arrival::Unknown };
        if blacklist::is_address_thunk(&object, at) {
            return Arrival::READS_RETURN;
        }
        arrival::of(&object, at)
    }

    fn for_each_blacklisted(&self, visit: &mut dyn FnMut(&Blacklisted<'_>)) {
        blacklist::for_each(visit);
    }

    fn watchpoints(&self) -> Result<&dyn Watchpoints, Refusal> {
        watch::power()
    }

    fn relax(&self) {
        self.text.store_waiting();
        std::thread::yield_now();
    }

    fn notice(&self, notice: Notice) {
        self.text.store_waiting();
        match notice {
            Notice::StuckBreakpoint(at) => {
                self.log(&format!("probes: the breakpoint at {at} could not be removed; it stays armed"));
            }
            Notice::LostReturn { stub } => {
                self.log(&format!("kretprobe BUG!: Processing kretprobe 0x0 @ {stub}"));
            }
            other => self.log(&format!("probes: {other:?}")),
        }
    }

    fn stop(&self, _regs: &Regs) -> ! {
        std::process::abort()
    }
}
