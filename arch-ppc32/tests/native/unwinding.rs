//! How a function is called whose return address is a stub; the test is that of `tests/native`.

use std::arch::global_asm;

// call_through_stub(r3: function, r4: stub, r5: where to store the real return address).
global_asm!(
    ".pushsection .text.call_through_stub,\"ax\",@progbits",
    ".globl call_through_stub",
    ".type call_through_stub,@function",
    "call_through_stub:",
    ".cfi_startproc",
    "mflr 0",
    "stw 0,4(1)",
    "stwu 1,-32(1)",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset 65,4",
    "bcl 20,31,1f",
    "1: mflr 6",
    "addi 6,6,2f-1b",
    "stw 6,0(5)",
    "mtctr 3",
    "mtlr 4",
    "bctr",
    "2: addi 1,1,32",
    ".cfi_def_cfa_offset 0",
    "lwz 0,4(1)",
    "mtlr 0",
    "blr",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C-unwind" {
    pub(crate) fn call_through_stub(function: extern "C-unwind" fn(), stub: usize, real: &mut usize);
}
