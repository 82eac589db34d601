//! Registering, removing, enabling and disabling. `build` reads the structures.
//!
//! A structure that is passed in belongs to the caller, who promises for all functions of this module:
//! pointers are valid or null, strings end with NUL, the handlers are functions of the given types that may
//! be called until the probe is unregistered, and no two calls at a time are about the same structure.

mod build;

use crate::Native;
use crate::host::{self, TheHost};
use crate::types::{jprobe, kprobe, kretprobe};
use alloc::vec::Vec;
use build::{Build, build_jprobe, build_kprobe, build_kretprobe};
use core::ffi::{c_int, c_ulong, c_void};
use core::ptr;
use probe_core::error::{EnableError, Errno};
use probe_core::{AnyProbe, CodeAddr};

/// A probe that is being registered: the probe itself, and the structure that gets its handle.
struct Candidate {
    head: *mut kprobe,
    probe: AnyProbe<Native>,
}

/// Registers one kprobe. Answers 0 or a negative errno; then `reason` says why and nothing has changed.
///
/// # Safety
/// The module's promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn register_kprobe(p: *mut kprobe) -> c_int {
    let mut all = [p];
    // SAFETY: the caller's promise.
    unsafe { register_kprobes(all.as_mut_ptr(), 1) }
}

/// Registers `num` kprobes, all or none (REG_12). At an error the `reason` of the one that failed is set.
///
/// # Safety
/// The module's promises, and `kps` points to `num` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn register_kprobes(kps: *mut *mut kprobe, num: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { register_batch(kps, num, build_kprobe) }
}

/// Registers one return probe.
///
/// # Safety
/// The module's promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn register_kretprobe(rp: *mut kretprobe) -> c_int {
    let mut all = [rp];
    // SAFETY: the caller's promise.
    unsafe { register_kretprobes(all.as_mut_ptr(), 1) }
}

/// Registers `num` return probes, all or none.
///
/// # Safety
/// The module's promises, and `rps` points to `num` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn register_kretprobes(rps: *mut *mut kretprobe, num: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { register_batch(rps, num, build_kretprobe) }
}

/// Registers one jprobe.
///
/// # Safety
/// The module's promises, and `entry` is a function that takes the probed function's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn register_jprobe(jp: *mut jprobe) -> c_int {
    let mut all = [jp];
    // SAFETY: the caller's promise.
    unsafe { register_jprobes(all.as_mut_ptr(), 1) }
}

/// Registers `num` jprobes, all or none.
///
/// # Safety
/// The promises of [`register_jprobe`], and `jps` points to `num` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn register_jprobes(jps: *mut *mut jprobe, num: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { register_batch(jps, num, build_jprobe) }
}

/// Removes one kprobe: when this returns, no handler of it runs or will run (REG_13). Answers 0; `-EINVAL` if
/// it is not registered (then `addr` is null); `-EBUSY` in a handler (then it is registered still).
///
/// # Safety
/// The module's promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregister_kprobe(p: *mut kprobe) -> c_int {
    let mut all = [p];
    // SAFETY: the caller's promise.
    unsafe { unregister_kprobes(all.as_mut_ptr(), 1) }
}

/// Removes `num` kprobes with one wait for all. The first error is answered; the rest is removed all the same
/// (REG_14).
///
/// # Safety
/// The module's promises, and `kps` points to `num` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregister_kprobes(kps: *mut *mut kprobe, num: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { unregister_batch(kps, num) }
}

/// Removes one return probe. Calls in flight return without a handler (RET_6).
///
/// # Safety
/// The module's promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregister_kretprobe(rp: *mut kretprobe) -> c_int {
    let mut all = [rp];
    // SAFETY: the caller's promise.
    unsafe { unregister_kretprobes(all.as_mut_ptr(), 1) }
}

/// Removes `num` return probes with one wait for all.
///
/// # Safety
/// The module's promises, and `rps` points to `num` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregister_kretprobes(rps: *mut *mut kretprobe, num: c_int) -> c_int {
    // SAFETY: the caller's promise.
    for &rp in unsafe { pointers(rps, num) }.unwrap_or_default() {
        // SAFETY: valid or null, the caller's promise.
        if let Some(rp) = unsafe { rp.as_mut() }
            // SAFETY: a registered structure is left alone, the caller's promise.
            && let Some(handle) = unsafe { rp.kp.handle() }
        {
            rp.nmissed = c_int::try_from(handle.counters().missed_pool).unwrap_or(c_int::MAX);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { unregister_batch(rps, num) }
}

/// Removes one jprobe.
///
/// # Safety
/// The module's promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregister_jprobe(jp: *mut jprobe) -> c_int {
    let mut all = [jp];
    // SAFETY: the caller's promise.
    unsafe { unregister_jprobes(all.as_mut_ptr(), 1) }
}

