//! Named encodings: shared, see [`probe_x86_decode::insn`] for the parts of an instruction.

pub use probe_x86_decode::{BREAKPOINT, MAX_INSN_LEN, SLOT_LEN, is_breakpoint};
