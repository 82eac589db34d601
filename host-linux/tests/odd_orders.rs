//! REG_21 in odd orders: probes of every kind come to one function and go from it, are disabled and enabled,
//! by the program, by a signal's handler in the midst of a followed call, and by forked children; by traps
//! and by jumps.

mod common;

use common::{End, alone, in_child};
use probe_host_linux::probe_core::files::Viewer;
use probe_host_linux::probe_core::host::Host;
use probe_host_linux::probe_core::{Probe, Switch, Watchpoint};
use probe_host_linux::{Jprobe, Kprobe, Kretprobe, LinuxProcess, Native, probes};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// What the function writes to, for watchpoints.
static CELL: AtomicUsize = AtomicUsize::new(0);
/// Whether the next call sends the signal.
static RAISES: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn odd_work(n: usize, m: usize) -> usize {
    CELL.store(n, Relaxed);
    if RAISES.swap(0, Relaxed) != 0 {
        // SAFETY: to this thread, which has a handler for it.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    black_box(n).wrapping_mul(3).wrapping_add(m)
}

extern "C" fn on_jump(n: usize, m: usize) -> usize {
    black_box(n ^ m)
}

/// A probe on the function: what it is, and how many hits it has to have.
struct Held {
    probe: Probe<LinuxProcess>,
    is_return: bool,
    is_enabled: bool,
    expected: u64,
    /// Whether it follows the call that is under way.
    is_inside: bool,
    /// Whether it was disabled or enabled then.
    is_blurred: bool,
}

type Watch = probe_host_linux::probe_core::Watch<LinuxProcess>;

struct World {
    random: u64,
    held: Vec<Held>,
    watch: Option<Watch>,
    has_watches: bool,
}

/// The one that a signal's handler changes, too; nothing else interrupts.
static WORLD: Mutex<Option<World>> = Mutex::new(None);

fn with<R>(body: impl FnOnce(&mut World) -> R) -> R {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    body(world.as_mut().expect("the test has made it"))
}

extern "C" fn on_signal(_: i32) {
    with(|world| (0..3).for_each(|_| world.change()));
}

impl World {
    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % n
    }

    /// A probe comes, goes, is disabled or enabled.
    fn change(&mut self) {
        let count = self.held.len();
        match self.below(9) {
            kind @ 0..4 if count < 8 => self.come(kind),
            4 | 5 if count > 0 => {
                let index = self.below(count);
                drop(self.held.swap_remove(index));
            }
            6 | 7 if count > 0 => {
                let index = self.below(count);
                let held = &mut self.held[index];
                let changed = if held.is_enabled { held.probe.disable() } else { held.probe.enable() };
                assert!(changed.is_ok(), "{changed:?}");
                held.is_enabled = !held.is_enabled;
                // Whether the call that is under way counts is not promised.
                held.is_blurred |= held.is_inside;
            }
            8 if self.has_watches && self.watch.take().is_none() => {
                let at = Watchpoint::<Native>::at(CELL.as_ptr().addr(), size_of::<usize>()).write();
                self.watch = Some(probes().watch(at).expect("a free register"));
            }
            _ => {}
        }
    }

    fn come(&mut self, kind: usize) {
        let registered = match kind {
            0 => probes().register(Kprobe::at("odd_work").pre(|_| ())),
            1 => probes().register(Kprobe::at("odd_work").pre(|_| ()).post(|_| ())),
            2 => probes().register(Kretprobe::at("odd_work").max_active(4).exit(|_, ()| ())),
            // SAFETY: the handler has the function's signature.
            _ => probes()
                .register(unsafe { Jprobe::at("odd_work", on_jump as extern "C" fn(usize, usize) -> usize) }),
        };
        match registered {
            Ok(probe) => {
                self.held.push(Held {
                    probe,
                    is_return: kind == 2,
                    is_enabled: true,
                    expected: 0,
                    is_inside: false,
                    is_blurred: false,
                });
            }
            // One jprobe per function (REG_11).
            Err(error) => assert_eq!((kind, error.errno().as_i32()), (3, libc::EEXIST), "{error}"),
        }
    }

    /// A call begins: those that are there see it.
    fn enter(&mut self) {
        for held in self.held.iter_mut().filter(|held| held.is_enabled) {
            held.is_inside = held.is_return;
            held.expected += u64::from(!held.is_return);
        }
    }

    /// It is over: those that have followed it have seen its return.
    fn leave(&mut self) {
        for held in &mut self.held {
            let is_seen = std::mem::take(&mut held.is_inside);
            let hits = held.probe.counters().hits;
            if std::mem::take(&mut held.is_blurred) {
                held.expected = hits.clamp(held.expected, held.expected + 1);
            } else {
                held.expected += u64::from(is_seen);
            }
            let counters = held.probe.counters();
            assert_eq!(hits, held.expected, "is a return probe: {}; {counters:?}", held.is_return);
        }
        let mut listing = String::new();
        let _ = probes().files().list(&mut listing, Viewer::Privileged);
        let watched = usize::from(self.watch.is_some());
        assert!(
            listing.lines().count() == self.held.len() + watched && !listing.contains("[GONE]"),
            "{listing}"
        );
    }
}

/// The function's bytes.
fn text() -> [u8; 32] {
    let mut bytes = [0; 32];
    let place = common::code(odd_work as *const ());
    probes().host().read_text(place.into(), &mut bytes);
    bytes
}

/// Changes and calls in turn; some calls are interrupted by changes.
fn go(rounds: usize) {
    for n in 0..rounds {
        let raises = with(|world| {
            (0..world.below(4)).for_each(|_| world.change());
            world.enter();
            world.below(3) == 0
        });
        RAISES.store(usize::from(raises), Relaxed);
        let work = black_box(odd_work as extern "C" fn(usize, usize) -> usize);
        assert_eq!(work(n, 7), n.wrapping_mul(3).wrapping_add(7));
        with(World::leave);
    }
}

#[test]
fn reg_21_probes_of_every_kind_come_and_go_in_odd_orders_from_handlers_and_children() {
    let _alone = alone();
    let before = text();
    common::install(libc::SIGUSR1, on_signal);
    let seeds = if std::env::var_os("PROBE_RUNNER").is_some() { 8 } else { 60 };
    for seed in 1..=seeds {
        let has_watches = probes().host().watchpoints().is_ok();
        let jumps = if seed % 2 == 0 { Switch::On } else { Switch::Off };
        probes().jumps().set_automatic(jumps);
        let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
        let world = World { random, held: Vec::new(), watch: None, has_watches };
        *WORLD.lock().unwrap_or_else(PoisonError::into_inner) = Some(world);
        go(12);
        // A child goes on with the same probes, takes its own away, and its parent has them still.
        let end = in_child(|| {
            with(|world| world.has_watches = false);
            go(6);
            with(|world| world.held.clear());
            i32::from(text() != before)
        });
        assert_eq!(end, End::Exit(0), "seed {seed}");
        go(6);
        *WORLD.lock().unwrap_or_else(PoisonError::into_inner) = None;
        assert_eq!(text(), before, "seed {seed}");
    }
    probes().jumps().set_automatic(Switch::Off);
}
