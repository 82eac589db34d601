//! Return probes only where a call comes (REG_19): told by unwind information, by the ELF header, by name.

mod common;

use common::{alone, count, counter};
use probe_host_linux::probe_core::host::{Arrival, Host};
use probe_host_linux::probe_core::{CodeAddr, Place};
use probe_host_linux::{Kprobe, Kretprobe, Native, probe_core, probes};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

// `arrival_work(n)` is `n + 1` up to a hundred; above that a part of it that is jumped to makes `n + 1000`,
// and takes `n` from the very word, or returns to the address, that a return probe there would replace.
// `arrival_bare.cold.7` has no unwind information.
probe_arch_native::native_module!(mod arrival);

unsafe extern "C" {
    safe fn arrival_work(n: usize) -> usize;
}

/// What a return probe on `name` is answered: nothing, or the error's code.
fn code_of_return(name: &str) -> Option<&'static str> {
    let place = Place::symbol(name);
    let registered = probes().register(Kretprobe::at(place.clone()).exit(|_, ()| {}));
    let told = probes().explain(&place).and_then(|explained| explained.entry);
    assert_eq!(told.as_ref().err(), registered.as_ref().err(), "{name}");
    registered.err().map(|error| error.code())
}

#[test]
fn reg_19_a_part_that_is_jumped_to_is_refused_by_its_unwind_information() {
    let _alone = alone();
    assert_eq!(code_of_return("arrival_work.cold"), Some("entry.part"));
    assert_eq!(code_of_return("arrival_work"), None);
    // A kprobe can stand there, and the part does what it did.
    let hits = counter();
    let pre = move |_: &mut probe_host_linux::Hit<'_>| {
        hits.fetch_add(1, Relaxed);
    };
    let bare = [1, 100, 101, 5000].map(|n| black_box(arrival_work as extern "C" fn(usize) -> usize)(n));
    assert_eq!(bare, [2, 101, 1101, 6000]);
    let _kprobe = probes().register(Kprobe::at("arrival_work.cold").pre(pre)).unwrap();
    let returns = counter();
    let exit = move |_: &mut probe_core::handler::Return<'_, Native>, ()| {
        returns.fetch_add(1, Relaxed);
    };
    let _whole = probes().register(Kretprobe::at("arrival_work").exit(exit)).unwrap();
    let probed = [1, 100, 101, 5000].map(|n| black_box(arrival_work as extern "C" fn(usize) -> usize)(n));
    assert_eq!((probed, count(hits), count(returns)), (bare, 2, 4));
}

#[test]
fn reg_19_without_unwind_information_the_name_decides() {
    let _alone = alone();
    assert_eq!(code_of_return("arrival_bare.cold.7"), Some("entry.part"));
}

#[test]
fn reg_19_where_the_program_starts_no_call_comes() {
    let _alone = alone();
    assert_eq!(code_of_return("_start"), Some("entry.start"));
}

/// Of the C library nothing is refused but what is known not to be called.
#[test]
fn reg_19_of_all_loaded_functions_few_are_refused() {
    let _alone = alone();
    let host = probes().host();
    let (mut all, mut refused) = (0, Vec::new());
    host.for_each_symbol(&mut |symbol, object| {
        if symbol.len_bytes == 0 {
            return;
        }
        all += 1;
        let at = symbol.start.wrapping_add(usize::from(symbol.local_entry));
        let arrival = match host.arrival(at) {
            Arrival::Unknown => Arrival::by_name(symbol.name),
            known => known,
        };
        if let Arrival::NotCalled(refusal) = arrival {
            refused.push(format!("{object}:{} {}", symbol.name, refusal.code));
        }
    });
    let expected = |line: &String| {
        [
            "_start ",
            "__start_context ",
            ".cold",
            "_dl_runtime_",
            "_dlstart",
            "_dl_start_user",
            "__restore_rt ",
            "__restore ",
            "_sa_restorer ",
            "get_pc_thunk",
            "arrival_thunk ",
            "arrival_millicode ",
            "__kernel_",
            // The library's own trampolines.
            "probe_arch_",
            "probe_riscv64_",
            "probe_host_linux",
        ]
        .iter()
        .any(|name| line.contains(name))
    };
    let surprising: Vec<&String> = refused.iter().filter(|line| !expected(line)).collect();
    assert!(surprising.is_empty(), "of {all}: {surprising:#?}");
    // Its description in glibc is that of any function.
    let mut contexts = 0;
    host.find_symbols("__start_context", &mut |_| contexts += 1);
    let known = refused.iter().filter(|line| line.contains(":__start_context entry.start"));
    assert_eq!(known.count(), contexts, "{refused:#?}");
    assert!(all > 1000 && !refused.is_empty(), "{all}: {refused:?}");
    let here: fn() = reg_19_of_all_loaded_functions_few_are_refused;
    // arm's unwinders read no DWARF, and its objects have none in memory.
    let described = if cfg!(target_arch = "arm") { Arrival::Unknown } else { Arrival::Called };
    assert_eq!(host.arrival(CodeAddr::new(common::code(here as *const ()))), described);
}

/// A thunk gives its caller the return address as data.
#[cfg(target_arch = "x86")]
#[test]
fn reg_19_a_thunk_that_reads_its_return_address_is_refused() {
    let _alone = alone();
    if cfg!(target_feature = "crt-static") {
        // It stands beside libc's `memcpy`, which handlers may call and which calls thunks.
        assert_eq!(code_of_return("arrival_thunk"), Some("place.blacklisted"));
        return;
    }
    assert_eq!(code_of_return("arrival_thunk"), Some("entry.reads_return"));
    let _kprobe = probes().register(Kprobe::at("arrival_thunk")).unwrap();
}

/// Millicode is called by T0: RA holds its caller's return address, which is to be saved.
#[cfg(target_arch = "riscv64")]
#[test]
fn reg_19_what_is_called_by_another_link_register_is_refused() {
    unsafe extern "C" {
        safe fn arrival_saving(n: usize) -> usize;
    }
    let _alone = alone();
    assert_eq!(code_of_return("arrival_millicode"), Some("entry.other_link"));
    let (hits, returns) = (counter(), counter());
    let pre = move |_: &mut probe_host_linux::Hit<'_>| {
        hits.fetch_add(1, Relaxed);
    };
    let exit = move |_: &mut probe_core::handler::Return<'_, Native>, ()| {
        returns.fetch_add(1, Relaxed);
    };
    let _kprobe = probes().register(Kprobe::at("arrival_millicode").pre(pre)).unwrap();
    let _caller = probes().register(Kretprobe::at("arrival_saving").exit(exit)).unwrap();
    assert_eq!(black_box(arrival_saving as extern "C" fn(usize) -> usize)(6), 7);
    assert_eq!((count(hits), count(returns)), (1, 1));
}
