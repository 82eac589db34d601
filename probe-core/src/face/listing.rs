//! What is registered, as text in the kernel's own format (CTL_2 to CTL_4, CTL_6).

use crate::addr::CodeAddr;
use crate::state::host::Host;
use crate::state::point::{DISABLED, GONE, LEAVING, Point, STARTING};
use crate::state::probes::Probes;
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

impl<H: Host> Probes<H> {
    /// Writes one line per probe, by ascending address: address, kind, symbol + offset, module, marks (CTL_3).
    ///
    /// Never blocks a hit, and never shows a probe whose registration has not ended (CTL_6). `out` is written to
    /// without any lock held.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn list(&self, out: &mut dyn Write, viewer: Viewer) -> fmt::Result {
        for line in self.lines() {
            let mut symbol = String::new();
            let mut module = String::new();
            self.host.symbol_at(line.at, &mut |found| {
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

    fn lines(&self) -> Vec<Line> {
        let books = self.lock();
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
        self.points.iter(books.hold()).for_each(|point| add(&point));
        books.gone_points().for_each(|point| add(&point));
        for (_, node) in self.watches.all(books.hold()).filter(|(_, node)| !node.is(LEAVING)) {
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
        lines
    }

    /// Writes `1` or `0` and a newline: the switch (CTL_2).
    ///
    /// # Errors
    /// What `out` answers.
    pub fn enabled(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str(if self.is_on() { "1\n" } else { "0\n" })
    }

    /// Writes one line per range that must not be probed: `0xSTART-0xEND`, a tab, the symbol (CTL_4).
    ///
    /// # Errors
    /// What `out` answers.
    pub fn blacklist(&self, out: &mut dyn Write, viewer: Viewer) -> fmt::Result {
        let mut result = Ok(());
        self.host.for_each_blacklisted(&mut |range| {
            let (start, end) = (viewer.sees(range.start), viewer.sees(range.end));
            if result.is_ok() {
                result = writeln!(out, "0x{start:0DIGITS$x}-0x{end:0DIGITS$x}\t{}", range.name);
            }
        });
        result
    }
}
