//! A target with an instruction whose slot borrows a register, on every architecture: the one that is given back when
//! the step has ended.

use core::arch::asm;

/// Runs one instruction whose slot borrows a register, and returns 1 if that register has kept its value.
///
/// `segment_base`: where GS begins (x86); of no use elsewhere.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_borrow(segment_base: usize) -> usize {
    borrow(segment_base)
}

/// JMP through memory in GS: the slot loads the target into AX.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
#[inline(always)]
fn borrow(segment_base: usize) -> usize {
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

/// BRAA: the slot authenticates X16 in place.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn borrow(_: usize) -> usize {
    let is_kept: usize;
    // SAFETY: jumps to its own label, which it has signed.
    unsafe {
        asm!(
            "adr x16, 2f",
            // pacia x16, sp; braa x16, sp
            ".inst 0xdac103f0",
            "mov x17, x16",
            ".inst 0xd71f0a1f",
            "udf #0",
            "2:",
            "cmp x16, x17",
            "cset {}, eq",
            out(reg) is_kept, out("x16") _, out("x17") _,
            options(nostack),
        );
    }
    is_kept
}

/// BCTAR: the slot reads the target address register into r0.
#[cfg(target_arch = "powerpc64")]
#[inline(always)]
fn borrow(_: usize) -> usize {
    const MARK: usize = 0x1234_5678;
    let mut r0 = MARK;
    // SAFETY: jumps to its own label; nothing else here uses the target address register.
    unsafe {
        asm!(
            "bcl 20, 31, 3f",
            "3: mflr {t}",
            "addi {t}, {t}, 2f - 3b",
            "mtspr 815, {t}",
            // bctar 20, 0, 0
            ".long 0x4e800460",
            "trap",
            "2:",
            t = out(reg_nonzero) _, inout("r0") r0, out("lr") _,
            options(nostack),
        );
    }
    usize::from(r0 == MARK)
}
