//! Return stubs: handing them out to pools, and taking them back.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, NativeCalls, SaveSet};
use crate::error::{GrowError, NoMemory, NoStubs, RegisterError};
use crate::held::Hold;
use crate::room::{Room, free, leak};
use crate::state::host::{CallsOf, Host};
use crate::state::instance::Instance;
use crate::state::lock::OpenBooks;
use crate::state::pending::{Active, MAX_DATA_LEN, ReturnHandlers};
use crate::state::point::Handlers;
use crate::state::pool::{MAX_ACTIVE, Plan, Pool, Stubs};
use crate::state::probes::Probes;
use crate::state::return_probe::ReturnProbe;
use crate::state::slots::{CHUNK_LEN, OWN};
use crate::state::stub::StubChunk;
use crate::sync::{AtomicPtr, AtomicUsize, Relaxed, Release};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::{self, NonNull};

/// All that a return probe's half is made of but its handlers.
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
    /// What the return half of a probe needs: a pool of as many instances as `active` says, each with its stub (RET_3).
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
        // SAFETY: the words are their chunks', which stay until the pool has given its stubs back; one stub and the owner's.
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
        for point in self.points.iter(books.hold) {
            for node in point.get().nodes() {
                let Handlers::Return(half) = &node.handlers else { continue };
                let (size, was_low) = (half.pool().size(), half.pool().was_low());
                // Whose calls are left again and again has instances enough: those that were given up serve again.
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
        for chunk in &books.stubs {
            // SAFETY: chunks are freed after they have left the list.
            let chunk = unsafe { chunk.as_ref() };
            if chunk.save != save {
                continue;
            }
            let mut left = chunk.free.load(Relaxed);
            let mut index = chunk.cursor.load(Relaxed);
            while left != 0 && stubs.len() < wanted {
                index = if index + 1 < chunk.instances.len() { index + 1 } else { 1 };
                if chunk.instances[index].load(Relaxed).is_null()
                    && let Some(home) = chunk.home(index)
                {
                    stubs
                        .push((chunk.base.wrapping_add(index * CallsOf::<H>::STUB_LEN), ptr::from_ref(home)));
                    left -= 1;
                }
            }
            chunk.cursor.store(index, Relaxed);
        }
        stubs.len() == wanted
    }

    fn add_stub_chunk(&'static self, books: &mut OpenBooks<'_, H>, save: SaveSet) -> Result<(), NoStubs> {
        books.stubs.try_reserve(1).map_err(|_| NoMemory)?;
        let mut image = Vec::new();
        image.try_reserve_exact(CHUNK_LEN).map_err(|_| NoMemory)?;
        image.resize(CHUNK_LEN - OWN, 0);
        let retired = self.stubs.reserve(1)?;
        books.keep_array(retired);
        let base = self.host.alloc_exec(CHUNK_LEN, None).ok_or(NoStubs::Exec)?;
        let made = self.fill_stub_chunk(base, save, &mut image);
        match made {
            Ok(chunk) => {
                books.stubs.push(chunk);
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
        let mut instances = Vec::new();
        instances.try_reserve_exact(count).map_err(|_| NoMemory)?;
        instances.resize_with(count, || AtomicPtr::new(ptr::null_mut()));
        let mut homes = Vec::new();
        homes.try_reserve_exact(count).map_err(|_| NoMemory)?;
        homes.resize_with(count, || AtomicUsize::new(0));
        let chunk = leak(StubChunk {
            base,
            save,
            program: self.program(),
            instances: instances.into_boxed_slice(),
            homes: homes.into_boxed_slice(),
            free: AtomicUsize::new(count.saturating_sub(1)),
            cursor: AtomicUsize::new(0),
        })?;
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
        self.set_stub(hold, instance.stub, ptr::from_ref(instance).cast_mut());
    }

    fn set_stub(&self, hold: &Hold, stub: CodeAddr, instance: *mut Instance<H::Arch>) {
        let Some(chunk) = self.stubs.chunk(stub, hold) else { return };
        let index = stub.offset_from(chunk.base) as usize / CallsOf::<H>::STUB_LEN;
        let Some(cell) = chunk.instances.get(index) else { return };
        cell.store(instance, Release);
        let free = chunk.free.load(Relaxed);
        let free = if instance.is_null() { free.wrapping_add(1) } else { free.wrapping_sub(1) };
        chunk.free.store(free, Relaxed);
    }

    /// Makes a pool's stubs unreachable; the pool may be freed after a grace period.
    pub(super) fn detach_stubs(&self, hold: &Hold, pool: &Pool<H::Arch>) {
        for instance in pool.instances() {
            self.set_stub(hold, instance.stub, ptr::null_mut());
        }
    }

    /// Takes the chunks that have no stub in use off the table.
    pub(super) fn take_empty_stub_chunks(&self, books: &mut OpenBooks<'_, H>) -> Vec<NonNull<StubChunk<H>>> {
        let mut empty = Vec::new();
        while let Some(index) = books.stubs.iter().position(|chunk| {
            // SAFETY: chunks are freed after they have left the list.
            let chunk = unsafe { chunk.as_ref() };
            chunk.free.load(Relaxed).wrapping_add(1) == chunk.instances.len()
        }) {
            if empty.try_reserve(1).is_err() {
                break;
            }
            let chunk = books.stubs.swap_remove(index);
            // SAFETY: it has left the list just now; `clean_up` frees it after a grace period.
            self.stubs.remove(unsafe { chunk.as_ref() });
            empty.push(chunk);
        }
        if books.stubs.is_empty() {
            books.stubs = Vec::new();
        }
        empty
    }
}
