//! x86: functions that take their numbers in AX and CX, and whose fourth instruction faults.

use crate::instructions::Case;

cfg_if::cfg_if! {
    if #[cfg(target_arch = "x86_64")] {
        /// Where in `ucontext_t` the registers are.
        pub(crate) const REGISTERS_AT: usize = 40;
        /// Those that the functions set: RDI, RSI, RDX, RAX, RCX.
        pub(crate) const REGISTERS: &[usize] = &[8, 9, 12, 13, 14];
        /// The instruction pointer.
        pub(crate) const PC: usize = 16;
        /// All instructions up to the one that faults.
        pub(crate) const STEPPED: &[isize] = &[0, 3, 6, 7];

        functions! {
            "mov rax, rdi\nmov rcx, rsi\ncdq", "ret";
            flt_divide flt_divide_end "idiv ecx";
            flt_load flt_load_end "mov rax, [rax]";
            flt_store flt_store_end "mov [rax], rcx";
            flt_relative_store flt_relative_store_end "mov [rip + flt_load_end], ecx";
            flt_call flt_call_end "call [rax]";
            flt_jump flt_jump_end "jmp [rax]";
            flt_port flt_port_end "in al, dx";
            flt_undefined flt_undefined_end "vmread rax, rax";
            flt_high flt_high_end "mov rax, [rax + rcx]";
            // Behind what the other functions begin with.
            flt_fork flt_fork_end "mov eax, 57\nsyscall";
            // The child ends itself with status 7.
            flt_vfork flt_vfork_end
                "mov eax, 58\nsyscall\ntest eax, eax\njnz flt_vfork_end\nmov edi, 7\nmov eax, 231\nsyscall";
        }
        /// The system call.
        pub(crate) const FORK_PLACE: isize = 12;
        /// No canonical address.
        const HIGH: usize = 1 << 62;
    } else {
        /// Where in `ucontext_t` the registers are.
        pub(crate) const REGISTERS_AT: usize = 20;
        /// Those that the functions set: EDX, ECX, EAX.
        pub(crate) const REGISTERS: &[usize] = &[9, 10, 11];
        /// The instruction pointer.
        pub(crate) const PC: usize = 14;
        /// All instructions up to the one that faults.
        pub(crate) const STEPPED: &[isize] = &[0, 4, 8, 9];

        functions! {
            "mov eax, [esp + 4]\nmov ecx, [esp + 8]\ncdq", "ret";
            flt_divide flt_divide_end "idiv ecx";
            flt_load flt_load_end "mov eax, [eax]";
            flt_store flt_store_end "mov [eax], ecx";
            // Position-independent code has no other way than an address in a register.
            flt_relative_store flt_relative_store_end "mov [eax], ecx";
            flt_call flt_call_end "call [eax]";
            flt_jump flt_jump_end "jmp [eax]";
            flt_port flt_port_end "in al, dx";
            flt_undefined flt_undefined_end "vmread eax, eax";
            flt_high flt_high_end "mov eax, [eax + ecx]";
            // Behind what the other functions begin with.
            flt_fork flt_fork_end "mov eax, 2\nint 0x80";
            // The child ends itself with status 7; EBX is the caller's.
            flt_vfork flt_vfork_end
                "mov eax, 190\nint 0x80\ntest eax, eax\njnz flt_vfork_end\nmov ebx, 7\nmov eax, 252\nint 0x80";
        }
        /// The system call.
        pub(crate) const FORK_PLACE: isize = 14;
        /// The kernel's.
        const HIGH: usize = 0xffff_e000;
    }
}

/// A jump at the first displaces them all.
pub(crate) const JUMPED: &[isize] = &[0];

/// `beyond`: a page of a file that ends before it.
pub(crate) fn cases(beyond: usize) -> Vec<Case> {
    vec![
        Case::new("flt_divide", 5, 0, libc::SIGFPE),
        Case::new("flt_load", 16, 0, libc::SIGSEGV),
        Case::new("flt_load", beyond, 0, libc::SIGBUS),
        Case::new("flt_store", 24, 1, libc::SIGSEGV),
        Case::new("flt_relative_store", function("flt_load").0, 1, libc::SIGSEGV),
        Case::new("flt_call", 32, 0, libc::SIGSEGV),
        Case::new("flt_jump", 40, 0, libc::SIGSEGV),
        Case::new("flt_jump", beyond, 0, libc::SIGBUS),
        Case::new("flt_port", 0, 0, libc::SIGSEGV),
        Case::new("flt_undefined", 0, 0, libc::SIGILL),
        Case::new("flt_high", HIGH, 0, libc::SIGSEGV),
    ]
}
