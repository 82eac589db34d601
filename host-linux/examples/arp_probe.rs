//! A call chain seen by a jprobe and two return probes, with private data from entry to return.
//!
//! `cargo run -p probe-host-linux --example arp_probe`
//!
//! The chain is this program's own, shaped like the one in the kernel that the classic example follows: a
//! packet is validated, which looks up a route, whose result lies behind a pointer that only the entry knows.

use probe_host_linux::{Jprobe, Kretprobe, Probe, probes};
use std::ffi::c_int;
use std::hint::black_box;
use std::process::ExitCode;

/// What a lookup finds.
#[repr(C)]
struct RouteResult {
    prefix_len: u8,
    kind: u8,
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn route_lookup(table: c_int, address: u32, result: *mut RouteResult) -> c_int {
    let is_local = black_box(address) >> 24 == 127;
    // SAFETY: the callers pass a valid pointer.
    unsafe { *result = RouteResult { prefix_len: 8, kind: if is_local { 2 } else { 1 } } };
    if black_box(table) == 0 { -22 } else { 0 }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn validate_source(source: u32, destination: u32, table: c_int) -> c_int {
    let mut result = RouteResult { prefix_len: 0, kind: 0 };
    let found = route_lookup(table, black_box(source), &raw mut result);
    if found != 0 || result.kind != 1 && destination != 0 { -22 } else { 0 }
}

extern "C" fn validate_source_called(_source: u32, _destination: u32, _table: c_int) {
    println!("Calling: validate_source()");
}

fn register() -> Result<Vec<Probe>, probe_core::error::BatchError> {
    let handler: extern "C" fn(u32, u32, c_int) = validate_source_called;
    // SAFETY: the handler has the function's arguments.
    let called = unsafe { Jprobe::at("validate_source", handler) };
    let returned = Kretprobe::at("validate_source").exit(|ret, ()| {
        let value = ret.value();
        println!(
            "Returning: validate_source() with a return value: {value:#x}(64bit) {:#x}(32bit)",
            value as u32
        );
    });
    // The third argument is the pointer to the result: only the return handler can look behind it.
    let looked_up =
        Kretprobe::at("route_lookup").entry(|call| call.argument(2)).exit(|ret, result: usize| {
            let mut kind = [0];
            let at = result + std::mem::offset_of!(RouteResult, kind);
            let read = probe_core::arch::Memory::read(&ret.memory(), at, &mut kind);
            println!("Returning: route_lookup() with a return value: {:#x}(32bit)", ret.value() as u32);
            if read.is_ok() {
                println!("result->type = {}", kind[0]);
            }
        });
    // All or nothing: what was registered before a failure is undone.
    probes().register_all([called.into(), returned.into(), looked_up.into()] as [probe_core::AnyProbe<_>; 3])
}

fn main() -> ExitCode {
    let planted = match register() {
        Ok(planted) => planted,
        Err(error) => {
            println!("registering failed: {error}");
            return ExitCode::FAILURE;
        }
    };
    for probe in &planted {
        println!("Planted {:?} at {:#x}", probe.kind(), probe.addr());
    }
    for (source, table) in [(0x0a00_0001, 1), (0x7f00_0001, 1), (0x0a00_0001, 0)] {
        let verdict = validate_source(black_box(source), 1, table);
        println!("validate_source({source:#x}) = {verdict}");
    }
    drop(planted);
    ExitCode::SUCCESS
}
