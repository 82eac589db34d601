//! The program's environment: the agent takes its variables out, and puts them back for a program that the
//! traced process executes in its own place (`#!/usr/bin/env`, `exec` in a shell). Children are left alone;
//! with `-f` nothing is taken out in the first place, and every child inherits it.

use super::{alloc, process};
use crate::{PAIR_VARIABLE, REGION_VARIABLE};
use probe_core::arch::Memory as _;
use probe_core::host::Host as _;
use probe_host_linux::probes;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// The type of an entry of the auxiliary vector that says nothing.
const AT_IGNORE: usize = 1;

/// What was taken out.
struct Taken {
    /// The path of the agent.
    agent: Vec<u8>,
    /// Our variable with its value.
    region: CString,
}

static TAKEN: OnceLock<Taken> = OnceLock::new();

/// In a program that the agent has been put into, whose environment has none of our variables: they are for
/// every program that it, or a child of its, executes.
#[cfg(feature = "mapped")]
pub(super) fn hand_on(agent: &CStr, region: &CStr) {
    let region = [REGION_VARIABLE.as_bytes(), b"=", region.to_bytes()].concat();
    if let Ok(region) = CString::new(region) {
        let _ = TAKEN.set(Taken { agent: agent.to_bytes().to_vec(), region });
    }
}

/// The value of our variable.
///
/// # Safety
/// `environment` is a NULL-terminated array of NUL-terminated strings that stay where they are.
pub(super) unsafe fn region(environment: *mut *mut c_char) -> Option<&'static CStr> {
    // SAFETY: the caller's promise.
    unsafe { entries(environment) }.find_map(|(_, text)| {
        let value = text.to_bytes_with_nul().strip_prefix(REGION_VARIABLE.as_bytes())?;
        CStr::from_bytes_with_nul(value.strip_prefix(b"=")?).ok()
    })
}

/// Whether an environment for a program to be executed has the agent already, or is none.
///
/// # Safety
/// Nobody changes it meanwhile.
pub(super) unsafe fn has_agent(environment: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !can_be_read(environment) || unsafe { region(environment.cast_mut().cast()) }.is_some()
}

/// Whether an environment can be read to its end. If it cannot, the kernel is to report it, as it would
/// without probes.
fn can_be_read(environment: *const *const c_char) -> bool {
    const PART: usize = 64;
    let memory = probes().host().memory();
    let ends = |mut at: usize| loop {
        let mut part = [0; PART];
        // Not into the next page, where it may have ended.
        let part = &mut part[..PART - at % PART];
        if memory.read(at, part).is_err() {
            return false;
        }
        if part.contains(&0) {
            return true;
        }
        at += part.len();
    };
    let entries = environment.expose_provenance();
    let first = (entries != 0).then_some(entries);
    std::iter::successors(first, |at| at.checked_add(size_of::<usize>()))
        .map(|at| memory.read_usize(at))
        .find(|entry| !entry.is_ok_and(|entry| entry != 0 && ends(entry)))
        .is_some_and(|last| last == Ok(0))
}

/// Lets libc know the environment, if it does not yet.
///
/// # Safety
/// As [`region`]; no other thread uses the environment.
pub(super) unsafe fn publish(environment: *mut *mut c_char) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: the caller's promise.
    if unsafe { environ }.is_null() {
        // SAFETY: as above.
        unsafe { environ = environment };
    }
}

/// Takes our variables out of the environment, and ourselves out of `LD_PRELOAD`.
///
/// In a program that has just started, the auxiliary vector follows the array, and code without libc finds
/// the vector by the array's end. So two entries are removed, or none, and the gap becomes an entry of the
/// vector that says nothing (System V ABI, `AT_IGNORE`).
///
/// # Safety
/// As [`region`]; nobody else uses the environment meanwhile, and array and strings may be written.
pub(super) unsafe fn take_out(environment: *mut *mut c_char) {
    let (mut agent, mut region) = (None, None);
    let (mut to, mut gone) = (environment, 0);
    // SAFETY: the caller's promise.
    for (entry, text) in unsafe { entries(environment) } {
        let bytes = text.to_bytes();
        let keep = if is_variable(bytes, REGION_VARIABLE) {
            region = Some(text.to_owned());
            false
        } else if is_variable(bytes, PAIR_VARIABLE) {
            false
        } else if let Some(value) = bytes.strip_prefix(PRELOAD) {
            let len = value.iter().position(|&byte| byte == b':').unwrap_or(value.len());
            agent = Some(value[..len].to_vec());
            // SAFETY: the caller's promise: a writable string.
            value.len() > len && unsafe { cut(entry, PRELOAD.len(), len + 1) }
        } else {
            true
        };
        if keep {
            // SAFETY: `to` never overtakes the entry that is being looked at.
            unsafe { *to = entry };
            // SAFETY: as above.
            to = unsafe { to.add(1) };
        } else {
            gone += 1;
        }
    }
    // SAFETY: not past the old end.
    unsafe { *to = std::ptr::null_mut() };
    for word in (1..gone).step_by(2) {
        // SAFETY: this word and the next are not past the old end, as many words behind the new one as
        // entries have gone.
        let ignored = unsafe { to.add(word) }.cast::<usize>();
        // SAFETY: as above.
        unsafe { ignored.write(AT_IGNORE) };
        // SAFETY: as above.
        let value = unsafe { ignored.add(1) };
        // SAFETY: as above.
        unsafe { value.write(0) };
    }
    if let (Some(agent), Some(region)) = (agent, region) {
        let _ = TAKEN.set(Taken { agent, region });
    }
}

