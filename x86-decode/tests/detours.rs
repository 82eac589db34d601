//! Detours, walked through instruction by instruction: what they do is what the displaced instruction does in
//! place.

mod common;

use common::{Vector, vectors};
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};
use probe_arch_i386::I386;
#[cfg(target_pointer_width = "64")]
use probe_arch_x86_64::X86_64;
use probe_core::CodeAddr;
use probe_core::arch::{
    Arch, DetourCalls, DetourLayout, Displaced, Jumps, MemFault, Memory, Method, Regs, Site, Text,
};
use probe_core::error::Refusal;
use probe_x86_decode::decode::decode_bytes;
use probe_x86_decode::{Effect, FlagBits, Mode, Plan, ProtectedMode, Registers, refusal};
use rstest::rstest;
use std::cell::RefCell;
use std::collections::BTreeMap;

const PLACE: CodeAddr = CodeAddr::new(0x5000_0000);
const TRAMPOLINE: CodeAddr = CodeAddr::new(0x5123_4567);
const WORD: usize = 0x6777_0000;
const POST: usize = 0x6999_0000;
const STACK: u64 = 0x7000_0000;
const NOP: u8 = 0x90;
/// Behind one byte of something else: a jump that may lead anywhere but for its last byte.
const LONG_NOP: [u8; 4] = [0x0f, 0x1f, 0x40, 0];

/// Text at [`PLACE`].
struct At<'a>(&'a [u8]);

impl Text for At<'_> {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let from = at.as_usize().checked_sub(PLACE.as_usize()).and_then(|offset| self.0.get(offset..));
        let from = from.unwrap_or(&[]);
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}

/// A detour, and around it memory that says something else at every address, but where it was written.
struct Around<'a> {
    start: usize,
    image: &'a [u8],
    written: RefCell<BTreeMap<usize, Vec<u8>>>,
}

// SAFETY: touches its own map only.
unsafe impl Memory for Around<'_> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let own = addr.checked_sub(self.start).and_then(|offset| self.image.get(offset..)?.get(..out.len()));
        let number = ((addr as u64).wrapping_mul(0x9e37_79b9) & 0x7fff_ffff).to_le_bytes();
        match (own, self.written.borrow().get(&addr)) {
            (Some(own), _) => out.copy_from_slice(own),
            (None, Some(written)) => out.copy_from_slice(written),
            (None, None) => out.copy_from_slice(&number[..out.len()]),
        }
        Ok(())
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        self.written.borrow_mut().insert(addr, bytes.to_vec());
        Ok(())
    }
}

/// What an instruction is wherever it lies: what it does with which registers, and the address that it names.
#[derive(Debug, PartialEq)]
struct Ran {
    code: iced_x86::Code,
    registers: Vec<Register>,
    address: u64,
}

/// What has been done.
#[derive(Debug, PartialEq)]
struct Done<R> {
    regs: R,
    ran: Vec<Ran>,
    written: BTreeMap<usize, Vec<u8>>,
}

struct Walker<'a, A: Arch> {
    regs: A::Regs,
    ran: Vec<Ran>,
    memory: Around<'a>,
}

impl<'a, A> Walker<'a, A>
where
    A: Arch<Plan = Plan>,
    A::Regs: Registers,
{
    fn new(regs: A::Regs, start: usize, image: &'a [u8]) -> Self {
        Self { regs, ran: Vec::new(), memory: Around { start, image, written: RefCell::default() } }
    }

    /// Executes the instruction that `text` starts with, at the program counter.
    fn step(&mut self, text: &[u8]) {
        let pc = self.regs.pc();
        let decoded = probe_x86_decode::decode::decode_bytes::<<A::Regs as Registers>::Mode>(text).unwrap();
        if decoded.method == Method::Simulate {
            let done = A::simulate(&decoded.plan, pc, &mut self.regs, &self.memory);
            return done.unwrap_or_else(|fault| panic!("{fault:?} of {:?} at {pc}", decoded.plan));
        }
        let next = pc.wrapping_add(usize::from(decoded.len_bytes));
        let is_long = <A::Regs as Registers>::Mode::IS_LONG;
        if let ([0xff, 0x35, 2, 0, 0, 0], true) = (&text[..6.min(text.len())], is_long) {
            // push [rip + 2]: a return address.
            let mut word = [0; 8];
            self.memory.read(next.wrapping_add(2).as_usize(), &mut word).unwrap();
            self.regs.set_general(4, self.regs.sp() as u64 - 8);
            self.memory.write(self.regs.sp(), &word).unwrap();
        } else {
            let bits = if is_long { 64 } else { 32 };
            let mut insn = Instruction::default();
            Decoder::with_ip(bits, text, pc.as_usize() as u64, DecoderOptions::NONE).decode_out(&mut insn);
            let address = if insn.is_ip_rel_memory_operand() {
                insn.ip_rel_memory_address()
            } else {
                insn.memory_displacement64()
            };
            let registers = (0..insn.op_count()).map(|index| insn.op_register(index)).collect();
            self.ran.push(Ran { code: insn.code(), registers, address });
        }
        self.regs.set_pc(next);
    }

    fn done(self) -> Done<A::Regs> {
        Done { regs: self.regs, ran: self.ran, written: self.memory.written.take() }
    }
}

