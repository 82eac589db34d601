//! Files that are to be executed: whether the agent can be loaded into them.
//!
//! The dynamic linker of glibc loads the agent that `LD_PRELOAD` names; that of musl cannot, and ends the
//! program. So the file is looked at as the kernel does a moment later: through the first lines of scripts,
//! to the head of a program.
//!
//! This runs in a handler, and in children that share their parent's memory, on a stack that may have less
//! than a page left (musl's `posix_spawn`): what is large is not on the stack. What is on the heap is given
//! back in the reverse order, as the heap takes back its last block only ([`super::alloc`]), and a child's
//! would be lost to its parent.

use probe_core::arch::Memory as _;
use probe_core::host::Host as _;
use probe_host_linux::{probes, sys};
use std::ffi::{CStr, c_char, c_int, c_long};
use std::fmt;
use std::io::Write as _;

/// A file as the system call is told of it that executes it.
#[derive(Clone, Copy)]
pub(super) enum File {
    /// By a path from a folder.
    At {
        /// The folder.
        folder: c_int,
        /// The path's address.
        path: usize,
    },
    /// By its descriptor.
    Opened(c_int),
}

/// What becomes of the agent in a file that is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// It is loaded, or nothing is executed, or known.
    Loaded,
    /// It cannot be, and why.
    Not(Why),
}

/// Why an agent cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Why {
    /// What runs a script; empty for a program.
    interpreter: String,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Unreadable,
    Static,
    OtherLinker,
    Bits(u8),
    OtherMachine,
    SetId,
}

impl Why {
    /// Whether the command may put an agent into it: a program of this machine's, with a C library that it
    /// may know.
    pub(super) fn may_be_put(&self) -> bool {
        matches!(self.reason, Reason::Static | Reason::OtherLinker)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.interpreter.is_empty() {
            f.write_str("it ")?;
        } else {
            write!(f, "its interpreter `{}` ", self.interpreter)?;
        }
        match self.reason {
            Reason::Unreadable => f.write_str("cannot be read"),
            Reason::Static => f.write_str("is static"),
            Reason::OtherLinker => f.write_str("has a dynamic linker other than glibc's"),
            Reason::Bits(bits) => write!(f, "is a {bits}-bit program"),
            Reason::OtherMachine => f.write_str("is a program for another machine"),
            Reason::SetId => f.write_str("gets rights of its own as it starts (set-id or capabilities)"),
        }
    }
}

impl File {
    /// As `execve(2)` is told.
    pub(super) fn path(path: usize) -> Self {
        Self::At { folder: libc::AT_FDCWD, path }
    }

    /// As `execveat(2)` is told.
    pub(super) fn at(folder: c_int, path: usize, flags: c_int) -> Self {
        let mut first = [1];
        let is_empty = probes().host().memory().read(path, &mut first).is_ok() && first == [0];
        if is_empty && flags & libc::AT_EMPTY_PATH != 0 {
            Self::Opened(folder)
        } else {
            Self::At { folder, path }
        }
    }

    /// What becomes of the agent in it.
    pub(super) fn outlook(self) -> Outlook {
        self.judge().unwrap_or(Outlook::Loaded)
    }

    /// What it is called.
    pub(super) fn name(self) -> String {
        match self {
            // SAFETY: the kernel has found a file by this path.
            Self::At { path, .. } => unsafe { text_at(std::ptr::with_exposed_provenance::<c_char>(path)) }
                .to_string_lossy()
                .into_owned(),
            Self::Opened(descriptor) => link_of(descriptor).unwrap_or_else(|| "a descriptor".into()),
        }
    }

