//! A hit: HIT_1 … HIT_12.

use crate::check::{Outcome, equal, ok, that};
use crate::reg::{extent, instructions, text};
use crate::targets::call;
use crate::{ArchOf, Case, Suite};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use probe_core::arch::{Arch, Method, Regs};
use probe_core::handler::Flow;
use probe_core::host::Host;
use probe_core::limits::MAX_DEPTH;
use probe_core::traps::Trap;
use probe_core::{CodeAddr, Kprobe, Place, Probes};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        hit_1_pre_then_instruction_then_post,
        hit_1_every_instruction_of_a_function_is_transparent,
        hit_2_the_pre_handler_sees_the_place_and_the_arguments,
        hit_2_a_changed_register_reaches_the_program,
        hit_2_a_redirected_hit_has_no_post,
        hit_3_the_post_handler_sees_the_next_instruction,
        hit_6_a_hit_inside_a_pre_handler_is_missed,
        hit_6_a_hit_inside_a_post_handler_is_missed,
        hit_6_a_probe_hit_by_its_own_handler_is_missed,
        hit_6_a_borrowed_register_is_given_back_deeper_than_the_stack_of_hits,
        hit_7_contexts_hit_together_and_the_count_is_exact,
        hit_8_counters_say_how_often_and_why_not,
        hit_10_the_last_disabled_probe_takes_the_breakpoint_away,
        hit_11_recursion_and_calls_are_transparent,
    ]
}

/// One shared number that handlers may change.
pub(crate) fn cell() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let cell = Arc::new(AtomicUsize::new(0));
    (cell.clone(), cell)
}

fn hit_1_pre_then_instruction_then_post<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (order, in_pre) = cell();
    let in_post = order.clone();
    let _probe = ok!(probes.register(
        Kprobe::<ArchOf<S>>::at("conformance_add").pre(move |_| in_pre.store(1, Relaxed)).post(move |_| {
            let seen = in_post.load(Relaxed);
            in_post.store(seen * 10 + 2, Relaxed);
        })
    ));
    equal!(call!(conformance_add(20, 22)), 42);
    equal!(order.load(Relaxed), 12);
    Ok(())
}

fn hit_1_every_instruction_of_a_function_is_transparent<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    for name in ["conformance_mix", "conformance_ten", "conformance_factorial", "conformance_outer"] {
        let work = || {
            (
                call!(conformance_mix(3, 40)),
                call!(conformance_ten(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
                call!(conformance_factorial(10)),
                call!(conformance_outer(4)),
            )
        };
        let bare = work();
        let mut planted = 0;
        for (with_post, at) in instructions(probes, name).into_iter().flat_map(|at| [(false, at), (true, at)])
        {
            let probe = Kprobe::<ArchOf<S>>::at(Place::addr(at)).pre(|_| ());
            let probe = if with_post { probe.post(|_| ()) } else { probe };
            // An instruction that the backend refuses is not planted: reg_9 holds that it says why.
            let Ok(probe) = probes.register(probe) else { continue };
            planted += 1;
            equal!(work(), bare, "with a probe at {at} of {name}, post handler: {with_post}");
            drop(probe);
        }
        that!(planted > 4, "only {planted} places of {name} can be probed");
    }
    Ok(())
}

fn hit_2_the_pre_handler_sees_the_place_and_the_arguments<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    let (seen, store) = cell();
    let (pc, store_pc) = cell();
    let probe = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_add").pre(move |hit| {
        store_pc.store(hit.regs().pc().as_usize(), Relaxed);
        let arguments = (hit.argument(0), hit.argument(1));
        if let (Some(a), Some(b)) = arguments {
            store.store(a * 1000 + b, Relaxed);
        }
    })));
    equal!(call!(conformance_add(12, 34)), 46);
    equal!(seen.load(Relaxed), 12_034);
    equal!(pc.load(Relaxed), probe.addr().as_usize());
    Ok(())
}

fn hit_2_a_changed_register_reaches_the_program<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    // Going to another function changes the one register that every architecture has: pc.
    let (target, _) = extent(probes, "conformance_mul");
    let _probe = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_sub").pre(move |hit| {
        hit.regs_mut().set_pc(target);
        Flow::Redirected
    })));
    equal!(call!(conformance_sub(6, 7)), 42);
    Ok(())
}

fn hit_2_a_redirected_hit_has_no_post<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (target, _) = extent(probes, "conformance_mul");
    let (posts, in_post) = cell();
    let probe = ok!(probes.register(
        Kprobe::<ArchOf<S>>::at("conformance_sub")
            .pre(move |hit| {
                hit.regs_mut().set_pc(target);
                Flow::Redirected
            })
            .post(move |_| {
                in_post.fetch_add(1, Relaxed);
            })
    ));
    equal!(call!(conformance_sub(6, 7)), 42);
    equal!(posts.load(Relaxed), 0);
    equal!(probe.counters().hits, 1);
    Ok(())
}

