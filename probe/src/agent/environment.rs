//! The program's environment: the agent takes its variables out, and puts them back for a program that the
//! traced process executes in its own place (`#!/usr/bin/env`, `exec` in a shell). Children are left alone;
//! with `-f` nothing is taken out in the first place, and every child inherits it, but for programs that the
//! agent cannot be loaded into ([`super::executed`]): those get the environment that they would have without
//! us.

use super::executed::{File, Outlook, text_at};
use super::process::Reporter;
use super::{alloc, confined, process};
use crate::wire::Meta;
use crate::{PAIR_VARIABLE, REGION_VARIABLE};
use probe_core::arch::Memory as _;
use probe_core::host::Host as _;
use probe_host_linux::probes;
use probe_host_linux::sys::{process_id, thread_id};
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

/// The path of the agent where nothing is taken out.
static LEFT: OnceLock<Vec<u8>> = OnceLock::new();

/// Notes what every child inherits, as nothing is taken out.
///
/// # Safety
/// As [`region`].
#[cfg(not(feature = "mapped"))]
pub(super) unsafe fn leave(environment: *mut *mut c_char) {
    // SAFETY: the caller's promise.
    let preload = unsafe { entries(environment) }.find_map(|(_, text)| text.to_bytes().strip_prefix(PRELOAD));
    if let Some(agent) = preload.and_then(|value| value.split(|&byte| byte == b':').next()) {
        let _ = LEFT.set(agent.to_vec());
    }
}

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

/// The environment that a program is to be executed with.
pub(super) struct Changed {
    pointers: Vec<*const c_char>,
    _strings: Vec<CString>,
}

impl Changed {
    /// For the program in `file`, if that is known, which is to be executed with `environment`: with the
    /// agent where it is to be passed on and is not in there; without it where it cannot be loaded, which the
    /// command is told. `None`: as it is.
    ///
    /// # Safety
    /// Nobody changes it meanwhile.
    pub(super) unsafe fn new(file: Option<File>, environment: *const *const c_char) -> Option<Self> {
        if !can_be_read(environment) {
            return None;
        }
        // SAFETY: the caller's promise.
        let has_agent = unsafe { region(environment.cast_mut().cast()) }.is_some();
        if !has_agent && taken().is_none() {
            return None;
        }
        // Who has forbidden itself system calls may not look at files.
        let file = file.filter(|_| !confined::is_confined());
        if has_agent && alloc::is_nearly_full() {
            // Not followed, but alive: what has not been looked at may be of musl, which our variables end.
            // SAFETY: the caller's promise.
            return unsafe { Self::without_agent(environment) };
        }
        if let Some(file) = file
            && let Outlook::Not(why) = file.outlook()
        {
            if !(why.may_be_put() && will_be_put()) {
                tell(file, why.to_string());
            }
            drop(why);
            // SAFETY: the caller's promise.
            return has_agent.then(|| unsafe { Self::without_agent(environment) }).flatten();
        }
        if has_agent {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { Self::with_agent(environment) }
    }

    /// `None` where memory runs out, as each child of `posix_spawn` leaves an environment with its parent.
    ///
    /// # Safety
    /// As [`entries`].
    unsafe fn with_agent(environment: *const *const c_char) -> Option<Self> {
        let taken = taken()?;
        if alloc::is_nearly_full() {
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
        let mut strings = vec![CString::new(preload).ok()?, taken.region.clone()];
        if has_other {
            strings.push(CString::new(format!("{PAIR_VARIABLE}=")).ok()?);
        }
        pointers.extend(strings.iter().map(|text| text.as_ptr()));
        pointers.push(std::ptr::null());
        Some(Self { pointers, _strings: strings })
    }

    /// # Safety
    /// As [`entries`].
    unsafe fn without_agent(environment: *const *const c_char) -> Option<Self> {
        let agent = LEFT.get().or_else(|| TAKEN.get().map(|taken| &taken.agent));
        let is_ours = |path: &[u8]| agent.is_some_and(|agent| agent == path);
        let (mut pointers, mut strings): (Vec<*const c_char>, Vec<CString>) = (Vec::new(), Vec::new());
        // SAFETY: the caller's promise.
        for (entry, text) in unsafe { entries(environment.cast_mut().cast()) } {
            let bytes = text.to_bytes();
            if is_variable(bytes, REGION_VARIABLE) || is_variable(bytes, PAIR_VARIABLE) {
                continue;
            }
            let paths =
                || bytes.strip_prefix(PRELOAD).into_iter().flat_map(|value| value.split(|&b| b == b':'));
            if !paths().any(is_ours) {
                pointers.push(entry);
                continue;
            }
            let others: Vec<&[u8]> = paths().filter(|path| !is_ours(path)).collect();
            if !others.is_empty() {
                strings.push(CString::new([PRELOAD, &others.join(&b':')].concat()).ok()?);
                pointers.extend(strings.last().map(|text| text.as_ptr()));
            }
        }
        pointers.push(std::ptr::null());
        Some(Self { pointers, _strings: strings })
    }

    /// The environment as `execve` takes it; valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// What is to be put into the environments of programs that this process executes. A child of a launched
/// program is not followed, or inherits it.
fn taken() -> Option<&'static Taken> {
    TAKEN.get().filter(|_| cfg!(feature = "mapped") || process::is_traced_process_itself())
}

/// Whether the command will put an agent into the program that this process is about to execute.
fn will_be_put() -> bool {
    let process = process_id();
    let agent = process::agent().filter(|agent| agent.follow && process::traced_process(agent).is_some());
    // The command is told of processes; another thread's number ends with the execution.
    process == thread_id()
        && agent
            .is_some_and(|agent| agent.region.calls().make(process, || agent.region.is_orphaned_for_sure()))
}

/// Tells the command that a program is not followed.
fn tell(file: File, reason: String) {
    let Some(agent) = process::agent().filter(|agent| process::traced_process(agent).is_some()) else {
        return;
    };
    let told = Meta::NotFollowed { image: agent.image, program: file.name(), reason };
    Reporter::new(agent.region).send(&told);
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
