//! Each row of `tests/vectors/ebpf.txt`: its text, and what it does, executed on the stack and in a map.

use probe_bpf::asm::{
    alu64_k, alu64_x, atomic, exit, jump_k, load, load_imm64, load_map_value, store, store_k,
};
use probe_bpf::insn::{alu, jmp, size};
use probe_bpf::map::Array;
use probe_bpf::{Insn, Machine, Map, NoHelpers, Program};

const ROWS: &str = include_str!("../../tests/vectors/ebpf.txt");

fn insn(bytes: &str) -> Insn {
    let bytes: Vec<u8> =
        bytes.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
    let [opcode, regs, a, b, i, j, k, l] = *bytes else { panic!("eight bytes: {bytes:?}") };
    let (offset, imm) = (i16::from_le_bytes([a, b]), i32::from_le_bytes([i, j, k, l]));
    Insn { opcode, dst: regs & 15, src: regs >> 4, offset, imm }
}

/// `r1=0x5 m=0x6`: what holds which number.
fn values(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.split_whitespace().filter_map(|pair| {
        let (name, number) = pair.split_once('=')?;
        Some((name, u64::from_str_radix(number.strip_prefix("0x")?, 16).expect("a number")))
    })
}

fn register(name: &str) -> u8 {
    name.strip_prefix('r').and_then(|number| number.parse().ok()).expect("a register")
}

/// What `wanted` holds after `insn`; `m` lies behind what r1 points to, on the stack or in the map.
fn execute(insn: Insn, before: &str, wanted: &str, on_stack: bool) -> u64 {
    let mut program = Vec::new();
    let has_memory = before.contains("m=");
    if has_memory && on_stack {
        program.extend([alu64_x(alu::MOV, 9, 10), alu64_k(alu::ADD, 9, -32)]);
    } else if has_memory {
        program.extend(load_map_value(9, 0, 0));
    }
    for (name, number) in values(before).filter(|(name, _)| *name == "m") {
        assert_eq!(name, "m");
        program.extend(load_imm64(8, number));
        program.push(store(size::DW, 9, 8, 8));
    }
    for (name, number) in values(before).filter(|(name, _)| *name != "m") {
        program.extend(load_imm64(register(name), number));
    }
    if has_memory {
        program.push(alu64_x(alu::MOV, 1, 9));
    }
    program.push(insn);
    match wanted {
        // The instruction that a jump of 1 skips.
        "jump" => program.extend([alu64_k(alu::MOV, 7, 1), alu64_x(alu::MOV, 0, 7), exit()]),
        "m" => program.extend([load(size::DW, 0, 9, 8), exit()]),
        name => program.extend([alu64_x(alu::MOV, 0, register(name)), exit()]),
    }
    let maps = [Map::Array(Array::new(4, 8).unwrap())];
    let program = Program::load(&program, 1, &NoHelpers).unwrap();
    let machine = Machine { context: &[], maps: &maps, helpers: &NoHelpers, number: 0, budget: 100 };
    program.run(&machine).unwrap()
}

#[test]
fn every_row_reads_and_does_as_it_says() {
    let rows: Vec<_> = ROWS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(rows.len() > 500);
    for row in rows {
        let [bytes, asm, before, after, note] =
            <[&str; 5]>::try_from(row.split(" | ").map(str::trim).collect::<Vec<_>>()).expect(row);
        let insn = insn(bytes);
        assert_eq!(insn.to_string(), asm, "{row}");
        assert_eq!(Insn::from_bytes(insn.to_bytes()), insn);
        if note == "little" && cfg!(target_endian = "big") {
            continue;
        }
        if ["taken", "falls"].contains(&after) {
            assert_eq!(execute(insn, before, "jump", true) == 0, after == "taken", "{row}");
        }
        for (name, number) in values(after) {
            for on_stack in [true, false] {
                assert_eq!(execute(insn, before, name, on_stack), number, "{row}: {name}");
            }
        }
    }
}

#[test]
fn the_wide_load_takes_all_64_bits() {
    let mut program = load_imm64(0, 0x0123_4567_89ab_cdef).to_vec();
    program.push(exit());
    let machine = Machine { context: &[], maps: &[], helpers: &NoHelpers, number: 0, budget: 2 };
    let program = Program::load(&program, 0, &NoHelpers).unwrap();
    assert_eq!(program.run(&machine), Ok(0x0123_4567_89ab_cdef));
}

#[test]
fn an_atomic_operation_does_not_touch_the_number_beside_it() {
    let mut program = load_map_value(1, 0, 0).to_vec();
    program.extend([store_k(size::W, 1, 0, 0x1122_3344), alu64_k(alu::MOV, 2, -1)]);
    program.extend([atomic(size::W, 0, 1, 4, 2), load(size::DW, 0, 1, 0), exit()]);
    let maps = [Map::Array(Array::new(1, 8).unwrap())];
    let program = Program::load(&program, 1, &NoHelpers).unwrap();
    let machine = Machine { context: &[], maps: &maps, helpers: &NoHelpers, number: 0, budget: 9 };
    let want = if cfg!(target_endian = "little") { 0xffff_ffff_1122_3344 } else { 0x1122_3344_ffff_ffff };
    assert_eq!(program.run(&machine), Ok(want));
}

#[test]
fn an_exit_returns_r0_whatever_comes_before_it() {
    let mov = |register, number| alu64_k(alu::MOV, register, number);
    let run = |insns: &[Insn]| {
        let machine = Machine { context: &[], maps: &[], helpers: &NoHelpers, number: 0, budget: 9 };
        Program::load(insns, 0, &NoHelpers).unwrap().run(&machine)
    };
    assert_eq!(run(&[mov(0, 3), mov(2, 5), exit()]), Ok(3));
    assert_eq!(run(&[mov(0, 3), exit()]), Ok(3));
    assert_eq!(run(&[mov(0, 3), jump_k(jmp::JEQ, 0, 3, 1), mov(0, 5), exit()]), Ok(3));
}
