//! Registration: REG_1 … REG_18.

use crate::check::{Outcome, equal, ok, refused, that};
use crate::jmp::two;
use crate::targets::call;
use crate::{ArchOf, Case, Suite};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use probe_core::arch::{Arch, Method};
use probe_core::error::Errno;
use probe_core::handler::Flow;
use probe_core::host::{Arrival, Host, Probeable};
use probe_core::{CodeAddr, Kprobe, Kretprobe, Place, Probes};

/// The cases of this chapter.
pub(crate) fn cases<S: Suite>() -> Vec<Case<S>> {
    crate::cases_of![
        reg_1_a_place_is_a_symbol_an_offset_or_an_address,
        reg_2_unknown_symbol_is_enoent,
        reg_3_what_is_not_text_is_einval,
        reg_3_the_blacklist_is_einval,
        reg_4_inside_an_instruction_is_eilseq,
        reg_5_an_offset_outside_the_symbol_is_einval,
        reg_7_a_foreign_breakpoint_is_eilseq,
        reg_8_a_failed_registration_changes_nothing,
        reg_9_explain_agrees_with_register,
        reg_10_a_disabled_probe_plants_nothing,
        reg_11_pre_handlers_run_newest_first,
        reg_11_a_redirecting_handler_ends_the_walk,
        reg_11_a_second_jprobe_is_eexist,
        reg_12_a_batch_is_all_or_nothing,
        reg_13_unregistering_restores_the_text,
        reg_14_unregister_all_removes_the_rest,
        reg_15_the_same_place_can_be_probed_again,
        reg_16_dropping_the_handle_unregisters,
        reg_17_a_kretprobe_inside_a_function_is_einval,
        reg_18_handlers_may_not_register,
        reg_19_a_return_probe_stands_only_where_a_call_comes,
        reg_18_a_handler_may_disable_its_probe,
    ]
}

/// Where a target's text starts and how many bytes it has.
pub(crate) fn extent<H: Host>(probes: &Probes<H>, name: &str) -> (CodeAddr, usize) {
    let mut found = (CodeAddr::new(0), 0);
    probes.host().find_symbols(name, &mut |symbol| found = (symbol.start, symbol.len_bytes));
    found
}

/// The text of a target as it reads now.
pub(crate) fn text<H: Host>(probes: &Probes<H>, name: &str) -> Vec<u8> {
    let (start, len) = extent(probes, name);
    let mut bytes = alloc::vec![0; len];
    let read = probes.host().read_text(H::Arch::first_byte(start), &mut bytes);
    bytes.truncate(read);
    bytes
}

/// The addresses of all instructions of a target.
pub(crate) fn instructions<H: Host>(probes: &Probes<H>, name: &str) -> Vec<CodeAddr> {
    let bytes = text(probes, name);
    let (start, _) = extent(probes, name);
    let mut offset = 0;
    let mut places = Vec::new();
    let len_at = |offset: usize| {
        let rest = bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        H::Arch::insn_len(start.wrapping_add(offset), rest)
    };
    while let Some(len) = len_at(offset) {
        if offset + len > bytes.len() {
            break;
        }
        places.push(start.wrapping_add(offset));
        offset += len;
    }
    places
}

/// A counter and a pre handler that counts in it.
fn counting<A: Arch>()
-> (Arc<AtomicUsize>, impl Fn(&mut probe_core::handler::Hit<'_, A>) + Send + Sync + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    (count, move |_: &mut probe_core::handler::Hit<'_, A>| {
        seen.fetch_add(1, Relaxed);
    })
}

fn reg_1_a_place_is_a_symbol_an_offset_or_an_address<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let places = instructions(probes, "conformance_add");
    that!(places.len() > 1, "conformance_add has {} instructions", places.len());
    let second = places[1].offset_from(places[0]);
    let (by_name, count_name) = counting();
    let (by_offset, count_offset) = counting();
    let (by_address, count_address) = counting();
    let _name = ok!(probes.register(Kprobe::at("conformance_add").pre(count_name)));
    let _offset =
        ok!(probes.register(Kprobe::at(Place::symbol("conformance_add").offset(second)).pre(count_offset)));
    let address = ok!(probes.register(Kprobe::at(Place::addr(places[1])).pre(count_address)));
    equal!(address.addr(), places[1]);
    equal!(call!(conformance_add(40, 2)), 42);
    equal!((by_name.load(Relaxed), by_offset.load(Relaxed), by_address.load(Relaxed)), (1, 1, 1));
    Ok(())
}

