//! What a process cannot show natively: kernel mode, 16-bit addresses, far slots, and the calls.

use probe_arch_i386::I386;
use probe_arch_x86_64::X86_64;
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, Calls, MemFault, Memory, Regs, SingleStep, Site, Tail, Text};
use probe_x86_decode::fpu::{Saver, save_area};
use probe_x86_decode::{FlagBits, ProtectedMode, Registers, call};
#[cfg(target_pointer_width = "64")]
use probe_x86_decode::{LongMode, refusal};
use rstest::rstest;
use std::cell::RefCell;

/// Memory from `BASE`, and text at `PLACE`.
struct Fake {
    bytes: RefCell<Vec<u8>>,
    text: Vec<u8>,
}

const BASE: usize = 0x1000;
const PLACE: CodeAddr = CodeAddr::new(0x40_0000);

impl Fake {
    fn new(text: &[u8]) -> Self {
        Self { bytes: RefCell::new(vec![0; 0x1000]), text: text.to_vec() }
    }
}

// SAFETY: touches its own vector only.
unsafe impl Memory for Fake {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let bytes = self.bytes.borrow();
        let at = addr.wrapping_sub(BASE);
        let end = at.checked_add(out.len()).filter(|end| *end <= bytes.len());
        let end = end.ok_or(MemFault { addr, access: Access::Read })?;
        out.copy_from_slice(&bytes[at..end]);
        Ok(())
    }

    fn write(&self, addr: usize, from: &[u8]) -> Result<(), MemFault> {
        let mut bytes = self.bytes.borrow_mut();
        let at = addr.wrapping_sub(BASE);
        let end = at.checked_add(from.len()).filter(|end| *end <= bytes.len());
        let end = end.ok_or(MemFault { addr, access: Access::Write })?;
        bytes[at..end].copy_from_slice(from);
        Ok(())
    }
}

impl Text for Fake {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let from = self.text.get(at.as_usize().wrapping_sub(PLACE.as_usize())..).unwrap_or(&[]);
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}

/// REG_6: each instruction of what unwinders look for at a return address, and none of what only resembles
/// it.
#[rstest]
#[case::rt_64(code::<X86_64>, b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05", &[0, 7])]
#[case::plain(code::<I386>, b"\x58\xb8\x77\0\0\0\xcd\x80", &[0, 1, 6])]
#[case::rt_32(code::<I386>, b"\xb8\xad\0\0\0\xcd\x80", &[0, 5])]
fn reg_6_the_way_out_of_a_signals_handler_is_refused(
    #[case] code: fn(&[u8], usize) -> &'static str,
    #[case] bytes: &[u8],
    #[case] starts: &[usize],
) {
    for &start in starts {
        assert_eq!(code(bytes, start), "x86.signal_return", "{start}");
        // Another number, or another instruction behind it.
        for changed in [bytes.len() - 6, bytes.len() - 2] {
            let mut other = bytes.to_vec();
            other[changed] ^= 0x40;
            assert_ne!(code(&other, start), "x86.signal_return", "{start} {changed}");
        }
    }
    assert_ne!(code(&bytes[bytes.len() - 2..], 0), "x86.signal_return", "what is before cannot be read");
}

/// The reason code of what stands `offset` bytes on in `text`; empty where it can be probed.
fn code<A: Arch>(text: &[u8], offset: usize) -> &'static str {
    let text = &Fake::new(text);
    let site = Site { at: PLACE.wrapping_add(offset), function: None, text };
    A::decode(&site).map_or_else(|refusal| refusal.code, |_| "")
}

/// Decodes and simulates the one instruction in the text.
fn simulate<A: Arch>(fake: &Fake, mut regs: A::Regs) -> Result<A::Regs, MemFault> {
    let decoded = A::decode(&Site { at: PLACE, function: None, text: fake }).expect("not refused");
    regs.set_pc(PLACE);
    A::simulate(&decoded.plan, PLACE, &mut regs, fake).map(|()| regs)
}