fn hit_3_the_post_handler_sees_the_next_instruction<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let name = "conformance_mix";
    let (start, len) = extent(probes, name);
    let inner = extent(probes, "conformance_inner").0.as_usize();
    for at in instructions(probes, name) {
        let (next, store) = cell();
        let probe = Kprobe::<ArchOf<S>>::at(Place::addr(at))
            .post(move |hit| store.store(hit.regs().pc().as_usize(), Relaxed));
        let Ok(probe) = probes.register(probe) else { continue };
        let _ = call!(conformance_mix(5, 30));
        if probe.counters().hits == 0 {
            continue;
        }
        let next = next.load(Relaxed);
        let inside = (start.as_usize()..start.as_usize() + len).contains(&next);
        // A call goes to the other function; a return goes to the caller, which is in some text.
        let elsewhere =
            next == inner || probes.host().probeable(next.into()) != probe_core::host::Probeable::NotText;
        that!(next != 0 && (inside || elsewhere), "after {at} the post handler saw pc = {next:#x}");
    }
    Ok(())
}

fn hit_6_a_hit_inside_a_pre_handler_is_missed<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let inner = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_mul").pre(|_| ())));
    let (product, store) = cell();
    let outer = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_add").pre(move |_| {
        store.store(call!(conformance_mul(6, 7)), Relaxed);
    })));
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(product.load(Relaxed), 42);
    equal!((inner.counters().hits, inner.counters().missed_nested), (0, 1));
    equal!((outer.counters().hits, outer.counters().missed_nested), (1, 0));
    equal!(call!(conformance_mul(2, 3)), 6);
    equal!(inner.counters().hits, 1);
    Ok(())
}

fn hit_6_a_hit_inside_a_post_handler_is_missed<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let inner = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_mul").pre(|_| ()).post(|_| ())));
    let (product, store) = cell();
    let _outer = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_add").post(move |_| {
        store.store(call!(conformance_mul(6, 7)), Relaxed);
    })));
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(product.load(Relaxed), 42);
    equal!((inner.counters().hits, inner.counters().missed_nested), (0, 1));
    Ok(())
}

fn hit_6_a_probe_hit_by_its_own_handler_is_missed<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let probe = ok!(probes.register(
        Kprobe::<ArchOf<S>>::at("conformance_add")
            .pre(|_| {
                let _ = call!(conformance_add(1, 1));
            })
            .post(|_| {
                let _ = call!(conformance_add(2, 2));
            })
    ));
    let ran = crate::targets::ADDED.load(Relaxed);
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(crate::targets::ADDED.load(Relaxed), ran + 3);
    equal!((probe.counters().hits, probe.counters().missed_nested), (1, 2));
    Ok(())
}

/// Makes `regs` those of a breakpoint trap at `at`.
fn trap_at<A: Arch>(regs: &mut A::Regs, at: CodeAddr) {
    regs.set_pc(at);
    let behind = at.as_usize() - A::breakpoint_address(regs).as_usize();
    regs.set_pc(at.wrapping_add(behind));
}

/// Whether the register that is borrowed in `conformance_borrow` has kept its value: 1 or 0.
fn borrow<S: Suite>() -> usize {
    let mut is_kept = 0;
    S::stay(&mut || is_kept = call!(conformance_borrow(S::gs_base())));
    is_kept
}

