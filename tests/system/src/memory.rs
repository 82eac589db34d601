//! Paging with W^X, the alias through which text is written, and executable memory.
//!
//! All memory is mapped at its own address: text read-only and executable, read-only data read-only, the rest
//! writable and never executable. The alias maps all memory once more, [`ALIAS`] bytes up, writable and
//! never executable: through it text is patched. No page is ever writable and executable at one address.

use crate::arch::{Backend, Machine, Native, Paging};
use crate::cpu;
use crate::lock::SpinLock;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::Access;
use probe_core::error::TextError;
use probe_kernel_kit::exec;
use probe_kernel_kit::walk::Walk;

/// The size of a page in bytes.
pub const PAGE: usize = 4096;

/// The distance in bytes from memory to its alias.
#[cfg(target_pointer_width = "64")]
pub const ALIAS: usize = 0x40_0000_0000;
/// The distance in bytes from memory to its alias.
#[cfg(target_pointer_width = "32")]
pub const ALIAS: usize = 0x8000_0000;

/// The size of the executable memory for slots, stubs and modules; it lies right after the image.
const EXEC_PAGES: usize = 4096;

/// What may be done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Nothing: every access faults.
    None,
    /// Reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
    /// Reading and executing.
    ReadExecute,
    /// Reading and writing device registers.
    Device,
}

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __image_end: u8;
}

/// The kernel's text, first byte to one past the last.
pub fn text_range() -> (usize, usize) {
    ((&raw const __text_start).addr(), (&raw const __text_end).addr())
}

fn exec_range() -> (usize, usize) {
    let start = (&raw const __image_end).addr().next_multiple_of(0x10000);
    (start, start + EXEC_PAGES * PAGE)
}

/// The memory for the heap.
pub fn heap_range() -> (usize, usize) {
    (exec_range().1, Native::RAM.1)
}

// ---- page tables ------------------------------------------------------------------------------------------

#[repr(C, align(4096))]
struct Table([u64; 512]);

/// Aligned as the greediest machine wants the root (ppc64: 64 KiB).
#[repr(C, align(65536))]
struct Pool([Table; TABLES_MAX]);

/// How many tables there can be: one for every 2 MiB of memory and of its alias, and for addresses far from
/// both.
const TABLES_MAX: usize = 256;

struct Tables {
    pool: Pool,
    used: usize,
}

static TABLES: SpinLock<Tables> =
    SpinLock::new(Tables { pool: Pool([const { Table([0; 512]) }; TABLES_MAX]), used: 0 });
static ROOT: AtomicUsize = AtomicUsize::new(0);

impl Tables {
    /// A fresh table; returns its address.
    fn add(&mut self) -> usize {
        let table = &mut self.pool.0[self.used];
        self.used += 1;
        (&raw mut *table).expose_provenance()
    }

    fn map(&mut self, at: usize, physical: usize, protection: Protection) {
        let (leaf_shift, branches) = Native::LEVELS.split_last().expect("there are levels");
        let mut table = ROOT.load(Ordering::Relaxed);
        for shift in branches {
            let entry = entry(table, at >> shift);
            // SAFETY: `table` is one of ours, which the lock protects.
            let branch = unsafe { entry.read() };
            table = if branch != 0 {
                Native::table(branch)
            } else {
                let next = self.add();
                // SAFETY: as above.
                unsafe { entry.write(Native::branch(next, *shift)) };
                next
            };
        }
        let leaf = match protection {
            Protection::None => 0,
            _ => Native::leaf(physical, protection),
        };
        // SAFETY: as above. A walker sees the old entry or the new one: it is one aligned store.
        unsafe { entry(table, at >> leaf_shift).write_volatile(leaf) };
    }
}

fn entry(table: usize, index: usize) -> *mut u64 {
    core::ptr::with_exposed_provenance_mut::<u64>(table + (index & 511) * 8)
}

/// What the page tables say now, read as the processor reads them: without the lock, while others change
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Pages that may be executed.
    pub executable: usize,
    /// Pages that may be written.
    pub writable: usize,
    /// The address of a page that may be both.
    pub both: Option<usize>,
}

impl Mapped {
    /// Looks at every page.
    pub fn look() -> Self {
        let mut seen = Self::default();
        seen.walk(root(), Native::LEVELS, 0);
        seen
    }

