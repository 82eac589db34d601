//! The backend for the architecture that this is built for: the only place where a program chooses.
//!
//! [`Native`] is what implements `Arch`; [`backend`] is its crate, for what only some architectures have. What differs elsewhere,
//! in a host or a test, stands in a file for each architecture, and [`native_module`] picks it.
#![no_std]

cfg_if::cfg_if! {
    if #[cfg(target_arch = "x86_64")] {
        pub use probe_arch_x86_64::{self as backend, X86_64 as Native};
    } else if #[cfg(target_arch = "x86")] {
        pub use probe_arch_i386::{self as backend, I386 as Native};
    } else if #[cfg(target_arch = "aarch64")] {
        pub use probe_arch_aarch64::{self as backend, Aarch64 as Native};
    } else if #[cfg(target_arch = "powerpc64")] {
        pub use probe_arch_ppc64::{self as backend, Native};
    } else {
        compile_error!("there is no backend for this architecture");
    }
}

/// A module with one file for each architecture, of which it has the native one's items: `native_module!(mod machine)` in
/// `src/lib.rs` is `src/machine/x86_64.rs`, `i386.rs`, `aarch64.rs` or `ppc64.rs`.
///
/// With `by family` x86-64 and i386 share `x86.rs`. Macros that the files need stand above the invocation.
#[macro_export]
macro_rules! native_module {
    ($(#[$attribute:meta])* $visibility:vis mod $name:ident) => {
        $(#[$attribute])*
        $visibility mod $name {
            #[cfg(target_arch = "x86_64")]
            mod x86_64;
            #[cfg(target_arch = "x86_64")]
            #[allow(unused_imports, reason = "a file may define symbols alone")]
            pub(crate) use x86_64::*;

            #[cfg(target_arch = "x86")]
            mod i386;
            #[cfg(target_arch = "x86")]
            #[allow(unused_imports, reason = "a file may define symbols alone")]
            pub(crate) use i386::*;

            $crate::native_module!(@others);
        }
    };
    ($(#[$attribute:meta])* $visibility:vis mod $name:ident by family) => {
        $(#[$attribute])*
        $visibility mod $name {
            #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
            mod x86;
            #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
            #[allow(unused_imports, reason = "a file may define symbols alone")]
            pub(crate) use x86::*;

            $crate::native_module!(@others);
        }
    };
    (@others) => {
        #[cfg(target_arch = "aarch64")]
        mod aarch64;
        #[cfg(target_arch = "aarch64")]
        #[allow(unused_imports, reason = "a file may define symbols alone")]
        pub(crate) use aarch64::*;

        #[cfg(target_arch = "powerpc64")]
        mod ppc64;
        #[cfg(target_arch = "powerpc64")]
        #[allow(unused_imports, reason = "a file may define symbols alone")]
        pub(crate) use ppc64::*;
    };
}
