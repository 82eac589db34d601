//! A storm: threads hit, register, unregister, fork, raise signals and load and unload a library, all at
//! once, while everything that must hold is checked: results, counters, memory. One minute by default on
//! x86-64, 20 seconds elsewhere; `PROBE_STORM_SECONDS=600 cargo test -p probe-tests-user --test storm` makes
//! it longer.
//!
//! Rules: HIT_7, HIT_8, HIT_12, RET_5, RET_6, REG_13, REG_15, SAFE_1, SAFE_2, CTL_6 and, with a dynamic libc,
//! CTL_5.

use probe_core::Place;
use probe_core::files::Viewer;
use probe_host_linux::{Kprobe, Kretprobe, Probe, guard_signals, probes, start};
use probe_tests_user::heap::{Counting, live_bytes};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Threads that do nothing but call probed functions.
const HITTERS: usize = 4;
/// How many probes each of the two threads that register holds at the most.
const HELD: usize = 24;
/// How long a phase of the storm lasts; between two, everything is quiet and what must hold is checked.
const PHASE: Duration = Duration::from_secs(6);

/// How much the resident memory may differ between two quiet moments: what the C library's allocator holds
/// back for new threads, and pages that are read in at their first use.
const RESIDENT_SLACK: usize = 4 << 20;

/// How many mappings more there may be at a quiet moment: two for each alternate stack of the 12 threads of a
/// phase and of 16 that are not yet known to be dead (`probe_host_linux::threads`). All threads of all phases
/// would need many more.
const MAPPING_SLACK: usize = 2 * (12 + 16);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Always probed, by a kprobe with a post handler and by a kretprobe.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn storm_fixed(a: usize, b: usize) -> usize {
    black_box(a).wrapping_mul(3).wrapping_add(b)
}

/// Called by the signal handler, and by nobody else.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn storm_in_signal(n: usize) -> usize {
    black_box(n).wrapping_add(1)
}

/// `n!`: probed now and then, also while calls are in flight.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn storm_factorial(n: usize) -> usize {
    if n < 2 { 1 } else { black_box(n) * black_box(storm_factorial as extern "C" fn(usize) -> usize)(n - 1) }
}

/// A loop with memory and branches; every instruction of it is probed now and then.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn storm_mix(seed: usize, rounds: usize) -> usize {
    let mut table = [0_u16; 32];
    let mut state = seed as u32 | 1;
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let slot = &mut table[state as usize % 32];
        *slot = if state & 4 == 0 { slot.wrapping_mul(31) } else { slot.wrapping_add((state >> 20) as u16) };
    }
    table.iter().fold(0, |sum, &word| (sum << 1) ^ usize::from(word))
}

/// What the storm counts, over all threads.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    stop_signals: AtomicBool,
    wrong: AtomicUsize,
    fixed_calls: AtomicU64,
    registrations: AtomicU64,
    refusals: AtomicU64,
    forks: AtomicU64,
    loads: AtomicU64,
    signals: AtomicU64,
}

/// Calls of [`storm_in_signal`].
static IN_SIGNAL: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_usr1(_: i32) {
    if black_box(storm_in_signal as extern "C" fn(usize) -> usize)(41) == 42 {
        IN_SIGNAL.fetch_add(1, Relaxed);
    }
}

/// A small generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Calls every victim and checks what it returns; how often [`storm_fixed`] was among them.
fn call_victims(seed: usize, expected_mix: &[usize; 8]) -> Result<u64, ()> {
    let fixed = black_box(storm_fixed as extern "C" fn(usize, usize) -> usize);
    let mut is_right = fixed(seed, 7) == seed.wrapping_mul(3).wrapping_add(7);
    is_right &= black_box(storm_factorial as extern "C" fn(usize) -> usize)(10) == 3_628_800;
    is_right &=
        black_box(storm_mix as extern "C" fn(usize, usize) -> usize)(seed % 8, 30) == expected_mix[seed % 8];
    is_right &= fixed(1, seed) == seed.wrapping_add(3);
    if is_right { Ok(2) } else { Err(()) }
}

