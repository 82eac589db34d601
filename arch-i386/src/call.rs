//! The calling convention, cdecl with arguments on the stack: shared, see [`probe_x86_decode::call`].
//!
//! A function that takes arguments in registers (fastcall, regparm) has them in `Regs` at entry, and a
//! jprobe's handler of the same convention finds them there.
