//! How a function is called whose return address is a stub; the test is that of `tests/native`.

core::arch::global_asm!(
    r#"
    .pushsection .text.call_through_stub, "ax", @progbits
    // call_through_stub(a0: function, a1: stub, a2: where to store the real return address)
    .globl call_through_stub
    .type call_through_stub, @function
call_through_stub:
    .cfi_startproc
    addi sp, sp, -16
    .cfi_def_cfa_offset 16
    sd ra, 8(sp)
    .cfi_offset ra, -8
    lla a3, 1f
    sd a3, (a2)
    mv ra, a1
    jr a0
1:  ld ra, 8(sp)
    addi sp, sp, 16
    .cfi_def_cfa_offset 0
    .cfi_restore ra
    ret
    .cfi_endproc
    .popsection
    "#
);

unsafe extern "C-unwind" {
    pub(crate) fn call_through_stub(function: extern "C-unwind" fn(), stub: usize, real: &mut usize);
}