fn reg_2_unknown_symbol_is_enoent<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    refused!(probes.register(Kprobe::at("conformance_no_such_function")), ENOENT);
    Ok(())
}

fn reg_3_what_is_not_text_is_einval<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let data = CodeAddr::new((&raw const crate::targets::ADDED) as usize);
    refused!(probes.register(Kprobe::at(Place::addr(data))), EINVAL);
    refused!(probes.register(Kprobe::at(Place::addr(CodeAddr::new(0)))), EINVAL);
    Ok(())
}

fn reg_3_the_blacklist_is_einval<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let mut ranges = Vec::new();
    probes.host().for_each_blacklisted(&mut |range| ranges.push((range.start, range.end)));
    that!(!ranges.is_empty(), "the host has no blacklist, so the hit path itself could be probed");
    for (start, end) in ranges {
        that!(start < end, "an empty range at {start}");
        that!(probes.host().probeable(start) != Probeable::Yes, "the host lets {start} be probed");
        refused!(probes.register(Kprobe::at(Place::addr(start))), EINVAL);
    }
    Ok(())
}

fn reg_4_inside_an_instruction_is_eilseq<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let places = instructions(probes, "conformance_mix");
    let before = text(probes, "conformance_mix");
    let mut inside = 0;
    for pair in places.windows(2) {
        for offset in 1..pair[1].offset_from(pair[0]) as usize {
            refused!(probes.register(Kprobe::at(Place::addr(pair[0].wrapping_add(offset)))), EILSEQ);
            inside += 1;
        }
    }
    that!(inside > 0, "conformance_mix has one-byte instructions only");
    equal!(text(probes, "conformance_mix"), before);
    Ok(())
}

fn reg_5_an_offset_outside_the_symbol_is_einval<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (_, len) = extent(probes, "conformance_add");
    let len = len as isize;
    for offset in [len, len + 4, -1, isize::MAX, isize::MIN] {
        refused!(probes.register(Kprobe::at(Place::symbol("conformance_add").offset(offset))), EINVAL);
    }
    Ok(())
}

fn reg_7_a_foreign_breakpoint_is_eilseq<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    // Where a probe on the entry goes: on ppc64 ELFv2 that is not the symbol's address.
    let at = ok!(probes.explain(&Place::symbol("conformance_sub"))).at;
    let breakpoint = <ArchOf<S>>::breakpoint(at);
    let start = <ArchOf<S>>::first_byte(at);
    let mut original = alloc::vec![0; breakpoint.len()];
    equal!(probes.host().read_text(start, &mut original), breakpoint.len());
    // SAFETY: nobody executes conformance_sub meanwhile; the original bytes are put back below.
    ok!(unsafe { probes.host().write_text(start, breakpoint) });
    let result = probes.register(Kprobe::at(Place::addr(at)));
    // SAFETY: as above.
    ok!(unsafe { probes.host().write_text(start, &original) });
    probes.host().sync_cores();
    refused!(result, EILSEQ);
    equal!(call!(conformance_sub(5, 3)), 2);
    Ok(())
}

fn reg_8_a_failed_registration_changes_nothing<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let before = text(probes, "conformance_add");
    refused!(probes.register(Kprobe::at(Place::symbol("conformance_add").offset(1 << 20))), EINVAL);
    refused!(probes.register(Kretprobe::at(Place::symbol("conformance_add").offset(1 << 20))), EINVAL);
    equal!(text(probes, "conformance_add"), before);
    Ok(())
}

fn reg_9_explain_agrees_with_register<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    for at in instructions(probes, "conformance_mix") {
        let place = Place::addr(at);
        let explained = probes.explain(&place);
        let registered = probes.register(Kprobe::at(place));
        match (explained, registered) {
            (Ok(explanation), Ok(_)) => {
                that!(
                    matches!(explanation.method, Method::Simulate | Method::Boost | Method::Step),
                    "no method at {at}"
                );
                // A text that is near address 0 may have none: all that a jump could reach lies below.
                let is_low = at.as_usize() < 1 << 31;
                let has_room = !explanation.room.is_empty();
                that!(has_room == explanation.jump.is_ok() || is_low && !has_room, "room at {at}");
            }
            (Err(explained), Err(refused)) => {
                equal!((explained.errno(), explained.code()), (refused.errno(), refused.code()));
            }
            (explained, registered) => {
                that!(
                    false,
                    "at {at}: explain is {:?}, register is {:?}",
                    explained.is_ok(),
                    registered.is_ok()
                );
            }
        }
    }
    Ok(())
}

