//! Listings, the switch, counters and explanations: the contents of the kernel's debug file system.
//!
//! Text goes to a buffer of the caller's, as with `snprintf`: it is cut off where it does not fit, always
//! NUL-terminated if `len` is not 0, and the answer is the length of the whole text, or a negative errno.

use crate::host;
use crate::types::{kprobe, probe_counters};
use core::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use core::fmt::{self, Write};
use probe_core::error::{Errno, RegisterError};
use probe_core::files::Viewer;
use probe_core::{CodeAddr, Explanation, Place};

/// A caller's buffer, and the length that the whole text has so far.
pub(crate) struct Buffer<'a> {
    room: &'a mut [u8],
    wanted: usize,
}

impl Write for Buffer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = self.room.get_mut(self.wanted..).unwrap_or_default();
        for (to, from) in free.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        self.wanted = self.wanted.saturating_add(text.len());
        Ok(())
    }
}

impl Buffer<'_> {
    /// # Safety
    /// `at` is null, or points to `len` bytes that nobody else uses while this lives.
    pub(crate) unsafe fn new(at: *mut c_char, len: usize) -> Self {
        if at.is_null() || len == 0 {
            return Self { room: &mut [], wanted: 0 };
        }
        // SAFETY: the caller's promise; bytes need no initial value that means anything.
        Self { room: unsafe { core::slice::from_raw_parts_mut(at.cast(), len) }, wanted: 0 }
    }

    /// Ends the text, and answers how long it would have been.
    pub(crate) fn finish(self) -> c_long {
        if let Some(last) = self.room.len().checked_sub(1) {
            self.room[self.wanted.min(last)] = 0;
        }
        c_long::try_from(self.wanted).unwrap_or(c_long::MAX)
    }
}

fn viewer(is_privileged: c_int) -> Viewer {
    if is_privileged == 0 { Viewer::Unprivileged } else { Viewer::Privileged }
}

/// One line per probe, in the format of the kernel's file `kprobes/list` (CTL_3). The unprivileged see zeros
/// for addresses.
///
/// # Safety
/// `buf` points to `len` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kprobes_list(buf: *mut c_char, len: usize, is_privileged: c_int) -> c_long {
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno as _,
    };
    // SAFETY: the caller's promise.
    let mut out = unsafe { Buffer::new(buf, len) };
    // A buffer refuses nothing.
    let _ = probes.files().list(&mut out, viewer(is_privileged));
    out.finish()
}

/// One line per range that must not be probed, in the format of the kernel's file `kprobes/blacklist`
/// (CTL_4).
///
/// # Safety
/// `buf` points to `len` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kprobes_blacklist(buf: *mut c_char, len: usize, is_privileged: c_int) -> c_long {
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno as _,
    };
    // SAFETY: the caller's promise.
    let mut out = unsafe { Buffer::new(buf, len) };
    // A buffer refuses nothing.
    let _ = probes.files().blacklist(&mut out, viewer(is_privileged));
    out.finish()
}

/// 1 if probes are on, 0 if they are all switched off, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn kprobes_enabled() -> c_int {
    host::probes().map_or_else(|errno| errno, |probes| probes.is_on().into())
}

/// Takes the text that a user writes to the kernel's file `kprobes/enabled` (CTL_2). Answers 0 or a negative
/// errno.
///
/// # Safety
/// `text` ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kprobes_write_enabled(text: *const c_char) -> c_int {
    if text.is_null() {
        return -Errno::EINVAL.as_i32();
    }
    // SAFETY: the caller's promise.
    let Ok(text) = (unsafe { CStr::from_ptr(text) }).to_str() else { return -Errno::EINVAL.as_i32() };
    match host::probes().map(|probes| probes.files().write_enabled(text)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => -error.errno().as_i32(),
        Err(errno) => errno,
    }
}

/// The counters of a registered probe (of a return probe or jprobe, give its `kp`). Also brings `nmissed` up
/// to date. Answers 0, or `-EINVAL` if it is not registered. Allowed in a handler.
///
/// # Safety
/// Both pointers are valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kprobe_counters(p: *mut kprobe, out: *mut probe_counters) -> c_int {
    // SAFETY: the caller's promise.
    let Some(p) = (unsafe { p.as_mut() }) else { return -Errno::EINVAL.as_i32() };
    // SAFETY: the caller's promise: a registered structure is left alone.
    let Some(counters) = unsafe { p.handle() }.map(|handle| handle.counters()) else {
        return -Errno::EINVAL.as_i32();
    };
    p.nmissed = c_ulong::try_from(counters.missed_nested).unwrap_or(c_ulong::MAX);
    // SAFETY: the caller's promise.
    if let Some(out) = unsafe { out.as_mut() } {
        *out = probe_counters {
            hits: counters.hits,
            missed_nested: counters.missed_nested,
            missed_pool: counters.missed_pool,
            vetoed: counters.vetoed,
            abandoned: counters.abandoned,
            faults: counters.faults,
            pool_high_water: counters.pool_high_water,
        };
    }
    0
}

/// Why there is no jump, or where memory for its detour would have to be.
fn explain_jump(out: &mut Buffer<'_>, found: &Explanation) -> fmt::Result {
    if let Err(refusal) = found.jump {
        return write!(out, "; no jump: {}", refusal.sentence);
    }
    out.write_str("; a jump, if there is executable memory")?;
    found.room.iter().try_for_each(|room| write!(out, " from {} to {}", room.start, room.end))
}

/// The outcome of a registration at this address, as one sentence, without registering (REG_9): how the
/// instruction would be executed, whether return probes can stand there, and why there would be no jump, or
/// where executable memory for its detour would have to be.
///
/// # Safety
/// `buf` points to `len` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kprobes_explain(addr: c_ulong, buf: *mut c_char, len: usize) -> c_long {
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno as _,
    };
    // SAFETY: the caller's promise.
    let mut out = unsafe { Buffer::new(buf, len) };
    // A buffer refuses nothing.
    let _ = match probes.explain(&Place::addr(CodeAddr::new(addr as usize))) {
        Ok(found) => {
            let (name, offset) = found.symbol.as_ref().map_or(("?", 0), |(name, offset)| (name, *offset));
            let told = write!(out, "{name}+{offset:#x}: {:?}, {} bytes", found.method, found.insn.len());
            let told = match &found.entry {
                Err(error @ RegisterError::NotCalled { .. }) => told.and(write!(out, "; {error}")),
                _ => told,
            };
            told.and(explain_jump(&mut out, &found))
        }
        Err(error) => write!(out, "-{} {}: {error}", error.errno().as_i32(), error.code()),
    };
    out.finish()
}

/// The real return address of a call whose return address `at` a return probe has replaced; otherwise `at`
/// itself (RET_8). For stack walks.
#[unsafe(no_mangle)]
pub extern "C" fn kretprobe_real_return_address(at: c_ulong) -> c_ulong {
    let real = host::started().and_then(|probes| probes.real_return_address(CodeAddr::new(at as usize)));
    real.map_or(at, |real| real.as_usize() as c_ulong)
}