fn is_variable(entry: &[u8], name: &str) -> bool {
    entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
}

/// Removes `len` bytes at `from` of a string.
///
/// # Safety
/// A writable string that has them.
unsafe fn cut(text: *mut c_char, from: usize, len: usize) -> bool {
    // SAFETY: the caller's promise.
    let to = unsafe { text.add(from) };
    // SAFETY: the caller's promise.
    let rest = unsafe { text.add(from + len) };
    // SAFETY: the caller's promise: NUL-terminated.
    let kept = unsafe { CStr::from_ptr(rest) }.count_bytes();
    // SAFETY: moves the rest and its NUL towards the start of the same string.
    unsafe { std::ptr::copy(rest, to, kept + 1) };
    true
}

/// An environment for a program that replaces this one, with the agent in it.
pub(super) struct Inherited {
    pointers: Vec<*const c_char>,
    _preload: CString,
    _pair: Option<CString>,
}

impl Inherited {
    /// `environment` and the agent; `None` where the agent is not to be passed on: it was never taken out, or
    /// the calling process is a child of a launched program, whose children inherit it without this; or
    /// memory runs out, as each child of `posix_spawn` leaves an environment with its parent.
    ///
    /// # Safety
    /// Nobody changes it meanwhile.
    pub(super) unsafe fn new(environment: *const *const c_char) -> Option<Self> {
        let taken = TAKEN.get()?;
        let is_followed = cfg!(feature = "mapped") || process::is_traced_process_itself();
        if !is_followed || !can_be_read(environment) || alloc::is_nearly_full() {
            return None;
        }
        let mut preload = [PRELOAD, &taken.agent].concat();
        let mut pointers: Vec<*const c_char> = Vec::new();
        // SAFETY: the caller's promise.
        for (entry, text) in unsafe { entries(environment.cast_mut().cast()) } {
            match text.to_bytes().strip_prefix(PRELOAD) {
                Some(value) => {
                    preload.push(b':');
                    preload.extend_from_slice(value);
                }
                None => pointers.push(entry),
            }
        }
        let has_other = preload.len() > PRELOAD.len() + taken.agent.len();
        let preload = CString::new(preload).ok()?;
        let pair = has_other.then(|| CString::new(format!("{PAIR_VARIABLE}="))).transpose().ok()?;
        pointers.extend([preload.as_ptr(), taken.region.as_ptr()]);
        pointers.extend(pair.iter().map(|pair| pair.as_ptr()));
        pointers.push(std::ptr::null());
        Some(Self { pointers, _preload: preload, _pair: pair })
    }

    /// The environment as `execve` takes it; valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// The entries of an environment, as pointers and as text.
///
/// # Safety
/// A NULL-terminated array of NUL-terminated strings that stay where they are while the iterator is used.
unsafe fn entries(environment: *mut *mut c_char) -> impl Iterator<Item = (*mut c_char, &'static CStr)> {
    let mut at = environment;
    std::iter::from_fn(move || {
        // SAFETY: not past the NULL at the end.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above.
        at = unsafe { at.add(1) };
        // SAFETY: the caller's promise.
        Some((entry, unsafe { text_at(entry) }))
    })
}

/// As [`CStr::from_ptr`], without libc's `strlen`, which may be probed: in a handler that would be a nested
/// hit.
///
/// # Safety
/// As of [`CStr::from_ptr`].
unsafe fn text_at<'a>(start: *const c_char) -> &'a CStr {
    // A plain loop may be compiled to a call of `strlen`.
    let byte_at = |len| {
        // SAFETY: not past the NUL, by the caller's promise.
        let byte = unsafe { start.add(len) };
        // SAFETY: as above.
        unsafe { byte.read_volatile() }
    };
    let len = (0..).take_while(|&len| byte_at(len) != 0).count();
    // SAFETY: so many bytes and a NUL behind them, which is the first.
    let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len + 1) };
    // SAFETY: as above.
    unsafe { CStr::from_bytes_with_nul_unchecked(bytes) }
}
