//! What registering costs by the length of the function, by the size of the batch, and by how many probes
//! there are: promises, not a table.

use super::{MANY, Report, instructions, k, no_operations, register, sled};
use crate::arch::Backend;
use crate::host::{Kernel, PROBES};
use crate::{println, symbols};
use alloc::vec::Vec;
use probe_core::arch::Arch;
use probe_core::{CodeAddr, Place, Probe};
use probe_kernel_kit::extable;

/// What a probe among those on a whole kernel may cost: three seconds for 100,000, at a thousand instructions
/// a microsecond. On arm what may load a place as a constant is looked for in the 4 KiB before it.
const OF_WHOLE_KERNEL: u64 = if cfg!(target_arch = "arm") { 45_000 } else { 30_000 };

/// Runs the measurements of this file.
pub(super) fn run(report: &mut Report) {
    let last_of = |name, insns: usize| {
        let at = no_operations(name).nth(insns - 1).expect("there is no end");
        let mut probe = None;
        let cost = instructions(|| probe = Some(register(k(at))));
        drop(probe);
        cost
    };
    let (short, long) = (last_of("target_hundred", 100), last_of("target_sled", MANY));
    report.promise("register_at_100", short, 50_000);
    report.promise("register_at_10k", long, short * (MANY as u64 / 100));
    let batch = |from, many| {
        let mut probes = Vec::new();
        let batch: Vec<_> = sled(from + many).skip(from).map(k).collect();
        let cost =
            instructions(|| probes = PROBES.register_all(batch).unwrap_or_else(|error| panic!("{error}")));
        PROBES.unregister_all(probes).unwrap_or_else(|_| panic!("they are registered"));
        cost
    };
    // The second tenth: what lies before a place counts, too (arm looks 4 KiB back for what loads it).
    let (tenth, all) = (batch(MANY / 10, MANY / 10), batch(0, MANY));
    report.promise("batch_of_1k", tenth, 50_000 * (MANY as u64 / 10));
    // A quarter for what grows in steps: tables.
    report.promise("batch_of_10k", all, tenth * 10 + tenth * 10 / 4);
    let places = instructions_of_kernel();
    one_by_one(report, &places);
    whole_kernel(report, &places);
}

/// The cost of single registrations does not grow with the number of probes.
fn one_by_one(report: &mut Report, places: &[CodeAddr]) {
    const SAMPLE: usize = 200;
    // The golden ratio's multiples: however many are taken, they lie evenly, whatever the kernel's size is. A
    // stride leaves bands, and then the layout decides whether a probe stands close by.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let place = |index: usize| {
        let part = (index as u64).wrapping_mul(GOLDEN);
        places[(u128::from(part) * places.len() as u128 >> 64) as usize]
    };
    // The same places each time: how long their functions are does not count.
    let sample = || {
        let mut probes: Vec<Probe<Kernel>> = Vec::with_capacity(SAMPLE);
        instructions(|| (0..SAMPLE).for_each(|index| probes.push(register(k(place(index)))))) / SAMPLE as u64
    };
    let mut probes: Vec<Probe<Kernel>> = Vec::with_capacity(places.len());
    let first = sample();
    probes.extend((SAMPLE..1000).map(|index| register(k(place(index)))));
    let thousand = sample();
    probes.extend((1000..5000).map(|index| register(k(place(index)))));
    let last = sample();
    report.promise("single_of_first_200", first, 400_000);
    // A quarter for lookups among more; mostly it is less, as a walk begins at a probe close by.
    report.promise("single_before_1000", thousand, first + first / 4);
    report.promise("single_before_5000", last, first + first / 4);
    let start = probes.len() as u64;
    let leaving = instructions(|| probes.drain(..).rev().for_each(drop));
    report.promise("single_unregister_of_5000", leaving / start, 30_000);
}

/// Every instruction of the kernel that can be probed, in as few batches as its small memory lets.
fn whole_kernel(report: &mut Report, places: &[CodeAddr]) {
    const BATCH: usize = 4096;
    let (mut coming, mut leaving) = (0, 0);
    for places in places.chunks(BATCH) {
        let batch: Vec<_> = places.iter().map(|at| k(*at)).collect();
        let mut probes = Vec::new();
        coming +=
            instructions(|| probes = PROBES.register_all(batch).unwrap_or_else(|error| panic!("{error}")));
        leaving +=
            instructions(|| PROBES.unregister_all(probes).unwrap_or_else(|_| panic!("they are registered")));
    }
    println!("{} instructions of the kernel", places.len());
    report.promise("whole_kernel", coming, places.len() as u64 * OF_WHOLE_KERNEL);
    report.promise("whole_kernel_leaves", leaving, places.len() as u64 * OF_WHOLE_KERNEL);
}

/// The places in the kernel's functions where a probe can stand.
fn instructions_of_kernel() -> Vec<CodeAddr> {
    let mut places = Vec::new();
    let mut last = 0;
    for function in symbols::all().filter(|function| !symbols::is_blacklisted(function)) {
        let end = function.start + function.len_bytes;
        let mut at = function.start.max(last);
        last = last.max(end);
        while at < end {
            let mut bytes = [0; 16];
            let read = extable::read(at, &mut bytes);
            let place = CodeAddr::new(at);
            let Some(len) = Backend::insn_len(place, &bytes[..read.min(end - at)]) else { break };
            places.push(place);
            at += len;
        }
    }
    // Few at a time: what is freed serves pieces of the same size only.
    let mut taken = Vec::with_capacity(places.len());
    for places in places.chunks(1024) {
        let asked: Vec<_> = places.iter().map(|at| (Place::addr(*at), false)).collect();
        let answers = PROBES.check_all(&asked);
        taken.extend(places.iter().zip(answers).filter(|(_, answer)| answer.is_ok()).map(|(at, _)| *at));
    }
    taken
}
