//! The unwinder: a panic in the agent ends the process without one.

use std::ffi::{c_int, c_void};

/// `_URC_END_OF_STACK`.
const END_OF_STACK: c_int = 5;

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_visit: *const c_void, _data: *mut c_void) -> c_int {
    END_OF_STACK
}

/// Functions that only an unwinder's callbacks call.
macro_rules! never {
    ($($name:ident),*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> usize {
                std::process::abort()
            }
        )*
    };
}

never!(
    _Unwind_Resume,
    _Unwind_GetIP,
    _Unwind_GetIPInfo,
    _Unwind_GetDataRelBase,
    _Unwind_GetTextRelBase,
    _Unwind_GetRegionStart,
    _Unwind_GetLanguageSpecificData,
    _Unwind_SetGR,
    _Unwind_SetIP
);
