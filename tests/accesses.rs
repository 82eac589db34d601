//! Which registers the simulation of an instruction reads and writes, found out by changing one register at a
//! time.
//!
//! Included by the oracles of the backends, which compare it with what another decoder says.

use probe_core::arch::{MemFault, Memory};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// From how many states an instruction is simulated. Enough that every condition holds in some and fails in
/// others.
const STATES: u64 = 24;

/// What an instruction reads and writes: registers by number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Accesses {
    /// Whose value makes a difference to anything else, or to what is written there.
    pub(crate) reads: BTreeSet<u8>,
    /// Whose value changes.
    pub(crate) writes: BTreeSet<u8>,
}

/// An instruction that can be simulated.
pub(crate) trait Simulated {
    /// The saved registers.
    type Regs: Copy;
    /// How many registers are looked at: 0 to one less than this.
    const REGISTERS: u8;

    /// The value of a register.
    fn read(regs: &Self::Regs, register: u8) -> u64;
    /// Gives a register a value that `seed` determines.
    fn write(regs: &mut Self::Regs, register: u8, seed: u64);
    /// The registers before, and what the simulation makes of them: registers and program counter.
    fn start(&self) -> Self::Regs;
    /// Simulates, with this memory.
    fn simulate(&self, regs: &mut Self::Regs, memory: &Everywhere) -> u64;
}

/// Memory that holds something else everywhere, and remembers what is written.
#[derive(Default)]
pub(crate) struct Everywhere(RefCell<BTreeMap<usize, Vec<u8>>>);

// SAFETY: touches its own map only, and never faults.
unsafe impl Memory for Everywhere {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        // Positive and of 31 bits: an address that code can be at.
        let image = (mixed(addr as u64) & 0x7fff_ffff).to_le_bytes();
        out.copy_from_slice(&image[..out.len()]);
        Ok(())
    }

    fn write(&self, addr: usize, from: &[u8]) -> Result<(), MemFault> {
        self.0.borrow_mut().insert(addr, from.to_vec());
        Ok(())
    }
}

/// A number that `seed` determines (splitmix64, without its top bits: what may be an address).
pub(crate) fn mixed(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 8
}

/// As [`mixed`], but in some states 0 or 1: what branches ask for.
pub(crate) fn mixed_or_edge(seed: u64) -> u64 {
    match seed >> 8 & 7 {
        1 | 3 => 0,
        5 => 1,
        _ => mixed(seed),
    }
}

/// What a simulation leaves.
struct After<R> {
    regs: R,
    pc: u64,
    written: BTreeMap<usize, Vec<u8>>,
}

fn run<S: Simulated>(insn: &S, mut regs: S::Regs) -> After<S::Regs> {
    let memory = Everywhere::default();
    let pc = insn.simulate(&mut regs, &memory);
    After { regs, pc, written: memory.0.into_inner() }
}

/// What the simulation of `insn` reads and writes.
pub(crate) fn accesses<S: Simulated>(insn: &S) -> Accesses {
    let (mut reads, mut writes) = (BTreeSet::new(), BTreeSet::new());
    for state in 0..STATES {
        let seed = |register| state << 8 | u64::from(register);
        let mut start = insn.start();
        (0..S::REGISTERS).for_each(|register| S::write(&mut start, register, seed(register)));
        let first = run(insn, start);
        for register in 0..S::REGISTERS {
            let mut changed = start;
            S::write(&mut changed, register, !seed(register));
            let second = run(insn, changed);
            let is_same = |other| S::read(&first.regs, other) == S::read(&second.regs, other);
            let is_written = S::read(&start, register) != S::read(&first.regs, register)
                || S::read(&changed, register) != S::read(&second.regs, register);
            let differs_elsewhere = first.pc != second.pc
                || first.written != second.written
                || (0..S::REGISTERS).any(|other| other != register && !is_same(other));
            if is_written {
                writes.insert(register);
            }
            if differs_elsewhere || is_written && !is_same(register) {
                reads.insert(register);
            }
        }
    }
    Accesses { reads, writes }
}
