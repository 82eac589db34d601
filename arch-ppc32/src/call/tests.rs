use super::*;
use crate::Ppc32;
use core::cell::RefCell;
use probe_core::arch::{Access, Arch, Calls};
use std::vec;
use std::vec::Vec;

/// A stack, from `START` up.
struct Stack(RefCell<Vec<u8>>);

const START: usize = 0x7000_0000;

impl Stack {
    fn new() -> Self {
        Self(RefCell::new(vec![0xa5; 0x4000]))
    }

    fn set(&self, at: usize, value: u32) {
        self.write(at, &value.to_be_bytes()).unwrap();
    }
}

// SAFETY: bounds are checked; nothing is written partly.
unsafe impl Memory for Stack {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let bytes = self.0.borrow();
        let from = addr.checked_sub(START).and_then(|from| bytes.get(from..from + out.len()));
        out.copy_from_slice(from.ok_or(MemFault { addr, access: Access::Read })?);
        Ok(())
    }

    fn write(&self, addr: usize, data: &[u8]) -> Result<(), MemFault> {
        let mut bytes = self.0.borrow_mut();
        let at = addr.checked_sub(START).and_then(|at| bytes.get_mut(at..at + data.len()));
        at.ok_or(MemFault { addr, access: Access::Write })?.copy_from_slice(data);
        Ok(())
    }
}

fn at_entry(sp: usize) -> PtRegs {
    let mut regs = PtRegs { nip: 0x1_0000, link: 0x2_0000, ..PtRegs::default() };
    for (n, gpr) in regs.gpr.iter_mut().enumerate() {
        *gpr = 0x100 + n as u32;
    }
    regs.gpr[SP] = sp as u32;
    regs
}

#[test]
fn arguments_come_from_registers_and_the_callers_frame() {
    let (stack, sp) = (Stack::new(), START + 0x2000);
    let regs = at_entry(sp);
    for n in 8..20 {
        stack.set(sp + 8 + 4 * (n - 8), 0x900 + n as u32);
    }
    let argument = |n| Ppc32.argument(&regs, n, &stack);
    assert_eq!((argument(0), argument(7)), (Some(0x103), Some(0x10a)));
    assert_eq!((argument(8), argument(19)), (Some(0x908), Some(0x913)));
    assert_eq!((argument(0x2000), argument(usize::MAX)), (None, None));
}

#[test]
fn jmp_2_a_jprobe_gets_its_own_frame_with_the_arguments() {
    let (stack, sp) = (Stack::new(), START + 0x2000);
    for n in 0..32 {
        stack.set(sp + 8 + 4 * n, 0x900 + n as u32);
    }
    let before = stack.0.borrow().clone();
    let mut regs = at_entry(sp);
    Ppc32.enter_jprobe(&mut regs, 0x5_0000, CodeAddr::new(0x3_0000), &stack).unwrap();
    let callee = regs.gpr[SP] as usize;
    assert!(callee.is_multiple_of(16) && sp - callee <= Ppc32::TRAP_GAP);
    assert_eq!((regs.nip, regs.link, regs.gpr[3]), (0x5_0000, 0x3_0000, 0x103));
    assert_eq!(stack.0.borrow()[0x2000..], before[0x2000..]);
    assert_eq!(load(&stack, callee), Ok(sp as u32), "back chain");
    for n in [0, 7, 31] {
        assert_eq!(load(&stack, callee + 8 + 4 * n), Ok(0x900 + n as u32));
    }
}

#[test]
fn a_jprobe_without_stack_changes_nothing() {
    let stack = Stack::new();
    for sp in [START + 16, START + 0x1_0000] {
        let mut regs = at_entry(sp);
        assert!(Ppc32.enter_jprobe(&mut regs, 0x5_0000, CodeAddr::new(4), &stack).is_err(), "{sp:#x}");
        assert_eq!(regs, at_entry(sp));
    }
    // The first frame of a stack: less than all arguments lies above.
    let mut regs = at_entry(START + 0x3fe0);
    Ppc32.enter_jprobe(&mut regs, 0x5_0000, CodeAddr::new(4), &stack).unwrap();
}

#[test]
fn the_return_address_is_the_link_register() {
    let stack = Stack::new();
    let mut regs = at_entry(START + 0x100);
    let entry = Ppc32.entry(&regs, &stack).unwrap();
    assert_eq!((entry.return_address, entry.frame), (CodeAddr::new(0x2_0000), START + 0x100));
    Ppc32.set_return_address(&mut regs, CodeAddr::new(0x9_0000), &stack).unwrap();
    assert_eq!(regs.link, 0x9_0000);
    Ppc32.set_return_value(&mut regs, 77);
    assert_eq!((regs.gpr[3], Ppc32.return_value(&regs)), (77, 77));
}

/// RET_7: the LR save word is the second of the caller's frame.
#[test]
fn ret_7_a_call_whose_caller_is_on_top_again_is_over() {
    const STUB: CodeAddr = CodeAddr::new(0x4444_0004);
    let stack = Stack::new();
    stack.set(START + 0x1000, (START + 0x2000) as u32);
    stack.set(START + 0x2000, (START + 0x3000) as u32);
    stack.set(START + 0x3000, 0);
    let may = |frame, sp| Ppc32.may_return(START + frame, STUB, START + sp, &stack);
    stack.set(START + 0x2004, STUB.as_usize() as u32);
    assert!(may(0x2000, 0x1000), "f runs");
    assert!(may(0x2000, 0x800), "f's callees run");
    assert!(!may(0x2000, 0x2000), "g runs");
    assert!(!may(0x2000, 0x3000), "main runs");
    // A leaf, whose return address is in LR alone, on a signal's stack above.
    stack.set(START + 0x2004, 0x5_0000);
    stack.set(START + 0x3800, (START + 0x1000) as u32);
    assert!(may(0x2000, 0x3800));
    stack.set(START + 0x1000, (START + 0x3000) as u32);
    assert!(!may(0x2000, 0x3800), "a chain that passes it by");
}

#[test]
fn stubs_lead_to_the_veneer_and_that_to_the_trampoline() {
    const LEN: usize = 0x1000 - 4;
    let mut out = [0; LEN];
    let (trampoline, handler) = (CodeAddr::new(0x9234_5678), 0x7edc_ba98);
    let count = Ppc32.fill_stubs(CodeAddr::new(0x10_0000), trampoline, handler, &mut out);
    assert_eq!(count, LEN / 4 - VENEER_WORDS - 1);
    let word = |index: usize| u32::from_be_bytes(*out[index * 4..].first_chunk().unwrap());
    for index in [0, 1, count / 2, count - 1] {
        assert_eq!(insn::opcd(word(index)), insn::OP_B);
        assert!(insn::lk(word(index)) && !insn::aa(word(index)));
        assert_eq!(index as i64 * 4 + insn::li(word(index)), count as i64 * 4, "leads to the veneer");
    }
    // stwu 1,-192(1); lis 11,0x9234; ori 11,11,0x5678; lis 11,0x7edc; ori 11,11,0xba98; bctr.
    assert_eq!((word(count), word(count + 12)), (0x9421_ff40, 0x4e80_0420));
    assert_eq!((word(count + 7), word(count + 8)), (0x3d60_9234, 0x616b_5678));
    assert_eq!((word(count + 10), word(count + 11)), (0x3d60_7edc, 0x616b_ba98));
    let mut small = [0; 16];
    assert_eq!(Ppc32.fill_stubs(CodeAddr::new(0), CodeAddr::new(0), 0, &mut small), 0);
}