/// The power under test.
fn jumps<A: Arch>() -> A::Jumps {
    A::JUMPS.expect("it has jumps")
}

/// The calls of a detour, of which the second one is made with `post_word`.
fn calls(post_word: Option<usize>) -> DetourCalls {
    DetourCalls { trampoline: TRAMPOLINE, word: WORD, post_word }
}

/// A vector's instruction and no-operations behind it, as the text of a function.
struct Case {
    text: Vec<u8>,
    len: usize,
    displaced: Displaced,
}

impl Case {
    fn new<A: Arch>(insn: &[u8]) -> Result<Self, Refusal> {
        let mut text = insn.to_vec();
        text.extend(LONG_NOP.repeat(6));
        let function = Some((PLACE, PLACE.wrapping_add(text.len())));
        let displaced = jumps::<A>().displace(&Site { at: PLACE, function, text: &At(&text) })?;
        Ok(Self { text, len: insn.len(), displaced })
    }

    fn filled<A: Arch>(
        &self,
        entry: CodeAddr,
        post: Option<usize>,
    ) -> Result<(Vec<u8>, DetourLayout), Refusal> {
        let mut out = vec![0; A::Jumps::DETOUR_LEN];
        let text = &self.text[..usize::from(self.displaced.len_bytes)];
        let layout = jumps::<A>().fill_detour(&self.displaced, text, PLACE, entry, &calls(post), &mut out)?;
        out.truncate(layout.len_bytes.into());
        Ok((out, layout))
    }

    /// Where the context is, the no-operations behind the instruction being all the same.
    fn told(&self, pc: CodeAddr) -> CodeAddr {
        let end = PLACE.wrapping_add(usize::from(self.displaced.len_bytes));
        if pc > PLACE && pc <= end { end } else { pc }
    }

    fn in_place<A>(&self, mut regs: A::Regs) -> Done<A::Regs>
    where
        A: Arch<Plan = Plan>,
        A::Regs: Registers,
    {
        regs.set_pc(PLACE);
        let mut walker = Walker::<A>::new(regs, 0, &[]);
        walker.step(&self.text[..self.len]);
        walker.regs.set_pc(self.told(walker.regs.pc()));
        walker.done()
    }

    /// From the copy of the first instruction until something leads out of the detour, or to a second call.
    fn walked<A>(
        &self,
        start: usize,
        (image, layout): &(Vec<u8>, DetourLayout),
        mut regs: A::Regs,
    ) -> Done<A::Regs>
    where
        A: Arch<Plan = Plan>,
        A::Regs: Registers,
    {
        regs.set_pc(CodeAddr::new(start + usize::from(layout.copies[0])));
        let mut walker = Walker::<A>::new(regs, start, image);
        for _ in 0..20 {
            let at = walker.regs.pc().as_usize();
            let Some(text) = at.checked_sub(start).and_then(|offset| image.get(offset..)) else { break };
            if text.is_empty() || call_at::<A>(image, start, at - start).is_some() {
                break;
            }
            walker.step(text);
        }
        walker.regs.set_pc(self.told(walker.regs.pc()));
        walker.done()
    }
}

