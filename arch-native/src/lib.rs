//! The backend for the architecture that this is built for: the only place where a program chooses.
//!
//! [`Native`] implements `Arch`; [`backend`] is its crate, for items that only some architectures have. Code
//! of a host or a test that differs between architectures stands in a file for each, and [`native_module`]
//! picks the native one. With the feature `all` there are all backends, for tools that read other machines'
//! programs: [`for_each_backend`].
#![no_std]

cfg_if::cfg_if! {
    if #[cfg(target_arch = "x86_64")] {
        pub use probe_arch_x86_64::{self as backend, X86_64 as Native};
    } else if #[cfg(target_arch = "x86")] {
        pub use probe_arch_i386::{self as backend, I386 as Native};
    } else if #[cfg(target_arch = "aarch64")] {
        pub use probe_arch_aarch64::{self as backend, Aarch64 as Native};
    } else if #[cfg(target_arch = "powerpc")] {
        pub use probe_arch_ppc32::{self as backend, Ppc32 as Native};
    } else if #[cfg(target_arch = "powerpc64")] {
        pub use probe_arch_ppc64::{self as backend, Native};
    } else if #[cfg(target_arch = "riscv64")] {
        pub use probe_arch_riscv64::{self as backend, Riscv64 as Native};
    } else if #[cfg(target_arch = "arm")] {
        pub use probe_arch_arm::{self as backend, Arm as Native};
    } else {
        compile_error!("there is no backend for this architecture");
    }
}

/// The backends, for [`for_each_backend`].
#[cfg(feature = "all")]
#[doc(hidden)]
pub mod all {
    pub use probe_arch_aarch64::Aarch64;
    pub use probe_arch_arm::Arm;
    pub use probe_arch_i386::I386;
    pub use probe_arch_ppc32::Ppc32;
    pub use probe_arch_ppc64::{Big, ElfV1, ElfV2, Little, Ppc64};
    pub use probe_arch_riscv64::Riscv64;
    pub use probe_arch_x86_64::X86_64;
}

/// Calls the macro `$callback` with a row for each backend: the name of its variant, the bits of an address,
/// its usual name, its number in ELF files, whether those are big-endian, and the type that implements
/// `Arch`.
///
/// Of rows with the same number and byte order the first is that of most programs.
#[cfg(feature = "all")]
#[macro_export]
macro_rules! for_each_backend {
    ($callback:ident) => {
        $callback! {
            x86_64 64 "x86_64" 62 false $crate::all::X86_64;
            i386 32 "i386" 3 false $crate::all::I386;
            aarch64 64 "aarch64" 183 false $crate::all::Aarch64;
            ppc64_v1 64 "ppc64" 21 true $crate::all::Ppc64<$crate::all::Big, $crate::all::ElfV1>;
            ppc64_v2 64 "ppc64" 21 true $crate::all::Ppc64<$crate::all::Big, $crate::all::ElfV2>;
            ppc64le 64 "ppc64le" 21 false $crate::all::Ppc64<$crate::all::Little, $crate::all::ElfV2>;
            riscv64 64 "riscv64" 243 false $crate::all::Riscv64;
            arm 32 "arm" 40 false $crate::all::Arm;
            ppc32 32 "ppc32" 20 true $crate::all::Ppc32;
        }
    };
}

/// A module with one file for each architecture, which takes its items from the native one's:
/// `native_module!(mod machine)` in `src/lib.rs` is `src/machine/x86_64.rs`, `i386.rs`, `aarch64.rs`,
/// `ppc64.rs`, `ppc32.rs`, `riscv64.rs` or `arm.rs`.
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

        #[cfg(target_arch = "powerpc")]
        mod ppc32;
        #[cfg(target_arch = "powerpc")]
        #[allow(unused_imports, reason = "a file may define symbols alone")]
        pub(crate) use ppc32::*;

        #[cfg(target_arch = "riscv64")]
        mod riscv64;
        #[cfg(target_arch = "riscv64")]
        #[allow(unused_imports, reason = "a file may define symbols alone")]
        pub(crate) use riscv64::*;

        #[cfg(target_arch = "arm")]
        mod arm;
        #[cfg(target_arch = "arm")]
        #[allow(unused_imports, reason = "a file may define symbols alone")]
        pub(crate) use arm::*;
    };
}
