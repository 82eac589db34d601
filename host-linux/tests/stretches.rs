//! Many places at once: what is written for them, and that all of it goes again, where another thread runs
//! and where none does.

mod common;

use common::{End, alone, code, count, counter, in_child};
use probe_core::{CodeAddr, Place};
use probe_host_linux::{Kprobe, TextAccess, probes};
use std::hint::black_box;

/// Functions that all differ.
#[inline(never)]
extern "C" fn work<const N: usize>(a: usize) -> usize {
    black_box(a).wrapping_mul(black_box(2 * N + 1)).wrapping_add(N)
}

type Work = extern "C" fn(usize) -> usize;

/// 256 of them, by address.
fn functions() -> Vec<(Work, usize)> {
    macro_rules! sixteen {
        ($($row:literal)*) => {
            [$(work::<{ 16 * $row }>, work::<{ 16 * $row + 1 }>, work::<{ 16 * $row + 2 }>,
               work::<{ 16 * $row + 3 }>, work::<{ 16 * $row + 4 }>, work::<{ 16 * $row + 5 }>,
               work::<{ 16 * $row + 6 }>, work::<{ 16 * $row + 7 }>, work::<{ 16 * $row + 8 }>,
               work::<{ 16 * $row + 9 }>, work::<{ 16 * $row + 10 }>, work::<{ 16 * $row + 11 }>,
               work::<{ 16 * $row + 12 }>, work::<{ 16 * $row + 13 }>, work::<{ 16 * $row + 14 }>,
               work::<{ 16 * $row + 15 }>),*]
        };
    }
    let all: [Work; 256] = sixteen!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    let mut all: Vec<_> = all.into_iter().enumerate().map(|(n, function)| (function, n)).collect();
    all.sort_unstable_by_key(|(function, _)| *function as usize);
    all
}

/// The first bytes of a function.
fn text(function: Work) -> [u8; 16] {
    // SAFETY: a function of this program, longer than that, and mapped as long as the program runs.
    unsafe { (code(function as *const ()) as *const [u8; 16]).read_volatile() }
}

/// How often this process has written to a file, where text is written in that way and the kernel counts it.
fn writes() -> Option<usize> {
    // Emulators make pages writable instead.
    if probes().host().text_access() != TextAccess::Alias {
        return None;
    }
    let io = std::fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("syscw: "))?.trim().parse().ok()
}

/// Registers probes on all of the functions, calls these, removes the probes. Returns how many writes that
/// has taken.
fn come_and_go(with_jumps: bool) -> Option<usize> {
    let functions = functions();
    let before: Vec<_> = functions.iter().map(|&(function, _)| text(function)).collect();
    let hits = counter();
    probes().jumps().set_automatic(with_jumps.into());
    let writes_before = writes();
    let all = functions.iter().map(|&(function, _)| {
        Kprobe::at(Place::addr(CodeAddr::new(code(function as *const ())))).pre(|_| {
            hits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        })
    });
    let planted = probes().register_all(all).expect("they can be probed");
    for (turn, &(function, n)) in functions.iter().enumerate() {
        assert_eq!(function(black_box(turn)), turn * (2 * n + 1) + n);
    }
    assert_eq!(count(hits), functions.len());
    assert!(planted.iter().all(|probe| probe.counters().hits == 1));
    assert!(functions.iter().zip(&before).all(|(&(function, _), before)| text(function) != *before));
    probes().unregister_all(planted).expect("they can be removed");
    let taken = writes().zip(writes_before).map(|(now, before)| now - before);
    for (&(function, n), before) in functions.iter().zip(&before) {
        assert_eq!(text(function), *before);
        assert_eq!(function(black_box(1)), 2 * n + 1 + n);
    }
    assert_eq!(count(hits), functions.len());
    taken
}

#[test]
fn reg_12_who_is_alone_writes_many_places_by_one_call() {
    let _alone = alone();
    // The agent's own first hit, and what is asked once.
    come_and_go(true);
    for with_jumps in [false, true] {
        let child = in_child(|| match come_and_go(with_jumps) {
            Some(writes) => i32::from(writes > functions().len()),
            None => 0,
        });
        assert_eq!(child, End::Exit(0), "with jumps: {with_jumps}");
    }
}

/// Another thread runs: no byte is written that is not the probes' own.
#[test]
fn safe_3_beside_a_thread_each_place_is_written_by_itself() {
    let _alone = alone();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || told.recv().is_err());
        for with_jumps in [false, true] {
            if let Some(writes) = come_and_go(with_jumps) {
                assert!(writes >= 2 * functions().len(), "{writes} writes");
            }
        }
        drop(tell);
    });
}
