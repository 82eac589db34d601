//! A jprobe on a function of libc: its arguments by its own signature.
//!
//! `cargo run -p probe-host-linux --example jprobe_example`

use probe_host_linux::{Jprobe, probes};
use std::ffi::{c_char, c_int, c_long};
use std::process::ExitCode;

/// Has the arguments of `strtol`.
extern "C" fn strtol_handler(text: *const c_char, end: *mut *mut c_char, base: c_int) {
    println!("jprobe: nptr = {:#x}, endptr = {:#x}, base = {base:#x}", text as usize, end as usize);
}

type Handler = extern "C" fn(*const c_char, *mut *mut c_char, c_int);

fn main() -> ExitCode {
    let handler: Handler = strtol_handler;
    // SAFETY: the handler has strtol's arguments.
    let probe = match probes().register(unsafe { Jprobe::at("strtol", handler) }) {
        Ok(probe) => probe,
        Err(error) => {
            println!("register_jprobe failed, returned -{}: {error}", error.errno().as_i32());
            return ExitCode::FAILURE;
        }
    };
    println!("Planted jprobe at {:#x}, handler addr {:#x}", probe.addr(), handler as usize);
    for text in [c"42", c"0x1000", c"nothing"] {
        // SAFETY: C strings; no end pointer is wanted.
        let value: c_long = unsafe { libc::strtol(text.as_ptr(), std::ptr::null_mut(), 0) };
        println!("strtol({text:?}) = {value}");
    }
    let at = probe.addr();
    drop(probe);
    println!("jprobe at {at:#x} unregistered");
    ExitCode::SUCCESS
}
