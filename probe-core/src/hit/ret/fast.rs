//! Fast paths for the usual call and the usual return. [`ret`](super) handles all others, and would handle
//! these correctly, too. What a followed call costs with and without each, in guest instructions of the test
//! kernels (`r`, by trap, and `r_optimised`, by jump):
//!
//! | path | figure | x86-64 | ppc64le |
//! |---|---|---|---|
//! | [`return_from_stub`] | `r` | 271, without 502 | 414, without 699 |
//! | [`Probes::enter_plain`] | `r` | 271, without 307 | 414, without 470 |
//! | [`Probes::enter_by_owner`] | `r_optimised` | 204, without 265 | 311, without 388 |

use crate::addr::CodeAddr;
use crate::arch::{Entry, Regs, Resume, TrampolineHandler};
use crate::state::context::Here;
use crate::state::host::{Host, RegsOf, running};
use crate::state::instance::Instance;
use crate::state::pinned::Pinned;
use crate::state::pool::Pool;
use crate::state::probes::Probes;
use crate::state::stub::program_of;
use crate::state::task::Task;
use crate::sync::{Relaxed, Release};
use core::marker::PhantomData;
use core::ptr;

/// [`return_from_stub`] as a trampoline's handler.
pub(crate) struct Returned<H>(PhantomData<H>);

impl<H: Host> TrampolineHandler<RegsOf<H>> for Returned<H> {
    const FUNCTION: extern "C" fn(usize, *mut RegsOf<H>) -> Resume = return_from_stub::<H>;
}

/// The function of every return stub of `Probes<H>`, called by the backend's trampoline.
///
/// The usual case: the context is idle, the call is the newest of its own task, and its return address is no
/// stub. No other context touches the list of a task whose stack runs here: a call is on it only if it was
/// entered on that stack, and its stub lies there, too.
#[inline(always)]
pub(super) extern "C" fn return_from_stub<H: Host>(stub: usize, regs: *mut RegsOf<H>) -> Resume {
    // SAFETY: the trampoline gives the registers it has saved, which nobody else uses meanwhile.
    let regs = unsafe { &mut *regs };
    let stub = CodeAddr::new(stub);
    let probes = Probes::of(program_of::<H>(stub));
    let pinned = Pinned::begin(&probes.host);
    let Some(context) = running(&probes.host) else { return returned_otherwise::<H>(stub, regs, pinned) };
    let Some(task) = probes.host.task() else { return returned_otherwise::<H>(stub, regs, pinned) };
    let Some(word) = context.idle_word() else { return returned_otherwise::<H>(stub, regs, pinned) };
    let stay = context.open_idle(word);
    let Some(instance) = task.newest().filter(|newest| newest.stub == stub && newest.life.claim_newest())
    else {
        context.close_idle(word, stay);
        return returned_otherwise::<H>(stub, regs, pinned);
    };
    regs.set_pc(instance.real());
    task.pending.store(instance.next.load(Relaxed), Release);
    let ending = instance.ends().ending(stay.section());
    context.set_current(ending.probe.node());
    // SAFETY: the call is claimed, and its data still there; the section has found the ending.
    let resume = unsafe { ending.run(regs, instance.data) };
    context.set_current(ptr::null());
    instance.life.release_newest();
    context.close_only(stay);
    pinned.end(&probes.host);
    resume
}

/// All returns but the usual ones.
///
/// It looks the stub's program up again, so that the fast path need not, where the host is a constant.
#[inline(never)]
fn returned_otherwise<H: Host>(stub: CodeAddr, regs: &mut RegsOf<H>, pinned: Pinned) -> Resume {
    Probes::of(program_of::<H>(stub)).returned_pinned(regs, stub, pinned)
}

impl<H: Host> Probes<H> {
    /// Enters a plain call of a probe without an entry handler by the pool's own instance, which the context
    /// owns. `None`: it is not plain, or the instance is not free. An error as of [`Probes::bind_call`].
    #[inline(always)]
    pub(crate) fn enter_by_owner<'a>(
        &self,
        own: &'a Instance<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Option<Result<(), &'a Instance<H::Arch>>> {
        let (task, entry) = self.plain_call(regs)?;
        let seen = own.seen_free()?;
        own.bind_from_free(seen, entry.return_address, entry.frame, task.identity());
        Some(self.link_call(Some(task), ptr::null_mut(), own, regs))
    }

    /// Enters a plain call of a probe without an entry handler by the instance that the context had last.
    /// `None`: as above.
    #[inline(always)]
    pub(crate) fn enter_plain<'a>(
        &self,
        here: Here<'_, H::Arch>,
        pool: &'a Pool<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Option<Result<(), &'a Instance<H::Arch>>> {
        let (task, entry) = self.plain_call(regs)?;
        let instance = pool.try_take(here.identity())?;
        Some(self.bind_call(Some(task), ptr::null_mut(), instance, entry, entry.return_address, regs))
    }

    /// The task and the entry of a plain call: from the program's own text, on the task's stack, where no
    /// other call is pending.
    #[inline(always)]
    fn plain_call(&self, regs: &RegsOf<H>) -> Option<(&Task<H::Arch>, Entry)> {
        let task = self.host.task().filter(|task| task.is_idle())?;
        let entry = self.entry_of_call(regs)?;
        let is_plain = task.runs_at(entry.frame) && !self.stubs.may_hold(entry.return_address);
        is_plain.then_some((task, entry))
    }
}
