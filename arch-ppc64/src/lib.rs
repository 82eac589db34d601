//! The ppc64 backend of probe-core.
#![no_std]
