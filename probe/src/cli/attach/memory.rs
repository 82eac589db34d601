//! The memory of another process.

use libc::pid_t;
use std::io;

/// Reads `to.len()` bytes at `at`.
///
/// # Errors
/// Not all of them can be read.
pub(super) fn read(pid: pid_t, at: usize, to: &mut [u8]) -> io::Result<()> {
    let here = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: to.len() };
    // SAFETY: writes into `to` alone.
    let done = unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) };
    whole(done, to.len())
}

/// Writes `from` at `at`.
///
/// # Errors
/// Not all of it can be written.
pub(super) fn write(pid: pid_t, at: usize, from: &[u8]) -> io::Result<()> {
    let here = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: from.len() };
    // SAFETY: reads `from` alone.
    let done = unsafe { libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0) };
    whole(done, from.len())
}

fn whole(done: isize, len: usize) -> io::Result<()> {
    match usize::try_from(done) {
        Ok(done) if done == len => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A word at `at`, if it can be read.
pub(super) fn read_word(pid: pid_t, at: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    read(pid, at, &mut bytes).ok()?;
    Some(usize::from_ne_bytes(bytes))
}

/// A mapping of a process.
pub(super) struct Mapping {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) is_executable: bool,
    /// Where it begins in its file.
    pub(super) offset: u64,
    /// Which file that is, on its device.
    pub(super) inode: u64,
    /// The file's path, or a name in brackets; empty where it has none.
    pub(super) name: String,
}

impl Mapping {
    /// Whether it is the beginning of memory that agents share with a command.
    pub(super) fn is_region(&self) -> bool {
        self.name.starts_with("/memfd:probe-trace") && self.offset == 0
    }
}

/// What a process has mapped.
///
/// # Errors
/// There is no such process, or it may not be looked at.
pub(super) fn maps(pid: pid_t) -> io::Result<Vec<Mapping>> {
    let text = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/maps"))?).into_owned();
    let parse = |line: &str| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let protection = fields.next()?;
        Some(Mapping {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            is_executable: protection.contains('x'),
            offset: u64::from_str_radix(fields.next()?, 16).ok()?,
            inode: fields.nth(1)?.parse().ok()?,
            name: fields.next().unwrap_or_default().trim_start().to_owned(),
        })
    };
    Ok(text.lines().filter_map(parse).collect())
}