fn reg_10_a_disabled_probe_plants_nothing<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let before = text(probes, "conformance_add");
    let (count, count_in) = counting();
    let probe = ok!(probes.register(Kprobe::at("conformance_add").pre(count_in).disabled()));
    equal!(text(probes, "conformance_add"), before);
    equal!(call!(conformance_add(1, 1)), 2);
    equal!(count.load(Relaxed), 0);
    ok!(probe.enable());
    that!(text(probes, "conformance_add") != before, "no breakpoint after enable");
    equal!(call!(conformance_add(1, 1)), 2);
    equal!(count.load(Relaxed), 1);
    Ok(())
}

fn reg_11_pre_handlers_run_newest_first<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let order = Arc::new(AtomicUsize::new(0));
    let mut held = Vec::new();
    for digit in 1..=3 {
        let order = order.clone();
        held.push(ok!(probes.register(Kprobe::at("conformance_add").pre(move |_| {
            let seen = order.load(Relaxed);
            order.store(seen * 10 + digit, Relaxed);
        }))));
    }
    equal!(call!(conformance_add(1, 1)), 2);
    equal!(order.load(Relaxed), 321);
    Ok(())
}

fn reg_11_a_redirecting_handler_ends_the_walk<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (target, _) = extent(probes, "conformance_sub");
    let (older, count_older) = counting();
    let _older = ok!(probes.register(Kprobe::at("conformance_add").pre(count_older)));
    let posts = Arc::new(AtomicUsize::new(0));
    let seen = posts.clone();
    let redirecting = ok!(probes.register(
        Kprobe::<ArchOf<S>>::at("conformance_add")
            .pre(move |hit| {
                use probe_core::arch::Regs;
                hit.regs_mut().set_pc(target);
                Flow::Redirected
            })
            .post(move |_| {
                seen.fetch_add(1, Relaxed);
            })
    ));
    let ran = crate::targets::ADDED.load(Relaxed);
    equal!(call!(conformance_add(50, 8)), 42);
    equal!(older.load(Relaxed), 0);
    equal!(posts.load(Relaxed), 0);
    equal!(crate::targets::ADDED.load(Relaxed), ran);
    drop(redirecting);
    equal!(call!(conformance_add(50, 8)), 58);
    equal!(older.load(Relaxed), 1);
    Ok(())
}

fn reg_11_a_second_jprobe_is_eexist<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    extern "C" fn handler(_: usize, _: usize) -> usize {
        0
    }
    let _first = ok!(probes.register(two("conformance_add", handler)));
    refused!(probes.register(two("conformance_add", handler)), EEXIST);
    Ok(())
}

fn reg_12_a_batch_is_all_or_nothing<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let before = text(probes, "conformance_add");
    let batch = ["conformance_add", "conformance_sub", "conformance_no_such_function", "conformance_mul"];
    match probes.register_all(batch.map(Kprobe::at)) {
        Ok(_) => that!(false, "the batch was accepted"),
        Err(error) => {
            equal!(error.index, 2);
            equal!(error.error.errno(), Errno::ENOENT);
        }
    }
    equal!(text(probes, "conformance_add"), before);
    let held = ok!(probes.register_all(["conformance_add", "conformance_sub"].map(Kprobe::at)));
    equal!((call!(conformance_add(1, 2)), call!(conformance_sub(5, 2))), (3, 3));
    equal!((held[0].counters().hits, held[1].counters().hits), (1, 1));
    Ok(())
}

fn reg_13_unregistering_restores_the_text<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let before = text(probes, "conformance_mix");
    let expected = call!(conformance_mix(7, 50));
    let held: Vec<_> = instructions(probes, "conformance_mix")
        .into_iter()
        .filter_map(|at| probes.register(Kprobe::at(Place::addr(at))).ok())
        .collect();
    that!(held.len() > 10, "only {} probes in conformance_mix", held.len());
    equal!(call!(conformance_mix(7, 50)), expected);
    that!(held.iter().any(|probe| probe.counters().hits > 10), "no probe in the loop was hit");
    drop(held);
    equal!(text(probes, "conformance_mix"), before);
    equal!(call!(conformance_mix(7, 50)), expected);
    Ok(())
}

