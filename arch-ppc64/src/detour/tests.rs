//! Detours, walked through word by word: what they do is what the displaced instruction does in place.

use super::*;
use crate::regs::MSR_SF;
use crate::vectors::At;
use crate::{Big, ElfV1, ElfV2, Little, Ppc64, PtRegs};
use probe_core::arch::{Access, Arch, DetourCalls, Jumps, MemFault, Memory, Method};
use std::vec::Vec;

/// Low, so that absolute branches are in reach.
const PLACE: CodeAddr = CodeAddr::new(0x10_0000);
const ENTRY: CodeAddr = CodeAddr::new(0x18_0008);
/// Out of a branch's reach, and within.
const TRAMPOLINES: [CodeAddr; 2] = [CodeAddr::new(0x1234_5678), CodeAddr::new(0x123_5678)];
const WORD: usize = 0x7777_0000;
const POST: usize = 0x9999_0000;

/// Simulated instructions touch none.
struct NoMemory;

// SAFETY: it has no effect and fails always.
unsafe impl Memory for NoMemory {
    fn read(&self, addr: usize, _: &mut [u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Read })
    }

    fn write(&self, addr: usize, _: &[u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Write })
    }
}

/// Where the detour's memory begins.
fn start() -> usize {
    ENTRY.as_usize() - HEADER_LEN
}

/// What has been done: the registers, and what ran as it is, with the address that it is relative to and
/// names.
#[derive(Debug, PartialEq)]
struct Done {
    regs: PtRegs,
    ran: Vec<(u32, Option<i64>)>,
}

/// Executes the one or two words at nip.
fn execute<E: Endian>(words: &[u32], done: &mut Done) {
    let at = CodeAddr::new(done.regs.nip as usize);
    let text = At::new::<E>(at.as_usize(), words);
    type A<E> = Ppc64<E, ElfV2>;
    let decoded =
        A::<E>::decode(&Site { at, function: Some((at, at.wrapping_add(8))), text: &text }).unwrap();
    if decoded.method == Method::Simulate {
        return A::<E>::simulate(&decoded.plan, at, &mut done.regs, &NoMemory).unwrap();
    }
    done.ran.push(match (decoded.plan, words) {
        (Plan::Relocate, [prefix, suffix, ..]) => {
            let named = done.regs.nip as i64 + insn::prefix_displacement(*prefix, *suffix);
            (suffix & 0xffff_0000 | prefix >> 18, Some(named))
        }
        _ => (words[0], None),
    });
    done.regs.nip += u64::from(decoded.len_bytes);
}

/// Goes through a detour from its first copy until something leads out of it or to the second call.
fn walk<E: Endian>(image: &[u8], layout: &DetourLayout, regs: PtRegs) -> Done {
    let nip = (start() + usize::from(layout.copies[0])) as u64;
    let mut done = Done { regs: PtRegs { nip, ..regs }, ran: Vec::new() };
    for _ in 0..8 {
        let offset = (done.regs.nip as usize).checked_sub(start());
        let Some(rest) = offset.and_then(|offset| image.get(offset..)).filter(|rest| !rest.is_empty()) else {
            break;
        };
        let words: Vec<_> = rest.as_chunks::<4>().0.iter().take(2).map(|bytes| E::word(*bytes)).collect();
        if words[0] == SAVE[0] {
            break;
        }
        execute::<E>(&words, &mut done);
    }
    done
}

fn in_place<E: Endian>(words: &[u32], regs: PtRegs) -> Done {
    let mut done = Done { regs: PtRegs { nip: PLACE.as_usize() as u64, ..regs }, ran: Vec::new() };
    execute::<E>(words, &mut done);
    done
}

fn states() -> impl Iterator<Item = PtRegs> {
    let values = [(0, 0), (0xffff_ffff, 1), (0x8421_1248, 2), (0x1248_8421, 0x5000_0000)];
    values.into_iter().map(|(ccr, value)| PtRegs {
        gpr: [value; 32],
        msr: MSR_SF,
        ctr: value,
        link: 0x6000_0000,
        ccr,
        ..PtRegs::default()
    })
}