    fn walk(&mut self, table: usize, levels: &[u32], at: usize) {
        let [shift, below @ ..] = levels else { return };
        for index in 0..512 {
            // SAFETY: a table of ours, which stays; an entry is one aligned word.
            let entry = unsafe { entry(table, index).read_volatile() };
            let at = at | index << shift;
            match (entry, below) {
                (0, _) => {}
                (_, []) => {
                    let (is_writable, is_executable) = Native::allows(entry);
                    self.writable += usize::from(is_writable);
                    self.executable += usize::from(is_executable);
                    self.both = self.both.or((is_writable && is_executable).then_some(at));
                }
                _ => self.walk(Native::table(entry), below, at),
            }
        }
    }
}

/// What the page tables allow, as [`Mapped`] reads them: without the lock.
pub struct PageTables;

// SAFETY: the kernel unmaps nothing that a hit may look at: devices, modules and what the checks map apart,
// which they do not access this way.
unsafe impl Walk for PageTables {
    const PAGE: usize = PAGE;

    fn allows(&self, addr: usize, access: Access) -> bool {
        let mut table = root();
        let (leaf_shift, branches) = Native::LEVELS.split_last().expect("there are levels");
        for shift in branches {
            // SAFETY: a table of ours, which stays; an entry is one aligned word.
            let branch = unsafe { entry(table, addr >> shift).read_volatile() };
            if branch == 0 {
                return false;
            }
            table = Native::table(branch);
        }
        // SAFETY: as above.
        let leaf = unsafe { entry(table, addr >> leaf_shift).read_volatile() };
        leaf != 0 && (access == Access::Read || Native::allows(leaf).0)
    }
}

/// Maps everything and turns paging on.
pub fn init() {
    let mut tables = TABLES.lock();
    let root = tables.add();
    tables.used = Native::ROOT_TABLES;
    ROOT.store(root, Ordering::Relaxed);
    let (ram_start, ram_end) = Native::RAM;
    let text = text_range();
    let exec = exec_range();
    let rodata = ((&raw const __rodata_start).addr(), (&raw const __rodata_end).addr());
    for page in (ram_start..ram_end).step_by(PAGE) {
        let protection = match page {
            // A null pointer faults.
            0 => continue,
            _ if (text.0..text.1).contains(&page) => Protection::ReadExecute,
            _ if (rodata.0..rodata.1).contains(&page) => Protection::ReadOnly,
            // Mapped when it is handed out.
            _ if (exec.0..exec.1).contains(&page) => Protection::None,
            _ => Protection::ReadWrite,
        };
        tables.map(page, page, protection);
        tables.map(ALIAS + page, page, Protection::ReadWrite);
    }
    for &page in Native::DEVICES {
        tables.map(page, page, Protection::Device);
    }
    drop(tables);
    activate();
}

/// Turns paging on, on this CPU.
pub fn activate() {
    // SAFETY: `init` has mapped everything at its own address.
    unsafe { Native::activate(root()) };
}

/// The address of the root table.
pub fn root() -> usize {
    ROOT.load(Ordering::Relaxed)
}

/// Changes what may be done with a page of memory at its own address, on all CPUs.
pub fn protect(page: usize, protection: Protection) {
    map_all(page, page, 1, protection);
}

/// Maps `pages` pages at `at` to memory at `physical`, on all CPUs.
fn map_all(at: usize, physical: usize, pages: usize, protection: Protection) {
    let mut tables = TABLES.lock();
    for page in 0..pages {
        tables.map(at + page * PAGE, physical + page * PAGE, protection);
    }
    drop(tables);
    cpu::RENDEZVOUS.synchronise();
}

// ---- memory on demand -------------------------------------------------------------------------------------

/// Where memory appears when it is first accessed.
pub const DEMAND: usize = 0x5000_0000;
const DEMAND_PAGES: usize = 4;

#[repr(C, align(4096))]
struct Frames(core::cell::UnsafeCell<[[u8; PAGE]; DEMAND_PAGES]>);

// SAFETY: only its address is used here; whoever accesses it does so through the mapping.
unsafe impl Sync for Frames {}

static FRAMES: Frames = Frames(core::cell::UnsafeCell::new([[0; PAGE]; DEMAND_PAGES]));

/// Maps the page of `addr` if it is one of those that appear on demand.
pub fn demand(addr: usize) -> bool {
    let Some(page) = addr.checked_sub(DEMAND).map(|offset| offset / PAGE).filter(|page| *page < DEMAND_PAGES)
    else {
        return false;
    };
    let frame = FRAMES.0.get().addr() + page * PAGE;
    TABLES.lock().map(DEMAND + page * PAGE, frame, Protection::ReadWrite);
    true
}

/// Unmaps the pages that have appeared.
pub fn forget_demanded() {
    for page in 0..DEMAND_PAGES {
        protect(DEMAND + page * PAGE, Protection::None);
    }
}

