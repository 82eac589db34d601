//! What a hit costs in a Linux process: nanoseconds over the unprobed call, beside the bare signal and the
//! kernel's own uprobes, all in one run.
//!
//! Every round calls the victims of all cases one after the other, so that a machine that speeds up or slows
//! down does so for all of them, and a case is related to the bare signal of its own round: what counts is
//! the median of these ratios, which a busy machine shifts little. There are many short rounds, on one CPU.
//! `--json` prints one flat object with the names that docs/benchmarks.md explains.

mod floor;
mod frida;
mod peers;
mod threads;
mod uprobe;
mod victims;

use probe_host_linux::probe_core::Switch;
use probe_host_linux::{Kprobe, Kretprobe, Probe, guard_signals, probes};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use victims::Victim;

/// Rounds; the median of them is what counts.
const ROUNDS: usize = 301;
/// Calls of each victim in one round: about a tenth of a time slice.
const CALLS: usize = 200;
/// The same of what takes ten times as long.
const FEW_CALLS: usize = 20;

/// Bytes that are allocated now, with what the allocator rounds up to.
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: forwards to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc(layout) };
        LIVE_BYTES.fetch_add(real_len(block), Relaxed);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(real_len(block), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) };
    }
}

/// How many bytes the allocator set aside for `block`, its own header included.
fn real_len(block: *mut u8) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: `block` is a live block of malloc's.
    unsafe { libc::malloc_usable_size(block.cast()) + size_of::<usize>() }
}

/// Bytes of executable memory that no file is mapped to: slots and return stubs.
fn anonymous_exec_bytes() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let len = |line: &str| {
        let mut fields = line.split_whitespace();
        let (range, permissions) = (fields.next()?, fields.next()?);
        let (start, end) = range.split_once('-')?;
        let is_ours = permissions.contains('x') && fields.nth(3).is_none();
        let at = |hex| usize::from_str_radix(hex, 16).ok();
        is_ours.then_some(at(end)? - at(start)?)
    };
    maps.lines().filter_map(len).sum()
}

/// Nanoseconds per call of `victim`.
fn time(victim: Victim) -> f64 {
    time_calls(victim, CALLS)
}

/// The same of so many calls.
fn time_calls(victim: Victim, calls: usize) -> f64 {
    let victim = black_box(victim);
    let start = Instant::now();
    for n in 0..calls {
        black_box(victim(n, n));
    }
    start.elapsed().as_nanos() as f64 / calls as f64
}