/// POPF as each privilege level may use it. Source: SDM volume 2, POPF.
#[rstest]
#[case::kernel(0, 0, FlagBits::IF | FlagBits::IOPL | FlagBits::AC)]
#[case::user(3, 0, FlagBits::AC)]
#[case::user_with_io(3, 3, FlagBits::IF | FlagBits::AC)]
fn popf_changes_what_the_privilege_level_may(
    #[case] level: u64,
    #[case] io_level: u64,
    #[case] changed: u64,
) {
    let fake = Fake::new(&[0x9d]);
    let asked = FlagBits::IF | FlagBits::IOPL | FlagBits::AC | FlagBits::RF | FlagBits::VM;
    fake.write(0x1800, &asked.to_le_bytes()).unwrap();
    let old = io_level << 12 | FlagBits::RF | 2;
    let regs = probe_arch_x86_64::Regs { cs: level, rsp: 0x1800, eflags: old, ..Default::default() };
    let after = simulate::<X86_64>(&fake, regs).unwrap();
    let kept = if changed & FlagBits::IOPL != 0 { 0 } else { io_level << 12 };
    assert_eq!(after.eflags, changed | kept | 2);
    assert_eq!(after.rsp, 0x1808);
}

#[rstest]
#[case::cli_in_a_kernel(0xfa, 0, 0, Some(0))]
#[case::sti_in_a_kernel(0xfb, 0, 0, Some(FlagBits::IF))]
#[case::cli_in_a_process(0xfa, 3, 0, None)]
#[case::sti_in_a_process(0xfb, 3, 0, None)]
#[case::cli_with_io_privilege(0xfa, 3, 3, Some(0))]
fn interrupt_flag_needs_privilege(
    #[case] opcode: u8,
    #[case] level: u64,
    #[case] io_level: u64,
    #[case] interrupts: Option<u64>,
) {
    let fake = Fake::new(&[opcode, 0x90, 0x90]);
    let flags = io_level << 12 | if opcode == 0xfa { FlagBits::IF } else { 0 };
    let regs = probe_arch_x86_64::Regs { cs: level, eflags: flags, ..Default::default() };
    let after = simulate::<X86_64>(&fake, regs).ok().map(|regs| regs.eflags & FlagBits::IF);
    assert_eq!(after, interrupts);
}

#[rstest]
#[case::bx_si(&[0x67, 0xff, 0x20], 0x1300)]
#[case::bp_di_and_a_byte(&[0x67, 0xff, 0x63, 0x10], 0x1410)]
#[case::bx_and_a_word(&[0x67, 0xff, 0xa7, 0x34, 0x02], 0x1334)]
#[case::absolute(&[0x67, 0xff, 0x26, 0x34, 0x12], 0x1234)]
#[case::si_backwards(&[0x67, 0xff, 0x64, 0xf0], 0x11f0)]
fn sixteen_bit_addresses_wrap_and_add(#[case] text: &[u8], #[case] read_from: usize) {
    let fake = Fake::new(text);
    fake.write(read_from, &0x1234_5678u32.to_le_bytes()).unwrap();
    // The upper halves do not count, and BX + SI wraps.
    let regs = probe_arch_i386::Regs {
        ebx: 0xaaaa_1100,
        esi: 0xbbbb_1200,
        ebp: 0xcccc_1100,
        edi: 0xdddd_0300,
        ..Default::default()
    };
    let regs = if read_from == 0x1300 { probe_arch_i386::Regs { ebx: 0xaaaa_0100, ..regs } } else { regs };
    assert_eq!(simulate::<I386>(&fake, regs).unwrap().eip, 0x1234_5678);
}

