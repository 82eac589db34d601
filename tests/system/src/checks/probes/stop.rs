//! All probes stop while tasks wait in calls that are followed.

use super::{Counter, lacks_jumps, list, register};
use crate::arch::Backend;
use crate::host::{Kernel, PROBES};
use crate::{memory, task};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use probe_core::arch::Memory;
use probe_core::error::Errno;
use probe_core::{Kprobe, Kretprobe, Probe};
use probe_kernel_kit::extable::FaultFree;

const TASKS: usize = 4;
const DEPTH: usize = 4;

/// Whether tasks wait in [`waiting_triple`].
static WAIT: AtomicBool = AtomicBool::new(false);

/// Waits, `depth` calls deeper; returns `a * 3`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn waiting_triple(a: usize, depth: usize) -> usize {
    if depth > 0 {
        return core::hint::black_box(waiting_triple(a, depth - 1));
    }
    while WAIT.load(SeqCst) {
        task::yield_now();
    }
    core::hint::black_box(a) * 3
}

pub(super) fn stopping_by_traps() {
    stopping(false);
}

pub(super) fn stopping_by_jumps() {
    if !lacks_jumps() {
        stopping(true);
    }
}

/// All of the kernel's text.
fn text() -> Vec<u8> {
    let (start, end) = memory::text_range();
    let mut text = vec![0; end - start];
    FaultFree.read(start, &mut text).expect("text can be read");
    text
}

/// A return probe that counts the calls that have come back, whose private data is dropped once.
fn following(data: &Arc<()>, exits: &Counter) -> Probe<Kernel> {
    let (data, exits) = (data.clone(), exits.clone());
    let probe = Kretprobe::<Backend>::at("waiting_triple").max_active(64);
    register(probe.entry(move |_| Some(data.clone())).exit(move |_, _| exits.rise()))
}

fn stopping(by_jump: bool) {
    let before = text();
    let (data, exits) = (Arc::new(()), Counter::default());
    let probes = [(); 2].map(|()| following(&data, &exits));
    if by_jump {
        PROBES.jumps().lay().expect("text can be written");
        let is_by_jump = |line: &str| line.contains("  waiting_triple+") && line.ends_with("[OPTIMIZED]");
        assert_eq!(list().lines().filter(|line| is_by_jump(line)).count(), 2, "{}", list());
    }
    WAIT.store(true, SeqCst);
    let wrong = Counter::default();
    let callers: Vec<_> = (1..=TASKS)
        .map(|a| {
            let wrong = wrong.clone();
            task::spawn("caller", move || {
                if waiting_triple(a, DEPTH) != a * 3 {
                    wrong.rise();
                }
            })
        })
        .collect();
    let calls = (TASKS * (DEPTH + 1)) as u64;
    while probes.iter().any(|probe| probe.counters().hits < calls) {
        task::yield_now();
    }
    let stopped = PROBES.stop().expect("text can be written");
    assert_eq!(text(), before);
    let error = PROBES.register(Kprobe::<Backend>::at("target_plain")).expect_err("all have stopped");
    assert_eq!(error.errno(), Errno::ESHUTDOWN);
    // A task that runs on another CPU, or that an interrupt has preempted, is shown later.
    while stopped.drain().expect("no handler").calls != 0 {
        task::yield_now();
    }
    assert!(callers.iter().all(|task| task.probes.is_idle()));
    drop(probes);
    let remains = stopped.drain().expect("no handler");
    assert_eq!((remains.calls, remains.stubs, remains.probes), (0, 0, 0), "{remains}");
    assert_eq!(Arc::strong_count(&data), 1);
    WAIT.store(false, SeqCst);
    callers.iter().for_each(|task| task.join());
    assert_eq!((wrong.get(), exits.get()), (0, 0));
    stopped.start_again().expect("no handler");
    let probe = following(&data, &exits);
    assert_eq!(waiting_triple(2, 1), 6);
    assert_eq!((exits.get(), probe.counters().hits), (2, 2));
    drop(probe);
}
