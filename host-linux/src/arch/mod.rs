//! The native architecture: the code of this crate that differs between architectures, one file each, with
//! the same names in all.
//!
//! * `Native`: the backend.
//! * `load_regs`, `store_regs`: the interrupted registers, from and to the kernel's `ucontext_t`.
//! * offsets of the fields that every `ucontext_t` has (pc, sp, signal mask).
//! * `is_breakpoint_trap`, `trap_number`.
//! * `WATCHPOINTS`, `check_watch`: how many watchpoints a process has, and which.
//! * `IS_ADDRESS_THUNK`: recognises a function that returns its caller's address by its first four bytes,
//!   where compilers make such functions.
//! * `enter`: replaces a function's entry by another's; `set_argument`: writes an argument there.
//! * `SYSCALL`: how libc's code makes a system call; `syscall`: makes one.
//! * `shared_assembly!`: the thread-local slot (initial-exec model: no call, no allocation at first use), the
//!   copy that survives faults, a system call; the signal return where the kernel has none.
//! * `FRAMES`: how stacks are walked.
//! * `start`: tells the backend what a process cannot ask the processor for.
//!
//! What several share is in `plain`, `assembly` and `x86`.
//!
//! Sources: the kernel's `arch/*/include/uapi/asm/{sigcontext,ucontext}.h` (Linux 6.12); ELF TLS ABI.

mod assembly;
mod code;
mod frame;
mod plain;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86;

pub use native::FRAMES;
pub use probe_arch_native::Native;

#[cfg(all(target_arch = "powerpc64", any(feature = "private-mem", test)))]
pub(crate) use assembly::function;
pub(crate) use assembly::{nofault_copy, nofault_fixup, syscall};
pub(crate) use code::{Leads, Load};
pub(crate) use frame::Regs;

use crate::abi::{AltStack, SigInfo, SignalSet};
use frame::Frame;
use probe_core::CodeAddr;
use probe_core::arch::Arch;

cfg_if::cfg_if! {
    if #[cfg(target_arch = "x86_64")] {
        mod x86_64;
        use x86_64 as native;
    } else if #[cfg(target_arch = "x86")] {
        mod i386;
        use i386 as native;
    } else if #[cfg(target_arch = "aarch64")] {
        mod aarch64;
        use aarch64 as native;
    } else if #[cfg(target_arch = "powerpc64")] {
        mod powerpc64;
        use powerpc64 as native;
    } else if #[cfg(target_arch = "powerpc")] {
        mod ppc32;
        use ppc32 as native;
    } else if #[cfg(target_arch = "riscv64")] {
        mod riscv64;
        use riscv64 as native;
    } else if #[cfg(target_arch = "arm")] {
        mod arm;
        use arm as native;
    } else {
        compile_error!("probe-host-linux has no backend for this architecture");
    }
}

#[cfg(any(feature = "mapped", all(test, target_arch = "x86_64", target_env = "gnu")))]
pub(crate) use native::thread_pointer;
pub(crate) use native::{
    IS_ADDRESS_THUNK, RESTORER_FLAG, RETURN_ONE, RETURN_TWO, SYSCALL, WATCHPOINTS, branch_target,
    check_watch, enter, function_entry, is_breakpoint_trap, is_step_trap, restorer, set_argument,
    sigaltstack_from, thread_slot, uncheck_alignment,
};

// On arm no unwinder reads DWARF.
#[cfg(not(target_arch = "arm"))]
pub(crate) use native::eh_frame;

/// The `ucontext_t` of a running signal handler.
#[derive(Clone, Copy)]
pub(crate) struct UContext(Frame);