/// Goes through the code at `offset` that calls the trampoline, and finds `word` where that looks for it;
/// where the code behind the call is.
fn calls<E: Endian>(image: &[u8], offset: usize, trampoline: CodeAddr, word: usize) -> usize {
    let doubleword = |at: usize| E::doubleword(*image[at..].first_chunk().unwrap()) as usize;
    let code: Vec<_> = image[offset..].as_chunks::<4>().0.iter().map(|bytes| E::word(*bytes)).collect();
    let rest = code.strip_prefix(&SAVE).unwrap();
    let called_at = offset + 4 * SAVE.len();
    let (call_len, to) = match rest.strip_prefix(&FAR_CALL) {
        // `ld 0,-48(12)`, r12 being behind `bcl`.
        Some(_) => (FAR_CALL.len(), CodeAddr::new(doubleword(called_at + 4 - 48))),
        None => {
            assert!(insn::lk(rest[0]));
            let at = CodeAddr::new(start() + called_at);
            (1, branch_target::<E>(&E::bytes(rest[0]), at).unwrap())
        }
    };
    let back = called_at + 4 * call_len;
    assert_eq!((to, doubleword(back - WORD_DISTANCE)), (trampoline, word));
    assert_eq!(rest[call_len..][..AFTER], RESTORE);
    back + 4 * AFTER
}

fn displaced<E: Endian>(words: &[u32]) -> Result<Displaced, Refusal> {
    let text = At::new::<E>(PLACE.as_usize(), words);
    Ppc64::<E, ElfV1>::NEW.displace(&Site { at: PLACE, function: None, text: &text })
}

fn filled<E: Endian>(
    words: &[u32],
    entry: CodeAddr,
    trampoline: CodeAddr,
    post: Option<usize>,
) -> Result<(Vec<u8>, DetourLayout), Refusal> {
    let text = At::new::<E>(PLACE.as_usize(), words);
    let (displaced, mut out) = (displaced::<E>(words)?, std::vec![0; LEN]);
    let layout = Ppc64::<E, ElfV1>::NEW.fill_detour(
        &displaced,
        &text.bytes,
        PLACE,
        entry,
        &DetourCalls { trampoline, word: WORD, post_word: post },
        &mut out,
    )?;
    out.truncate(layout.len_bytes.into());
    Ok((out, layout))
}

fn detours_do_as_in_place<E: Endian>(trampoline: CodeAddr) {
    let lines = include_str!("../../../tests/vectors/ppc64.txt").lines();
    let vectors = lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('|'));
    let (mut walked, mut with_post) = (0, 0);
    for (words, asm) in vectors {
        let words: Vec<_> =
            words.trim().split(' ').map(|word| u32::from_str_radix(word, 16).unwrap()).collect();
        let Ok(displaced) = displaced::<E>(&words) else { continue };
        assert_eq!(usize::from(displaced.len_bytes), 4 * words.len());
        let (image, layout) = match filled::<E>(&words, ENTRY, trampoline, None) {
            Ok(filled) => filled,
            Err(refusal) => {
                assert_eq!(refusal, insn::REFUSE_SLOT_REACH, "{asm}");
                let target =
                    branch_target::<E>(&E::bytes(words[0]), PLACE).expect("only branches lead so far");
                assert!(target.abs_diff(ENTRY) > 0x1f0_0000, "{asm}");
                continue;
            }
        };
        let copy = calls::<E>(&image, HEADER_LEN, trampoline, WORD);
        assert_eq!(usize::from(layout.copies[0]), copy, "{asm}");
        for regs in states() {
            assert_eq!(walk::<E>(&image, &layout, regs), in_place::<E>(&words, regs), "{asm}");
        }
        walked += 1;
        // What is simulated has its post handlers called otherwise.
        if in_place::<E>(&words, PtRegs::default()).ran.is_empty() {
            continue;
        }
        let Ok((image, layout)) = filled::<E>(&words, ENTRY, trampoline, Some(POST)) else { continue };
        let done = walk::<E>(&image, &layout, states().next().unwrap());
        let again = (done.regs.nip as usize).wrapping_sub(start());
        calls::<E>(&image, HEADER_LEN, trampoline, WORD);
        let behind = calls::<E>(&image, again, trampoline, POST);
        assert_eq!(usize::from(layout.back), behind);
        let back = branch_target::<E>(&image[behind..], CodeAddr::new(start() + behind));
        assert_eq!(back, Some(PLACE.wrapping_add(4 * words.len())), "{asm}");
        with_post += 1;
    }
    assert!(walked > 100 && with_post > 50, "{walked} walked, {with_post} with a second call");
}

