//! What each machine gives to the neutral part of the kernel.

use crate::cpu::Cpu;
use crate::memory::Protection;
use crate::task::{self, Task};
use crate::watch::Ranges;
use probe_core::WatchRange;
use probe_core::arch::{Arch, NativeArch};
use probe_core::error::Refusal;

cfg_if::cfg_if! {
    if #[cfg(any(target_arch = "x86_64", target_arch = "x86"))] {
        mod x86;
        pub use x86::X86 as Native;
    } else if #[cfg(target_arch = "aarch64")] {
        mod aarch64;
        mod virt;
        pub use aarch64::Aarch64 as Native;
    } else if #[cfg(target_arch = "powerpc64")] {
        mod asked;
        mod ppc64;
        pub use ppc64::Ppc64 as Native;
    } else if #[cfg(target_arch = "riscv64")] {
        mod asked;
        mod riscv64;
        pub use riscv64::Riscv64 as Native;
    } else if #[cfg(target_arch = "arm")] {
        mod arm;
        mod virt;
        pub use arm::Arm as Native;
    }
}

/// The probes' backend for this machine.
pub type Backend = <Native as Machine>::Backend;

/// The registers of an interrupted context: the trap frame itself.
pub type Regs = <Backend as Arch>::Regs;

/// How a kernel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All checks passed.
    Passed,
    /// Anything else.
    Failed,
}

/// Whether interrupts were enabled on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// They were.
    Enabled,
    /// They were not.
    Disabled,
}

/// The interrupts that CPUs send each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipi {
    /// Run [`answer`](probe_kernel_kit::rendezvous::Rendezvous::answer): synchronise, or wait at a
    /// rendezvous.
    Sync,
    /// Look for another task.
    Reschedule,
}

/// Page tables: three or four levels of 512 entries of eight bytes, 4 KiB pages.
pub trait Paging {
    /// How far each level's index is shifted, root first.
    const LEVELS: &'static [u32];
    /// How many tables' room the root takes.
    const ROOT_TABLES: usize = 1;
    /// The entry that maps a page.
    fn leaf(physical: usize, protection: Protection) -> u64;
    /// The entry, in a table of the level with this shift, that leads to the next table.
    fn branch(table: usize, shift: u32) -> u64;
    /// The table that an entry made by [`Paging::branch`] leads to.
    fn table(entry: u64) -> usize;
    /// What the processor lets the kernel do with the page of an entry that is not 0: write, execute.
    fn allows(leaf: u64) -> (bool, bool);
    /// Turns the tables on, on this CPU.
    ///
    /// # Safety
    /// They map everything in use at its own address.
    unsafe fn activate(root: usize);
    /// Forgets what this CPU remembers of the tables.
    fn flush_all();
}

/// A machine: everything that is not neutral.
pub trait Machine: Paging {
    /// The probes' backend.
    type Backend: NativeArch;

    /// The first byte of memory, and one past the last.
    const RAM: (usize, usize);
    /// Addresses, from the first to one past the last, where nothing lies and executable memory may be
    /// mapped.
    const UNUSED: (usize, usize) = (0, 0);
    /// The number of the trap that a page fault is.
    const PAGE_FAULT: u32;
    /// The number of the trap that a breakpoint is.
    const BREAKPOINT: u32;
    /// Whether the processor can step one instruction of the kernel.
    const CAN_STEP: bool = true;
    /// Pages of device registers.
    const DEVICES: &'static [usize];

    /// Sends a byte to the serial console.
    fn put_byte(byte: u8);
    /// Takes a byte that was typed, if one was.
    fn take_byte() -> Option<u8>;
    /// Ends QEMU.
    fn exit(outcome: Outcome) -> !;
    /// A hint that this CPU waits for another one. Under one-thread QEMU it lets the other one run.
    fn relax();
    /// Waits for an interrupt, with interrupts enabled meanwhile.
    fn idle();

    /// Disables interrupts on this CPU and tells whether they were enabled.
    fn disable_interrupts() -> Interrupts;
    /// Enables interrupts on this CPU.
    fn enable_interrupts();
    /// Whether the context that was interrupted had interrupts enabled.
    fn interrupts_of(regs: &Regs) -> Interrupts;
    /// Makes the context that was interrupted go on with interrupts enabled or not.
    fn set_interrupts_of(regs: &mut Regs, interrupts: Interrupts);

