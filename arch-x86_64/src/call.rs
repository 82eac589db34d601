//! The calling convention: System V, six integer arguments in registers.

use crate::regs::Regs;
use probe_core::CodeAddr;
use probe_core::arch::{Entry, MemFault, Memory};
pub(crate) use probe_x86_decode::call::enter_jprobe;
use probe_x86_decode::{LongMode, call};

pub(crate) fn argument<M: Memory>(regs: &Regs, index: usize, memory: &M) -> Option<usize> {
    let in_register = match index {
        0 => regs.rdi,
        1 => regs.rsi,
        2 => regs.rdx,
        3 => regs.rcx,
        4 => regs.r8,
        5 => regs.r9,
        _ => return call::stack_argument(regs, index - 6, memory),
    };
    Some(in_register as usize)
}

pub(crate) fn return_value(regs: &Regs) -> usize {
    regs.rax as usize
}

pub(crate) fn set_return_value(regs: &mut Regs, value: usize) {
    regs.rax = value as u64;
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
    call::fill_stubs::<LongMode>(chunk, trampoline, handler, out)
}
