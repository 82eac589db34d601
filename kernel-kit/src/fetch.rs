//! What an event's arguments are read from in a hit, and how they lie in a record.
//!
//! A number is a byte that says whether it could be read and, if so, its bytes; an array is as many of them;
//! a string is a length of two bytes and its text. Integers are the machine's.

use crate::trace::{RECORD_LEN, Writing};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::fmt::{self, Write};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Calls, Memory, Regs};
use probe_core::handler::TargetMemory;
use probe_core::host::Host;
use probe_definitions::{Argument, MAX_ARGUMENT, Scalar, Source, Width};

/// The length of a string that could not be read.
const NO_STRING: u16 = u16::MAX;

/// The arguments of a call as they were at its entry.
pub(crate) type Entry = [Option<usize>; MAX_ARGUMENT];

/// A hit, as far as values come from it.
pub(crate) struct Scene<'a, A: Arch> {
    pub(crate) regs: &'a A::Regs,
    pub(crate) memory: TargetMemory<'a>,
    /// At a return the arguments of the entry, if they were kept.
    pub(crate) entry: Option<&'a Entry>,
    pub(crate) value: Option<usize>,
    pub(crate) comm: &'a [u8],
}

/// An argument, ready to be read.
pub(crate) struct Plan {
    pub(crate) argument: Argument,
    /// The address of the symbol that it names.
    symbol: usize,
    /// How many bytes those behind it need at least.
    behind: usize,
}

/// A value, or the address of one.
enum Value {
    Plain(usize),
    At(usize),
}

impl Plan {
    /// Plans for `arguments`, whose records begin with `head_len` bytes of something else.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn all<H: Host>(
        arguments: &[Argument],
        head_len: usize,
        host: &H,
    ) -> Result<Box<[Self]>, String> {
        let wanted: usize = arguments.iter().map(least).sum();
        let room = RECORD_LEN - head_len;
        if wanted > room {
            return Err(format!("the arguments take {wanted} bytes, and a record has room for {room}"));
        }
        let mut behind = wanted;
        let plan = |argument: &Argument| {
            behind -= least(argument);
            Ok(Self { argument: argument.clone(), symbol: symbol(argument, host)?, behind })
        };
        arguments.iter().map(plan).collect()
    }

    /// Whether it is an argument of the function that is called.
    pub(crate) fn is_of_entry(&self) -> bool {
        matches!(self.argument.fetch.source, Source::Argument(_))
    }

    /// Reads the value and appends it. In a hit.
    pub(crate) fn put<A: Arch>(&self, scene: &Scene<'_, A>, out: &mut Writing<'_>) {
        let scalar = self.argument.ty.scalar;
        match &self.argument.fetch.source {
            Source::Text(text) => return self.put_text(text.as_bytes(), out),
            Source::Comm => return self.put_text(scene.comm, out),
            _ => {}
        }
        let value = self.value(scene);
        let len = scalar.bytes();
        let count = self.argument.ty.count.unwrap_or(1);
        for index in 0..count {
            let is_array = self.argument.ty.count.is_some();
            match (scalar, &value) {
                (Scalar::String, value) => {
                    let text = value.as_ref().and_then(|value| {
                        let (Value::Plain(at) | Value::At(at)) = *value;
                        let element = at.wrapping_add(index * size_of::<usize>());
                        if is_array { scene.memory.read_usize(element).ok() } else { Some(at) }
                    });
                    // The later strings of an array have their lengths, too.
                    put_string(scene, text, self.behind + STRING_LEAST * (count - 1 - index), out);
                }
                (_, Some(Value::Plain(word))) if !is_array => put_word(*word, len, out),
                (_, Some(Value::Plain(at) | Value::At(at))) => {
                    put_memory(scene, at.wrapping_add(index * len), len, out);
                }
                (_, None) => out.put(&[0]),
            }
        }
    }

    fn put_text(&self, text: &[u8], out: &mut Writing<'_>) {
        let room = out.spare().len().saturating_sub(2 + self.behind);
        let text = text.get(..room.min(text.len())).unwrap_or_default();
        out.put(&(text.len() as u16).to_ne_bytes());
        out.put(text);
    }

    /// The value itself, or where it lies if the last step is a memory read.
    fn value<A: Arch>(&self, scene: &Scene<'_, A>) -> Option<Value> {
        let mut value = self.source(scene)?;
        let Some((&last, before)) = self.argument.fetch.derefs.split_last() else {
            return Some(Value::Plain(value));
        };
        for &offset in before {
            value = scene.memory.read_usize(value.wrapping_add_signed(offset as isize)).ok()?;
        }
        Some(Value::At(value.wrapping_add_signed(last as isize)))
    }

    fn source<A: Arch>(&self, scene: &Scene<'_, A>) -> Option<usize> {
        match &self.argument.fetch.source {
            Source::Argument(index) if scene.value.is_some() => scene.entry?.get(*index).copied().flatten(),
            Source::Argument(index) => A::CALLS?.argument(scene.regs, *index, &scene.memory),
            Source::ReturnValue => scene.value,
            Source::Stack(index) => {
                let at = scene.regs.sp().wrapping_add(index.wrapping_mul(size_of::<usize>()));
                scene.memory.read_usize(at).ok()
            }
            Source::StackPointer => Some(scene.regs.sp()),
            Source::Register(number) => scene.regs.register(*number),
            Source::Symbol { offset, .. } => Some(self.symbol.wrapping_add_signed(*offset as isize)),
            Source::Constant(value) => Some(*value as usize),
            Source::Comm | Source::Text(_) | Source::Frames(_) => None,
        }
    }
}

