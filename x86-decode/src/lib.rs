//! Instruction lengths and classes of x86, for placing probes.
#![no_std]
