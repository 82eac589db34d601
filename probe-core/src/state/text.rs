//! The owner of text: what stands in text at each point's place, and the only code that writes there.
//!
//! ```text
//!            plant                 lay
//!  Original ───────► Breakpoint ───────► Starts ──► Tail ──► Whole
//!           ◄───────            ◄─────── Starts ◄── Tail ◄──
//!            restore               lift
//! ```
//! A point's [`TextWord`](word::TextWord) is the only record of it. A jump is laid in stages, with a
//! synchronisation of the cores after each: breakpoints where the displaced instructions start
//! ([`Stage::Starts`]), the rest of the jump behind its first bytes ([`Stage::Tail`]), the first bytes
//! ([`Stage::Whole`]). It is taken out in reverse. At every moment a context that arrives at one of these
//! instructions runs it, or traps and goes on in the copy, or jumps. A write that fails leaves the point at
//! the stage that text has reached, and the next call goes on from there.
//!
//! Only a [`Breakpoint`] becomes a jump, and only by [`Texts::lay`]: a jump that stands in text cannot be
//! replaced by another one, nor its detour forgotten, before [`Texts::lift`] has put the breakpoint back.

pub(crate) mod word;
pub(crate) mod writing;

use crate::arch::{Arch, Jumps};
use crate::error::TextError;
use crate::held::Hold;
use crate::state::detour::{Detour, MAX_DISPLACED_LEN};
use crate::state::host::{Host, JumpsOf};
use crate::state::point::Point;
use crate::state::task::Task;
use crate::sync::{Acquire, AtomicPtr, AtomicUsize, Relaxed, Release, SeqCst, fence};
use core::ptr;
use word::{BREAKPOINT, STAGE};
use writing::Writing;

/// What stands in text at a point's place.
pub(crate) enum Standing<H: Host> {
    /// The program's own instruction; or the text has gone.
    Original,
    /// The breakpoint.
    Breakpoint,
    /// The jump to this detour, or a part of it.
    Jump(&'static Detour<H>, Stage),
}

/// How much of a jump stands in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The point's breakpoint; other displaced instructions may begin with breakpoints.
    Starts,
    /// The point's breakpoint, and breakpoints where all other displaced instructions start; the bytes
    /// between may be the jump's.
    Tail,
    /// All of it.
    Whole,
}

impl<H: Host> Standing<H> {
    /// What stands at the place of `point`.
    #[inline]
    pub(crate) fn of(point: &Point<H::Arch>) -> Self {
        let word = point.text.0.load(Acquire);
        match word.addr() {
            0 => Self::Original,
            BREAKPOINT => Self::Breakpoint,
            addr => {
                let stage = match addr & STAGE {
                    0 => Stage::Whole,
                    1 => Stage::Tail,
                    _ => Stage::Starts,
                };
                let detour = word.map_addr(|addr| addr & !STAGE).cast_const().cast::<Detour<H>>();
                // SAFETY: only `Texts::set` writes addresses here, of detours of the program that the point
                // belongs to, and detours are kept for good.
                Self::Jump(unsafe { &*detour }, stage)
            }
        }
    }

    fn word(&self) -> *mut () {
        const { assert!(align_of::<Detour<H>>() > STAGE) };
        match self {
            Self::Original => ptr::null_mut(),
            Self::Breakpoint => ptr::without_provenance_mut(BREAKPOINT),
            Self::Jump(detour, stage) => {
                let bits = match stage {
                    Stage::Whole => 0,
                    Stage::Tail => 1,
                    Stage::Starts => 2,
                };
                ptr::from_ref(*detour).cast_mut().cast::<()>().map_addr(|addr| addr | bits)
            }
        }
    }

    /// The detour whose jump, or a part of it, stands there.
    #[inline]
    pub(crate) fn detour(self) -> Option<&'static Detour<H>> {
        if let Self::Jump(detour, _) = self { Some(detour) } else { None }
    }
}

/// A place where the program's own instruction stands.
#[must_use]
pub(crate) struct Original<'a, H: Host>(&'a Point<H::Arch>);

/// A place where our breakpoint stands: only such a place can get a jump.
#[must_use]
pub(crate) struct Breakpoint<'a, H: Host>(&'a Point<H::Arch>);

/// A place where a jump stands, or a part of one.
#[must_use]
pub(crate) struct Jump<'a, H: Host>(&'a Point<H::Arch>);

