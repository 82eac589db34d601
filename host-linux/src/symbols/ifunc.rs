//! Indirect functions (`STT_GNU_IFUNC`): which implementation a name stands for.
//!
//! The symbol's own code is a resolver: a function without side effects that the loader calls once and that
//! returns the implementation for this CPU (glibc's `memcpy`, for instance). We call it the same way and
//! probe what it returns: what the program really runs. A probe on the resolver itself would never be hit
//! again.

use core::ffi::c_ulong;

/// Asks the resolver at `resolver`, in the form that the architecture's loader uses. Returns the address of
/// code.
pub(crate) fn resolve(resolver: usize) -> usize {
    // SAFETY: it has no preconditions.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) };
    let answer = call(resolver, capabilities);
    code_of(answer)
}

#[cfg(not(target_arch = "aarch64"))]
fn call(resolver: usize, capabilities: c_ulong) -> usize {
    // SAFETY: `resolver` is the address of an STT_GNU_IFUNC symbol of a loaded and relocated object (on ppc64
    // ELFv1 that of its descriptor, which is what a function pointer is there); its ABI takes the hardware
    // capabilities (ppc64) or nothing (x86, which ignores the argument), and returns an address.
    let resolver = unsafe { core::mem::transmute::<usize, extern "C" fn(c_ulong) -> usize>(resolver) };
    resolver(capabilities)
}

#[cfg(target_arch = "aarch64")]
fn call(resolver: usize, capabilities: c_ulong) -> usize {
    /// `_IFUNC_ARG_HWCAP`: the second argument is there.
    const HAS_ARGUMENT: u64 = 1 << 62;
    /// `__ifunc_arg_t`.
    #[repr(C)]
    struct Argument {
        len_bytes: c_ulong,
        hwcap: c_ulong,
        hwcap2: c_ulong,
    }
    // SAFETY: it has no preconditions.
    let hwcap2 = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    let argument = Argument { len_bytes: size_of::<Argument>() as c_ulong, hwcap: capabilities, hwcap2 };
    // SAFETY: `resolver` is the address of an STT_GNU_IFUNC symbol of a loaded and relocated object; this is
    // the form in which glibc calls it (sysdeps/aarch64/dl-irel.h).
    let resolver =
        unsafe { core::mem::transmute::<usize, extern "C" fn(u64, *const Argument) -> usize>(resolver) };
    resolver(capabilities | HAS_ARGUMENT, &raw const argument)
}

/// The code behind a function pointer: on ppc64 ELFv1 the first word of the descriptor.
fn code_of(function: usize) -> usize {
    if cfg!(target_abi = "elfv1") {
        let mut word = [0; size_of::<usize>()];
        crate::memory::read_some(function, &mut word);
        usize::from_ne_bytes(word)
    } else {
        function
    }
}
