//! Fetching values at a hit. No lock, no allocation, no fault.

use super::stacks;
use crate::def::{Argument, MAX_ARGUMENT, MAX_TEXT, Scalar, Source};
use crate::wire::{FAULT, Reservation, TRUNCATED};
use probe_core::arch::{Arch, Calls, Memory, Regs};
use probe_host_linux::{Native, probes};

type NativeRegs = <Native as Arch>::Regs;

/// The longest string that an event carries, in bytes.
pub(super) const MAX_STRING: usize = 1024;
/// Memory is read page by page, as the next page may be missing.
const PAGE: usize = 4096;
/// Most strings are shorter than this.
const FIRST_READ: usize = 128;

/// An argument, ready to be fetched.
pub(super) struct Plan {
    argument: Argument,
    /// The address of the symbol that it names.
    symbol: usize,
}

/// What values are fetched from.
pub(super) struct Scene<'a, M> {
    pub(super) regs: &'a NativeRegs,
    pub(super) memory: &'a M,
    /// The arguments as they were at entry, for a return; else they are read from the registers.
    pub(super) entry: Option<&'a [usize; MAX_ARGUMENT]>,
    /// The return value, for a return.
    pub(super) return_value: Option<usize>,
}

impl<M: Memory> Scene<'_, M> {
    fn stack(&self) -> stacks::Start<'_, M> {
        let Self { regs, memory, return_value, .. } = self;
        stacks::Start { regs, memory, returns: return_value.is_some() }
    }

    /// Where the call returns to that is just entering its function, or is just returning.
    pub(super) fn caller(&self) -> Option<usize> {
        if self.return_value.is_some() {
            return Some(self.regs.pc().as_usize());
        }
        let entry = Native::CALLS?.entry(self.regs, self.memory).ok()?;
        // Another probe may follow the call already.
        let home = probes().real_return_address(entry.return_address);
        Some(home.unwrap_or(entry.return_address).as_usize())
    }
}

/// Memory that could not be read.
struct Fault;

impl Plan {
    /// A plan for `argument`; `symbol` is the address of the symbol that it names, if it names one.
    pub(super) fn new(argument: Argument, symbol: usize) -> Self {
        Self { argument, symbol }
    }

    /// The most bytes that its value takes in an event.
    pub(super) fn most(&self) -> usize {
        let count = self.argument.ty.count.unwrap_or(1);
        match self.argument.ty.scalar {
            Scalar::String => count * (4 + MAX_STRING.max(MAX_TEXT)),
            Scalar::Stack => 4 + stacks::MOST_BYTES,
            scalar => 4 + count * scalar.bytes(),
        }
    }

    /// The number of the function's argument that it needs, from 0.
    pub(super) fn entry_argument(&self) -> Option<usize> {
        match self.argument.fetch.source {
            Source::Argument(index) => Some(index),
            _ => None,
        }
    }

    /// Fetches the value and appends it to an event.
    pub(super) fn put<M: Memory>(&self, scene: &Scene<'_, M>, out: &mut Reservation<'_>) {
        let at = out.position();
        out.put_u32(0);
        let done = match &self.argument.fetch.source {
            Source::Text(text) => {
                out.put(text.as_bytes());
                Ok(0)
            }
            Source::Comm => {
                let name = super::confined::thread_name();
                out.put(name.split(|&byte| byte == 0).next().unwrap_or_default());
                Ok(0)
            }
            Source::Frames(depth) => {
                stacks::put(&scene.stack(), *depth, out);
                Ok(0)
            }
            _ => self.put_value(scene, at, out),
        };
        let word = match done {
            Ok(flags) => (out.position() - at - 4) as u32 | flags,
            Err(Fault) => {
                out.truncate(at + 4);
                FAULT
            }
        };
        // Arrays of strings have written their words themselves.
        if !(self.argument.ty.scalar == Scalar::String && self.argument.ty.count.is_some()) {
            out.patch_u32(at, word);
        }
    }

