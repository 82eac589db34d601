use super::*;
use crate::testing::{Bytes, NoMemory};

fn numbered() -> PtRegs {
    let mut regs =
        PtRegs { r: core::array::from_fn(|index| index as u32 + 90), cpsr: 0x30, ..PtRegs::default() };
    regs.set_r(SP, 0x7000);
    regs
}

fn words(values: impl IntoIterator<Item = u32>) -> std::vec::Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn arguments_are_in_four_registers_and_then_on_the_stack() {
    let stack = Bytes::new(0x7000, &words([900, 901]));
    let got: std::vec::Vec<_> = (0..7).map(|index| argument(&numbered(), index, &stack)).collect();
    assert!(got.into_iter().eq((90..94).chain([900, 901]).map(Some).chain([None])));
    assert_eq!(argument(&numbered(), usize::MAX, &stack), None);
}

/// What the words of a stub and of the veneer are, from `arm-linux-gnueabihf-objdump`; here: what they do
/// together.
#[test]
fn stubs_lead_to_the_veneer() {
    let mut out = [0xffu8; 68];
    assert_eq!(fill_stubs(CodeAddr::new(0x1234_5678), 0x9abc_def0, &mut out), 5);
    let word = |offset: usize| u32::from_le_bytes(out[offset..offset + 4].try_into().unwrap());
    for index in 0..5 {
        assert_eq!(word(index * 8), 0xe92d_9000, "push {{ip, pc}}");
        let branch = word(index * 8 + 4);
        assert!(insn::BRANCH.matches(branch), "{branch:#x}");
        assert_eq!(index as i32 * 8 + 4 + 8 + insn::signed(insn::field(branch, 0, 24) << 2, 26), 40);
    }
    assert_eq!(core::array::from_fn(|index| word(40 + index * 4)), VENEER);
    // What the veneer loads is where the two words are: its loads are at 4 and at 12.
    assert_eq!(word(40 + 4 + 8 + 8), 0x9abc_def0);
    assert_eq!(word(40 + 12 + 8 - 4), 0x1234_5678);
    assert_eq!(word(64), insn::BREAKPOINT_A32);
}

#[test]
fn a_chunk_too_small_for_a_veneer_holds_no_stub() {
    let mut out = [0xffu8; 20];
    assert_eq!(fill_stubs(CodeAddr::new(8), 16, &mut out), 0);
    assert_eq!(out[..4], insn::BREAKPOINT_A32.to_le_bytes());
}

const STUB_AT: CodeAddr = CodeAddr::new(0x55_5550);

/// A frame of 64 bytes below 0x7040 that holds `saved` at 0x7008.
fn stack(saved: u32) -> Bytes {
    let mut frame = [0u32; 1040];
    frame[1026] = saved;
    Bytes::new(0x6000, &words(frame))
}

#[test]
fn a_call_that_has_saved_the_stub_may_return() {
    assert!(may_return(0x7040, STUB_AT, 0x7000, &stack(0x55_5550)));
    assert!(!may_return(0x7040, STUB_AT, 0x7000, &stack(0x55_5558)));
    assert!(!may_return(0x7040, STUB_AT, 0x7010, &stack(0x55_5550)), "that part of the frame is gone");
}

#[test]
fn a_frame_above_which_the_stack_has_been_unwound_is_left() {
    assert!(!may_return(0x7040, STUB_AT, 0x7040, &stack(0)));
    assert!(!may_return(0x7040, STUB_AT, 0x7040, &stack(0x55_5550)), "another call is there now");
    assert!(!may_return(0x7040, STUB_AT, 0x7100, &stack(0)));
    assert!(may_return(0x7040, STUB_AT, 0x9000, &stack(0x55_5550)), "perhaps a sleeping coroutine");
}

#[test]
fn a_leaf_that_a_signal_has_interrupted_may_return() {
    // Its frame is on a stack that cannot be read here; the signal frame is on this one, which ends at
    // 0x8000.
    let running = |saved| {
        let mut words = [0; 0x2000 / 4];
        words[0x1008 / 4] = saved;
        Bytes::new(0x6000, &self::words(words))
    };
    assert!(may_return(0x3000, STUB_AT, 0x6ff0, &running(0x55_5550)));
    assert!(may_return(0x3000, STUB_AT, 0x6040, &running(0x55_5550)), "a page further up");
    assert!(!may_return(0x3000, STUB_AT, 0x7010, &running(0x55_5550)), "below the stack pointer");
    assert!(!may_return(0x3000, STUB_AT, 0x6ff0, &running(0)));
}

#[test]
fn what_cannot_be_read_is_not_taken_for_left() {
    assert!(may_return(0x7040, STUB_AT, 0x7000, &NoMemory));
    assert!(may_return(0x100_7040, STUB_AT, 0x7000, &stack(0)), "too far to search");
    assert!(!may_return(0x7040, STUB_AT, 0x7040, &NoMemory), "dead and unmapped");
}

#[test]
fn a_jprobe_handler_gets_a_copy_of_the_argument_area() {
    let stack = Bytes::new(0x6000, &words((0..0x2000 / 4).map(|index| index as u32)));
    let mut regs = numbered();
    enter_jprobe(&mut regs, 0x5000, CodeAddr::new(0x6667), &stack).expect("readable");
    let mut want = PtRegs { pc: 0x5000, cpsr: 0x10, ..numbered() };
    want.set_r(SP, 0x6f80);
    want.set_r(LR, 0x6667);
    assert_eq!(regs, want);
    let mut copy = [0; 128];
    let mut original = [0; 128];
    stack.read(0x6f80, &mut copy).unwrap();
    stack.read(0x7000, &mut original).unwrap();
    assert_eq!(copy, original);
    assert_eq!(original[..4], (0x1000u32 / 4).to_le_bytes());
}

#[test]
fn the_argument_area_may_end_with_the_stack() {
    let stack = Bytes::new(0x6000, &words((0..0x1010 / 4).map(|index| index as u32)));
    let mut regs = numbered();
    enter_jprobe(&mut regs, 0x5000, CodeAddr::new(0x6667), &stack).expect("readable");
    let mut copy = [0; 32];
    stack.read(0x6f80, &mut copy).unwrap();
    assert_eq!(copy[..16], words([0x400, 0x401, 0x402, 0x403])[..]);
    assert_eq!(copy[16..], [0; 16]);
}

#[test]
fn a_jprobe_without_stack_changes_nothing() {
    let mut regs = numbered();
    assert!(enter_jprobe(&mut regs, 0x5000, CodeAddr::new(0x6667), &NoMemory).is_err());
    assert_eq!(regs, numbered());
}
