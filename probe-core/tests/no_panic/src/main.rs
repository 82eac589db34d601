//! The hit path of a kernel on x86-64, linked so that a panic or an allocation in it is an undefined symbol.
#![no_std]
#![no_main]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::ptr;
use probe_arch_x86_64::{Regs, X86_64};
use probe_core::arch::{MemFault, Memory, SaveSet};
use probe_core::host::{Blacklisted, Context, Host, Probeable, Symbol, Task};
use probe_core::error::TextError;
use probe_core::traps::Trap;
use probe_core::{CodeAddr, Probes};

unsafe extern "C" {
    fn the_hit_path_may_panic() -> !;
    fn the_hit_path_may_allocate() -> !;
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: never linked.
    unsafe { the_hit_path_may_panic() }
}

struct Forbidden;

// SAFETY: never linked.
unsafe impl GlobalAlloc for Forbidden {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        // SAFETY: never linked.
        unsafe { the_hit_path_may_allocate() }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
        // SAFETY: never linked.
        unsafe { the_hit_path_may_allocate() }
    }
}

#[global_allocator]
static ALLOCATOR: Forbidden = Forbidden;

struct Identity;

// SAFETY: this program is linked, not run.
unsafe impl Memory for Identity {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        // SAFETY: not run.
        unsafe { ptr::copy_nonoverlapping(ptr::with_exposed_provenance(addr), out.as_mut_ptr(), out.len()) };
        Ok(())
    }
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        let to = ptr::with_exposed_provenance_mut(addr);
        // SAFETY: not run.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}

struct Kernel {
    context: Context<X86_64>,
    task: Task<X86_64>,
    memory: Identity,
}

// SAFETY: this program is linked, not run.
unsafe impl Host for Kernel {
    type Arch = X86_64;
    type Memory = Identity;
    const SAVE_SET: SaveSet = SaveSet::General;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let _ = self.memory.read(at.as_usize(), out);
        out.len()
    }
    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        let _ = self.memory.write(at.as_usize(), bytes);
        Ok(())
    }
    fn sync_cores(&self) {}
    fn alloc_exec(&self, _: usize, _: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        None
    }
    unsafe fn free_exec(&self, _: CodeAddr, _: usize) {}
    fn context(&self) -> Option<&Context<X86_64>> {
        Some(&self.context)
    }
    fn task(&self) -> Option<&Task<X86_64>> {
        Some(&self.task)
    }
    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<X86_64>)) {
        visit(&self.context);
    }
    fn parallelism(&self) -> usize {
        1
    }
    fn memory(&self) -> &Identity {
        &self.memory
    }
    fn find_symbols(&self, _: &str, _: &mut dyn FnMut(&Symbol<'_>)) {}
    fn symbol_at(&self, _: CodeAddr, _: &mut dyn FnMut(&Symbol<'_>)) {}
    fn probeable(&self, _: CodeAddr) -> Probeable {
        Probeable::Yes
    }
    fn for_each_blacklisted(&self, _: &mut dyn FnMut(&Blacklisted<'_>)) {}
    fn stop(&self, _: &Regs) -> ! {
        loop {
            core::hint::spin_loop();
        }
    }
}

static PROBES: Probes<Kernel> =
    Probes::new(Kernel { context: Context::new(), task: Task::new(), memory: Identity });

/// What a kernel's trap code calls, all of it.
#[unsafe(no_mangle)]
extern "C" fn _start(regs: &mut Regs, word: usize) -> usize {
    #[cfg(feature = "panics")]
    assert_ne!(word, 1);
    let trap = usize::from(PROBES.traps().breakpoint(regs) == Trap::Handled);
    let verdict = PROBES.traps().fault(regs, 14) as usize;
    let real = PROBES.real_return_address(CodeAddr::new(word)).map_or(0, CodeAddr::as_usize);
    PROBES.events().task_exit(&PROBES.host().task);
    Probes::<Kernel>::return_handler()(word, regs);
    trap ^ verdict ^ real
}
