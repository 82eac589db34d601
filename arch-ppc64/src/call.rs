//! Calls: arguments, the return value and address, entries, jprobes, return stubs.
//!
//! Sources: *64-Bit ELF V2 ABI Specification, Power Architecture* 1.5, chapter 2.2 ("Function Calling
//! Sequence"), and *64-bit PowerPC ELF Application Binary Interface Supplement* 1.9, chapter 3.2, for ELFv1.
//! Runs on the hit path. Pure.

use crate::decode::Words;
use crate::insn;
use crate::regs::{ENTRY, PtRegs, SP, TOC};
use crate::{Abi, Endian};
use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::{Entry, MemFault, Memory, Text};
pub(crate) use probe_ppc_decode::call::{may_return, read_as_far_as_mapped};

/// Arguments in r3 to r10.
const REGISTER_ARGUMENTS: usize = 8;
/// Bytes below the stack pointer that interrupted code may use (288 in the ABIs, 512 in Linux's signal
/// frames).
const RED_ZONE: usize = 512;
/// How much of the caller's parameter save area a jprobe handler gets a copy of: 64 doublewords.
const COPIED_PARAMETERS: usize = 64 * 8;

/// The integer argument number `index` at a function's entry.
pub(crate) fn argument<E: Endian, A: Abi, M: Memory>(
    regs: &PtRegs,
    index: usize,
    memory: &M,
) -> Option<usize> {
    if index < REGISTER_ARGUMENTS {
        return Some(regs.gpr[3 + index] as usize);
    }
    let offset = index.checked_mul(8)?.checked_add(A::PARAMETER_SAVE_AREA)?;
    let at = (regs.gpr[SP] as usize).checked_add(offset)?;
    load::<E, M>(memory, at).ok().map(|value| value as usize)
}

/// The return address and the frame at a function's entry.
pub(crate) fn entry(regs: &PtRegs) -> Entry {
    Entry { return_address: CodeAddr::new(regs.link as usize), frame: regs.gpr[SP] as usize }
}

/// The distance in bytes from a function's global entry to its local entry.
///
/// Where the symbol table says nothing, the code does: `addis 2,12,x` or `lis 2,x`, then `addi 2,2,y`, sets
/// up the TOC pointer (ELFv2, 2.3.2.1 "Function Prologue").
pub(crate) fn entry_offset<E: Endian, A: Abi>(text: &dyn Text, function: CodeAddr, local_entry: u8) -> usize {
    const ADDIS_2_12: u32 = 0x3c4c;
    const LIS_2: u32 = 0x3c40;
    const ADDI_2_2: u32 = 0x3842;
    if !A::HAS_LOCAL_ENTRY || local_entry != 0 {
        return if A::HAS_LOCAL_ENTRY { usize::from(local_entry) } else { 0 };
    }
    let words = Words::<E>::new(text);
    match (words.at(function), words.at(function.wrapping_add(4))) {
        (Some(first), Some(second))
            if matches!(first >> 16, ADDIS_2_12 | LIS_2) && second >> 16 == ADDI_2_2 =>
        {
            8
        }
        _ => 0,
    }
}

/// The distance in bytes from the global to the local entry that `st_other` of an ELFv2 symbol encodes.
///
/// ELFv2 ABI 1.5, 3.4.1 "Symbol Values": bits 7:5; 0 and 1 mean a single entry, 7 is reserved (taken as
/// none).
pub const fn local_entry_of_st_other(st_other: u8) -> u8 {
    match st_other >> 5 {
        code @ 2..=6 => 1 << code,
        _ => 0,
    }
}

/// How much lower than its caller's a jprobe's handler finds the stack pointer, at most, in bytes.
pub(crate) const fn lowered_by<A: Abi>() -> usize {
    RED_ZONE + A::PARAMETER_SAVE_AREA + COPIED_PARAMETERS + 16
}