/// LOOP counts in CX, ECX or RCX, and touches no more than the processor does. Source: SDM volume 2, LOOP.
#[test]
fn loop_counts_in_the_register_of_the_address_size() {
    let fake = Fake::new(&[0x67, 0xe2, 0x10]);
    let run32 = |ecx| {
        let regs = probe_arch_i386::Regs { ecx, ..Default::default() };
        let regs = simulate::<I386>(&fake, regs).unwrap();
        (regs.ecx, regs.eip as usize - PLACE.as_usize())
    };
    assert_eq!(run32(0xabcd_0002), (0xabcd_0001, 0x13));
    assert_eq!(run32(0xabcd_0001), (0xabcd_0000, 3));
    assert_eq!(run32(0xabcd_0000), (0xabcd_ffff, 0x13));
    let run64 = |rcx| {
        let regs = probe_arch_x86_64::Regs { rcx, ..Default::default() };
        let regs = simulate::<X86_64>(&fake, regs).unwrap();
        (regs.rcx, regs.rip as usize - PLACE.as_usize())
    };
    assert_eq!(run64(0xffff_ffff_0000_0002), (1, 0x13));
    assert_eq!(run64(0xffff_ffff_0000_0001), (0, 3));
}

#[test]
fn a_fault_names_its_address_and_changes_nothing() {
    let fake = Fake::new(&[0xc3]);
    let regs = probe_arch_x86_64::Regs { rsp: 0x10, ..Default::default() };
    let fault = simulate::<X86_64>(&fake, regs).unwrap_err();
    assert_eq!(fault, MemFault { addr: 0x10, access: Access::Read });
    let fake = Fake::new(&[0xe8, 0, 0, 0, 0]);
    let fault = simulate::<X86_64>(&fake, regs).unwrap_err();
    assert_eq!(fault, MemFault { addr: 8, access: Access::Write });
}

/// Slots near and far: the displacement moves with the distance.
#[rstest]
#[case::near(0x41_0000, 0x10 - 0x1_0000)]
#[case::below(0x10_0000, 0x10 + 0x30_0000)]
fn an_ip_relative_slot_addresses_the_same(#[case] slot: usize, #[case] displacement: i32) {
    let insn = [0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
    let fake = Fake::new(&insn);
    let decoded = X86_64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap();
    let mut out = [0; X86_64::SLOT_LEN - 8];
    let filled = X86_64::fill_slot(&decoded.plan, &insn, PLACE, CodeAddr::new(slot), Tail::Jump, &mut out);
    let found = filled.map(|()| i32::from_le_bytes(out[3..7].try_into().unwrap()));
    assert_eq!(found, Ok(displacement));
}

/// The one byte that `tail` names turns the slot of one tail into that of the other.
#[rstest]
#[case::plain(&[0x31, 0xc0])]
#[case::ip_relative(&[0x48, 0x8b, 0x05, 0x10, 0, 0, 0])]
#[case::eip_relative(&[0x67, 0x48, 0x8b, 0x05, 0x10, 0, 0, 0])]
#[case::fifteen_bytes(&[0x2e, 0x3e, 0x2e, 0x3e, 0x2e, 0x3e, 0x2e, 0x3e, 0x2e, 0x3e, 0x2e, 0x3e, 0x31, 0x40, 0x08])]
fn one_store_switches_the_tail(#[case] insn: &[u8]) {
    let fake = Fake::new(insn);
    let slot = CodeAddr::new(0x42_0000);
    let decoded = X86_64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap();
    let built = |tail| {
        let mut out = [0; X86_64::SLOT_LEN - 8];
        X86_64::fill_slot(&decoded.plan, insn, PLACE, slot, tail, &mut out).unwrap();
        out
    };
    for (from, to) in [(Tail::Breakpoint, Tail::Jump), (Tail::Jump, Tail::Breakpoint)] {
        let mut out = built(from);
        let patch = X86_64::tail(&decoded.plan, insn.len(), PLACE, slot, to).unwrap();
        assert_eq!(patch.len_bytes, 1);
        out[usize::from(patch.offset)] = patch.bytes[0];
        assert_eq!(out, built(to));
        // The jump ends behind the instruction in the text.
        let end = usize::from(patch.offset) + 5;
        let displacement = i32::from_le_bytes(out[end - 4..end].try_into().unwrap());
        let target = slot.wrapping_add(end).wrapping_offset(displacement as isize);
        assert_eq!(target, PLACE.wrapping_add(insn.len()));
    }
}

/// There is no "too far" in a 32-bit address space.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_slot_out_of_reach_is_refused_or_keeps_its_breakpoint() {
    let far = CodeAddr::new(1 << 48);
    let mut out = [0; X86_64::SLOT_LEN - 8];
    let insn = [0x48, 0x8b, 0x05, 0x10, 0, 0, 0];
    let fake = Fake::new(&insn);
    let plan = X86_64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap().plan;
    let filled = X86_64::fill_slot(&plan, &insn, PLACE, far, Tail::Jump, &mut out);
    assert_eq!(filled, Err(refusal::OUT_OF_REACH));
    assert_eq!(X86_64::tail(&plan, insn.len(), PLACE, far, Tail::Jump), None);

    let insn = [0x31, 0xc0];
    let fake = Fake::new(&insn);
    let plan = X86_64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap().plan;
    X86_64::fill_slot(&plan, &insn, PLACE, far, Tail::Jump, &mut out).unwrap();
    assert_eq!(out[2..], [0xcc; X86_64::SLOT_LEN - 10]);
}

