//! Checks that report instead of panicking: a test kernel has no unwinding.

use alloc::string::String;
use core::fmt;

/// What a case found wrong, and where.
#[derive(Debug)]
pub struct Failure {
    /// File and line of the check.
    pub place: (&'static str, u32),
    /// What was seen.
    pub message: String,
}

/// How a case ends: it held, or else.
pub type Outcome = Result<(), Ended>;

/// How a case ends that did not hold.
#[derive(Debug)]
pub enum Ended {
    /// Something was wrong.
    Failed(Failure),
    /// The host or the machine lacks what the case is about: this.
    Skipped(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.place.0, self.place.1, self.message)
    }
}

/// Ends the case with a failure.
macro_rules! fail {
    ($message:expr) => {{
        let failure = $crate::check::Failure { place: (file!(), line!()), message: $message };
        return Err($crate::check::Ended::Failed(failure));
    }};
}

/// Ends the case with a failure unless the condition holds.
macro_rules! that {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            $crate::check::fail!(alloc::format!($($message)+));
        }
    };
}

/// Ends the case with a failure unless both sides are equal.
macro_rules! equal {
    ($left:expr, $right:expr $(, $($message:tt)+)?) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            #[allow(unused_mut, reason = "not every check says more")]
            let mut message = alloc::format!("{} is {left:?}, should be {right:?}", stringify!($left));
            $(message.push_str(": "); message.push_str(&alloc::format!($($message)+));)?
            $crate::check::fail!(message);
        }
    }};
}

/// The value inside `Ok`, or the end of the case.
macro_rules! ok {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => {
                $crate::check::fail!(alloc::format!("{}: {error}", stringify!($result)));
            }
        }
    };
}

/// Checks that a registration is refused with this errno.
macro_rules! refused {
    ($result:expr, $errno:ident) => {
        match $result {
            Ok(_) => {
                $crate::check::fail!(alloc::format!("{} was accepted", stringify!($result)));
            }
            Err(error) => {
                let errno = error.errno();
                if errno != probe_core::error::Errno::$errno {
                    $crate::check::fail!(alloc::format!(
                        "refused with {errno:?}, should be {}: {error}",
                        stringify!($errno)
                    ));
                }
            }
        }
    };
}

pub(crate) use {equal, fail, ok, refused, that};
