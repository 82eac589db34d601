//! The core's questions to a host, handed on to the functions of the kernel's table.

use super::{
    CKernel, PROBE_ARRIVAL_CALLED, PROBE_ARRIVAL_PART, PROBE_ARRIVAL_START, PROBE_ARRIVAL_TRAP,
    PROBE_ARRIVAL_UNKNOWN, PROBEABLE_NOT_TEXT, PROBEABLE_PATCHED, PROBEABLE_YES, probe_symbol, runtime,
};
use crate::Native;
use crate::types::pt_regs;
use core::ffi::{CStr, c_char, c_ulong, c_void};
use core::ptr;
use probe_core::CodeAddr;
use probe_core::arch::{Access, MemFault, Memory, SaveSet};
use probe_core::error::{Errno, TextError};
use probe_core::host::{Arrival, Blacklisted, Context, Host, Notice, Probeable, Symbol, Task, Waiting};

// SAFETY: the kernel's functions report what they could not access.
unsafe impl Memory for CKernel {
    #[inline]
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let done = call!(self, read_memory(addr as c_ulong, out.as_mut_ptr().cast(), out.len()), or 0);
        if done == out.len() { Ok(()) } else { Err(MemFault { addr, access: Access::Read }) }
    }

    #[inline]
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        let done = call!(self, write_memory(addr as c_ulong, bytes.as_ptr().cast(), bytes.len()), or 0);
        if done == bytes.len() { Ok(()) } else { Err(MemFault { addr, access: Access::Write }) }
    }
}

// SAFETY: each duty is handed on to the kernel's function for it, whose place in the table promises it.
unsafe impl Host for CKernel {
    type Arch = Native;
    type Memory = Self;

