//! Interrupt stacks: one for each CPU, for what an interrupt has to do.

use crate::arch::{Backend, Machine, Native};
use crate::cpu;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use probe_core::host::Task;

const WORDS: usize = 2048;

#[repr(C, align(16))]
struct Stack {
    words: UnsafeCell<[u128; WORDS]>,
    /// What the probes may be told of it.
    probes: UnsafeCell<Task<Backend>>,
    /// Whether its CPU is on it.
    runs: AtomicBool,
}

// SAFETY: the words are their CPU's alone, with interrupts disabled; `probes` is written by `init`, before
// anybody looks.
unsafe impl Sync for Stack {}

static STACKS: [Stack; cpu::MAX] = [const {
    Stack {
        words: UnsafeCell::new([0; WORDS]),
        probes: UnsafeCell::new(Task::new()),
        runs: AtomicBool::new(false),
    }
}; cpu::MAX];

/// Says where the stacks lie; before the first probe.
pub fn init() {
    for stack in &STACKS {
        let start = ptr::from_ref(&stack.words).addr();
        // SAFETY: nobody has looked at it yet.
        let task = unsafe { &mut *stack.probes.get() };
        task.set_stack(start..start + size_of::<[u128; WORDS]>());
    }
}

/// Calls `work` on this CPU's interrupt stack; in an interrupt's handler, interrupts disabled.
pub fn run(work: extern "C" fn()) {
    let stack = &STACKS[Native::this_cpu().number];
    assert!(!stack.runs.swap(true, Ordering::Relaxed), "interrupts are disabled on an interrupt's stack");
    let top = stack.words.get().expose_provenance() + size_of::<[u128; WORDS]>();
    // SAFETY: the stack is this CPU's, which is not on it.
    unsafe { Native::call_on_stack(work, top) };
    stack.runs.store(false, Ordering::Relaxed);
}

/// What the probes may be told of the interrupt stack that this CPU is on, if it is on one.
pub fn running() -> Option<&'static Task<Backend>> {
    let stack = &STACKS[Native::this_cpu().number];
    // SAFETY: not written since `init`.
    stack.runs.load(Ordering::Relaxed).then(|| unsafe { &*stack.probes.get() })
}
