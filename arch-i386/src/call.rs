//! The calling convention, cdecl with arguments on the stack: shared, see [`probe_x86_decode::call`].
//!
//! A function that takes arguments in registers (fastcall, regparm) has them in the registers at entry, and a jprobe
//! handler of the same convention finds them there.
