//! Every class of instruction, probed and unprobed, from random states and edges.

use crate::classes;
use crate::coverage::{Coverage, LEAST_STATES, Way};
use crate::machine::{Machine, Mode, machine};
use crate::random::Random;
use crate::state::State;
use probe_arch_ppc64::Plan;
use probe_core::arch::Tail;

const NOP: u32 = 0x6000_0000;

classes! { Plan:
    Plan::Copy => "copy" Boost,
    Plan::Relocate => "prefixed, pc-relative" Boost,
    Plan::Sc => "sc" Boost,
    Plan::Scv => "scv" Step,
    Plan::Mfmsr(_) => "mfmsr" Step,
    Plan::Bctar(_) => "bctar" Step,
    Plan::Nop => "nop" Simulate,
    Plan::B(_) => "b" Simulate,
    Plan::Bc(_) => "bc" Simulate,
    Plan::Bclr(_) => "bclr" Simulate,
    Plan::Bcctr(_) => "bcctr" Simulate,
    Plan::Addpcis(_) => "addpcis" Simulate,
    Plan::Mfspr(_) => "mfspr" Simulate,
    Plan::Mtspr(_) => "mtspr" Simulate,
}

/// HIT_11: all of them, one after the other (they share one machine).
#[test]
fn hit_11_every_class_behaves_as_on_hardware() {
    let mut coverage = Coverage::new(CLASSES);
    let sweeps: [fn(&mut Coverage); 11] = [
        b_in_all_forms,
        bc_in_all_forms,
        bclr_bcctr_and_bctar_in_all_forms,
        moves_from_and_to_special_registers,
        addpcis_and_no_ops,
        mfmsr_faults_in_a_program,
        random_words_of_every_primary_opcode,
        every_extended_opcode_of_31,
        prefixed_loads_and_stores,
        prefixed_vector_instructions,
        system_calls_run_in_a_slot,
    ];
    for sweep in sweeps {
        sweep(&mut coverage);
    }
    coverage.finish(&[]);
}

/// Executes `words` from `start` bare and in every mode its plan allows, and compares.
fn compare(machine: &mut Machine, words: &[u32], start: &State, seed: u64, coverage: &mut Coverage) {
    let decoded = machine.decode(words).unwrap_or_else(|refusal| panic!("{words:08x?}: {refusal}"));
    let mut random = Random::new(seed);
    let pattern: Vec<u64> = machine.data_mut().iter().map(|_| random.u64()).collect();
    machine.data_mut().copy_from_slice(&pattern);
    let bare = machine.execute(words, start, Mode::Bare);
    let bare_memory = machine.data_mut().to_vec();
    for &way in Way::all(decoded.method) {
        let mode = match way {
            Way::Emulated => Mode::Simulate,
            Way::Boosted => Mode::Slot(Tail::Jump),
            Way::Stepped => Mode::Slot(Tail::Breakpoint),
        };
        machine.data_mut().copy_from_slice(&pattern);
        let probed = machine.execute(words, start, mode);
        let differences = bare.state.differences(&probed.state);
        assert!(
            bare.signal == probed.signal && differences.is_empty(),
            "{words:08x?} {mode:?} seed {seed}: signal {} != {}; {differences}",
            bare.signal,
            probed.signal
        );
        assert!(bare_memory == machine.data_mut(), "{words:08x?} {mode:?} seed {seed}: memory differs");
        coverage.add(class(&decoded.plan), way, 1);
    }
}

/// Runs `count` random instances of what `generate` makes, times `PROBE_ROUNDS` where that is set (the
/// sequence goes on).
fn sweep(
    coverage: &mut Coverage,
    seed: u64,
    count: usize,
    mut generate: impl FnMut(&mut Random) -> Vec<u32>,
) {
    let mut guard = machine();
    let machine = guard.as_mut().expect("made by `machine`");
    let rounds = std::env::var("PROBE_ROUNDS").map_or(1, |n| n.parse().expect("PROBE_ROUNDS is a number"));
    let mut random = Random::new(seed);
    for index in 0..count * rounds {
        let words = generate(&mut random);
        let landings = machine.landings();
        let start = State::random(&mut random, machine.data(), &landings);
        if machine.decode(&words).is_ok() {
            compare(machine, &words, &start, seed + index as u64, coverage);
        }
    }
}

