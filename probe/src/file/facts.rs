//! Facts: what events refer to by its number.

use super::bytes::{From, folded, put, put_bytes, unfolded};
use crate::def::{Argument, Bits, Fetch, MAX_ARGS, MAX_ARRAY, Scalar, Source, Type, Width};
use crate::wire::{EXACT, Image};

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The definition, as typed.
    pub text: String,
    /// The name that its events were expected to have; empty where that was not known beforehand.
    pub label: String,
    /// Whether it fires when a function returns.
    pub is_return: bool,
    /// Names and types of its arguments. Where their values came from is not told.
    pub args: Vec<Argument>,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A probe; they count from 0.
    Probe(Probe),
    /// A program has started.
    Started {
        /// Its number.
        image: Image,
        /// Its process.
        pid: u32,
        /// Its executable.
        program: String,
    },
    /// An object is loaded in a program.
    Object {
        /// The program.
        image: Image,
        /// Its first address.
        start: u64,
        /// One past its last address.
        end: u64,
        /// What is added to an address in the file.
        bias: u64,
        /// Its file.
        path: String,
        /// Its build id in hexadecimal digits; empty where it has none.
        build_id: String,
    },
    /// A place where a probe stands; they count from 0.
    Place {
        /// The program.
        image: Image,
        /// The probe's number.
        probe: u32,
        /// The address.
        addr: u64,
        /// Its distance in bytes from the symbol.
        offset: u64,
        /// What its events are called.
        name: String,
        /// The symbol; empty where none covers it.
        symbol: String,
        /// The object's file name.
        object: String,
    },
    /// A thread by one of its names; they count from 0, and again after [`Fact::Forget`].
    Task {
        /// The process.
        pid: u32,
        /// The thread.
        tid: u32,
        /// The name, up to its first NUL.
        comm: [u8; 16],
    },
    /// What an address of a program is called, from here on.
    Name {
        /// The program.
        image: Image,
        /// The process.
        pid: u32,
        /// The address.
        addr: u64,
        /// Its name.
        text: String,
    },
    /// Tasks, names and stacks so far are not referred to any more.
    Forget,
    /// A stack; they count from 0, and again after [`Fact::Forget`].
    Stack(Stack),
}

/// A stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The program.
    pub image: Image,
    /// The process.
    pub pid: u32,
    /// Why it has no more frames: 0: the last one is the outermost; 1: no more were wanted; 2: nothing says
    /// who has called that one.
    pub end: u64,
    /// The frames, innermost first, as in a ring.
    pub frames: Vec<u64>,
}

/// The most frames that are read of one.
const MOST_FRAMES: u64 = 1 << 12;

impl Stack {
    fn put(&self, out: &mut Vec<u8>) {
        let numbers = [u64::from(self.image), u64::from(self.pid), self.end, self.frames.len() as u64];
        numbers.into_iter().for_each(|number| put(out, number));
        let mut before = 0;
        for frame in &self.frames {
            let addr = frame & !EXACT;
            put(out, folded(addr.wrapping_sub(before).cast_signed()));
            before = addr;
        }
        let exact = || (0..).zip(&self.frames).filter(|(_, frame)| **frame & EXACT != 0);
        put(out, exact().count() as u64);
        exact().for_each(|(index, _)| put(out, index));
    }

    fn read(from: &mut From<'_>) -> Option<Self> {
        let (image, pid, end) = (from.number32()?, from.number32()?, from.number()?);
        let count = from.number().filter(|count| *count <= MOST_FRAMES)?;
        let mut before = 0_u64;
        let mut frames = Vec::new();
        for _ in 0..count {
            before = before.wrapping_add_signed(unfolded(from.number()?));
            frames.push(before & !EXACT);
        }
        for _ in 0..from.number().filter(|exact| *exact <= count)? {
            let index = usize::try_from(from.number()?).ok()?;
            *frames.get_mut(index)? |= EXACT;
        }
        Some(Self { image, pid, end, frames })
    }
}

const WIDTHS: [Width; 4] = [Width::W8, Width::W16, Width::W32, Width::W64];

fn put_type(out: &mut Vec<u8>, ty: Type) {
    let index = |width: Width| WIDTHS.iter().position(|known| *known == width).unwrap_or(0) as u64;
    let (kind, detail) = match ty.scalar {
        Scalar::Unsigned(width) => (0, index(width)),
        Scalar::Signed(width) => (1, index(width)),
        Scalar::Hex(width) => (2, index(width)),
        Scalar::Char => (3, 0),
        Scalar::String => (4, 0),
        Scalar::Symbol => (5, 0),
        Scalar::SymbolText => (6, 0),
        Scalar::Bits(Bits { width, offset, container }) => {
            (7, index(container) | u64::from(width) << 8 | u64::from(offset) << 16)
        }
        Scalar::Stack => (8, 0),
    };
    put(out, kind);
    put(out, detail);
    put(out, ty.count.unwrap_or(0) as u64);
}

