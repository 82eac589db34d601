//! The values of events: numbers without a width, texts with their length.
//!
//! Two ways: *whole*, where everything could be read, and *in parts*, where something could not.

use super::bytes::{From, folded, put, unfolded};
use crate::def::{Argument, MAX_STACK, Scalar, Type};
use crate::wire::{EXACT, FAULT, TRUNCATED, Value, Values};

/// The longest text that the word before a value has room for.
const MOST_TEXT: usize = (1 << 24) - 1;

/// The bytes of an element of this type in a value of `len` bytes. Addresses have the width of the machine
/// that they come from.
fn width(ty: Type, len: usize) -> usize {
    match ty.scalar {
        Scalar::Symbol | Scalar::SymbolText => len / ty.count.unwrap_or(1),
        scalar => scalar.bytes(),
    }
}

/// A number in the machine's order.
fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    if cfg!(target_endian = "little") {
        word[..len].copy_from_slice(&bytes[..len]);
    } else {
        word[8 - len..].copy_from_slice(&bytes[..len]);
    }
    u64::from_ne_bytes(word)
}

/// Appends the elements of a value of numbers.
#[inline]
fn put_numbers(out: &mut Vec<u8>, ty: Type, bytes: &[u8]) -> Option<()> {
    let count = ty.count.unwrap_or(1);
    let width = width(ty, bytes.len());
    if !(1..=8).contains(&width) || bytes.len() != width * count {
        return None;
    }
    for element in bytes.chunks_exact(width) {
        let word = number(element);
        put(
            out,
            match ty.scalar {
                Scalar::Signed(width) => {
                    let unused = 64 - 8 * width.bytes();
                    folded((word << unused).cast_signed() >> unused)
                }
                _ => word,
            },
        );
    }
    Some(())
}

#[inline]
fn put_text(out: &mut Vec<u8>, bytes: &[u8], truncated: bool) {
    put(out, (bytes.len() as u64) << 1 | u64::from(truncated));
    out.extend_from_slice(bytes);
}

/// Appends all values, the stack among them by its number; `None` where something could not be read, with
/// half of them appended.
#[inline]
pub(super) fn put_whole(
    out: &mut Vec<u8>,
    args: &[Argument],
    mut values: Values<'_>,
    stack: Option<u32>,
) -> Option<()> {
    for arg in args {
        if arg.ty.scalar == Scalar::Stack {
            values.next()?;
            put(out, stack?.into());
        } else if arg.ty.scalar == Scalar::String {
            for _ in 0..arg.ty.count.unwrap_or(1) {
                let Value { bytes, truncated } = values.next()?;
                put_text(out, bytes?, truncated);
            }
        } else {
            put_numbers(out, arg.ty, values.next()?.bytes?)?;
        }
    }
    Some(())
}

/// Appends all values, each behind a number that is 0 where it could not be read.
pub(super) fn put_parts(out: &mut Vec<u8>, args: &[Argument], mut values: Values<'_>, stack: Option<u32>) {
    for arg in args {
        if arg.ty.scalar == Scalar::Stack {
            let _ = values.next();
            put(out, stack.is_some().into());
            if let Some(stack) = stack {
                put(out, stack.into());
            }
            continue;
        }
        if arg.ty.scalar == Scalar::String {
            for _ in 0..arg.ty.count.unwrap_or(1) {
                match values.next().and_then(|value| Some((value.bytes?, value.truncated))) {
                    None => put(out, 0),
                    Some((bytes, truncated)) => {
                        put(out, 1);
                        put_text(out, bytes, truncated);
                    }
                }
            }
            continue;
        }
        let before = out.len();
        put(out, 1);
        if values.next().and_then(|value| put_numbers(out, arg.ty, value.bytes?)).is_none() {
            out.truncate(before);
            put(out, 0);
        }
    }
}

