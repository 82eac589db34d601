use super::*;
use crate::decode::classify;
use crate::insn;
use crate::regs::SP;
use crate::testing::{Bytes, NoMemory};
use probe_core::arch::Regs;
use rstest::rstest;
use std::vec::Vec;

const AT: u32 = 0x1_0000;
const DATA: usize = 0x2_0000;

const N: u32 = 1 << 31;
const Z: u32 = 1 << 30;
const C: u32 = 1 << 29;
const V: u32 = 1 << 28;

/// R0 is the data's address, R1 is 4, R2 is negative, the others are their numbers and 0x100.
fn start(set: Set) -> PtRegs {
    let mut regs =
        PtRegs { r: core::array::from_fn(|number| 0x100 + number as u32), cpsr: 0x10, ..PtRegs::default() };
    regs.set_r(0, DATA as u32);
    regs.set_r(1, 4);
    regs.set_r(2, 0x8000_0001);
    regs.set_r(SP, DATA as u32 + 64);
    regs.set_pc(place(set));
    regs
}

fn place(set: Set) -> CodeAddr {
    CodeAddr::new(AT as usize + usize::from(set == Set::T32))
}

/// Words that count from 0x8001, 0x8002, 0x8005, … : an address of T32, and of A32 where bit 0 is clear.
fn data() -> Bytes {
    let words = (0..64_u32).flat_map(|index| (0x8001 + 0x100 * index).to_le_bytes());
    Bytes::new(DATA, &words.collect::<Vec<_>>())
}

/// The text around the place, as data.
fn text() -> Bytes {
    let bytes = (0..128_u32).map(|index| index as u8 | 0x80);
    Bytes::new(AT as usize, &bytes.collect::<Vec<_>>())
}

fn run_with<M: Memory>(set: Set, word: u32, regs: PtRegs, memory: &M) -> Result<PtRegs, MemFault> {
    let (plan, _) = classify(set, word).expect("a simulated instruction");
    let mut after = regs;
    let result = simulate(&plan, place(set), &mut after, memory);
    if result.is_err() {
        assert_eq!(after, regs, "a fault changes nothing");
    }
    result.map(|()| after)
}

fn run(set: Set, word: u32) -> PtRegs {
    run_with(set, word, start(set), &NoMemory).expect("no memory")
}

/// Where control goes, and whether in T32.
fn goes(regs: &PtRegs) -> (u32, bool) {
    (regs.pc.wrapping_sub(AT), regs.cpsr & CPSR_T != 0)
}

/// Words from `arm-linux-gnueabihf-as`.
#[rstest]
#[case::b(0xea00_0002, 16, false, None)]
#[case::b_back(0xeaff_fffa, -16, false, None)]
#[case::beq_not_taken(0x0a00_0002, 4, false, None)]
#[case::bne_taken(0x1a00_0002, 16, false, None)]
#[case::bl(0xeb00_0002, 16, false, Some(4))]
#[case::blx(0xfb00_0002, 18, true, Some(4))]
#[case::blx_back(0xfaff_fffa, -16, true, Some(4))]
fn a32_branches(#[case] word: u32, #[case] offset: i32, #[case] to_t32: bool, #[case] link: Option<u32>) {
    let mut want = start(Set::A32);
    want.pc = AT.wrapping_add_signed(offset);
    want.cpsr |= if to_t32 { CPSR_T } else { 0 };
    if let Some(link) = link {
        want.set_r(LR, AT + link);
    }
    assert_eq!(run(Set::A32, word), want);
}