/// Makes a context at a function's entry call `handler`, which returns to `return_to`.
///
/// Below the red zone: a frame with a back chain to the caller's and a copy of the parameter save area.
pub(crate) fn enter_jprobe<E: Endian, A: Abi, M: Memory>(
    regs: &mut PtRegs,
    handler: usize,
    return_to: CodeAddr,
    memory: &M,
) -> Result<(), MemFault> {
    let target = A::resolve::<E, M>(handler, memory)?;
    let caller = regs.gpr[SP] as usize;
    let callee = caller.wrapping_sub(RED_ZONE + A::PARAMETER_SAVE_AREA + COPIED_PARAMETERS) & !15;
    let mut parameters = [0; COPIED_PARAMETERS];
    read_as_far_as_mapped::<E, M>(memory, caller.wrapping_add(A::PARAMETER_SAVE_AREA), &mut parameters)?;
    memory.write(callee.wrapping_add(A::PARAMETER_SAVE_AREA), &parameters)?;
    memory.write(callee, &E::doubleword_bytes(caller as u64))?;
    regs.gpr[SP] = callee as u64;
    regs.gpr[ENTRY] = target.code;
    if let Some(toc) = target.toc {
        regs.gpr[TOC] = toc;
    }
    if let Some(environment) = target.environment {
        regs.gpr[11] = environment;
    }
    regs.nip = target.code;
    regs.link = return_to.as_usize() as u64;
    Ok(())
}

/// Loads a doubleword in the byte order of the probed program.
pub(crate) fn load<E: Endian, M: Memory>(memory: &M, at: usize) -> Result<u64, MemFault> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(E::doubleword(bytes))
}

/// What a function pointer leads to.
pub struct Callee {
    /// The address of the code.
    pub code: u64,
    /// r2 at its entry, where the caller has to give it.
    pub toc: Option<u64>,
    /// r11 at its entry, where the caller has to give it.
    pub environment: Option<u64>,
}

/// The size of a return stub: `bl` to the chunk's veneer, which leaves the stub's address in the link
/// register.
///
/// The link register is volatile across a call, so no code relies on it. The trampoline puts the return
/// address there, as the function's own `blr` would have.
pub(crate) const STUB_LEN: usize = 4;

/// The veneer's frame: what a handler needs, and the registers.
pub(crate) const VENEER_FRAME: usize = 480;
/// Where the registers lie in it, and those among them that the veneer and detours store.
pub(crate) const REGS: usize = 112;
pub(crate) const KEPT_R0: usize = REGS;
const KEPT_R11: usize = REGS + 8 * 11;
pub(crate) const KEPT_R12: usize = REGS + 8 * 12;
pub(crate) const KEPT_LR: usize = REGS + offset_of!(PtRegs, link);
pub(crate) const KEPT_CTR: usize = REGS + offset_of!(PtRegs, ctr);

const VENEER_WORDS: usize = 17;

/// Fills `out`, to lie at `chunk`, with stubs and their veneer, and returns the number of stubs.
pub(crate) fn fill_stubs<E: Endian>(trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    let Some(stubs) = (out.len() / 4).checked_sub(VENEER_WORDS) else {
        fill_with::<E>(out, insn::TRAP);
        return 0;
    };
    let (stub_bytes, veneer_bytes) = out.split_at_mut(stubs * STUB_LEN);
    for (index, stub) in stub_bytes.chunks_exact_mut(STUB_LEN).enumerate() {
        let word = insn::b(((stubs - index) * STUB_LEN) as i64).map_or(insn::TRAP, |b| b | 1);
        stub.copy_from_slice(&E::bytes(word));
    }
    fill_with::<E>(veneer_bytes, insn::TRAP);
    let (code, addresses) = veneer_bytes.split_at_mut(VENEER.len() * 4);
    for (bytes, word) in code.chunks_exact_mut(4).zip(VENEER) {
        bytes.copy_from_slice(&E::bytes(word));
    }
    for (bytes, address) in addresses.chunks_exact_mut(8).zip([trampoline.as_usize(), handler]) {
        bytes.copy_from_slice(&E::doubleword_bytes(address as u64));
    }
    stubs
}

fn fill_with<E: Endian>(out: &mut [u8], word: u32) {
    for bytes in out.chunks_exact_mut(4) {
        bytes.copy_from_slice(&E::bytes(word));
    }
}

