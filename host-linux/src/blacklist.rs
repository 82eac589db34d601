//! The blacklist: code that the hit path itself runs.
//!
//! * In the object that this crate is linked into: the functions of the probe crates; Rust's `core`, because
//!   an unoptimised build calls it; and all code that no symbol covers.
//! * `memcpy` and its like, which the compiler calls at its own discretion, unless the object has private
//!   ones (feature `private-mem`), with the functions that they lead to, where they are compiled; on i386
//!   also the thunks there by which position-independent code learns its address.
//! * Restartable sequences, with a reason of their own ([`probe_elf_symbols::sequences`]).
//! * The vDSO: it is the kernel's, and on most architectures our own signal handlers return through it.
//!
//! All other code may be probed, the loader and all of libc included. The functions that the hit path calls
//! once per thread (`pthread_setspecific`, `__errno_location`, `syscall`) are called when the thread's state
//! is already in place, so a probe there is an ordinary nested hit.

use crate::arch::{IS_ADDRESS_THUNK, branch_target};
use crate::lock::found_once;
use crate::symbols::eh_frame;
use crate::symbols::objects::{self, Object, Role};
use crate::{Native, memory};
use core::ffi::c_int;
use probe_core::CodeAddr;
use probe_core::arch::Arch;
use probe_core::host::{Arrival, Blacklisted};
use probe_elf_symbols::demangle;
use probe_elf_symbols::index::{Entry, Kind};
use std::sync::OnceLock;

unsafe extern "C" {
    fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
    fn memset(to: *mut u8, value: c_int, len: usize) -> *mut u8;
    fn memcmp(a: *const u8, b: *const u8, len: usize) -> c_int;
    fn bcmp(a: *const u8, b: *const u8, len: usize) -> c_int;
}