/// HIT_1, for a hit by a jump.
#[test]
#[cfg(not(miri))]
fn hit_1_a_detour_does_what_the_displaced_instruction_does_in_place() {
    for trampoline in TRAMPOLINES {
        detours_do_as_in_place::<Big>(trampoline);
        detours_do_as_in_place::<Little>(trampoline);
    }
}

#[test]
fn what_keeps_its_breakpoint() {
    const BL: u32 = 0x4800_0101;
    const ADDPCIS: u32 = 0x4c60_0004;
    const SCV: u32 = 0x4400_0001;
    for word in [BL, ADDPCIS, SCV] {
        assert_eq!(displaced::<Big>(&[word]).unwrap_err(), NOT_COPIED);
        assert_eq!(displaced::<Little>(&[word]).unwrap_err(), NOT_COPIED);
    }
}

#[test]
fn text_that_is_no_instruction_has_no_copy() {
    for text in [&[][..], &[0; 3], &[0; 12]] {
        assert_eq!(copy::<Big>(text, PLACE, ENTRY).unwrap_err(), NOT_COPIED, "{} bytes", text.len());
    }
    let nop = Big::bytes(insn::NOP);
    assert_eq!(branch_target::<Big>(&nop, PLACE), None);
    assert_eq!(branch_target::<Big>(&nop[..3], PLACE), None);
    let small = &mut [0; HEADER_LEN + FAR_COPY];
    let calls = DetourCalls { trampoline: TRAMPOLINES[0], word: WORD, post_word: None };
    let filled = fill::<Big>(&nop, PLACE, ENTRY, &calls, small);
    assert_eq!(filled.unwrap_err(), NOT_COPIED);
}

/// The jump reaches the detour, and the way back from it its place.
#[test]
fn a_detour_is_within_reach_of_its_jump() {
    let place = CodeAddr::new(0x1000_0000);
    let lowest = (place.as_usize() - 0x200_0000 + 2 * LEN + 8).next_multiple_of(16) - 8;
    for (from, want) in [
        (place.as_usize() + 0x1001, Some(place.as_usize() + 0x1008)),
        (place.as_usize() + 0x1009, Some(place.as_usize() + 0x1018)),
        (place.as_usize() + 0x200_0000, None),
        (usize::MAX, None),
        (0, Some(lowest)),
    ] {
        let found = Ppc64::<Big, ElfV1>::NEW.detour_entry(place, &Displaced::default(), CodeAddr::new(from));
        assert_eq!(found.map(CodeAddr::as_usize), want, "from {from:#x}");
        if let Some(found) = found {
            let jump = Ppc64::<Big, ElfV1>::NEW.jump(place, found);
            assert_eq!(Ppc64::<Big, ElfV1>::NEW.branch_target(&jump[..4], place), Some(found));
        }
    }
    // Who asks for what is not in reach gets no jump.
    assert!(Ppc64::<Big, ElfV1>::is_breakpoint(
        place,
        &Ppc64::<Big, ElfV1>::NEW.jump(place, CodeAddr::new(0))
    ));
}

#[test]
fn what_leads_too_far_from_the_detour_is_refused() {
    let far = PLACE.wrapping_add(0x1ff_f000);
    let back = insn::b(-0x100_0000).unwrap();
    for (words, post) in
        [(&[back][..], None), (&[insn::NOP], Some(POST)), (&[0x0610_0000, 0x3860_0000], Some(POST))]
    {
        let far = if words == [back] { far } else { PLACE.wrapping_add(0x200_0000 - FAR_COPY - 4) };
        assert_eq!(
            filled::<Big>(words, far, TRAMPOLINES[0], post).map(|_| ()).unwrap_err(),
            insn::REFUSE_SLOT_REACH
        );
    }
    // A prefixed access whose address lies out of its reach from there.
    let (prefix, suffix) = insn::with_prefix_displacement(0x0410_0000, 0xe480_0000, -(1 << 33)).unwrap();
    assert_eq!(
        filled::<Big>(&[prefix, suffix], ENTRY, TRAMPOLINES[0], None).map(|_| ()).unwrap_err(),
        insn::REFUSE_SLOT_REACH
    );
}