/// A relative displacement that stays in the text and does not lead to the place itself.
fn displacement(random: &mut Random) -> u32 {
    let d = 4 * (1 + random.below(0x1000)) as u32;
    if random.below(2) == 0 { d } else { d.wrapping_neg() }
}

fn b_in_all_forms(coverage: &mut Coverage) {
    sweep(coverage, 1, 2000, |random| {
        let d = match random.below(8) {
            0 => random.u32(),
            _ => displacement(random),
        };
        vec![18 << 26 | (d & 0x03ff_fffc).max(4) | random.below(4) as u32]
    });
}

fn bc_in_all_forms(coverage: &mut Coverage) {
    sweep(coverage, 2, 5000, |random| {
        let bo_bi = (random.u32() & 0x3ff) << 16;
        vec![16 << 26 | bo_bi | (displacement(random) & 0xfffc) | random.below(4) as u32]
    });
}

fn bclr_bcctr_and_bctar_in_all_forms(coverage: &mut Coverage) {
    for xo in [16, 528, 560] {
        sweep(coverage, 3 + xo, 5000, |random| {
            let bo_bi_bh = (random.u32() & 0x3ff) << 16 | (random.u32() & 3) << 11;
            vec![19 << 26 | bo_bi_bh | (xo as u32) << 1 | random.below(2) as u32]
        });
    }
}

fn moves_from_and_to_special_registers(coverage: &mut Coverage) {
    // Not 800 to 806 (event-based branches): QEMU 7.2 dies of them.
    const SPRS: [u32; 16] = [1, 8, 9, 3, 13, 256, 259, 268, 287, 815, 896, 898, 136, 769, 26, 1023];
    sweep(coverage, 4, 2000, |random| {
        let spr = random.pick(&SPRS);
        let xo = random.pick(&[339, 467]);
        // The time base does not stand still.
        let spr = if xo == 339 && spr == 268 { 8 } else { spr };
        vec![move_special(random, xo, spr)]
    });
    // The simulated ones: XER, LR and CTR are read, LR and CTR are written.
    sweep(coverage, 12, 3 * LEAST_STATES, |random| {
        let (xo, spr) = random.pick(&[(339, 1), (339, 8), (339, 9), (467, 8), (467, 9)]);
        vec![move_special(random, xo, spr)]
    });
}

/// `mfspr` (339) or `mtspr` (467) between any general register and `spr`.
fn move_special(random: &mut Random, xo: u32, spr: u32) -> u32 {
    31 << 26 | (random.u32() & 31) << 21 | (spr & 31) << 16 | (spr >> 5) << 11 | xo << 1
}

fn addpcis_and_no_ops(coverage: &mut Coverage) {
    sweep(coverage, 5, LEAST_STATES, |random| vec![19 << 26 | (random.u32() & 0x03ff_ffc1) | 2 << 1]);
    sweep(coverage, 6, 2 * LEAST_STATES, |random| {
        vec![random.pick(&[0x6000_0000, 0x6800_0000, 0x7fff_fb78])]
    });
}

fn mfmsr_faults_in_a_program(coverage: &mut Coverage) {
    sweep(coverage, 7, LEAST_STATES, |random| vec![31 << 26 | (random.u32() & 31) << 21 | 83 << 1]);
}

/// Any word of every primary opcode that may run as a copy.
fn random_words_of_every_primary_opcode(coverage: &mut Coverage) {
    // Not: prefixes (below), branches (above), system calls (below).
    for op in (2..64).filter(|op| ![16, 17, 18].contains(op)) {
        sweep(coverage, 1000 + op, 120, |random| {
            let word = (op as u32) << 26 | random.u32() & 0x03ff_ffff;
            vec![if is_repeatable(word) { word } else { NOP }]
        });
    }
}

