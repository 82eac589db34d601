//! Return stubs: handing them out to pools, and taking them back.

use crate::addr::CodeAddr;
use crate::arch::{Arch, NativeCalls, SaveSet};
use crate::error::{GrowError, NoMemory, NoStubs, RegisterError};
use crate::held::Hold;
use crate::room::{Room, free, leak};
use crate::state::host::Host;
use crate::state::instance::Instance;
use crate::state::locked::OpenBooks;
use crate::state::pending::{Active, MAX_DATA_LEN, ReturnHandlers};
use crate::state::point::Handlers;
use crate::state::pool::{MAX_ACTIVE, Plan, Pool, Stubs};
use crate::state::probes::Probes;
use crate::state::return_probe::ReturnProbe;
use crate::state::slots::{CHUNK_LEN, OWN};
use crate::state::stub::StubChunk;
use crate::sync::Relaxed;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

/// All parts of a return probe's half except its handlers.
pub(super) struct ReturnRoom<A: Arch> {
    memory: Room<ReturnProbe<A>>,
    pool: NonNull<Pool<A>>,
}

impl<A: Arch> ReturnRoom<A> {
    pub(super) fn fill(self, handlers: ReturnHandlers<A>) -> Box<ReturnProbe<A>> {
        let ReturnHandlers { entry, ending, .. } = handlers;
        let half = self.memory.fill(ReturnProbe { entry, ending, pool: self.pool });
        // SAFETY: made just now.
        unsafe { free(half) }
    }
}

impl<H: Host> Probes<H> {
    /// Prepares the return half of a probe: a pool of as many instances as `active` says, each with its stub
    /// (RET_3).
    pub(super) fn prepare_return(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        handlers: &ReturnHandlers<H::Arch>,
        active: Active,
        save: SaveSet,
    ) -> Result<ReturnRoom<H::Arch>, RegisterError> {
        let layout = handlers.layout;
        if layout.size() > MAX_DATA_LEN {
            return Err(RegisterError::DataTooBig(layout.size()));
        }
        let default = self.host.parallelism().saturating_mul(2).max(10);
        let wanted = usize::try_from(active.now).ok().filter(|calls| *calls > 0).unwrap_or(default);
        let wanted = wanted.min(MAX_ACTIVE);
        // And the owner's own one.
        let stubs = self.take_stubs(books, save, wanted + 1)?;
        let plan = Plan {
            most: active.most.clamp(wanted, MAX_ACTIVE),
            save,
            layout,
            drop_data: handlers.ending.drop_data,
            alarm: self.switches.low_pools(),
        };
        let memory = Room::new()?;
        // SAFETY: the words are their chunks', which stay until the pool has given its stubs back; one stub
        // and the owner's.
        let pool = unsafe { Pool::new(&stubs, plan) }?;
        // SAFETY: made just now.
        unsafe { pool.as_ref() }.instances().for_each(|instance| self.attach_stub(books.hold, instance));
        Ok(ReturnRoom { memory, pool })
    }

    /// What [`Pools::grow`](crate::pools::PoolControl::grow) does.
    pub(crate) fn grow_pools(&'static self, calls: usize) -> Result<usize, GrowError> {
        if self.is_in_handler() {
            return Err(GrowError::InHandler);
        }
        let mut books = self.lock();
        let mut books = books.open();
        self.switches.low_pools().store(false, Relaxed);
        let mut growing = Vec::new();
        let mut has_room = true;
        for point in self.places.all(books.hold) {
            for node in point.get().nodes() {
                let Handlers::Return(half) = &node.handlers else { continue };
                let (size, was_low) = (half.pool().size(), half.pool().was_low());
                // A probe whose calls are left again and again has enough: given-up instances serve again.
                let is_short = was_low && 4 * half.pool().given_up() <= size.calls;
                let wanted = if is_short { 2 * size.calls } else { size.calls }.max(calls).min(size.most);
                if wanted > size.calls {
                    has_room &= growing.try_reserve(1).is_ok();
                    if has_room {
                        growing.push((half.pool(), wanted - size.calls));
                    }
                }
            }
        }
        let mut added = 0;
        for (pool, more) in growing {
            self.grow(&mut books, pool, more)?;
            added += more;
        }
        if has_room { Ok(added) } else { Err(GrowError::NoMemory) }
    }

    /// Adds `more` instances to a pool.
    fn grow(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        pool: &Pool<H::Arch>,
        more: usize,
    ) -> Result<(), NoStubs> {
        let stubs = self.take_stubs(books, pool.save, more)?;
        // SAFETY: the words are their chunks', which stay until the pool has given its stubs back.
        let batch = unsafe { pool.batch(&stubs) }?;
        // A stub leads to its instance before that can be taken.
        // SAFETY: made just now.
        unsafe { batch.as_ref() }
            .instances()
            .iter()
            .for_each(|instance| self.attach_stub(books.hold, instance));
        pool.add(batch);
        Ok(())
    }