    /// `None` where the kernel executes nothing, or nothing is known.
    fn judge(self) -> Option<Outlook> {
        // Before the head, which it outlives; long enough for any.
        let mut interpreter = String::with_capacity(LINE_LEN);
        let mut head = vec![0; HEAD_LEN];
        let mut opened = match self {
            Self::At { folder, path } => Open::at(folder, path),
            Self::Opened(descriptor) => {
                let path = link_to(descriptor);
                Open::at(libc::AT_FDCWD, path.as_ptr().expose_provenance())
            }
        };
        for _ in 0..=MAX_INTERPRETERS {
            let not = |interpreter, reason| Some(Outlook::Not(Why { interpreter, reason }));
            let file = match opened {
                Open::File(file) => file,
                Open::Unreadable => return not(interpreter, Reason::Unreadable),
                Open::None => return None,
            };
            let len = file.read(0, &mut head)?;
            let head = &head[..len];
            if let Some(line) = head.strip_prefix(b"#!") {
                interpreter.clear();
                interpreter.push_str(interpreter_in(line)?);
                let path = format!("{interpreter}\0");
                opened = Open::at(libc::AT_FDCWD, path.as_ptr().expose_provenance());
                continue;
            }
            let path = if interpreter.is_empty() { self.name() } else { interpreter.clone() };
            return match file.reason(head, path.rsplit('/').next().unwrap_or_default())? {
                Ok(()) => Some(Outlook::Loaded),
                Err(reason) => not(interpreter, reason),
            };
        }
        None
    }
}

/// How many `#!` may follow one another, as in the kernel.
const MAX_INTERPRETERS: usize = 5;
/// What is read of a file at first: most programs' headers, and more than the kernel reads of a script.
const HEAD_LEN: usize = 1024;
/// The longest first line of a script, `#!` included.
const LINE_LEN: usize = 255;
/// The longest path of a dynamic linker that is looked at.
const LINKER_LEN: usize = 256;

/// What runs a script, from what follows `#!`.
fn interpreter_in(line: &[u8]) -> Option<&str> {
    let line = &line[..line.len().min(LINE_LEN - 2)];
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t\0".contains(byte)).filter(|word| !word.is_empty());
    // A name that is not UTF-8 is not found, and left to the kernel.
    words.next().and_then(|word| std::str::from_utf8(word).ok())
}

/// The path of a descriptor's link, with a NUL.
fn link_to(descriptor: c_int) -> [u8; 32] {
    let mut path = [0; 32];
    // As long as the longest number and a NUL.
    let _ = write!(&mut path[..31], "/proc/self/fd/{descriptor}");
    path
}

/// What a descriptor leads to.
fn link_of(descriptor: c_int) -> Option<String> {
    let path = link_to(descriptor);
    let mut link = vec![0; 512];
    let [from, to] = [path.as_ptr().expose_provenance(), link.as_mut_ptr().expose_provenance()];
    let arguments = [libc::AT_FDCWD as usize, from, to, link.len()];
    // SAFETY: a string, and room for the answer.
    let len = unsafe { sys::call(libc::SYS_readlinkat, arguments) }.ok()?;
    link.truncate(len);
    Some(String::from_utf8(link).unwrap_or_else(|link| String::from_utf8_lossy(link.as_bytes()).into_owned()))
}

/// An attempt to open a file.
enum Open {
    File(Descriptor),
    /// It is there, and can be executed, but not read.
    Unreadable,
    /// It cannot be executed, or nothing is known of it.
    None,
}

impl Open {
    /// `path` is where a string is said to be.
    fn at(folder: c_int, path: usize) -> Self {
        // Neither a terminal nor a pipe that has this name may stop us.
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        // SAFETY: the kernel reads the string, and says so if it cannot.
        let opened = unsafe { sys::call(libc::SYS_openat, [folder as usize, path, flags as usize]) };
        let opened = opened.map(Descriptor);
        let nothing = c"".as_ptr().expose_provenance();
        let facts = match &opened {
            Ok(file) => facts(file.0 as c_int, nothing, libc::AT_EMPTY_PATH),
            Err(_) => facts(folder, path, 0),
        };
        let may_be_executed = facts
            .as_ref()
            .is_none_or(|facts| facts.mode & libc::S_IFMT == libc::S_IFREG && facts.mode & 0o111 != 0);
        match opened {
            Ok(file) if may_be_executed => Self::File(file),
            Err(libc::EACCES | libc::EPERM) if may_be_executed && facts.is_some() => Self::Unreadable,
            // Such as of a process without a free descriptor: its program is as any.
            _ => Self::None,
        }
    }
}

