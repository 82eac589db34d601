//! Executable memory over "map a page, unmap a page", and text that is written through an alias: no page is
//! ever writable and executable.
//!
//! [`ExecMemory`] hands out parts of the kernel's windows: [`Host::alloc_exec`] and [`Host::free_exec`]. It
//! takes no lock and allocates nothing. [`write()`] is what [`Host::write_text`] does once it knows the
//! alias.
//!
//! [`Host::alloc_exec`]: probe_core::host::Host::alloc_exec
//! [`Host::free_exec`]: probe_core::host::Host::free_exec
//! [`Host::write_text`]: probe_core::host::Host::write_text

use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::NativeArch;

/// What a kernel gives for [`ExecMemory`].
///
/// # Safety
/// The windows stay the same, do not overlap, and nobody else uses them.
pub unsafe trait Pages: Sync {
    /// The size of a page in bytes, a power of two.
    const PAGE: usize = 4096;

    /// Addresses where executable memory may be, each from a page's first byte to one past another's last:
    /// one near the text, and others where jumps may want to lead.
    fn windows(&self) -> &[Range<usize>];

    /// Puts memory at `at`, `len_bytes` long, that can be read and executed and not written, on all CPUs;
    /// whether there was any. A kernel whose windows are mapped for good has nothing to do.
    fn map(&self, at: usize, len_bytes: usize) -> bool {
        let _ = (at, len_bytes);
        true
    }

    /// Takes away, on all CPUs, what [`Pages::map`] put there.
    fn unmap(&self, at: usize, len_bytes: usize) {
        let _ = (at, len_bytes);
    }
}

/// A bit for each page of the windows; `WORDS` words hold 32 pages each, and each window begins a word of its
/// own.
pub struct ExecMemory<P, const WORDS: usize> {
    pages: P,
    // Of 32 bits: a kernel for i586 has 64-bit atomics, and they are floating point.
    used: [AtomicU32; WORDS],
}

impl<P: Pages, const WORDS: usize> ExecMemory<P, WORDS> {
    /// All of it is free.
    pub const fn new(pages: P) -> Self {
        Self { pages, used: [const { AtomicU32::new(0) }; WORDS] }
    }

    /// Maps `len_bytes` (rounded up to a power of two of pages), aligned to their length, all within `near.1`
    /// bytes of `near.0` if they are given; the lowest that are free. `None` if there are none: `WORDS` may
    /// be too few.
    pub fn alloc(&self, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        let len = Self::rounded(len_bytes)?;
        let mut word = 0;
        for window in self.pages.windows() {
            let mut at = window.start.checked_next_multiple_of(len)?;
            if let Some((near, reach)) = near {
                at = at.max(near.as_usize().saturating_sub(reach).checked_next_multiple_of(len)?);
            }
            while let Some(end) = at.checked_add(len).filter(|end| *end <= window.end) {
                if near.is_some_and(|(near, reach)| end > near.as_usize().saturating_add(reach)) {
                    break;
                }
                let first = word * 32 + (at - window.start) / P::PAGE;
                if self.claim(first, len / P::PAGE) {
                    if self.pages.map(at, len) {
                        return Some(CodeAddr::new(at));
                    }
                    self.release(first, len / P::PAGE);
                    return None;
                }
                at = end;
            }
            word += (window.end - window.start).div_ceil(P::PAGE * 32);
        }
        None
    }

    /// Unmaps what [`ExecMemory::alloc`] returned for `len_bytes`.
    ///
    /// # Safety
    /// No CPU executes in it or will.
    pub unsafe fn free(&self, at: CodeAddr, len_bytes: usize) {
        let (at, len) = (at.as_usize(), Self::rounded(len_bytes).unwrap_or(0));
        self.pages.unmap(at, len);
        let mut word = 0;
        for window in self.pages.windows() {
            if window.contains(&at) {
                self.release(word * 32 + (at - window.start) / P::PAGE, len / P::PAGE);
            }
            word += (window.end - window.start).div_ceil(P::PAGE * 32);
        }
    }

    /// Whether `len_bytes` from `at` on lie in one window.
    pub fn contains(&self, at: usize, len_bytes: usize) -> bool {
        let end = at.checked_add(len_bytes);
        end.is_some_and(|end| {
            self.pages.windows().iter().any(|window| window.start <= at && end <= window.end)
        })
    }

    fn rounded(len_bytes: usize) -> Option<usize> {
        len_bytes.div_ceil(P::PAGE).checked_next_power_of_two()?.checked_mul(P::PAGE)
    }

    /// Takes `count` pages, if all of them are free.
    fn claim(&self, first: usize, count: usize) -> bool {
        let mut taken = 0;
        for (word, mask) in masks(first, count) {
            let is_free = |used: u32| (used & mask == 0).then_some(used | mask);
            let claimed = self
                .used
                .get(word)
                .is_some_and(|used| used.fetch_update(Ordering::Acquire, Ordering::Relaxed, is_free).is_ok());
            if !claimed {
                self.release(first, taken);
                return false;
            }
            taken += mask.count_ones() as usize;
        }
        true
    }

    /// Gives `count` pages back.
    fn release(&self, first: usize, count: usize) {
        for (word, mask) in masks(first, count) {
            if let Some(used) = self.used.get(word) {
                used.fetch_and(!mask, Ordering::Release);
            }
        }
    }
}

/// The words in which `count` bits from `first` on lie, and which of each.
fn masks(first: usize, count: usize) -> impl Iterator<Item = (usize, u32)> {
    let end = first + count;
    (first / 32..end.div_ceil(32)).filter(move |_| count > 0).map(move |word| {
        let (low, high) = (first.max(word * 32) - word * 32, end.min(word * 32 + 32) - word * 32);
        (word, (u32::MAX >> (32 - (high - low))) << low)
    })
}

/// Stores `bytes` through `alias`, two or four aligned ones at once, for the text at `at`, and publishes
/// them.
///
/// # Safety
/// `alias` is another address of the memory at `at`, writable and never executable; the caller may patch it
/// ([`Host::write_text`](probe_core::host::Host::write_text)), and it is mapped executable.
pub unsafe fn write<A: NativeArch>(alias: usize, at: CodeAddr, bytes: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(alias);
    match *bytes {
        [a, b] if alias.is_multiple_of(2) => {
            // SAFETY: writable, says the caller; aligned as just checked.
            unsafe { to.cast::<u16>().write_volatile(u16::from_ne_bytes([a, b])) };
        }
        [a, b, c, d] if alias.is_multiple_of(4) => {
            // SAFETY: as above.
            unsafe { to.cast::<u32>().write_volatile(u32::from_ne_bytes([a, b, c, d])) };
        }
        _ => {
            for (index, &byte) in bytes.iter().enumerate() {
                // SAFETY: writable, says the caller.
                unsafe { to.wrapping_add(index).write_volatile(byte) };
            }
        }
    }
    // SAFETY: it is mapped executable, says the caller.
    unsafe { A::publish(at, bytes.len()) };
}
