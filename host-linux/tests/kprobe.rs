//! Kprobes on functions of this program and of libc.

mod common;

use common::{alone, code, count, counter, errno};
use probe_core::arch::{Arch, Regs as _};
use probe_core::handler::{Answer, Flow};
use probe_core::{CodeAddr, Place};
use probe_host_linux::{Kprobe, Native, probes};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn test_sum(a: usize, b: usize) -> usize {
    black_box(a).wrapping_mul(3).wrapping_add(black_box(b))
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn test_load(from: *const usize) -> usize {
    // SAFETY: the callers pass valid pointers, or mean to fault.
    unsafe { *black_box(from) }
}

#[test]
fn a_hit_shows_arguments_and_changes_nothing() {
    let _alone = alone();
    let (hits, seen) = (counter(), counter());
    let probe = probes()
        .register(Kprobe::at("test_sum").pre(move |hit| {
            hits.fetch_add(1, Relaxed);
            seen.store(hit.argument(1).unwrap_or(0), Relaxed);
        }))
        .unwrap();
    // ppc64 ELFv2: at the local entry, which every caller runs through.
    let entry = probe.addr().as_usize() - code(test_sum as *const ());
    assert!(entry == 0 || cfg!(target_arch = "powerpc64") && entry == 8, "{entry}");
    for i in 0..100 {
        assert_eq!(test_sum(i, 7), 3 * i + 7);
    }
    assert_eq!((count(hits), count(seen)), (100, 7));
    assert_eq!(probe.counters().hits, 100);
    drop(probe);
    assert_eq!(test_sum(1, 1), 4);
    assert_eq!(count(hits), 100);
}

#[test]
fn hit_3_a_post_handler_sees_the_next_instruction() {
    let _alone = alone();
    let (hits, pc) = (counter(), counter());
    let probe = probes()
        .register(Kprobe::at("test_sum").post(move |hit| {
            hits.fetch_add(1, Relaxed);
            pc.store(hit.regs().pc().as_usize(), Relaxed);
        }))
        .unwrap();
    assert_eq!(test_sum(2, 3), 9);
    assert_eq!(count(hits), 1);
    let after = count(pc).wrapping_sub(code(test_sum as *const ()));
    assert!((1..=15).contains(&after), "{after:#x} behind the place");
    drop(probe);
}

#[test]
fn hit_2_a_pre_handler_changes_arguments_and_redirects() {
    extern "C" fn other(a: usize, b: usize) -> usize {
        black_box(a) + black_box(b) + 1000
    }
    let _alone = alone();
    let probe = probes()
        .register(Kprobe::at("test_sum").pre(|hit| {
            hit.regs_mut().set_pc(CodeAddr::new(code(other as *const ())));
            Flow::Redirected
        }))
        .unwrap();
    if cfg!(not(target_arch = "powerpc64")) {
        assert_eq!(test_sum(1, 2), 1003);
    }
    drop(probe);
    assert_eq!(test_sum(1, 2), 5);
}

#[test]
fn every_instruction_of_a_function_can_be_probed_at_once() {
    let _alone = alone();
    let start = code(test_sum as *const ());
    let mut at = start;
    let mut places = Vec::new();
    loop {
        let mut bytes = [0; 16];
        // SAFETY: text of this program.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), 16) };
        places.push(at);
        at += Native::insn_len(at.into(), &bytes).unwrap();
        // The symbol's end: registering refuses what lies behind.
        if probes().explain(&Place::addr(CodeAddr::new(at))).is_err() || places.len() > 40 {
            break;
        }
        let mut same = true;
        probes_symbol(at, &mut same, start);
        if !same {
            break;
        }
    }
    let hits = counter();
    let all = probes()
        .register_all(places.iter().map(|&at| {
            Kprobe::at(Place::addr(CodeAddr::new(at))).pre(move |_| {
                hits.fetch_add(1, Relaxed);
            })
        }))
        .unwrap();
    assert!(all.len() > 2);
    assert_eq!(test_sum(5, 6), 21);
    assert!(count(hits) > 2, "{} of {}", count(hits), all.len());
    probes().unregister_all(all).unwrap();
    assert_eq!(test_sum(5, 6), 21);
}

fn probes_symbol(at: usize, same: &mut bool, start: usize) {
    use probe_core::host::Host;
    *same = false;
    probes().host().symbol_at(CodeAddr::new(at), &mut |symbol| *same = symbol.start.as_usize() == start);
}

#[test]
fn libc_functions_are_probed_by_name() {
    let _alone = alone();
    for name in ["getppid", "atoi", "malloc", "free", "qsort"] {
        let hits = counter();
        let probe = probes().register(Kprobe::at(name).pre(move |_| {
            hits.fetch_add(1, Relaxed);
        }));
        let probe = match probe {
            Ok(probe) => probe,
            Err(error) => panic!("{name}: {error}"),
        };
        // SAFETY: no preconditions.
        let parent = unsafe { libc::getppid() };
        assert!(parent >= 0);
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::atoi(black_box(c"42".as_ptr())) }, 42);
        // SAFETY: no preconditions.
        let memory = unsafe { libc::malloc(100) };
        // SAFETY: allocated just now.
        unsafe { libc::free(black_box(memory)) };
        let mut numbers = [3_u8, 1, 2];
        extern "C" fn compare(a: *const libc::c_void, b: *const libc::c_void) -> i32 {
            // SAFETY: qsort passes pointers to elements.
            let a = unsafe { a.cast::<u8>().read() };
            // SAFETY: as above.
            let b = unsafe { b.cast::<u8>().read() };
            i32::from(a) - i32::from(b)
        }
        // SAFETY: three elements of one byte.
        unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 3, 1, Some(compare)) };
        assert_eq!(numbers, [1, 2, 3]);
        let seen = count(hits);
        drop(probe);
        assert!(seen >= 1, "{name} was not hit");
    }
}