/// What is known of a file without opening it.
struct Facts {
    mode: u32,
    user: u32,
    group: u32,
}

/// `statx(2)`; the kernels that do not have it are older than what this runs on, and tell nothing.
#[inline(never)]
fn facts(folder: c_int, path: usize, flags: c_int) -> Option<Facts> {
    const WANTED: u32 = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_GID;
    let mut room: Vec<u64> = vec![0; size_of::<libc::statx>().div_ceil(size_of::<u64>())];
    let to = room.as_mut_ptr().expose_provenance();
    let arguments = [folder as usize, path, flags as usize, WANTED as usize, to];
    // SAFETY: the kernel reads the string, and says so if it cannot; room for the answer.
    unsafe { sys::call(libc::SYS_statx, arguments) }.ok()?;
    let told = room.as_ptr().cast::<libc::statx>();
    // SAFETY: as long as a `statx` and aligned as its widest field; plain numbers, which are initialised.
    let told = unsafe { &*told };
    Some(Facts { mode: told.stx_mode.into(), user: told.stx_uid, group: told.stx_gid })
}

/// An open file, closed as it goes.
struct Descriptor(usize);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: our own.
        let _ = unsafe { sys::call(libc::SYS_close, [self.0]) };
    }
}

impl Descriptor {
    /// Reads what is there from `at` on; how many bytes.
    fn read(&self, at: usize, to: &mut [u8]) -> Option<usize> {
        // SAFETY: our own descriptor.
        unsafe { sys::call(libc::SYS_lseek, [self.0, at, libc::SEEK_SET as usize]) }.ok()?;
        // SAFETY: our own descriptor, and room for so many bytes.
        unsafe { sys::call(libc::SYS_read, [self.0, to.as_mut_ptr().expose_provenance(), to.len()]) }.ok()
    }

    fn read_all(&self, at: usize, to: &mut [u8]) -> Option<()> {
        (self.read(at, to)? == to.len()).then_some(())
    }

    /// Whether the agent can be loaded into the program with this head, called `name`; `None` where it is
    /// none.
    fn reason(&self, head: &[u8], name: &str) -> Option<Result<(), Reason>> {
        let own = own_head();
        let theirs: &[u8; IDENTITY_LEN] = head.first_chunk()?;
        if !theirs.starts_with(b"\x7fELF") {
            return None;
        }
        if theirs[CLASS] != own[CLASS] {
            return Some(Err(Reason::Bits(if theirs[CLASS] == 1 { 32 } else { 64 })));
        }
        if theirs[DATA] != own[DATA] || theirs[MACHINE..] != own[MACHINE..] {
            return Some(Err(Reason::OtherMachine));
        }
        if self.gives_rights() {
            return Some(Err(Reason::SetId));
        }
        Some(match self.has_linker_of_glibc(head)? {
            Some(true) => Ok(()),
            Some(false) => Err(Reason::OtherLinker),
            // The linker itself, which runs what it is told to.
            None if is_of_glibc(name.as_bytes()) => Ok(()),
            None => Err(Reason::Static),
        })
    }

    /// Whether it runs with other rights than this process: then its linker loads only libraries of the
    /// system's, and the kernel gives none to a program that is debugged. Where its file system, or the
    /// process, forbids that it gets them, it is not followed either.
    fn gives_rights(&self) -> bool {
        let Some(facts) = facts(self.0 as c_int, c"".as_ptr().expose_provenance(), libc::AT_EMPTY_PATH)
        else {
            return false;
        };
        let is_other = |number: c_long, of: u32| {
            // SAFETY: has no preconditions.
            let own = unsafe { sys::call(number, []) };
            own != Ok(of as usize)
        };
        facts.mode & libc::S_ISUID != 0 && is_other(libc::SYS_getuid, facts.user)
            || facts.mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
                && is_other(libc::SYS_getgid, facts.group)
            // Root has them all.
            || self.has_capabilities() && is_other(libc::SYS_getuid, 0)
    }

