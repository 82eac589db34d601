//! The library for a Linux process: probes in any code of the program that it is linked into.

use core::ffi::c_int;
use probe_core::Probes;
use probe_core::error::Errno;
use probe_host_linux::{LinuxProcess, StartError};

/// The host of this library's probes.
pub type TheHost = LinuxProcess;

/// Makes the process ready to be probed: installs the signal handlers and finds out how text can be written.
/// The first registration does so by itself; call this earlier, before the program starts threads, if you
/// can. Answers 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn probe_start() -> c_int {
    probes().map_or_else(|errno| errno, |_| 0)
}

/// Looks whether shared objects have been unloaded, and makes their probes `[GONE]` (CTL_5). Call it after
/// `dlclose`.
#[unsafe(no_mangle)]
pub extern "C" fn probe_objects_changed() {
    probe_host_linux::objects_changed();
}

/// The probes, or a negative errno.
pub(crate) fn probes() -> Result<&'static Probes<TheHost>, c_int> {
    match probe_host_linux::start() {
        Ok(probes) => {
            probe_host_linux::objects_changed();
            Ok(probes)
        }
        Err(StartError::NoMemory(errno) | StartError::NoHandler(errno)) => Err(-errno),
        Err(StartError::Valgrind) => Err(-Errno::EOPNOTSUPP.as_i32()),
        Err(_) => Err(-Errno::EFAULT.as_i32()),
    }
}

/// The probes once they are started, without looking for changed objects: for handlers.
pub(crate) fn started() -> Option<&'static Probes<TheHost>> {
    probe_host_linux::start().ok()
}
