//! The files of probes over "read at, write": what a kernel's file system calls, whatever else it looks like.
//!
//! | file | read | write |
//! |---|---|---|
//! | `list`, `blacklist` | as Linux's `debugfs/kprobes` | |
//! | `enabled` | `1` or `0` | switches all probes |
//! | `kprobe_events` | a definition for each event | defines and removes events; truncated: removes all |
//! | `kprobe_profile` | each event, its hits and its misses | |
//! | `error_log` | what was wrong with the last definition | |
//! | `trace_pipe` | the records of hits, each once | |
//! | `enable` in `events`, `events/GROUP`, `events/GROUP/EVENT` | `0`, `1`, `X`: some | switches them |
//!
//! Nothing is kept of who has a file open. A file is made anew at each read, and the part behind the offset
//! is handed out: what comes and goes between two reads moves the rest, as it does in Linux. `trace_pipe`
//! knows no offsets: what has been read of it is gone.

use crate::events::{EventError, Events, Stamps};
use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt::{self, Write};
use probe_core::Switch;
use probe_core::error::{Errno, SwitchError};
use probe_core::files::Viewer;
use probe_core::host::Host;

/// Why a file was not read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such file, or it is not written to.
    NoFile(String),
    /// What was written is no text.
    NotText,
    /// It is no boolean, or a switch could not be made.
    Switch(SwitchError),
    /// Of an event.
    Event(EventError),
    /// A handler asks.
    InHandler,
}

impl FileError {
    /// The error number.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoFile(_) => Errno::ENOENT,
            Self::NotText => Errno::EINVAL,
            Self::Switch(error) => error.errno(),
            Self::Event(error) => error.errno(),
            Self::InHandler => Errno::EBUSY,
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile(name) => write!(f, "there is no such file: {name}"),
            Self::NotText => f.write_str("it is no text"),
            Self::Switch(error) => error.fmt(f),
            Self::Event(error) => error.fmt(f),
            Self::InHandler => f.write_str("files are not read in a handler"),
        }
    }
}

impl core::error::Error for FileError {}

impl From<EventError> for FileError {
    fn from(error: EventError) -> Self {
        Self::Event(error)
    }
}

/// The files that are there without any event.
pub const FILES: [&str; 8] = [
    "blacklist",
    "enabled",
    "error_log",
    "events/enable",
    "kprobe_events",
    "kprobe_profile",
    "list",
    "trace_pipe",
];

impl<H: Host, S: Stamps, const CELLS: usize> Events<H, S, CELLS> {
    /// Reads the file `name` from byte `offset` on, and returns how many bytes there were, at most as many as
    /// there is room for; 0 at its end. For tasks.
    ///
    /// # Errors
    /// There is no such file, or a handler asks.
    pub fn read_at(
        &self,
        name: &str,
        viewer: Viewer,
        offset: usize,
        out: &mut [u8],
    ) -> Result<usize, FileError> {
        if name == "trace_pipe" {
            return Ok(self.read_trace(out)?);
        }
        let mut window = Window { skip: offset, out, len: 0 };
        let files = self.probes().files();
        let written = match name {
            "list" => files.list(&mut window, viewer),
            "enabled" => files.enabled(&mut window),
            "blacklist" => files.blacklist(&mut window, viewer),
            "kprobe_events" => self.definitions(&mut window),
            "kprobe_profile" => self.profile(&mut window),
            "error_log" => self.error_log(&mut window),
            _ => {
                let state = match self.is_enabled(switched(name)?)? {
                    Some(true) => "1\n",
                    Some(false) => "0\n",
                    None => "X\n",
                };
                window.write_str(state)
            }
        };
        // The window takes everything.
        written.map_err(|_| FileError::InHandler)?;
        Ok(window.len)
    }

    /// Takes what is written to the file `name`: to `kprobe_events` whole lines. For tasks.
    ///
    /// # Errors
    /// It was refused, or not all of it has had an effect ([`Events::write`]).
    pub fn write_to(&'static self, name: &str, bytes: &[u8]) -> Result<(), FileError> {
        let text = str::from_utf8(bytes).map_err(|_| FileError::NotText)?;
        match name {
            "enabled" => self.probes().files().write_enabled(text).map_err(FileError::Switch),
            "kprobe_events" => Ok(self.write(text)?),
            _ => {
                let to = match text.trim_end_matches('\n') {
                    "1" => Switch::On,
                    "0" => Switch::Off,
                    _ => return Err(FileError::Switch(SwitchError::NotABoolean)),
                };
                Ok(self.enable(switched(name)?, to)?)
            }
        }
    }

    /// The file `name` was opened to be written anew: `kprobe_events` has no event then.
    ///
    /// # Errors
    /// In a handler.
    pub fn truncate(&self, name: &str) -> Result<(), FileError> {
        if name == "kprobe_events" { Ok(self.clear()?) } else { Ok(()) }
    }
}

/// The events that a file `events/…/enable` switches, as [`Events::enable`] names them.
fn switched(file: &str) -> Result<&str, FileError> {
    let name = file.strip_prefix("events/").and_then(|rest| rest.strip_suffix("enable"));
    match name {
        Some("") => Ok(""),
        // A group keeps its `/`; an event loses it.
        Some(name) if name.matches('/').count() == 1 => Ok(name),
        Some(name) if name.matches('/').count() == 2 => Ok(name.trim_end_matches('/')),
        _ => Err(FileError::NoFile(file.to_owned())),
    }
}

/// The part of a text that is wanted.
struct Window<'a> {
    /// How many bytes come before it.
    skip: usize,
    out: &'a mut [u8],
    len: usize,
}

impl Write for Window<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let skipped = self.skip.min(text.len());
        self.skip -= skipped;
        let bytes = text.as_bytes().get(skipped..).unwrap_or_default();
        let room = self.out.get_mut(self.len..).unwrap_or_default();
        let len = bytes.len().min(room.len());
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.len += len;
        Ok(())
    }
}