#[test]
fn an_indirect_function_is_probed_where_it_is_implemented() {
    let _alone = alone();
    let hits = counter();
    let probe = probes()
        .register(Kprobe::at("strlen").pre(move |_| {
            hits.fetch_add(1, Relaxed);
        }))
        .unwrap();
    // SAFETY: a C string.
    let len = unsafe { libc::strlen(black_box(c"twelve bytes".as_ptr())) };
    assert_eq!(len, 12);
    let seen = count(hits);
    drop(probe);
    assert!(seen >= 1);
}

#[test]
fn reg_2_unknown_and_ambiguous_names_are_refused() {
    let _alone = alone();
    let error = probes().register(Kprobe::at("no_such_function")).unwrap_err();
    assert_eq!(error.errno().as_i32(), libc::ENOENT);
    // Two functions with one name, but for what mangling adds.
    let first = {
        #[inline(never)]
        fn namesake(x: usize) -> usize {
            black_box(x) + 1
        }
        black_box(namesake as fn(usize) -> usize)(1)
    };
    let second = {
        #[inline(never)]
        fn namesake(x: usize) -> usize {
            black_box(x) + 2
        }
        black_box(namesake as fn(usize) -> usize)(1)
    };
    assert_eq!((first, second), (2, 3));
    let name = "kprobe::reg_2_unknown_and_ambiguous_names_are_refused::namesake";
    let error = probes().register(Kprobe::at(name)).unwrap_err();
    assert_eq!(error.errno().as_i32(), libc::EADDRNOTAVAIL);
}

#[test]
fn reg_3_data_and_the_hit_path_itself_are_refused() {
    let _alone = alone();
    static DATA: AtomicUsize = AtomicUsize::new(0);
    let data = CodeAddr::new((&raw const DATA) as usize);
    let error = probes().register(Kprobe::at(Place::addr(data))).unwrap_err();
    assert_eq!(error.errno().as_i32(), libc::EINVAL);
    // SAFETY: only tried.
    let own = unsafe { Place::unchecked(CodeAddr::new(code(probe_host_linux::thread_started as *const ()))) };
    let error = probes().register(Kprobe::at(own)).unwrap_err();
    assert_eq!(error.errno().as_i32(), libc::EINVAL);
    let mut listing = String::new();
    probes().files().blacklist(&mut listing, probe_core::files::Viewer::Privileged).unwrap();
    assert!(listing.contains("probe_core"), "{listing}");
}

#[test]
fn demangled_names_resolve() {
    #[inline(never)]
    fn a_rust_function(x: usize) -> usize {
        black_box(x) + 1
    }
    let _alone = alone();
    let hits = counter();
    let probe = probes()
        .register(Kprobe::at("kprobe::demangled_names_resolve::a_rust_function").pre(move |_| {
            hits.fetch_add(1, Relaxed);
        }))
        .unwrap();
    assert_eq!(black_box(a_rust_function)(black_box(1)), 2);
    assert_eq!(count(hits), 1);
    drop(probe);
}

