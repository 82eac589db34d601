//! What the backend promises the core, asked as the core asks: through the traits.

use probe_arch_aarch64::regs::{PSTATE_C, PSTATE_D, PSTATE_N, PSTATE_SS, PSTATE_Z};
use probe_arch_aarch64::{Aarch64, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, Calls, Jumps, MemFault, Memory, SingleStep, Site, Text};
use std::cell::RefCell;

const BASE: usize = 0x7000;
const PLACE: CodeAddr = CodeAddr::new(0x40_0000);

/// Memory from `BASE`, and text at `PLACE`.
struct Fake {
    bytes: RefCell<Vec<u8>>,
    text: Vec<u8>,
}

impl Fake {
    fn new(words: &[u32]) -> Self {
        let text = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Self { bytes: RefCell::new(vec![0; 0x1000]), text }
    }
}

// SAFETY: touches its own vector only.
unsafe impl Memory for Fake {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let bytes = self.bytes.borrow();
        let from = addr.checked_sub(BASE).and_then(|at| bytes.get(at..at + out.len()));
        out.copy_from_slice(from.ok_or(MemFault { addr, access: Access::Read })?);
        Ok(())
    }

    fn write(&self, addr: usize, from: &[u8]) -> Result<(), MemFault> {
        let mut bytes = self.bytes.borrow_mut();
        let to = addr.checked_sub(BASE).and_then(|at| bytes.get_mut(at..at + from.len()));
        to.ok_or(MemFault { addr, access: Access::Write })?.copy_from_slice(from);
        Ok(())
    }
}

impl Text for Fake {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let from = at.as_usize().checked_sub(PLACE.as_usize()).and_then(|offset| self.text.get(offset..));
        let from = from.unwrap_or(&[]);
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}

/// Entry, arguments, the return address and a jprobe (RET_1, RET_4, JMP_1, JMP_2).
#[test]
#[cfg(target_pointer_width = "64")]
fn calls_are_seen() {
    use probe_core::arch::Regs;

    let fake = Fake::new(&[]);
    let sp = BASE + 0x800;
    for number in 0..4 {
        fake.write(sp + 8 * number, &(200 + number).to_ne_bytes()).unwrap();
    }
    let mut regs = PtRegs { sp: sp as u64, pc: PLACE.as_usize() as u64, ..PtRegs::default() };
    (0..31).for_each(|number| regs.x[number] = 100 + number as u64);
    assert_eq!(Aarch64::breakpoint_address(&regs), PLACE);
    let entry = Aarch64.entry(&regs, &fake).unwrap();
    assert_eq!((entry.return_address, entry.frame), (CodeAddr::new(130), sp));
    assert_eq!(Aarch64.argument(&regs, 7, &fake), Some(107));
    assert_eq!(Aarch64.argument(&regs, 10, &fake), Some(202));

    let mut in_handler = regs;
    Aarch64.enter_jprobe(&mut in_handler, 0x50_0000, CodeAddr::new(0x60_0000), &fake).unwrap();
    assert_eq!((in_handler.pc(), in_handler.x[30]), (CodeAddr::new(0x50_0000), 0x60_0000));
    assert_eq!(Aarch64.argument(&in_handler, 11, &fake), Some(203));
    assert!(in_handler.sp() < sp && in_handler.sp().is_multiple_of(16));

    let mut chunk = vec![0; 4096];
    let stubs = Aarch64.fill_stubs(PLACE, CodeAddr::new(0x1000), 0x2000, &mut chunk);
    assert!(stubs * Aarch64::STUB_LEN <= chunk.len() && stubs > 500, "{stubs}");
    let stub = PLACE.wrapping_add(8);
    Aarch64.set_return_address(&mut regs, stub, &fake).unwrap();
    assert_eq!(Aarch64.entry(&regs, &fake).unwrap().return_address, stub);
    // The function saves it below the frame.
    fake.write(sp - 8, &stub.as_usize().to_ne_bytes()).unwrap();
    assert!(Aarch64.may_return(sp, stub, sp - 16, &fake));
    assert!(!Aarch64.may_return(sp, stub.wrapping_add(8), sp - 16, &fake));

    Aarch64.set_return_value(&mut regs, 7);
    assert_eq!((Aarch64.return_value(&regs), Aarch64.detour_regs(&regs)), (7, 7));
}

/// REG_17: the entry is behind the landing pad, and reaches behind the signing of the return address.
#[test]
fn reg_17_entries_reach_behind_what_prepares_them() {
    const BTI_C: u32 = 0xd503_245f;
    const PACIASP: u32 = 0xd503_233f;
    const NOP: u32 = 0xd503_201f;
    for (words, offset, end) in [
        (&[BTI_C, PACIASP, NOP][..], 4, 8),
        (&[PACIASP, NOP], 0, 4),
        (&[BTI_C, NOP], 4, 4),
        (&[NOP, PACIASP], 0, 0),
        (&[BTI_C], 4, 4),
        (&[], 0, 0),
    ] {
        let fake = Fake::new(words);
        let found = (Aarch64::entry_offset(&fake, PLACE, 0), Aarch64.entry_end(&fake, PLACE, 0));
        assert_eq!(found, (offset, end), "{words:x?}");
    }
}

/// HIT_6: only what its slot borrows a register for needs what is kept.
#[test]
fn hit_6_what_borrows_a_register_keeps_state() {
    for (word, keeps) in [(0xd73f_0822, true), (0xd65f_0bff, true), (0xd503_201f, false), (0x9c00_0043, true)]
    {
        let fake = Fake::new(&[word]);
        let decoded = Aarch64::decode(&Site { at: PLACE, function: None, text: &fake }).unwrap();
        assert_eq!(Aarch64::keeps_state(&decoded.plan), keeps, "{word:#x}");
    }
}

#[test]
fn a_single_step_changes_the_step_bits_and_gives_them_back() {
    for kept in [0, PSTATE_D, PSTATE_SS, PSTATE_D | PSTATE_SS] {
        let mut regs = PtRegs { pstate: PSTATE_C | kept, ..PtRegs::default() };
        let before = regs;
        let state = Aarch64::begin(&mut regs);
        assert_eq!(regs.pstate, PSTATE_C | PSTATE_SS);
        // The instruction has changed a flag.
        regs.pstate ^= PSTATE_C | PSTATE_Z;
        Aarch64::end(&mut regs, state);
        assert_eq!(regs, PtRegs { pstate: PSTATE_Z | kept, ..before });
    }
}

#[test]
fn what_a_trap_takes_over_has_its_own_flags_and_the_traps_mode() {
    let mut regs = PtRegs { pstate: PSTATE_D | 5, pc: 1, ..PtRegs::default() };
    let kept = PtRegs { pstate: PSTATE_N, pc: 0x1234, sp: 16, x: [3; 31] };
    Aarch64.resume_with(&mut regs, kept);
    assert_eq!(regs, PtRegs { pstate: PSTATE_N | PSTATE_D | 5, ..kept });
}
