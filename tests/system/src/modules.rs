//! Modules: code that is loaded at run time and goes away again.
//!
//! A module is position-independent assembly in the kernel's image (`arch/targets.s`), copied to
//! executable memory. That is all that makes a module for a probe: text that comes, has symbols of its own,
//! and goes.

use crate::host::PROBES;
use crate::lock::SpinLock;
use crate::memory;
use alloc::boxed::Box;
use alloc::vec::Vec;
use probe_core::CodeAddr;
use probe_core::host::Symbol;

unsafe extern "C" {
    static module_start: u8;
    static module_add: u8;
    static module_twice: u8;
    static module_end: u8;
}

/// The function of a module that takes two numbers and returns one.
pub type ModuleFn = extern "C" fn(usize, usize) -> usize;

/// A loaded module. Dropping it unloads it.
pub struct Module {
    name: &'static str,
    start: CodeAddr,
    len_bytes: usize,
    /// What function pointers lead to on ABIs with descriptors: code, TOC, environment.
    descriptors: Box<[[usize; 3]]>,
}

#[derive(Clone, Copy)]
struct Loaded {
    module: &'static str,
    name: &'static str,
    start: usize,
    len_bytes: usize,
}

static LOADED: SpinLock<Vec<Loaded>> = SpinLock::new(Vec::new());

/// The names of the module's functions: `NAME_add(a, b)` and `NAME_twice(a)`.
fn functions() -> [(&'static str, usize, usize); 2] {
    let at = |symbol: *const u8| symbol.addr() - (&raw const module_start).addr();
    let (add, twice, end) =
        (at(&raw const module_add), at(&raw const module_twice), at(&raw const module_end));
    [("sample_add", add, twice - add), ("sample_twice", twice, end - twice)]
}

impl Module {
    /// Loads the module under the name `name`.
    pub fn load(name: &'static str) -> Option<Self> {
        let len_bytes = (&raw const module_end).addr() - (&raw const module_start).addr();
        // SAFETY: the linker puts the module's text between the two symbols.
        let text = unsafe { core::slice::from_raw_parts(&raw const module_start, len_bytes) };
        let start = memory::alloc_exec(len_bytes, None)?;
        // SAFETY: it is ours.
        unsafe { memory::write_text(start, text) }.ok()?;
        let loaded = functions().map(|(function, offset, len_bytes)| Loaded {
            module: name,
            name: function,
            start: start.as_usize() + offset,
            len_bytes,
        });
        let descriptors = loaded.iter().map(|function| [function.start, toc(), 0]).collect();
        LOADED.lock().extend(loaded);
        Some(Self { name, start, len_bytes, descriptors })
    }

    /// The function number `index`: 0 adds its arguments, 1 doubles the first.
    pub fn function(&self, index: usize) -> ModuleFn {
        let descriptor = &self.descriptors[index];
        let pointer = if cfg!(all(target_arch = "powerpc64", target_endian = "big")) {
            core::ptr::from_ref(descriptor).cast()
        } else {
            core::ptr::with_exposed_provenance::<()>(descriptor[0])
        };
        // SAFETY: the module's text has a function with this signature there, as long as the module is
        // loaded.
        unsafe { core::mem::transmute::<*const (), ModuleFn>(pointer) }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let end = self.start.wrapping_add(self.len_bytes);
        // Before the text goes: its probes are gone then, and no context is in their handlers.
        PROBES.events().text_going(self.start, end);
        let name = self.name;
        LOADED.lock().retain(|function| function.module != name);
        // SAFETY: the owner of a module calls its functions only while it has it.
        unsafe { memory::free_exec(self.start, self.len_bytes) };
    }
}

/// The table of contents of the running code; 0 where there is none.
fn toc() -> usize {
    #[cfg(target_arch = "powerpc64")]
    {
        let toc;
        // SAFETY: reads a register.
        unsafe { core::arch::asm!("mr {}, 2", out(reg) toc, options(nomem, nostack, preserves_flags)) };
        toc
    }
    #[cfg(not(target_arch = "powerpc64"))]
    0
}

fn visit(wanted: impl Fn(&Loaded) -> bool, found: &mut dyn FnMut(&Symbol<'_>)) {
    // Copied, so that `found` runs without the lock.
    let functions: Vec<Loaded> = LOADED.lock().iter().copied().filter(wanted).collect();
    for function in functions {
        found(&Symbol {
            name: function.name,
            start: CodeAddr::new(function.start),
            len_bytes: function.len_bytes,
            module: Some(function.module),
            local_entry: 0,
        });
    }
}

/// Calls `found` with the modules' functions called `name`.
pub fn find(name: &str, found: &mut dyn FnMut(&Symbol<'_>)) {
    visit(|function| function.name == name, found);
}

/// Calls `found` with the module's function that covers `at`.
pub fn covering(at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>)) {
    let at = at.as_usize();
    visit(|function| (function.start..function.start + function.len_bytes).contains(&at), found);
}

/// Whether `at` is in a module's text.
pub fn contains(at: CodeAddr) -> bool {
    let mut is_found = false;
    covering(at, &mut |_| is_found = true);
    is_found
}
