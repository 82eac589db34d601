//! What the backend promises the core, asked as the core asks: through the traits.

use probe_arch_ppc64::regs::{MSR_SE, MSR_SF};
use probe_arch_ppc64::{Big, ElfV1, ElfV2, Little, Ppc64, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Calls, Jumps, Method, SingleStep, Site, Text};

type V1 = Ppc64<Big, ElfV1>;
type V2 = Ppc64<Little, ElfV2>;

/// One word at address 0x1000.
struct Word([u8; 4]);

impl Text for Word {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let from = at.as_usize().checked_sub(0x1000).and_then(|offset| self.0.get(offset..)).unwrap_or(&[]);
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}

/// HIT_6: what its slot borrows a register for, or may not show, needs what is kept.
#[test]
fn hit_6_what_is_stepped_with_a_borrowed_register_keeps_state() {
    // bctar, mfmsr r3, scv 0.
    for (word, keeps) in [(0x4e80_0460_u32, true), (0x7c60_00a6, true), (0x4400_0001, false)] {
        let text = Word(word.to_be_bytes());
        let decoded = V1::decode(&Site { at: CodeAddr::new(0x1000), function: None, text: &text }).unwrap();
        assert_eq!((decoded.method, V1::keeps_state(&decoded.plan)), (Method::Step, keeps), "{word:#x}");
    }
}

#[test]
fn a_trap_is_at_its_place_and_a_detours_registers_where_the_trampoline_puts_them() {
    let mut regs = PtRegs { nip: 0x1000, ..PtRegs::default() };
    regs.gpr[3] = 0x7000;
    assert_eq!((V1::breakpoint_address(&regs), V1::NEW.detour_regs(&regs)), (CodeAddr::new(0x1000), 0x7000));
    assert_eq!((V2::breakpoint_address(&regs), V2::NEW.return_value(&regs)), (CodeAddr::new(0x1000), 0x7000));
}

#[test]
fn a_single_step_changes_the_trace_bit_and_gives_it_back() {
    for kept in [0, MSR_SE] {
        let mut regs = PtRegs { msr: MSR_SF | kept, ..PtRegs::default() };
        let before = regs;
        let state = V2::begin(&mut regs);
        assert_eq!(regs.msr, MSR_SF | MSR_SE);
        V2::end(&mut regs, state);
        assert_eq!(regs, before);
    }
}

#[test]
fn what_a_trap_takes_over_keeps_the_traps_mode() {
    let mut regs = PtRegs { msr: MSR_SF | 0x8000, nip: 1, ..PtRegs::default() };
    let kept = PtRegs { msr: MSR_SF, nip: 0x1234, gpr: [3; 32], ccr: 5, ..PtRegs::default() };
    V1::NEW.resume_with(&mut regs, kept);
    assert_eq!(regs, PtRegs { msr: MSR_SF | 0x8000, ..kept });
}
