//! Trampolines and jprobes.
