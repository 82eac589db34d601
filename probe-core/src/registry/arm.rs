//! Breakpoints in text: planting and removing them, enabling, the switch.

use crate::arch::{Arch, Method, Tail};
use crate::error::{EnableError, SwitchError, TextError};
use crate::held::Hold;
use crate::state::host::{Host, Notice};
use crate::state::point::{DISABLED, GONE, HAS_POST, LEAVING, LINGERS, Mode, Node, Point, TAIL_JUMPS};
use crate::state::probes::Probes;
use crate::state::switches::Switch;
use crate::state::text::writing::Writing;
use crate::state::text::{Jump, Original, Spot};

/// What a user wants of a probe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Enable,
    Disable,
}

impl<H: Host> Probes<H> {
    /// Whether a point's breakpoint is to stand in text.
    pub(super) fn is_wanted(&self, point: &Point<H::Arch>) -> bool {
        self.is_on() && point.nodes().any(|node| !node.is_any(DISABLED | LEAVING | GONE))
    }

    /// Plants or removes a point's breakpoint, as its probes and the switch ask. Returns whether text has
    /// changed.
    pub(super) fn sync_point(&self, hold: &Hold, point: &Point<H::Arch>) -> Result<bool, TextError> {
        match (self.is_wanted(point), Spot::of(point)) {
            (true, Spot::Original(original)) => self.arm(hold, point, original),
            (false, Spot::Breakpoint(breakpoint)) => {
                self.places.texts().restore(&self.host, hold, breakpoint)
            }
            (false, Spot::Jump(jump)) => self.disarm(hold, point, jump),
            (true, Spot::Breakpoint(_) | Spot::Jump(_)) | (false, Spot::Original(_)) => return Ok(false),
        }?;
        Ok(true)
    }

    fn arm(&self, hold: &Hold, point: &Point<H::Arch>, original: Original<'_, H>) -> Result<(), TextError> {
        for other in self.jumps_over(hold, point.place) {
            self.unoptimise_points(hold, &[other])?;
        }
        self.places.texts().plant(&self.host, hold, original)
    }

    fn disarm(&self, hold: &Hold, point: &Point<H::Arch>, jump: Jump<'_, H>) -> Result<(), TextError> {
        self.places.texts().lift(&self.host, hold, &[jump])?;
        match Spot::<H>::of(point) {
            Spot::Breakpoint(breakpoint) => self.places.texts().restore(&self.host, hold, breakpoint),
            Spot::Original(_) | Spot::Jump(_) => Ok(()),
        }
    }

    // ---- tails
    // --------------------------------------------------------------------------------------------------

    /// First step before a probe with a post handler is linked: the slot has to end in a breakpoint. Returns
    /// whether that is new, so that the cores have to be synchronised before the second step.
    pub(super) fn end_in_breakpoint(&self, point: &Point<H::Arch>) -> Result<bool, TextError> {
        if !point.is(TAIL_JUMPS) {
            return Ok(false);
        }
        self.set_tail(point, Tail::Breakpoint).map(|()| true)
    }

    /// Second step: no context runs the jump any more, so a frame pushed from here on will be popped.
    pub(super) fn expect_post(&self, point: &Point<H::Arch>) {
        point.set(HAS_POST);
        match point.mode() {
            Mode::Simulate => point.set_mode(Mode::SimulatePost),
            Mode::Boost | Mode::BoostFresh => point.set_mode(Mode::Step),
            _ => {}
        }
    }

    /// Sets the mode after a probe has been taken off. The tail follows after a grace period, in
    /// [`Probes::let_tail_jump`].
    pub(super) fn update_mode(&self, point: &Point<H::Arch>) {
        let has_post = point.nodes().any(|node| node.has_post() && !node.is(LEAVING));
        if !has_post && point.is(HAS_POST) {
            point.clear(HAS_POST);
        }
        let mode = match point.method {
            Method::Simulate if has_post => Mode::SimulatePost,
            Method::Simulate => Mode::Simulate,
            _ if H::Arch::is_system_call(&point.plan) => Mode::SystemCall,
            Method::Boost if !has_post && point.is(LINGERS) => Mode::Boost,
            Method::Boost if !has_post => Mode::BoostFresh,
            _ => Mode::Step,
        };
        let is_boost = |mode| matches!(mode, Mode::Boost | Mode::BoostFresh);
        // A hit may be changing one into the other.
        if mode != point.mode() && !(is_boost(mode) && is_boost(point.mode())) {
            point.set_mode(mode);
        }
    }