/// Beside EIP the bits that extend an index mean nothing; beside the SIB byte that takes its place they
/// would.
#[cfg(target_pointer_width = "64")]
#[rstest]
// movzx r12, byte [eip+0x10]
#[case::rex(&[0x67, 0x4f, 0x0f, 0xb6, 0x25, 0x10, 0, 0, 0], 1, 0x4d)]
// mov r9, [eip+0x10]
#[case::rex_before_one_byte(&[0x67, 0x4e, 0x8b, 0x0d, 0x10, 0, 0, 0], 1, 0x4c)]
// pabsb mm1, [eip+0x10]
#[case::rex_before_three_bytes(&[0x67, 0x42, 0x0f, 0x38, 0x1c, 0x0d, 0x10, 0, 0, 0], 1, 0x40)]
// vandps xmm1, xmm0, [eip+0x10], in the three-byte form
#[case::vex(&[0x67, 0xc4, 0xa1, 0x78, 0x54, 0x0d, 0x10, 0, 0, 0], 2, 0xe1)]
fn an_eip_relative_slot_has_no_index(#[case] insn: &[u8], #[case] at: usize, #[case] byte: u8) {
    let fake = Fake::new(insn);
    let plan = X86_64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap().plan;
    let mut out = [0; X86_64::SLOT_LEN - 8];
    X86_64::fill_slot(&plan, insn, PLACE, CodeAddr::new(0x42_0000), Tail::Breakpoint, &mut out).unwrap();
    let modrm_at = insn.len() - 5;
    let mut expected = insn[..modrm_at].to_vec();
    expected[at] = byte;
    expected.extend([insn[modrm_at] & 0x38 | 4, 0x25]);
    let target = (PLACE.as_usize() + insn.len() + 0x10) as u32;
    expected.extend(target.to_le_bytes());
    assert_eq!(out[..expected.len()], expected);
}

#[test]
fn a_system_call_does_not_show_the_slot() {
    let insn = [0x0f, 0x05];
    let fake = Fake::new(&insn);
    let decoded = X86_64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap();
    let slot = CodeAddr::new(0x42_0000);
    let mut regs = probe_arch_x86_64::Regs::default();
    let state = X86_64::before_step(&decoded.plan, PLACE, slot, &mut regs);
    regs.rcx = 0x42_0002;
    X86_64::after_step(&decoded.plan, 2, PLACE, slot, &mut regs, &state);
    assert_eq!((regs.rcx, regs.rip), (0x40_0002, 0x40_0002));
}

