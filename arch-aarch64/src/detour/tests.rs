//! Detours, walked through word by word: what they do is what the displaced instruction does in place.

use super::*;
use crate::regs::{PSTATE_C, PSTATE_N, PSTATE_NZCV, PSTATE_Z};
use crate::testing::Bytes;
use crate::{Aarch64, PtRegs};
use probe_core::arch::{Access, Arch, DetourCalls, Jumps, MemFault, Memory, Method};
use rstest::rstest;
use std::vec::Vec;

const PLACE: CodeAddr = CodeAddr::new(0x40_1000);
const ENTRY: CodeAddr = CodeAddr::new(0x48_0010);
const TRAMPOLINE: CodeAddr = CodeAddr::new(0x1234_5678);
const WORD: usize = 0x7777_0000;
const POST: usize = 0x9999_0000;

/// A detour, and around it memory that says something else at every address.
struct Around<'a>(&'a [u8]);

// SAFETY: nothing is written.
unsafe impl Memory for Around<'_> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        for (at, byte) in (addr..).zip(out) {
            let own = at.checked_sub(start()).and_then(|offset| self.0.get(offset));
            *byte = own.copied().unwrap_or((at as u8).wrapping_mul(37) ^ (at >> 8) as u8);
        }
        Ok(())
    }

    fn write(&self, addr: usize, _: &[u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Write })
    }
}

/// Where the detour's memory begins.
fn start() -> usize {
    ENTRY.as_usize() - HEADER_LEN
}

/// What has been done: the registers, what ran unchanged, and from where a vector was loaded by which
/// instruction.
#[derive(Debug, PartialEq)]
struct Done {
    regs: PtRegs,
    ran: Vec<u32>,
    loaded: Vec<(u32, u64)>,
}

/// The instruction in its place.
fn in_place(word: u32, regs: PtRegs) -> Done {
    let (plan, method) = decode::classify(word).unwrap();
    let mut done =
        Done { regs: PtRegs { pc: PLACE.as_usize() as u64, ..regs }, ran: Vec::new(), loaded: Vec::new() };
    if let Plan::LoadLiteralSimd { load, offset } = plan {
        done.loaded.push((load, done.regs.pc.wrapping_add_signed(offset.into())));
        done.regs.pc += 4;
    } else if method == Method::Simulate {
        Aarch64::simulate(&plan, PLACE, &mut done.regs, &Around(&[])).unwrap();
    } else {
        run(plan, word, &mut done);
    }
    done
}

/// Executes what is not simulated: where it goes, if it does, is the processor's affair.
fn run(plan: Plan, word: u32, done: &mut Done) {
    done.ran.push(word);
    done.regs.pc = if matches!(plan, Plan::AuthenticatedBranch { .. }) { 0 } else { done.regs.pc + 4 };
}

/// Goes through a detour from its first copy until something leads out of it or to the second call.
fn walk(image: &[u8], layout: &DetourLayout, original: u32, regs: PtRegs) -> Done {
    let pc = (start() + usize::from(layout.copies[0])) as u64;
    let mut done = Done { regs: PtRegs { pc, ..regs }, ran: Vec::new(), loaded: Vec::new() };
    let mut kept_x16 = None;
    for _ in 0..COPY_WORDS {
        let at = done.regs.pc as usize;
        let Some(word) = at.checked_sub(start()).and_then(|offset| insn::word_at(image.get(offset..)?))
        else {
            break;
        };
        let (plan, method) = decode::classify(word).unwrap();
        let (rt, rn) = (insn::rd(word), insn::rn(word));
        match word & 0xffc0_0000 {
            _ if word == FAR_CALL[0] => break,
            _ if method == Method::Simulate => {
                Aarch64::simulate(&plan, CodeAddr::new(at), &mut done.regs, &Around(image)).unwrap();
            }
            _ if word == original => run(plan, word, &mut done),
            // `ldr|ldrsw Xt, [Xn]`.
            class @ (0xb940_0000 | 0xb980_0000 | 0xf940_0000) => {
                assert_eq!(word & 0x3f_fc00, 0, "no offset");
                let mut bytes = [0; 8];
                Around(image).read(done.regs.x_or_zero(rn) as usize, &mut bytes).unwrap();
                let doubleword = u64::from_ne_bytes(bytes);
                let low = u32::from_ne_bytes(*bytes.first_chunk().unwrap());
                done.regs.set_x(
                    rt,
                    match class {
                        0xb940_0000 => low.into(),
                        0xb980_0000 => i64::from(low as i32) as u64,
                        _ => doubleword,
                    },
                );
                done.regs.pc += 4;
            }
            // `str x16, [sp, #-16]!`, `ldr x16, [sp], #16`.
            _ if word == 0xf81f_0ff0 => {
                kept_x16 = Some(done.regs.x[16]);
                done.regs.sp -= 16;
                done.regs.pc += 4;
            }
            _ if word == 0xf841_07f0 => {
                done.regs.x[16] = kept_x16.take().expect("it has been put there");
                done.regs.sp += 16;
                done.regs.pc += 4;
            }
            _ => {
                assert_eq!(rn, 16, "{word:#x} loads through x16");
                done.loaded.push((word, done.regs.x[16]));
                done.regs.pc += 4;
            }
        }
    }
    done
}