// ---- text -------------------------------------------------------------------------------------------------

/// Stores `bytes` at `at` through the alias, four aligned bytes at once where they are four, and publishes
/// them.
///
/// # Errors
/// `at` is not in memory; nothing was written.
///
/// # Safety
/// The range is text that the caller may patch, or executable memory that it owns.
pub unsafe fn write_text(at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
    let start = alias_of(at.as_usize(), bytes.len()).ok_or(TextError::Unmapped(at))?;
    // SAFETY: the alias of all memory is mapped writable and never executable; text is mapped executable, and
    // executable memory while somebody owns it.
    cpu::rendezvous(|| unsafe { exec::write::<Backend>(start, at, bytes) });
    Ok(())
}

/// Where text or executable memory can be written: the alias of `len_bytes` at `start`.
fn alias_of(start: usize, len_bytes: usize) -> Option<usize> {
    let end = start.checked_add(len_bytes.max(1))?;
    let holds = |(from, to): (usize, usize)| from <= start && end <= to;
    if holds(text_range()) || holds(exec_range()) {
        return Some(start + ALIAS);
    }
    let exec = EXEC.lock();
    let block = exec.far.iter().find(|block| holds((block.at, block.at + block.len_bytes)))?;
    Some(block.physical + (start - block.at) + ALIAS)
}

// ---- executable memory ------------------------------------------------------------------------------------

/// Executable memory that is mapped at another address than its own.
struct FarBlock {
    at: usize,
    len_bytes: usize,
    physical: usize,
}

struct Exec {
    used: [bool; EXEC_PAGES],
    far: Vec<FarBlock>,
}

static EXEC: SpinLock<Exec> = SpinLock::new(Exec { used: [false; EXEC_PAGES], far: Vec::new() });

impl Exec {
    /// Takes `pages` pages, a power of two, that are aligned to their length; the first one's address.
    fn take(&mut self, pages: usize) -> Option<usize> {
        let start = exec_range().0;
        let first = (0..EXEC_PAGES).step_by(pages).find(|&i| {
            (start + i * PAGE).is_multiple_of(pages * PAGE)
                && self.used[i..].len() >= pages
                && !self.used[i..i + pages].contains(&true)
        })?;
        self.used[first..first + pages].fill(true);
        Some(start + first * PAGE)
    }

    /// Gives pages back.
    fn put(&mut self, physical: usize, pages: usize) {
        let first = (physical - exec_range().0) / PAGE;
        self.used[first..first + pages].fill(false);
    }

    /// Where `len_bytes` at `physical` are to be mapped.
    fn place(&mut self, physical: usize, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<usize> {
        let Some((near, reach)) = near else { return Some(physical) };
        let near = near.as_usize();
        let is_near = |at: usize| at.abs_diff(near).max((at + len_bytes).abs_diff(near)) <= reach;
        if is_near(physical) {
            return Some(physical);
        }
        let at = near & !(len_bytes - 1);
        let is_unused = Native::UNUSED.0 <= at
            && at + len_bytes <= Native::UNUSED.1
            && self.far.iter().all(|block| at + len_bytes <= block.at || block.at + block.len_bytes <= at);
        if !is_near(at) || !is_unused {
            return None;
        }
        self.far.push(FarBlock { at, len_bytes, physical });
        Some(at)
    }
}

/// Maps `len_bytes` of executable memory, aligned to its length, within `near.1` bytes of `near.0` if they
/// are given.
pub fn alloc_exec(len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
    let pages = len_bytes.div_ceil(PAGE).next_power_of_two();
    let (physical, at) = {
        let mut exec = EXEC.lock();
        let physical = exec.take(pages)?;
        let Some(at) = exec.place(physical, pages * PAGE, near) else {
            exec.put(physical, pages);
            return None;
        };
        (physical, at)
    };
    map_all(at, physical, pages, Protection::ReadExecute);
    Some(CodeAddr::new(at))
}

/// Unmaps executable memory: who still runs in it faults.
///
/// # Safety
/// [`alloc_exec`] returned `at` for `len_bytes`, and no CPU executes in it or will.
pub unsafe fn free_exec(at: CodeAddr, len_bytes: usize) {
    let pages = len_bytes.div_ceil(PAGE).next_power_of_two();
    let at = at.as_usize();
    map_all(at, at, pages, Protection::None);
    let mut exec = EXEC.lock();
    let far = exec.far.iter().position(|block| block.at == at);
    let physical = far.map_or(at, |index| exec.far.swap_remove(index).physical);
    exec.put(physical, pages);
}
