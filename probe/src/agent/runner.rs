//! Programs that the traced one executes, if they need an emulator that the kernel does not start by itself.
//!
//! `probe trace --runner 'qemu-aarch64 -L DIR'` starts the program through that command and names it in the
//! environment ([`RUNNER_VARIABLE`]). Programs that this one executes have to be started in the same way. The
//! emulator is a program of the host machine: `LD_PRELOAD` in its environment would apply to itself, so the
//! emulated program's variables are handed over by the emulator's option `-E`.

use crate::RUNNER_VARIABLE;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// The bytes of an ELF header that identify the machine: class, byte order, `e_type`, `e_machine`.
const HEAD_LEN: usize = 20;

/// What is known from the start on.
struct Runner {
    /// The command, word by word; not empty.
    words: Vec<CString>,
    /// The first bytes of a program of this machine.
    head: [u8; HEAD_LEN],
}

static RUNNER: OnceLock<Runner> = OnceLock::new();

/// Looks for a runner. If there is one, the thread gets the program's name, as the kernel has given it the
/// emulator's.
pub(super) fn start() {
    let Some(value) = std::env::var_os(RUNNER_VARIABLE) else { return };
    let words: Vec<CString> = words(&value).filter_map(|word| CString::new(word).ok()).collect();
    let Some(head) = head(c"/proc/self/exe").filter(|_| !words.is_empty()) else { return };
    let _ = RUNNER.set(Runner { words, head });
    if let Some(name) = std::env::args_os().next()
        && let Some(name) = name.as_bytes().rsplit(|&byte| byte == b'/').next()
        && let Ok(name) = CString::new(name)
    {
        // SAFETY: PR_SET_NAME reads a string and cuts it off where it is too long.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
}

/// Whether programs are executed through a runner.
pub(super) fn is_needed() -> bool {
    RUNNER.get().is_some()
}

/// The words of a runner, as spaces part them.
fn words(value: &OsStr) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// The first bytes of a file.
fn head(path: &CStr) -> Option<[u8; HEAD_LEN]> {
    let mut head = [0; HEAD_LEN];
    let mut file = File::open(OsStr::from_bytes(path.to_bytes())).ok()?;
    file.read_exact(&mut head).ok()?;
    Some(head)
}

/// Whether the file is a program for the same machine: same class, byte order and `e_machine`.
fn is_of_same_machine(theirs: &[u8; HEAD_LEN], ours: &[u8; HEAD_LEN]) -> bool {
    theirs[..6] == ours[..6] && theirs[18..] == ours[18..]
}

/// The arguments of `execve` that replace the program's.
pub(super) struct Execution {
    path: CString,
    argv: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    _kept: Vec<CString>,
}

impl Execution {
    /// `None` where the kernel executes programs itself, or where there is no such file.
    ///
    /// # Safety
    /// As `execve(2)`.
    pub(super) unsafe fn new(
        path: *const c_char,
        argv: *const *const c_char,
        environment: *const *const c_char,
    ) -> Option<Self> {
        let runner = RUNNER.get()?;
        // SAFETY: the caller's promise.
        let program = unsafe { CStr::from_ptr(path) };
        let is_emulated = is_of_same_machine(&head(program)?, &runner.head);
        // SAFETY: the caller's promise.
        let mut given = unsafe { pointers(argv) };
        // SAFETY: as above.
        let all = unsafe { pointers(environment) };
        // SAFETY: the caller's promise: strings.
        let preload = all.iter().find(|&&entry| unsafe { is_preload(entry) });
        // SAFETY: as above.
        let rest = all.iter().copied().filter(|&entry| !unsafe { is_preload(entry) });
        let environment: Vec<_> = rest.chain([std::ptr::null()]).collect();
        if !is_emulated {
            given.push(std::ptr::null());
            return Some(Self { path: program.to_owned(), argv: given, environment, _kept: Vec::new() });
        }
        let name = given.first().copied().unwrap_or(path);
        // SAFETY: the caller's promise: strings.
        let mut kept = vec![c"-0".to_owned(), unsafe { CStr::from_ptr(name) }.to_owned()];
        if let Some(&preload) = preload {
            // SAFETY: as above.
            kept.extend([c"-E".to_owned(), unsafe { CStr::from_ptr(preload) }.to_owned()]);
        }
        let before = runner.words.iter().chain(&kept).map(|word| word.as_ptr());
        let arguments = given.iter().skip(1).copied();
        let argv = before.chain([path]).chain(arguments).chain([std::ptr::null()]).collect();
        Some(Self { path: runner.words[0].clone(), argv, environment, _kept: kept })
    }

    /// The path of what is to be executed.
    pub(super) fn path(&self) -> *const c_char {
        self.path.as_ptr()
    }

    /// Its arguments; valid as long as `self` and what it was made from.
    pub(super) fn argv(&self) -> *const *const c_char {
        self.argv.as_ptr()
    }

    /// Its environment; valid as long as `self` and what it was made from.
    pub(super) fn environment(&self) -> *const *const c_char {
        self.environment.as_ptr()
    }
}

/// Where `execvp` would find `file`; `None` where programs are executed by the kernel itself, or there is
/// none.
pub(super) fn find(file: &CStr) -> Option<CString> {
    RUNNER.get()?;
    if file.to_bytes().contains(&b'/') {
        return Some(file.to_owned());
    }
    let path = std::env::var_os("PATH");
    let path = path.as_deref().map_or(&b"/bin:/usr/bin"[..], OsStr::as_bytes);
    path.split(|&byte| byte == b':').find_map(|folder| {
        let candidate = CString::new([folder, b"/", file.to_bytes()].concat()).ok()?;
        // SAFETY: a string.
        (unsafe { libc::access(candidate.as_ptr(), libc::X_OK) } == 0).then_some(candidate)
    })
}

/// The entries of a NULL-terminated array; none of a NULL.
///
/// # Safety
/// NULL, or such an array.
unsafe fn pointers(mut at: *const *const c_char) -> Vec<*const c_char> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise: not past the NULL at the end.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: as above.
        all.push(unsafe { *at });
        at = at.wrapping_add(1);
    }
    all
}

/// # Safety
/// A string.
unsafe fn is_preload(entry: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(entry) }.to_bytes().starts_with(PRELOAD)
}