#[rstest]
#[case::b(0xe006, 16, true, None)]
#[case::b_back(0xe7f6, -16, true, None)]
#[case::beq(0xd006, 2, true, None)]
#[case::bne(0xd106, 16, true, None)]
#[case::b_w(0xf000_b806, 16, true, None)]
#[case::beq_w(0xf000_8006, 4, true, None)]
#[case::bl(0xf000_f806, 16, true, Some(5))]
#[case::blx(0xf000_e806, 16, false, Some(5))]
#[case::cbz(0xb130, 2, true, None)]
#[case::cbnz(0xb930, 16, true, None)]
fn t32_branches(#[case] word: u32, #[case] offset: i32, #[case] is_t32: bool, #[case] link: Option<u32>) {
    let mut want = start(Set::T32);
    want.pc = AT.wrapping_add_signed(offset);
    want.cpsr = want.cpsr & !CPSR_T | if is_t32 { CPSR_T } else { 0 };
    if let Some(link) = link {
        want.set_r(LR, AT + link);
    }
    assert_eq!(run(Set::T32, word), want);
}

/// `blx r3` and `bx r3`, with either set's address.
#[rstest]
#[case::blx(Set::A32, 0xe12f_ff33, Some(4))]
#[case::bx(Set::A32, 0xe12f_ff13, None)]
#[case::t_blx(Set::T32, 0x4798, Some(3))]
#[case::t_bx(Set::T32, 0x4718, None)]
fn a_register_says_the_set(#[case] set: Set, #[case] word: u32, #[case] link: Option<u32>) {
    for target in [0x5000, 0x6003] {
        let mut regs = start(set);
        regs.set_r(3, target);
        let after = run_with(set, word, regs, &NoMemory).expect("no memory");
        assert_eq!(after.pc(), CodeAddr::new(target as usize));
        assert_eq!(after.r(LR), link.map_or(regs.r(LR), |link| AT + link));
    }
}

/// `mov pc, r3` changes the set in A32 only.
#[test]
fn a_move_to_the_program_counter_changes_the_set_in_a32_only() {
    let mut regs = start(Set::A32);
    regs.set_r(3, 0x6003);
    assert_eq!(
        run_with(Set::A32, 0xe1a0_f003, regs, &NoMemory).map(|after| after.pc()),
        Ok(CodeAddr::new(0x6003))
    );
    regs = start(Set::T32);
    regs.set_r(3, 0x6000);
    assert_eq!(
        run_with(Set::T32, 0x469f, regs, &NoMemory).map(|after| after.pc()),
        Ok(CodeAddr::new(0x6001))
    );
}

#[rstest]
#[case::add_immediate(0xe28f_0010, AT + 24)]
#[case::sub_immediate(0xe24f_0eff, AT + 8 - 4080)]
#[case::add_register(0xe08f_0101, AT + 24)]
#[case::mov(0xe1a0_000f, AT + 8)]
#[case::mvn(0xe1e0_000f, !(AT + 8))]
#[case::and(0xe20f_00ff, 8)]
#[case::eor_lsr(0xe021_01af, 4 ^ (AT + 8) >> 3)]
#[case::orr_asr(0xe18f_0fc2, u32::MAX)]
#[case::bic(0xe3cf_0003, AT + 8)]
#[case::rsb(0xe26f_0000, 0u32.wrapping_sub(AT + 8))]
#[case::adc_ror(0xe0af_03e1, AT + 8 + 0x0800_0000)]
#[case::sbc_rrx(0xe0cf_0061, AT + 8 - 2 - 1)]
#[case::rsc(0xe0ef_0001, 4u32.wrapping_sub(AT + 8 + 1))]
#[case::rotated(0xe38f_0102, 0x8000_0000 | (AT + 8))]
fn a32_arithmetic_reads_eight_ahead(#[case] word: u32, #[case] want: u32) {
    let mut after = start(Set::A32);
    after.set_r(0, want);
    after.pc += 4;
    assert_eq!(run(Set::A32, word), after, "{:x}", run(Set::A32, word).r(0));
}

