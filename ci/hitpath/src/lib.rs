//! The smallest kernel that hosts probes, as far as a library can be one.
//!
//! Two readers: a person who wants to see what has to be written, with nothing else around it ([`Kernel`]'s
//! implementation of [`Host`]); and `cargo ci lint`, which follows the compiled hit path from the functions
//! that begin with `hitpath_` and refuses panics, allocations and formatting anywhere below them. What
//! belongs to a kernel itself is declared in `extern "C"` and defined nowhere: this is compiled, never run.
#![no_std]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;

use probe_arch_native::Native as Backend;
use probe_core::arch::{Access, Arch, MemFault, Memory, Resume, SaveSet};
use probe_core::error::TextError;
use probe_core::handler::Follow;
use probe_core::host::{Blacklisted, Context, Host, Probeable, Symbol, Task};
use probe_core::traps::{FaultVerdict, Trap};
use probe_core::{CodeAddr, Jprobe, Kprobe, Kretprobe, Probes};
use probe_kernel_kit::events::Events;

type Regs = <Backend as Arch>::Regs;

// SAFETY: the promises at these declarations are the kernel's: all are functions of its own.
unsafe extern "C" {
    /// Copies without faulting; answers how many bytes were readable.
    safe fn kernel_copy_from(at: usize, out: *mut u8, len_bytes: usize) -> usize;
    /// Writes data without faulting; answers how many bytes were writable.
    safe fn kernel_copy_to(at: usize, bytes: *const u8, len_bytes: usize) -> usize;
    /// Writes text through its alias and publishes it; answers 0 or an error number.
    safe fn kernel_write_text(at: usize, bytes: *const u8, len_bytes: usize) -> i32;
    /// An IPI to all CPUs, which answer with a context-synchronising event.
    safe fn kernel_sync_cores();
    /// Executable pages near an address (0: anywhere); answers their address or 0.
    safe fn kernel_alloc_exec(len_bytes: usize, near: usize, reach: usize) -> usize;
    /// Gives them back.
    safe fn kernel_free_exec(at: usize, len_bytes: usize);
    /// This CPU's [`Context`], which lives as long as the kernel.
    safe fn kernel_context() -> *const c_void;
    /// The CPU's with this number; null behind the last.
    safe fn kernel_context_of(cpu: usize) -> *const c_void;
    /// The running task's [`Task`], which lives as long as the task.
    safe fn kernel_task() -> *const c_void;
    /// Whether an address is text, and not the probes' own.
    safe fn kernel_may_probe(at: usize) -> bool;
    /// Takes notice of something; what the sample probes do.
    safe fn kernel_note(value: usize);
    /// Stops this CPU.
    safe fn kernel_stop() -> !;
    /// The kernel's allocator.
    safe fn kernel_alloc(len_bytes: usize, align: usize) -> *mut c_void;
    /// Gives back what it returned.
    safe fn kernel_free(at: *mut c_void);
}

/// The embedding program.
struct Kernel;

/// The kernel's probes.
static PROBES: Probes<Kernel> = Probes::new(Kernel);

/// What its users define by text.
static EVENTS: Events<Kernel, (), 64> = Events::new(&PROBES, ());

// SAFETY: the kernel's functions report what they could not access.
unsafe impl Memory for Kernel {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let done = kernel_copy_from(addr, out.as_mut_ptr(), out.len());
        if done == out.len() { Ok(()) } else { Err(MemFault { addr, access: Access::Read }) }
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        let done = kernel_copy_to(addr, bytes.as_ptr(), bytes.len());
        if done == bytes.len() { Ok(()) } else { Err(MemFault { addr, access: Access::Write }) }
    }
}

// SAFETY: each duty is handed on to the kernel's function for it, whose declaration promises it.
unsafe impl Host for Kernel {
    type Arch = Backend;
    type Memory = Self;

