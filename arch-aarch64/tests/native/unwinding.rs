//! How a function is called whose return address is a stub; the test is that of `tests/native`.

core::arch::global_asm!(
    r#"
    .pushsection .text.call_through_stub, "ax", %progbits
    // call_through_stub(x0: function, x1: stub, x2: where to store the real return address)
    .globl call_through_stub
    .type call_through_stub, %function
call_through_stub:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    adr x3, 1f
    str x3, [x2]
    mov x30, x1
    br x0
1:  ldp x29, x30, [sp], #16
    .cfi_def_cfa_offset 0
    .cfi_restore x29
    .cfi_restore x30
    ret
    .cfi_endproc
    .popsection
    "#
);

unsafe extern "C-unwind" {
    pub(crate) fn call_through_stub(function: extern "C-unwind" fn(), stub: usize, real: &mut usize);
}
