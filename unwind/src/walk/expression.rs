//! Expressions in unwind information: a machine with a small stack, and an end.

use super::bytes::Bytes;
use super::machine::{Machine, Registers};
use gimli::{Encoding, Format, Operation, Reader};
use probe_core::arch::Memory;

/// How many operations are run at the most: those of signal frames, PLTs and return stubs have 10 to 60.
const MOST_STEPS: usize = 256;
/// How deep the stack may become.
const DEEPEST: usize = 16;

/// What expressions are encoded for.
pub(super) const ENCODING: Encoding =
    Encoding { format: Format::Dwarf32, version: 5, address_size: size_of::<usize>() as u8 };

#[derive(Default)]
struct Stack {
    words: [usize; DEEPEST],
    len: usize,
}

impl Stack {
    fn push(&mut self, word: usize) -> Option<()> {
        *self.words.get_mut(self.len)? = word;
        self.len += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<usize> {
        self.len = self.len.checked_sub(1)?;
        self.words.get(self.len).copied()
    }

    fn pick(&self, index: usize) -> Option<usize> {
        self.words.get(self.len.checked_sub(index + 1)?).copied()
    }
}

/// The value of an expression; `None` where it has none, or goes too far.
pub(super) fn evaluate<M: Memory>(
    expression: Bytes<'_, M>,
    machine: &Machine,
    registers: &Registers,
    memory: &M,
    first: Option<usize>,
) -> Option<usize> {
    let mut stack = Stack::default();
    if let Some(first) = first {
        stack.push(first)?;
    }
    let mut rest = expression;
    for _ in 0..MOST_STEPS {
        if rest.is_empty() {
            return stack.pop();
        }
        match Operation::parse(&mut rest, ENCODING).ok()? {
            Operation::Nop => {}
            Operation::UnsignedConstant { value } | Operation::Address { address: value } => {
                stack.push(value as usize)?;
            }
            Operation::SignedConstant { value } => stack.push(value as usize)?,
            Operation::RegisterOffset { register, offset, .. } => {
                stack.push(registers.get(machine, register.0, memory)?.wrapping_add(offset as usize))?;
            }
            Operation::CallFrameCFA => stack.push(first?)?,
            Operation::Deref { size, space: false, .. } => {
                let at = stack.pop()?;
                stack.push(load(memory, at, size)?)?;
            }
            Operation::Drop => drop(stack.pop()?),
            Operation::Pick { index } => stack.push(stack.pick(index.into())?)?,
            Operation::Swap => {
                let (b, a) = (stack.pop()?, stack.pop()?);
                [b, a].into_iter().try_for_each(|word| stack.push(word))?;
            }
            Operation::Rot => {
                let (c, b, a) = (stack.pop()?, stack.pop()?, stack.pop()?);
                [c, a, b].into_iter().try_for_each(|word| stack.push(word))?;
            }
            Operation::Skip { target } => rest = jump(expression, rest, target)?,
            Operation::Bra { target } => {
                if stack.pop()? != 0 {
                    rest = jump(expression, rest, target)?;
                }
            }
            operation => {
                let top = stack.pop()?;
                if let Some(changed) = changed(&operation, top) {
                    stack.push(changed)?;
                    continue;
                }
                let below = stack.pop()?;
                stack.push(combined(&operation, below, top)?)?;
            }
        }
    }
    None
}

/// What an operation makes of the word on the top alone, if it is of that kind.
fn changed<M: Memory>(operation: &Operation<Bytes<'_, M>>, word: usize) -> Option<usize> {
    Some(match operation {
        Operation::PlusConstant { value } => word.wrapping_add(*value as usize),
        Operation::Abs => word.cast_signed().wrapping_abs().cast_unsigned(),
        Operation::Neg => word.wrapping_neg(),
        Operation::Not => !word,
        _ => return None,
    })
}

/// What one makes of the two words on the top.
fn combined<M: Memory>(operation: &Operation<Bytes<'_, M>>, a: usize, b: usize) -> Option<usize> {
    let (x, y) = (a.cast_signed(), b.cast_signed());
    let is_shift = b < usize::BITS as usize;
    let shift = b as u32;
    Some(match operation {
        Operation::And => a & b,
        Operation::Or => a | b,
        Operation::Xor => a ^ b,
        Operation::Plus => a.wrapping_add(b),
        Operation::Minus => a.wrapping_sub(b),
        Operation::Mul => a.wrapping_mul(b),
        Operation::Div => x.checked_div(y)?.cast_unsigned(),
        Operation::Mod => a.checked_rem(b)?,
        Operation::Shl => {
            if is_shift {
                a.wrapping_shl(shift)
            } else {
                0
            }
        }
        Operation::Shr => {
            if is_shift {
                a.wrapping_shr(shift)
            } else {
                0
            }
        }
        Operation::Shra => x.wrapping_shr(shift.min(usize::BITS - 1)).cast_unsigned(),
        Operation::Eq => (x == y).into(),
        Operation::Ne => (x != y).into(),
        Operation::Ge => (x >= y).into(),
        Operation::Gt => (x > y).into(),
        Operation::Le => (x <= y).into(),
        Operation::Lt => (x < y).into(),
        _ => return None,
    })
}

/// The operations from a branch's target on.
fn jump<'m, M: Memory>(expression: Bytes<'m, M>, rest: Bytes<'m, M>, distance: i16) -> Option<Bytes<'m, M>> {
    let to = rest.offset_from(&expression).checked_add_signed(distance.into())?;
    let mut target = expression;
    target.skip(to).ok()?;
    Some(target)
}

/// A number of so many bytes.
fn load<M: Memory>(memory: &M, at: usize, size: u8) -> Option<usize> {
    let size = usize::from(size);
    let mut bytes = [0; size_of::<usize>()];
    let unused = bytes.len().checked_sub(size)?;
    let window = if cfg!(target_endian = "little") { bytes.get_mut(..size) } else { bytes.get_mut(unused..) };
    memory.read(at, window?).ok()?;
    Some(usize::from_ne_bytes(bytes))
}