/// A place, by what stands there.
pub(crate) enum Spot<'a, H: Host> {
    Original(Original<'a, H>),
    Breakpoint(Breakpoint<'a, H>),
    Jump(Jump<'a, H>),
}

impl<'a, H: Host> Spot<'a, H> {
    /// The place of `point`. Under the registry's lock.
    #[inline]
    pub(crate) fn of(point: &'a Point<H::Arch>) -> Self {
        match point.text.0.load(Acquire).addr() {
            0 => Self::Original(Original(point)),
            BREAKPOINT => Self::Breakpoint(Breakpoint(point)),
            _ => Self::Jump(Jump(point)),
        }
    }

    /// The jump that stands there, or the part of one.
    pub(crate) fn jump(self) -> Option<Jump<'a, H>> {
        if let Self::Jump(jump) = self { Some(jump) } else { None }
    }
}

/// Changes of text: one at a time, by who has the registry's lock.
pub(crate) struct Texts<A: Arch> {
    /// Odd while a breakpoint is being written or taken away: text and its point may differ then.
    changes: AtomicUsize,
    /// The task that is changing text, while one is; else null.
    changer: AtomicPtr<Task<A>>,
    /// The number of places with a jump, or a part of one.
    jumps: AtomicUsize,
}

impl<A: Arch> Texts<A> {
    /// Nothing of ours stands anywhere.
    pub(crate) const fn new() -> Self {
        Self {
            changes: AtomicUsize::new(0),
            changer: AtomicPtr::new(ptr::null_mut()),
            jumps: AtomicUsize::new(0),
        }
    }

    /// The number of places with a jump, or a part of one.
    pub(crate) fn jumps(&self) -> usize {
        self.jumps.load(Relaxed)
    }

    /// How often a change has begun or ended; odd while one goes on.
    pub(crate) fn changes(&self) -> usize {
        self.changes.load(SeqCst)
    }

    /// Whether `task` is in the middle of changing text; then no other task changes any. Our own breakpoints
    /// stand there only while their point says so, during a change, too.
    pub(crate) fn is_changed_by(&self, task: Option<&Task<A>>) -> bool {
        let changer = self.changer.load(Relaxed);
        task.is_some_and(|task| ptr::eq(task, changer))
    }

    /// Runs `change`, during which text and its points may differ: a trap meanwhile learns that it cannot
    /// tell yet whose breakpoint it has seen.
    fn changing<H: Host<Arch = A>, R>(&self, host: &H, change: impl FnOnce() -> R) -> R {
        let task = host.task().map_or(ptr::null_mut(), |task| ptr::from_ref(task).cast_mut());
        self.changer.store(task, Relaxed);
        self.changes.fetch_add(1, SeqCst);
        fence(SeqCst);
        let result = change();
        fence(SeqCst);
        self.changes.fetch_add(1, SeqCst);
        self.changer.store(ptr::null_mut(), Relaxed);
        result
    }

    fn set<H: Host<Arch = A>>(&self, point: &Point<A>, to: Standing<H>) {
        point.text.0.store(to.word(), Release);
    }

    fn set_jumps(&self, count: usize) {
        self.jumps.store(count, Relaxed);
    }

    /// Writes the breakpoint.
    ///
    /// # Errors
    /// The original instruction stands there still.
    pub(crate) fn plant<H: Host<Arch = A>>(
        &self,
        host: &H,
        _hold: &Hold,
        Original(point): Original<'_, H>,
    ) -> Result<(), TextError> {
        self.changing(host, || {
            // First: a hit finds it planted.
            self.set::<H>(point, Standing::Breakpoint);
            // SAFETY: an instruction starts there, whose bytes the point has saved.
            let written = unsafe { host.write_text(A::first_byte(point.place), A::breakpoint(point.place)) };
            if written.is_err() {
                self.set::<H>(point, Standing::Original);
            }
            written
        })
    }

    /// Puts the original instruction back.
    ///
    /// # Errors
    /// The breakpoint stands there still.
    pub(crate) fn restore<H: Host<Arch = A>>(
        &self,
        host: &H,
        _hold: &Hold,
        Breakpoint(point): Breakpoint<'_, H>,
    ) -> Result<(), TextError> {
        self.changing(host, || {
            let mut now = [0; 4];
            let (start, breakpoint) = (A::first_byte(point.place), A::breakpoint(point.place));
            let len = breakpoint.len();
            let (Some(now), Some(saved)) = (now.get_mut(..len), point.saved.get(..len)) else {
                return Ok(());
            };
            let read = host.read_text(start, now);
            // Bytes that somebody else has written over our breakpoint stay.
            if read < len || now == breakpoint {
                // SAFETY: these are the bytes that the breakpoint replaced.
                unsafe { host.write_text(start, saved) }?;
            }
            self.set::<H>(point, Standing::Original);
            Ok(())
        })
    }

    /// Lays jumps to these detours, each at a place of its own.
    ///
    /// # Errors
    /// The first text that could not be written: its place has its breakpoint, or what [`Stage`] says.
    pub(crate) fn lay<'a, H: Host<Arch = A>>(
        &self,
        host: &H,
        hold: &Hold,
        jumps: &[(Breakpoint<'a, H>, &'static Detour<H>)],
    ) -> Result<(), TextError> {
        if jumps.is_empty() {
            return Ok(());
        }
        let _writing = Writing::begin(host, hold);
        let mut result = self.changing(host, || {
            let mut result = Ok(());
            for (Breakpoint(point), detour) in jumps {
                let standing = Standing::<H>::of(point);
                debug_assert!(matches!(standing, Standing::Breakpoint), "two jumps at one place");
                // From here on a trap at a displaced instruction finds the copy.
                detour.serve(hold, Some(point));
                self.set(point, Standing::Jump(detour, Stage::Starts));
                self.set_jumps(self.jumps() + 1);
                result = result.and(write_starts(host, detour, None));
            }
            result
        });
        // Not if an instruction still stands there: the bytes between are its operands.
        if result.is_ok() {
            if A::Jumps::JUMP_LEN > A::INSN_ALIGN {
                host.sync_cores();
            }
            for (Breakpoint(point), detour) in jumps {
                self.set(point, Standing::Jump(detour, Stage::Tail));
                result = result.and(write_between(host, detour, &detour.jump()));
            }
            if A::Jumps::JUMP_LEN > A::INSN_ALIGN {
                host.sync_cores();
            }
        }
        if result.is_ok() {
            for (Breakpoint(point), detour) in jumps {
                let jump = detour.jump();
                let head = jump.get(..A::breakpoint(point.place).len()).unwrap_or(&jump);
                // SAFETY: our breakpoint becomes the first bytes of a jump whose others are there.
                let written = unsafe { host.write_text(A::first_byte(point.place), head) };
                if written.is_ok() {
                    self.set(point, Standing::Jump(detour, Stage::Whole));
                }
                result = result.and(written);
            }
            host.sync_cores();
        }
        let is_half = |point: &&Point<A>| {
            matches!(Standing::<H>::of(point), Standing::Jump(_, Stage::Starts | Stage::Tail))
        };
        // Writes that have become useless are undone, as far as text can be written.
        let undone = self.lift_from_tails(
            host,
            hold,
            jumps.iter().map(|(Breakpoint(point), _)| *point).filter(is_half),
        );
        result.and(undone)
    }

    /// Takes jumps out of text, leaving breakpoints.
    ///
    /// # Errors
    /// The first text that could not be written: a part of its jump stands there still, as [`Stage`] says.
    pub(crate) fn lift<H: Host<Arch = A>>(
        &self,
        host: &H,
        hold: &Hold,
        jumps: &[Jump<'_, H>],
    ) -> Result<(), TextError> {
        if jumps.is_empty() {
            return Ok(());
        }
        let _writing = Writing::begin(host, hold);
        let mut first = Ok(());
        for Jump(point) in jumps {
            let Standing::<H>::Jump(detour, Stage::Whole) = Standing::of(point) else { continue };
            // SAFETY: the first bytes of a jump become the breakpoint, which is shorter, or as long.
            let written = unsafe { host.write_text(A::first_byte(point.place), A::breakpoint(point.place)) };
            if written.is_ok() {
                self.set(point, Standing::Jump(detour, Stage::Tail));
            }
            first = first.and(written);
        }
        host.sync_cores();
        first.and(self.lift_from_tails(host, hold, jumps.iter().map(|Jump(point)| *point)))
    }

    /// The rest of the way back, for points whose jumps no context takes any more.
    fn lift_from_tails<'a, H: Host<Arch = A>>(
        &self,
        host: &H,
        hold: &Hold,
        points: impl Iterator<Item = &'a Point<A>> + Clone,
    ) -> Result<(), TextError>
    where
        A: 'a,
    {
        let mut first = Ok(());
        let mut is_any = false;
        for point in points.clone() {
            let Standing::<H>::Jump(detour, stage) = Standing::of(point) else { continue };
            is_any |= stage != Stage::Whole;
            if stage != Stage::Tail {
                continue;
            }
            let written = write_between(host, detour, &detour.text);
            if written.is_ok() {
                self.set(point, Standing::Jump(detour, Stage::Starts));
            }
            first = first.and(written);
        }
        if !is_any {
            return first;
        }
        if A::Jumps::JUMP_LEN > A::INSN_ALIGN {
            host.sync_cores();
        }
        let restored = self.changing(host, || {
            let mut first = Ok(());
            for point in points {
                let Standing::<H>::Jump(detour, Stage::Starts) = Standing::of(point) else { continue };
                let written = write_starts(host, detour, Some(&detour.text));
                if written.is_ok() {
                    detour.serve(hold, None);
                    self.set::<H>(point, Standing::Breakpoint);
                    self.set_jumps(self.jumps().saturating_sub(1));
                }
                first = first.and(written);
            }
            first
        });
        if A::Jumps::JUMP_LEN > A::INSN_ALIGN {
            host.sync_cores();
        }
        first.and(restored)
    }

    /// Notes that the text of `point` has gone, with whatever stood there.
    pub(crate) fn forget<H: Host<Arch = A>>(&self, hold: &Hold, point: &Point<A>) {
        if let Some(detour) = Standing::<H>::of(point).detour() {
            detour.serve(hold, None);
            self.set_jumps(self.jumps().saturating_sub(1));
        }
        self.set::<H>(point, Standing::Original);
    }
}

