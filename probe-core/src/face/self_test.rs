//! Checks of a host's promises: before the first probe, and with the first ones.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Regs};
use crate::error::{EnableError, SelfTestError};
use crate::face::kprobe::Kprobe;
use crate::face::kretprobe::Kretprobe;
use crate::place::Place;
use crate::state::host::{Host, RegsOf};
use crate::state::pinned::Pinned;
use crate::state::probes::Probes;
use crate::state::slots::{CHUNK_LEN, OWN};
use crate::sync::{AtomicUsize, Relaxed};
use alloc::sync::Arc;
use core::ptr;

/// A trap frame this close below a stack pointer, in bytes, is on the same stack.
const SAME_STACK: usize = 1 << 14;

impl<H: Host> Probes<H> {
    /// Checks the host's promises as far as it can before the first probe is set: executable memory is
    /// available, can be written and read back; contexts and tasks stay the same.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn self_test(&self) -> Result<(), SelfTestError> {
        let same = |a: Option<*const ()>, b: Option<*const ()>| a.is_some() && a == b;
        let context = || self.host.context().map(|context| ptr::from_ref(context).cast());
        let has_context = Pinned::during(&self.host, || same(context(), context()));
        if !has_context {
            return Err(SelfTestError::Context);
        }
        let task = || self.host.task().map(|task| ptr::from_ref(task).cast());
        if !same(task(), task()) {
            return Err(SelfTestError::Task);
        }
        let at = self.host.alloc_exec(CHUNK_LEN, None).ok_or(SelfTestError::NoExec)?;
        let result = self.test_exec(at);
        // SAFETY: nobody has been told of it.
        unsafe { self.host.free_exec(at, CHUNK_LEN) };
        result
    }

    /// Checks the promises that only a hit can show: plants probes at the entry of a function of the program,
    /// makes `call` call it, and removes them. Traps arrive, the frame leaves its gap, the slot runs, the
    /// call returns through its stub, and the text is then as it was.
    ///
    /// `place` is any function that may be probed; `call` calls it at least once. Call this after
    /// [`Probes::self_test`].
    ///
    /// # Errors
    /// The first broken promise. Some broken promises end the program instead.
    pub fn self_test_at(
        &'static self,
        place: impl Into<Place>,
        call: impl FnOnce(),
    ) -> Result<(), SelfTestError> {
        const UNKNOWN: usize = usize::MAX;
        let (gap, posts, returns) = (shared(UNKNOWN), shared(0), shared(0));
        let (seen, stepped, returned) = (gap.clone(), posts.clone(), returns.clone());
        let place = place.into();
        let kprobe = Kprobe::<H::Arch>::at(place.clone())
            .pre(move |hit| {
                let frame_end = ptr::from_ref(hit.regs()).addr() + size_of::<RegsOf<H>>();
                let distance = hit.regs().sp().wrapping_sub(frame_end);
                // Farther away it is another stack.
                if distance < SAME_STACK {
                    seen.fetch_min(distance, Relaxed);
                }
            })
            .post(move |_| {
                stepped.fetch_add(1, Relaxed);
            });
        let kretprobe = Kretprobe::<H::Arch>::at(place).exit(move |_, ()| {
            returned.fetch_add(1, Relaxed);
        });
        let probe = self.register(kprobe.disabled()).map_err(SelfTestError::Register)?;
        let at = probe.addr();
        let text = self.text_at(at);
        // Without the power of calls none would return.
        let exit = match H::Arch::CALLS {
            Some(_) => Some(self.register(kretprobe).map_err(SelfTestError::Register)?),
            None => None,
        };
        probe.enable().map_err(|error| match error {
            EnableError::Text(error) => SelfTestError::Text(error),
            _ => SelfTestError::NoBreakpoint,
        })?;
        call();
        let hits = probe.counters().hits;
        drop((probe, exit));
        let owed = H::Arch::TRAP_GAP;
        match (gap.load(Relaxed), hits) {
            (_, 0) => Err(SelfTestError::NoBreakpoint),
            (found, _) if found < owed => Err(SelfTestError::Gap { found, owed }),
            _ if posts.load(Relaxed) == 0 => Err(SelfTestError::NoStep),
            _ if H::Arch::CALLS.is_some() && returns.load(Relaxed) == 0 => Err(SelfTestError::NoReturn),
            _ if self.text_at(at) != text => Err(SelfTestError::TextNotRestored(at)),
            _ => Ok(()),
        }
    }

    /// What stands under a breakpoint at `at`.
    fn text_at(&self, at: CodeAddr) -> [u8; 4] {
        let mut bytes = [0; 4];
        if let Some(out) = bytes.get_mut(..H::Arch::breakpoint(at).len()) {
            self.host.read_text(H::Arch::first_byte(at), out);
        }
        bytes
    }

    fn test_exec(&self, at: CodeAddr) -> Result<(), SelfTestError> {
        if at.as_usize() & (CHUNK_LEN - 1) != 0 {
            return Err(SelfTestError::Unaligned(at));
        }
        for pattern in [[0xa5; OWN], [0x5a; OWN]] {
            // SAFETY: the memory is ours and nobody executes in it.
            unsafe { self.host.write_text(at, &pattern) }.map_err(SelfTestError::Text)?;
            let mut told = [0; OWN];
            let read = self.host.read_text(at, &mut told);
            // SAFETY: mapped and readable, as `alloc_exec` promises, and aligned.
            let seen = unsafe { ptr::with_exposed_provenance::<[u8; OWN]>(at.as_usize()).read_volatile() };
            if read != OWN || told != pattern || seen != pattern {
                return Err(SelfTestError::WriteNotSeen(at));
            }
        }
        Ok(())
    }
}

/// A counter for handlers.
fn shared(value: usize) -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(value))
}