/// The words that the call at `offset` of a detour is made with, if it is one: trampoline, and the core's.
fn call_at<A: Arch>(image: &[u8], start: usize, offset: usize) -> Option<(usize, usize)>
where
    A::Regs: Registers,
{
    let rest = image.get(offset..)?;
    let four = |at: usize| rest[at..].first_chunk().copied().map(i32::from_le_bytes).unwrap() as isize;
    if !<A::Regs as Registers>::Mode::IS_LONG {
        // push imm32; call rel32.
        return match rest {
            [0x68, _, _, _, _, 0xe8, ..] => {
                let to = (start + offset + 10).wrapping_add_signed(four(6)) as u32;
                Some((to as usize, four(1) as u32 as usize))
            }
            _ => None,
        };
    }
    // lea rsp, [rsp - 128]; call [rip + d]: through a word that a program may read that has unaligned
    // accesses fault.
    let [0x48, 0x8d, 0x64, 0x24, 0x80, 0xff, 0x15, ..] = rest else { return None };
    let trampoline_at = (offset + 11).wrapping_add_signed(four(7));
    assert!(
        (start + trampoline_at).is_multiple_of(8) && (offset - 24..=offset - 16).contains(&trampoline_at)
    );
    let word = |at: usize| u64::from_le_bytes(*image[at..].first_chunk().unwrap()) as usize;
    Some((word(trampoline_at), word(offset - 8)))
}

/// Rows of the tables, and what names addresses as far as they go.
fn rows(file: &'static str) -> Vec<Vector> {
    let far: [&[u8]; 7] = [
        &[0x8b, 0x05, 0, 0, 0, 0x7f],
        &[0xe9, 0, 0, 0, 0x7f],
        &[0xe8, 0, 0, 0, 0x7f],
        &[0x0f, 0x84, 0, 0, 0, 0x7f],
        &[0x0f, 0x8f, 0, 0, 0, 0x81],
        &[0x75, 0x7f],
        &[0xeb, 0x80],
    ];
    let far = far.into_iter().map(|bytes| Vector { bytes: bytes.to_vec(), asm: "far", plan: "", note: "" });
    vectors(file).into_iter().chain(far).collect()
}

fn states<A: Arch>() -> Vec<A::Regs>
where
    A::Regs: Registers + Default,
{
    let all = FlagBits::CF | FlagBits::PF | FlagBits::ZF | FlagBits::SF | FlagBits::OF;
    let states =
        [(0, 0x1800_0000), (all, 0x2800_0000), (FlagBits::ZF | FlagBits::SF, 1), (FlagBits::OF, 0x4800_0000)];
    let regs = |(flags, value)| {
        let mut regs = A::Regs::default();
        (0..8).for_each(|register| regs.set_general(register, value));
        regs.set_general(4, STACK);
        regs.set_flags(flags);
        regs
    };
    states.into_iter().map(regs).collect()
}

