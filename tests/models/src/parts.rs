//! Models of single parts, which machines come to seldom or in too many steps. Each is called from
//! `tests/parts.rs`.

// Not in tests of the library, for which its sources have atomics of their own.
#[cfg(not(test))]
#[path = "map.rs"]
mod map;

extern crate std;

use crate::addr::CodeAddr;
use crate::state::counter::{HitCounter, Shares, TwoWords};
use crate::state::life::{Claimed, LifeWord};
use crate::state::owner::{FirstOwner, Identity, Ownership};
use crate::state::spare::Spares;
use alloc::boxed::Box;
use loom::cell::UnsafeCell;
use loom::thread::JoinHandle;
use std::assert_eq;

/// Runs `body` at the same time.
fn context<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    const STACK_WORDS: usize = 1 << 16;
    loom::thread::Builder::new().stack_size(STACK_WORDS).spawn(body).expect("a thread")
}

/// There as long as the execution needs it.
fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// What only one context at a time may change.
struct Alone(UnsafeCell<u32>);

// SAFETY: loom ends the test where two threads touch it without an order between them.
unsafe impl Sync for Alone {}
// SAFETY: a number.
unsafe impl Send for Alone {}

impl Alone {
    fn new() -> &'static Self {
        leaked(Self(UnsafeCell::new(0)))
    }

    fn change(&self) {
        // SAFETY: loom's cell gives the pointer to one thread at a time, or ends the test.
        self.0.with_mut(|at| unsafe { *at += 1 });
    }
}

/// A context, for what tells contexts apart.
struct Number(usize);

impl Identity for Number {
    fn address(&self) -> usize {
        (self.0 + 1) * 0x100
    }

    fn number(&self) -> usize {
        self.0
    }
}

// ---- the life of an instance
// ----------------------------------------------------------------------------------------

/// A word that has been taken.
fn taken() -> &'static LifeWord {
    let life = leaked(LifeWord::new(false));
    assert!(life.take_own());
    life
}

/// A followed call returns on two contexts at once: one of them has it, and sees what was bound.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_claims() {
    let (life, data) = (taken(), Alone::new());
    let returns = move || {
        let is_ours = life.claim() == Some(Claimed::Live);
        if is_ours {
            data.change();
        }
        is_ours
    };
    let (one, other) = (context(returns), context(returns));
    data.change();
    life.bind(false);
    let ours = [one.join().unwrap(), other.join().unwrap()].iter().filter(|is_ours| **is_ours).count();
    assert!(ours <= 1, "both have it");
    assert_eq!(life.is_pending(), ours == 0);
}

/// A call returns in another task while its owner ends: one of the two releases it, and sees what the other
/// has done.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_orphans() {
    let (life, data) = (taken(), Alone::new());
    life.bind(false);
    let owner_ends = context(move || {
        if life.claim_live() || life.has_returned() || !life.disown() {
            data.change();
            life.release();
        }
    });
    if life.claim() == Some(Claimed::Live) {
        data.change();
        if !life.leave_to_owner() {
            data.change();
            life.release();
        }
    }
    owner_ends.join().unwrap();
    assert!(life.look().is_free(), "nobody has released it, or both");
}

/// A call is given up, and returns; or its instance is taken again, by one of two.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_given_up() {
    let (life, data) = (taken(), Alone::new());
    life.bind(false);
    let returns = context(move || match life.claim() {
        Some(_) => {
            data.change();
            life.release();
            true
        }
        None => false,
    });
    let takes = move || {
        let is_ours = life.take_given_up();
        if is_ours {
            data.change();
        }
        is_ours
    };
    let other = context(takes);
    if life.claim_live() {
        data.change();
        life.give_up();
    }
    let taken = [takes(), other.join().unwrap()].iter().filter(|is_ours| **is_ours).count();
    assert!(taken + usize::from(returns.join().unwrap()) <= 1, "two have it");
}

// ---- the first owner, and counters
// ----------------------------------------------------------------------------------

/// One of two contexts becomes the owner, until the other one has asked.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_owners() {
    let owner = leaked(FirstOwner::nobody(false));
    let asks = move |number| owner.claim(&Number(number));
    let other = context(move || asks(1));
    let standings = [asks(0), other.join().unwrap()];
    assert!(standings.contains(&Ownership::Won) && standings.contains(&Ownership::Shared), "{standings:?}");
    assert!(owner.is_shared());
}

/// Where one column of shares begins.
#[repr(align(1024))]
struct Column(HitCounter);

/// A hit as `by_jump` counts it.
fn hit(hits: &HitCounter, context: &Number, shares: &Shares) {
    if !hits.try_rise_alone(context) && !hits.try_rise_shared(context, shares) {
        hits.claim(context, shares);
        hits.rise_anywhere();
    }
}

/// Three contexts count, two of which would have one row.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_counts() {
    let (hits, shares) = (leaked(Column(HitCounter::new(false))), leaked(Shares::new()));
    let counts = move |number, times| (0..times).for_each(|_| hit(&hits.0, &Number(number), shares));
    let others = [(1, 3), (33, 2)].map(|(number, times)| context(move || counts(number, times)));
    counts(0, 1);
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(hits.0.get(shares), 6);
}

/// Shares of a probe that goes serve the next one, which counts from 0.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_shares() {
    let [before, after] = [(); 2].map(|()| leaked(Column(HitCounter::new(false))));
    let shares = leaked(Shares::new());
    before.0.claim(&Number(1), shares);
    (0..4).for_each(|_| hit(&before.0, &Number(0), shares));
    after.0.claim(&Number(1), shares);
    let other = context(move || (0..3).for_each(|_| hit(&after.0, &Number(0), shares)));
    before.0.end(shares);
    other.join().unwrap();
    assert_eq!(after.0.get(shares), 3);
}

/// A counter of two words is read while two contexts take it over half a turn.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_half_turn() {
    turn(1 << 31);
}

/// The same over a whole turn.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_whole_turn() {
    turn(1 << 32);
}

fn turn(around: u64) {
    let counter = leaked(TwoWords::at(around - 1));
    let others = [(); 2].map(|()| context(move || counter.rise()));
    let (first, second) = (counter.get(), counter.get());
    assert!((around - 1..=around + 1).contains(&first), "{first:#x}");
    assert!((first..=around + 1).contains(&second), "{second:#x} after {first:#x}");
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(counter.get(), around + 1);
}

// ---- spares
// ---------------------------------------------------------------------------------------------------------

/// Two contexts step in one slot without frames: each gets back what it has kept.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_spares() {
    let spares: &Spares<u32> = leaked(Spares::new());
    let slot = CodeAddr::new(0x1000);
    let steps = move |stack: usize, times: u32| {
        for kept in 0..times {
            let state = stack as u32 + kept;
            spares.claim().expect("there are more").fill(slot, stack, kept.into(), state);
            assert!(spares.holds(slot, stack));
            assert_eq!(spares.take(slot, stack), Some((kept.into(), state)));
        }
    };
    let other = context(move || steps(0x8000, 1));
    steps(0x4000, 2);
    other.join().unwrap();
    assert!(!spares.holds(slot, 0x4000));
}
