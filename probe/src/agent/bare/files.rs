//! Paths and folders.

use super::calls::PAGE;
use super::memory::take;
use super::thread::{call, fail};
use probe_host_linux::sys;
use std::ffi::{c_char, c_int, c_void};

/// # Safety
/// As `getcwd(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn getcwd(to: *mut c_char, len: usize) -> *mut c_char {
    // SAFETY: the caller's promise.
    let written = unsafe { call(libc::SYS_getcwd, [to.expose_provenance(), len]) };
    if written < 0 { std::ptr::null_mut() } else { to }
}

/// The path that the kernel calls a file by, in a block of [`take`].
///
/// # Safety
/// As `realpath(3)`; `to` is NULL.
#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    const MOST: usize = 4096;
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    // SAFETY: the caller's promise: a string.
    let opened = unsafe { sys::call(libc::SYS_open, [path.expose_provenance(), flags, 0]) };
    let file = match opened {
        Ok(file) if to.is_null() => file,
        Ok(_) | Err(_) => {
            fail(opened.err().unwrap_or(libc::EINVAL));
            return std::ptr::null_mut();
        }
    };
    let link = format!("/proc/self/fd/{file}\0");
    let found = take(MOST);
    let arguments = [link.as_ptr().expose_provenance(), found.expose_provenance(), MOST - 1];
    // SAFETY: a string, and room for what is written.
    let len = unsafe { sys::call(libc::SYS_readlink, arguments) };
    // SAFETY: opened above.
    let _ = unsafe { sys::call(libc::SYS_close, [file]) };
    match len {
        Ok(len) => {
            // SAFETY: `len` is below `MOST`.
            unsafe { found.wrapping_add(len).write(0) };
            found.cast()
        }
        Err(errno) => {
            fail(errno);
            std::ptr::null_mut()
        }
    }
}

/// A folder that is read; `struct __dirstream`.
struct Folder {
    file: c_int,
    /// What is not read yet of `entries`, from and to.
    next: usize,
    end: usize,
    entries: Entries,
}

/// As `struct dirent64` is aligned.
#[repr(C, align(8))]
struct Entries([u8; PAGE]);

/// # Safety
/// As `opendir(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut Folder {
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    // SAFETY: the caller's promise: a string.
    match unsafe { sys::call(libc::SYS_open, [path.expose_provenance(), flags, 0]) } {
        Ok(file) => {
            let entries = Entries([0; PAGE]);
            Box::into_raw(Box::new(Folder { file: file as c_int, next: 0, end: 0, entries }))
        }
        Err(errno) => {
            fail(errno);
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// As `readdir(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64(folder: *mut Folder) -> *mut c_void {
    // SAFETY: the caller's promise: of `opendir`.
    let folder = unsafe { &mut *folder };
    if folder.next >= folder.end {
        let to = (&raw mut folder.entries).expose_provenance();
        // SAFETY: room for what is written.
        match unsafe { sys::call(libc::SYS_getdents64, [folder.file as usize, to, PAGE]) } {
            Ok(0) => return std::ptr::null_mut(),
            Ok(len) => (folder.next, folder.end) = (0, len),
            Err(errno) => {
                fail(errno);
                return std::ptr::null_mut();
            }
        }
    }
    // The kernel's `struct linux_dirent64` is libc's `struct dirent64`: the length lies behind two words.
    let at = folder.next;
    let len = u16::from_ne_bytes([folder.entries.0[at + 16], folder.entries.0[at + 17]]);
    folder.next += usize::from(len);
    (&raw mut folder.entries.0[at]).cast()
}

/// # Safety
/// As `dirfd(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dirfd(folder: *mut Folder) -> c_int {
    // SAFETY: the caller's promise: of `opendir`.
    unsafe { (*folder).file }
}

/// # Safety
/// As `closedir(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(folder: *mut Folder) -> c_int {
    // SAFETY: the caller's promise: of `opendir`, and not used again.
    let folder = unsafe { Box::from_raw(folder) };
    // SAFETY: opened by `opendir`.
    let _ = unsafe { sys::call(libc::SYS_close, [folder.file as usize]) };
    0
}