#[rstest]
#[case::cmp_more(0xe150_000f, C)] // R0 is above the place
#[case::cmn_negative(0xe172_000f, N)]
#[case::tst_zero(0xe31f_0001, Z)]
#[case::teq(0xe132_000f, N)]
#[case::subs(0xe05f_0001, C)]
#[case::orrs_carry_of_shift(0xe19f_0f81, 0)]
#[case::orrs_carry_of_asr(0xe19f_0fc2, N)]
#[case::movs_rotated(0xe39f_0102, N | C)]
#[case::cmp_overflow(0xe152_000f, C | V)]
fn a32_arithmetic_sets_flags(#[case] word: u32, #[case] flags: u32) {
    assert_eq!(run(Set::A32, word).cpsr & CPSR_NZCV, flags);
}

/// `ldr r0, [pc, #16]` and its like, in both sets, from the text.
#[rstest]
#[case(Set::A32, 0xe59f_0010, 0x9b9a_9998)]
#[case(Set::A32, 0xe79f_0001, 0x8f8e_8d8c)]
#[case(Set::A32, 0xe5df_0010, 0x98)]
#[case(Set::A32, 0xe1df_01b0, 0x9998)]
#[case(Set::A32, 0xe1df_01d0, 0xffff_ff98)]
#[case(Set::A32, 0xe1df_01f0, 0xffff_9998)]
#[case(Set::T32, 0x4804, 0x9796_9594)]
#[case(Set::T32, 0xf8df_0010, 0x9796_9594)]
#[case(Set::T32, 0xf89f_0010, 0x94)]
#[case(Set::T32, 0xf99f_0010, 0xffff_ff94)]
#[case(Set::T32, 0xf8bf_0010, 0x9594)]
#[case(Set::T32, 0xf9bf_0010, 0xffff_9594)]
fn literals_are_loaded(#[case] set: Set, #[case] word: u32, #[case] want: u32) {
    let after = run_with(set, word, start(set), &text()).expect("readable");
    let mut expected = start(set);
    expected.set_r(0, want);
    expected.pc += u32::from(insn::len_bytes(set, word));
    assert_eq!(after, expected, "{:x}", after.r(0));
}

/// A T32 instruction between two words loads relative to the lower one.
#[test]
fn t32_literals_are_relative_to_a_word() {
    let (plan, _) = classify(Set::T32, 0x4804).expect("ldr r0, [pc, #16]");
    let mut regs = start(Set::T32);
    simulate(&plan, place(Set::T32).wrapping_add(2), &mut regs, &text()).expect("readable");
    assert_eq!((regs.r(0), regs.pc), (0x9796_9594, AT + 4));
    let (plan, _) = classify(Set::T32, 0xa004).expect("adr r0, .+20");
    simulate(&plan, place(Set::T32).wrapping_add(2), &mut regs, &NoMemory).expect("no memory");
    assert_eq!(regs.r(0), AT + 4 + 16);
    let (plan, _) = classify(Set::T32, 0xf000_e802).expect("blx");
    simulate(&plan, place(Set::T32).wrapping_add(2), &mut regs, &NoMemory).expect("no memory");
    assert_eq!((goes(&regs), regs.r(LR)), ((8, false), AT + 7));
}

#[test]
fn pairs_are_loaded() {
    for (set, word, low) in [(Set::A32, 0xe1cf_01d0, 0x98_u32), (Set::T32, 0xe9df_0104, 0x94)] {
        let after = run_with(set, word, start(set), &text()).expect("readable");
        let word_from =
            |first: u32| u32::from_le_bytes(core::array::from_fn(|index| (first + index as u32) as u8));
        assert_eq!((after.r(0), after.r(1)), (word_from(low), word_from(low + 4)));
    }
}

