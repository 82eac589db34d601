//! Walking the stack of an interrupted thread, in a hit.
//!
//! A walk begins at any instruction, needs no frame pointers, takes no lock, allocates nothing, and reads
//! nothing but by [`Memory`], which does not fault. What it goes by is the unwind information that all
//! compilers write for exceptions (`.eh_frame`, found by the `.eh_frame_hdr` of each object); [`gimli`]
//! parses it. What a place's description comes to is kept in a table of fixed size, so that a frame that has
//! been seen before costs a look there and a read for each register that it has saved.
//!
//! Where nothing describes a place (code made at run time, Go), frame pointers are followed.
//!
//! Return stubs are passed by asking for the real return address. Frames of signal handlers are described as
//! such by C libraries and the vDSO, or known by their instructions ([`Machine`]).
//!
//! Format: Linux Standard Base core 5.0, 10.6 (`.eh_frame`); DWARF 5, 2.5 and 6.4.

mod bytes;
mod expression;
mod header;
#[cfg(target_has_atomic = "64")]
mod known;
#[cfg(not(target_has_atomic = "64"))]
#[path = "unknown.rs"]
mod known;
mod machine;
mod objects;
mod row;
mod rules;

pub use header::header;
pub(crate) use machine::{Chain, Signal};
pub use machine::{Machine, Registers};
pub use objects::{MOST_OBJECTS, Object};

use core::sync::atomic::{AtomicU32, Ordering};
use known::Known;
use objects::Objects;
use probe_core::arch::Memory;
use row::{Cfa, Rule};
use rules::Rules;

/// The bit of a frame whose address is the next instruction of its function, and not where a call returns to:
/// of the innermost frame, and of one that a signal has interrupted.
pub const EXACT: u64 = 1 << 63;

/// Why a walk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With the outermost function.
    Outermost,
    /// There was no room for more.
    Full,
    /// Nothing says how the last frame is left, or what says so cannot be.
    Lost,
}

/// What a walk has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// How many frames there are.
    pub len: usize,
    /// Why there are not more.
    pub end: End,
}

/// What walks need to know of a process. Zero bytes, mostly: meant for a `static`.
#[derive(Debug)]
pub struct Walker {
    machine: &'static Machine,
    objects: Objects,
    /// Rises when an object goes: what is known of its code is not so any more.
    generation: AtomicU32,
    known: Known,
}

/// A frame.
#[derive(Clone, Copy)]
struct Frame {
    registers: Registers,
    is_exact: bool,
}

impl Frame {
    /// An address in the instruction that this frame is at.
    fn place(&self) -> usize {
        if self.is_exact { self.registers.pc } else { self.registers.pc.wrapping_sub(1) }
    }
}

impl Walker {
    /// Knows of no object yet.
    #[must_use]
    pub const fn new(machine: &'static Machine) -> Self {
        Self { machine, objects: Objects::new(), generation: AtomicU32::new(0), known: Known::new() }
    }

