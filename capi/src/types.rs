//! The structures that C and this library share. The caller owns them; they must stay where they are, and
//! nobody may change them, while the probe is registered.

use crate::Native;
use crate::host::TheHost;
use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use core::ptr;
use probe_core::arch::Arch;
use probe_core::error::Errno;
use probe_core::{CodeAddr, Probe};

/// The saved registers: the backend's own, laid out as Linux's `struct pt_regs`.
pub type pt_regs = <Native as Arch>::Regs;

/// Registers the probe disabled: it is planted, and no handler runs before `enable_kprobe` (REG_10).
pub const KPROBE_FLAG_DISABLED: u32 = 2;

/// The caller knows that an instruction starts at `addr`, although no symbol covers it (REG_4).
pub const KPROBE_FLAG_UNCHECKED: u32 = 0x100;

/// The most calls that a return probe can follow at the same time: more in `maxactive` is `-EINVAL` (RET_3).
pub const KRETPROBE_MAX_ACTIVE: c_int = 1048575;

/// How long a reason code can be, its final NUL included.
pub const KPROBE_REASON_LEN: usize = 48;

/// Called before the instruction, with the registers as they were before it. Non-zero: the handler has
/// changed the control flow, and the instruction is not run (HIT_2).
pub type kprobe_pre_handler_t = Option<unsafe extern "C" fn(p: *mut kprobe, regs: *mut pt_regs) -> c_int>;

/// Called after the instruction. `flags` is always 0.
pub type kprobe_post_handler_t =
    Option<unsafe extern "C" fn(p: *mut kprobe, regs: *mut pt_regs, flags: c_ulong)>;

/// Called when the instruction or a handler of this probe has faulted. Non-zero: the handler has dealt with
/// it (HIT_9).
pub type kprobe_fault_handler_t =
    Option<unsafe extern "C" fn(p: *mut kprobe, regs: *mut pt_regs, trapnr: c_int) -> c_int>;

/// Called at a call's entry (non-zero: this call is left alone, RET_1) or at its return.
pub type kretprobe_handler_t =
    Option<unsafe extern "C" fn(ri: *mut kretprobe_instance, regs: *mut pt_regs) -> c_int>;

/// A kprobe: all fields are zero but those that the caller sets. `reason` and `handle` belong to the library.
#[repr(C)]
pub struct kprobe {
    /// Where: an address of code, or null if `symbol_name` is set. While the probe is registered it is the
    /// probe's address; unregistering restores the caller's value. On ppc64 ELFv1 the code, not the function
    /// descriptor.
    pub addr: *mut c_void,
    /// Where: a symbol, as `name` or `module:name`; or null if `addr` is set.
    pub symbol_name: *const c_char,
    /// How far behind it, in bytes.
    pub offset: c_uint,
    /// Called before the instruction, if not null.
    pub pre_handler: kprobe_pre_handler_t,
    /// Called after the instruction, if not null.
    pub post_handler: kprobe_post_handler_t,
    /// Called at a fault, if not null.
    pub fault_handler: kprobe_fault_handler_t,
    /// `KPROBE_FLAG_DISABLED`, `KPROBE_FLAG_UNCHECKED`.
    pub flags: u32,
    /// Hits whose handlers were skipped. Brought up to date by `kprobe_counters` and when the probe is
    /// unregistered.
    pub nmissed: c_ulong,
    /// After a registration that failed, the stable code of the reason: `place.no_symbol`. Else empty.
    pub reason: [c_char; KPROBE_REASON_LEN],
    /// The library's. Zero while the probe is not registered. It is valid in this structure only: a copy of a
    /// registered probe is not registered.
    pub handle: [*mut c_void; 4],
}

/// A jprobe: on a function's entry, a function with the same arguments.
#[repr(C)]
pub struct jprobe {
    /// Where. Its handlers must be null.
    pub kp: kprobe,
    /// The function to be called with copies of the arguments. It returns, or calls `jprobe_return`.
    pub entry: *const c_void,
}

/// A return probe.
#[repr(C)]
pub struct kretprobe {
    /// Where: a function's entry. Its handlers must be null.
    pub kp: kprobe,
    /// Called when a followed call returns, if not null.
    pub handler: kretprobe_handler_t,
    /// Called at each call's entry, if not null. Without it every call is followed.
    pub entry_handler: kretprobe_handler_t,
    /// How many calls can be followed at the same time; 0 or less means the default (RET_3).
    pub maxactive: c_int,
    /// Calls that were not followed because no instance was free. Brought up to date like `kp.nmissed`.
    pub nmissed: c_int,
    /// How many bytes of private data each followed call gets, up to 4096. They are zero at entry.
    pub data_size: usize,
}