    // Kernels in C are built without floating point.
    const SAVE_SET: SaveSet = SaveSet::General;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        call!(self, read_text(at.as_usize() as c_ulong, out.as_mut_ptr().cast(), out.len()), or 0)
    }

    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        let (address, from) = (at.as_usize() as c_ulong, bytes.as_ptr().cast());
        match call!(self, write_text(address, from, bytes.len()), or - Errno::EFAULT.as_i32()) {
            0 => Ok(()),
            error => Err(TextError::Denied(at, error.wrapping_neg())),
        }
    }

    fn sync_cores(&self) {
        call!(self, sync_cores(), or());
    }

    fn alloc_exec(&self, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        let (near, reach) = near.map_or((0, 0), |(near, reach)| (near.as_usize(), reach));
        match call!(self, alloc_exec(len_bytes, near as c_ulong, reach), or 0) {
            0 => None,
            at => Some(CodeAddr::new(at as usize)),
        }
    }

    unsafe fn free_exec(&self, at: CodeAddr, len_bytes: usize) {
        call!(self, free_exec(at.as_usize() as c_ulong, len_bytes), or());
    }

    #[inline]
    fn context(&self) -> Option<&Context<Native>> {
        let context = call!(self, context(), or ptr::null_mut());
        // SAFETY: null, or this CPU's, which is there for ever.
        unsafe { context.cast::<Context<Native>>().as_ref() }
    }

    #[inline]
    fn task(&self) -> Option<&Task<Native>> {
        let task = call!(self, task(), or ptr::null_mut());
        // SAFETY: null, or the running task's, which lives while it runs.
        unsafe { task.cast::<Task<Native>>().as_ref() }
    }

    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Native>)) {
        for cpu in 0.. {
            let context = call!(self, context_of(cpu), or ptr::null_mut());
            // SAFETY: null, or a CPU's, which is there for ever.
            match unsafe { context.cast::<Context<Native>>().as_ref() } {
                Some(context) => visit(context),
                None => return,
            }
        }
    }

    fn for_each_waiting(&self, mut visit: &mut dyn FnMut(&Waiting<'_, Native>)) {
        let cookie = ptr::from_mut(&mut visit).cast();
        call!(self, for_each_waiting(found_waiting, cookie), or());
    }

    fn parallelism(&self) -> usize {
        (0..).take_while(|&cpu| !call!(self, context_of(cpu), or ptr::null_mut()).is_null()).count()
    }

    #[inline]
    fn memory(&self) -> &Self {
        self
    }

    #[inline]
    fn enter_slot(&self, regs: &mut pt_regs) -> u64 {
        call!(self, enter_slot(regs), or 0)
    }

    #[inline]
    fn leave_slot(&self, regs: &mut pt_regs, kept: u64) {
        call!(self, leave_slot(regs, kept), or());
    }

    #[inline]
    fn pin(&self) {
        call!(self, pin(), or());
    }

    #[inline]
    fn unpin(&self) {
        call!(self, unpin(), or());
    }

    fn find_symbols(&self, name: &str, mut found: &mut dyn FnMut(&Symbol<'_>)) {
        // As long as Linux's longest symbol name, with its NUL.
        let mut text = [0_u8; 512];
        let Some(room) = text.get_mut(..name.len()).filter(|room| room.len() < 512) else { return };
        room.copy_from_slice(name.as_bytes());
        let cookie = ptr::from_mut(&mut found).cast();
        call!(self, find_symbols(text.as_ptr().cast(), found_symbol, cookie), or());
    }

    fn symbol_at(&self, at: CodeAddr, mut found: &mut dyn FnMut(&Symbol<'_>)) {
        let cookie = ptr::from_mut(&mut found).cast();
        call!(self, symbol_at(at.as_usize() as c_ulong, found_symbol, cookie), or());
    }

    fn probeable(&self, at: CodeAddr) -> Probeable {
        match call!(self, probeable(at.as_usize() as c_ulong), or PROBEABLE_NOT_TEXT) {
            PROBEABLE_YES => Probeable::Yes,
            PROBEABLE_NOT_TEXT => Probeable::NotText,
            PROBEABLE_PATCHED => Probeable::OTHERS_PATCH,
            _ => Probeable::Blacklisted,
        }
    }

    fn arrival(&self, at: CodeAddr) -> Arrival {
        match call!(self, arrival(at.as_usize() as c_ulong), or PROBE_ARRIVAL_UNKNOWN) {
            PROBE_ARRIVAL_CALLED => Arrival::Called,
            PROBE_ARRIVAL_START => Arrival::START,
            PROBE_ARRIVAL_PART => Arrival::PART,
            PROBE_ARRIVAL_TRAP => Arrival::SIGNAL_RETURN,
            _ => Arrival::Unknown,
        }
    }

    fn for_each_blacklisted(&self, mut visit: &mut dyn FnMut(&Blacklisted<'_>)) {
        let cookie = ptr::from_mut(&mut visit).cast();
        call!(self, for_each_blacklisted(found_range, cookie), or());
    }

    fn relax(&self) {
        call!(self, relax(), or core::hint::spin_loop());
    }

    fn notice(&self, notice: Notice) {
        let text = match notice {
            Notice::StuckBreakpoint(_) => c"probes: a breakpoint could not be removed; its probe is kept",
            Notice::LostReturn { .. } => c"kretprobe BUG!: a return that belongs to no call",
            _ => c"probes: something that this version has no words for",
        };
        call!(self, log(text.as_ptr()), or());
    }

    fn stop(&self, _: &pt_regs) -> ! {
        runtime::stop()
    }
}

/// A C string as Rust's; empty where it is null or not UTF-8.
///
/// # Safety
/// Null, or it ends with NUL and lives as long as the result.
unsafe fn text<'a>(at: *const c_char) -> &'a str {
    if at.is_null() {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(at) }.to_str().unwrap_or_default()
}

unsafe extern "C" fn found_symbol(cookie: *mut c_void, symbol: *const probe_symbol) {
    // SAFETY: the kernel gives a valid symbol, for the time of this call.
    let Some(symbol) = (unsafe { symbol.as_ref() }) else { return };
    // SAFETY: the cookie is what `find_symbols` or `symbol_at` made of a reference that lives until it
    // returns.
    let found = unsafe { &mut *cookie.cast::<&mut dyn FnMut(&Symbol<'_>)>() };
    // SAFETY: valid for the time of this call.
    let module = unsafe { text(symbol.module) };
    found(&Symbol {
        // SAFETY: as above.
        name: unsafe { text(symbol.name) },
        start: CodeAddr::new(symbol.start as usize),
        len_bytes: symbol.len_bytes as usize,
        module: (!module.is_empty()).then_some(module),
        local_entry: symbol.local_entry,
    });
}

unsafe extern "C" fn found_range(cookie: *mut c_void, start: c_ulong, end: c_ulong, name: *const c_char) {
    // SAFETY: the cookie is what `for_each_blacklisted` made of a reference that lives until it returns.
    let visit = unsafe { &mut *cookie.cast::<&mut dyn FnMut(&Blacklisted<'_>)>() };
    visit(&Blacklisted {
        start: CodeAddr::new(start as usize),
        end: CodeAddr::new(end as usize),
        // SAFETY: valid for the time of this call.
        name: unsafe { text(name) },
    });
}

unsafe extern "C" fn found_waiting(
    cookie: *mut c_void,
    task: *mut c_void,
    stack_low: c_ulong,
    stack_high: c_ulong,
    saved_low: c_ulong,
    saved_high: c_ulong,
) {
    // SAFETY: the cookie is what `for_each_waiting` made of a reference that lives until it returns.
    let visit = unsafe { &mut *cookie.cast::<&mut dyn FnMut(&Waiting<'_, Native>)>() };
    // SAFETY: null, or a task of the kernel's, which is there for the time of this call.
    if let Some(task) = unsafe { task.cast::<Task<Native>>().as_ref() } {
        let elsewhere = saved_low as usize..saved_high as usize;
        let (stack, elsewhere) = (stack_low as usize..stack_high as usize, core::slice::from_ref(&elsewhere));
        visit(&Waiting { task, stack, elsewhere });
    }
}
