//! From a caller's structure to the probe that it describes, or why it describes none.

use crate::types::{
    KPROBE_FLAG_DISABLED, KPROBE_FLAG_UNCHECKED, KRETPROBE_MAX_ACTIVE, jprobe, kprobe, kretprobe,
    kretprobe_instance,
};
use crate::{Native, types};
use core::ffi::{CStr, c_int};
use core::ptr;
use probe_core::error::Errno;
use probe_core::handler::{Answer, Call, Flow, Follow, Hit, Return};
use probe_core::{AnyProbe, CodeAddr, Jprobe, Kprobe, Kretprobe, Place};

/// Why a structure describes no probe: the errno and the reason code.
pub(super) type Wrong = (Errno, &'static str);

/// Makes the probe that a structure describes.
pub(super) type Build<T> = unsafe fn(*mut T) -> Result<AnyProbe<Native>, Wrong>;

/// A pointer to a structure of the caller's, for handlers.
struct Shared<T>(*mut T);

// SAFETY: only handed to the caller's own handlers, which the caller has written for being called anywhere.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer. A method, so that a closure captures the whole of `self`.
    fn get(&self) -> *mut T {
        self.0
    }
}

/// Whether all of its flags are known.
fn check_flags(p: &kprobe) -> Result<(), Wrong> {
    match p.flags & !(KPROBE_FLAG_DISABLED | KPROBE_FLAG_UNCHECKED) {
        0 => Ok(()),
        _ => Err((Errno::EINVAL, "probe.unknown_flags")),
    }
}

/// The place that a structure names (REG_1).
///
/// # Safety
/// The module's promises.
unsafe fn place(p: &kprobe) -> Result<Place, Wrong> {
    check_flags(p)?;
    let offset = isize::try_from(p.offset).map_err(|_| (Errno::EINVAL, "place.outside_symbol"))?;
    match (p.addr.is_null(), p.symbol_name.is_null()) {
        (true, true) => Err((Errno::EINVAL, "place.neither")),
        (false, false) => Err((Errno::EINVAL, "place.both")),
        (false, true) => {
            let at = CodeAddr::new(p.addr.expose_provenance()).wrapping_offset(offset);
            if p.flags & KPROBE_FLAG_UNCHECKED == 0 {
                return Ok(Place::addr(at));
            }
            // SAFETY: the flag is the caller's word for it.
            Ok(unsafe { Place::unchecked(at) })
        }
        (true, false) => {
            // SAFETY: not null, and ends with NUL.
            let name = unsafe { CStr::from_ptr(p.symbol_name) };
            let name = name.to_str().map_err(|_| (Errno::ENOENT, "place.no_symbol"))?;
            let place = match name.split_once(':') {
                Some((module, symbol)) if !symbol.starts_with(':') => Place::symbol(symbol).in_module(module),
                _ => Place::symbol(name),
            };
            Ok(place.offset(offset))
        }
    }
}

/// Only a kprobe has handlers of its own.
fn refuse_handlers(p: &kprobe) -> Result<(), Wrong> {
    if p.pre_handler.is_some() || p.post_handler.is_some() || p.fault_handler.is_some() {
        return Err((Errno::EINVAL, "probe.has_kprobe_handlers"));
    }
    Ok(())
}