fn read_type(from: &mut From<'_>) -> Option<Type> {
    let (kind, detail, count) = (from.number()?, from.number()?, usize::try_from(from.number()?).ok()?);
    let width = || WIDTHS.get(usize::try_from(detail).ok()?).copied();
    let scalar = match kind {
        0 => Scalar::Unsigned(width()?),
        1 => Scalar::Signed(width()?),
        2 => Scalar::Hex(width()?),
        3 => Scalar::Char,
        4 => Scalar::String,
        5 => Scalar::Symbol,
        6 => Scalar::SymbolText,
        7 => {
            let container = *WIDTHS.get((detail & 0xff) as usize)?;
            let (width, offset) = ((detail >> 8) as u8, (detail >> 16) as u8);
            let fits = width > 0 && usize::from(width) + usize::from(offset) <= 8 * container.bytes();
            fits.then_some(Scalar::Bits(Bits { width, offset, container }))?
        }
        8 if count == 0 => Scalar::Stack,
        _ => return None,
    };
    (count <= MAX_ARRAY).then_some(Type { scalar, count: (count > 0).then_some(count) })
}

impl Probe {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.text.as_bytes());
        put_bytes(out, self.label.as_bytes());
        put(out, self.is_return.into());
        put(out, self.args.len() as u64);
        for arg in &self.args {
            put_bytes(out, arg.name.as_bytes());
            put_type(out, arg.ty);
        }
    }

    fn read(from: &mut From<'_>) -> Option<Self> {
        let (text, label, is_return) = (from.text()?, from.text()?, from.number()? & 1 != 0);
        let count = usize::try_from(from.number()?).ok().filter(|count| *count <= MAX_ARGS)?;
        let arg = |from: &mut From<'_>| {
            let name = from.text()?;
            let fetch = Fetch { source: Source::Constant(0), derefs: Vec::new() };
            Some(Argument { name, fetch, ty: read_type(from)?, span: (0, 0) })
        };
        let args = (0..count).map(|_| arg(from)).collect::<Option<_>>()?;
        Some(Self { text, label, is_return, args })
    }
}

impl Fact {
    /// Appends the fact: its kind, its length, what it says.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(64);
        let kind = match self {
            Self::Probe(probe) => {
                probe.put(&mut body);
                1
            }
            Self::Started { image, pid, program } => {
                [*image, *pid].into_iter().for_each(|number| put(&mut body, number.into()));
                put_bytes(&mut body, program.as_bytes());
                2
            }
            Self::Object { image, start, end, bias, path, build_id } => {
                [u64::from(*image), *start, *end, *bias].into_iter().for_each(|n| put(&mut body, n));
                [path, build_id].into_iter().for_each(|text| put_bytes(&mut body, text.as_bytes()));
                3
            }
            Self::Place { image, probe, addr, offset, name, symbol, object } => {
                let numbers = [u64::from(*image), u64::from(*probe), *addr, *offset];
                numbers.into_iter().for_each(|number| put(&mut body, number));
                [name, symbol, object].into_iter().for_each(|text| put_bytes(&mut body, text.as_bytes()));
                4
            }
            Self::Task { pid, tid, comm } => {
                [*pid, *tid].into_iter().for_each(|number| put(&mut body, number.into()));
                put_bytes(&mut body, comm.split(|&byte| byte == 0).next().unwrap_or_default());
                5
            }
            Self::Name { image, pid, addr, text } => {
                [u64::from(*image), u64::from(*pid), *addr].into_iter().for_each(|n| put(&mut body, n));
                put_bytes(&mut body, text.as_bytes());
                6
            }
            Self::Forget => 7,
            Self::Stack(stack) => {
                stack.put(&mut body);
                8
            }
        };
        put(out, kind);
        put_bytes(out, &body);
    }

    /// The next fact; `Some(None)` for one of a kind that is not known here.
    pub(super) fn read(all: &mut From<'_>) -> Option<Option<Self>> {
        let (kind, body) = (all.number()?, all.bytes()?);
        let mut from = From(body);
        let from = &mut from;
        Some(Some(match kind {
            1 => Self::Probe(Probe::read(from)?),
            2 => Self::Started { image: from.number32()?, pid: from.number32()?, program: from.text()? },
            3 => Self::Object {
                image: from.number32()?,
                start: from.number()?,
                end: from.number()?,
                bias: from.number()?,
                path: from.text()?,
                build_id: from.text()?,
            },
            4 => Self::Place {
                image: from.number32()?,
                probe: from.number32()?,
                addr: from.number()?,
                offset: from.number()?,
                name: from.text()?,
                symbol: from.text()?,
                object: from.text()?,
            },
            5 => {
                let (pid, tid, name) = (from.number32()?, from.number32()?, from.bytes()?);
                let mut comm = [0; 16];
                comm.get_mut(..name.len())?.copy_from_slice(name);
                Self::Task { pid, tid, comm }
            }
            6 => Self::Name {
                image: from.number32()?,
                pid: from.number32()?,
                addr: from.number()?,
                text: from.text()?,
            },
            7 => Self::Forget,
            8 => Self::Stack(Stack::read(from)?),
            _ => return Some(None),
        }))
    }

    /// The bytes that it takes where it is remembered, about.
    pub(super) fn room(&self) -> usize {
        let texts = match self {
            Self::Probe(probe) => {
                let names = probe.args.iter().map(|arg| arg.name.len() + size_of::<Argument>());
                probe.text.len() + probe.label.len() + names.sum::<usize>()
            }
            Self::Started { program, .. } => program.len(),
            Self::Object { path, build_id, .. } => path.len() + build_id.len(),
            Self::Place { name, symbol, object, .. } => name.len() + symbol.len() + object.len(),
            Self::Name { text, .. } => text.len(),
            Self::Stack(stack) => 8 * stack.frames.len(),
            Self::Task { .. } | Self::Forget => 0,
        };
        texts + 2 * size_of::<Self>()
    }
}
