//! A plugin for QEMU's user mode that counts how often each instruction is executed, in the translated code
//! itself.
//!
//! Counting begins and ends at two places of the program, which it names as the second and third argument
//! when it closes a descriptor that nobody has ([`ANNOUNCE`]), before it executes them; at the end, one line
//! per address, `hexadecimal-address executions`, is written to the file that the argument `out=` names.
//! Interface: QEMU's plugin API, version 1 (`include/qemu/qemu-plugin.h`, QEMU 7.2), of which only what is
//! used is declared here. The build script of `probe-tests-user` builds it for the build machine.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The descriptor; `tests/walk/count/plugin.rs` closes it.
const ANNOUNCE: u64 = 0x5741_4c4b;

/// The version of the interface that this is written for.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 1;

/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD_U64: c_int = 0;

/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGISTERS: c_int = 0;

type ExecutionCallback = extern "C" fn(c_uint, *mut c_void);

type SyscallCallback =
    extern "C" fn(u64, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, callback: extern "C" fn(u64, *mut c_void));
    fn qemu_plugin_register_vcpu_syscall_cb(id: u64, callback: SyscallCallback);
    fn qemu_plugin_tb_n_insns(block: *const c_void) -> usize;
    fn qemu_plugin_tb_get_insn(block: *const c_void, index: usize) -> *mut c_void;
    fn qemu_plugin_insn_vaddr(insn: *const c_void) -> u64;
    fn qemu_plugin_register_vcpu_insn_exec_inline(insn: *mut c_void, op: c_int, word: *mut c_void, by: u64);
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut c_void,
        callback: ExecutionCallback,
        flags: c_int,
        data: *mut c_void,
    );
}

/// What is known of one address.
struct Place {
    /// Lives for good: translated code adds to it.
    executions: &'static AtomicU64,
    /// Its value when counting began.
    before: u64,
}

struct State {
    places: BTreeMap<u64, Place>,
    /// Where counting begins and ends.
    announced: Option<(u64, u64)>,
    out: String,
}

static STATE: Mutex<State> =
    Mutex::new(State { places: BTreeMap::new(), announced: None, out: String::new() });

/// Runs `body` with the state; a panic of another callback must not go through QEMU.
fn with_state(body: impl FnOnce(&mut State)) {
    let mut state = STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    body(&mut state);
}

/// Gives every instruction of a new block its counter. A block that is translated again gets the same ones.
extern "C" fn on_translation(_: u64, block: *mut c_void) {
    // SAFETY: QEMU's block, alive during the callback.
    let insns = unsafe { qemu_plugin_tb_n_insns(block) };
    with_state(|state| {
        for index in 0..insns {
            // SAFETY: as above, and the index is in range.
            let insn = unsafe { qemu_plugin_tb_get_insn(block, index) };
            // SAFETY: the block's instruction, alive during the callback.
            let at = unsafe { qemu_plugin_insn_vaddr(insn) };
            let place = state.places.entry(at).or_insert_with(|| Place {
                executions: Box::leak(Box::new(AtomicU64::new(0))),
                before: 0,
            });
            let word = std::ptr::from_ref(place.executions).cast_mut().cast();
            // SAFETY: the counter lives for good and may be written through, being atomic.
            unsafe { qemu_plugin_register_vcpu_insn_exec_inline(insn, ADD_U64, word, 1) };
            let callback: ExecutionCallback = match state.announced {
                Some((begins, _)) if at == begins => on_begin,
                Some((_, ends)) if at == ends => on_end,
                _ => continue,
            };
            // SAFETY: the block's instruction, and a callback with the interface's signature that takes no
            // data.
            unsafe {
                qemu_plugin_register_vcpu_insn_exec_cb(insn, callback, NO_REGISTERS, std::ptr::null_mut());
            }
        }
    });
}

/// Counting begins.
extern "C" fn on_begin(_: c_uint, _: *mut c_void) {
    with_state(|state| {
        for place in state.places.values_mut() {
            place.before = place.executions.load(Relaxed);
        }
    });
}

/// Counting ends.
extern "C" fn on_end(_: c_uint, _: *mut c_void) {
    with_state(|state| {
        let mut lines = String::new();
        for (at, place) in &state.places {
            let executions = place.executions.load(Relaxed) - place.before;
            if executions != 0 {
                let _ = writeln!(lines, "{at:x} {executions}");
            }
        }
        if let Err(error) = std::fs::write(&state.out, lines) {
            eprintln!("{}: {error}", state.out);
        }
    });
}

/// Where counting begins and ends, if it is that call.
extern "C" fn on_syscall(
    _: u64,
    _: c_uint,
    _: i64,
    descriptor: u64,
    begins: u64,
    ends: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    if descriptor == ANNOUNCE {
        with_state(|state| state.announced = Some((begins, ends)));
    }
}

/// QEMU calls this once, before the program starts.
///
/// # Safety
/// `arguments` points to `count` C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    for index in 0..count as usize {
        // SAFETY: the caller's promise.
        let argument = unsafe { *arguments.add(index) };
        // SAFETY: the caller's promise.
        let argument = unsafe { CStr::from_ptr(argument) };
        if let Some(out) = argument.to_str().ok().and_then(|argument| argument.strip_prefix("out=")) {
            with_state(|state| state.out = out.into());
        }
    }
    // SAFETY: the callback has the interface's signature.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation) };
    // SAFETY: as above.
    unsafe { qemu_plugin_register_vcpu_syscall_cb(id, on_syscall) };
    0
}