/// `ldr pc, [r0]` and its like: bit 0 is the set; a base that is changed.
#[rstest]
#[case(Set::A32, 0xe590_f000, 0x8001, 0)]
#[case(Set::A32, 0xe5b0_f004, 0x8101, 4)]
#[case(Set::A32, 0xe490_f004, 0x8001, 4)]
#[case(Set::A32, 0xe790_f101, 0x8401, 0)]
#[case(Set::T32, 0xf8d0_f000, 0x8001, 0)]
#[case(Set::T32, 0xf850_ff04, 0x8101, 4)]
#[case(Set::T32, 0xf850_fb04, 0x8001, 4)]
#[case(Set::T32, 0xf850_f021, 0x8401, 0)]
fn the_program_counter_is_loaded(#[case] set: Set, #[case] word: u32, #[case] pc: usize, #[case] moved: u32) {
    let after = run_with(set, word, start(set), &data()).expect("readable");
    assert_eq!(after.pc(), CodeAddr::new(pc));
    assert_eq!(after.r(0), DATA as u32 + moved);
}

/// `pop {r4, r5, pc}`, `ldmib r0, {r1, r2, pc}` and their like: which words, and where the base goes.
#[rstest]
#[case::pop(Set::A32, 0xe8bd_8030, &[4, 5], 64, Some((SP, 12)))]
#[case::ldm(Set::A32, 0xe890_8002, &[1], 0, None)]
#[case::ldmib(Set::A32, 0xe990_8006, &[1, 2], 4, None)]
#[case::ldmda_from_sp(Set::A32, 0xe81d_8002, &[1], 60, None)]
#[case::ldmdb_from_sp(Set::A32, 0xe93d_8006, &[1, 2], 52, Some((SP, -12)))]
#[case::t_pop(Set::T32, 0xbd30, &[4, 5], 64, Some((SP, 12)))]
#[case::t_pop_w(Set::T32, 0xe8bd_8110, &[4, 8], 64, Some((SP, 12)))]
#[case::t_ldm(Set::T32, 0xe890_8002, &[1], 0, None)]
fn several_are_loaded(
    #[case] set: Set,
    #[case] word: u32,
    #[case] registers: &[u8],
    #[case] offset: usize,
    #[case] moved: Option<(u8, i32)>,
) {
    let after = run_with(set, word, start(set), &data()).expect("readable");
    let mut want = start(set);
    let value = |index: usize| 0x8001 + 0x100 * (offset / 4 + index) as u32;
    for (index, number) in registers.iter().enumerate() {
        want.set_r(*number, value(index));
    }
    want.set_pc(CodeAddr::new(value(registers.len()) as usize));
    if let Some((base, by)) = moved {
        want.set_r(base, want.r(base).wrapping_add_signed(by));
    }
    assert_eq!(after, want);
}

/// `push {r4, pc}` stores eight ahead; `str pc, [r0, #-8]!` too.
#[test]
fn the_program_counter_is_stored_eight_ahead() {
    let memory = data();
    let word = |at: usize| {
        let mut bytes = [0; 4];
        Memory::read(&memory, at, &mut bytes).expect("readable");
        u32::from_le_bytes(bytes)
    };
    let after = run_with(Set::A32, 0xe92d_8010, start(Set::A32), &memory).expect("writable");
    assert_eq!((after.r(SP), word(DATA + 56), word(DATA + 60)), (DATA as u32 + 56, 0x104, AT + 8));
    let mut regs = start(Set::A32);
    regs.set_r(0, DATA as u32 + 32);
    let after = run_with(Set::A32, 0xe520_f008, regs, &memory).expect("writable");
    assert_eq!((after.r(0), word(DATA + 24)), (DATA as u32 + 24, AT + 8));
}

/// `tbb [pc, r1]`, `tbh [r0, r1, lsl #1]`.
#[test]
fn tables_count_halfwords() {
    let after = run_with(Set::T32, 0xe8df_f001, start(Set::T32), &text()).expect("readable");
    assert_eq!(goes(&after), (4 + 2 * 0x88, true));
    let after = run_with(Set::T32, 0xe8d0_f011, start(Set::T32), &data()).expect("readable");
    assert_eq!(goes(&after), (4 + 2 * 0x8201, true));
}