/// Appends the bytes at an address up to a NUL, or as many as there is room for. Behind them `behind` bytes
/// have to fit in.
fn put_string<A: Arch>(scene: &Scene<'_, A>, at: Option<usize>, behind: usize, out: &mut Writing<'_>) {
    // Strings are read in pieces that lie in one page each, whatever its size.
    const PIECE: usize = 32;
    let spare = out.spare();
    let room = spare.len().saturating_sub(behind);
    let Some(([low, high], text)) = spare.get_mut(..room).and_then(|room| room.split_first_chunk_mut::<2>())
    else {
        return;
    };
    let (mut len, mut end) = (0, at);
    while let Some(from) = end.map(|at| at.wrapping_add(len)) {
        let piece = PIECE - from % PIECE;
        let wanted = piece.min(text.len().saturating_sub(len));
        let Some(part) = text.get_mut(len..len + wanted).filter(|part| !part.is_empty()) else { break };
        if scene.memory.read(from, part).is_err() {
            // What could be read of it is no string.
            end = None;
            len = 0;
        } else if let Some(nul) = part.iter().position(|&byte| byte == 0) {
            len += nul;
            break;
        } else {
            len += wanted;
        }
    }
    let said = if end.is_some() { len as u16 } else { NO_STRING };
    [*low, *high] = said.to_ne_bytes();
    out.advance(2 + len);
}

/// The fewest bytes that a string takes: its length.
const STRING_LEAST: usize = 2;

/// The fewest bytes that an argument takes in a record.
fn least(argument: &Argument) -> usize {
    let count = argument.ty.count.unwrap_or(1);
    match argument.ty.scalar {
        Scalar::String | Scalar::Stack => count * STRING_LEAST,
        scalar => count * (1 + scalar.bytes()),
    }
}

/// The address of the symbol that an argument names; 0 if it names none.
fn symbol<H: Host>(argument: &Argument, host: &H) -> Result<usize, String> {
    let Source::Symbol { name, .. } = &argument.fetch.source else { return Ok(0) };
    let mut found = None;
    host.find_symbols(name, &mut |symbol| found = found.or(Some(symbol.start.as_usize())));
    found.ok_or_else(|| format!("`{name}` is not among the symbols that this kernel finds"))
}

