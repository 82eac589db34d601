//! The memory that a program may access. Its addresses are not the machine's: the highest byte names a
//! region, the rest is an offset in it, checked at each access. So no program reaches anything else, and the
//! engine needs no unsafe code.

use crate::fault::Cause;
use crate::insn::atomic;
use crate::map::Map;
use crate::sync::{AtomicU64, Relaxed};

/// How many bytes of stack a program has.
pub const STACK_LEN: usize = 512;
/// Where the stack begins; r10 points to its end.
pub(crate) const STACK: u64 = 1 << REGION;
/// Where the context's bytes begin; r1 points there at the start.
pub(crate) const CONTEXT: u64 = 2 << REGION;
/// Where the values of arrays begin; bits from [`MAP`] on are the map's index.
pub(crate) const VALUES: u64 = 3 << REGION;

const REGION: u32 = 56;
const MAP: u32 = 40;
const OFFSET: u64 = (1 << MAP) - 1;

/// The address of a byte of an array's values.
pub(crate) const fn value_address(map: u64, offset: u64) -> u64 {
    VALUES | (map & 0xffff) << MAP | offset & OFFSET
}

/// The regions of one run.
pub(crate) struct Memory<'a> {
    pub(crate) stack: &'a mut [u8],
    pub(crate) context: &'a [u8],
    pub(crate) maps: &'a [Map],
}

/// All of a word of an array, or the bits of it that a narrower access covers.
struct Part<'a> {
    cell: &'a AtomicU64,
    shift: u32,
    mask: u64,
}

impl Part<'_> {
    fn load(&self) -> u64 {
        self.cell.load(Relaxed) >> self.shift & self.mask
    }

    /// Replaces the part by the result of `change`, in one piece; returns its value before.
    fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        let whole = |word: u64| {
            let value = change(word >> self.shift & self.mask) & self.mask;
            Some(word & !(self.mask << self.shift) | value << self.shift)
        };
        let (Ok(before) | Err(before)) = self.cell.fetch_update(Relaxed, Relaxed, whole);
        before >> self.shift & self.mask
    }
}

impl Memory<'_> {
    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, addr: u64) -> Result<u64, Cause> {
        let (region, offset) = (addr >> REGION, addr & !(u64::MAX << REGION));
        if region == VALUES >> REGION {
            return self.part::<N>(addr).map(|part| part.load());
        }
        let bytes: &[u8] = match region << REGION {
            CONTEXT => self.context,
            STACK => self.stack,
            _ => &[],
        };
        let found = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)?.first_chunk::<N>());
        found.map(|bytes| number(*bytes)).ok_or(Cause::OutOfBounds { addr, len: N })
    }

    #[inline(always)]
    pub(crate) fn store<const N: usize>(&mut self, addr: u64, value: u64) -> Result<(), Cause> {
        match addr >> REGION << REGION {
            STACK => {
                *self.stack_chunk(addr)? = bytes::<N>(value);
                Ok(())
            }
            CONTEXT => Err(Cause::ReadOnly { addr }),
            _ => {
                let part = self.part::<N>(addr)?;
                if N == 8 {
                    part.cell.store(value, Relaxed)
                } else {
                    _ = part.update(|_| value)
                }
                Ok(())
            }
        }
    }

    /// Section 5.3. `expected` is r0. The value before.
    pub(crate) fn atomic<const N: usize>(
        &mut self,
        addr: u64,
        code: i32,
        operand: u64,
        expected: u64,
    ) -> Result<u64, Cause> {
        let apply = |old: u64| match code & !atomic::FETCH {
            atomic::ADD => old.wrapping_add(operand),
            atomic::OR => old | operand,
            atomic::AND => old & operand,
            atomic::XOR => old ^ operand,
            // CMPXCHG. What is compared is as wide as what is in memory.
            0xf0 if old != expected & ones::<N>() => old,
            _ => operand,
        };
        match addr >> REGION << REGION {
            STACK => {
                // Nobody else has it, and a hit within this one has a stack of its own.
                let place = self.stack_chunk::<N>(addr)?;
                let before = number(*place);
                *place = bytes(apply(before));
                Ok(before)
            }
            CONTEXT => Err(Cause::ReadOnly { addr }),
            _ => {
                let part = self.part::<N>(addr)?;
                Ok(match code & !atomic::FETCH {
                    atomic::ADD if N == 8 => part.cell.fetch_add(operand, Relaxed),
                    _ => part.update(apply),
                })
            }
        }
    }

    fn stack_chunk<const N: usize>(&mut self, addr: u64) -> Result<&mut [u8; N], Cause> {
        let offset = usize::try_from(addr & !(u64::MAX << REGION)).ok();
        let found = offset.and_then(|offset| self.stack.get_mut(offset..)?.first_chunk_mut());
        found.ok_or(Cause::OutOfBounds { addr, len: N })
    }

    /// The part of an array that `N` bytes at an address of [`VALUES`] are. It lies in one word, so that no
    /// other context sees half of it.
    fn part<const N: usize>(&self, addr: u64) -> Result<Part<'_>, Cause> {
        let out_of_bounds = Cause::OutOfBounds { addr, len: N };
        if addr >> REGION != VALUES >> REGION {
            return Err(out_of_bounds);
        }
        let map = usize::try_from(addr >> MAP & 0xffff).ok().and_then(|index| self.maps.get(index));
        let Some(Map::Array(array)) = map else { return Err(out_of_bounds) };
        let offset = addr & OFFSET;
        let cell = usize::try_from(offset / 8).ok().and_then(|word| array.word(word)).ok_or(out_of_bounds)?;
        if !offset.is_multiple_of(N as u64) {
            return Err(Cause::Unaligned { addr, len: N });
        }
        let at = (offset % 8) as u32;
        let at = if cfg!(target_endian = "little") { at } else { 8 - N as u32 - at };
        Ok(Part { cell, shift: at * 8, mask: ones::<N>() })
    }
}

/// As many ones as `N` bytes have bits.
const fn ones<const N: usize>() -> u64 {
    if N >= 8 { u64::MAX } else { (1 << (N * 8)) - 1 }
}

/// A number of up to eight bytes, in the machine's byte order.
#[inline(always)]
fn number<const N: usize>(bytes: [u8; N]) -> u64 {
    let mut word = [0; 8];
    let window = if cfg!(target_endian = "little") { word.first_chunk_mut() } else { word.last_chunk_mut() };
    if let Some(window) = window {
        *window = bytes;
    }
    u64::from_ne_bytes(word)
}

/// The low `N` bytes of a number, in the machine's byte order.
#[inline(always)]
fn bytes<const N: usize>(number: u64) -> [u8; N] {
    let word = number.to_ne_bytes();
    let window = if cfg!(target_endian = "little") { word.first_chunk() } else { word.last_chunk() };
    window.copied().unwrap_or([0; N])
}
