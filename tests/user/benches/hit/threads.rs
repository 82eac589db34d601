//! What threads get done together, on the CPUs that there are.

use crate::victims::{self, Victim};
use crate::{
    CALLS, Figures, ROUNDS, floor, insert_scattered, median, pin, plant_optimised, ratios, time, uprobe,
};
use probe_host_linux::{Kprobe, probes};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Nanoseconds per call of `victim` on one thread alone, then on both at once. Called by both threads.
fn alone_and_together(thread: usize, barrier: &Barrier, victim: Victim) -> (f64, f64) {
    let alone = if thread == 0 { time(victim) } else { 0.0 };
    barrier.wait();
    let together = time(victim);
    barrier.wait();
    (alone, together)
}

/// Two threads on one probe, against two threads with bare signals: how much they get done together over one
/// alone, both in every round, each thread on a CPU of its own.
pub(crate) fn measure_two(figures: &mut Figures, cpus: &[usize]) {
    let probe = probes().register(Kprobe::at("bench_alone").pre(|_| ()));
    assert!(probe.is_ok(), "bench_alone was refused");
    let barrier = Barrier::new(2);
    // What starts and ends threads goes through the guard's probes, which want the real handler.
    let started = Barrier::new(3);
    let run = |thread: usize| {
        pin(cpus, thread);
        started.wait();
        let floor = || alone_and_together(thread, &barrier, victims::floor_one);
        let round = |_| {
            // The signal's action is the process's: the first thread sets it while the other one waits.
            let bare = if thread == 0 { floor::with_bare_sigtrap(floor) } else { floor() };
            (bare, alone_and_together(thread, &barrier, victims::bench_alone))
        };
        let rounds = (0..ROUNDS).map(round).collect::<Vec<_>>();
        barrier.wait();
        rounds
    };
    let (first, second) = std::thread::scope(|scope| {
        let (first, second) = (scope.spawn(|| run(0)), scope.spawn(|| run(1)));
        started.wait();
        (first.join(), second.join())
    });
    let (Ok(first), Ok(second)) = (first, second) else { panic!("a thread of the benchmark died") };
    let scaling = |(alone, a): (f64, f64), (_, b): (f64, f64)| alone * (1.0 / a + 1.0 / b);
    let rounds = || first.iter().zip(&second);
    let bare: Vec<f64> = rounds().map(|(a, b)| scaling(a.0, b.0)).collect();
    let probed: Vec<f64> = rounds().map(|(a, b)| scaling(a.1, b.1)).collect();
    insert_scattered(figures, "threads2_ratio", ratios(&probed, &bare));
    figures.insert("floor.threads2".into(), median(bare));
    figures.insert("k.threads2".into(), median(probed));
}

/// The most threads.
const MOST: usize = 8;
/// How long some threads call one victim: more than a time slice, so that more threads than CPUs take turns.
const WINDOW: Duration = Duration::from_millis(5);
/// Rounds of all victims and all numbers of threads.
const THREAD_ROUNDS: usize = 41;

/// Some threads that call a victim for a while.
struct Turn {
    victim: Victim,
    threads: usize,
}

/// What the threads of a turn have done.
#[derive(Default)]
struct Done {
    calls: AtomicU64,
    /// The CPU time that they took for it.
    cpu_ns: AtomicU64,
}

