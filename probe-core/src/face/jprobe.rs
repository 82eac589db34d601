//! Jprobes: a handler with the probed function's own signature.

use crate::arch::Arch;
use crate::place::Place;
use crate::state::handler::JprobeEntry;
use crate::state::pending::{AnyProbe, Pending};
use crate::state::point::DISABLED;
use core::marker::PhantomData;

/// A jprobe to be registered: a handler on a function's entry, with the function's own signature.
///
/// The handler gets copies of the arguments. It returns normally, or through the backend's `jprobe_return()`;
/// the probed function then runs from its first instruction with its own arguments, untouched (JMP_2, JMP_3).
/// The handler may not be left in another way (longjmp, unwinding).
pub struct Jprobe<A: Arch> {
    pub(crate) place: Place,
    pub(crate) entry: JprobeEntry,
    pub(crate) is_disabled: bool,
    arch: PhantomData<fn(A)>,
}

impl<A: Arch> Jprobe<A> {
    /// A jprobe that calls `handler`, any `extern "C" fn(A, B, …)` of up to twelve arguments.
    ///
    /// # Safety
    /// The probed function takes the arguments of `handler`, and maybe more behind them.
    pub unsafe fn at(place: impl Into<Place>, handler: impl JprobeHandler) -> Self {
        // SAFETY: the caller's promise; a function pointer stays valid.
        unsafe { Self::from_raw(place, handler.address()) }
    }

    /// A jprobe that calls the `extern "C"` function at the address `handler`.
    ///
    /// # Safety
    /// As for [`Jprobe::at`]; and a function is there until the probe is unregistered.
    pub unsafe fn from_raw(place: impl Into<Place>, handler: usize) -> Self {
        Self { place: place.into(), entry: JprobeEntry(handler), is_disabled: false, arch: PhantomData }
    }

    /// Registers it disabled (REG_10).
    #[must_use]
    pub fn disabled(mut self) -> Self {
        self.is_disabled = true;
        self
    }
}

impl<A: Arch> From<Jprobe<A>> for AnyProbe<A> {
    fn from(probe: Jprobe<A>) -> Self {
        let flags = if probe.is_disabled { DISABLED } else { 0 };
        Self { place: probe.place, handlers: Pending::Jprobe(probe.entry), flags }
    }
}

/// A function pointer that can be a jprobe's handler: `extern "C" fn(A, B, …)` and its unsafe form.
pub trait JprobeHandler: Copy {
    /// The pointer's value.
    fn address(self) -> usize;
}

macro_rules! handlers {
    ($($arg:ident)*) => {
        impl<R, $($arg),*> JprobeHandler for extern "C" fn($($arg),*) -> R {
            fn address(self) -> usize {
                self as *const () as usize
            }
        }
        impl<R, $($arg),*> JprobeHandler for unsafe extern "C" fn($($arg),*) -> R {
            fn address(self) -> usize {
                self as *const () as usize
            }
        }
    };
}

handlers!();
handlers!(A0);
handlers!(A0 A1);
handlers!(A0 A1 A2);
handlers!(A0 A1 A2 A3);
handlers!(A0 A1 A2 A3 A4);
handlers!(A0 A1 A2 A3 A4 A5);
handlers!(A0 A1 A2 A3 A4 A5 A6);
handlers!(A0 A1 A2 A3 A4 A5 A6 A7);
handlers!(A0 A1 A2 A3 A4 A5 A6 A7 A8);
handlers!(A0 A1 A2 A3 A4 A5 A6 A7 A8 A9);
handlers!(A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 A10);
handlers!(A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11);
