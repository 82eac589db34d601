//! One conformance suite for every architecture, host and mode.
#![no_std]
