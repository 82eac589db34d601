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

/// How a case ends.
pub type Outcome = Result<(), Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.place.0, self.place.1, self.message)
    }
}

/// Ends the case with a failure unless the condition holds.
macro_rules! that {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::check::Failure { place: (file!(), line!()), message: alloc::format!($($message)+) });
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
            return Err($crate::check::Failure { place: (file!(), line!()), message });
        }
    }};
}

/// The value inside `Ok`, or the end of the case.
macro_rules! ok {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => {
                return Err($crate::check::Failure {
                    place: (file!(), line!()),
                    message: alloc::format!("{}: {error}", stringify!($result)),
                });
            }
        }
    };
}

/// Checks that a registration is refused with this errno.
macro_rules! refused {
    ($result:expr, $errno:ident) => {
        match $result {
            Ok(_) => {
                return Err($crate::check::Failure {
                    place: (file!(), line!()),
                    message: alloc::format!("{} was accepted", stringify!($result)),
                });
            }
            Err(error) => {
                let errno = error.errno();
                if errno != probe_core::error::Errno::$errno {
                    return Err($crate::check::Failure {
                        place: (file!(), line!()),
                        message: alloc::format!(
                            "refused with {errno:?}, should be {}: {error}",
                            stringify!($errno)
                        ),
                    });
                }
            }
        }
    };
}

pub(crate) use {equal, ok, refused, that};
