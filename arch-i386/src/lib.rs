//! The i386 backend of probe-core.
#![no_std]