fn hit(tally: &Tally, expected_mix: &[usize; 8], first: usize) {
    let mut seed = first;
    while !tally.stop.load(Relaxed) {
        match call_victims(seed, expected_mix) {
            Ok(calls) => {
                tally.fixed_calls.fetch_add(calls, Relaxed);
            }
            Err(()) => {
                tally.fixed_calls.fetch_add(2, Relaxed);
                tally.wrong.fetch_add(1, Relaxed);
            }
        }
        seed = seed.wrapping_add(1);
    }
}

/// The addresses that can be probed in a function.
fn places(name: &str) -> Vec<usize> {
    use probe_core::host::Host;
    let mut extent = (0, 0);
    probes().host().find_symbols(name, &mut |symbol| extent = (symbol.start.as_usize(), symbol.len_bytes));
    (extent.0..extent.0 + extent.1).filter(|&at| probes().explain(&Place::addr(at.into())).is_ok()).collect()
}

fn register_and_unregister(tally: &Tally, [mix, factorial]: &[Vec<usize>; 2], mut random: Random) {
    let mut held: Vec<Probe> = Vec::new();
    while !tally.stop.load(Relaxed) {
        let at =
            |places: &[usize], random: &mut Random| Place::addr(places[random.below(places.len())].into());
        let registered = match random.below(6) {
            0 => probes().register(Kprobe::at(at(mix, &mut random)).pre(|_| ())),
            1 => probes().register(Kprobe::at(at(mix, &mut random)).pre(|_| ()).post(|_| ())),
            2 => probes().register(Kprobe::at(at(factorial, &mut random)).post(|_| ())),
            3 => probes().register(
                Kretprobe::at("storm_factorial").max_active(6).entry(|call| call.argument(0)).exit(
                    |ret, n: usize| {
                        black_box((ret.value(), n));
                    },
                ),
            ),
            4 => {
                let batch = (0..8).map(|_| Kprobe::at(at(mix, &mut random)).pre(|_| ()));
                let batch: Vec<_> = batch.collect();
                tally.registrations.fetch_add(8, Relaxed);
                match probes().register_all(batch) {
                    Ok(batch) => held.extend(batch),
                    Err(_) => {
                        tally.refusals.fetch_add(1, Relaxed);
                    }
                }
                continue;
            }
            _ => {
                if let Some(probe) = held.get(random.below(held.len().max(1))) {
                    let _ = if random.below(2) == 0 { probe.disable() } else { probe.enable() };
                }
                continue;
            }
        };
        tally.registrations.fetch_add(1, Relaxed);
        match registered {
            Ok(probe) => held.push(probe),
            Err(_) => {
                tally.refusals.fetch_add(1, Relaxed);
            }
        }
        while held.len() > HELD {
            drop(held.swap_remove(random.below(held.len())));
        }
        let mut listing = String::new();
        let _ = probes().files().list(&mut listing, Viewer::Privileged);
        if listing.lines().any(|line| line.split("  ").count() < 4) {
            tally.wrong.fetch_add(1, Relaxed);
        }
    }
}

fn raise_signals(tally: &Tally, threads: &[usize]) {
    let mut next = 0;
    while !tally.stop_signals.load(Relaxed) {
        // SAFETY: the hitters run until `stop` is set, and are joined after this thread.
        unsafe { libc::pthread_kill(threads[next % threads.len()] as libc::pthread_t, libc::SIGUSR1) };
        tally.signals.fetch_add(1, Relaxed);
        next += 1;
        std::thread::yield_now();
    }
}

fn fork_children(tally: &Tally, expected_mix: &[usize; 8]) {
    while !tally.stop.load(Relaxed) {
        // SAFETY: the child calls only functions that neither allocate nor lock, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_right = (0..16).all(|seed| call_victims(seed, expected_mix).is_ok());
            // SAFETY: nothing of this process's is left to be done in the child.
            unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
        }
        assert!(child > 0, "fork failed");
        let mut status = 0;
        // SAFETY: `status` lives across the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if waited != child || status != 0 {
            eprintln!("a forked child ended with status {status:#x}");
            tally.wrong.fetch_add(1, Relaxed);
        }
        tally.forks.fetch_add(1, Relaxed);
    }
}

