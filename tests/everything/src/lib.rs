//! A probe on every instruction of real programs.
//!
//! The test (`tests/main.rs`) runs programs that nobody built for it: bare, single-stepped, and with a probe
//! on every instruction of the program and of chosen libraries. This library is the agent that the dynamic
//! linker loads into them (`LD_PRELOAD`); as anything but that it is empty.

#[cfg(feature = "agent")]
mod agent;
