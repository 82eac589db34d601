//! The floor: what a signal round trip costs when nobody does anything in it.

use std::mem::MaybeUninit;
use std::ptr;

/// Swaps SIGTRAP's action for a bare one while `run` runs, and puts the old one back.
///
/// The bare handler only steps over the breakpoint where the architecture asks for it.
pub(crate) fn with_bare_sigtrap<R>(run: impl FnOnce() -> R) -> R {
    // SAFETY: an all-zero `sigaction` is a valid value of the C struct.
    let mut bare: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    bare.sa_sigaction = on_trap as *const () as usize;
    bare.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    let mut before = bare;
    // SAFETY: both pointers are to live structs; the handler only edits its own frame.
    let set = unsafe { libc::sigaction(libc::SIGTRAP, &raw const bare, &raw mut before) };
    assert_eq!(set, 0, "SIGTRAP's action cannot be set");
    let result = run();
    // SAFETY: `before` was filled by the call above.
    let restored = unsafe { libc::sigaction(libc::SIGTRAP, &raw const before, ptr::null_mut()) };
    assert_eq!(restored, 0, "SIGTRAP's action cannot be put back");
    result
}

/// Steps over the breakpoint: the saved pc of an x86 trap is after it already.
extern "C" fn on_trap(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    cfg_if::cfg_if! {
        if #[cfg(any(target_arch = "x86_64", target_arch = "x86"))] {
            let _ = context;
        } else if #[cfg(target_arch = "aarch64")] {
            let context = context.cast::<libc::ucontext_t>();
            // SAFETY: the kernel passes this thread's own frame, which nobody else sees.
            unsafe { (*context).uc_mcontext.pc += 4 };
        } else if #[cfg(target_arch = "powerpc64")] {
            /// Offset in bytes of `nip` in the kernel's ucontext (gp_regs at 232, register 32).
            const NIP: usize = 232 + 32 * 8;
            // SAFETY: the kernel passes this thread's own frame; `nip` lies at that offset of it.
            let nip = unsafe { context.cast::<u8>().add(NIP) }.cast::<u64>();
            // SAFETY: `nip` points into the frame, aligned.
            unsafe { *nip += 4 };
        }
    }
}