    /// Remembers this CPU's area.
    fn set_this_cpu(cpu: &'static Cpu);
    /// This CPU's area.
    fn this_cpu() -> &'static Cpu;
    /// Remembers the task that runs on this CPU.
    fn set_current(task: *const Task);
    /// The running task. One instruction, so that a task that is moved to another CPU
    /// meanwhile still gets itself.
    fn current() -> *const Task;
    /// Keeps the running task on its CPU until [`Machine::enable_preemption`] has been called as often. In
    /// the task itself, since it may be moved between the instructions of this.
    #[inline(always)]
    fn disable_preemption() {
        let off = &task::current().preemption_off;
        off.set(off.get() + 1);
    }
    /// Ends what [`Machine::disable_preemption`] began.
    #[inline(always)]
    fn enable_preemption() {
        let off = &task::current().preemption_off;
        off.set(off.get() - 1);
    }
    /// How often it was disabled and not enabled again.
    fn preemption_off() -> usize {
        task::current().preemption_off.get()
    }
    /// Prepares traps and interrupts on this CPU; its area is set.
    fn init_cpu();
    /// Starts CPU `number` at [`crate::secondary_main`], on a stack that ends at `stack_top`.
    fn start_cpu(number: usize, stack_top: usize);
    /// Interrupts CPU `number`.
    fn send_ipi(number: usize, ipi: Ipi);
    /// Starts the periodic timer interrupt of this CPU.
    fn start_timer();
    /// Executes a context-synchronising instruction.
    fn synchronise();

    /// Makes the context that was interrupted trap after one instruction; returns what [`Machine::end_step`]
    /// needs. Where not [`Machine::CAN_STEP`], nobody asks.
    fn begin_step(_regs: &mut Regs) -> u32 {
        0
    }
    /// Ends what [`Machine::begin_step`] began.
    fn end_step(_regs: &mut Regs, _kept: u32) {}
    /// How many watchpoints a CPU has.
    ///
    /// # Errors
    /// Why it has none.
    fn watchpoints() -> Result<usize, Refusal>;
    /// Whether a CPU can watch `range`.
    ///
    /// # Errors
    /// Why not.
    fn check_watch(_range: &WatchRange) -> Result<(), Refusal> {
        Self::watchpoints().map(|_| ())
    }
    /// Loads this CPU's watchpoint registers, if it has any; interrupts are disabled.
    fn load_watchpoints(_ranges: &Ranges) {}

    /// Saves the callee-saved registers on the running stack, its pointer in `from`, and goes on with the
    /// stack `to`.
    ///
    /// # Safety
    /// `to` was saved by this function or made by [`Machine::new_stack`], and nobody else uses it.
    unsafe fn switch(from: *mut usize, to: usize) {
        unsafe extern "C" {
            fn switch_stacks(from: *mut usize, to: usize);
        }
        // SAFETY: the caller's promise; the machine's `entry.s` has this function.
        unsafe { switch_stacks(from, to) };
    }
    /// Calls `run` on the stack that ends at `top`, a multiple of 16, and comes back to the running one.
    ///
    /// # Safety
    /// There is room, and it is nobody else's until then; interrupts are disabled.
    unsafe fn call_on_stack(run: extern "C" fn(), top: usize) {
        unsafe extern "C" {
            fn call_on_stack(run: extern "C" fn(), top: usize);
        }
        // SAFETY: the caller's promise; the machine's `entry.s` has this function.
        unsafe { call_on_stack(run, top) };
    }
    /// Takes breakpoint traps on stacks of their own, or on the interrupted one again; nothing is probed.
    /// Whether the machine can.
    fn own_trap_stacks(_is_on: bool) -> bool {
        false
    }
    /// Prepares a stack that ends at `top` so that [`Machine::switch`] to it calls
    /// [`crate::task::first_run`].
    ///
    /// # Safety
    /// There is room, and it is nobody else's.
    unsafe fn new_stack(top: usize) -> usize;

    /// Enters the kernel and leaves it at once: what every trap costs without probes. Returns `value`.
    fn null_trap(value: usize) -> usize;
    /// A counter that rises with every guest instruction under `--icount`: how many, times
    /// [`Machine::TICKS`].
    fn ticks() -> u64;
    /// (numerator, denominator) of ticks per instruction.
    const TICKS: (u64, u64);
    /// Nanoseconds since some moment.
    fn now_ns() -> u64;
}

/// Leaves a CPU's `number` at the end of its first stack, where `secondary_start` reads it; returns the stack
/// pointer.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
fn stack_with(number: usize, stack_top: usize) -> usize {
    let stack = stack_top - 16;
    // SAFETY: the end of the stack, which nobody uses yet.
    unsafe { core::ptr::with_exposed_provenance_mut::<usize>(stack).write_volatile(number) };
    stack
}