/// One call that is followed, as its handlers see it.
#[repr(C)]
pub struct kretprobe_instance {
    /// The probe.
    pub rp: *mut kretprobe,
    /// Where the call returns to.
    pub ret_addr: *mut c_void,
    /// The call's private data: `data_size` bytes, aligned to 16.
    pub data: *mut c_void,
}

/// The counts of a probe since it was registered; exact (HIT_8).
#[repr(C)]
pub struct probe_counters {
    /// Hits at which its handlers were called; of a return probe, the calls that are or were followed.
    pub hits: u64,
    /// Hits and returns whose handlers were skipped because they happened inside another hit.
    pub missed_nested: u64,
    /// Calls that were not followed because no instance was free.
    pub missed_pool: u64,
    /// Calls that the entry handler left alone.
    pub vetoed: u64,
    /// Followed calls that never returned.
    pub abandoned: u64,
    /// Faults of the instruction and of this probe's handlers.
    pub faults: u64,
    /// The most calls that were followed at the same time.
    pub pool_high_water: u32,
}

type Handle = Probe<TheHost>;

/// The index in [`kprobe::handle`] of the structure's own address, by which a copy is recognised.
const OWNER: usize = 2;
/// Where the address stands that the caller has given.
const GIVEN: usize = 3;

const _: () = assert!(size_of::<Handle>() == OWNER * size_of::<*mut c_void>());
const _: () = assert!(align_of::<Handle>() == align_of::<*mut c_void>());

/// The first word of [`kprobe::handle`] while the structure's batch is being registered. No handle begins
/// with it: handles are two pointers.
const PENDING: *mut c_void = ptr::without_provenance_mut(1);

impl kprobe {
    /// Whether the handle was given to this structure, and not to one that this is a copy of.
    fn is_owner(&self) -> bool {
        self.handle[OWNER].addr() == ptr::from_ref(self).addr()
    }

    /// Whether it is registered.
    pub(crate) fn is_registered(&self) -> bool {
        self.is_owner() && !self.handle[0].is_null() && self.handle[0] != PENDING
    }

    /// Whether it can be registered: it is neither registered nor being registered.
    pub(crate) fn is_free(&self) -> bool {
        self.handle[0].is_null() || !self.is_owner()
    }

    /// Keeps the same structure from being registered twice in one batch, and keeps the caller's address.
    pub(crate) fn set_pending(&mut self) {
        self.handle = [PENDING, ptr::null_mut(), ptr::from_mut(self).cast(), self.addr];
    }

    /// Marks it as not registered, and restores the caller's way of naming the place.
    pub(crate) fn set_free(&mut self) {
        self.addr = self.handle[GIVEN];
        self.handle = [ptr::null_mut(); 4];
    }

    /// Says where it is going to stand, before its first hit can come.
    pub(crate) fn stand_at(&mut self, at: CodeAddr) {
        self.addr = ptr::with_exposed_provenance_mut(at.as_usize());
    }

    /// Keeps the handle of a probe that is registered now, after [`kprobe::set_pending`].
    pub(crate) fn keep(&mut self, handle: Handle) {
        self.stand_at(handle.addr());
        self.reason = [0; KPROBE_REASON_LEN];
        // SAFETY: the first two words have the handle's size and alignment, and hold none that would have to
        // be dropped.
        unsafe { ptr::from_mut(&mut self.handle).cast::<Handle>().write(handle) };
    }

    /// The handle, while it is registered.
    ///
    /// # Safety
    /// Nobody but this crate has changed the words of a registered probe.
    pub(crate) unsafe fn handle(&self) -> Option<&Handle> {
        // SAFETY: a registered probe's words were written by `keep`, and by nobody since.
        self.is_registered().then(|| unsafe { &*ptr::from_ref(&self.handle).cast::<Handle>() })
    }

    /// Takes the handle, to be given back by [`kprobe::keep`], or else [`kprobe::set_free`]: hits may come
    /// until the probe has been removed, and find the address.
    ///
    /// # Safety
    /// As for [`kprobe::handle`].
    pub(crate) unsafe fn take(&mut self) -> Option<Handle> {
        if !self.is_registered() {
            return None;
        }
        // SAFETY: as in `handle`; cleared below, so it is read once.
        let handle = unsafe { ptr::from_ref(&self.handle).cast::<Handle>().read() };
        (self.handle[0], self.handle[1]) = (PENDING, ptr::null_mut());
        Some(handle)
    }

    /// Notes why it was not registered, and answers the negative errno.
    pub(crate) fn refuse(&mut self, errno: Errno, code: &str) -> c_int {
        self.reason = [0; KPROBE_REASON_LEN];
        // The last byte stays NUL.
        for (to, from) in self.reason[..KPROBE_REASON_LEN - 1].iter_mut().zip(code.bytes()) {
            *to = from as c_char;
        }
        -errno.as_i32()
    }
}