#[rstest]
#[case::endbr64(X86_64::entry_offset, &[0xf3, 0x0f, 0x1e, 0xfa, 0x55], 4)]
#[case::endbr32_in_64_bit_code(X86_64::entry_offset, &[0xf3, 0x0f, 0x1e, 0xfb, 0x55], 0)]
#[case::plain(X86_64::entry_offset, &[0x55, 0x48, 0x89, 0xe5], 0)]
#[case::short(X86_64::entry_offset, &[0xc3], 0)]
#[case::endbr32(I386::entry_offset, &[0xf3, 0x0f, 0x1e, 0xfb, 0x55], 4)]
fn entries_begin_past_the_landing_pad(
    #[case] entry_offset: fn(&dyn Text, CodeAddr, u8) -> usize,
    #[case] text: &[u8],
    #[case] offset: usize,
) {
    assert_eq!(entry_offset(&Fake::new(text), PLACE, 0), offset);
}

/// Entry, arguments, the return address and a jprobe on either architecture.
fn calls_are_seen<A: Arch>(word: usize, register_arguments: usize)
where
    A::Regs: Registers + Default,
{
    const SP: u8 = 4;
    let fake = Fake::new(&[]);
    let sp = 0x1800;
    let put = |at: usize, value: u64| fake.write(at, &value.to_le_bytes()[..word]).unwrap();
    put(sp, 0x40_1234);
    for number in 0..16 {
        put(sp + word * (1 + number), 100 + number as u64);
    }
    let mut regs = A::Regs::default();
    regs.set_general(SP, sp as u64);
    regs.set_pc(PLACE);

    let calls = A::CALLS.expect("it has calls");
    let entry = calls.entry(&regs, &fake).unwrap();
    assert_eq!((entry.return_address, entry.frame), (CodeAddr::new(0x40_1234), sp));
    assert_eq!(calls.argument(&regs, register_arguments, &fake), Some(100));
    assert_eq!(calls.argument(&regs, register_arguments + 3, &fake), Some(103));
    assert_eq!(calls.argument(&regs, usize::MAX, &fake), None);

    let before = fake.bytes.borrow().clone();
    let mut in_handler = regs;
    calls.enter_jprobe(&mut in_handler, 0x50_0000, CodeAddr::new(0x60_0000), &fake).unwrap();
    assert_eq!(in_handler.pc(), CodeAddr::new(0x50_0000));
    assert_eq!(in_handler.sp() % 16, sp % 16, "the caller's alignment");
    let seen = calls.entry(&in_handler, &fake).unwrap();
    assert_eq!(seen.return_address, CodeAddr::new(0x60_0000));
    for number in 0..16 {
        let copied = calls.argument(&in_handler, register_arguments + number, &fake);
        assert_eq!(copied, Some(100 + number), "argument {number}");
    }
    assert!(in_handler.sp() + word + 128 <= sp, "JMP_3: the copy is below the caller's area");
    assert_eq!(fake.bytes.borrow()[sp - BASE..], before[sp - BASE..], "JMP_2");

    let stub = CodeAddr::new(0x70_0008);
    calls.set_return_address(&mut regs, stub, &fake).unwrap();
    assert!(calls.may_return(sp, stub, sp, &fake));
    assert!(!calls.may_return(sp, stub.wrapping_add(8), sp, &fake));
    assert!(!calls.may_return(0x10, stub, sp, &fake), "a stack that is gone");
    calls.set_return_value(&mut regs, 7);
    assert_eq!(calls.return_value(&regs), 7);
}

/// A call that has returned to its stub may be on its way although the popped word has changed: the stub
/// pushes another one there.
fn interrupted_return<A: Arch>(word: usize)
where
    A::Regs: Registers + Default,
{
    let fake = Fake::new(&[]);
    let (frame, stub) = (0x1800, CodeAddr::new(0x70_0008));
    let put = |at: usize, value: usize| fake.write(at, &(value as u64).to_le_bytes()[..word]).unwrap();
    let calls = A::CALLS.expect("it has calls");
    let may_return = || calls.may_return(frame, stub, frame - 0x400, &fake);
    put(frame, stub.as_usize() + 5);
    assert!(may_return(), "what the stub pushes");
    put(frame, stub.as_usize() + 16);
    assert!(!may_return());
    put(frame - 5 * word, stub.as_usize());
    assert!(!may_return(), "what lies below a frame is anybody's");
}