/// Whether somebody else has written over our bytes at the place of `point`, or other text has been loaded
/// there unnoticed. This is the only question asked of memory: what *we* have written is known.
pub(crate) fn is_overwritten<H: Host>(host: &H, point: &Point<H::Arch>) -> bool {
    let breakpoint = H::Arch::breakpoint(point.place);
    let jump;
    let ours = match Standing::<H>::of(point) {
        Standing::Original => return false,
        Standing::Breakpoint | Standing::Jump(_, Stage::Starts | Stage::Tail) => breakpoint,
        Standing::Jump(detour, Stage::Whole) => {
            jump = detour.jump();
            jump.get(..JumpsOf::<H>::JUMP_LEN).unwrap_or(&jump)
        }
    };
    let mut now = [0; MAX_DISPLACED_LEN];
    let Some(now) = now.get_mut(..ours.len()) else { return true };
    host.read_text(H::Arch::first_byte(point.place), now) < ours.len() || now != ours
}

/// Writes where displaced instructions but the first start under the jump, one at a time: breakpoints, or the
/// bytes of `text`.
fn write_starts<H: Host>(
    host: &H,
    detour: &Detour<H>,
    text: Option<&[u8; MAX_DISPLACED_LEN]>,
) -> Result<(), TextError> {
    let breakpoint = H::Arch::breakpoint(detour.place);
    for start in detour.displaced.starts().filter(|start| (1..JumpsOf::<H>::JUMP_LEN).contains(start)) {
        let original = text.and_then(|text| text.get(start..start + breakpoint.len()));
        let at = H::Arch::first_byte(detour.place).wrapping_add(start);
        // SAFETY: an instruction starts there, which becomes a breakpoint or itself again.
        unsafe { host.write_text(at, original.unwrap_or(breakpoint)) }?;
    }
    Ok(())
}

/// Writes those bytes under the jump, behind the breakpoint, that neither begin an instruction nor lie in the
/// breakpoint that begins one.
fn write_between<H: Host>(
    host: &H,
    detour: &Detour<H>,
    bytes: &[u8; MAX_DISPLACED_LEN],
) -> Result<(), TextError> {
    let breakpoint = H::Arch::breakpoint(detour.place).len();
    let is_start = |at: usize| detour.displaced.starts().any(|start| start == at);
    let mut from = breakpoint;
    while from < JumpsOf::<H>::JUMP_LEN {
        let to = (from..JumpsOf::<H>::JUMP_LEN).find(|at| is_start(*at)).unwrap_or(JumpsOf::<H>::JUMP_LEN);
        let run = bytes.get(from..to).unwrap_or(&[]);
        if !run.is_empty() {
            let at = H::Arch::first_byte(detour.place).wrapping_add(from);
            // SAFETY: before it stands a breakpoint, on every way to it: nobody executes it.
            unsafe { host.write_text(at, run) }?;
        }
        from = to + breakpoint;
    }
    Ok(())
}