impl UContext {
    /// Wraps the third argument of a signal handler.
    ///
    /// # Safety
    /// `raw` is that argument, and the handler is still running while the value is used.
    pub(crate) unsafe fn new(raw: *mut core::ffi::c_void) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Frame::new(raw, native::FRAME_LEN) })
    }

    /// The raw pointer again.
    pub(crate) fn as_ptr(self) -> *mut core::ffi::c_void {
        self.0.at(0)
    }

    /// The interrupted registers.
    pub(crate) fn load_regs(self) -> Regs {
        native::load_regs(self.0)
    }

    /// Resumes with `regs` when the handler returns.
    pub(crate) fn store_regs(self, regs: &Regs) {
        native::store_regs(self.0, regs);
    }

    /// The interrupted program counter: the address of a byte, without the instruction set.
    pub(crate) fn pc(self) -> usize {
        self.0.word(native::PC)
    }

    /// Resumes at `pc`, in the instruction set that was interrupted.
    pub(crate) fn set_pc(self, pc: usize) {
        self.0.set_word(native::PC, pc);
    }

    /// The interrupted stack pointer.
    pub(crate) fn sp(self) -> usize {
        self.0.word(native::SP)
    }

    /// The architecture's number of the trap, or the signal where the architecture does not tell.
    pub(crate) fn trap_number(self, signal: core::ffi::c_int) -> u32 {
        native::trap_number(self.0, signal)
    }

    /// Calls a handler of the program's for the signal that has interrupted it here; it finds unaligned
    /// accesses checked as the program had them.
    ///
    /// # Safety
    /// The program has given this function to be called at this signal; `info` is the kernel's.
    #[inline(always)]
    pub(crate) unsafe fn call_handler(self, handler: usize, signal: core::ffi::c_int, info: *mut SigInfo) {
        // SAFETY: as promised; the frame is the kernel's.
        unsafe { native::call_handler(handler, signal, info, self.0) };
    }

    /// Whether the interrupted program steps itself: a trap behind each of its instructions.
    #[inline(always)]
    pub(crate) fn steps_itself(self) -> bool {
        native::steps_itself(self.0)
    }

    /// Makes the frame that of such a trap.
    pub(crate) fn set_step(self) {
        native::set_step(self.0);
    }

    /// Makes the frame say that the access at `addr` has faulted.
    pub(crate) fn set_fault(self, addr: usize, is_write: bool) {
        native::set_fault(self.0, addr, is_write);
    }

    /// Resumes at the breakpoint that has trapped, so that it traps again.
    pub(crate) fn rewind_breakpoint(self) {
        let at = Native::breakpoint_address(&self.load_regs());
        self.set_pc(CodeAddr::as_usize(Native::first_byte(at)));
    }

    /// The signal mask that comes back when the handler returns.
    pub(crate) fn mask(self) -> SignalSet {
        // SAFETY: `uc_sigmask` lies at this offset of the kernel's structure, which `new` vouches for.
        unsafe { self.0.at::<SignalSet>(native::SIGMASK).read_unaligned() }
    }

    /// Lets `mask` come in force when the handler returns.
    pub(crate) fn set_mask(self, mask: SignalSet) {
        // SAFETY: as in `mask`; the frame is ours to change while the handler runs.
        unsafe { self.0.at::<SignalSet>(native::SIGMASK).write_unaligned(mask) };
    }

    /// The alternate stack that the signal return restores.
    pub(crate) fn altstack(self) -> AltStack {
        // SAFETY: `uc_stack` follows `uc_flags` and `uc_link` on every architecture.
        unsafe { self.0.at::<AltStack>(UC_STACK).read() }
    }

    /// Makes the signal return restore `stack` as the alternate stack.
    pub(crate) fn set_altstack(self, stack: &AltStack) {
        // SAFETY: as in `altstack`.
        unsafe { self.0.at::<AltStack>(UC_STACK).write(*stack) };
    }
}

/// Tells the backend the facts that a process cannot ask the processor for.
pub(crate) fn start() {
    native::start();
}

/// Skips an instruction that reads the processor's counter, with the result 0; `false` if `insn` is another
/// one.
pub(crate) fn skip_counter(context: UContext, insn: [u8; 4]) -> bool {
    native::skip_counter(context.0, insn)
}

/// The offset of `uc_stack`: behind `uc_flags` and `uc_link`.
const UC_STACK: usize = 2 * size_of::<usize>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fault_free_copy_reports_what_it_could_not_copy() {
        let from = *b"0123456789abcdef0123456789";
        let mut to = [0_u8; 26];
        for len in 0..=from.len() {
            to.fill(0);
            // SAFETY: both arrays are longer than `len`.
            let left = unsafe { nofault_copy(to.as_mut_ptr(), from.as_ptr(), len) };
            assert_eq!(left, 0);
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|&byte| byte == 0), "{len}");
        }
    }

    #[test]
    fn every_thread_has_its_own_slot() {
        let mine = thread_slot() as usize;
        assert_eq!(mine, thread_slot() as usize);
        let other = std::thread::spawn(|| thread_slot() as usize).join().unwrap();
        assert_ne!(mine, other);
    }
}