/// HIT_1, for a hit by a jump.
fn detours_do_as_in_place<A>(file: &'static str)
where
    A: Arch<Plan = Plan>,
    A::Regs: Registers + Default,
{
    let (mut walked, mut with_post, mut out_of_reach) = (0, 0, 0);
    for Vector { bytes, asm, .. } in rows(file) {
        let Ok(case) = Case::new::<A>(&bytes) else { continue };
        // Near behind, where its jump can lead there, and far before.
        let near = jumps::<A>().detour_entry(PLACE, &case.displaced, PLACE.wrapping_add(0x1000));
        let far = jumps::<A>().detour_entry(PLACE, &case.displaced, PLACE.wrapping_offset(-0x4000_0000));
        for entry in [far.or(near).unwrap()].into_iter().chain(near) {
            let start = entry.as_usize() - A::Jumps::DETOUR_HEADER_LEN;
            let filled = match case.filled::<A>(entry, None) {
                Ok(filled) => filled,
                Err(refusal) => {
                    assert_eq!((refusal, A::NAME), (refusal::OUT_OF_REACH, "x86_64"), "{asm}");
                    out_of_reach += 1;
                    continue;
                }
            };
            assert_eq!(
                call_at::<A>(&filled.0, start, A::Jumps::DETOUR_HEADER_LEN),
                Some((TRAMPOLINE.as_usize(), WORD))
            );
            for regs in states::<A>() {
                let (found, wanted) = (case.walked::<A>(start, &filled, regs), case.in_place::<A>(regs));
                assert_eq!(found, wanted, "{asm} {bytes:02x?} from {start:#x}");
            }
            walked += 1;
            let filled = case.filled::<A>(entry, Some(POST)).expect("it has room for two calls");
            let done = case.walked::<A>(start, &filled, states::<A>()[0]);
            let again = done.regs.pc().as_usize().wrapping_sub(start);
            if done.ran.is_empty() {
                // What is simulated has its post handlers called otherwise.
                continue;
            }
            assert_eq!(call_at::<A>(&filled.0, start, again), Some((TRAMPOLINE.as_usize(), POST)), "{asm}");
            with_post += 1;
        }
    }
    println!("{}: {walked} walked, {with_post} with a second call, {out_of_reach} out of reach", A::NAME);
    assert_eq!(out_of_reach > 0, A::NAME == "x86_64");
    assert!(walked > 200 && with_post > 100, "{walked} walked, {with_post} with a second call");
}

#[cfg(all(target_pointer_width = "64", not(miri)))]
#[test]
fn hit_1_a_detour_does_what_the_displaced_instruction_does_in_place_on_x86_64() {
    detours_do_as_in_place::<X86_64>(common::X86_64);
}

#[cfg(not(miri))]
#[test]
fn hit_1_a_detour_does_what_the_displaced_instruction_does_in_place_on_i386() {
    detours_do_as_in_place::<I386>(common::I386);
}

/// What keeps its breakpoint, and why.
#[rstest]
#[case::a_function_that_ends(&[0x31, 0xc0, 0x90], 2, refusal::NEXT_FUNCTION)]
#[case::no_padding_behind_a_return(&[0xc3, 0x31, 0xc0, 0x31, 0xc0, 0x90], 6, refusal::NEXT_FUNCTION)]
#[case::a_loop(&[0xe2, 0x10, NOP, NOP, NOP, NOP], 6, refusal::NOT_COPIED)]
#[case::a_call_through_memory(&[0xff, 0x10, NOP, NOP, NOP, NOP], 6, refusal::NOT_COPIED)]
#[case::a_call_through_the_stack_pointer(&[0xff, 0xd4, NOP, NOP, NOP, NOP], 6, refusal::NOT_COPIED)]
fn what_keeps_its_breakpoint(#[case] text: &[u8], #[case] len: usize, #[case] why: Refusal) {
    let text = At(text);
    let site = |function| Site { at: PLACE, function, text: &text };
    let function = Some((PLACE, PLACE.wrapping_add(len)));
    assert_eq!(I386.displace(&site(function)).unwrap_err(), why);
    assert_eq!(I386.displace(&site(None)).unwrap_err(), refusal::NO_FUNCTION);
}

/// Padding up to where the next function may begin is displaced with what it follows.
#[rstest]
#[case::int3(&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc])]
#[case::long_nop(&[0xc3, 0x0f, 0x1f, 0x44, 0, 0])]
fn padding_is_displaced(#[case] text: &[u8]) {
    let site = Site { at: PLACE, function: Some((PLACE, PLACE.wrapping_add(1))), text: &At(text) };
    let displaced = I386.displace(&site).unwrap();
    assert_eq!((usize::from(displaced.len_bytes), displaced.starts().count()), (text.len(), 1));
}

/// Every byte of the displacement that a displaced instruction starts at is `int3`: who arrives there traps
/// (SAFE_3).
#[rstest]
#[case::one(&[0xb8, 1, 2, 3, 4])]
#[case::two(&[0x31, 0xc0, 0xb8, 1, 2, 3, 4])]
#[case::one_byte_first(&[0x50, 0xb8, 1, 2, 3, 4])]
#[case::two_late(&[0x83, 0xc0, 1, 0x31, 0xc0])]
fn safe_3_a_jump_traps_where_a_displaced_instruction_starts(#[case] insn: &[u8]) {
    fn check<A: Arch>(insn: &[u8], from: CodeAddr) {
        let case = Case::new::<A>(insn).unwrap();
        let entry = jumps::<A>().detour_entry(PLACE, &case.displaced, from).expect("it is in reach");
        let jump = jumps::<A>().jump(PLACE, entry);
        for start in case.displaced.starts().filter(|start| (1..A::Jumps::JUMP_LEN).contains(start)) {
            assert_eq!(jump[start], 0xcc);
        }
        assert_eq!(jumps::<A>().branch_target(&jump[..A::Jumps::JUMP_LEN], PLACE), Some(entry));
        // It is the lowest: 32-bit addresses wrap, so that it may lie before.
        assert!(entry >= from || A::NAME == "i386", "{entry} from {from}");
    }
    for distance in [0x10, 0x1234_5678, -0x1234_5678, 0x2fff_fff0, -0x4fff_0000] {
        let from = PLACE.wrapping_offset(distance);
        check::<I386>(insn, from);
        #[cfg(target_pointer_width = "64")]
        check::<X86_64>(insn, from);
    }
}

/// The lowest entry for these would lie behind the jump but for bits that branch predictors do not look at.
#[rstest]
#[case::fixed(&[0x0f, 0xa4, 0xff, 3, 0x31, 0xc0], -0x4000_0000)]
#[case::fixed_and_near(&[0x0f, 0xa4, 0xff, 3, 0x31, 0xc0], -0x3400_0000)]
#[case::free(&[0xb8, 1, 2, 3, 4], -0x0100_0000)]
fn a_branch_predictor_tells_a_detour_from_its_place(#[case] insn: &[u8], #[case] distance: isize) {
    fn check<A: Arch>(insn: &[u8], from: CodeAddr) {
        let case = Case::new::<A>(insn).unwrap();
        let entry = jumps::<A>().detour_entry(PLACE, &case.displaced, from).expect("it is in reach");
        let aliased = entry.as_usize().wrapping_sub(PLACE.as_usize()).wrapping_add(64) & 0xff_ffff;
        assert!(aliased >= 128 && entry >= from, "the detour at {entry} looks like what is at {PLACE}");
    }
    let from = PLACE.wrapping_offset(distance);
    check::<I386>(insn, from);
    #[cfg(target_pointer_width = "64")]
    check::<X86_64>(insn, from);
}

/// There is no "too far" in a 32-bit address space.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_detour_out_of_reach_is_none() {
    let case = Case::new::<X86_64>(&[0x50, 0x51, 0x52, 0x53, 0x55]).unwrap();
    let far = |distance| X86_64.detour_entry(PLACE, &case.displaced, PLACE.wrapping_offset(distance));
    assert_eq!(far(1 << 31), None);
    assert_eq!(far(isize::MAX >> 1), None);
    assert_eq!(
        Case::new::<X86_64>(&[0x0f, 0x05]).map(|_| ()).unwrap_err(),
        refusal::NOT_COPIED,
        "a system call"
    );
    // With `int3` in all bytes there is one place only, and it lies before.
    assert_eq!(far(0), None);
    assert!(far(-(1 << 31)).is_some());
}