    /// Lets the slot of a boosted point end in a jump. No context with a frame is in it.
    ///
    /// # Errors
    /// It could not be written: the breakpoint stays, and costs a second trap.
    pub(super) fn let_tail_jump(&self, point: &Point<H::Arch>) -> Result<(), TextError> {
        if self.has_slow_tail(point) { self.set_tail(point, Tail::Jump) } else { Ok(()) }
    }

    /// Whether a boosted point's slot still ends in a breakpoint.
    pub(super) fn has_slow_tail(&self, point: &Point<H::Arch>) -> bool {
        matches!(point.mode(), Mode::Boost | Mode::BoostFresh) && !point.is(TAIL_JUMPS)
    }

    fn set_tail(&self, point: &Point<H::Arch>, tail: Tail) -> Result<(), TextError> {
        let len = usize::from(point.insn_len);
        let Some(patch) = H::Arch::tail(&point.plan, len, point.place, point.slot, tail) else {
            return Ok(());
        };
        let at = H::Arch::first_byte(point.slot).wrapping_add(usize::from(patch.offset));
        let bytes = patch.bytes.get(..usize::from(patch.len_bytes)).unwrap_or(&patch.bytes);
        // SAFETY: the slot is the point's, and the backend says that this store switches it at once.
        unsafe { self.host.write_text(at, bytes) }?;
        match tail {
            Tail::Jump => point.set(TAIL_JUMPS),
            Tail::Breakpoint => point.clear(TAIL_JUMPS),
        }
        Ok(())
    }

    // ---- enabling and disabling
    // -----------------------------------------------------------------------------------

    pub(super) fn set_disabled(&self, node: &Node<H::Arch>, wish: Wish) -> Result<(), EnableError> {
        if wish == Wish::Disable {
            // At once, even if another context holds the lock.
            node.set(DISABLED);
        }
        if self.is_in_handler() {
            if wish == Wish::Enable {
                if node.is(GONE) {
                    return Err(EnableError::Gone(node.place()));
                }
                node.clear(DISABLED);
            }
            self.switches.note_change();
            return Ok(());
        }
        let mut books = self.lock();
        if node.is(GONE) {
            return if wish == Wish::Enable { Err(EnableError::Gone(node.place())) } else { Ok(()) };
        }
        if wish == Wish::Enable {
            node.clear(DISABLED);
        }
        let done = self.sync_point(books.hold(), node.point(books.hold()).get());
        if done.is_err() && wish == Wish::Enable {
            node.set(DISABLED);
        }
        if done.map_err(EnableError::Text)? {
            self.host.sync_cores();
        }
        self.settle_locked(&mut books);
        Ok(())
    }

    /// Whether the switch is on.
    pub fn is_on(&self) -> bool {
        self.switches.is_on()
    }

    /// Turns all probes on or off; each stays enabled or disabled by itself (CTL_2). While off, registering
    /// plants nothing.
    ///
    /// # Errors
    /// Called from a handler; or the first text that could not be written: the rest has been done.
    pub fn switch(&self, to: Switch) -> Result<(), SwitchError> {
        if self.is_in_handler() {
            return Err(SwitchError::InHandler);
        }
        let mut books = self.lock();
        self.switches.turn(to);
        let done = self.sync_all(books.hold());
        let watches = self.sync_watches(books.hold());
        self.settle_locked(&mut books);
        done.map_err(SwitchError::Text)?;
        watches.map_err(|(at, refusal)| SwitchError::CannotWatch { at, refusal })
    }

    /// Brings every breakpoint to the state that is asked for; the first failure is reported, the rest is
    /// done.
    pub(super) fn sync_all(&self, hold: &Hold) -> Result<(), TextError> {
        let mut first = self.unoptimise_where(hold, |point| !self.is_wanted(point));
        let mut has_changed = false;
        let writing = Writing::begin(&self.host, hold);
        for point in self.places.all(hold) {
            match self.sync_point(hold, point.get()) {
                Ok(changed) => has_changed |= changed,
                Err(error) => {
                    if point.text.is_planted() {
                        self.host.notice(Notice::StuckBreakpoint(point.place));
                    }
                    first = first.and(Err(error));
                }
            }
        }
        drop(writing);
        if has_changed {
            self.host.sync_cores();
        }
        first
    }
}
