//! Interrupt stacks: one for each CPU, for what an interrupt has to do.

use crate::arch::{Backend, Machine, Native};
use crate::cpu;
use core::cell::UnsafeCell;
use core::ptr;
use probe_core::host::Task;
use probe_kernel_kit::stacks;

const WORDS: usize = 2048;

#[repr(C, align(16))]
struct Stack {
    words: UnsafeCell<[u128; WORDS]>,
    /// What the probes may be told of it.
    probes: stacks::Stack<Backend>,
}

// SAFETY: the words are their CPU's alone, with interrupts disabled.
unsafe impl Sync for Stack {}

static STACKS: [Stack; cpu::MAX] =
    [const { Stack { words: UnsafeCell::new([0; WORDS]), probes: stacks::Stack::new() } }; cpu::MAX];

/// Says where the stacks lie; before the first probe.
pub fn init() {
    for stack in &STACKS {
        let start = ptr::from_ref(&stack.words).addr();
        // SAFETY: nobody has looked at it yet.
        unsafe { stack.probes.set_bounds(start..start + size_of::<[u128; WORDS]>()) };
    }
}

/// Calls `work` on this CPU's interrupt stack; in an interrupt's handler, interrupts disabled.
pub fn run(work: extern "C" fn()) {
    let stack = &STACKS[Native::this_cpu().number];
    let top = stack.words.get().expose_provenance() + size_of::<[u128; WORDS]>();
    // SAFETY: the stack is this CPU's, which is not on it.
    stack.probes.run(|| unsafe { Native::call_on_stack(work, top) });
}

/// What the probes may be told of the interrupt stack that this CPU is on, if it is on one.
pub fn running() -> Option<&'static Task<Backend>> {
    STACKS[Native::this_cpu().number].probes.running()
}