/// Appends the low `len` bytes of a word that is there.
fn put_word(word: usize, len: usize, out: &mut Writing<'_>) {
    let bytes = (word as u64).to_ne_bytes();
    let low = if cfg!(target_endian = "little") { bytes.get(..len) } else { bytes.get(8 - len.min(8)..) };
    out.put(&[1]);
    out.put(low.unwrap_or_default());
}

/// Appends `len` bytes of memory, if they are there.
fn put_memory<A: Arch>(scene: &Scene<'_, A>, at: usize, len: usize, out: &mut Writing<'_>) {
    let Some((is_there, value)) = out.spare().split_first_mut() else { return };
    let is_read = value.get_mut(..len).is_some_and(|value| scene.memory.read(at, value).is_ok());
    *is_there = u8::from(is_read);
    out.advance(if is_read { 1 + len } else { 1 });
}

/// Takes bytes off the front of a record.
pub(crate) fn take<'a>(record: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (bytes, rest) = record.split_at(len.min(record.len()));
    *record = rest;
    bytes
}

/// The next unsigned integer of `len` bytes.
pub(crate) fn number(record: &mut &[u8], len: usize) -> u64 {
    let mut word = [0; 8];
    let bytes = take(record, len);
    let at = if cfg!(target_endian = "little") { 0 } else { 8 - bytes.len() };
    for (to, from) in word.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

/// Writes ` NAME=VALUE`, as Linux's events print theirs.
pub(crate) fn show<H: Host>(
    argument: &Argument,
    record: &mut &[u8],
    host: &H,
    out: &mut String,
) -> fmt::Result {
    write!(out, " {}=", argument.name)?;
    let Some(count) = argument.ty.count else { return show_one(argument.ty.scalar, record, host, out) };
    for index in 0..count {
        out.push(if index == 0 { '{' } else { ',' });
        show_one(argument.ty.scalar, record, host, out)?;
    }
    out.push('}');
    Ok(())
}

fn show_one<H: Host>(scalar: Scalar, record: &mut &[u8], host: &H, out: &mut String) -> fmt::Result {
    if scalar == Scalar::String {
        return match number(record, 2) as u16 {
            NO_STRING => out.write_str("(fault)"),
            len => write!(out, "\"{}\"", String::from_utf8_lossy(take(record, len.into()))),
        };
    }
    if number(record, 1) == 0 {
        return out.write_str("(fault)");
    }
    let word = number(record, scalar.bytes());
    match scalar {
        Scalar::Signed(width) => {
            let unused = 64 - 8 * width.bytes() as u32;
            write!(out, "{}", (word << unused).cast_signed() >> unused)
        }
        Scalar::Hex(_) => write!(out, "{word:#x}"),
        Scalar::Char => write!(out, "'{}'", (word as u8).escape_ascii()),
        Scalar::Bits(bits) => write!(out, "{}", bits.of(word)),
        Scalar::Symbol => show_address(word as usize, host, out),
        Scalar::SymbolText => {
            out.push('"');
            show_address(word as usize, host, out)?;
            out.push('"');
            Ok(())
        }
        Scalar::Unsigned(Width::W8 | Width::W16 | Width::W32 | Width::W64)
        | Scalar::String
        | Scalar::Stack => {
            write!(out, "{word}")
        }
    }
}

/// Writes `symbol+0xoffset`, or the address where no symbol covers it.
pub(crate) fn show_address<H: Host>(at: usize, host: &H, out: &mut String) -> fmt::Result {
    let mut is_found = false;
    host.symbol_at(CodeAddr::new(at), &mut |symbol| {
        let offset = at.wrapping_sub(symbol.start.as_usize());
        if !is_found {
            // Writing to a string does not fail.
            let _ = write!(out, "{}+{offset:#x}", symbol.name);
        }
        is_found = true;
    });
    if is_found { Ok(()) } else { write!(out, "{at:#x}") }
}
