//! A panic that unwinds through a return stub arrives at its `catch_unwind` (RET_7, RET_8).

use super::stubs::Chunk;
use crate::own::{BACKEND, Backend, call_through_stub, eh_frame};
use probe_core::CodeAddr;
use probe_core::arch::{Calls, NativeCalls, SaveSet};
use probe_unwind::Stubs;

unsafe extern "C" {
    /// LLVM's libunwind, which Rust's musl targets link, takes the address of one frame description; libgcc's
    /// takes a section.
    fn __register_frame(description: *const u8);
    fn __deregister_frame(description: *const u8);
}

struct DropCounts<'a>(&'a std::cell::Cell<u32>);

impl Drop for DropCounts<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

thread_local! {
    static DROPPED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

#[inline(never)]
extern "C-unwind" fn panics() {
    DROPPED.with(|dropped| {
        let _counts = DropCounts(dropped);
        inner(core::hint::black_box(3));
    });
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
    let chunk = Chunk::new(BACKEND.return_trampoline(SaveSet::Full));
    let mut table = vec![0usize; chunk.stubs];
    let len = chunk.stubs * Backend::STUB_LEN;
    let stubs = Stubs { chunk: CodeAddr::new(chunk.at), len_bytes: len, table: table.as_ptr().addr() };
    let frame = Box::new(eh_frame(&stubs));
    let start = if cfg!(target_env = "musl") { frame.description_at } else { 0 };
    let registered = frame.bytes[start..].as_ptr();
    // SAFETY: the description outlives its registration, and says the truth about the chunk.
    unsafe { __register_frame(registered) };
    for index in [1, 77, chunk.stubs - 1] {
        let stub = chunk.at + index * Backend::STUB_LEN;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // SAFETY: the stub is returned to by nobody: the function panics.
            unsafe { call_through_stub(panics, stub, &mut table[index]) };
        }));
        assert_eq!(caught.unwrap_err().downcast_ref::<u32>(), Some(&4711));
    }
    DROPPED.with(|dropped| assert_eq!(dropped.get(), 3));
    // SAFETY: registered above.
    unsafe { __deregister_frame(registered) };
}
