//! PRG_1: what is refused, what ends a run, that maps are exact under contention, and random programs against
//! `rbpf`.

use probe_bpf::asm::*;
use probe_bpf::insn::{alu, atomic as op, jmp, size};
use probe_bpf::map::{Array, Counter, Hash, Histogram, PROBES, Scale};
use probe_bpf::{
    COUNT, COUNT_KEY, Cause, Fault, Insn, Machine, Map, NoHelpers, Program, RECORD, Refusal, STACK_LEN, VALUE,
};
use proptest::prelude::*;

const RESULT: Insn = alu64_k(alu::MOV, 0, 0);

fn run_with(insns: &[Insn], maps: &[Map], number: usize) -> Result<u64, Fault> {
    let program = Program::load(insns, maps.len(), &NoHelpers).unwrap();
    program.run(&Machine { context: &[1, 2, 3], maps, helpers: &NoHelpers, number, budget: 1000 })
}

fn cause(insns: &[Insn]) -> Cause {
    run_with(insns, &[], 0).unwrap_err().cause
}

#[test]
fn prg_1_what_could_go_wrong_is_refused_with_its_place() {
    let refused = |insns: &[Insn], pc, reason| {
        let error = Program::load(insns, 1, &NoHelpers).unwrap_err();
        assert_eq!((error.pc, error.reason), (pc, reason), "{error}");
    };
    let [wide, half] = load_imm64(0, 1);
    refused(&[], 0, Refusal::Length);
    refused(&[RESULT], 0, Refusal::FallsOff);
    refused(&[jump_k(jmp::JEQ, 1, 0, -1)], 0, Refusal::FallsOff);
    refused(&[ja(1), exit()], 0, Refusal::JumpOutside);
    refused(&[ja(-2), exit()], 0, Refusal::JumpOutside);
    refused(&[gotol(i32::MAX), exit()], 0, Refusal::JumpOutside);
    refused(&[ja(1), wide, half, exit()], 0, Refusal::JumpIntoWide);
    refused(&[wide], 0, Refusal::HalfWide);
    refused(&[wide, exit()], 0, Refusal::HalfWide);
    refused(&[alu64_k(alu::ADD, 10, 1), exit()], 0, Refusal::FramePointer);
    refused(&[RESULT, load(size::B, 10, 1, 0), exit()], 1, Refusal::FramePointer);
    refused(&[atomic(size::DW, op::XCHG, 1, 0, 10), exit()], 0, Refusal::FramePointer);
    refused(&[alu64_x(alu::ADD, 1, 11), exit()], 0, Refusal::Register);
    refused(&[with_offset(alu64_k(alu::ADD, 1, 1), 1), exit()], 0, Refusal::Unused);
    refused(&[with_offset(alu32_x(alu::MOV, 1, 2), 32), exit(), exit()], 0, Refusal::Unknown);
    refused(&[load_map(1, 1)[0], half, exit()], 0, Refusal::Map);
    // RFC 9669, section 5.4: 5 and 6 name a map by its index; 1 and 2 would by a descriptor, 3 and 4 are not
    // for maps.
    assert_eq!((load_map(1, 0)[0].src, load_map_value(1, 0, 0)[0].src), (5, 6));
    for src in [1, 2, 3, 4, 7] {
        refused(&[Insn { src, ..wide }, half, exit()], 0, Refusal::Unknown);
    }
    refused(&[Insn { opcode: 0x20, ..Insn::default() }, exit()], 0, Refusal::Deprecated);
    refused(&[call(5), exit()], 0, Refusal::Helper);
    refused(&[Insn { src: 1, ..call(COUNT) }, exit()], 0, Refusal::Helper);
    let error = Program::from_bytes(&[0; 9], 0, &NoHelpers).unwrap_err();
    assert_eq!((error.pc, error.reason), (1, Refusal::Partial));
}