#[test]
fn ret_11_an_interrupted_return_is_told_from_a_frame_that_was_left() {
    interrupted_return::<X86_64>(8);
    interrupted_return::<I386>(4);
}

#[test]
fn calls_are_seen_on_x86_64() {
    calls_are_seen::<X86_64>(8, 6);
}

#[test]
fn calls_are_seen_on_i386() {
    calls_are_seen::<I386>(4, 0);
}

/// Every register has its names, and a name its register.
#[rstest]
#[case::x86_64(probe_arch_x86_64::Regs::names(), 21, "di", 14)]
#[case::i386(probe_arch_i386::Regs::names(), 17, "eip", 12)]
fn registers_have_names(
    #[case] names: &[(&str, usize)],
    #[case] registers: usize,
    #[case] name: &str,
    #[case] number: usize,
) {
    assert!((0..registers).all(|number| names.iter().any(|(_, other)| *other == number)));
    assert!(names.contains(&(name, number)));
    assert!(names.iter().all(|(_, number)| *number < registers));
}

#[rstest]
#[case::avx512([0xd, 1 << 27, 1 << 24, 3 << 1], 0xe7, Saver::Xsavec, 0xe7, 2688)]
#[case::no_xgetbv_1([0xd, 1 << 27, 1 << 24, 1 << 1], 0xe7, Saver::Xsave, 0xe7, 2688)]
#[case::no_avx([0xd, 1 << 27, 1 << 24, 3 << 1], 0x3, Saver::Xsave, 0x3, 576)]
#[case::avx([0xd, 1 << 27, 1 << 24, 0], 0x7, Saver::Xsave, 0x7, 832)]
#[case::amx_and_pkru_are_left([0xd, 1 << 27, 1 << 24, 3 << 1], 0x6_02e7, Saver::Xsavec, 0xe7, 2688)]
#[case::no_osxsave([0xd, 0, 1 << 24, 0], 0, Saver::Fxsave, 0, 512)]
#[case::pentium([1, 0, 0, 0], 0, Saver::Fnsave, 0, 128)]
fn the_save_area_fits_the_processor(
    #[case] processor: [u32; 4],
    #[case] xcr0: u64,
    #[case] saver: Saver,
    #[case] components: u32,
    #[case] len_bytes: usize,
) {
    let [max_leaf, features_c, features_d, extensions] = processor;
    let cpuid = |leaf, subleaf| match (leaf, subleaf) {
        (0, _) => [max_leaf, 0, 0, 0],
        (1, _) => [0, 0, features_c, features_d],
        (0xd, 1) => [extensions, 0, 0, 0],
        (0xd, 2) => [256, 576, 0, 0],
        (0xd, 5) => [64, 1088, 0, 0],
        (0xd, 6) => [512, 1152, 0, 0],
        (0xd, 7) => [1024, 1664, 0, 0],
        (0xd, 18) => [8192, 2816, 0, 0],
        other => panic!("no leaf {other:x?} was expected"),
    };
    let area = save_area(cpuid, || xcr0);
    assert_eq!((area.saver, area.components, area.len_bytes), (saver, components, len_bytes));
}

