//! The files of the kernel's `debugfs/kprobes`, in its own format: `list`, `enabled`, `blacklist` (CTL_2 to
//! CTL_4, CTL_6).

use crate::addr::CodeAddr;
use crate::error::SwitchError;
use crate::state::host::Host;
use crate::state::point::{DISABLED, GONE, LEAVING, Point, STARTING};
use crate::state::probes::Probes;
use crate::state::switches::Switch;
use crate::state::tally::Kind;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

/// Who looks at a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// Sees addresses.
    Privileged,
    /// Sees zeros for addresses.
    Unprivileged,
}

impl Viewer {
    /// What this viewer sees of an address.
    const fn sees(self, at: CodeAddr) -> usize {
        match self {
            Self::Privileged => at.as_usize(),
            Self::Unprivileged => 0,
        }
    }
}

/// Hexadecimal digits of an address.
const DIGITS: usize = size_of::<usize>() * 2;

/// One probe, copied out under the lock.
struct Line {
    at: CodeAddr,
    kind: Kind,
    is_gone: bool,
    is_disabled: bool,
    is_optimised: bool,
}

/// The files of one program's probes, from [`Probes::files`].
pub struct Files<'a, H: Host>(&'a Probes<H>);

impl<H: Host> Clone for Files<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for Files<'_, H> {}

impl<H: Host> Probes<H> {
    /// The contents of the files `list`, `enabled` and `blacklist`.
    #[inline]
    pub const fn files(&self) -> Files<'_, H> {
        Files(self)
    }
}

impl<H: Host> Files<'_, H> {
    /// Writes one line per probe, by ascending address: address, kind, symbol + offset, module, marks
    /// (CTL_3).
    ///
    /// Never blocks a hit, and never shows a probe whose registration has not ended (CTL_6). Writes to `out`
    /// with no lock held.
    ///
    /// # Errors
    /// An error of `out`; and always in a handler, which may have interrupted the registry.
    pub fn list(self, out: &mut dyn Write, viewer: Viewer) -> fmt::Result {
        for line in self.lines().ok_or(fmt::Error)? {
            let mut symbol = String::new();
            let mut module = String::new();
            self.0.host.symbol_at(line.at, &mut |found| {
                symbol.clear();
                module.clear();
                let offset = line.at.as_usize().wrapping_sub(found.start.as_usize());
                // Writing to a string does not fail.
                let _ = write!(symbol, "{}+{offset:#x}", found.name);
                module.push_str(found.module.unwrap_or_default());
            });
            if symbol.is_empty() {
                // As the kernel prints an address that no symbol covers.
                let _ = write!(symbol, "{:#x}", viewer.sees(line.at));
            }
            let module = if module.is_empty() { " " } else { &module };
            let mark = match (line.is_gone, line.is_disabled, line.is_optimised) {
                (true, _, _) => "[GONE]",
                (false, true, _) => "[DISABLED]",
                (false, false, true) => "[OPTIMIZED]",
                (false, false, false) => "",
            };
            let (at, letter) = (viewer.sees(line.at), line.kind.letter());
            writeln!(out, "{at:0DIGITS$x}  {letter}  {symbol}  {module} {mark}")?;
        }
        Ok(())
    }

    /// All probes by ascending address; `None` in a handler.
    fn lines(self) -> Option<Vec<Line>> {
        let probes = self.0;
        if probes.is_in_handler() {
            return None;
        }
        let books = probes.lock();
        let mut lines = Vec::new();
        let mut add = |point: &Point<H::Arch>| {
            for node in point.nodes().filter(|node| !node.is_any(STARTING | LEAVING)) {
                lines.push(Line {
                    at: point.place,
                    kind: Kind::of(node),
                    is_gone: node.is(GONE),
                    is_disabled: node.is(DISABLED),
                    is_optimised: point.text.has_jump(),
                });
            }
        };
        probes.places.all(books.hold()).for_each(|point| add(&point));
        books.gone_points().for_each(|point| add(&point));
        for (_, node) in probes.watches.all(books.hold()).filter(|(_, node)| !node.is(LEAVING)) {
            lines.push(Line {
                at: CodeAddr::new(node.range.addr),
                kind: Kind::Watchpoint,
                is_gone: node.is(GONE),
                is_disabled: node.is(DISABLED),
                is_optimised: false,
            });
        }
        drop(books);
        lines.sort_by_key(|line| line.at);
        Some(lines)
    }

    /// Writes `1` or `0` and a newline: the switch (CTL_2).
    ///
    /// # Errors
    /// An error of `out`.
    pub fn enabled(self, out: &mut dyn Write) -> fmt::Result {
        out.write_str(if self.0.is_on() { "1\n" } else { "0\n" })
    }

    /// Takes what a user writes to `enabled`: `1 y Y t T on`, `0 n N f F off`, with or without a newline at
    /// the end (CTL_2).
    ///
    /// # Errors
    /// It is none of these; or as [`Probes::switch`].
    pub fn write_enabled(self, text: &str) -> Result<(), SwitchError> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let to = match text {
            "1" | "y" | "Y" | "t" | "T" => Switch::On,
            "0" | "n" | "N" | "f" | "F" => Switch::Off,
            _ if text.eq_ignore_ascii_case("on") => Switch::On,
            _ if text.eq_ignore_ascii_case("off") => Switch::Off,
            _ => return Err(SwitchError::NotABoolean),
        };
        self.0.switch(to)
    }

    /// Writes one line per range that must not be probed: `0xSTART-0xEND`, a tab, the symbol (CTL_4).
    ///
    /// # Errors
    /// An error of `out`.
    pub fn blacklist(self, out: &mut dyn Write, viewer: Viewer) -> fmt::Result {
        let mut result = Ok(());
        self.0.host.for_each_blacklisted(&mut |range| {
            let (start, end) = (viewer.sees(range.start), viewer.sees(range.end));
            if result.is_ok() {
                result = writeln!(out, "0x{start:0DIGITS$x}-0x{end:0DIGITS$x}\t{}", range.name);
            }
        });
        result
    }
}