/// Loads a library, probes it, calls it, unloads it: sometimes before the probe is dropped, so that it is
/// GONE.
#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
fn load_and_unload(tally: &Tally) {
    /// Has a function that needs nothing set up: seconds since 1970 of a date in digits.
    const LIBRARY: &std::ffi::CStr = c"libresolv.so.2";
    let mut round = 0;
    while !tally.stop.load(Relaxed) {
        // SAFETY: the C library's own library; its constructors do nothing that matters here.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return;
        }
        // SAFETY: the handle is live and the name a C string.
        let symbol = unsafe { libc::dlsym(library, c"ns_datetosecs".as_ptr()) };
        if symbol.is_null() {
            return;
        }
        // SAFETY: this is the function's C signature.
        let function = unsafe {
            std::mem::transmute::<*mut libc::c_void, extern "C" fn(*const i8, *mut i32) -> u32>(symbol)
        };
        // SAFETY: on that ABI what names a function is its descriptor.
        let code = if cfg!(target_abi = "elfv1") { unsafe { *symbol.cast() } } else { symbol as usize };
        let probe = probes().register(Kprobe::at(Place::addr(code.into())).pre(|_| ()));
        let mut error = 0;
        let seconds = function(c"20000101000010".as_ptr().cast(), &raw mut error);
        match &probe {
            Ok(probe) if seconds == 946_684_810 && probe.counters().hits == 1 => {}
            _ => {
                eprintln!("the library's function said {seconds}, with {probe:?}");
                tally.wrong.fetch_add(1, Relaxed);
                return;
            }
        }
        let late = if round % 2 == 0 { probe.ok() } else { None };
        // SAFETY: nobody uses the library any more; a probe on it that is left becomes GONE.
        unsafe { libc::dlclose(library) };
        probe_host_linux::objects_changed();
        if late.is_some_and(|probe| !probe.is_gone()) {
            eprintln!("a probe outlives its text");
            tally.wrong.fetch_add(1, Relaxed);
        }
        round += 1;
        tally.loads.fetch_add(1, Relaxed);
    }
}

#[cfg(not(all(target_env = "gnu", not(target_feature = "crt-static"))))]
fn load_and_unload(_: &Tally) {}

/// The program's own action for SIGTRAP: there is no breakpoint but ours, so the storm has failed. Says what
/// it was.
extern "C" fn on_foreign_trap(_: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    use probe_core::host::Host;
    use std::io::Write;
    // SAFETY: the kernel's structure, alive while the handler runs.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above, and longer than that.
    let words = unsafe { context.cast::<[usize; 48]>().read() };
    let mut text = [0_u8; 4096];
    let mut out = std::io::Cursor::new(&mut text[..]);
    let _ = writeln!(out, "SIGTRAP is not ours: si_code {code:#x}, ucontext {words:x?}");
    for word in words {
        let mut bytes = [0; 16];
        let host = probes_without_looking();
        if host.read_text(word.wrapping_sub(8).into(), &mut bytes) == 16 {
            let _ = writeln!(out, "  around {word:x}: {bytes:x?}");
        }
    }
    let len = out.position() as usize;
    // SAFETY: `text` is that long.
    unsafe { libc::write(2, text.as_ptr().cast(), len) };
    std::process::abort();
}

/// The host, in a handler: nothing is looked up.
fn probes_without_looking() -> &'static probe_host_linux::LinuxProcess {
    start().expect("it has started").host()
}

/// Lets a SIGTRAP that is not about a probe say what it is.
fn tell_of_foreign_traps() {
    use probe_host_linux::{signals, sys};
    let action = sys::Action {
        handler: on_foreign_trap as *const () as usize,
        flags: libc::SA_SIGINFO as usize,
        restorer: sys::Restorer::NONE,
        mask: sys::SignalSet::EMPTY,
    };
    signals::program_action(libc::SIGTRAP, Some(&action));
}

/// The memory of this process that is in use, in bytes.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a process knows its memory");
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    // SAFETY: asks only.
    pages.expect("the second number is the resident pages")
        * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize
}

