//! Programs of the architecture that tests are built for.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder with programs of this architecture where the machine's own are of another one; `None` where
/// they are of this one. Where none have been unpacked, the folder is not there.
///
/// `unpacked` is `target/ci/userland`, with a folder for each architecture, from `cargo ci setup`.
pub(crate) fn folder(unpacked: &Path) -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let own = machine_of(&std::env::current_exe().expect("a test is a file"));
            if machine_of(Path::new("/bin/sh")) == own {
                return None;
            }
            let folders = std::fs::read_dir(unpacked).into_iter().flatten().flatten();
            let mut folders = folders.map(|entry| entry.path().join("bin"));
            let found = folders.find(|folder| machine_of(&folder.join("busybox")) == own);
            Some(found.unwrap_or_else(|| unpacked.join(std::env::consts::ARCH).join("bin")))
        })
        .as_deref()
}

/// Class, byte order and machine of an ELF file.
fn machine_of(path: &Path) -> Option<[u8; 4]> {
    let mut head = [0; 20];
    std::fs::File::open(path).ok()?.read_exact(&mut head).ok()?;
    head.starts_with(b"\x7fELF").then(|| [head[4], head[5], head[18], head[19]])
}