    /// Appends what is known of the value of a call that was left: neither registers nor memory are its own
    /// any more.
    pub(super) fn put_left(&self, arguments: &[usize; MAX_ARGUMENT], out: &mut Reservation<'_>) {
        let Argument { ty, fetch, .. } = &self.argument;
        let at = out.position();
        match (&fetch.source, ty.scalar) {
            (Source::Text(text), _) => {
                out.put_u32(text.len() as u32);
                out.put(text.as_bytes());
            }
            (Source::Argument(_), Scalar::String) | (_, Scalar::Stack) => {}
            (Source::Argument(index), scalar) if fetch.derefs.is_empty() && ty.count.is_none() => {
                if let Some(word) = arguments.get(*index) {
                    out.put_u32(scalar.bytes() as u32);
                    put_word(*word as u64, scalar.bytes(), out);
                }
            }
            _ => {}
        }
        if out.position() == at {
            let count = if ty.scalar == Scalar::String { ty.count.unwrap_or(1) } else { 1 };
            (0..count).for_each(|_| out.put_u32(FAULT));
        }
    }

    /// The value as a number of 64 bits; `None` for what is none, or cannot be read.
    #[inline]
    pub(super) fn number<M: Memory>(&self, scene: &Scene<'_, M>) -> Option<u64> {
        let scalar = self.argument.ty.scalar;
        let word = match self.register(scene) {
            Some(word) => word as u64,
            None => match self.value(scene).ok()? {
                Value::Plain(word) => word as u64,
                Value::At(addr) => read_number(scene.memory, addr, scalar.bytes())?,
            },
        };
        let unused = 64 - 8 * scalar.bytes() as u32;
        Some(match scalar {
            Scalar::Signed(_) => {
                (word.cast_signed().wrapping_shl(unused).wrapping_shr(unused)).cast_unsigned()
            }
            Scalar::Bits(bits) => bits.of(word),
            Scalar::String | Scalar::Stack => return None,
            _ => word.wrapping_shl(unused).wrapping_shr(unused),
        })
    }

    /// The text, in `room` or as the definition has it; `None` for what is none, or cannot be read.
    pub(super) fn text<'a, M: Memory>(
        &'a self,
        scene: &Scene<'_, M>,
        room: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        match (&self.argument.fetch.source, self.argument.ty.scalar) {
            (Source::Text(text), _) => Some(text.as_bytes()),
            (Source::Comm, _) => {
                let (room, _) = room.split_first_chunk_mut()?;
                *room = super::confined::thread_name();
                room.split(|&byte| byte == 0).next()
            }
            (Source::Frames(depth), _) => stacks::text(&scene.stack(), *depth, room),
            (_, Scalar::String) => {
                let (Value::Plain(addr) | Value::At(addr)) = self.value(scene).ok()?;
                let len = read_string(scene.memory, addr, room)?;
                room.get(..len)
            }
            _ => None,
        }
    }

    fn put_value<M: Memory>(
        &self,
        scene: &Scene<'_, M>,
        at: usize,
        out: &mut Reservation<'_>,
    ) -> Result<u32, Fault> {
        let ty = self.argument.ty;
        if ty.scalar == Scalar::String
            && let Some(count) = ty.count
        {
            out.truncate(at);
            self.put_strings(scene, count, out);
            return Ok(0);
        }
        let value = self.value(scene)?;
        match (ty.scalar, ty.count, value) {
            (Scalar::String, _, Value::Plain(addr) | Value::At(addr)) => put_string(scene.memory, addr, out),
            (scalar, Some(count), Value::Plain(addr) | Value::At(addr)) => {
                put_memory(scene.memory, addr, count * scalar.bytes(), out)
            }
            (scalar, None, Value::At(addr)) => put_memory(scene.memory, addr, scalar.bytes(), out),
            (scalar, None, Value::Plain(value)) => {
                put_word(value as u64, scalar.bytes(), out);
                Ok(0)
            }
        }
    }

    /// An array of pointers to strings.
    fn put_strings<M: Memory>(&self, scene: &Scene<'_, M>, count: usize, out: &mut Reservation<'_>) {
        let base = self.value(scene).map(|(Value::Plain(addr) | Value::At(addr))| addr);
        for index in 0..count {
            let at = out.position();
            out.put_u32(0);
            let pointer = base
                .as_ref()
                .map_err(|_| Fault)
                .and_then(|base| read_word(scene.memory, base.wrapping_add(index * size_of::<usize>())));
            let word = match pointer.and_then(|addr| put_string(scene.memory, addr, out)) {
                Ok(flags) => (out.position() - at - 4) as u32 | flags,
                Err(Fault) => {
                    out.truncate(at + 4);
                    FAULT
                }
            };
            out.patch_u32(at, word);
        }
    }

    /// The value, where it is a register's: most are, and nothing else can be had for so little.
    #[inline]
    fn register<M: Memory>(&self, scene: &Scene<'_, M>) -> Option<usize> {
        match self.argument.fetch.source {
            Source::Register(number) if self.argument.fetch.derefs.is_empty() => scene.regs.register(number),
            _ => None,
        }
    }

    /// The value itself, or where it lies if the last step is a memory read.
    fn value<M: Memory>(&self, scene: &Scene<'_, M>) -> Result<Value, Fault> {
        let mut value = self.source(scene)?;
        let Some((&last, before)) = self.argument.fetch.derefs.split_last() else {
            return Ok(Value::Plain(value));
        };
        for &offset in before {
            value = read_word(scene.memory, value.wrapping_add_signed(offset as isize))?;
        }
        Ok(Value::At(value.wrapping_add_signed(last as isize)))
    }

    fn source<M: Memory>(&self, scene: &Scene<'_, M>) -> Result<usize, Fault> {
        match &self.argument.fetch.source {
            Source::Argument(index) => match scene.entry {
                Some(entry) => entry.get(*index).copied().ok_or(Fault),
                None => Native::CALLS
                    .and_then(|calls| calls.argument(scene.regs, *index, scene.memory))
                    .ok_or(Fault),
            },
            Source::ReturnValue => scene.return_value.ok_or(Fault),
            Source::Stack(index) => {
                read_word(scene.memory, scene.regs.sp().wrapping_add(index * size_of::<usize>()))
            }
            Source::StackPointer => Ok(scene.regs.sp()),
            Source::Register(number) => scene.regs.register(*number).ok_or(Fault),
            Source::Symbol { offset, .. } => Ok(self.symbol.wrapping_add_signed(*offset as isize)),
            Source::Constant(value) => Ok(*value as usize),
            Source::Comm | Source::Text(_) | Source::Frames(_) => Ok(0),
        }
    }
}