/// Removes `num` jprobes with one wait for all.
///
/// # Safety
/// The module's promises, and `jps` points to `num` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unregister_jprobes(jps: *mut *mut jprobe, num: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { unregister_batch(jps, num) }
}

/// Lets the handlers of a registered probe run; of a return probe or jprobe, give its `kp`. Allowed in a
/// handler, where the breakpoint comes later (REG_18). Answers 0 or a negative errno.
///
/// # Safety
/// The module's promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enable_kprobe(p: *mut kprobe) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { control(p, |handle| handle.enable()) }
}

/// Keeps the handlers of a registered probe from running, at once; of a return probe or jprobe, give its
/// `kp`.
///
/// # Safety
/// The module's promises.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn disable_kprobe(p: *mut kprobe) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { control(p, |handle| handle.disable()) }
}

/// Ends a jprobe's handler from wherever it is; the probed function runs next. A handler may as well return.
///
/// In a process a handler should return: the vector registers that its callers have saved are not put back by
/// this.
///
/// # Safety
/// Called by a jprobe's handler, or by something that it has called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jprobe_return() -> ! {
    use probe_core::arch::NativeCalls;
    let code = crate::regs::CALLS.jprobe_return_trap().as_usize();
    // On ELFv1 a function pointer is the address of a descriptor: code, TOC, environment.
    let descriptor = [code, 0, 0];
    let function =
        if cfg!(target_abi = "elfv1") { descriptor.as_ptr().cast::<c_void>() } else { code as *const c_void };
    // SAFETY: a breakpoint, which the core takes for the end of this handler; it is never come back from.
    let trap = unsafe { core::mem::transmute::<*const c_void, unsafe extern "C" fn() -> !>(function) };
    // SAFETY: as above.
    unsafe { trap() }
}

/// Whether the caller is a handler: the answer is `-EBUSY` before anything is allocated (REG_18).
fn is_in_handler() -> bool {
    host::started().is_some_and(|probes| probes.is_in_handler())
}

/// The caller's array; `None` where there is none.
///
/// # Safety
/// `all` points to `num` pointers, which stay as they are meanwhile.
unsafe fn pointers<'a, T>(all: *mut *mut T, num: c_int) -> Option<&'a [*mut T]> {
    match usize::try_from(num) {
        Ok(0) => Some(&[]),
        // SAFETY: the caller's promise.
        Ok(num) if !all.is_null() => Some(unsafe { core::slice::from_raw_parts(all, num) }),
        _ => None,
    }
}

/// # Safety
/// The module's promises, and `T` begins with a kprobe.
unsafe fn control(
    p: *mut kprobe,
    change: impl FnOnce(&probe_core::Probe<TheHost>) -> Result<(), EnableError>,
) -> c_int {
    // SAFETY: valid or null, the caller's promise.
    let Some(p) = (unsafe { p.as_ref() }) else { return -Errno::EINVAL.as_i32() };
    // SAFETY: a registered structure is left alone, the caller's promise.
    let Some(handle) = (unsafe { p.handle() }) else { return -Errno::EINVAL.as_i32() };
    change(handle).map_or_else(|error| -error.errno().as_i32(), |()| 0)
}

/// Registers a batch of structures that all begin with a [`kprobe`].
///
/// # Safety
/// The module's promises.
unsafe fn register_batch<T>(all: *mut *mut T, num: c_int, build: Build<T>) -> c_int {
    // SAFETY: the caller's promise.
    let Some(all) = (unsafe { pointers(all, num) }) else { return -Errno::EINVAL.as_i32() };
    if is_in_handler() {
        return -Errno::EBUSY.as_i32();
    }
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno,
    };
    let mut candidates = Vec::new();
    if candidates.try_reserve_exact(all.len()).is_err() {
        return -Errno::ENOMEM.as_i32();
    }
    let mut answer = 0;
    for &this in all {
        // SAFETY: valid or null, the caller's promise, and it begins with a kprobe.
        let Some(head) = (unsafe { this.cast::<kprobe>().as_mut() }) else {
            answer = -Errno::EINVAL.as_i32();
            break;
        };
        if !head.is_free() {
            answer = head.refuse(Errno::EINVAL, "probe.is_registered");
            break;
        }
        // SAFETY: not null, and the caller's promise.
        match unsafe { build(this) } {
            Ok(probe) => {
                head.set_pending();
                candidates.push(Candidate { head, probe });
            }
            Err((errno, code)) => {
                answer = head.refuse(errno, code);
                break;
            }
        }
    }
    if answer != 0 {
        return give_up(&candidates, answer);
    }
    // SAFETY: the heads were not null, and the caller's promise.
    unsafe { register_candidates(probes, candidates) }
}

