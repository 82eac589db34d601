//! Checks of a host's promises: before the first probe, and with the first ones.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Regs};
use crate::error::{EnableError, SelfTestError};
use crate::face::kprobe::{Hit, Kprobe};
use crate::face::kretprobe::Kretprobe;
use crate::place::Place;
use crate::state::host::Host;
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
    /// makes `call` call it, and removes them. Traps arrive, the frame leaves its gap, a hit within a hit
    /// leaves the outer one's frame alone, the slot runs, the call returns through its stub, and the text is
    /// then as it was.
    ///
    /// `place` is any function that may be probed; `call` calls it at least once, and is called in a handler,
    /// too. Call this after [`Probes::self_test`].
    ///
    /// # Errors
    /// The first broken promise. Some broken promises end the program instead.
    pub fn self_test_at(
        &'static self,
        place: impl Into<Place>,
        call: impl Fn() + Sync,
    ) -> Result<(), SelfTestError> {
        const UNKNOWN: usize = usize::MAX;
        let (gap, posts, returns) = (shared(UNKNOWN), shared(0), shared(0));
        let (seen, stepped, returned) = (gap.clone(), posts.clone(), returns.clone());
        let (nests, overwritten) = (shared(1), shared(0));
        let (may_nest, changed) = (nests.clone(), overwritten.clone());
        let nested: &(dyn Fn() + Sync) = &call;
        // SAFETY: only the lifetime is another one. Handlers use it in a section, while `nests` is set; that
        // is cleared, and a grace period has ended, before `call` is dropped.
        let nested: &'static (dyn Fn() + Sync) = unsafe { core::mem::transmute(nested) };
        let place = place.into();
        let kprobe = Kprobe::<H::Arch>::at(place.clone())
            .pre(move |hit| {
                seen.fetch_min(gap_above(hit.regs()).unwrap_or(UNKNOWN), Relaxed);
                if may_nest.load(Relaxed) == 1 {
                    nest(hit, nested, &changed);
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
        nests.store(0, Relaxed);
        self.quiesce();
        let counters = probe.counters();
        let (hits, has_nested) = (counters.hits, counters.missed_nested != 0);
        drop((probe, exit));
        let owed = H::Arch::TRAP_GAP;
        match (gap.load(Relaxed), hits) {
            (_, 0) => Err(SelfTestError::NoBreakpoint),
            (found, _) if found < owed => Err(SelfTestError::Gap { found, owed }),
            _ if !has_nested || overwritten.load(Relaxed) != 0 => Err(SelfTestError::Nested),
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

/// The distance from a trap's frame up to the interrupted stack pointer; none if that is another stack's.
fn gap_above<R: Regs>(frame: &R) -> Option<usize> {
    let end = ptr::from_ref(frame).addr() + size_of::<R>();
    Some(frame.sp().wrapping_sub(end)).filter(|distance| *distance < SAME_STACK)
}

/// Calls `nested` in a hit, and tells `changed` if that has changed the hit's registers, which are put back.
fn nest<A: Arch>(hit: &mut Hit<'_, A>, nested: &dyn Fn(), changed: &AtomicUsize) {
    // Past what the compiler knows of a reference.
    let frame = ptr::from_ref(hit.regs());
    // SAFETY: the registers are there as long as the hit.
    let before = unsafe { frame.read_volatile() };
    nested();
    // SAFETY: as above.
    if unsafe { frame.read_volatile() } != before {
        changed.store(1, Relaxed);
        *hit.regs_mut() = before;
    }
}

/// A counter for handlers.
fn shared(value: usize) -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(value))
}
