//! The effect of a simulated instruction on the registers and on memory.
//!
//! Pure and allocation-free: on the hit path. An instruction whose condition does not hold only moves on, as
//! does its IT block. A fault changes nothing: memory is accessed once, before the registers that the
//! instruction writes, and what has moved on by then is given back.

use crate::decode::{Access, Addressing, Condition, Offset, Operand, Plan, Shift};
use crate::insn::{Set, signed};
use crate::regs::{CPSR_C, CPSR_NZCV, CPSR_T, LR, PC, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{self, MemFault, Memory};

/// Executes `plan` at `place`.
///
/// A slot's plan (which the core never passes) only moves the program counter on, by four bytes.
pub(crate) fn simulate<M: Memory>(
    plan: &Plan,
    place: CodeAddr,
    regs: &mut PtRegs,
    memory: &M,
) -> Result<(), MemFault> {
    let (own, len_bytes) = shape(plan);
    let set = Set::of(place);
    let at = place.as_usize() as u32 & !1;
    let kept = (regs.pc, regs.cpsr);
    let mut condition = own;
    if set == Set::T32 && regs.it_state() != 0 {
        condition = Condition(regs.it_state() >> 4);
        regs.advance_it();
    }
    regs.pc = at.wrapping_add(u32::from(len_bytes));
    regs.cpsr = regs.cpsr & !CPSR_T | if set == Set::T32 { CPSR_T } else { 0 };
    if holds(condition, regs.cpsr) {
        let done = Machine { set, at, regs, memory }.execute(plan);
        if done.is_err() {
            (regs.pc, regs.cpsr) = kept;
        }
        return done;
    }
    Ok(())
}

/// The instruction's own condition and its length.
fn shape(plan: &Plan) -> (Condition, u8) {
    match *plan {
        Plan::Nop { len_bytes } | Plan::Address { len_bytes, .. } => (Condition::ALWAYS, len_bytes),
        Plan::OutOfLine { .. } | Plan::SystemCall { .. } | Plan::Borrow | Plan::Table { .. } => {
            (Condition::ALWAYS, 4)
        }
        Plan::If { .. } | Plan::CompareBranch { .. } => (Condition::ALWAYS, 2),
        Plan::Status { condition, .. } => (condition, 4),
        Plan::Branch { condition, len_bytes, .. }
        | Plan::BranchRegister { condition, len_bytes, .. }
        | Plan::Data { condition, len_bytes, .. }
        | Plan::Transfer { condition, len_bytes, .. }
        | Plan::Multiple { condition, len_bytes, .. } => (condition, len_bytes),
    }
}

/// Whether a condition holds (A8.3.1).
pub(crate) const fn holds(condition: Condition, cpsr: u32) -> bool {
    let (n, z, c, v) = (cpsr >> 31 & 1 == 1, cpsr >> 30 & 1 == 1, cpsr >> 29 & 1 == 1, cpsr >> 28 & 1 == 1);
    let result = match condition.0 >> 1 {
        0 => z,
        1 => c,
        2 => n,
        3 => v,
        4 => c && !z,
        5 => n == v,
        6 => n == v && !z,
        _ => return true,
    };
    result == (condition.0 & 1 == 0)
}

/// The word that the program counter is in, as an instruction at `place` reads it.
pub(crate) fn base(place: CodeAddr) -> u32 {
    (place.as_usize() as u32 & !1).wrapping_add(Set::of(place).ahead()) & !3
}

/// MRS: CPSR without the state of execution (B9.3.8).
const READABLE: u32 = 0xf8ff_03df;

/// An instruction that is executed. It reads all that it reads before it writes a register.
struct Machine<'a, M> {
    set: Set,
    /// Its address in memory.
    at: u32,
    regs: &'a mut PtRegs,
    memory: &'a M,
}