#[test]
fn prg_1_no_access_leaves_its_region() {
    let out = |at: Insn| matches!(cause(&[at, exit()]), Cause::OutOfBounds { .. });
    assert!(out(load(size::B, 0, 1, 3)) && out(load(size::B, 0, 1, -1)) && out(load(size::H, 0, 1, 2)));
    assert!(out(load(size::DW, 0, 10, -7)) && out(load(size::B, 0, 10, -(STACK_LEN as i16) - 1)));
    assert!(out(store_k(size::W, 10, -3, 1)) && out(store(size::DW, 2, 0, 1)));
    assert!(out(atomic(size::W, op::ADD, 10, 0, 1)) && out(load(size::DW, 0, 3, 0)));
    assert!(matches!(cause(&[store_k(size::B, 1, 0, 1), exit()]), Cause::ReadOnly { .. }));
    assert_eq!(run_with(&[load(size::B, 0, 1, 2), exit()], &[], 0), Ok(3));
    let maps = [Map::Array(Array::new(1, 8).unwrap())];
    let read = |size, offset| {
        let [wide, half] = load_map_value(1, 0, offset);
        run_with(&[wide, half, load(size, 0, 1, 0), exit()], &maps, 0).map_err(|fault| fault.cause)
    };
    assert_eq!((read(size::DW, 0), read(size::B, 7)), (Ok(0), Ok(0)));
    assert!(matches!(read(size::B, 8), Err(Cause::OutOfBounds { len: 1, .. })));
    assert!(matches!(read(size::W, 2), Err(Cause::Unaligned { len: 4, .. })));
}

#[test]
fn prg_1_a_loop_without_end_ends() {
    assert_eq!(cause(&[ja(-1)]), Cause::BudgetSpent);
    assert_eq!(cause(&[alu64_k(alu::ADD, 0, 1), gotol(-2)]), Cause::BudgetSpent);
    // The budget is exact.
    let program = Program::load(&[alu64_k(alu::ADD, 0, 1), exit()], 0, &NoHelpers).unwrap();
    let run =
        |budget| program.run(&Machine { context: &[], maps: &[], helpers: &NoHelpers, number: 0, budget });
    let spent = |pc| Err(Fault { pc, cause: Cause::BudgetSpent });
    assert_eq!([run(0), run(1), run(2)], [spent(0), spent(1), Ok(1)]);
}

#[test]
fn maps_count_what_programs_say() {
    let maps = [
        Map::Counter(Counter::new(2).unwrap()),
        Map::Histogram(Histogram::new(Scale::Log2, 2).unwrap()),
        Map::Hash(Hash::new(4, 2).unwrap()),
        Map::Array(Array::new(2, 8).unwrap()),
    ];
    let value = |register, number| alu64_k(alu::MOV, register, number);
    for number in 0..3 {
        for (helper, map) in [(COUNT, 0), (RECORD, 1), (COUNT_KEY, 2)] {
            let program = [value(1, map), value(2, 7), value(3, 1), value(4, 5), call(helper), exit()];
            assert_eq!(run_with(&program, &maps, number), Ok(0));
        }
    }
    let [Map::Counter(counter), Map::Histogram(histogram), Map::Hash(hash), _] = &maps else { panic!() };
    assert_eq!((counter.sum(), histogram.counts()[4], hash.sums()), (21, 3, vec![([7, 1], 15)]));
    let program = [value(1, 3), value(2, 1), call(VALUE), load(size::DW, 0, 0, 0), exit()];
    assert_eq!(run_with(&program, &maps, 0), Ok(0));
    let wrong = [value(1, 3), call(COUNT), exit()];
    assert!(matches!(run_with(&wrong, &maps, 0).unwrap_err().cause, Cause::WrongMap { map: 3, .. }));
}

#[test]
fn buckets_are_where_their_scale_says() {
    for scale in [Scale::Log2, Scale::Steps, Scale::Linear { from: -10, width: 5, buckets: 4 }] {
        for bucket in 1..scale.len() {
            let least = scale.least(bucket).unwrap();
            assert_eq!((scale.bucket(least), scale.bucket(least - 1)), (bucket, bucket - 1), "{scale:?}");
        }
        assert_eq!((scale.bucket(i64::MIN), scale.bucket(i64::MAX)), (0, scale.len() - 1));
    }
}

#[test]
fn what_does_not_fit_into_a_hash_is_counted() {
    let hash = Hash::new(PROBES, 1).unwrap();
    let fitted = (0..1000).filter(|&key| hash.add(0, [key, 0], 1)).count();
    assert_eq!((hash.sums().len(), hash.lost()), (fitted, 1000 - fitted as u64));
}