/// A value, or the address of one.
enum Value {
    Plain(usize),
    At(usize),
}

fn read_word<M: Memory>(memory: &M, addr: usize) -> Result<usize, Fault> {
    memory.read_usize(addr).map_err(|_| Fault)
}

/// A number of up to eight bytes in memory.
fn read_number<M: Memory>(memory: &M, addr: usize, len: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    let window = if cfg!(target_endian = "little") { bytes.get_mut(..len) } else { bytes.get_mut(8 - len..) };
    memory.read(addr, window?).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// Reads the bytes at an address up to a NUL, or as many as there is room for; returns how many.
fn read_string<M: Memory>(memory: &M, addr: usize, room: &mut [u8]) -> Option<usize> {
    let (mut len, mut chunk) = (0, FIRST_READ);
    while len < room.len() {
        let at = addr.wrapping_add(len);
        let wanted = chunk.min(room.len() - len).min(PAGE - at % PAGE);
        let part = room.get_mut(len..len + wanted)?;
        memory.read(at, part).ok()?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            return Some(len + end);
        }
        (len, chunk) = (len + wanted, PAGE);
    }
    Some(len)
}

/// Appends the low `len` bytes of a word.
fn put_word(value: u64, len: usize, out: &mut Reservation<'_>) {
    let bytes = value.to_ne_bytes();
    if cfg!(target_endian = "little") { out.put(&bytes[..len]) } else { out.put(&bytes[8 - len..]) }
}

/// Appends `len` bytes of memory.
fn put_memory<M: Memory>(
    memory: &M,
    addr: usize,
    len: usize,
    out: &mut Reservation<'_>,
) -> Result<u32, Fault> {
    memory.read(addr, out.spare(len)).map_err(|_| Fault)?;
    out.advance(len);
    Ok(0)
}

/// Appends the bytes at an address up to a NUL; returns the flags of the value.
fn put_string<M: Memory>(memory: &M, addr: usize, out: &mut Reservation<'_>) -> Result<u32, Fault> {
    let (mut at, mut len, mut chunk) = (addr, 0, FIRST_READ);
    while len < MAX_STRING {
        let wanted = chunk.min(MAX_STRING - len).min(PAGE - at % PAGE);
        let part = out.spare(wanted);
        let wanted = part.len();
        if wanted == 0 {
            break;
        }
        memory.read(at, part).map_err(|_| Fault)?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            out.advance(end);
            return Ok(0);
        }
        out.advance(wanted);
        (at, len, chunk) = (at.wrapping_add(wanted), len + wanted, PAGE);
    }
    Ok(TRUNCATED)
}