/// Stubs call the veneer behind them; from there on the handler is on the stack and control is in the
/// trampoline.
#[rstest]
#[case::x86_64(true)]
#[case::i386(false)]
fn stubs_lead_to_the_veneer(#[case] is_long: bool) {
    let (trampoline, handler) = (CodeAddr::new(0x4123_4567), 0x3456_789a);
    let mut chunk = vec![0; 256];
    let fill_stubs = |out: &mut [u8]| match is_long {
        true => X86_64.fill_stubs(PLACE, trampoline, handler, out),
        false => I386.fill_stubs(PLACE, trampoline, handler, out),
    };
    let stubs = fill_stubs(&mut chunk);
    let number = |at: usize| u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap()) as usize;
    let stub_len = if is_long { X86_64::STUB_LEN } else { I386::STUB_LEN };
    let veneer = stubs * stub_len;
    for stub in (0..veneer).step_by(stub_len) {
        assert_eq!((chunk[stub], stub + 5 + number(stub + 1)), (0xe8, veneer));
        assert_eq!(chunk[stub + 5], 0xcc);
    }
    if is_long {
        // push [rip + d]; jmp [rip + d].
        assert_eq!(
            (&chunk[veneer..veneer + 2], &chunk[veneer + 6..veneer + 8]),
            (&[0xff, 0x35][..], &[0xff, 0x25][..])
        );
        assert_eq!(number(veneer + 6 + number(veneer + 2)), handler);
        assert_eq!(number(veneer + 12 + number(veneer + 8)), trampoline.as_usize());
    } else {
        assert_eq!((chunk[veneer], number(veneer + 1), chunk[veneer + 5]), (0x68, handler, 0xe9));
        let behind = PLACE.as_usize() + veneer + 10;
        assert_eq!((behind + number(veneer + 6)) as u32 as usize, trampoline.as_usize());
    }
    assert_eq!(fill_stubs(&mut [0; 32]), 0, "no room but for a veneer");
}

/// Stubs that make no call of their own push what one would; before each stands the call that pushes the stub
/// itself.
#[cfg(target_pointer_width = "64")]
#[test]
fn followed_stubs_lead_to_the_veneer() {
    let (trampoline, handler) = (CodeAddr::new(0x1234_5678_9abc), 0x5555_4444_3333);
    let mut chunk = vec![0; 512];
    let stubs = call::fill_followed_stubs::<LongMode>(PLACE, trampoline, handler, &mut chunk);
    let bytes = |at: usize, len: usize| {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&chunk[at..at + len]);
        u64::from_le_bytes(word) as usize
    };
    let veneer = stubs * X86_64::STUB_LEN;
    for stub in (X86_64::STUB_LEN..veneer).step_by(X86_64::STUB_LEN) {
        assert_eq!((bytes(stub, 2), chunk[stub + 6]), (0x35ff, 0xe9), "push [rip + d]; jmp");
        let pushed = bytes(stub + 6 + bytes(stub + 2, 4), 8);
        assert_eq!(pushed, PLACE.as_usize() + stub + call::STUB_CALL_LEN);
        assert_eq!(stub + 11 + bytes(stub + 7, 4), veneer);
        assert_eq!(chunk[stub - 4..stub], [0xff, 0x54, 0x24, 0xe8], "call [rsp - 24]");
    }
    let jump = veneer + 6;
    assert_eq!((bytes(veneer, 2), bytes(jump, 2)), (0x35ff, 0x25ff), "push [rip + d]; jmp [rip + d]");
    assert_eq!(bytes(veneer + 6 + bytes(veneer + 2, 4), 8), handler);
    assert_eq!(bytes(jump + 6 + bytes(jump + 2, 4), 8), trampoline.as_usize());
}