    /// Free stubs with that trampoline, as many as `wanted`.
    fn take_stubs(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        save: SaveSet,
        wanted: usize,
    ) -> Result<Stubs, NoStubs> {
        let mut stubs = Vec::new();
        stubs.try_reserve_exact(wanted).map_err(|_| NoMemory)?;
        while !self.find_stubs(books, save, wanted, &mut stubs) {
            self.add_stub_chunk(books, save)?;
        }
        Ok(stubs)
    }

    /// Collects free stubs with that trampoline until `stubs` has `wanted`.
    fn find_stubs(&self, books: &OpenBooks<'_, H>, save: SaveSet, wanted: usize, stubs: &mut Stubs) -> bool {
        stubs.clear();
        for chunk in self.stubs.all(books.hold).filter(|chunk| chunk.save == save) {
            chunk.find_free(wanted, stubs, books.hold);
        }
        stubs.len() == wanted
    }

    fn add_stub_chunk(&'static self, books: &mut OpenBooks<'_, H>, save: SaveSet) -> Result<(), NoStubs> {
        let mut image = Vec::new();
        image.try_reserve_exact(CHUNK_LEN).map_err(|_| NoMemory)?;
        image.resize(CHUNK_LEN - OWN, 0);
        let retired = self.stubs.reserve(1)?;
        books.keep_array(retired);
        let base = self.host.alloc_exec(CHUNK_LEN, None).ok_or(NoStubs::Exec)?;
        let made = self.fill_stub_chunk(base, save, &mut image);
        match made {
            Ok(chunk) => {
                // SAFETY: made just now.
                let table = unsafe { chunk.as_ref() }.homes.as_ptr().expose_provenance();
                self.host.stubs_added(base, CHUNK_LEN, table);
                // SAFETY: stays valid until a grace period after it has been removed.
                unsafe { self.stubs.add(chunk) };
                Ok(())
            }
            Err(error) => {
                // SAFETY: nobody has been told of it.
                unsafe { self.host.free_exec(base, CHUNK_LEN) };
                Err(error)
            }
        }
    }

    fn fill_stub_chunk(
        &'static self,
        base: CodeAddr,
        save: SaveSet,
        image: &mut Vec<u8>,
    ) -> Result<NonNull<StubChunk<H>>, NoStubs> {
        let calls = H::Arch::CALLS.ok_or(NoStubs::Exec)?;
        let trampoline = calls.return_trampoline(save);
        let handler = (self.entries.returned)();
        let count = calls.fill_return_stubs(base, trampoline, handler, image);
        let chunk = leak(StubChunk::new(base, save, self.program(), count)?)?;
        image.extend_from_slice(&chunk.as_ptr().expose_provenance().to_ne_bytes());
        // SAFETY: the chunk is ours and nobody executes in it yet.
        let written = unsafe { self.host.write_text(base, image) };
        match written {
            Ok(()) => Ok(chunk),
            Err(error) => {
                // SAFETY: nobody has been told of it.
                drop(unsafe { free(chunk) });
                Err(error.into())
            }
        }
    }

    fn attach_stub(&self, hold: &Hold, instance: &Instance<H::Arch>) {
        if let Some(chunk) = self.stubs.chunk(instance.stub, hold) {
            chunk.hand_out(instance, hold);
        }
    }

    /// Makes a pool unreachable from its stubs; it may be freed after a grace period and
    /// [`Probes::settle_stubs`].
    pub(super) fn detach_stubs(&self, hold: &Hold, pool: &Pool<H::Arch>) {
        for instance in pool.instances() {
            if let Some(chunk) = self.stubs.chunk(instance.stub, hold) {
                chunk.detach(instance, hold);
            }
        }
    }

    /// Takes back the stubs of calls that have returned while the pool was made unreachable.
    pub(super) fn settle_stubs(&self, hold: &Hold, pool: &Pool<H::Arch>) {
        for instance in pool.instances() {
            if let Some(chunk) = self.stubs.chunk(instance.stub, hold) {
                chunk.settle(instance, hold);
            }
        }
    }

    /// Whether there are chunks of stubs that are not in use.
    pub(super) fn has_unused_stubs(&self, books: &OpenBooks<'_, H>) -> bool {
        self.stubs.all(books.hold).any(|chunk| chunk.is_unused())
    }

    /// Takes the chunks that have no stub in use off the table.
    pub(super) fn take_empty_stub_chunks(&self, books: &mut OpenBooks<'_, H>) -> Vec<NonNull<StubChunk<H>>> {
        let mut empty = Vec::new();
        while empty.try_reserve(1).is_ok()
            && let Some(chunk) = self.stubs.take_unused(books.hold)
        {
            empty.push(chunk.pointer());
        }
        books.has_left_stubs &= !self.stubs.is_empty();
        empty
    }
}
