//! The last fault that has ended a fault-free copy: the program gets a signal with these facts.

use crate::sys::SigInfo;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// What the kernel said of a thread's last fault of that kind.
pub(crate) struct LastFault {
    signal: AtomicI32,
    code: AtomicI32,
    addr: AtomicUsize,
}

impl LastFault {
    /// Keeps what the kernel says.
    pub(crate) fn keep(&self, signal: c_int, info: &SigInfo) {
        self.signal.store(signal, Ordering::Relaxed);
        self.code.store(info.code, Ordering::Relaxed);
        self.addr.store(info.addr, Ordering::Relaxed);
    }

    /// What it would say now.
    pub(crate) fn info(&self) -> SigInfo {
        SigInfo::fault(
            self.signal.load(Ordering::Relaxed),
            self.code.load(Ordering::Relaxed),
            self.addr.load(Ordering::Relaxed),
        )
    }
}