/// Makes the frame, stores the registers that it uses itself, and goes to the trampoline with r11 = `handler`
/// and r12 = the stub's end. The two addresses are its last words.
const VENEER: [u32; VENEER_WORDS - 4] = [
    0xf821_0001 | (0x1_0000 - VENEER_FRAME) as u32, // stdu 1,-480(1)
    std(0, KEPT_R0),
    std(11, KEPT_R11),
    std(12, KEPT_R12),
    insn::mfspr(0, insn::SPR_CTR),
    std(0, KEPT_CTR),
    insn::mfspr(12, insn::SPR_LR),
    0x429f_0005, // bcl 20,31,.+4
    insn::mfspr(11, insn::SPR_LR),
    0xe80b_0014, // ld 0,20(11)
    insn::mtspr(insn::SPR_CTR, 0),
    0xe96b_001c, // ld 11,28(11)
    insn::OP_XL << 26 | 20 << 21 | insn::XO_BCCTR << 1,
];

/// `std rs,d(1)`.
const fn std(rs: u32, d: usize) -> u32 {
    62 << 26 | rs << 21 | 1 << 16 | d as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::At;
    use crate::{Big, ElfV1, ElfV2, Little, Ppc64};
    use core::cell::RefCell;
    use probe_core::arch::{Access, Arch, Calls};
    use std::vec;
    use std::vec::Vec;

    /// A stack, from `start` up.
    struct Stack {
        start: usize,
        bytes: RefCell<Vec<u8>>,
    }

    const START: usize = 0x7000_0000;

    impl Stack {
        fn new() -> Self {
            Self { start: START, bytes: RefCell::new(vec![0xa5; 0x4000]) }
        }

        fn set<E: Endian>(&self, at: usize, value: u64) {
            self.write(at, &E::doubleword_bytes(value)).unwrap();
        }
    }

    // SAFETY: bounds are checked; nothing is written partly.
    unsafe impl Memory for Stack {
        fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
            let bytes = self.bytes.borrow();
            let from = addr.checked_sub(self.start).and_then(|from| bytes.get(from..from + out.len()));
            out.copy_from_slice(from.ok_or(MemFault { addr, access: Access::Read })?);
            Ok(())
        }

        fn write(&self, addr: usize, data: &[u8]) -> Result<(), MemFault> {
            let mut bytes = self.bytes.borrow_mut();
            let at = addr.checked_sub(self.start).and_then(|at| bytes.get_mut(at..at + data.len()));
            at.ok_or(MemFault { addr, access: Access::Write })?.copy_from_slice(data);
            Ok(())
        }
    }

    fn at_entry(sp: usize) -> PtRegs {
        let mut regs = PtRegs { nip: 0x1_0000, link: 0x2_0000, ..PtRegs::default() };
        for (n, gpr) in regs.gpr.iter_mut().enumerate() {
            *gpr = 0x100 + n as u64;
        }
        regs.gpr[SP] = sp as u64;
        regs
    }

    fn arguments<E: Endian, A: Abi>(offset: usize) {
        let (stack, sp) = (Stack::new(), START + 0x2000);
        let regs = at_entry(sp);
        for n in 8..20 {
            stack.set::<E>(sp + offset + 8 * n, 0x900 + n as u64);
        }
        let argument = |n| Ppc64::<E, A>::NEW.argument(&regs, n, &stack);
        assert_eq!((argument(0), argument(7)), (Some(0x103), Some(0x10a)));
        assert_eq!((argument(8), argument(19)), (Some(0x908), Some(0x913)));
        assert_eq!((argument(0x2000), argument(usize::MAX)), (None, None));
    }

    #[test]
    fn arguments_come_from_registers_and_the_parameter_save_area() {
        arguments::<Big, ElfV1>(48);
        arguments::<Big, ElfV2>(32);
        arguments::<Little, ElfV2>(32);
    }

    fn jprobe<E: Endian, A: Abi>(offset: usize) {
        let (stack, sp) = (Stack::new(), START + 0x2000);
        for n in 0..64 {
            stack.set::<E>(sp + offset + 8 * n, 0x900 + n as u64);
        }
        let descriptor = START + 0x3800;
        stack.set::<E>(descriptor, 0x5_0000);
        stack.set::<E>(descriptor + 8, 0x6_0000);
        stack.set::<E>(descriptor + 16, 0x7_0000);
        let before = stack.bytes.borrow().clone();
        let mut regs = at_entry(sp);
        let return_to = CodeAddr::new(0x3_0000);
        Ppc64::<E, A>::NEW.enter_jprobe(&mut regs, descriptor, return_to, &stack).unwrap();
        let callee = regs.gpr[SP] as usize;
        assert_eq!(regs.link, 0x3_0000);
        assert!(callee.is_multiple_of(16));
        // JMP_2: nothing of the caller's, nor of the 512 bytes below it, has changed.
        assert_eq!(stack.bytes.borrow()[0x2000 - 512..], before[0x2000 - 512..]);
        assert_eq!(load::<E, _>(&stack, callee), Ok(sp as u64), "back chain");
        for n in [0, 7, 8, 63] {
            assert_eq!(load::<E, _>(&stack, callee + offset + 8 * n), Ok(0x900 + n as u64));
        }
        if A::HAS_LOCAL_ENTRY {
            assert_eq!((regs.nip, regs.gpr[12], regs.gpr[2]), (descriptor as u64, descriptor as u64, 0x102));
        } else {
            assert_eq!((regs.nip, regs.gpr[2], regs.gpr[11]), (0x5_0000, 0x6_0000, 0x7_0000));
        }
    }

    #[test]
    fn jmp_2_a_jprobe_gets_its_own_frame_with_the_parameters() {
        jprobe::<Big, ElfV1>(48);
        jprobe::<Big, ElfV2>(32);
        jprobe::<Little, ElfV2>(32);
    }

    #[test]
    fn a_jprobe_without_stack_changes_nothing() {
        let stack = Stack::new();
        for sp in [START + 16, START + 0x100, START + 0x1_0000] {
            let mut regs = at_entry(sp);
            let entered =
                Ppc64::<Big, ElfV2>::NEW.enter_jprobe(&mut regs, 0x5_0000, CodeAddr::new(4), &stack);
            assert!(entered.is_err(), "{sp:#x}");
            assert_eq!(regs, at_entry(sp));
        }
        // The first frame of a stack: less than a whole parameter save area lies above.
        let mut regs = at_entry(START + 0x3fc0);
        Ppc64::<Big, ElfV2>::NEW.enter_jprobe(&mut regs, 0x5_0000, CodeAddr::new(4), &stack).unwrap();
    }

    #[test]
    fn the_return_address_is_the_link_register() {
        let stack = Stack::new();
        let mut regs = at_entry(START + 0x100);
        type P = Ppc64<Little, ElfV2>;
        let entry = P::NEW.entry(&regs, &stack).unwrap();
        assert_eq!((entry.return_address, entry.frame), (CodeAddr::new(0x2_0000), START + 0x100));
        P::NEW.set_return_address(&mut regs, CodeAddr::new(0x9_0000), &stack).unwrap();
        assert_eq!(regs.link, 0x9_0000);
        P::NEW.set_return_value(&mut regs, 77);
        assert_eq!((regs.gpr[3], P::NEW.return_value(&regs)), (77, 77));
    }

    const STUB: CodeAddr = CodeAddr::new(0x4444_0004);

    /// main (0x3000) calls g (0x2000), which calls f (frame 0x2000, own frame 0x1000).
    fn nested() -> Stack {
        let stack = Stack::new();
        stack.set::<Big>(START + 0x1000, (START + 0x2000) as u64);
        stack.set::<Big>(START + 0x2000, (START + 0x3000) as u64);
        stack.set::<Big>(START + 0x3000, 0);
        stack
    }

    fn may(stack: &Stack, frame: usize, sp: usize) -> bool {
        Ppc64::<Big, ElfV1>::NEW.may_return(START + frame, STUB, START + sp, stack)
    }

    /// RET_7: a longjmp to g or to main leaves the call of f, wherever its return address still lies.
    #[test]
    fn ret_7_a_call_whose_caller_is_on_top_again_is_over() {
        let stack = nested();
        stack.set::<Big>(START + 0x2010, STUB.as_usize() as u64);
        assert!(may(&stack, 0x2000, 0x1000), "f runs");
        assert!(may(&stack, 0x2000, 0x800), "f's callees run");
        assert!(!may(&stack, 0x2000, 0x2000), "g runs");
        assert!(!may(&stack, 0x2000, 0x3000), "main runs");
        assert!(may(&stack, 0x2000, 0x3800), "another stack, perhaps");
    }

    #[test]
    fn ret_7_a_leaf_is_alive_while_its_callers_frame_is_on_the_chain() {
        let stack = nested();
        // A signal handler on a stack of its own, above: its chain leads to the leaf's frame.
        stack.set::<Big>(START + 0x3800, (START + 0x1000) as u64);
        assert!(may(&stack, 0x2000, 0x3800));
        assert!(may(&stack, 0x2000, 0x1000), "on its own frame");
        // A chain that passes it by.
        stack.set::<Big>(START + 0x1000, (START + 0x3000) as u64);
        assert!(!may(&stack, 0x2000, 0x1000));
        // What cannot be told is alive.
        assert!(may(&stack, 0x2000, 0x1_0000));
        assert!(may(&stack, 0x1_0000, 0x1000));
    }

    #[test]
    fn entries_follow_the_symbol_table_or_the_code() {
        const ADDIS_2_12: u32 = 0x3c4c_0123;
        const ADDI_2_2: u32 = 0x3842_8000;
        let offset = |words: &[u32], st| {
            let text = At::new::<Little>(0x1000, words);
            Ppc64::<Little, ElfV2>::entry_offset(&text, CodeAddr::new(0x1000), st)
        };
        assert_eq!(offset(&[ADDIS_2_12, ADDI_2_2], 0), 8);
        assert_eq!(offset(&[0x3c40_1002, ADDI_2_2], 0), 8, "lis");
        assert_eq!(offset(&[ADDIS_2_12, 0x7c08_02a6], 0), 0);
        assert_eq!(offset(&[0x7c08_02a6], 0), 0);
        assert_eq!(offset(&[0x7c08_02a6, 0], 16), 16);
        let text = At::new::<Big>(0x1000, &[ADDIS_2_12, ADDI_2_2]);
        assert_eq!(Ppc64::<Big, ElfV1>::entry_offset(&text, CodeAddr::new(0x1000), 0), 0);
    }

    #[test]
    fn st_other_says_how_far_the_local_entry_is() {
        let offsets = [0, 1, 2, 3, 4, 5, 6, 7].map(|code| local_entry_of_st_other(code << 5 | 3));
        assert_eq!(offsets, [0, 0, 4, 8, 16, 32, 64, 0]);
    }

    fn stubs<E: Endian>() {
        const LEN: usize = 0x1000 - 8;
        let mut out = [0; LEN];
        // Also where a machine word is narrower than ppc64's.
        let (trampoline, handler) =
            (CodeAddr::new(0x1234_5678_9abc_def0_u64 as usize), 0xfedc_ba98_7654_3210_u64 as usize);
        let count =
            Ppc64::<E, ElfV2>::NEW.fill_stubs(CodeAddr::new(0x10_0000), trampoline, handler, &mut out);
        assert_eq!(count, LEN / 4 - VENEER_WORDS);
        let word = |index: usize| E::word(*out[index * 4..].first_chunk().unwrap());
        for index in [0, 1, count / 2, count - 1] {
            assert_eq!(insn::opcd(word(index)), insn::OP_B);
            assert!(insn::lk(word(index)) && !insn::aa(word(index)));
            assert_eq!(index as i64 * 4 + insn::li(word(index)), count as i64 * 4, "leads to the veneer");
        }
        let address = |index: usize| E::doubleword(*out[(count + index) * 4..].first_chunk().unwrap());
        assert_eq!((address(13), address(15)), (trampoline.as_usize() as u64, handler as u64));
        assert_eq!((word(count), word(count + 12)), (0xf821_fe21, 0x4e80_0420), "stdu 1,-480(1); bctr");
    }

    #[test]
    fn stubs_lead_to_the_veneer_and_that_to_the_trampoline() {
        stubs::<Big>();
        stubs::<Little>();
        let mut small = [0; 16];
        assert_eq!(Ppc64::<Big, ElfV1>::NEW.fill_stubs(CodeAddr::new(0), CodeAddr::new(0), 0, &mut small), 0);
    }
}