impl<M: Memory> Machine<'_, M> {
    fn execute(&mut self, plan: &Plan) -> Result<(), MemFault> {
        match *plan {
            Plan::Nop { .. } | Plan::OutOfLine { .. } | Plan::SystemCall { .. } | Plan::Borrow => {}
            Plan::If { state } => self.regs.set_it_state(state),
            Plan::Branch { links, exchanges, offset, .. } => self.branch(links, exchanges, offset),
            Plan::BranchRegister { links, rm, .. } => {
                let target = self.read(rm);
                self.link(links);
                self.exchange(target);
            }
            Plan::CompareBranch { rn, on_nonzero, offset } => {
                if (self.read(rn) != 0) == on_nonzero {
                    self.regs.pc = self.pc().wrapping_add(u32::from(offset));
                }
            }
            Plan::Table { rn, rm, of_halfwords } => {
                let len = if of_halfwords { 2 } else { 1 };
                let entry = self.load(self.read(rn).wrapping_add(self.read(rm).wrapping_mul(len)), len)?;
                self.regs.pc = self.pc().wrapping_add(2 * entry);
            }
            Plan::Address { rd, offset, .. } => {
                self.regs.set_r(rd, self.aligned_pc().wrapping_add_signed(offset.into()));
            }
            Plan::Status { rd, .. } => self.regs.set_r(rd, self.regs.cpsr & READABLE),
            Plan::Data { operation, sets_flags, rd, rn, operand, .. } => {
                self.data(operation, sets_flags, rd, rn, operand);
            }
            Plan::Transfer { access, rt, rt2, rn, addressing, offset, .. } => {
                self.transfer(access, [rt, rt2], rn, addressing, offset)?;
            }
            Plan::Multiple { loads, rn, goes_up, is_before, writes_back, registers, .. } => {
                let len = 4 * registers.count_ones();
                let base = self.read(rn);
                let low = if goes_up { base } else { base.wrapping_sub(len) };
                // The base itself is left out: one word further up.
                let low = if is_before == goes_up { low.wrapping_add(4) } else { low };
                self.multiple(loads, registers, low)?;
                if writes_back {
                    let changed = if goes_up { base.wrapping_add(len) } else { base.wrapping_sub(len) };
                    self.regs.set_r(rn, changed);
                }
            }
        }
        Ok(())
    }

    /// The program counter, as the instruction reads it.
    fn pc(&self) -> u32 {
        self.at.wrapping_add(self.set.ahead())
    }

    /// The word that it is in.
    fn aligned_pc(&self) -> u32 {
        self.pc() & !3
    }

    fn read(&self, number: u8) -> u32 {
        if number == PC { self.pc() } else { self.regs.r(number) }
    }

    /// Puts the address behind the instruction into LR, with the set in bit 0.
    fn link(&mut self, links: bool) {
        if links {
            let t = u32::from(self.set == Set::T32);
            self.regs.set_r(LR, self.regs.pc | t);
        }
    }

    fn branch(&mut self, links: bool, exchanges: bool, offset: i32) {
        self.link(links);
        let from = match (self.set, exchanges) {
            (Set::T32, true) => self.aligned_pc(),
            _ => self.pc(),
        };
        self.regs.pc = from.wrapping_add_signed(offset);
        if exchanges {
            self.regs.cpsr ^= CPSR_T;
        }
    }

    /// BX (A2.3.1, BXWritePC): bit 0 is the set.
    fn exchange(&mut self, target: u32) {
        let is_t32 = target & 1 == 1;
        self.regs.cpsr = self.regs.cpsr & !CPSR_T | if is_t32 { CPSR_T } else { 0 };
        // Where bit 1 alone is set, the fetch faults, or what it does is unpredictable.
        self.regs.pc = target & !1;
    }

    /// What data processing writes to the program counter (A2.3.1, ALUWritePC): in T32 the set stays.
    fn write_result(&mut self, rd: u8, value: u32) {
        match (rd, self.set) {
            (PC, Set::A32) => self.exchange(value),
            (PC, Set::T32) => self.regs.pc = value & !1,
            _ => self.regs.set_r(rd, value),
        }
    }

    fn load(&self, at: u32, len: u32) -> Result<u32, MemFault> {
        let mut bytes = [0; 4];
        self.memory.read(at as usize, &mut bytes[..len as usize])?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn transfer(
        &mut self,
        access: Access,
        [rt, rt2]: [u8; 2],
        rn: u8,
        addressing: Addressing,
        offset: Offset,
    ) -> Result<(), MemFault> {
        let base = if rn == PC { self.aligned_pc() } else { self.regs.r(rn) };
        let moved = match offset {
            Offset::Immediate(distance) => base.wrapping_add_signed(distance.into()),
            Offset::Register { rm, shift, amount } => {
                let amount_bits = amount & !Offset::SUBTRACTED;
                let (value, _) = shifted(self.read(rm), shift, amount_bits, self.regs.cpsr & CPSR_C != 0);
                if amount & Offset::SUBTRACTED == 0 {
                    base.wrapping_add(value)
                } else {
                    base.wrapping_sub(value)
                }
            }
        };
        let at = if addressing == Addressing::After { base } else { moved };
        let value = self.read(rt);
        let pair = u64::from(value) | u64::from(self.read(rt2)) << 32;
        let address = at as usize;
        if matches!(access, Access::LoadPair | Access::StorePair) {
            aligned(at, if access == Access::LoadPair { arch::Access::Read } else { arch::Access::Write })?;
        }
        match access {
            Access::Store => self.memory.write(address, &value.to_le_bytes())?,
            Access::StoreByte => self.memory.write(address, &value.to_le_bytes()[..1])?,
            Access::StoreHalf => self.memory.write(address, &value.to_le_bytes()[..2])?,
            Access::StorePair => self.memory.write(address, &pair.to_le_bytes())?,
            Access::Load => {
                let value = self.load(at, 4)?;
                // BX's rule (A2.3.1, LoadWritePC).
                if rt == PC { self.exchange(value) } else { self.regs.set_r(rt, value) }
            }
            Access::LoadByte => self.regs.set_r(rt, self.load(at, 1)?),
            Access::LoadHalf => self.regs.set_r(rt, self.load(at, 2)?),
            Access::LoadSignedByte => self.regs.set_r(rt, signed(self.load(at, 1)?, 8).cast_unsigned()),
            Access::LoadSignedHalf => self.regs.set_r(rt, signed(self.load(at, 2)?, 16).cast_unsigned()),
            Access::LoadPair => {
                let mut bytes = [0; 8];
                self.memory.read(address, &mut bytes)?;
                let pair = u64::from_le_bytes(bytes);
                self.regs.set_r(rt, pair as u32);
                self.regs.set_r(rt2, (pair >> 32) as u32);
            }
        }
        if addressing != Addressing::Offset {
            self.regs.set_r(rn, moved);
        }
        Ok(())
    }

    /// Moves the registers of a mask from or to `low` on.
    fn multiple(&mut self, loads: bool, registers: u16, low: u32) -> Result<(), MemFault> {
        let access = if loads { arch::Access::Read } else { arch::Access::Write };
        aligned(low, access)?;
        let mut bytes = [0; 64];
        let used = &mut bytes[..4 * registers.count_ones() as usize];
        let numbers = (0..16).filter(|number| registers >> number & 1 == 1);
        if !loads {
            for (word, number) in used.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                *word = self.read(number).to_le_bytes();
            }
            return self.memory.write(low as usize, used);
        }
        self.memory.read(low as usize, used)?;
        for (word, number) in used.as_chunks::<4>().0.iter().zip(numbers) {
            let value = u32::from_le_bytes(*word);
            if number == PC { self.exchange(value) } else { self.regs.set_r(number, value) }
        }
        Ok(())
    }

    /// A5.2.1, with the numbers of A32's operations.
    fn data(&mut self, operation: u8, sets_flags: bool, rd: u8, rn: u8, operand: Operand) {
        let carry = self.regs.cpsr & CPSR_C != 0;
        let (second, shifted_carry) = match operand {
            Operand::Immediate { value, rotation: 0 } => (u32::from(value), carry),
            Operand::Immediate { value, rotation } => {
                let value = u32::from(value).rotate_right(rotation.into());
                (value, value >> 31 == 1)
            }
            Operand::Register { rm, shift, amount } => shifted(self.read(rm), shift, amount, carry),
        };
        let first = self.read(rn);
        let add = |x: u32, y: u32, carry: bool| {
            let unsigned = u64::from(x) + u64::from(y) + u64::from(carry);
            let signed = i64::from(x.cast_signed()) + i64::from(y.cast_signed()) + i64::from(carry);
            let result = unsigned as u32;
            (result, unsigned != u64::from(result), signed != i64::from(result.cast_signed()))
        };
        let overflow = self.regs.cpsr >> 28 & 1 == 1;
        let logical = |result: u32| (result, shifted_carry, overflow);
        let (result, c, v) = match operation & 0xf {
            0b0000 | 0b1000 => logical(first & second),
            0b0001 | 0b1001 => logical(first ^ second),
            0b0010 | 0b1010 => add(first, !second, true),
            0b0011 => add(!first, second, true),
            0b0100 | 0b1011 => add(first, second, false),
            0b0101 => add(first, second, carry),
            0b0110 => add(first, !second, carry),
            0b0111 => add(!first, second, carry),
            0b1100 => logical(first | second),
            0b1101 => logical(second),
            0b1110 => logical(first & !second),
            _ => logical(!second),
        };
        if sets_flags {
            let flags =
                (result >> 31) << 31 | u32::from(result == 0) << 30 | u32::from(c) << 29 | u32::from(v) << 28;
            self.regs.cpsr = self.regs.cpsr & !CPSR_NZCV | flags;
        }
        if !matches!(operation, 0b1000..=0b1011) {
            self.write_result(rd, result);
        }
    }
}