#[test]
fn prg_1_counts_are_exact_under_contention() {
    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 20_000 };
    // All in one row, so that they contend.
    let (hash, counter) = (Hash::new(64, 1).unwrap(), Counter::new(1).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    assert!(hash.add(0, [round % 16, 0], 1));
                    counter.add(0, 1);
                }
            });
        }
    });
    assert_eq!((counter.sum(), hash.lost()), (3 * ROUNDS, 0));
    assert_eq!(hash.sums().iter().map(|(_, sum)| sum).sum::<u64>(), 3 * ROUNDS);
    assert_eq!(hash.sums().len(), 16);
}

/// Instructions that `rbpf` 0.4.1 does as the RFC says. It has no version 4; its 64-bit comparisons with a
/// number take it as unsigned; a remainder of 32 bits by zero keeps the high half; to negate the least number
/// stops it.
fn insn() -> impl Strategy<Value = Insn> {
    let codes =
        prop::sample::select(vec![0x00u8, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0]);
    let jumps =
        prop::sample::select(vec![0x10u8, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0]);
    let arithmetic =
        (codes, 0u8..8, 0u8..8, any::<i32>(), 0..4).prop_map(|(code, dst, src, imm, form)| match form {
            0 => alu64_k(code, dst, imm),
            1 => alu64_x(code, dst, src),
            2 => alu32_k(code, dst, imm),
            _ => alu32_x(code, dst, src),
        });
    let jump =
        (jumps, 0u8..8, 0u8..8, any::<i32>(), 0..4, 0i16..3).prop_map(|(code, dst, src, imm, form, by)| {
            match form {
                0 => jump_k(code, dst, imm & i32::MAX, by),
                1 => jump_x(code, dst, src, by),
                2 => jump32_k(code, dst, imm, by),
                _ => jump32_x(code, dst, src, by),
            }
        });
    let sizes = prop::sample::select(vec![size::B, size::H, size::W, size::DW]);
    let memory = (sizes, 0u8..8, 1i16..8, any::<i32>(), 0..3).prop_map(
        |(size, register, slot, imm, form)| match form {
            0 => load(size, register, 10, -8 * slot),
            1 => store(size, 10, -8 * slot, register),
            _ => store_k(size, 10, -8 * slot, imm),
        },
    );
    prop_oneof![3 => arithmetic, 1 => jump, 1 => memory]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: if cfg!(miri) { 4 } else { 2000 }, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_give_what_rbpf_gives(
        values in prop::array::uniform8(any::<u64>()),
        body in prop::collection::vec(insn(), 1..40),
    ) {
        let mut insns: Vec<Insn> = (0..).zip(values).flat_map(|(register, value)| load_imm64(register, value)).collect();
        insns.extend(body);
        // Jumps reach no further than these; every register counts.
        insns.extend((1..8).map(|register| alu64_x(alu::XOR, 0, register)));
        insns.push(exit());
        let ours = run_with(&insns, &[], 0).unwrap();
        let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.to_bytes()).collect();
        let theirs = rbpf::EbpfVmNoData::new(Some(&bytes)).unwrap().execute_program().unwrap();
        prop_assert_eq!(ours, theirs, "{}", insns.iter().map(|insn| format!("{insn}\n")).collect::<String>());
    }

    #[test]
    fn prg_1_no_bytes_fault_the_program(bytes in prop::collection::vec(any::<[u8; 8]>(), 1..20)) {
        // Few opcodes, so that many programs load.
        let few = |mut bytes: [u8; 8]| { bytes[1] &= 0x77; bytes[3] = 0; bytes[2] &= 3; bytes };
        let mut insns: Vec<Insn> = bytes.into_iter().map(|bytes| Insn::from_bytes(few(bytes))).collect();
        insns.push(exit());
        if let Ok(program) = Program::load(&insns, 0, &NoHelpers) {
            let machine = Machine { context: &[0; 8], maps: &[], helpers: &NoHelpers, number: 0, budget: 500 };
            let _ = program.run(&machine);
        }
        let _ = insns.iter().map(Insn::to_string).collect::<String>();
    }
}