/// X-form instructions with each extended opcode.
fn every_extended_opcode_of_31(coverage: &mut Coverage) {
    for xo in 0..1024 {
        sweep(coverage, 2000 + xo, 4, |random| {
            let word = 31 << 26 | random.u32() & 0x03ff_f801 | (xo as u32) << 1;
            vec![if is_repeatable(word) { word } else { NOP }]
        });
    }
}

/// Whether executing the word twice gives the same result: no time, no random number. And not what raises an
/// alignment interrupt, which QEMU 7.2 dies of in user mode: atomic memory operations anywhere, multiples and
/// strings in little-endian mode.
fn is_repeatable(word: u32) -> bool {
    let xo = word >> 1 & 0x3ff;
    match word >> 26 {
        // mftb, darn; mfspr and mtspr have a test of their own.
        31 if [582, 614, 710, 742].contains(&xo) => false,
        31 if [533, 597, 661, 725].contains(&xo) => cfg!(target_endian = "big"),
        46 | 47 => cfg!(target_endian = "big"),
        31 => ![371, 755, 339, 467].contains(&xo),
        // Branches have tests of their own.
        19 => ![16, 528, 560].contains(&xo),
        _ => true,
    }
}

fn prefixed_loads_and_stores(coverage: &mut Coverage) {
    const MLS: [u32; 12] = [14, 32, 34, 36, 38, 40, 42, 44, 48, 50, 52, 54];
    const LS8: [u32; 15] = [41, 42, 43, 46, 47, 50, 51, 54, 55, 56, 57, 58, 60, 61, 62];
    // Relative to a register: displacements around the data.
    sweep(coverage, 8, 1500, |random| {
        let (kind, op) = if random.below(2) == 0 { (2, random.pick(&MLS)) } else { (0, random.pick(&LS8)) };
        let d = random.below(512) as i64 - 256;
        let (d0, d1) = ((d >> 16) as u32 & 0x3_ffff, d as u32 & 0xffff);
        vec![1 << 26 | kind << 24 | d0, op << 26 | (random.u32() & 0x3ff) << 16 | d1]
    });
    // Relative to the place.
    let offset = {
        let guard = machine();
        let machine = guard.as_ref().expect("made by `machine`");
        machine.data() as i64 - machine.place() as i64
    };
    sweep(coverage, 9, LEAST_STATES, |random| {
        let (kind, op) = if random.below(2) == 0 { (2, random.pick(&MLS)) } else { (0, random.pick(&LS8)) };
        let d = offset + random.below(1024) as i64 - 512;
        let (d0, d1) = ((d >> 16) as u32 & 0x3_ffff, d as u32 & 0xffff);
        vec![1 << 26 | kind << 24 | 1 << 20 | d0, op << 26 | (random.u32() & 31) << 21 | d1]
    });
}

fn prefixed_vector_instructions(coverage: &mut Coverage) {
    sweep(coverage, 10, 1500, |random| {
        let (prefix, op) = match random.below(4) {
            0 => (1 << 24 | random.u32() & 0xffff, 32),
            1 => (1 << 24, 33),
            2 => (1 << 24 | random.u32() & 0xff, 34),
            // pnop
            _ => (3 << 24, 0),
        };
        let suffix = if op == 0 { 0 } else { op << 26 | random.u32() & 0x03ff_ffff };
        vec![1 << 26 | prefix, suffix]
    });
}

/// `getppid` has no side effect; the number is the same each time.
fn system_calls_run_in_a_slot(coverage: &mut Coverage) {
    const GETPPID: u64 = 64;
    let mut guard = machine();
    let machine = guard.as_mut().expect("made by `machine`");
    let mut random = Random::new(11);
    // sc, and scv 0, which kernels and processors without it answer with SIGILL.
    for word in [0x4400_0002, 0x4400_0001] {
        for seed in 0..LEAST_STATES as u64 {
            let landings = machine.landings();
            let mut start = State::random(&mut random, machine.data(), &landings);
            start.regs.gpr[0] = GETPPID;
            compare(machine, &[word], &start, seed, coverage);
        }
    }
}