/// The functions that compiled code may call for copies and comparisons, as this object reaches them.
fn compiler_called() -> [(&'static str, usize); 5] {
    [
        ("memcpy", code_of(memcpy as *const ())),
        ("memmove", code_of(memmove as *const ())),
        ("memset", code_of(memset as *const ())),
        ("memcmp", code_of(memcmp as *const ())),
        ("bcmp", code_of(bcmp as *const ())),
    ]
}

/// The code behind a function pointer: on ppc64 ELFv1 the first word of the descriptor.
fn code_of(function: *const ()) -> usize {
    if cfg!(target_abi = "elfv1") {
        // SAFETY: on that ABI a function pointer points to its descriptor.
        unsafe { function.cast::<usize>().read() }
    } else {
        function as usize
    }
}

/// Whether `object` contains this crate.
fn is_own(object: &Object) -> bool {
    object.holds(code_of(is_own as *const ()))
}

/// Whether the object's names mean nothing to the user: the agent's own.
pub(crate) fn is_hidden(object: &Object) -> bool {
    matches!(object.role, Role::Vdso | Role::Foreign) || object.role == Role::Library && is_own(object)
}

/// Whether the text at `at`, which lies in `object`, must not be probed.
pub(crate) fn covers(object: &Object, at: usize) -> bool {
    if is_own(object) {
        let (index, addr) = (object.index(), at.wrapping_sub(object.bias));
        let Some(best) = index.covering(addr) else { return true };
        // Compilers and linkers give equal functions one body: it belongs to the hit path if any of its names
        // does.
        if core::iter::once(best).chain(index.all_covering(addr)).any(|entry| is_hit_path(index.name(entry)))
        {
            return true;
        }
    }
    for_each_compiler_called(object, &mut |_, start, len| at.wrapping_sub(start) < len)
        || is_in_address_thunk(object, at)
}

/// Whether `at` is in a thunk that the object's `memcpy` or its like may call.
fn is_in_address_thunk(object: &Object, at: usize) -> bool {
    let Some(is_thunk) = IS_ADDRESS_THUNK else { return false };
    if !compiler_called().iter().any(|&(_, function)| object.holds_text(function)) {
        return false;
    }
    (at.saturating_sub(3)..=at).any(|start| is_thunk_at(object, start, is_thunk))
}

/// Whether a thunk by which code learns its address starts at `at`. Under another probe's breakpoint its name
/// decides.
pub(crate) fn is_address_thunk(object: &Object, at: usize) -> bool {
    IS_ADDRESS_THUNK.is_some_and(|is_thunk| {
        let name =
            object.index().covering(at.wrapping_sub(object.bias)).map(|entry| object.index().name(entry));
        name.is_some_and(|name| Arrival::by_name(name) == Arrival::READS_RETURN)
            || is_thunk_at(object, at, is_thunk)
    })
}

/// Whether the four bytes of text at `start` are such a thunk.
fn is_thunk_at(object: &Object, start: usize, is_thunk: fn([u8; 4]) -> bool) -> bool {
    object.holds_text(start)
        && object.holds_text(start + 3)
        // SAFETY: text of an object that this one is linked against, so it stays; the C library's is
        // readable.
        && is_thunk(unsafe { (start as *const [u8; 4]).read() })
}

/// How many functions one of [`compiler_called`] may lead to, itself among them.
const MAX_CALLED: usize = 8;

/// The functions that each of [`compiler_called`] leads to, found once: they are linked to this crate and do
/// not change.
static CALLED: [OnceLock<Vec<(usize, usize)>>; 5] = [const { OnceLock::new() }; 5];

/// Calls `visit` with the name, first byte and length of each function in `object` that compiled code may
/// call for copies and comparisons, and of the functions that those reach by direct jumps, until `visit`
/// answers `true`. Returns whether it has.
fn for_each_compiler_called(object: &Object, visit: &mut dyn FnMut(&str, usize, usize) -> bool) -> bool {
    let mut functions = compiler_called().into_iter().zip(&CALLED);
    functions.any(|((name, function), called)| {
        object.holds_text(function)
            && found_once(called, || called_by(object, function))
                .iter()
                .any(|&(start, len)| visit(name, start, len))
    })
}

/// `function`, and what it leads to by direct jumps and calls.
fn called_by(object: &Object, function: usize) -> Vec<(usize, usize)> {
    let mut found = vec![local_bounds(object, function)];
    let mut index = 0;
    while let Some(&(start, len)) = found.get(index) {
        // What has no bounds of its own may be several functions: what others of them call does not count.
        let has_bounds = bounds(object, start).1 != 1;
        let mut text = vec![0; len];
        let len = memory::read_some(Native::first_byte(CodeAddr::new(start)).as_usize(), &mut text);
        let mut at = 0;
        while let Some(insn_len) =
            Native::insn_len(CodeAddr::new(start + at), text.get(at..len).unwrap_or(&[]))
                .filter(|len| *len != 0)
        {
            let target = branch_target(&text[at..len], CodeAddr::new(start + at));
            let target = target.map(CodeAddr::as_usize).filter(|&target| {
                object.holds_text(target)
                    && (has_bounds || bounds(object, target).1 == 1)
                    && found.len() < MAX_CALLED
                    && !found.iter().any(|&(start, len)| target.wrapping_sub(start) < len)
            });
            found.extend(target.map(|target| local_bounds(object, target)));
            at += insn_len;
        }
        index += 1;
    }
    found
}

/// As [`bounds`]. A function without symbol and unwind information, as in riscv64's C libraries and arm's
/// (which have no DWARF), extends to the next symbol.
fn local_bounds(object: &Object, function: usize) -> (usize, usize) {
    match bounds(object, function) {
        (start, 1) => {
            let addresses = object.index().entries().iter().map(|entry| object.bias.wrapping_add(entry.addr));
            let next = addresses.filter(|&at| at > function).min();
            (start, next.map_or(1, |next| next - function))
        }
        known => known,
    }
}

/// The first byte and length of the function that a function pointer leads to, if it lies in `object`.
fn bounds(object: &Object, function: usize) -> (usize, usize) {
    if !object.holds_text(function) {
        return (0, 0);
    }
    if let Some(entry) = object.index().covering(function.wrapping_sub(object.bias)) {
        return (object.bias.wrapping_add(entry.addr), object.index().extent(entry));
    }
    object.eh_frame_header.and_then(|header| eh_frame::find(header, function)).unwrap_or((function, 1))
}

/// Whether a symbol's name says that it belongs to the hit path.
fn is_hit_path(name: &str) -> bool {
    const CRATES: [&str; 7] = [
        "probe_core",
        "probe_arch_",
        "probe_host_linux",
        "probe_elf_symbols",
        "probe_ppc_decode",
        "probe_x86_decode",
        "yaxpeax",
    ];
    if CRATES.iter().any(|krate| name.contains(krate)) || name.starts_with("__aarch64_") {
        return true;
    }
    let mut is_core = false;
    if name.contains("core") {
        demangle::forms(name, &mut |form| is_core |= belongs_to_core(form));
    }
    is_core
}

/// Whether a demangled path is one of Rust's `core`: `core::…`, `<core::… as …>::…`, `<T as core::…>::…`
/// where `T` is no type of another crate.
fn belongs_to_core(path: &str) -> bool {
    let Some(inner) = path.strip_prefix('<') else { return path.starts_with("core::") };
    match inner.split_once(" as ") {
        Some((on, of)) => on.contains("core::") || !on.contains("::") && of.starts_with("core::"),
        None => inner.starts_with("core::"),
    }
}

/// Calls `visit` with every blacklisted range.
pub(crate) fn for_each(visit: &mut dyn FnMut(&Blacklisted<'_>)) {
    let mut range = |start: usize, len: usize, name: &str| {
        let start = CodeAddr::new(start);
        visit(&Blacklisted { start, end: start.wrapping_add(len), name });
    };
    for object in objects::snapshot().iter() {
        if object.role == Role::Vdso {
            for segment in object.segments.iter().filter(|segment| segment.is_executable) {
                range(segment.start, segment.end - segment.start, &object.name);
            }
            continue;
        }
        if is_own(object) {
            let listed = |entry: &&Entry| {
                entry.kind != Kind::Data && entry.len_bytes != 0 && is_hit_path(object.index().name(entry))
            };
            for entry in object.index().entries().iter().filter(listed) {
                let start = object.bias.wrapping_add(entry.addr);
                range(start, entry.len_bytes, object.index().name(entry));
            }
        }
        for_each_compiler_called(object, &mut |name, start, len| {
            range(start, len, name);
            false
        });
        for (start, end) in object.sequences().ranges() {
            let entry = object.index().covering(start as usize);
            let name = entry.map_or("restartable sequence", |entry| object.index().name(entry));
            range(object.bias.wrapping_add(start as usize), (end - start) as usize, name);
        }
        for_each_address_thunk(object, &mut |start| range(start, 4, "address thunk"));
    }
}

/// Calls `visit` with the start of every thunk that is blacklisted in `object`.
fn for_each_address_thunk(object: &Object, visit: &mut dyn FnMut(usize)) {
    let Some(is_thunk) = IS_ADDRESS_THUNK else { return };
    let has_callers = compiler_called().iter().any(|&(_, function)| object.holds_text(function));
    for segment in object.segments.iter().filter(|segment| has_callers && segment.is_executable) {
        let starts = segment.start..segment.end;
        starts.filter(|&start| is_thunk_at(object, start, is_thunk)).for_each(&mut *visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_core_are_told_from_those_of_others() {
        for core in [
            "core::ptr::read",
            "core::slice::<impl [T]>::get",
            "<core::slice::Iter<T> as core::iter::Iterator>::next",
            "<usize as core::slice::index::SliceIndex<[T]>>::get",
            "<T as core::convert::Into<U>>::into",
        ] {
            assert!(belongs_to_core(core), "{core}");
        }
        for other in ["std::io::stdio::_print", "<my::T as core::fmt::Debug>::fmt", "my::core::f", "main"] {
            assert!(!belongs_to_core(other), "{other}");
        }
    }

    #[test]
    fn the_hit_path_is_told_from_the_program() {
        assert!(is_hit_path("_ZN10probe_core3hit10breakpoint17h0123456789abcdefE"));
        assert!(is_hit_path("probe_host_linux_copy"));
        assert!(!is_hit_path("_ZN3std2io5stdio6_print17h0123456789abcdefE"));
        assert!(!is_hit_path("malloc"));
    }

    /// A listed range may not be probed, under any of its names.
    #[test]
    fn every_listed_range_is_covered() {
        let mut uncovered = Vec::new();
        for_each(&mut |range| {
            for at in [range.start.as_usize(), range.end.as_usize() - 1] {
                let object = objects::at(at).unwrap();
                if object.role != Role::Vdso && !covers(&object, at) {
                    uncovered.push(format!("{} at {at:#x}", range.name));
                }
            }
        });
        assert!(uncovered.is_empty(), "{uncovered:#?}");
    }

    #[test]
    fn every_function_the_compiler_calls_is_found_and_covered() {
        for (name, function) in compiler_called() {
            let object = objects::at(function).unwrap();
            let (start, len) = bounds(&object, function);
            // musl's in assembly have symbols without a length.
            assert!(len >= 4, "{name} has {len} bytes");
            for at in [function, start + len - 1] {
                assert!(covers(&object, at), "{name}: {at:#x} in {}", object.name);
            }
        }
    }
}
