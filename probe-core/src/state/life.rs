//! The life of a return instance: one word, and every way that it may change.
//!
//! ```text
//!               take, take_own                  bind
//!    ┌─► Free ────────────────────► Taken ───────────────► Pending, PendingChain ─────┐
//!    │    │                          │ ▲                     │ ▲      │               │ claim,
//!    │    │ follow_from_free         │ │ take_given_up       │ │      │ give_up       │ claim_newest
//!    │    └──────────────────────────┼─┼─────────────────────┼─┘      ▼               ▼
//!    │          release (vetoed)     │ └─────────────────────┼──── GivenUp ───────► Claimed
//!    ├───────────────────────────────┘                       │         claim          │  │
//!    │          release                                      │                        │  │
//!    ├───────────────────────────────────────────────────────┴────────────────────────┘  │
//!    │          release, by the owner of the list        leave_to_owner                   │
//!    ├──────────────────────────────────────── Returned ◄─────────────────────────────────┤
//!    │          release, by whoever claimed               disown                          │
//!    └──────────────────────────────────────── Orphan ◄───────────────────────────────────┘
//! ```
//!
//! - *Pending*: the stub stands for the return address of a call; in *PendingChain* that address is another
//!   call's stub.
//! - *Returned*: the call has returned in another task than the one whose list it is on.
//! - *Orphan*: that task has ended while the call was being ended.
//! - *GivenUp*: the call is not expected to return. It has been counted as abandoned, and its data has been
//!   dropped; but its stub leads home until the instance is taken again, which happens only when no other one
//!   is free.
//!
//! A transition is a plain store where its name's documentation says who alone may make it, and an exchange
//! elsewhere. The bits above the state count how often the instance has been taken, so that an exchange fails
//! where the instance has been through another call.

use crate::sync::{AcqRel, Acquire, AtomicU32, Relaxed, Release};

/// The state of an instance: the lowest bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Life {
    /// In the pool.
    Free = 0,
    /// Its stub stands for the return address of a call, which is in the program's own text.
    Pending = 1,
    /// Somebody is ending the call.
    Claimed = 2,
    /// It has returned in another task than its owner, whose list it is still on.
    Returned = 3,
    /// Claimed, and its owner has ended meanwhile: it is on no list.
    Orphan = 4,
    /// As [`Life::Pending`], where the return address is another call's stub.
    PendingChain = 5,
    /// Being filled.
    Taken = 6,
    /// Abandoned, but not taken since: its stub still leads home.
    GivenUp = 7,
}

/// The bits of a [`Life`].
const LIFE: u32 = 7;
/// Set in the word of an instance that has a bit in its pool's map.
const MAPPED: u32 = 8;
/// The bits from this one on count how often it has been taken.
const TURN_ONE: u32 = 16;

/// What a [`LifeWord`] has said.
#[derive(Clone, Copy)]
pub(crate) struct Seen(u32);

impl Seen {
    /// Whether it is in the pool.
    #[inline(always)]
    pub(crate) fn is_free(self) -> bool {
        self.0 & LIFE == Life::Free as u32
    }

    /// How often it has been taken.
    #[inline(always)]
    pub(crate) fn turns(self) -> u32 {
        self.0 / TURN_ONE
    }

    fn is(self, life: Life) -> bool {
        self.0 & LIFE == life as u32
    }

    fn is_pending(self) -> bool {
        self.is(Life::Pending) || self.is(Life::PendingChain)
    }

    /// Another state, the same turn.
    fn with(self, life: Life) -> u32 {
        self.0 & !LIFE | life as u32
    }
}

/// What a call was that somebody has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Pending: the context that has claimed it owns its data.
    Live,
    /// Given up before: its data is gone.
    GivenUp,
}

/// How an instance comes back to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// The word has told everybody.
    Done,
    /// The pool's map is still to be told.
    ToMap,
}

/// A state, whether a map tells of the instance, and turns; a word, which every processor can exchange by
/// itself.
pub(crate) struct LifeWord(AtomicU32);

