//! The short form of fuzzing: every target on inputs of a seeded generator, for as many as take about a
//! second.
//!
//! `PROBE_FUZZ_ROUNDS=1000000` runs more, `PROBE_FUZZ_SEED` others. What fails is said as bytes, for a test
//! with a name.

use probe_fuzz_checks::targets;
use std::panic::catch_unwind;

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
struct Generator(u64);

impl Generator {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Some bytes; `dictionary` stands for what random bytes would seldom be.
    fn input(&mut self, dictionary: &[&[u8]]) -> Vec<u8> {
        let len = self.next() as usize % 96;
        let mut bytes = Vec::new();
        while bytes.len() < len {
            match self.next() % 4 {
                0 if !dictionary.is_empty() => {
                    bytes.extend_from_slice(dictionary[self.next() as usize % dictionary.len()]);
                }
                1 => bytes.push([0, 0xff, 0x7f, 0x80][self.next() as usize % 4]),
                _ => bytes.push(self.next() as u8),
            }
        }
        bytes
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// What makes inputs of a target likely to be more than refused.
fn dictionary(target: &str) -> &'static [&'static [u8]] {
    match target {
        "x86_64" | "i386" => &[
            &[0x66],
            &[0x67],
            &[0x48],
            &[0xf3],
            &[0x0f],
            &[0xff],
            &[0xe8],
            &[0x8b, 0x05],
            &[0x64],
            &[0xc5],
            &[0x62],
        ],
        "definition" => &[
            b"p ", b"r ", b":", b"malloc", b"+0x10", b" a=%di", b"$arg1", b":string", b"@", b"\"", b"*",
            b"%return",
        ],
        "bpf" => &[
            &[0x79, 0x12, 0, 0, 0, 0, 0, 0],
            &[0xb7, 0x01, 0, 0, 1, 0, 0, 0],
            &[0x18, 0x51, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x18, 0x61, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x85, 0, 0, 0, 3, 0, 0, 0x70],
            &[0xdb, 0x21, 0, 0, 0, 0, 0, 0],
            &[0x55, 0x02, 0xfe, 0xff, 0, 0, 0, 0],
        ],
        "capi" => &[&[64], &[0; 4], &[0, 0, 2]],
        _ => &[],
    }
}

#[test]
fn every_target_holds_on_generated_inputs() {
    let seed = number("PROBE_FUZZ_SEED", 1);
    for (name, target) in targets() {
        let slow = ["registry", "capi", "region"].contains(&name);
        let rounds = number("PROBE_FUZZ_ROUNDS", if slow { 200 } else { 20_000 });
        let mut generator = Generator(seed);
        for round in 0..rounds {
            let input = generator.input(dictionary(name));
            let result = catch_unwind(|| target(&input));
            assert!(result.is_ok(), "{name}, seed {seed}, round {round}: {input:?}");
        }
        println!("{name}: {rounds} inputs");
    }
}

/// `cargo ci job fuzz` runs what is in the folder.
#[test]
fn every_target_has_a_fuzzer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/fuzz_targets");
    let files = std::fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut names: Vec<_> = targets().map(|(name, _)| name).collect();
    names.sort_unstable();
    let of_files: Vec<_> = files.iter().map(|file| file.file_stem().unwrap().to_str().unwrap()).collect();
    if usize::BITS == 64 {
        assert_eq!(of_files, names);
    }
    for (file, name) in files.iter().zip(of_files) {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(&format!("probe_fuzz_checks::run(\"{name}\", data)")), "{name}");
    }
}
