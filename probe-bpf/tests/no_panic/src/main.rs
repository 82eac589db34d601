//! The run path, linked so that a panic or an allocation in it is an undefined symbol.
#![no_std]
#![no_main]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use probe_bpf::{Machine, NoHelpers, Program};

unsafe extern "C" {
    fn the_run_path_may_panic() -> !;
    fn the_run_path_may_allocate() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: never linked.
    unsafe { the_run_path_may_panic() }
}

struct Forbidden;

// SAFETY: never linked.
unsafe impl GlobalAlloc for Forbidden {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        // SAFETY: never linked.
        unsafe { the_run_path_may_allocate() }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
        // SAFETY: never linked.
        unsafe { the_run_path_may_allocate() }
    }
}

#[global_allocator]
static ALLOCATOR: Forbidden = Forbidden;

/// What a hit calls.
#[unsafe(no_mangle)]
extern "C" fn _start(program: &Program, machine: &Machine<'_, NoHelpers>) -> u64 {
    #[cfg(feature = "panics")]
    assert_ne!(machine.number, 1);
    program.run(machine).unwrap_or_else(|fault| fault.pc as u64)
}