/// Several words are moved at the address of a word only (A3.2.1).
fn aligned(at: u32, access: arch::Access) -> Result<(), MemFault> {
    if at & 3 == 0 { Ok(()) } else { Err(MemFault { addr: at as usize, access }) }
}

/// A value, shifted, and the carry flag behind it (A8.4.3, Shift_C).
fn shifted(value: u32, shift: Shift, amount: u8, carry: bool) -> (u32, bool) {
    let amount = u32::from(amount);
    if amount == 0 {
        return (value, carry);
    }
    let bit = |number: u32| value.checked_shr(number).unwrap_or(0) & 1 == 1;
    match shift {
        Shift::Left => (value.checked_shl(amount).unwrap_or(0), bit(32u32.wrapping_sub(amount))),
        Shift::Right => (value.checked_shr(amount).unwrap_or(0), bit(amount - 1)),
        Shift::Arithmetic => {
            let signed = value.cast_signed();
            (
                signed.checked_shr(amount).unwrap_or(signed >> 31).cast_unsigned(),
                signed >> (amount - 1).min(31) & 1 == 1,
            )
        }
        Shift::Rotate => {
            let result = value.rotate_right(amount);
            (result, result >> 31 == 1)
        }
        Shift::Extend => (value >> 1 | u32::from(carry) << 31, value & 1 == 1),
    }
}

#[cfg(test)]
mod tests;
