//! What can be tested of a host's promises. The sentence goes to a buffer, as in `listing`.

use crate::host;
use crate::listing::Buffer;
use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write;
use probe_core::error::{Errno, SelfTestError};

/// 0 and an empty text, or `-EFAULT` and the promise that is broken.
///
/// # Safety
/// `buf` points to `len` bytes, or is null.
unsafe fn tell(tested: Result<(), SelfTestError>, buf: *mut c_char, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    let mut out = unsafe { Buffer::new(buf, len) };
    let answer = match tested {
        Ok(()) => 0,
        Err(error) => {
            // A buffer refuses nothing.
            let _ = write!(out, "{error}");
            -Errno::EFAULT.as_i32()
        }
    };
    out.finish();
    answer
}

/// Has `say` say which promise is broken, as C wants it.
#[cfg(not(feature = "process"))]
pub(crate) fn say(error: &SelfTestError, say: impl FnOnce(*const c_char)) {
    let mut text: [c_char; 160] = [0; 160];
    // SAFETY: so many bytes, of this function's.
    let mut out = unsafe { Buffer::new(text.as_mut_ptr(), text.len()) };
    // A buffer refuses nothing.
    let _ = write!(out, "probes: {error}");
    out.finish();
    say(text.as_ptr());
}

/// Tests the promises of the kernel or process that need no probe. Answers 0; `-EFAULT`, and `buf` gets a
/// sentence that names the promise that is broken; or another negative errno.
///
/// # Safety
/// `buf` points to `len` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_self_test(buf: *mut c_char, len: usize) -> c_int {
    match host::probes() {
        // SAFETY: the caller's promise.
        Ok(probes) => unsafe { tell(probes.self_test(), buf, len) },
        Err(errno) => errno,
    }
}

/// Tests what a hit shows: plants probes on the function `symbol` (`name` or `module:name`), which nobody
/// else probes, has `call` call it, also in a handler, and takes them away again. The trap has to arrive,
/// leave the gap below the interrupted stack, nest, run the slot and come back through the stub. Answers as
/// `probe_self_test` does.
///
/// # Safety
/// `symbol` ends with NUL; `call` calls that function and nothing that must not be called in a handler; `buf`
/// points to `len` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn probe_self_test_at(
    symbol: *const c_char,
    call: Option<unsafe extern "C" fn()>,
    buf: *mut c_char,
    len: usize,
) -> c_int {
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno,
    };
    let (Some(call), false) = (call, symbol.is_null()) else { return -Errno::EINVAL.as_i32() };
    // SAFETY: the caller's promise.
    let Ok(symbol) = (unsafe { CStr::from_ptr(symbol) }).to_str() else { return -Errno::EINVAL.as_i32() };
    // SAFETY: the caller's promise.
    let tested = probes.self_test_at(symbol, || unsafe { call() });
    // SAFETY: the caller's promise.
    unsafe { tell(tested, buf, len) }
}
