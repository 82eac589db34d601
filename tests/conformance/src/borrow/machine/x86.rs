use core::arch::asm;

/// JMP through memory in GS: the slot loads the target into AX.
#[inline(always)]
pub(crate) fn borrow(segment_base: usize) -> usize {
    const MARK: usize = 0x1234_5678;
    let target = 0_usize;
    let pointer = (&raw const target).addr().wrapping_sub(segment_base);
    let mut ax = MARK;
    // SAFETY: stores the address of its own label to `target`, and jumps to it.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "lea rdx, [rip + 2f]",
            "mov gs:[rcx], rdx",
            "jmp qword ptr gs:[rcx]",
            "ud2",
            "2:",
            inout("rax") ax, in("rcx") pointer, out("rdx") _,
        );
        #[cfg(target_arch = "x86")]
        asm!(
            "call 3f",
            "3: popl %edx",
            "addl $(2f - 3b), %edx",
            "movl %edx, %gs:(%ecx)",
            "jmpl *%gs:(%ecx)",
            "ud2",
            "2:",
            inout("eax") ax, in("ecx") pointer, out("edx") _,
            options(att_syntax),
        );
    }
    usize::from(ax == MARK)
}