fn states() -> impl Iterator<Item = PtRegs> {
    let values = [(0, 0), (PSTATE_NZCV, u64::MAX), (PSTATE_Z, 1 << 60 | 2), (PSTATE_N | PSTATE_C, 0x50_0000)];
    values.into_iter().map(|(pstate, value)| PtRegs { x: [value; 31], sp: 0x7000, pc: 0, pstate })
}

/// Whether the trampoline is called at `offset`, with `word`.
fn calls(image: &[u8], offset: usize, word: usize) -> bool {
    let doubleword = |at: usize| u64::from_le_bytes(*image[at..].first_chunk().unwrap()) as usize;
    let mut code = FAR_CALL.iter().enumerate().map(|(index, _)| insn::word_at(&image[offset + 4 * index..]));
    (doubleword(offset - 16), doubleword(offset - 8)) == (TRAMPOLINE.as_usize(), word)
        && FAR_CALL.iter().all(|word| code.next() == Some(Some(*word)))
}

/// Where a branch reaches the trampoline, both calls branch there, behind what they do themselves.
#[test]
fn a_near_trampoline_is_called_by_a_branch() {
    for trampoline in [ENTRY.wrapping_add(0x7ff_ff00), ENTRY.wrapping_offset(-0x10_0000)] {
        let mut image = [0; LEN];
        let calls = DetourCalls { trampoline, word: WORD, post_word: Some(POST) };
        let layout = fill(&NOP.to_le_bytes(), PLACE, ENTRY, &calls, &mut image).unwrap();
        for (call, word) in [(HEADER_LEN, WORD), (usize::from(layout.back) - 16, POST)] {
            let code: [_; 4] =
                core::array::from_fn(|index| insn::word_at(&image[call + 4 * index..]).unwrap());
            assert_eq!((code[0], code[1], code[3]), (FAR_CALL[0], SAVE_X0, FAR_CALL[3]));
            let at = CodeAddr::new(start() + call + 8);
            assert_eq!(code[2] >> 26, 0b10_0101, "bl");
            assert_eq!(branch_target(&code[2].to_le_bytes(), at), Some(trampoline.wrapping_add(8)));
            // The trampoline finds the word from its return address.
            let back = call + 12;
            assert_eq!(u64::from_le_bytes(*image[back - 20..].first_chunk().unwrap()) as usize, word);
        }
    }
}

fn displaced(word: u32) -> Result<Displaced, Refusal> {
    Aarch64.displace(&Site { at: PLACE, function: None, text: &Bytes::words(PLACE.as_usize(), &[word]) })
}

fn filled(word: u32, entry: CodeAddr, post: Option<usize>) -> Result<([u8; LEN], DetourLayout), Refusal> {
    let (displaced, mut out) = (displaced(word)?, [0; LEN]);
    let calls = DetourCalls { trampoline: TRAMPOLINE, word: WORD, post_word: post };
    Aarch64
        .fill_detour(&displaced, &word.to_le_bytes(), PLACE, entry, &calls, &mut out)
        .map(|layout| (out, layout))
}

/// HIT_1, for a hit by a jump.
#[test]
#[cfg(not(miri))]
fn hit_1_a_detour_does_what_the_displaced_instruction_does_in_place() {
    let lines = include_str!("../../../tests/vectors/aarch64.txt").lines();
    let bytes = lines.filter_map(|line| line.split_once('|')).map(|(bytes, _)| bytes.trim().split(' '));
    let words = bytes.filter_map(|bytes| {
        let bytes: Vec<_> = bytes.map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>().ok()?;
        insn::word_at(&bytes)
    });
    let (mut walked, mut with_post) = (0, 0);
    for word in words.filter(|word| displaced(*word).is_ok()) {
        let (image, layout) = match filled(word, ENTRY, None) {
            Ok(filled) => filled,
            Err(refusal) => {
                let far =
                    insn::direct_branch(word).is_some_and(|distance| distance.unsigned_abs() > 0x7f0_0000);
                assert!(refusal == OUT_OF_REACH && far, "{word:#x}: {refusal}");
                continue;
            }
        };
        assert!(calls(&image, HEADER_LEN, WORD), "{word:#x}");
        for regs in states() {
            assert_eq!(walk(&image, &layout, word, regs), in_place(word, regs), "{word:#x}");
        }
        walked += 1;
        // What is simulated, or leaves, has its post handlers called otherwise.
        let (plan, method) = decode::classify(word).unwrap();
        if method == Method::Simulate || matches!(plan, Plan::AuthenticatedBranch { .. }) {
            continue;
        }
        let Ok((image, layout)) = filled(word, ENTRY, Some(POST)) else { continue };
        let done = walk(&image, &layout, word, PtRegs::default());
        let again = done.regs.pc as usize - start();
        assert!(calls(&image, HEADER_LEN, WORD) && calls(&image, again, POST), "{word:#x}");
        assert_eq!((done.ran, usize::from(layout.back)), (std::vec![word], again + 16));
        let last = insn::word_at(&image[usize::from(layout.back)..]).unwrap();
        let back = branch_target(&last.to_le_bytes(), CodeAddr::new(start() + usize::from(layout.back)));
        assert_eq!(back, Some(PLACE.wrapping_add(4)));
        with_post += 1;
    }
    assert!(walked > 100 && with_post > 50, "{walked} walked, {with_post} with a second call");
}

