//! What lies where in the victims of jumps, which displace several instructions here.

use crate::Case;
use probe_host_linux::Native;
use probe_host_linux::probe_core::arch::Arch;

// Functions whose first bytes lie across a cache line, and across a page.
core::arch::global_asm!(
    ".macro jump_victim name, skip",
    ".p2align 12",
    ".skip \\skip, 0x90",
    ".globl \\name",
    ".type \\name, @function",
    "\\name:",
    "mov eax, 40",
    "add eax, 1",
    "add eax, 1",
    "ret",
    ".size \\name, . - \\name",
    ".endm",
    ".pushsection .text.jump_victims, \"ax\", @progbits",
    "jump_victim jump_victim_line, 62",
    "jump_victim jump_victim_page, 4093",
    // The opcode's byte on one page, all that it jumps by on the next.
    "jump_victim jump_victim_byte, 4095",
    // The same over several short instructions.
    ".p2align 12",
    ".skip 4094, 0x90",
    ".globl jump_victim_short",
    ".type jump_victim_short, @function",
    "jump_victim_short:",
    "xor eax, eax",
    "add eax, 41",
    "inc eax",
    "nop",
    "ret",
    ".size jump_victim_short, . - jump_victim_short",
    ".popsection",
);

unsafe extern "C" {
    safe fn jump_victim_line(a: usize, b: usize) -> usize;
    safe fn jump_victim_page(a: usize, b: usize) -> usize;
    safe fn jump_victim_byte(a: usize, b: usize) -> usize;
    safe fn jump_victim_short(a: usize, b: usize) -> usize;
}

/// How displaced instructions may lie.
pub(crate) fn victims() -> Vec<Case> {
    extern "C" fn line(a: usize, b: usize) -> usize {
        jump_victim_line(a, b)
    }
    extern "C" fn page(a: usize, b: usize) -> usize {
        jump_victim_page(a, b)
    }
    extern "C" fn byte(a: usize, b: usize) -> usize {
        jump_victim_byte(a, b)
    }
    extern "C" fn short(a: usize, b: usize) -> usize {
        jump_victim_short(a, b)
    }
    vec![
        ("jump_victim_line", line, |_, _| 42),
        ("jump_victim_page", page, |_, _| 42),
        ("jump_victim_byte", byte, |_, _| 42),
        ("jump_victim_short", short, |_, _| 42),
    ]
}

/// How many bytes the simulated instruction of [`make_42`] pushes.
pub(crate) const PUSHED: usize = size_of::<usize>();

/// Makes 42 in a register, after an instruction that is simulated.
#[cfg(target_arch = "x86_64")]
macro_rules! make_42 {
    () => {
        "push rbp; mov {0:e}, 42; pop rbp"
    };
}
#[cfg(target_arch = "x86")]
macro_rules! make_42 {
    () => {
        "push ebp; mov {0}, 42; pop ebp"
    };
}
pub(crate) use make_42;

/// Moves the stack pointer that the program goes on with.
pub(crate) fn move_stack(regs: &mut <Native as Arch>::Regs, bytes: isize) {
    #[cfg(target_arch = "x86_64")]
    let sp = &mut regs.rsp;
    #[cfg(target_arch = "x86")]
    let sp = &mut regs.esp;
    *sp = sp.wrapping_add_signed(bytes as _);
}
