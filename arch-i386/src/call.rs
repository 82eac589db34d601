//! The calling convention: cdecl, arguments on the stack.
//!
//! A function that takes arguments in registers (fastcall, regparm) has them in the registers at entry, and a jprobe
//! handler of the same convention finds them there.

use crate::regs::Regs;
use probe_core::CodeAddr;
use probe_core::arch::{Entry, MemFault, Memory};
pub(crate) use probe_x86_decode::call::{enter_jprobe, stack_argument as argument};
use probe_x86_decode::{ProtectedMode, call};

pub(crate) fn return_value(regs: &Regs) -> usize {
    regs.eax as usize
}

pub(crate) fn set_return_value(regs: &mut Regs, value: usize) {
    regs.eax = value as u32;
}

pub(crate) fn entry<M: Memory>(regs: &Regs, memory: &M) -> Result<Entry, MemFault> {
    call::entry(regs, memory)
}

pub(crate) fn set_return_address<M: Memory>(regs: &Regs, to: CodeAddr, memory: &M) -> Result<(), MemFault> {
    call::set_return_address(regs, to, memory)
}

pub(crate) fn may_return<M: Memory>(frame: usize, stub: CodeAddr, memory: &M) -> bool {
    call::may_return::<Regs, M>(frame, stub, memory)
}

pub(crate) fn fill_stubs(chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    call::fill_stubs::<ProtectedMode>(chunk, trampoline, handler, out)
}