/// A place whose fixed bytes lead before it wraps around the top of 32 bits.
#[test]
fn in_32_bits_a_detour_may_lie_before_where_it_is_looked_for() {
    let case = Case::new::<I386>(&[0x50, 0x51, 0x52, 0x53, 0x55]).unwrap();
    let only = PLACE.as_usize().wrapping_add(5).wrapping_add(0xcccc_cccc) as u32 as usize;
    for from in [0, 0x1000_0000, only] {
        let entry = I386.detour_entry(PLACE, &case.displaced, CodeAddr::new(from));
        assert_eq!(entry, Some(CodeAddr::new(only)), "from {from:#x}");
    }
    assert_eq!(I386.detour_entry(PLACE, &case.displaced, CodeAddr::new(only + 1)), None);
}

#[test]
fn what_has_no_room_is_refused() {
    let case = Case::new::<I386>(&[0xe8, 0, 1, 0, 0]).unwrap();
    let text = &case.text[..5];
    let entry = PLACE.wrapping_add(0x1000);
    let (whole, _) = case.filled::<I386>(entry, Some(POST)).unwrap();
    for len in 0..whole.len() {
        let mut out = vec![0; len];
        let filled = I386.fill_detour(&case.displaced, text, PLACE, entry, &calls(Some(POST)), &mut out);
        assert_eq!(filled.unwrap_err(), refusal::TOO_LONG, "{len} bytes");
    }
}

/// With whatever prefixes: what is decoded as a direct branch has a target, and nothing else has.
fn targets_are_those_of_branches<M: Mode, A: Arch>() {
    let prefixes: [&[u8]; 9] =
        [&[], &[0x66], &[0x67], &[0xf2], &[0xf3, 0x2e], &[0x3e], &[0x48], &[0x66, 0x48], &[0x65, 0xf0]];
    let mut branches = 0;
    for prefix in prefixes {
        for opcode in 0..=0xffff_u16 {
            let bytes = [prefix, &opcode.to_le_bytes(), &[0x12; 11]].concat();
            let is_branch = decode_bytes::<M>(&bytes).is_ok_and(|decoded| {
                use Effect::{Branch, Call, Jump, Loop};
                matches!(decoded.plan.effect, Jump { .. } | Branch { .. } | Call { .. } | Loop { .. })
            });
            assert_eq!(jumps::<A>().branch_target(&bytes, PLACE).is_some(), is_branch, "{bytes:02x?}");
            branches += usize::from(is_branch);
        }
    }
    assert!(branches > 20 * 256, "{branches}");
}

#[test]
fn every_direct_branch_is_found() {
    targets_are_those_of_branches::<ProtectedMode, I386>();
    #[cfg(target_pointer_width = "64")]
    targets_are_those_of_branches::<probe_x86_decode::LongMode, X86_64>();
}