    /// Whether the file gives capabilities. A file system without such gives none.
    fn has_capabilities(&self) -> bool {
        let name = c"security.capability".as_ptr().expose_provenance();
        // SAFETY: our own descriptor, and a string; without room the length alone is told.
        unsafe { sys::call(libc::SYS_fgetxattr, [self.0, name, 0, 0]) }.is_ok_and(|len| len > 0)
    }

    /// Whether the dynamic linker that it asks for, if any, is glibc's by its file name; `None` outside: its
    /// headers cannot be read.
    fn has_linker_of_glibc(&self, head: &[u8]) -> Option<Option<bool>> {
        let half = |at: usize| Some(usize::from(u16::from_ne_bytes(*head.get(at..)?.first_chunk()?)));
        let first = word(head.get(TABLE_AT..)?)?;
        let count = half(COUNT_AT)?;
        for index in 0..count {
            let mut header = [0; HEADER_LEN];
            let at = first.checked_add(index * HEADER_LEN)?;
            match head.get(at..at.checked_add(HEADER_LEN)?) {
                Some(bytes) => header.copy_from_slice(bytes),
                None => self.read_all(at, &mut header)?,
            }
            if header[..4] == libc::PT_INTERP.to_ne_bytes() {
                let mut path = vec![0; word(&header[LEN_AT..])?.min(LINKER_LEN)];
                self.read_all(word(&header[OFFSET_AT..])?, &mut path)?;
                let path = path.split(|&byte| byte == 0).next()?;
                return Some(path.rsplit(|&byte| byte == b'/').next().map(is_of_glibc));
            }
        }
        Some(None)
    }
}

/// A word of the program's, which is as long as ours.
fn word(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|word| usize::from_ne_bytes(*word))
}

/// The identity, type and machine of an ELF file.
const IDENTITY_LEN: usize = 20;
/// Where its class, its byte order and its machine are.
const CLASS: usize = 4;
const DATA: usize = 5;
const MACHINE: usize = 18;

const IS_64: bool = cfg!(target_pointer_width = "64");
/// Where the table of program headers is, and how many there are (`e_phoff`, `e_phnum`).
const TABLE_AT: usize = if IS_64 { 32 } else { 28 };
const COUNT_AT: usize = if IS_64 { 56 } else { 44 };
/// A program header, and where in it the place in the file and the length there are (`p_offset`, `p_filesz`).
const HEADER_LEN: usize = if IS_64 { 56 } else { 32 };
const OFFSET_AT: usize = if IS_64 { 8 } else { 4 };
const LEN_AT: usize = if IS_64 { 32 } else { 16 };

unsafe extern "C" {
    /// The agent's own first byte; of the linker's making.
    #[link_name = "__ehdr_start"]
    static OWN: [u8; IDENTITY_LEN];
}

fn own_head() -> &'static [u8; IDENTITY_LEN] {
    let own = &raw const OWN;
    // SAFETY: the header is mapped with the object.
    unsafe { &*own }
}

/// Whether a file of this name is glibc's dynamic linker.
fn is_of_glibc(name: &[u8]) -> bool {
    [&b"ld-linux"[..], b"ld64.so", b"ld.so", b"ld-2."].iter().any(|known| name.starts_with(known))
}

/// As [`CStr::from_ptr`], without libc's `strlen`, which may be probed: in a handler that would be a nested
/// hit.
///
/// # Safety
/// As of [`CStr::from_ptr`].
pub(super) unsafe fn text_at<'a>(start: *const c_char) -> &'a CStr {
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