impl LifeWord {
    /// A free instance's; a pool's map may tell of it.
    pub(crate) const fn new(is_mapped: bool) -> Self {
        Self(AtomicU32::new(if is_mapped { MAPPED } else { 0 }))
    }

    /// Reads the word. Acquire: later looks come behind this one.
    #[inline(always)]
    pub(crate) fn look(&self) -> Seen {
        Seen(self.0.load(Acquire))
    }

    /// As [`LifeWord::look`], for [`LifeWord::take`].
    #[inline(always)]
    pub(crate) fn glance(&self) -> Seen {
        Seen(self.0.load(Relaxed))
    }

    /// Whether the stub is the return address of a followed call.
    pub(crate) fn is_pending(&self) -> bool {
        self.look().is_pending()
    }

    /// Whether it is, and stands for another call's stub.
    pub(crate) fn is_pending_in_chain(&self) -> bool {
        self.look().is(Life::PendingChain)
    }

    /// Whether a return to the stub finds its way home.
    pub(crate) fn leads_home(&self) -> bool {
        let seen = self.look();
        seen.is_pending() || seen.is(Life::GivenUp)
    }

    /// Whether the call has returned in another task, and waits for its owner to release it.
    pub(crate) fn has_returned(&self) -> bool {
        self.look().is(Life::Returned)
    }

    // ---- into a call --------------------------------------------------------------------------------------

    /// Free → Taken, if the word still is what was seen, which was free.
    #[inline(always)]
    pub(crate) fn take(&self, Seen(life): Seen) -> bool {
        let taken = life.wrapping_add(TURN_ONE + Life::Taken as u32);
        // Acquire: the last use of the instance comes before. Release: a context that sees it taken
        // sees which ones the context had given back before.
        self.0.compare_exchange(life, taken, AcqRel, Relaxed).is_ok()
    }

    /// Free → Taken by a store, by the only context that takes it.
    #[inline(always)]
    pub(crate) fn take_own(&self) -> bool {
        // Acquire and release: as in `take`.
        let Seen(life) = self.look();
        let is_free = Seen(life).is_free();
        if is_free {
            self.0.store(life.wrapping_add(TURN_ONE + Life::Taken as u32), Release);
        }
        is_free
    }

    /// Free → Taken by a store, by the context that has taken its bit out of the map.
    pub(crate) fn take_mapped(&self) {
        let Seen(life) = self.glance();
        debug_assert!(Seen(life).is_free(), "its bit was in the map");
        self.0.store(life.wrapping_add(TURN_ONE + Life::Taken as u32), Relaxed);
    }

    /// GivenUp → Taken.
    pub(crate) fn take_given_up(&self) -> bool {
        let seen = self.glance();
        let taken = seen.with(Life::Taken).wrapping_add(TURN_ONE);
        // As in `take`.
        seen.is(Life::GivenUp) && self.0.compare_exchange(seen.0, taken, AcqRel, Relaxed).is_ok()
    }

    /// Taken → Pending, or PendingChain, by a store: nobody else changes it before this. From here on the
    /// stub may be returned to.
    #[inline(always)]
    pub(crate) fn bind(&self, is_chain: bool) {
        debug_assert!(self.glance().is(Life::Taken), "bound by who has not taken it");
        let life = if is_chain { Life::PendingChain } else { Life::Pending };
        let step = (life as u32).wrapping_sub(Life::Taken as u32);
        self.0.store(self.0.load(Relaxed).wrapping_add(step), Release);
    }

    /// Free → Pending by a store, by the only context that takes it, if [`LifeWord::look`] has seen it free.
    #[inline(always)]
    pub(crate) fn follow_from_free(&self, Seen(life): Seen) {
        debug_assert!(Seen(life).is_free() && self.0.load(Relaxed) == life, "two take it by a store");
        // Release: as in `take`.
        self.0.store(life.wrapping_add(TURN_ONE + Life::Pending as u32), Release);
    }

    // ---- out of a call ------------------------------------------------------------------------------------