/// The same in 32-bit mode: the call pushes the stub once more, and leads to what drops it, and goes on.
#[test]
fn followed_stubs_in_protected_mode_lead_to_the_veneer() {
    let (trampoline, handler) = (CodeAddr::new(0x1234_5678), 0x5555_4444);
    let mut chunk = vec![0; 512];
    let stubs = call::fill_followed_stubs::<ProtectedMode>(PLACE, trampoline, handler, &mut chunk);
    let number = |at: usize| u32::from_le_bytes(chunk[at..at + 4].try_into().unwrap());
    let veneer = stubs * I386::STUB_LEN;
    for stub in (I386::STUB_LEN..veneer).step_by(I386::STUB_LEN) {
        assert_eq!((chunk[stub], chunk[stub + 5]), (0x68, 0xe9), "push; jmp");
        assert_eq!(number(stub + 1), (PLACE.as_usize() + stub + call::STUB_CALL_LEN) as u32);
        assert_eq!(stub + 10 + number(stub + 6) as usize, veneer);
        let way = stub + number(stub - 4) as usize;
        assert_eq!(chunk[stub - 5], 0xe8, "call");
        assert_eq!(
            chunk[way..way + 7],
            [0x8d, 0x64, 0x24, 8, 0xff, 0x24, 0x24],
            "lea esp, [esp + 8]; jmp [esp]"
        );
        assert!(way >= veneer + 10);
    }
    assert_eq!((chunk[veneer], number(veneer + 1), chunk[veneer + 5]), (0x68, handler as u32, 0xe9));
    let behind = PLACE.as_usize() + veneer + 10;
    assert_eq!((behind as u32).wrapping_add(number(veneer + 6)), trampoline.as_usize() as u32);
}

/// HIT_1: the flag that makes the processor trap is all that changes, and comes back as it was.
#[rstest]
#[case::clear(0)]
#[case::the_program_steps_itself(FlagBits::TF)]
fn a_single_step_changes_the_trap_flag_and_gives_it_back(#[case] kept: u64) {
    fn check<A: Arch + SingleStep>(kept: u64)
    where
        A::Regs: Registers + Default,
    {
        let mut regs = A::Regs::default();
        regs.set_flags(FlagBits::CF | kept);
        let state = A::begin(&mut regs);
        assert_eq!(regs.flags(), FlagBits::CF | FlagBits::TF);
        // The instruction has changed a flag.
        regs.set_flags(FlagBits::ZF | FlagBits::TF);
        A::end(&mut regs, state);
        assert_eq!(regs.flags(), FlagBits::ZF | kept);
    }
    check::<X86_64>(kept);
    check::<I386>(kept);
}

/// JMP_2: a stack may end within the area that is copied.
#[test]
fn a_jprobes_argument_area_may_end_with_the_stack() {
    let fake = Fake::new(&[]);
    let sp = BASE + 0x1000 - 24;
    (0..3).for_each(|number| fake.write(sp + 8 * number, &(100 + number as u64).to_le_bytes()).unwrap());
    let mut regs = probe_arch_x86_64::Regs { rsp: sp as u64, ..Default::default() };
    X86_64.enter_jprobe(&mut regs, 0x50_0000, CodeAddr::new(0x60_0000), &fake).unwrap();
    let copied = [6, 7, 8].map(|index| X86_64.argument(&regs, index, &fake));
    assert_eq!(copied, [Some(101), Some(102), Some(0)]);
}

/// Beside EIP the bits that extend an index are taken out of EVEX and XOP as well.
#[cfg(target_pointer_width = "64")]
#[rstest]
// vaddps zmm1, zmm0, [eip + 0x40]
#[case::evex(&[0x67, 0x62, 0xb1, 0x7c, 0x48, 0x58, 0x0d, 0x40, 0, 0, 0], 2, 0xf1)]
// vpcmov xmm1, xmm2, [eip + 0x40], xmm3
#[case::xop(&[0x67, 0x8f, 0xa8, 0x68, 0xa2, 0x0d, 0x40, 0, 0, 0, 0x30], 2, 0xe8)]
fn an_eip_relative_vector_slot_has_no_index(#[case] insn: &[u8], #[case] at: usize, #[case] byte: u8) {
    let fake = Fake::new(insn);
    let plan = X86_64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap().plan;
    let mut out = [0; X86_64::SLOT_LEN - 8];
    X86_64::fill_slot(&plan, insn, PLACE, CodeAddr::new(0x42_0000), Tail::Breakpoint, &mut out).unwrap();
    assert_eq!(out[at], byte);
}