/// Reads all values and appends them as they stand in a ring of this machine. Addresses have 64 bits there.
#[inline]
pub(super) fn read(
    from: &mut From<'_>,
    args: &[Argument],
    in_parts: bool,
    stacks: &[Vec<u8>],
    out: &mut Vec<u8>,
) -> Option<()> {
    for arg in args {
        if arg.ty.scalar == Scalar::Stack {
            if in_parts && from.number()? == 0 {
                out.extend_from_slice(&FAULT.to_ne_bytes());
            } else {
                let stack = stacks.get(usize::try_from(from.number()?).ok()?)?;
                out.extend_from_slice(&(stack.len() as u32).to_ne_bytes());
                out.extend_from_slice(stack);
            }
            continue;
        }
        let count = arg.ty.count.unwrap_or(1);
        if arg.ty.scalar == Scalar::String {
            for _ in 0..count {
                if !in_parts || from.number()? != 0 {
                    read_text(from, out)?;
                } else {
                    out.extend_from_slice(&FAULT.to_ne_bytes());
                }
            }
        } else if !in_parts || from.number()? != 0 {
            let width = width(arg.ty, 8 * count);
            out.extend_from_slice(&((width * count) as u32).to_ne_bytes());
            for _ in 0..count {
                let number = from.number()?;
                let number = match arg.ty.scalar {
                    Scalar::Signed(_) => unfolded(number).cast_unsigned(),
                    _ => number,
                };
                if cfg!(target_endian = "little") {
                    out.extend_from_slice(&number.to_le_bytes()[..width]);
                } else {
                    out.extend_from_slice(&number.to_be_bytes()[8 - width..]);
                }
            }
        } else {
            out.extend_from_slice(&FAULT.to_ne_bytes());
        }
    }
    Some(())
}

fn read_text(from: &mut From<'_>, out: &mut Vec<u8>) -> Option<()> {
    let head = from.number()?;
    let len = usize::try_from(head >> 1).ok()?;
    let bytes = from.take(len).filter(|bytes| bytes.len() <= MOST_TEXT)?;
    let word = len as u32 | if head & 1 != 0 { TRUNCATED } else { 0 };
    out.extend_from_slice(&word.to_ne_bytes());
    out.extend_from_slice(bytes);
    Some(())
}

/// The addresses among the values that are shown by name.
pub(super) fn addresses(args: &[Argument], mut values: Values<'_>, mut each: impl FnMut(u64)) {
    for arg in args {
        match arg.ty.scalar {
            Scalar::String => {
                for _ in 0..arg.ty.count.unwrap_or(1) {
                    let _ = values.next();
                }
            }
            // Named once for each stack.
            Scalar::Stack => {
                let _ = values.next();
            }
            Scalar::Symbol | Scalar::SymbolText => {
                let Some(bytes) = values.next().and_then(|value| value.bytes) else { continue };
                let width = width(arg.ty, bytes.len());
                if (1..=8).contains(&width) {
                    bytes.chunks_exact(width).for_each(|element| each(number(element)));
                }
            }
            _ => {
                let _ = values.next();
            }
        }
    }
}

/// The stack among the values: why it ends, and its frames.
pub(crate) fn stack<'a>(args: &[Argument], mut values: Values<'a>) -> Option<&'a [u8]> {
    for arg in args {
        if arg.ty.scalar == Scalar::Stack {
            // Nobody walks further.
            let is_stack = |len: usize| len.is_multiple_of(8) && (1..=1 + MAX_STACK).contains(&(len / 8));
            return values.next()?.bytes.filter(|bytes| is_stack(bytes.len()));
        }
        let strings = if arg.ty.scalar == Scalar::String { arg.ty.count.unwrap_or(1) } else { 1 };
        for _ in 0..strings {
            values.next()?;
        }
    }
    None
}

/// Whether there is a stack among the values.
pub(super) fn has_stack(args: &[Argument]) -> bool {
    args.iter().any(|arg| arg.ty.scalar == Scalar::Stack)
}

/// A stack's bytes: why it ends, and its frames.
pub(crate) fn frames(stack: &[u8]) -> Option<(u64, impl Iterator<Item = u64> + Clone + '_)> {
    let (words, _) = stack.as_chunks::<8>();
    let (end, frames) = words.split_first()?;
    Some((u64::from_ne_bytes(*end), frames.iter().map(|word| u64::from_ne_bytes(*word))))
}

/// An address in the instruction that a frame is at: where a call returns to, another function may begin.
pub(crate) fn place(frame: u64) -> u64 {
    if frame & EXACT != 0 { frame & !EXACT } else { frame.wrapping_sub(1) }
}

/// Whether any value is shown by name.
pub(super) fn has_addresses(args: &[Argument]) -> bool {
    args.iter().any(|arg| matches!(arg.ty.scalar, Scalar::Symbol | Scalar::SymbolText))
}