/// Probes whose hits need no trap, and the kernel's: how often 1 to [`MOST`] threads call one function in a
/// time. All take turns in every round; thread and thread are on different CPUs as far as there are some.
/// What counts is the CPU time that they take, times the CPUs that they can have: other programs that run
/// meanwhile do not count.
pub(crate) fn measure_many(figures: &mut Figures, cpus: &[usize]) {
    let held = plant_optimised();
    let kernels = [
        ("uprobe.nop", victims::bench_uprobe_nop as Victim, uprobe::Kind::Entry),
        ("uretprobe.nop", victims::bench_uretprobe_nop, uprobe::Kind::Return),
    ];
    let kernels = kernels
        .map(|(name, victim, kind)| (name, victim, uprobe::Uprobe::arm(victim as *const () as usize, kind)));
    let mut cases: Vec<(&str, Victim)> = vec![
        ("bare", victims::bench_bare),
        ("k.optimised", victims::bench_k_optimised),
        ("r.optimised", victims::bench_r_optimised),
    ];
    // They trap in every thread, and count in this one only: a thread that counts them would bring a probe of
    // its own. Who is left out has been said already.
    cases.extend(kernels.iter().filter(|(.., armed)| armed.is_ok()).map(|&(name, victim, _)| (name, victim)));
    let round =
        || cases.iter().flat_map(|&(_, victim)| (1..=MOST).map(move |threads| Turn { victim, threads }));
    let turns: Vec<Turn> = (0..THREAD_ROUNDS).flat_map(|_| round()).collect();
    let done = run(&turns, cpus);
    let count = |victim: Victim| -> u64 {
        let of_it = turns.iter().zip(&done).filter(|(turn, _)| std::ptr::fn_addr_eq(turn.victim, victim));
        of_it.map(|(_, done)| done.calls.load(Relaxed)).sum()
    };
    for (probe, victim) in [(0, victims::bench_k_optimised as Victim), (4, victims::bench_r_optimised)] {
        assert_eq!(held[probe].counters().hits, count(victim), "hits were lost at {}", held[probe].addr());
    }
    for (index, (name, _)) in cases.iter().enumerate() {
        // Calls in a microsecond, by rounds.
        let of = |threads: usize| {
            let round = |round: &[Done]| {
                let done = &round[index * MOST + threads - 1];
                let calls = match done.calls.load(Relaxed) {
                    0 => f64::NAN,
                    calls => calls as f64,
                };
                calls * 1e3 / done.cpu_ns.load(Relaxed) as f64 * threads.min(cpus.len().max(1)) as f64
            };
            done.chunks_exact(cases.len() * MOST).map(round).collect::<Vec<_>>()
        };
        let alone = of(1);
        // On a busy machine there are rounds in which nobody came in time.
        let mut insert = |name: String, values: Vec<f64>| {
            let known: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
            if !known.is_empty() {
                figures.insert(name, median(known));
            }
        };
        for threads in 2..=MOST {
            let ratios = of(threads).iter().zip(&alone).map(|(together, alone)| together / alone).collect();
            insert(format!("{name}_threads{threads}"), ratios);
        }
        insert(format!("{name}_calls_mhz"), alone);
    }
}

/// The CPU time of this thread so far.
fn cpu_ns() -> u64 {
    // SAFETY: all zeros is a time.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `time` is the kernel's to write.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "a thread has no clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the threads of each turn did together.
fn run(turns: &[Turn], cpus: &[usize]) -> Vec<Done> {
    let all: Vec<Done> = turns.iter().map(|_| Done::default()).collect();
    let (origin, until_ns) = (Instant::now(), AtomicU64::new(0));
    let elapsed_ns = || origin.elapsed().as_nanos() as u64;
    let barrier = Barrier::new(MOST);
    let thread = |number: usize| {
        pin(cpus, number);
        for (turn, together) in turns.iter().zip(&all) {
            if number == 0 {
                until_ns.store(elapsed_ns() + WINDOW.as_nanos() as u64, Relaxed);
            }
            barrier.wait();
            if number < turn.threads {
                let (victim, until_ns) = (black_box(turn.victim), until_ns.load(Relaxed));
                let (mut calls, started_ns) = (0, cpu_ns());
                while elapsed_ns() < until_ns {
                    for n in 0..CALLS {
                        black_box(victim(n, n));
                    }
                    calls += CALLS as u64;
                }
                // Who comes when it is all over has done nothing.
                if calls > 0 {
                    together.cpu_ns.fetch_add(cpu_ns() - started_ns, Relaxed);
                    together.calls.fetch_add(calls, Relaxed);
                }
            }
            barrier.wait();
        }
    };
    std::thread::scope(|scope| {
        for number in 0..MOST {
            let thread = &thread;
            scope.spawn(move || thread(number));
        }
    });
    all
}