#[test]
fn hit_9_a_fault_of_the_probed_instruction_goes_to_the_fault_handler() {
    let _alone = alone();
    let start = code(test_load as *const ());
    let faults = counter();
    static GOOD: usize = 77;
    // Whichever instruction makes the access, its probe sees the fault; it hands over a good pointer and runs
    // again.
    let mut at = start;
    let mut places = Vec::new();
    let mut same = true;
    while same && places.len() < 40 {
        let mut bytes = [0; 16];
        // SAFETY: text of this program.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), 16) };
        places.push(at);
        at += Native::insn_len(at.into(), &bytes).unwrap();
        probes_symbol(at, &mut same, start);
    }
    // Padding behind the last instruction is none.
    places.retain(|&at| probes().explain(&Place::addr(CodeAddr::new(at))).is_ok());
    let all = probes()
        .register_all(places.iter().map(|&at| {
            Kprobe::at(Place::addr(CodeAddr::new(at))).pre(|_| ()).fault(move |hit, _trap| {
                faults.fetch_add(1, Relaxed);
                assert_eq!(hit.regs().pc().as_usize(), at);
                point_to(hit.regs_mut(), &raw const GOOD);
                Answer::Handled
            })
        }))
        .unwrap();
    assert_eq!(test_load(black_box(16 as *const usize)), 77);
    assert_eq!(count(faults), 1);
    drop(all);
    assert_eq!(test_load(&raw const GOOD), 77);
}

/// Replaces the address 16 in every register.
fn point_to(regs: &mut probe_host_linux::Regs, good: *const usize) {
    let words = core::ptr::from_mut(regs).cast::<usize>();
    for i in 0..size_of::<probe_host_linux::Regs>() / size_of::<usize>() {
        // SAFETY: the registers are plain words, with nothing between them.
        let word = unsafe { &mut *words.wrapping_add(i) };
        if *word == 16 {
            *word = good as usize;
        }
    }
}

#[test]
fn hit_9_a_fault_in_a_handler_goes_to_its_fault_handler() {
    let _alone = alone();
    let faults = counter();
    let probe = probes()
        .register(
            Kprobe::at("test_sum")
                .pre(|_| {
                    test_load(black_box(16 as *const usize));
                })
                .fault(move |hit, _| {
                    faults.fetch_add(1, Relaxed);
                    static GOOD: usize = 1;
                    point_to(hit.regs_mut(), &raw const GOOD);
                    Answer::Handled
                }),
        )
        .unwrap();
    assert_eq!(test_sum(1, 1), 4);
    assert_eq!(count(faults), 1);
    assert_eq!(probe.counters().faults, 1);
}

#[test]
fn errno_survives_a_handler() {
    let _alone = alone();
    let probe = probes()
        .register(Kprobe::at("test_sum").pre(|_| {
            // SAFETY: closes nothing.
            unsafe { libc::close(-1) };
        }))
        .unwrap();
    errno().store(4711, Relaxed);
    test_sum(1, 2);
    assert_eq!(errno().load(Relaxed), 4711);
    drop(probe);
}

#[test]
fn hit_6_a_hit_inside_a_handler_is_executed_and_counted() {
    let _alone = alone();
    let results = counter();
    let inner = probes().register(Kprobe::at("test_load").pre(|_| ())).unwrap();
    let outer = probes()
        .register(
            Kprobe::at("test_sum")
                .pre(move |_| {
                    let value = 5;
                    results.fetch_add(test_load(black_box(&raw const value)), Relaxed);
                    // Itself.
                    results.fetch_add(black_box(test_sum)(1, 2), Relaxed);
                })
                .post(move |_| {
                    let value = 100;
                    results.fetch_add(test_load(black_box(&raw const value)), Relaxed);
                }),
        )
        .unwrap();
    assert_eq!(test_sum(2, 2), 8);
    assert_eq!(count(results), 5 + 5 + 100);
    assert_eq!(inner.counters().hits, 0);
    assert_eq!(inner.counters().missed_nested, 2);
    assert_eq!((outer.counters().hits, outer.counters().missed_nested), (1, 1));
    drop((inner, outer));
}