#[rstest]
#[case::literal(Set::A32, 0xe59f_0010)]
#[case::pop(Set::A32, 0xe8bd_8030)]
#[case::push(Set::A32, 0xe92d_8010)]
#[case::table(Set::T32, 0xe8df_f001)]
#[case::store(Set::A32, 0xe580_f000)]
fn what_cannot_be_accessed_faults(#[case] set: Set, #[case] word: u32) {
    assert!(run_with(set, word, start(set), &NoMemory).is_err());
}

#[test]
fn several_at_an_odd_address_fault() {
    let mut regs = start(Set::A32);
    regs.set_r(0, DATA as u32 + 2);
    let fault = run_with(Set::A32, 0xe890_8002, regs, &data());
    assert_eq!(fault, Err(MemFault { addr: DATA + 2, access: arch::Access::Read }));
}

/// Each condition, against what it means (A8.3).
#[test]
fn conditions_hold_as_their_names_say() {
    let all = |cpsr: u32| {
        let [n, z, c, v] = [N, Z, C, V].map(|flag| cpsr & flag != 0);
        [z, !z, c, !c, n, !n, v, !v, c && !z, !c || z, n == v, n != v, !z && n == v, z || n != v, true, true]
    };
    for flags in 0..16 {
        let cpsr = flags << 28;
        assert_eq!(
            core::array::from_fn(|number| holds(Condition(number as u8), cpsr)),
            all(cpsr),
            "{flags:x}"
        );
    }
}

/// `bxeq lr` with Z clear moves on; in an IT block, so does what has no condition of its own.
#[test]
fn a_condition_that_does_not_hold_only_moves_on() {
    let mut want = start(Set::A32);
    want.pc += 4;
    assert_eq!(run(Set::A32, 0x012f_ff1e), want);
    for (cpsr, is_taken) in [(0, false), (Z, true)] {
        let mut regs = start(Set::T32);
        regs.cpsr |= cpsr;
        // The first of ITT EQ's two.
        regs.set_it_state(0b0000_0100);
        let after = run_with(Set::T32, 0xbd00, regs, &data()).expect("readable");
        assert_eq!(after.it_state(), 0b0000_1000);
        let pc = if is_taken { 0x8001 + 0x1000 } else { AT as usize + 3 };
        assert_eq!(after.pc(), CodeAddr::new(pc));
    }
}

/// IT begins a block, and does not count as one of its instructions.
#[test]
fn it_begins_a_block() {
    let after = run(Set::T32, 0xbf1c);
    assert_eq!((after.it_state(), goes(&after)), (0x1c, (2, true)));
    let mut regs = start(Set::T32);
    regs.set_it_state(0x08);
    let after = run_with(Set::T32, 0xbf00, regs, &NoMemory).expect("nop");
    assert_eq!((after.it_state(), goes(&after)), (0, (2, true)), "nop ends it");
}

/// `mrs r0, cpsr`: without the state of execution.
#[test]
fn the_status_is_read_without_the_state_of_execution() {
    for (set, word) in [(Set::A32, 0xe10f_0000), (Set::T32, 0xf3ef_8000)] {
        let mut regs = start(set);
        regs.cpsr |= N | 0x000f_0000;
        assert_eq!(run_with(set, word, regs, &NoMemory).map(|after| after.r(0)), Ok(0x800f_0010));
    }
}

#[test]
fn shifts_by_a_word_and_more_are_defined() {
    assert_eq!(shifted(0x8000_0001, Shift::Right, 32, false), (0, true));
    assert_eq!(shifted(0x8000_0001, Shift::Arithmetic, 32, false), (u32::MAX, true));
    assert_eq!(shifted(0x8000_0001, Shift::Left, 1, false), (2, true));
    assert_eq!(shifted(0x8000_0001, Shift::Extend, 1, true), (0xc000_0000, true));
    assert_eq!(shifted(0x8000_0001, Shift::Rotate, 1, true), (0xc000_0000, true));
    assert_eq!(shifted(3, Shift::Left, 0, true), (3, true));
}
