//! The table of blocks: one mapping that is reserved at start.

use super::block::Block;
use super::free::{self, Free};
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The most threads that can hit probes at the same time.
pub(super) const BLOCKS: usize = free::PLACES;

/// The table, null before [`start`].
static TABLE: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());
/// How many of its blocks were ever taken.
static USED: AtomicU32 = AtomicU32::new(0);
/// The blocks that were given back.
static FREE: Free = Free::new();

/// The table, once it is there.
#[derive(Clone, Copy)]
pub(super) struct Table(*mut Block);

/// Reserves the table. Other threads see it once `prepare` has run.
///
/// # Errors
/// The errno: no address space.
pub(super) fn start(prepare: impl FnOnce()) -> Result<(), c_int> {
    let table = sys::map(0, BLOCKS * size_of::<Block>(), libc::PROT_READ | libc::PROT_WRITE)?;
    prepare();
    TABLE.store(table as *mut Block, Ordering::Release);
    Ok(())
}

impl Table {
    pub(super) fn get() -> Option<Self> {
        let table = TABLE.load(Ordering::Acquire);
        (!table.is_null()).then_some(Self(table))
    }

    /// Block number `index`, which is below [`BLOCKS`].
    fn block(self, index: u32) -> &'static Block {
        debug_assert!((index as usize) < BLOCKS);
        // SAFETY: within the mapping, which stays for ever. A block that was never used is all zero: that is
        // a valid value of atomics and cells, which is all there is in a block, and nobody's.
        unsafe { &*self.0.wrapping_add(index as usize) }
    }

    /// The blocks that were ever taken.
    pub(super) fn used(self) -> impl Iterator<Item = &'static Block> {
        (0..USED.load(Ordering::Acquire)).map(move |index| self.block(index))
    }

    /// Takes a block that was given back.
    pub(super) fn pop(self) -> Option<&'static Block> {
        FREE.pop(|index| &self.block(index).link).map(|index| self.block(index))
    }

    /// Takes a block that was never used. It is all zero, as [`probe_core::host::Context::new`] and
    /// [`probe_core::host::Task::new`] are.
    pub(super) fn fresh(self) -> Option<&'static Block> {
        let next = |used: u32| ((used as usize) < BLOCKS).then_some(used + 1);
        let index = USED.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok()?;
        Some(self.block(index))
    }
}

/// How many blocks were ever taken.
pub(super) fn used() -> u32 {
    USED.load(Ordering::Relaxed)
}

/// Gives a block back, which is nobody's from now on.
pub(super) fn free(block: &'static Block) {
    block.owner.leave();
    let table = TABLE.load(Ordering::Relaxed) as usize;
    let index = ((core::ptr::from_ref(block) as usize - table) / size_of::<Block>()) as u32;
    FREE.push(index, &block.link);
}