    const SAVE_SET: SaveSet = SaveSet::General;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        kernel_copy_from(at.as_usize(), out.as_mut_ptr(), out.len())
    }

    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        match kernel_write_text(at.as_usize(), bytes.as_ptr(), bytes.len()) {
            0 => Ok(()),
            error => Err(TextError::Denied(at, error)),
        }
    }

    fn sync_cores(&self) {
        kernel_sync_cores();
    }

    fn alloc_exec(&self, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        let (near, reach) = near.map_or((0, 0), |(near, reach)| (near.as_usize(), reach));
        match kernel_alloc_exec(len_bytes, near, reach) {
            0 => None,
            at => Some(CodeAddr::new(at)),
        }
    }

    unsafe fn free_exec(&self, at: CodeAddr, len_bytes: usize) {
        kernel_free_exec(at.as_usize(), len_bytes);
    }

    fn context(&self) -> Option<&Context<Backend>> {
        // SAFETY: null, or this CPU's, which is never freed.
        unsafe { kernel_context().cast::<Context<Backend>>().as_ref() }
    }

    fn task(&self) -> Option<&Task<Backend>> {
        // SAFETY: null, or the running task's, which lives while it runs.
        unsafe { kernel_task().cast::<Task<Backend>>().as_ref() }
    }

    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Backend>)) {
        let pointers = (0..).map(|cpu| kernel_context_of(cpu).cast::<Context<Backend>>());
        // SAFETY: null, or a CPU's, which is never freed.
        let contexts = pointers.map_while(|context| unsafe { context.as_ref() });
        contexts.for_each(visit);
    }

    fn parallelism(&self) -> usize {
        (0..).take_while(|&cpu| !kernel_context_of(cpu).is_null()).count()
    }

    fn memory(&self) -> &Self {
        self
    }

    fn find_symbols(&self, _: &str, _: &mut dyn FnMut(&Symbol<'_>)) {}

    fn symbol_at(&self, _: CodeAddr, _: &mut dyn FnMut(&Symbol<'_>)) {}

    fn probeable(&self, at: CodeAddr) -> Probeable {
        if kernel_may_probe(at.as_usize()) { Probeable::Yes } else { Probeable::Blacklisted }
    }

    fn for_each_blacklisted(&self, _: &mut dyn FnMut(&Blacklisted<'_>)) {}

    fn stop(&self, _: &Regs) -> ! {
        kernel_stop()
    }
}

/// What the breakpoint trap's handler calls first. Answers whether the kernel has nothing left to do.
#[unsafe(no_mangle)]
extern "C" fn hitpath_breakpoint(regs: &mut Regs) -> bool {
    match PROBES.traps().breakpoint(regs) {
        Trap::Handled => true,
        Trap::NotOurs => false,
        // The kernel raises this fault; its fault handler comes by `hitpath_fault`.
        Trap::Fault(_) => false,
    }
}

/// What the fault handlers call first. Answers whether the kernel has nothing left to do.
#[unsafe(no_mangle)]
extern "C" fn hitpath_fault(regs: &mut Regs, trap_number: u32) -> bool {
    PROBES.traps().fault(regs, trap_number) == FaultVerdict::Handled
}

/// What a jump's trampoline calls.
#[unsafe(no_mangle)]
extern "C" fn hitpath_jump(word: usize, regs: *mut Regs) -> Resume {
    Probes::<Kernel>::detour_handlers()[0](word, regs)
}

/// The same where several probes are, post handlers, or a return probe with an entry handler.
#[unsafe(no_mangle)]
extern "C" fn hitpath_jump_any(word: usize, regs: *mut Regs) -> Resume {
    Probes::<Kernel>::detour_handlers()[1](word, regs)
}

/// The same at the entry of a function whose return alone is probed.
#[unsafe(no_mangle)]
extern "C" fn hitpath_entered(word: usize, regs: *mut Regs) -> Resume {
    Probes::<Kernel>::detour_handlers()[2](word, regs)
}

/// The same where the call is followed in step with the processor's predictor of returns.
#[unsafe(no_mangle)]
extern "C" fn hitpath_followed(word: usize, regs: *mut Regs) -> Resume {
    Probes::<Kernel>::detour_handlers()[3](word, regs)
}

/// What a detour's second call of the trampoline leads to.
#[unsafe(no_mangle)]
extern "C" fn hitpath_copied(word: usize, regs: *mut Regs) -> Resume {
    Probes::<Kernel>::detour_handlers()[4](word, regs)
}

/// What a return stub's trampoline calls.
#[unsafe(no_mangle)]
extern "C" fn hitpath_return(word: usize, regs: *mut Regs) -> Resume {
    Probes::<Kernel>::return_handler()(word, regs)
}

/// What the handler of single steps calls first, in a kernel that steps slots in hardware. Answers whether
/// the kernel has nothing left to do. riscv64 and arm have no such traps.
#[cfg(not(any(target_arch = "riscv64", target_arch = "arm")))]
#[unsafe(no_mangle)]
extern "C" fn hitpath_step(regs: &mut Regs) -> bool {
    PROBES.traps().step(regs) == Trap::Handled
}

/// What the handler of data-reference traps calls, in a kernel that has watchpoints.
#[unsafe(no_mangle)]
extern "C" fn hitpath_watchpoint(regs: &mut Regs, index: usize) {
    PROBES.traps().watchpoint(regs, index);
}

/// Plants one probe of each kind, for good. Answers whether all could be planted.
#[unsafe(no_mangle)]
extern "C" fn plant_samples() -> bool {
    let before = Kprobe::at("do_fork").pre(|hit| kernel_note(hit.pc().as_usize())).post(|hit| {
        kernel_note(hit.argument(0).unwrap_or_default());
    });
    let call = Kretprobe::at("do_fork").max_active(20).entry(|call| call.argument(0)).exit(|ret, size| {
        kernel_note(ret.value().wrapping_sub(size));
    });
    let bytes = Kretprobe::bytes(
        "do_exit",
        8,
        |call, data| {
            kernel_note(call.argument(0).unwrap_or_default() + data.len());
            Follow::Yes
        },
        |ret, data| kernel_note(ret.value() + data.len()),
    );
    // SAFETY: do_fork's first argument is a word; the handler takes no other.
    let arguments = unsafe { Jprobe::at("do_fork", on_fork as extern "C" fn(usize)) };
    let defined = EVENTS
        .write("p:forks do_fork flags=$arg1:x32[2] name=+0($arg2):string comm=$comm\nr do_fork $retval");
    let planted =
        [PROBES.register(before), PROBES.register(call), PROBES.register(bytes), PROBES.register(arguments)];
    let are_all = defined.is_ok() && planted.iter().all(Result::is_ok);
    for probe in planted.into_iter().flatten() {
        probe.leak();
    }
    are_all
}

extern "C" fn on_fork(clone_flags: usize) {
    kernel_note(clone_flags);
}

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: `kernel_alloc` keeps the contract of an allocator.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        kernel_alloc(layout.size(), layout.align()).cast()
    }

    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        kernel_free(at.cast());
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    kernel_stop()
}