/// The CPUs that this process may use, as numbers.
fn cpus() -> Vec<usize> {
    // SAFETY: an all-zero set is a valid, empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live set of that size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: the numbers are below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Keeps the running thread on the CPU number `wanted` of those that it may use, as far as that is possible.
fn pin(cpus: &[usize], wanted: usize) {
    let Some(cpu) = cpus.get(wanted % cpus.len().max(1)) else { return };
    // SAFETY: an all-zero set is a valid, empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number came out of such a set.
    unsafe { libc::CPU_SET(*cpu, &mut set) };
    // SAFETY: `set` is a live set of that size. If it is refused, the thread may move: only noise.
    let _ = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

/// The median of the ratios of the values of the same rounds.
fn ratio(values: &[f64], to: &[f64]) -> f64 {
    median(ratios(values, to))
}

fn ratios(values: &[f64], to: &[f64]) -> Vec<f64> {
    values.iter().zip(to).map(|(value, to)| value / to).collect()
}

/// Half of the interval that holds the true median with 95 % probability, as a share of the median: between
/// the values of rank n/2 ± 0.98 √n, whatever their distribution (H. A. David, Order Statistics, 7.1). Of few
/// values: all of them.
fn noise(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let reach = 0.98 * count.sqrt();
    let low = values[(count / 2.0 - reach).max(0.0) as usize];
    let high = values[((count / 2.0 + reach) as usize).min(values.len() - 1)];
    (high - low) / 2.0 / values[values.len() / 2]
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A case: its stable name, what it calls, and the handler that SIGTRAP has to have meanwhile, if not ours.
struct Case {
    name: &'static str,
    victim: Victim,
    calls: usize,
    on_trap: Option<floor::Handler>,
}

/// The figures so far, by their stable names.
type Figures = BTreeMap<String, f64>;

/// A figure that has been measured again and again: the median, and how far it scatters.
fn insert_scattered(figures: &mut Figures, name: &str, values: Vec<f64>) {
    figures.insert(format!("{name}.noise"), noise(values.clone()));
    figures.insert(name.into(), median(values));
}

extern "C" fn on_jump(a: usize, b: usize) -> usize {
    black_box(a.wrapping_add(b))
}

/// A jprobe whose handler has the victims' signature.
fn jprobe(target: &str) -> probe_host_linux::Jprobe {
    // SAFETY: the victims have this signature.
    unsafe { probe_host_linux::Jprobe::at(target, on_jump as extern "C" fn(usize, usize) -> usize) }
}

/// Plants the probes of all trap cases.
fn plant() -> Vec<Probe> {
    let plant = |probe: probe_core::AnyProbe<probe_host_linux::Native>| match probes().register(probe) {
        Ok(probe) => probe,
        Err(error) => panic!("a victim cannot be probed: {error}"),
    };
    vec![
        plant(Kprobe::at("bench_emulated").pre(|_| ()).into()),
        plant(Kprobe::at("bench_boosted").pre(|_| ()).into()),
        plant(Kprobe::at("bench_post").pre(|_| ()).post(|_| ()).into()),
        plant(jprobe("bench_j").into()),
        plant(Kretprobe::at("bench_r").entry(|_| Some(())).exit(|_, ()| ()).into()),
        plant(Kretprobe::at("bench_kr").entry(|_| Some(())).exit(|_, ()| ()).into()),
        plant(Kprobe::at("bench_kr").pre(|_| ()).into()),
        plant(Kretprobe::at("bench_jr").entry(|_| Some(())).exit(|_, ()| ()).into()),
        plant(jprobe("bench_jr").into()),
    ]
}

/// Plants the probes whose hits need no trap; none where this place gives them no jump.
fn plant_optimised() -> Vec<Probe> {
    probes().jumps().set_automatic(Switch::On);
    // SAFETY: the handlers do nothing.
    let k = unsafe { Kprobe::at("bench_k_optimised").pre(|_| ()).no_simd() };
    // SAFETY: as above.
    let r = unsafe { Kretprobe::at("bench_r_optimised").exit(|_, ()| ()).no_simd() };
    let asked = Kretprobe::at("bench_r_optimised_entry").entry(|_| Some(())).exit(|_, ()| ());
    // SAFETY: as above.
    let asked = unsafe { asked.no_simd() };
    // SAFETY: as above.
    let post = unsafe { Kprobe::at("bench_k_optimised_post").pre(|_| ()).post(|_| ()).no_simd() };
    let planted = probes().register_all([
        probe_core::AnyProbe::from(k),
        post.into(),
        Kprobe::at("bench_k_optimised_post_simd").pre(|_| ()).post(|_| ()).into(),
        Kprobe::at("bench_k_optimised_simd").pre(|_| ()).into(),
        r.into(),
        Kretprobe::at("bench_r_optimised_simd").exit(|_, ()| ()).into(),
        asked.into(),
    ]);
    probes().jumps().set_automatic(Switch::Off);
    let mut list = String::new();
    let listed = probes().files().list(&mut list, probe_core::files::Viewer::Privileged);
    assert!(listed.is_ok() && list.matches("[OPTIMIZED]").count() == 7, "a victim got no jump:\n{list}");
    planted.unwrap_or_else(|error| panic!("a victim cannot be probed: {error}"))
}

/// Hits: every case in every round.
fn measure_hits(figures: &mut Figures, mut frida: Option<frida::Frida>) {
    let mut held = plant();
    held.extend(plant_optimised());
    let uprobes = [
        uprobe::Uprobe::arm(victims::bench_uprobe_nop as *const () as usize, uprobe::Kind::Entry),
        uprobe::Uprobe::arm(victims::bench_uprobe_stepped as *const () as usize, uprobe::Kind::Entry),
        uprobe::Uprobe::arm(victims::bench_uretprobe_nop as *const () as usize, uprobe::Kind::Return),
    ];
    let case = |name, victim: Victim| Case { name, victim, calls: CALLS, on_trap: None };
    let on_trap: Option<floor::Handler> = Some(floor::on_trap);
    let mut cases = vec![
        case("bare", victims::bench_bare),
        Case { name: "floor.one_trap_ns", victim: victims::floor_one, calls: CALLS, on_trap },
        Case { name: "floor.two_traps_ns", victim: victims::floor_two, calls: CALLS, on_trap },
        case("k.emulated_ns", victims::bench_emulated),
        case("k.boosted_ns", victims::bench_boosted),
        case("k.post_ns", victims::bench_post),
        case("j_ns", victims::bench_j),
        case("r_ns", victims::bench_r),
        case("kr_ns", victims::bench_kr),
        case("jr_ns", victims::bench_jr),
        case("k.optimised_ns", victims::bench_k_optimised),
        case("k.optimised_simd_ns", victims::bench_k_optimised_simd),
        case("k.optimised_post_ns", victims::bench_k_optimised_post),
        case("k.optimised_post_simd_ns", victims::bench_k_optimised_post_simd),
        case("r.optimised_ns", victims::bench_r_optimised),
        case("r.optimised_simd_ns", victims::bench_r_optimised_simd),
        case("r.optimised_entry_ns", victims::bench_r_optimised_entry),
    ];
    let peers: [(&'static str, Victim); 3] = [
        ("uprobe.nop_ns", victims::bench_uprobe_nop),
        ("uprobe.stepped_ns", victims::bench_uprobe_stepped),
        ("uretprobe.nop_ns", victims::bench_uretprobe_nop),
    ];
    for ((name, victim), armed) in peers.into_iter().zip(&uprobes) {
        match armed {
            Ok(_) => cases.push(case(name, victim)),
            Err(error) => eprintln!("{name}: no kernel uprobe here ({error})"),
        }
    }
    let libraries: [(&'static str, &str, Victim); 2] = [
        ("hook_crate.detour_ns", "hook", victims::bench_hook),
        ("kprobe_crate.hit_ns", "kprobe", victims::bench_kprobe_crate),
    ];
    let mut planted = Vec::new();
    for (name, peer, victim) in libraries {
        match peers::Peer::plant(peer, victim) {
            Ok(peer) => {
                let calls = if peer.on_trap.is_some() { FEW_CALLS } else { CALLS };
                cases.push(Case { name, victim, calls, on_trap: peer.on_trap });
                planted.push((peer, calls));
            }
            Err(error) => eprintln!("{name}: left out ({error})"),
        }
    }
    let mut samples: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let mut of_frida = Vec::new();
    for round in 0..ROUNDS {
        // Each round begins with another one: on a busy machine the end of a time slice shall not meet always
        // the same.
        for case in cases.iter().cycle().skip(round % cases.len()).take(cases.len()) {
            let run = || time_calls(case.victim, case.calls);
            let ns = match case.on_trap {
                Some(handler) => floor::with_sigtrap(handler, run),
                None => run(),
            };
            samples.entry(case.name).or_default().push(ns);
        }
        if let Some(frida) = &mut frida {
            of_frida.push(frida.round().unwrap_or_else(|error| panic!("frida: {error}")));
        }
    }
    let expected = (ROUNDS * CALLS) as u64;
    for probe in &held {
        assert_eq!(probe.counters().hits, expected, "hits were lost at {}", probe.addr());
    }
    for armed in uprobes.iter().flatten() {
        assert_eq!(armed.count(), expected, "the kernel lost hits");
    }
    for (peer, calls) in &planted {
        assert_eq!(peer.count(), (ROUNDS * calls) as u64, "a peer lost hits");
    }
    if let Some(frida) = frida {
        assert_eq!(frida.count(), Ok(expected), "frida lost hits");
    }
    let bare = samples.remove("bare").unwrap_or_default();
    figures.insert("bare_ns".into(), median(bare.clone()));
    // What a case costs over the unprobed call, round by round.
    for values in samples.values_mut() {
        for (value, bare) in values.iter_mut().zip(&bare) {
            *value -= bare;
        }
    }
    if !of_frida.is_empty() {
        samples.insert("frida.on_enter_ns", of_frida);
    }
    let one_trap = samples.get("floor.one_trap_ns").cloned().unwrap_or_default();
    let one_trap_ns = median(one_trap.clone());
    for (name, values) in &samples {
        figures.insert((*name).into(), ratio(values, &one_trap) * one_trap_ns);
    }
    let mut relate = |name, values, to| {
        if let (Some(values), Some(to)) = (samples.get(values), samples.get(to)) {
            insert_scattered(figures, name, ratios(values, to));
        }
    };
    relate("ratio.boosted", "k.boosted_ns", "floor.one_trap_ns");
    relate("ratio.emulated", "k.emulated_ns", "floor.one_trap_ns");
    relate("ratio.post", "k.post_ns", "floor.two_traps_ns");
    relate("ratio.r", "r_ns", "floor.one_trap_ns");
    relate("ratio.kr", "kr_ns", "r_ns");
    relate("ratio.optimised_uprobe_nop", "k.optimised_ns", "uprobe.nop_ns");
    relate("ratio.optimised_uprobe_stepped", "k.optimised_ns", "uprobe.stepped_ns");
    relate("ratio.optimised_frida", "k.optimised_ns", "frida.on_enter_ns");
    relate("ratio.optimised_hook_crate", "k.optimised_ns", "hook_crate.detour_ns");
}

/// Nanoseconds over the unprobed call of a hit at `bench_many`, and related to the bare signal of the same
/// rounds, each: what one probe costs among those that there are now.
fn measure_one_among() -> (f64, Vec<f64>) {
    let one = probes().register(Kprobe::at("bench_many").pre(|_| ()));
    assert!(one.is_ok(), "bench_many was refused");
    let (mut hits, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let bare = time(victims::bench_bare);
        hits.push(time(victims::bench_many) - bare);
        floors.push(floor::with_bare_sigtrap(|| time(victims::floor_one)) - bare);
    }
    (median(hits.clone()), ratios(&hits, &floors))
}

/// Removes a batch.
fn unregister(held: Vec<Probe>) {
    assert!(probes().unregister_all(held).is_ok(), "a probe could not be removed");
}

/// Registration of 1, 10³ and 10⁵ probes, one by one and in a batch; what they weigh; and a hit among 10⁵.
fn measure_many(figures: &mut Figures) {
    let places = || victims::field().map(|at| Kprobe::at(probe_core::Place::addr(at.into())).pre(|_| ()));
    let ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    // The first registration reads the symbol tables; it is not what is measured here.
    drop(probes().register(Kprobe::at("bench_many")));

    let start = Instant::now();
    let one = probes().register(Kprobe::at("bench_many").pre(|_| ()));
    figures.insert("register.one_us".into(), ms(start) * 1e3);
    let start = Instant::now();
    drop(one);
    figures.insert("unregister.one_us".into(), ms(start) * 1e3);

    let start = Instant::now();
    let singly: Vec<_> = places().take(1_000).map(|probe| probes().register(probe)).collect();
    figures.insert("register.single_1k_ms".into(), ms(start));
    assert!(singly.iter().all(Result::is_ok), "a place of the field was refused");
    let start = Instant::now();
    drop(singly);
    figures.insert("unregister.single_1k_ms".into(), ms(start));

    let start = Instant::now();
    let batch = probes().register_all(places().take(1_000));
    figures.insert("register.batch_1k_ms".into(), ms(start));
    let start = Instant::now();
    unregister(batch.unwrap_or_else(|error| panic!("the batch of 1000 was refused: {error}")));
    figures.insert("unregister.batch_1k_ms".into(), ms(start));

    let (among_ns, among) = measure_batch_of_all(figures);
    let (alone_ns, alone) = measure_one_among();
    figures.insert("k.boosted_alone_ns".into(), alone_ns);
    // The signal's own time may have changed between the two.
    let to_alone = median(among.clone()) / median(alone.clone());
    figures.insert("k.boosted_with_100k_ns".into(), alone_ns * to_alone);
    figures.insert("ratio.with_100k".into(), to_alone);
    figures.insert("ratio.with_100k.noise".into(), noise(among) + noise(alone));
    // Without the correction, for whoever wonders.
    figures.insert("k.boosted_with_100k_measured_ns".into(), among_ns);
}

/// How often 100,000 probes come and go: a batch of them has no rounds of its own.
const BATCHES: usize = 5;

/// The whole field in one batch: how long it takes, what it weighs, and what one hit costs among so many.
fn measure_batch_of_all(figures: &mut Figures) -> (f64, Vec<f64>) {
    let places = || victims::field().map(|at| Kprobe::at(probe_core::Place::addr(at.into())).pre(|_| ()));
    let ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let (mut register, mut unregister_all) = (Vec::new(), Vec::new());
    let mut among = (0.0, Vec::new());
    for round in 0..BATCHES {
        let (bytes_before, exec_before) = (LIVE_BYTES.load(Relaxed), anonymous_exec_bytes());
        let start = Instant::now();
        let all =
            probes().register_all(places()).unwrap_or_else(|error| panic!("the field was refused: {error}"));
        register.push(ms(start));
        if round == 0 {
            let count = all.len() as f64;
            let handles = (all.capacity() * size_of::<Probe>()) as f64;
            let bytes = (LIVE_BYTES.load(Relaxed) - bytes_before) as f64;
            figures.insert("probe_bytes".into(), (bytes - handles) / count);
            figures.insert("slot_bytes".into(), (anonymous_exec_bytes() - exec_before) as f64 / count);
            among = measure_one_among();
        }
        let start = Instant::now();
        unregister(all);
        unregister_all.push(ms(start));
    }
    insert_scattered(figures, "register.batch_100k_ms", register);
    insert_scattered(figures, "unregister.batch_100k_ms", unregister_all);
    among
}

/// Prints the figures as a table.
fn print_table(figures: &Figures) {
    for (name, value) in figures {
        println!("{name:<36} {value:>12.3}");
    }
}

fn main() {
    // `cargo test --benches` runs this binary too; a benchmark runs when it is asked for.
    if frida::is_victims_process() || !std::env::args().any(|arg| arg == "--bench" || arg == "--json") {
        return;
    }
    let mut figures = Figures::new();
    let cpus = cpus();
    pin(&cpus, 0);
    // Before there are probes: its process begins as any other.
    let frida = frida::Frida::start();
    if let Err(error) = &frida {
        eprintln!("frida.on_enter_ns: left out ({error})");
    }
    // As in a traced program.
    let guard = guard_signals();
    assert!(guard.is_ok(), "libc's system calls cannot be probed");
    measure_hits(&mut figures, frida.ok());
    measure_many(&mut figures);
    threads::measure_two(&mut figures, &cpus);
    threads::measure_many(&mut figures, &cpus);
    if std::env::args().any(|arg| arg == "--json") {
        let fields: Vec<String> =
            figures.iter().map(|(name, value)| format!("\"{name}\": {value:.3}")).collect();
        println!("{{{}}}", fields.join(", "));
    } else {
        print_table(&figures);
    }
}