/// # Safety
/// The heads are valid.
unsafe fn register_candidates(
    probes: &'static probe_core::Probes<TheHost>,
    candidates: Vec<Candidate>,
) -> c_int {
    let mut heads = Vec::new();
    if heads.try_reserve_exact(candidates.len()).is_err() {
        return give_up(&candidates, -Errno::ENOMEM.as_i32());
    }
    heads.extend(candidates.iter().map(|candidate| candidate.head));
    // A handler at the very first hit finds the address in its structure.
    let placed = |index: usize, at: CodeAddr| {
        if let Some(&head) = heads.get(index) {
            // SAFETY: the caller's promise.
            unsafe { &mut *head }.stand_at(at);
        }
    };
    match probes.register_placed(candidates.into_iter().map(|candidate| candidate.probe), placed) {
        Ok(handles) => {
            for (head, handle) in heads.into_iter().zip(handles) {
                // SAFETY: the caller's promise.
                unsafe { &mut *head }.keep(handle);
            }
            0
        }
        Err(failed) => {
            for &head in &heads {
                // SAFETY: the caller's promise.
                unsafe { &mut *head }.set_free();
            }
            let errno = failed.error.errno();
            // SAFETY: the caller's promise.
            match heads.get(failed.index).map(|&head| unsafe { &mut *head }) {
                Some(head) => head.refuse(errno, failed.error.code()),
                None => -errno.as_i32(),
            }
        }
    }
}

fn give_up(candidates: &[Candidate], answer: c_int) -> c_int {
    for candidate in candidates {
        // SAFETY: made from a valid pointer, which nobody else uses meanwhile.
        unsafe { &mut *candidate.head }.set_free();
    }
    answer
}

/// Removes a batch of structures that all begin with a [`kprobe`].
///
/// # Safety
/// The module's promises.
unsafe fn unregister_batch<T>(all: *mut *mut T, num: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let Some(all) = (unsafe { pointers(all, num) }) else { return -Errno::EINVAL.as_i32() };
    if is_in_handler() {
        return -Errno::EBUSY.as_i32();
    }
    let probes = match host::probes() {
        Ok(probes) => probes,
        Err(errno) => return errno,
    };
    let mut answer = 0;
    let mut heads = Vec::new();
    let mut handles = Vec::new();
    if heads.try_reserve_exact(all.len()).and_then(|()| handles.try_reserve_exact(all.len())).is_err() {
        return -Errno::ENOMEM.as_i32();
    }
    for &this in all {
        // SAFETY: valid or null, the caller's promise, and it begins with a kprobe.
        let Some(head) = (unsafe { this.cast::<kprobe>().as_mut() }) else { continue };
        // SAFETY: a registered structure is left alone, the caller's promise.
        match unsafe { head.take() } {
            Some(handle) => {
                let counters = handle.counters();
                head.nmissed = c_ulong::try_from(counters.missed_nested).unwrap_or(c_ulong::MAX);
                heads.push((ptr::from_mut(head), handle.addr()));
                handles.push(handle);
            }
            None => {
                head.addr = ptr::null_mut();
                answer = -Errno::EINVAL.as_i32();
            }
        }
    }
    let kept = probes.unregister_all(handles).err().unwrap_or_default();
    for kept in kept {
        answer = -kept.error.errno().as_i32();
        // Two probes on one place are told apart by being free: each gets one handle back.
        let owner = heads.iter().position(|&(_, at)| at == kept.probe.addr());
        match owner.map(|index| heads.swap_remove(index)) {
            Some((head, _)) => {
                // SAFETY: the caller's promise.
                unsafe { &mut *head }.keep(kept.probe);
            }
            None => drop(kept),
        }
    }
    for (head, _) in heads {
        // SAFETY: the caller's promise.
        unsafe { &mut *head }.set_free();
    }
    answer
}
