//! The backend for the architecture that this is built for: the only place where a program chooses.
//!
//! [`Native`] is what implements `Arch`; [`backend`] is its crate, for what only some architectures have.
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