#[rstest]
#[case::bti_c(0xd503_245f, LANDING_PAD)]
#[case::paciasp(0xd503_233f, LANDING_PAD)]
#[case::blr_x3(0xd63f_0060, NOT_COPIED)]
#[case::blraa_x1_x2(0xd73f_0822, NOT_COPIED)]
#[case::adr_xzr(0x1000_001f, NOT_COPIED)]
#[case::ldr_xzr_literal(0x5800_005f, NOT_COPIED)]
fn what_keeps_its_breakpoint(#[case] word: u32, #[case] why: Refusal) {
    assert_eq!(displaced(word).unwrap_err(), why);
}

#[test]
fn text_that_cannot_be_read_keeps_its_breakpoint() {
    let text = Bytes::new(PLACE.as_usize(), &[0x1f, 0x20]);
    assert_eq!(displace(&Site { at: PLACE, function: None, text: &text }).unwrap_err(), NOT_COPIED);
    assert_eq!(branch_target(&[0x1f, 0x20], PLACE), None);
    assert_eq!(branch_target(&NOP.to_le_bytes(), PLACE), None);
    let small = &mut [0; LEN - 1];
    let calls = DetourCalls { trampoline: TRAMPOLINE, word: WORD, post_word: None };
    let filled = fill(&NOP.to_le_bytes(), PLACE, ENTRY, &calls, small);
    assert_eq!(filled.unwrap_err(), NOT_COPIED);
}

/// The jump reaches the detour, and every branch of the detour what lies as far from it.
#[rstest]
#[case::behind(PLACE.wrapping_add(0x1001), Some(0x40_2008))]
#[case::where_it_is_aligned(PLACE.wrapping_add(0x1008), Some(0x40_2008))]
#[case::too_far(PLACE.wrapping_add(1 << 27), None)]
#[case::at_the_end_of_memory(CodeAddr::new(usize::MAX), None)]
fn a_detour_is_within_reach_of_its_jump(#[case] from: CodeAddr, #[case] want: Option<usize>) {
    let found = Aarch64.detour_entry(PLACE, &Displaced::default(), from);
    assert_eq!(found, want.map(CodeAddr::new));
    if let Some(found) = found {
        let jump = Aarch64.jump(PLACE, found);
        assert_eq!(Aarch64.branch_target(&jump[..4], PLACE), Some(found));
    }
}

#[test]
fn the_lowest_detour_lies_as_far_before_its_place_as_the_jump_reaches() {
    let place = CodeAddr::new(0x4000_0000);
    let lowest = Aarch64.detour_entry(place, &Displaced::default(), CodeAddr::new(0)).unwrap();
    assert!(place.offset_from(lowest) > 0x7ff_0000);
    assert_eq!(Aarch64.branch_target(&Aarch64.jump(place, lowest)[..4], place), Some(lowest));
    // Who asks for what is not in reach gets no jump.
    assert!(Aarch64::is_breakpoint(place, &Aarch64.jump(place, CodeAddr::new(0))));
}

/// The copy's own branch ends where the instruction's would: not beyond the reach of a detour that lies far
/// off.
#[test]
fn a_branch_away_from_its_detour_may_be_out_of_reach() {
    let back = insn::branch(-0x600_0000).unwrap();
    let far = PLACE.wrapping_add(0x7ff_0000);
    assert_eq!(filled(back, far, None).map(|_| ()).unwrap_err(), OUT_OF_REACH);
    // And the way back from a second call.
    assert_eq!(
        filled(NOP, PLACE.wrapping_add(0x7ff_fff0), Some(POST)).map(|_| ()).unwrap_err(),
        OUT_OF_REACH
    );
}
