//! A panic that unwinds through a return stub arrives at its `catch_unwind` (RET_7, RET_8).

use crate::calls::chunk;
use probe_arch_ppc64::Native;
use probe_core::CodeAddr;
use probe_core::arch::{Calls, SaveSet};
use probe_unwind::{ByteOrder, Stubs, ppc64};
use std::arch::global_asm;
use std::cell::Cell;

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
    fn call_through_stub(function: extern "C-unwind" fn(), stub: usize, real: &mut u64);
}

unsafe extern "C" {
    /// LLVM's libunwind, which Rust's musl targets link, takes the address of one frame description; libgcc's
    /// takes a section.
    fn __register_frame(description: *const u8);
    fn __deregister_frame(description: *const u8);
}

thread_local! {
    static DROPPED: Cell<u32> = const { Cell::new(0) };
}

struct CountsDrop;

impl Drop for CountsDrop {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + 1);
    }
}

#[inline(never)]
extern "C-unwind" fn panics() {
    let _counts = CountsDrop;
    inner(core::hint::black_box(3));
}

#[inline(never)]
fn inner(depth: u32) {
    if depth == 0 {
        std::panic::resume_unwind(Box::new(4711u32));
    }
    inner(depth - 1);
    core::hint::black_box(depth);
}

#[test]
fn ret_7_a_panic_passes_a_return_stub() {
    let (at, stubs) = chunk(SaveSet::Full);
    let mut table = vec![0u64; stubs];
    let len = stubs * Native::STUB_LEN;
    let described = Stubs { chunk: CodeAddr::new(at), len_bytes: len, table: table.as_ptr().addr() };
    let order = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };
    let toc_at = if cfg!(target_abi = "elfv1") { 40 } else { 24 };
    let frame = Box::new(ppc64::eh_frame(order, toc_at, &described, Native::STUB_LEN));
    let start = if cfg!(target_env = "musl") { frame.description_at } else { 0 };
    let registered = frame.bytes[start..].as_ptr();
    // SAFETY: the description outlives its registration, and says the truth about the chunk.
    unsafe { __register_frame(registered) };
    for index in [1, 77, stubs - 1] {
        let stub = at + index * Native::STUB_LEN;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: the stub is returned to by nobody: the function panics.
            unsafe { call_through_stub(panics, stub, &mut table[index]) };
        }));
        assert_eq!(caught.unwrap_err().downcast_ref::<u32>(), Some(&4711));
    }
    assert_eq!(DROPPED.get(), 3);
    // SAFETY: registered above.
    unsafe { __deregister_frame(registered) };
}
