//! The aarch64 backend of probe-core.
#![no_std]
