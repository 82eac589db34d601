//! The parts of Rust's run time that a program without an operating system provides: memory, and a panic
//! handler. Nothing is ever unwound.

use super::PROBES;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

/// Stops this CPU.
pub(super) fn stop() -> ! {
    loop {
        call!(PROBES.host(), stop(), or core::hint::spin_loop());
    }
}

/// The registry's memory, from the kernel.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: the table's functions keep an allocator's contract.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        call!(PROBES.host(), alloc(layout.size(), layout.align()), or ptr::null_mut()).cast()
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        call!(PROBES.host(), free(at.cast(), layout.size(), layout.align()), or());
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    call!(PROBES.host(), log(c"probes: a panic in the library".as_ptr()), or());
    stop()
}

/// The symbols for unwinding that Rust's own libraries refer to on targets with an operating system. This
/// kernel never unwinds.
#[cfg(not(target_os = "none"))]
mod unwinding {
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {
        super::stop()
    }

    #[unsafe(no_mangle)]
    extern "C" fn _Unwind_Resume() {
        super::stop()
    }
}
