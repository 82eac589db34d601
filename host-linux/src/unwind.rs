//! Unwind information for return stubs, so that exceptions and backtraces pass followed calls (RET_7, RET_8).
//!
//! A followed call's return address is a stub. For every chunk of stubs `probe-unwind` describes, in the
//! format of `.eh_frame`, how to go on: with the real return address from a table that the core keeps. That
//! description is registered with every unwinder in the process: the one that this crate is linked with, and
//! those of other objects (a program with libgcc linked statically, for instance).

use crate::arch;
use crate::lock::Lock;
use crate::symbols::objects;
use core::ffi::c_void;
use probe_core::CodeAddr;
#[cfg(not(feature = "mapped"))]
use probe_elf_symbols::index::Kind;
use probe_unwind::{EhFrame, Stubs};
use std::boxed::Box;
use std::vec::Vec;

#[cfg(not(feature = "mapped"))]
unsafe extern "C" {
    fn __register_frame(begin: *mut c_void);
    fn __deregister_frame(begin: *mut c_void);
}

type Frame = unsafe extern "C" fn(*mut c_void);

#[cfg(not(feature = "mapped"))]
/// Whether this object's own unwinder is LLVM's libunwind, which takes the frame description itself; libgcc's
/// takes the whole section.
const IS_LLVM: bool = cfg!(all(target_env = "musl", target_feature = "crt-static"));

/// One described chunk.
struct Described {
    chunk: usize,
    section: Box<EhFrame>,
    /// The registrations: the function that undoes each, and its argument.
    registered: Vec<(Frame, usize)>,
}

static DESCRIBED: Lock<Vec<Described>> = Lock::new(Vec::new());

/// Describes the chunk of `len_bytes` bytes at `chunk` to all unwinders. `table` is the address of the words
/// with the final return addresses, one for each stub.
pub(crate) fn add(chunk: CodeAddr, len_bytes: usize, table: usize) {
    let section = Box::new(arch::eh_frame(&Stubs { chunk, len_bytes, table }));
    let start = section.bytes.as_ptr() as usize;
    let registered = unwinders()
        .into_iter()
        .map(|(register, deregister, is_llvm)| {
            let at = if is_llvm { start + section.description_at } else { start };
            // SAFETY: `at` is a section (or a description) that is well-formed and stays where it is until it
            // has been deregistered.
            unsafe { register(at as *mut c_void) };
            (deregister, at)
        })
        .collect();
    DESCRIBED.lock().push(Described { chunk: chunk.as_usize(), section, registered });
}

/// Takes back what [`add`] has told about `chunk`.
pub(crate) fn remove(chunk: CodeAddr) {
    let mut described = DESCRIBED.lock();
    let Some(at) = described.iter().position(|known| known.chunk == chunk.as_usize()) else { return };
    let gone = described.swap_remove(at);
    drop(described);
    for (deregister, at) in gone.registered {
        // One that was unloaded meanwhile has forgotten it.
        if is_loaded(deregister) {
            // SAFETY: registered with the same unwinder, at the same address.
            unsafe { deregister(at as *mut c_void) };
        }
    }
    drop(gone.section);
}

fn is_loaded(function: Frame) -> bool {
    cfg!(target_abi = "elfv1") || objects::at(function as usize).is_some()
}

/// None: they take a lock, which a thread that was stopped in the middle of an exception holds.
#[cfg(feature = "mapped")]
fn unwinders() -> Vec<(Frame, Frame, bool)> {
    Vec::new()
}

/// How to register and deregister with every unwinder in the process, and whether it is LLVM's.
#[cfg(not(feature = "mapped"))]
fn unwinders() -> Vec<(Frame, Frame, bool)> {
    let mut all: Vec<(Frame, Frame, bool)> = vec![(__register_frame, __deregister_frame, IS_LLVM)];
    // With function descriptors an address from a symbol table cannot be called.
    if cfg!(target_abi = "elfv1") {
        return all;
    }
    for object in objects::snapshot().iter() {
        let find = |name: &str| {
            let mut found = None;
            object.index().find(name, &mut |entry| {
                if entry.kind == Kind::Function {
                    found = Some(object.bias.wrapping_add(entry.addr));
                }
            });
            found
        };
        let (Some(register), Some(deregister)) = (find("__register_frame"), find("__deregister_frame"))
        else {
            continue;
        };
        if all.iter().any(|known| known.0 as usize == register) {
            continue;
        }
        // SAFETY: functions of these names have this type in libgcc and in libunwind.
        let register = unsafe { core::mem::transmute::<usize, Frame>(register) };
        // SAFETY: as above.
        let deregister = unsafe { core::mem::transmute::<usize, Frame>(deregister) };
        all.push((register, deregister, find("__unw_add_dynamic_fde").is_some()));
    }
    all
}

/// Before a fork.
pub(crate) fn hold() {
    DESCRIBED.take();
}

/// After a fork, in both processes.
///
/// # Safety
/// This thread has called [`hold`] before.
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { DESCRIBED.give() };
}
