//! The one way in which the command opens a file that somebody has named: the user, or a traced program,
//! which may put anything under a name at any time.
//!
//! A file is looked at before it is opened (`O_PATH`): opening a device can have effects, opening a FIFO
//! waits, and either may have replaced a file a moment ago. Only regular files of a bounded size are read,
//! into memory of our own: a mapping would fault if the file were cut off.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The largest file that is read.
const MOST_BYTES: u64 = if cfg!(target_pointer_width = "64") { 8 << 30 } else { 1 << 30 };

/// The identity of a file, whatever its name: its device and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl FileId {
    /// The identity of the file behind a descriptor.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn of(fd: &OwnedFd) -> io::Result<Self> {
        let metadata = File::from(fd.try_clone()?).metadata()?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// A regular file, open for reading.
#[derive(Debug)]
pub(super) struct Regular {
    file: File,
    len_bytes: u64,
    /// Which one it is.
    pub(super) id: FileId,
}

impl Regular {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// There is none, it may not be read, or what is there is something else: a FIFO, a device, a socket, a
    /// folder.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let looked = File::options().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?;
        let metadata = looked.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other(format!("it is {}, not a file", kind(&metadata))));
        }
        // The very file that was looked at; a file system that lets reading wait would be somebody else's.
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let itself = format!("/proc/self/fd/{}", looked.as_raw_fd());
        let file = File::options().read(true).custom_flags(flags).open(itself)?;
        let id = FileId { device: metadata.dev(), inode: metadata.ino() };
        Ok(Self { file, len_bytes: metadata.len(), id })
    }

    /// How long it was when it was opened.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Its bytes, at most as many as when it was opened; none of a file that the kernel generates
    /// (`/proc/kmsg`).
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub(super) fn read(self) -> io::Result<Vec<u8>> {
        self.read_at_most(MOST_BYTES)
    }

    /// As [`Regular::read`], of a file that is not that long by itself, whatever a traced program has made of
    /// it.
    ///
    /// # Errors
    /// It cannot be read, or is longer.
    pub(super) fn read_at_most(mut self, most_bytes: u64) -> io::Result<Vec<u8>> {
        if self.len_bytes > most_bytes {
            return Err(io::Error::other(format!("it has {} bytes, which is too much", self.len_bytes)));
        }
        let mut data = Vec::with_capacity(usize::try_from(self.len_bytes).map_err(io::Error::other)?);
        self.file.by_ref().take(self.len_bytes).read_to_end(&mut data)?;
        Ok(data)
    }

    /// Its first bytes.
    ///
    /// # Errors
    /// It has fewer, or cannot be read.
    pub(super) fn head<const LEN: usize>(mut self) -> io::Result<[u8; LEN]> {
        let mut head = [0; LEN];
        self.file.read_exact(&mut head)?;
        Ok(head)
    }
}

/// Reads the file at `path`.
///
/// # Errors
/// As [`Regular::open`] and [`Regular::read`].
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    Regular::open(path)?.read()
}

/// What something is that is no regular file.
fn kind(metadata: &std::fs::Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EVT_2: nothing but a file is opened, and asking takes no time.
    #[test]
    fn evt_2_a_fifo_a_device_and_a_folder_are_not_opened() {
        let fifo = std::env::temp_dir().join(format!("probe-fifo-{}", std::process::id()));
        let name = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a NUL-terminated path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for (path, what) in
            [(fifo.as_path(), "FIFO"), ("/dev/zero".as_ref(), "device"), ("/".as_ref(), "folder")]
        {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        std::fs::remove_file(fifo).unwrap();
    }

    #[test]
    fn a_file_is_read_as_far_as_it_went_when_it_was_opened() {
        let path = std::env::temp_dir().join(format!("probe-file-{}", std::process::id()));
        std::fs::write(&path, "hello").unwrap();
        let opened = Regular::open(&path).unwrap();
        std::fs::write(&path, "hello, and much more").unwrap();
        assert_eq!((opened.len_bytes(), opened.read().unwrap().as_slice()), (5, &b"hello"[..]));
        let opened = Regular::open(&path).unwrap();
        std::fs::write(&path, "cut").unwrap();
        assert_eq!(opened.read().unwrap(), b"cut");
        assert_eq!(&Regular::open(&path).unwrap().head::<2>().unwrap(), b"cu");
        std::fs::remove_file(path).unwrap();
    }
}