/// # Safety
/// The promises of the module above.
pub(super) unsafe fn build_kprobe(this: *mut kprobe) -> Result<AnyProbe<Native>, Wrong> {
    // SAFETY: the caller's promise.
    let p = unsafe { &*this };
    // SAFETY: the caller's promise.
    let mut probe = Kprobe::<Native>::at(unsafe { place(p) }?);
    if let Some(pre) = p.pre_handler {
        let shared = Shared(this);
        probe = probe.pre(move |hit: &mut Hit<'_, Native>| {
            // SAFETY: the caller's promise.
            match unsafe { pre(shared.get(), hit.regs_mut()) } {
                0 => Flow::Continue,
                _ => Flow::Redirected,
            }
        });
    }
    if let Some(post) = p.post_handler {
        let shared = Shared(this);
        // SAFETY: the caller's promise.
        probe = probe.post(move |hit| unsafe { post(shared.get(), hit.regs_mut(), 0) });
    }
    if let Some(fault) = p.fault_handler {
        let shared = Shared(this);
        probe = probe.fault(move |hit, number| {
            let number = c_int::try_from(number).unwrap_or(c_int::MAX);
            // SAFETY: the caller's promise.
            match unsafe { fault(shared.get(), hit.regs_mut(), number) } {
                0 => Answer::NotHandled,
                _ => Answer::Handled,
            }
        });
    }
    if p.flags & KPROBE_FLAG_DISABLED != 0 {
        probe = probe.disabled();
    }
    Ok(probe.into())
}

/// # Safety
/// The promises of the module above.
pub(super) unsafe fn build_jprobe(this: *mut jprobe) -> Result<AnyProbe<Native>, Wrong> {
    // SAFETY: the caller's promise.
    let jp = unsafe { &*this };
    refuse_handlers(&jp.kp)?;
    if jp.entry.is_null() {
        return Err((Errno::EINVAL, "jprobe.no_entry"));
    }
    // SAFETY: the caller's promise.
    let place = unsafe { place(&jp.kp) }?;
    // SAFETY: `entry` takes the probed function's arguments, as the caller promises.
    let probe = unsafe { Jprobe::<Native>::from_raw(place, jp.entry.expose_provenance()) };
    Ok(if jp.kp.flags & KPROBE_FLAG_DISABLED != 0 { probe.disabled().into() } else { probe.into() })
}

/// # Safety
/// The promises of the module above.
pub(super) unsafe fn build_kretprobe(this: *mut kretprobe) -> Result<AnyProbe<Native>, Wrong> {
    // SAFETY: the caller's promise.
    let rp = unsafe { &*this };
    refuse_handlers(&rp.kp)?;
    // SAFETY: the caller's promise.
    let place = unsafe { place(&rp.kp) }?;
    if rp.maxactive > KRETPROBE_MAX_ACTIVE {
        return Err((Errno::EINVAL, "kretprobe.too_many"));
    }
    let (entry, handler) = (rp.entry_handler, rp.handler);
    let (at_entry, at_exit) = (Shared(this), Shared(this));
    let entered = move |call: &mut Call<'_, Native>, data: &mut [u8]| {
        let Some(entry) = entry else { return Follow::Yes };
        let mut instance = instance(at_entry.get(), call.return_address(), data);
        // SAFETY: the caller's promise.
        match unsafe { entry(&mut instance, call.regs_mut()) } {
            0 => Follow::Yes,
            _ => Follow::No,
        }
    };
    let returned = move |ret: &mut Return<'_, Native>, data: &mut [u8]| {
        let Some(handler) = handler else { return };
        let mut instance = instance(at_exit.get(), ret.return_address(), data);
        // SAFETY: the caller's promise. What it answers has no meaning.
        let _ = unsafe { handler(&mut instance, ret.regs_mut()) };
    };
    let mut probe = if entry.is_none() && rp.data_size == 0 {
        // Without an entry handler calls are followed on a shorter way.
        Kretprobe::<Native>::at(place).exit(move |ret, ()| returned(ret, &mut []))
    } else {
        Kretprobe::<Native>::bytes(place, rp.data_size, entered, returned)
    };
    probe = probe.max_active(rp.maxactive);
    if rp.kp.flags & KPROBE_FLAG_DISABLED != 0 {
        probe = probe.disabled();
    }
    Ok(probe.into())
}

fn instance(rp: *mut types::kretprobe, ret_addr: CodeAddr, data: &mut [u8]) -> kretprobe_instance {
    kretprobe_instance {
        rp,
        ret_addr: ptr::with_exposed_provenance_mut(ret_addr.as_usize()),
        data: data.as_mut_ptr().cast(),
    }
}