    /// The machine that it is for.
    #[must_use]
    pub const fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// Says which objects are loaded now. Objects beyond [`MOST_OBJECTS`] have no description. Not in a hit;
    /// where two threads do so at once, one's objects may be missing.
    pub fn set_objects(&self, all: &[Object]) {
        if self.objects.set(all) {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Walks from the frame with these registers, whose program counter is exact or not, and writes the
    /// frames' addresses, innermost first. `home` answers where a return really leads to.
    pub fn walk<M: Memory>(
        &self,
        registers: &Registers,
        is_exact: bool,
        memory: &M,
        home: impl Fn(usize) -> usize,
        out: &mut [u64],
    ) -> Walked {
        let mut frame = Frame { registers: *registers, is_exact };
        let mut len = 0;
        loop {
            let Some(at) = out.get_mut(len) else { return Walked { len, end: End::Full } };
            *at = frame.registers.pc as u64 | if frame.is_exact { EXACT } else { 0 };
            len += 1;
            if let Err(end) = self.step(&mut frame, memory, &home) {
                return Walked { len, end };
            }
        }
    }

    /// From a frame to its caller's.
    #[inline]
    fn step<M: Memory>(
        &self,
        frame: &mut Frame,
        memory: &M,
        home: &impl Fn(usize) -> usize,
    ) -> Result<(), End> {
        let place = frame.place();
        let stack = frame.registers.get(self.machine, self.machine.stack_pointer, memory);
        let before = (stack.unwrap_or(0), frame.registers.pc);
        let generation = self.generation.load(Ordering::Acquire);
        let is_signal = match self.known.get(place, generation) {
            Some(rules) => self.leave(frame, &rules, memory)?,
            None => self.find_out(frame, place, generation, memory)?,
        };
        let registers = &mut frame.registers;
        registers.pc &= self.machine.address_mask;
        if registers.pc == 0 {
            return Err(End::Outermost);
        }
        let stack = registers.get(self.machine, self.machine.stack_pointer, memory).unwrap_or(0);
        // The stack grows down. A signal's frame may lie on another one.
        if (stack, registers.pc) == before || stack < before.0 && !is_signal {
            return Err(End::Lost);
        }
        registers.pc = home(registers.pc);
        frame.is_exact = is_signal;
        Ok(())
    }

    /// The caller's registers by rules. Whether they are those of what a signal has interrupted.
    #[inline]
    fn leave<M: Memory>(&self, frame: &mut Frame, rules: &Rules, memory: &M) -> Result<bool, End> {
        let (machine, registers) = (self.machine, &mut frame.registers);
        let base = registers.get(machine, rules.register, memory).ok_or(End::Lost)?;
        let mut cfa = base.wrapping_add_signed(rules.offset as isize);
        if rules.is_indirect {
            cfa = memory.read_usize(cfa).map_err(|_| End::Lost)?;
        }
        let mut has_return_address = false;
        for (register, words) in machine.saved.iter().zip(&rules.saved) {
            if *words != 0 {
                let offset = isize::from(*words).wrapping_mul(size_of::<usize>() as isize);
                registers.set_stored(machine, *register, cfa.wrapping_add_signed(offset));
                has_return_address |= *register == machine.return_address;
            }
        }
        registers.set(machine, machine.stack_pointer, cfa);
        // A function that has called another one has lost a return address that it has not saved.
        if rules.is_outermost || !has_return_address && !frame.is_exact {
            return Err(End::Outermost);
        }
        registers.pc = registers.get(machine, machine.return_address, memory).ok_or(End::Lost)?;
        registers.set(machine, machine.return_address, registers.pc);
        Ok(rules.is_signal)
    }

    /// The same where no rules are known yet.
    #[cold]
    fn find_out<M: Memory>(
        &self,
        frame: &mut Frame,
        place: usize,
        generation: u32,
        memory: &M,
    ) -> Result<bool, End> {
        let object = self.objects.find(place);
        let Some(found) = object.and_then(|object| row::find(self.machine, &object, memory, place)) else {
            return self.undescribed(frame, memory);
        };
        if let Some(rules) = compact(self.machine, &found) {
            self.known.set(place, generation, &rules);
            return self.leave(frame, &rules, memory);
        }
        frame.registers = self.evaluate(frame, &found, memory).ok_or(End::Lost)?;
        Ok(found.is_signal)
    }

    /// The caller's registers by a description of any kind.
    fn evaluate<M: Memory>(&self, frame: &Frame, found: &row::Found<'_, M>, memory: &M) -> Option<Registers> {
        let (machine, old) = (self.machine, &frame.registers);
        let cfa = match found.row.cfa {
            Cfa::Unsaid => return None,
            Cfa::At(register, offset) => {
                old.get(machine, register, memory)?.wrapping_add_signed(isize::try_from(offset).ok()?)
            }
            Cfa::Computed(place) => found.evaluate(place, machine, old, memory, None)?,
        };
        let at = |offset: i32| cfa.wrapping_add_signed(offset as isize);
        let mut registers = *old;
        registers.set(machine, machine.stack_pointer, cfa);
        let mut said = Rule::Unsaid;
        for (index, rule) in found.row.rules.iter().enumerate() {
            let register = machine.register(index);
            if register == found.return_address {
                said = *rule;
            }
            let value = match *rule {
                Rule::Unsaid | Rule::Same | Rule::Undefined => continue,
                Rule::At(offset) => memory.read_usize(at(offset)).ok()?,
                Rule::Value(offset) => at(offset),
                Rule::Register(other) => old.get(machine, other, memory)?,
                Rule::StoredAt(place) => {
                    memory.read_usize(found.evaluate(place, machine, old, memory, Some(cfa))?).ok()?
                }
                Rule::Computed(place) => found.evaluate(place, machine, old, memory, Some(cfa))?,
            };
            registers.set(machine, register, value);
        }
        let is_outermost = match said {
            Rule::Undefined => true,
            Rule::Unsaid | Rule::Same => !frame.is_exact && found.return_address == machine.return_address,
            _ => false,
        };
        registers.pc = if is_outermost { 0 } else { registers.get(machine, found.return_address, memory)? };
        Some(registers)
    }

    /// A frame that nothing describes: a signal's, if its instructions say so; else one with a frame pointer,
    /// if it can be.
    fn undescribed<M: Memory>(&self, frame: &mut Frame, memory: &M) -> Result<bool, End> {
        let (machine, registers) = (self.machine, &mut frame.registers);
        if let Some(interrupted) = machine.interrupted(registers, memory) {
            *registers = interrupted;
            return Ok(true);
        }
        let Some(chain) = machine.chain else { return Err(End::Lost) };
        let stack = registers.get(machine, machine.stack_pointer, memory).unwrap_or(usize::MAX);
        let pointer = registers.get(machine, chain.pointer, memory).unwrap_or(0);
        if pointer == 0 {
            return Err(End::Outermost);
        }
        let is_code = memory.read(registers.pc, &mut [0]).is_ok();
        if !is_code || pointer < stack || !pointer.is_multiple_of(size_of::<usize>()) {
            return Err(End::Lost);
        }
        let word = |words: usize| memory.read_usize(pointer.wrapping_add(words * size_of::<usize>()));
        let (Ok(next), Ok(return_address)) = (word(0), word(1)) else { return Err(End::Lost) };
        registers.set(machine, chain.pointer, next);
        registers.set(machine, machine.stack_pointer, pointer.wrapping_add(2 * size_of::<usize>()));
        registers.set(machine, machine.return_address, return_address);
        registers.pc = return_address;
        Ok(false)
    }
}

/// Rules that can be kept, if the description is of the common kind.
fn compact<M: Memory>(machine: &Machine, found: &row::Found<'_, M>) -> Option<Rules> {
    let (register, offset, is_indirect) = match found.row.cfa {
        Cfa::Unsaid => return None,
        Cfa::At(register, offset) => (register, offset, false),
        Cfa::Computed(place) => {
            let (register, offset) = found.load_from(place)?;
            (register, offset, true)
        }
    };
    if found.return_address != machine.return_address {
        return None;
    }
    let offset = i32::try_from(offset).ok()?;
    let mut rules = Rules { register, offset, is_indirect, is_signal: found.is_signal, ..Rules::default() };
    for (index, rule) in found.row.rules.iter().enumerate() {
        let number = machine.register(index);
        match *rule {
            Rule::Unsaid | Rule::Same => {}
            Rule::Undefined if number == machine.return_address => rules.is_outermost = true,
            Rule::At(offset) => {
                let slot = machine.saved.iter().position(|saved| *saved == number)?;
                let word = size_of::<usize>() as i32;
                let words = (offset % word == 0).then_some(offset / word).filter(|words| *words != 0)?;
                *rules.saved.get_mut(slot)? = i16::try_from(words).ok()?;
            }
            _ => return None,
        }
    }
    Some(rules)
}
