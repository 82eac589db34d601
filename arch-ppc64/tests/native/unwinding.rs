//! How a function is called whose return address is a stub; the test is that of `tests/native`.

use probe_arch_ppc64::Native;
use probe_core::arch::Calls;
use probe_unwind::{ByteOrder, EhFrame, Stubs, ppc64};
use std::arch::global_asm;

// call_through_stub(r3: function, r4: stub, r5: where to store the real return address), where r2 is
// reloaded.
macro_rules! call_through_stub {
    ($begin:literal, $load:literal, $toc:literal) => {
        global_asm!(
            $begin,
            ".cfi_startproc",
            "mflr 0",
            "std 0,16(1)",
            "stdu 1,-112(1)",
            ".cfi_def_cfa_offset 112",
            ".cfi_offset 65,16",
            concat!("std 2,", $toc, "(1)"),
            "bcl 20,31,1f",
            "1: mflr 6",
            "addi 6,6,2f-1b",
            "std 6,0(5)",
            $load,
            "mtctr 12",
            "mtlr 4",
            "bctr",
            concat!("2: ld 2,", $toc, "(1)"),
            "addi 1,1,112",
            ".cfi_def_cfa_offset 0",
            "ld 0,16(1)",
            "mtlr 0",
            "blr",
            ".cfi_endproc",
            ".popsection",
        );
    };
}

#[cfg(target_abi = "elfv1")]
call_through_stub!(
    ".pushsection .opd,\"aw\"
    .globl call_through_stub
    .p2align 3
    call_through_stub: .quad call_through_stub_code,.TOC.@tocbase,0
    .popsection
    .pushsection .text.call_through_stub,\"ax\",@progbits
    call_through_stub_code:",
    "ld 12,0(3); ld 2,8(3)",
    "40"
);
#[cfg(not(target_abi = "elfv1"))]
call_through_stub!(
    ".pushsection .text.call_through_stub,\"ax\",@progbits
    .globl call_through_stub
    .type call_through_stub,@function
    call_through_stub:",
    "mr 12,3",
    "24"
);

unsafe extern "C-unwind" {
    pub(crate) fn call_through_stub(function: extern "C-unwind" fn(), stub: usize, real: &mut usize);
}

/// Describes a chunk of stubs of the byte order and ABI that this is compiled for.
pub(crate) fn eh_frame(stubs: &Stubs) -> EhFrame {
    let order = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };
    let toc_at = if cfg!(target_abi = "elfv1") { 40 } else { 24 };
    ppc64::eh_frame(order, toc_at, stubs, Native::STUB_LEN)
}