/// Mappings of this process, and whether one of them may be written and executed.
fn mappings() -> (usize, bool) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process has a list of its mappings");
    let is_wx = |line: &str| line.split_whitespace().nth(1).is_some_and(|mode| mode.contains("wx"));
    (maps.lines().count(), maps.lines().any(is_wx))
}

/// Watches that no page is ever writable and executable (SAFE_1); only where text is written through an
/// alias.
fn watch_mappings(tally: &Tally) {
    while !tally.stop.load(Relaxed) {
        if mappings().1 {
            eprintln!("a page is writable and executable");
            tally.wrong.fetch_add(1, Relaxed);
            return;
        }
        std::thread::yield_now();
    }
}

/// One phase: everything at once, for a while.
fn phase(
    number: u64,
    expected_mix: &[usize; 8],
    places: &[Vec<usize>; 2],
    until: Instant,
    is_native: bool,
) -> Tally {
    let tally = Tally::default();
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        for first in 0..HITTERS {
            let (sender, tally) = (sender.clone(), &tally);
            handles.push(scope.spawn(move || {
                // SAFETY: asks only who this thread is.
                let _ = sender.send(unsafe { libc::pthread_self() } as usize);
                hit(tally, expected_mix, first * 1000);
            }));
        }
        let threads: Vec<_> = (0..HITTERS).filter_map(|_| receiver.recv().ok()).collect();
        let tally = &tally;
        let signals = scope.spawn(move || raise_signals(tally, &threads));
        let workers = [
            scope.spawn(move || {
                register_and_unregister(tally, places, Random(0x9e37_79b9_7f4a_7c15 ^ number))
            }),
            scope.spawn(move || {
                register_and_unregister(tally, places, Random(0xd1b5_4a32_d192_ed03 ^ number))
            }),
            scope.spawn(move || fork_children(tally, expected_mix)),
            scope.spawn(move || load_and_unload(tally)),
        ];
        let watcher = is_native.then(|| scope.spawn(move || watch_mappings(tally)));
        while Instant::now() < until {
            std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
        // The thread that sends signals first: a thread that has ended must not get one.
        tally.stop_signals.store(true, SeqCst);
        signals.join().expect("the signalling thread panicked");
        tally.stop.store(true, SeqCst);
        for worker in workers.into_iter().chain(watcher).chain(handles) {
            worker.join().expect("a thread of the storm panicked");
        }
    });
    tally
}

/// Plants the probes that stay for the whole storm, and checks their counters after each phase.
struct Fixed {
    kprobe: Probe,
    kretprobe: Probe,
    in_signal: Probe,
    calls: u64,
    pre: &'static AtomicU64,
    exits: &'static AtomicU64,
}

impl Fixed {
    fn plant() -> Self {
        static PRE: AtomicU64 = AtomicU64::new(0);
        static EXITS: AtomicU64 = AtomicU64::new(0);
        let plant = |probe: Result<Probe, _>| probe.unwrap_or_else(|error| panic!("refused: {error}"));
        Self {
            kprobe: plant(
                probes().register(
                    Kprobe::at("storm_fixed")
                        .pre(|_| {
                            PRE.fetch_add(1, Relaxed);
                        })
                        .post(|_| ()),
                ),
            ),
            kretprobe: plant(probes().register(
                Kretprobe::at("storm_fixed").max_active(64).entry(|call| call.argument(0)).exit(
                    |_, _: usize| {
                        EXITS.fetch_add(1, Relaxed);
                    },
                ),
            )),
            in_signal: plant(probes().register(Kprobe::at("storm_in_signal").pre(|_| ()))),
            calls: 0,
            pre: &PRE,
            exits: &EXITS,
        }
    }