    /// Pending, PendingChain, GivenUp → Claimed: begins to end the call.
    pub(crate) fn claim(&self) -> Option<Claimed> {
        let seen = self.glance();
        let was = match seen.is_pending() {
            true => Claimed::Live,
            false if seen.is(Life::GivenUp) => Claimed::GivenUp,
            false => return None,
        };
        // Acquire: what `bind` wrote before. Nothing has been done yet that anybody would have to see.
        self.0.compare_exchange(seen.0, seen.with(Life::Claimed), Acquire, Relaxed).ok().map(|_| was)
    }

    /// As [`LifeWord::claim`], for a call that is still expected to return.
    pub(crate) fn claim_live(&self) -> bool {
        let seen = self.glance();
        // Acquire: as in `claim`.
        seen.is_pending()
            && self.0.compare_exchange(seen.0, seen.with(Life::Claimed), Acquire, Relaxed).is_ok()
    }

    /// Pending → Claimed by a store, by the task that has just returned from the call, if that is its newest
    /// pending return: all others leave the instance alone meanwhile. Not if the return address is another
    /// call's stub, nor if the instance is in a map.
    #[inline(always)]
    pub(crate) fn claim_newest(&self) -> bool {
        // What is on a list is not free: this is one instruction, the comparison with `Pending` two.
        const OTHERS: u32 = (LIFE | MAPPED) & !(Life::Pending as u32);
        const { assert!(Life::Free as u32 | Life::Pending as u32 == !OTHERS & (LIFE | MAPPED)) };
        let life = self.0.load(Relaxed);
        debug_assert!(!Seen(life).is_free(), "on a list");
        let is_pending = life & OTHERS == 0;
        if is_pending {
            // Nobody else has changed it meanwhile; to add to it is one instruction.
            let step = Life::Claimed as u32 - Life::Pending as u32;
            self.0.store(self.0.load(Relaxed).wrapping_add(step), Relaxed);
        }
        is_pending
    }

    /// Claimed → Free by a store, after [`LifeWord::claim_newest`].
    #[inline(always)]
    pub(crate) fn release_newest(&self) {
        debug_assert!(self.glance().is(Life::Claimed), "released by who has not claimed it");
        // Release: all that was done with the instance, before it is taken again or the pool is freed.
        self.0.store(self.0.load(Relaxed) & !LIFE, Release);
    }

    /// Taken, Claimed, Returned, Orphan → Free by a store, by the context that has it.
    #[inline(always)]
    pub(crate) fn release(&self) -> Back {
        debug_assert!(
            !self.glance().is_free() && !self.glance().is_pending(),
            "released by who has not got it"
        );
        let life = self.0.load(Relaxed) & !LIFE;
        // The map, if it is in one, is told last. Release: as in `release_newest`.
        if life & MAPPED == 0 {
            self.0.store(life, Release);
            Back::Done
        } else {
            self.0.store(life, Relaxed);
            Back::ToMap
        }
    }

    /// Claimed → GivenUp by a store, by the context that has claimed it.
    pub(crate) fn give_up(&self) {
        debug_assert!(self.glance().is(Life::Claimed), "given up by who has not claimed it");
        // Release: as in `release_newest`.
        self.0.store(self.glance().with(Life::GivenUp), Release);
    }

    /// Claimed → Returned: the call is on another task's list; `false` if that task is gone and the caller
    /// has to release it.
    pub(crate) fn leave_to_owner(&self) -> bool {
        self.change_claimed(Life::Returned)
    }

    /// Claimed → Orphan: the owner of the list ends while another task ends the call; `false` if the call has
    /// ended meanwhile and the caller has to release it.
    pub(crate) fn disown(&self) -> bool {
        self.change_claimed(Life::Orphan)
    }

    fn change_claimed(&self, to: Life) -> bool {
        let seen = self.look();
        seen.is(Life::Claimed) && self.0.compare_exchange(seen.0, seen.with(to), AcqRel, Acquire).is_ok()
    }

    /// Whether it has been given up and not taken since.
    pub(crate) fn is_given_up(&self) -> bool {
        self.look().is(Life::GivenUp)
    }

    /// Whether it tells by itself that it is free.
    pub(crate) fn is_mapped(&self) -> bool {
        self.glance().0 & MAPPED != 0
    }
}
