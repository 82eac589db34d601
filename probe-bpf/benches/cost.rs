//! What one run costs: the least of 15 rounds of a million runs each, less nothing. `cargo bench -p
//! probe-bpf`; with `--json` as `cargo ci bench` reads it.

use probe_bpf::asm::{alu64_k, call, exit, jump_k, load, load_map};
use probe_bpf::insn::{alu, jmp, size};
use probe_bpf::map::{Counter, Hash, Histogram, Scale};
use probe_bpf::{COUNT, COUNT_KEY, Insn, Machine, Map, NoHelpers, Program, RECORD};
use std::hint::black_box;
use std::time::Instant;

const RUNS: u32 = 1_000_000;
const ROUNDS: usize = 15;

fn nanoseconds(program: &Program, maps: &[Map], number: usize) -> f64 {
    let context: [u64; 2] = [17, 3];
    let bytes: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let round = || {
        let start = Instant::now();
        for _ in 0..RUNS {
            let machine =
                Machine { context: black_box(&bytes), maps, helpers: &NoHelpers, number, budget: 1000 };
            // The number alone: to store the whole result costs as much as a short program.
            black_box(program.run(&machine).unwrap_or_default());
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(RUNS)
    };
    (0..ROUNDS).map(|_| round()).fold(f64::MAX, f64::min)
}

fn program(parts: &[&[Insn]]) -> Program {
    Program::load(&parts.concat(), 3, &NoHelpers).expect("it loads")
}

fn main() {
    let maps = [
        Map::Counter(Counter::new(2).expect("memory")),
        Map::Histogram(Histogram::new(Scale::Log2, 2).expect("memory")),
        Map::Hash(Hash::new(1024, 2).expect("memory")),
    ];
    let (word, set) = (load(size::DW, 2, 1, 0), alu64_k);
    let comparison =
        [word, set(alu::MOV, 0, 0), jump_k(jmp::JGT, 2, 5, 1), exit(), set(alu::MOV, 0, 1), exit()];
    let key = [set(alu::MOV, 3, 0), set(alu::MOV, 4, 1), call(COUNT_KEY), exit()];
    let rows = [
        ("empty", program(&[&[exit()]])),
        ("comparison", program(&[&comparison])),
        ("counter", program(&[&[word], &load_map(1, 0), &[call(COUNT), exit()]])),
        ("histogram", program(&[&[word], &load_map(1, 1), &[call(RECORD), exit()]])),
        ("hash", program(&[&[word], &load_map(1, 2), &key])),
    ];
    let figures: Vec<(&str, f64)> =
        rows.iter().map(|(name, program)| (*name, nanoseconds(program, &maps, 0))).collect();
    if std::env::args().any(|arg| arg == "--json") {
        let fields: Vec<String> =
            figures.iter().map(|(name, figure)| format!("\"bpf.{name}_ns\": {figure:.3}")).collect();
        println!("{{{}}}", fields.join(", "));
    } else {
        figures.iter().for_each(|(name, figure)| println!("{name:12} {figure:6.1} ns"));
    }
}
