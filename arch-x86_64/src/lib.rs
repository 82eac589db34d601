//! The x86_64 backend of probe-core.
#![no_std]
