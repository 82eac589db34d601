//! `probe install-docs`: the manual pages and completions that the command carries, where man and shells look
//! for them.

use super::args::InstallDocs;
use super::failure::Failure;
use super::foreign;
use super::status::Status;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where each file belongs below a prefix, and its content.
const FILES: [(&str, &[u8]); 13] = [
    ("share/man/man1/probe.1", include_bytes!("../../doc/probe.1")),
    ("share/man/man1/probe-trace.1", include_bytes!("../../doc/probe-trace.1")),
    ("share/man/man1/probe-record.1", include_bytes!("../../doc/probe-record.1")),
    ("share/man/man1/probe-print.1", include_bytes!("../../doc/probe-print.1")),
    ("share/man/man1/probe-report.1", include_bytes!("../../doc/probe-report.1")),
    ("share/man/man1/probe-graph.1", include_bytes!("../../doc/probe-graph.1")),
    ("share/man/man1/probe-export.1", include_bytes!("../../doc/probe-export.1")),
    ("share/man/man1/probe-list.1", include_bytes!("../../doc/probe-list.1")),
    ("share/man/man1/probe-explain.1", include_bytes!("../../doc/probe-explain.1")),
    ("share/man/man1/probe-install-docs.1", include_bytes!("../../doc/probe-install-docs.1")),
    ("share/bash-completion/completions/probe", include_bytes!("../../completions/probe.bash")),
    ("share/zsh/site-functions/_probe", include_bytes!("../../completions/_probe")),
    ("share/fish/vendor_completions.d/probe.fish", include_bytes!("../../completions/probe.fish")),
];

/// Writes all of them and says where they are.
///
/// # Errors
/// There is no home, or a file cannot be written.
pub(super) fn run(args: &InstallDocs) -> Result<(), Failure> {
    let prefix = match &args.prefix {
        Some(prefix) => prefix.clone(),
        None => home()?.join(".local"),
    };
    for (name, content) in FILES {
        let path = prefix.join(name);
        write(&path, content).map_err(|error| {
            let sentence = format!("`{}` cannot be written: {error}", path.display());
            Failure::new(sentence).with(Status::Failed)
        })?;
        let _ = writeln!(io::stdout(), "{}", foreign::path(&path));
    }
    Ok(())
}

fn home() -> Result<PathBuf, Failure> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    home.map(PathBuf::from).ok_or_else(|| Failure::new("HOME is not set; name the folder to install below"))
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, content)
}
