//! Jprobes: JMP_1 … JMP_3.

use crate::check::{Outcome, equal, ok};
use crate::targets::call;
use crate::{Case, Suite};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use probe_core::arch::Arch;
use probe_core::{Jprobe, Kprobe, Probes};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        jmp_1_the_handler_gets_the_arguments,
        jmp_1_arguments_on_the_stack_arrive,
        jmp_2_the_function_runs_from_its_first_instruction,
        jmp_2_a_hit_inside_a_jprobe_handler_is_missed,
        jmp_3_what_the_handler_does_to_its_arguments_stays_there,
    ]
}

/// What the last handler saw.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// The type of the targets with two arguments.
pub(crate) type Two = extern "C" fn(usize, usize) -> usize;
/// The type of the target with ten.
type Ten = extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize, usize) -> usize;

/// A jprobe on one of the targets with two arguments.
pub(crate) fn two<A: Arch>(target: &'static str, handler: Two) -> Jprobe<A> {
    // SAFETY: the targets that the suite names here have this signature.
    unsafe { Jprobe::at(target, handler) }
}

/// A jprobe on the target with ten arguments.
fn ten<A: Arch>(handler: Ten) -> Jprobe<A> {
    // SAFETY: `conformance_ten` has this signature.
    unsafe { Jprobe::at("conformance_ten", handler) }
}

fn jmp_1_the_handler_gets_the_arguments<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    extern "C" fn handler(a: usize, b: usize) -> usize {
        SEEN.store(a * 1000 + b, Relaxed);
        0
    }
    let probe = ok!(probes.register(two("conformance_add", handler)));
    equal!(call!(conformance_add(12, 34)), 46);
    equal!(SEEN.load(Relaxed), 12_034);
    equal!(probe.counters().hits, 1);
    Ok(())
}

/// Weighs the arguments as `conformance_ten` does, then destroys its copies of them.
extern "C" fn weigh(
    mut a: usize,
    mut b: usize,
    mut c: usize,
    mut d: usize,
    mut e: usize,
    mut f: usize,
    mut g: usize,
    mut h: usize,
    mut i: usize,
    mut j: usize,
) -> usize {
    let words = [&mut a, &mut b, &mut c, &mut d, &mut e, &mut f, &mut g, &mut h, &mut i, &mut j];
    let mut sum = 0;
    for (word, position) in words.into_iter().zip(1..) {
        sum += *word * position;
        // SAFETY: a live local variable; volatile, so that the store to the argument's own place is made.
        unsafe { core::ptr::write_volatile(word, 0xdead) };
    }
    SEEN.store(sum, Relaxed);
    0
}

fn jmp_1_arguments_on_the_stack_arrive<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let _probe = ok!(probes.register(ten(weigh)));
    let sum = call!(conformance_ten(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
    equal!(SEEN.load(Relaxed), sum);
    equal!(sum, 385);
    Ok(())
}

fn jmp_2_the_function_runs_from_its_first_instruction<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    extern "C" fn handler(_: usize, _: usize) -> usize {
        usize::MAX
    }
    let _probe = ok!(probes.register(two("conformance_add", handler)));
    let ran = crate::targets::ADDED.load(Relaxed);
    for n in 0..50 {
        equal!(call!(conformance_add(n, 1)), n + 1);
    }
    equal!(crate::targets::ADDED.load(Relaxed), ran + 50);
    Ok(())
}

fn jmp_2_a_hit_inside_a_jprobe_handler_is_missed<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    extern "C" fn handler(a: usize, b: usize) -> usize {
        SEEN.store(call!(conformance_mul(a, b)), Relaxed);
        0
    }
    let inner = ok!(probes.register(Kprobe::at("conformance_mul").pre(|_| ())));
    let _probe = ok!(probes.register(two("conformance_add", handler)));
    equal!(call!(conformance_add(6, 7)), 13);
    equal!(SEEN.load(Relaxed), 42);
    equal!((inner.counters().hits, inner.counters().missed_nested), (0, 1));
    equal!(call!(conformance_mul(6, 7)), 42);
    equal!(inner.counters().hits, 1);
    Ok(())
}

fn jmp_3_what_the_handler_does_to_its_arguments_stays_there<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    let bare = call!(conformance_ten(9, 8, 7, 6, 5, 4, 3, 2, 1, 11));
    let _probe = ok!(probes.register(ten(weigh)));
    equal!(call!(conformance_ten(9, 8, 7, 6, 5, 4, 3, 2, 1, 11)), bare);
    Ok(())
}