    fn check(&self, is_guarded: bool) {
        let counters = self.kprobe.counters();
        assert_eq!(counters.hits + counters.missed_nested, self.calls, "HIT_8: {counters:?}");
        assert_eq!(counters.hits, self.pre.load(SeqCst), "HIT_8: the handler and the counter disagree");
        let counters = self.kretprobe.counters();
        let entered = counters.hits + counters.missed_pool + counters.missed_nested + counters.vetoed;
        assert_eq!(entered, self.calls, "RET_1: {counters:?}");
        assert_eq!(counters.hits, self.exits.load(SeqCst), "RET_1: an exit handler was lost: {counters:?}");
        assert_eq!(counters.abandoned, 0, "RET_7: a live call was given up: {counters:?}");
        let counters = self.in_signal.counters();
        let handled = IN_SIGNAL.load(SeqCst);
        assert_eq!(counters.hits + counters.missed_nested, handled, "HIT_12: {counters:?}");
        if is_guarded {
            // Signals wait for the end of a hit: none can be inside another one.
            assert_eq!(counters.missed_nested, 0, "HIT_12: {counters:?}");
        }
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        println!("storm: test");
        return;
    }
    start().expect("this process can be probed");
    tell_of_foreign_traps();
    let guard = guard_signals().expect("libc's system calls can be probed");
    let usual = if cfg!(all(target_arch = "x86_64", target_env = "gnu")) { 60 } else { 20 };
    let seconds =
        std::env::var("PROBE_STORM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let end = Instant::now() + Duration::from_secs(seconds);
    let expected_mix: [usize; 8] =
        std::array::from_fn(|seed| black_box(storm_mix as extern "C" fn(usize, usize) -> usize)(seed, 30));
    // SAFETY: the handler calls one function and adds to a counter.
    unsafe { libc::signal(libc::SIGUSR1, on_usr1 as *const () as libc::sighandler_t) };
    let is_native = probes().host().text_access() == probe_host_linux::TextAccess::Alias;
    let mut fixed = Fixed::plant();
    let places = ["storm_mix", "storm_factorial"].map(places);
    assert!(places[0].len() > 10 && places[1].len() > 4, "{places:x?}");
    let mut settled: Option<(i64, usize, usize)> = None;
    let (mut number, mut registrations) = (0, 0);
    let begin = Instant::now();
    println!("\nrunning 1 test");
    while Instant::now() < end {
        let tally = phase(number, &expected_mix, &places, (Instant::now() + PHASE).min(end), is_native);
        fixed.calls += tally.fixed_calls.load(SeqCst);
        registrations += tally.registrations.load(SeqCst);
        assert_eq!(tally.wrong.load(SeqCst), 0, "something came out wrong");
        fixed.check(guard.is_complete());
        let now = (live_bytes(), mappings().0, resident_bytes());
        println!(
            "phase {number}: {} calls, {} registrations ({} refused), {} signals, {} forks, {} loads; {} bytes, {} mappings, {} KiB resident",
            tally.fixed_calls.load(SeqCst),
            tally.registrations.load(SeqCst),
            tally.refusals.load(SeqCst),
            tally.signals.load(SeqCst),
            tally.forks.load(SeqCst),
            tally.loads.load(SeqCst),
            now.0,
            now.1,
            now.2 / 1024,
        );
        number += 1;
        // The first phases fill caches (symbol tables, slots by place): from the third on nothing may grow.
        match settled {
            None if number >= 3 => settled = Some(now),
            Some((bytes, maps, resident)) => {
                assert!(now.0 <= bytes + 64 * 1024, "memory grows: {bytes} bytes, now {}", now.0);
                assert!(now.1 <= maps + MAPPING_SLACK, "mappings grow: {maps}, now {}", now.1);
                // An emulator's own memory is what it has translated, too.
                assert!(
                    !is_native || now.2 <= resident + RESIDENT_SLACK,
                    "memory grows: {resident} resident, now {}",
                    now.2
                );
            }
            None => {}
        }
    }
    assert!(registrations > 0, "nobody has registered anything meanwhile");
    let rate = |count: u64| count as f64 / begin.elapsed().as_secs_f64();
    println!(
        "{HITTERS} threads that call, 2 that register and hold {HELD} probes each: {:.0} checked calls and {:.0} registrations a second",
        rate(fixed.calls),
        rate(registrations)
    );
    println!(
        "test storm ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
    );
}
