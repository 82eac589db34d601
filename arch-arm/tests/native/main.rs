//! The backend compared with execution, on the architecture itself.
#![cfg(all(target_arch = "arm", target_os = "linux"))]

mod machine;
mod probed;
mod trampolines;
mod transparency;
