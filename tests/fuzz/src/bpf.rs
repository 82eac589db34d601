//! The engine of BPF programs on any instructions.

use probe_bpf::asm::exit;
use probe_bpf::map::{Array, Counter, Hash, Histogram, Scale};
use probe_bpf::{Cause, Insn, Machine, Map, NoHelpers, Program};

/// The first byte bounds the run; the rest is a program, and the context that it reads.
pub fn run(data: &[u8]) {
    let Some((&budget, bytes)) = data.split_first() else { return };
    let (whole, _) = bytes.as_chunks();
    for (bytes, again) in whole.iter().map(|bytes| (bytes, Insn::from_bytes(*bytes))) {
        assert_eq!(again.to_bytes(), *bytes, "an instruction is its bytes");
    }
    // As it is, and with fields that are likelier to be allowed.
    let likely = |[opcode, regs, low, _, imm @ ..]: [u8; 8]| Insn {
        opcode,
        dst: regs & 7,
        src: regs >> 4 & 7,
        offset: (low & 3).into(),
        imm: i32::from_ne_bytes(imm),
    };
    program(whole.iter().map(|bytes| Insn::from_bytes(*bytes)).collect(), bytes, budget);
    program(whole.iter().map(|bytes| likely(*bytes)).collect(), bytes, budget);
}

/// What loads ends within its budget, with a fault only where an instruction is; the same each time.
fn program(mut insns: Vec<Insn>, context: &[u8], budget: u8) {
    insns.push(exit());
    assert!(insns.iter().all(|insn| !insn.to_string().is_empty()));
    let program = match Program::load(&insns, 4, &NoHelpers) {
        Ok(program) => program,
        Err(error) => {
            assert!(error.pc < insns.len(), "{error}");
            return;
        }
    };
    let once = || {
        let maps = [
            Map::Array(Array::new(2, 8).expect("memory")),
            Map::Counter(Counter::new(1).expect("memory")),
            Map::Histogram(Histogram::new(Scale::Log2, 1).expect("memory")),
            Map::Hash(Hash::new(4, 1).expect("memory")),
        ];
        program.run(&Machine { context, maps: &maps, helpers: &NoHelpers, number: 0, budget: budget.into() })
    };
    let result = once();
    if let Err(fault) = result {
        assert!(fault.pc < insns.len() && fault.cause != Cause::NoInstruction, "{fault}");
    }
    assert_eq!(once(), result, "the same program");
}