/// In a handler at `outer`: more steps than have a frame are begun and left open, as if each had been
/// interrupted by the next; then an instruction that borrows a register is really run; then the steps end.
fn hit_6_a_borrowed_register_is_given_back_deeper_than_the_stack_of_hits<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    /// More than there are spare places for borrowed registers: each is given back.
    const RUNS: usize = 40;
    let method = |at: &CodeAddr| probes.explain(&Place::addr(*at)).map(|explained| explained.method);
    let borrowing = instructions(probes, "conformance_borrow");
    let borrowing: Vec<_> = borrowing.into_iter().filter(|at| method(at) == Ok(Method::Step)).collect();
    let borrows = size_of::<<ArchOf<S> as Arch>::StepState>() != 0;
    that!(borrowing.is_empty() != borrows, "no instruction of conformance_borrow is always stepped");
    let plain = instructions(probes, "conformance_mul");
    let Some(stepped) = plain.into_iter().find(|at| method(at) == Ok(Method::Boost)) else {
        that!(false, "conformance_mul has no instruction that runs in a slot");
        return Ok(());
    };
    let len = ok!(probes.explain(&Place::addr(stepped))).insn.len();
    equal!(borrow::<S>(), 1, "without a probe");

    let mut planted = Vec::new();
    for at in borrowing {
        planted.push(ok!(probes.register(Kprobe::<ArchOf<S>>::at(Place::addr(at)).pre(|_| ()))));
    }
    // With a post handler it cannot jump back from its slot.
    let stepped_probe = Kprobe::<ArchOf<S>>::at(Place::addr(stepped)).post(|_| ());
    let stepped_probe = ok!(probes.register(stepped_probe));
    let (kept, in_pre) = cell();
    let (wrong, store_wrong) = cell();
    // Its handler plays traps, for which the host expects to be in one.
    let outer = Kprobe::<ArchOf<S>>::at("conformance_sub").without_jump();
    let outer = ok!(probes.register(outer.pre(move |hit| {
        // One more than have a frame.
        let mut open = [*hit.regs(); MAX_DEPTH + 1];
        for regs in &mut open {
            trap_at::<ArchOf<S>>(regs, stepped);
            let trap = probes.traps().breakpoint(regs);
            let is_right = trap == Trap::Handled && regs.pc() != stepped;
            store_wrong.fetch_add(usize::from(!is_right), Relaxed);
        }
        for _ in 0..RUNS {
            in_pre.fetch_add(borrow::<S>(), Relaxed);
        }
        for regs in open.iter_mut().rev() {
            let slot = regs.pc();
            trap_at::<ArchOf<S>>(regs, slot.wrapping_add(len));
            let trap = probes.traps().breakpoint(regs);
            let is_right = trap == Trap::Handled && regs.pc() == stepped.wrapping_add(len);
            store_wrong.fetch_add(usize::from(!is_right), Relaxed);
        }
    })));
    equal!(borrow::<S>(), 1, "with a probe, alone");
    equal!(call!(conformance_sub(50, 8)), 42);
    equal!(wrong.load(Relaxed), 0, "steps that did not begin or end as they should");
    equal!(kept.load(Relaxed), RUNS, "runs that left the borrowed register as it was");
    equal!(stepped_probe.counters().missed_nested, MAX_DEPTH as u64 + 1);
    for probe in &planted {
        equal!((probe.counters().hits, probe.counters().missed_nested), (1, RUNS as u64));
    }
    equal!(outer.counters().hits, 1);
    Ok(())
}

fn hit_7_contexts_hit_together_and_the_count_is_exact<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    crate::needs_contexts::<S>()?;
    const CONTEXTS: usize = 4;
    const CALLS: usize = 500;
    let (count, count_in) = cell();
    let boosted = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_add").pre(move |_| {
        count_in.fetch_add(1, Relaxed);
    })));
    let stepped = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_sub").post(|_| ())));
    let (wrong, wrong_in) = cell();
    S::run_on_contexts(CONTEXTS, &|context| {
        for n in 0..CALLS {
            if call!(conformance_add(n, context)) != n + context
                || call!(conformance_sub(n + context, n)) != context
            {
                wrong_in.fetch_add(1, Relaxed);
            }
        }
    });
    equal!(wrong.load(Relaxed), 0);
    equal!(count.load(Relaxed), CONTEXTS * CALLS);
    equal!(boosted.counters().hits, (CONTEXTS * CALLS) as u64);
    equal!(stepped.counters().hits, (CONTEXTS * CALLS) as u64);
    Ok(())
}

fn hit_8_counters_say_how_often_and_why_not<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let probe = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_add")));
    equal!(probe.counters(), probe_core::Counters::default());
    for n in 0..7 {
        equal!(call!(conformance_add(n, n)), 2 * n);
    }
    let counters = probe.counters();
    equal!(counters.hits, 7);
    equal!(
        (counters.missed_nested, counters.missed_pool, counters.vetoed, counters.abandoned, counters.faults),
        (0, 0, 0, 0, 0)
    );
    Ok(())
}

fn hit_10_the_last_disabled_probe_takes_the_breakpoint_away<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    let before = text(probes, "conformance_add");
    let first = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_add")));
    let second = ok!(probes.register(Kprobe::<ArchOf<S>>::at("conformance_add")));
    ok!(first.disable());
    that!(text(probes, "conformance_add") != before, "the breakpoint went with the first of two");
    ok!(second.disable());
    equal!(text(probes, "conformance_add"), before);
    equal!(call!(conformance_add(1, 2)), 3);
    equal!((first.counters().hits, second.counters().hits), (0, 0));
    ok!(second.enable());
    equal!(call!(conformance_add(1, 2)), 3);
    equal!((first.counters().hits, second.counters().hits), (0, 1));
    Ok(())
}

fn hit_11_recursion_and_calls_are_transparent<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let bare = call!(conformance_factorial(12));
    let mut held = Vec::new();
    for at in instructions(probes, "conformance_factorial") {
        held.extend(probes.register(Kprobe::<ArchOf<S>>::at(Place::addr(at)).pre(|_| ()).post(|_| ())));
    }
    equal!(call!(conformance_factorial(12)), bare);
    let entered = held.iter().find(|probe| probe.addr() == extent(probes, "conformance_factorial").0);
    if let Some(entry) = entered {
        equal!(entry.counters().hits, 12);
    }
    Ok(())
}