fn reg_14_unregister_all_removes_the_rest<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let before = text(probes, "conformance_add");
    let held =
        ok!(probes.register_all(["conformance_add", "conformance_sub", "conformance_mul"].map(Kprobe::at)));
    that!(probes.unregister_all(held).is_ok(), "a probe could not be removed");
    equal!(text(probes, "conformance_add"), before);
    Ok(())
}

fn reg_15_the_same_place_can_be_probed_again<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    for round in 0..50_usize {
        let (count, count_in) = counting();
        let probe = ok!(probes.register(Kprobe::at("conformance_add").pre(count_in)));
        equal!(call!(conformance_add(round, 1)), round + 1);
        equal!(count.load(Relaxed), 1);
        equal!(probe.counters().hits, 1);
    }
    Ok(())
}

fn reg_16_dropping_the_handle_unregisters<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (count, count_in) = counting();
    drop(ok!(probes.register(Kprobe::at("conformance_add").pre(count_in))));
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(count.load(Relaxed), 0);
    equal!(Arc::strong_count(&count), 1, "the handler was not dropped");
    Ok(())
}

fn reg_17_a_kretprobe_inside_a_function_is_einval<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let places = instructions(probes, "conformance_mix");
    for &at in places.iter().rev().take(3) {
        refused!(probes.register(Kretprobe::at(Place::addr(at))), EINVAL);
    }
    Ok(())
}

fn reg_18_handlers_may_not_register<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let errno = Arc::new(AtomicUsize::new(0));
    let seen = errno.clone();
    let _probe = ok!(probes.register(Kprobe::at("conformance_add").pre(move |_| {
        let result = probes.register(Kprobe::at("conformance_sub"));
        let code = result.err().map_or(0, |error| error.errno().as_i32() as usize);
        seen.store(code, Relaxed);
    })));
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(errno.load(Relaxed), Errno::EBUSY.as_i32() as usize);
    Ok(())
}

fn reg_18_a_handler_may_disable_its_probe<S: Suite>(probes: &'static Probes<S::Host>) -> Outcome {
    let (count, count_in) = counting();
    let probe = Arc::new(ok!(probes.register(Kprobe::at("conformance_add").pre(count_in))));
    let victim = probe.clone();
    let off = ok!(probes.register(Kprobe::at("conformance_sub").pre(move |_| {
        let _ = victim.disable();
    })));
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(call!(conformance_sub(3, 2)), 1);
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(count.load(Relaxed), 1);
    drop(off);
    ok!(probe.enable());
    equal!(call!(conformance_add(1, 2)), 3);
    equal!(count.load(Relaxed), 2);
    Ok(())
}

/// Unwind information, where a host has it, knows the function for one that is called; without it the name
/// counts.
fn reg_19_a_return_probe_stands_only_where_a_call_comes<S: Suite>(
    probes: &'static Probes<S::Host>,
) -> Outcome {
    const NAME: &str = "conformance_part.cold";
    let kprobe = ok!(probes.register(Kprobe::at(NAME)));
    equal!(call!(conformance_part(21)), 42);
    equal!(kprobe.counters().hits, 1);
    let told = ok!(probes.explain(&Place::symbol(NAME)));
    let registered = probes.register(Kretprobe::at(NAME));
    equal!(told.entry.is_ok(), registered.is_ok());
    match (probes.host().arrival(kprobe.addr()), registered) {
        (Arrival::Called, Ok(probe)) => {
            equal!(call!(conformance_part(21)), 42);
            equal!(probe.counters().hits, 1);
        }
        (Arrival::Unknown, Err(error)) => {
            equal!((error.errno(), error.code()), (Errno::EINVAL, "entry.part"));
        }
        (arrival, registered) => {
            that!(false, "the host says {arrival:?}, registered: {}", registered.is_ok());
        }
    }
    // By its name it is where a program starts, whether or not there is one of that name.
    if let Err(error) = probes.register(Kretprobe::at("_start")) {
        that!(
            matches!(
                error.code(),
                "entry.start" | "place.no_symbol" | "place.blacklisted" | "place.not_text"
            ),
            "_start: {error}"
        );
    } else {
        that!(false, "a return probe stands on _start");
    }
    Ok(())
}
