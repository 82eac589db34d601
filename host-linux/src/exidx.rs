//! Unwinding through return stubs on arm, so that exceptions and backtraces pass followed calls (RET_7,
//! RET_8).
//!
//! Unwinders there read no DWARF but tables of each object (`.ARM.exidx`), and ask the C library for the one
//! that covers an address: `__gnu_Unwind_Find_exidx`. This file defines that function before the library's
//! does: for a stub it answers a table of one line, which names a personality of ours, and for all else what
//! the library says. The personality puts the call's real return address in the stub's place.
//!
//! The line's addresses are relative: it holds for stubs from 1 GiB below this object on.
//!
//! Source: Exception Handling ABI for the Arm Architecture (IHI 0038), 6, 7 and 8.

use crate::host::PROBES;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use probe_core::CodeAddr;

/// A line of the index, and the description that it leads to, which is nothing but a personality.
static LINE: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];
/// Where in [`LINE`] what is.
const FIRST_BYTE: usize = 0;
const DESCRIPTION: usize = 1;
const PERSONALITY: usize = 2;

/// The C library's function, 0 where there is none.
static NEXT: AtomicUsize = AtomicUsize::new(0);

type Find = unsafe extern "C" fn(usize, *mut c_int) -> *const c_void;

unsafe extern "C" {
    fn _Unwind_VRS_Get(
        context: *mut c_void,
        class: u32,
        register: u32,
        kind: u32,
        value: *mut usize,
    ) -> c_int;
    fn _Unwind_VRS_Set(
        context: *mut c_void,
        class: u32,
        register: u32,
        kind: u32,
        value: *mut usize,
    ) -> c_int;
}

/// `_UVRSC_CORE` and `_UVRSD_UINT32`: a register of the core, as a word.
const CORE: u32 = 0;
const WORD: u32 = 0;
/// The program counter.
const PC: u32 = 15;
/// `_URC_CONTINUE_UNWIND`.
const CONTINUE_UNWIND: c_int = 8;
/// `_URC_FAILURE`.
const FAILURE: c_int = 9;

/// [`LINE`], filled in: what the linker cannot do, as often as it is asked for.
fn line() -> *const c_void {
    let lowest = (&raw const LINE).addr().min(1 << 30);
    LINE[FIRST_BYTE].store(relative(FIRST_BYTE, (&raw const LINE).addr() - lowest), Relaxed);
    LINE[DESCRIPTION].store(relative(DESCRIPTION, (&raw const LINE[PERSONALITY]).addr()), Relaxed);
    LINE[PERSONALITY].store(relative(PERSONALITY, pass_stub as *const () as usize), Relaxed);
    (&raw const LINE).cast()
}

/// The C library's function, looked up once.
fn next() -> usize {
    let mut next = NEXT.load(Relaxed);
    if next == 0 {
        // SAFETY: a C string.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__gnu_Unwind_Find_exidx".as_ptr()) } as usize;
        NEXT.store(next, Relaxed);
    }
    next
}

/// `to` as a distance of 31 bits from a word of [`LINE`] (IHI 0038, 6.1).
fn relative(word: usize, to: usize) -> u32 {
    to.wrapping_sub((&raw const LINE[word]).addr()) as u32 & 0x7fff_ffff
}

/// The index that covers `at`, and its length in lines.
///
/// # Safety
/// `lines` may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __gnu_Unwind_Find_exidx(at: usize, lines: *mut c_int) -> *const c_void {
    // Unwinders ask for an address within the call, two bytes before its return address.
    if PROBES.real_return_address(CodeAddr::new(at.wrapping_add(2))).is_some() {
        // SAFETY: the caller's promise.
        unsafe { lines.write(1) };
        return line();
    }
    let next = next();
    if next == 0 {
        return core::ptr::null();
    }
    // SAFETY: the C library's function of this name has this type.
    let next = unsafe { core::mem::transmute::<usize, Find>(next) };
    // SAFETY: the caller's promise.
    unsafe { next(at, lines) }
}

/// Goes on from a stub to where its call returns, with all other registers as they are.
unsafe extern "C" fn pass_stub(_state: c_int, _exception: *mut c_void, context: *mut c_void) -> c_int {
    let mut at = 0;
    // SAFETY: the unwinder's context; a word is written.
    let got = unsafe { _Unwind_VRS_Get(context, CORE, PC, WORD, &raw mut at) };
    let Some(real) = PROBES.real_return_address(CodeAddr::new(at)).filter(|_| got == 0) else {
        return FAILURE;
    };
    let mut real = real.as_usize();
    // SAFETY: as above; a word is read.
    if unsafe { _Unwind_VRS_Set(context, CORE, PC, WORD, &raw mut real) } == 0 {
        CONTINUE_UNWIND
    } else {
        FAILURE
    }
}

/// Nothing to describe: a stub is looked up when an unwinder comes there.
pub(crate) fn add(_chunk: CodeAddr, _len_bytes: usize, _table: usize) {}

/// Nothing to take back.
pub(crate) fn remove(_chunk: CodeAddr) {}

/// No lock to hold over a fork.
pub(crate) fn hold() {}

/// As [`hold`].
///
/// # Safety
/// Always.
pub(crate) unsafe fn release() {}
