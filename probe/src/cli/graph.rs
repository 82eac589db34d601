//! `probe graph`: the calls of each thread as a tree, in order of time, or put together by the way they went.

use super::args::Graph;
use super::calls::{Call, Part, Visitor, Walked};
use super::failure::Failure;
use super::fold::{Fold, Folds};
use super::foreign::Foreign;
use super::saved;
use super::style::{Role, Style, time};
use super::trace::Outcome;
use super::value;
use super::walk;
use crate::def::Glob;
use crate::file::Event;
use std::io::{self, BufWriter, Write};

/// Deeper calls are not moved further to the right.
const MOST_BLANKS: usize = 200;

/// Writes a line for each call, and one for its end where others were made in it.
struct Lines<W> {
    to: W,
    style: Style,
    depth: usize,
    /// The names of functions, as they are shown: where they are called, and where they end.
    functions: Vec<[String; 2]>,
    /// A call that has been entered, and in which nothing was shown yet: its thread, depth and line.
    entered: Option<(usize, usize, u32, String)>,
    /// The thread of the last line, and whether it is in a call.
    last: Option<(usize, bool)>,
}

/// Prints the tree of a record.
///
/// # Errors
/// The record cannot be read.
pub(super) fn run(args: &Graph) -> Result<Outcome, Failure> {
    let written = if args.aggregate { aggregate(args)? } else { replay(args)? };
    Outcome::written(written.map(Walked::warn), "the graph")
}

/// Which calls are shown.
fn part(args: &Graph) -> Part {
    // Of what is put together, the sum has to be long.
    let least_ns = args.time.filter(|_| !args.aggregate).unwrap_or(0);
    let glob = |text: &Option<String>| text.as_deref().map(Glob::new);
    Part { least_ns, only: glob(&args.only), without: glob(&args.without) }
}

fn replay(args: &Graph) -> Result<io::Result<Walked>, Failure> {
    let mut lines = Lines {
        to: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
        style: Style::new(args.color, &io::stdout()),
        depth: args.depth.map_or(usize::MAX, usize::from),
        functions: Vec::new(),
        entered: None,
        last: None,
    };
    let head = lines.style.paint(Role::Head, "# DURATION     TID     FUNCTION");
    let mut begun = writeln!(lines.to, "{head}");
    let walked = walk::walk(&args.choice, &part(args), &mut lines)?;
    begun = begun.and_then(|()| lines.to.flush());
    Ok(walked.and_then(|walked| begun.map(|()| walked)))
}

impl<W: Write> Lines<W> {
    fn line(&mut self, duration: &str, (tid, depth): (u32, usize), text: &str) -> io::Result<()> {
        let blanks = (2 * depth).min(MOST_BLANKS);
        writeln!(self.to, "{duration:>10} [{tid:>6}] | {:blanks$}{text}", "")
    }

    /// Parts what threads have done that take turns.
    fn turn(&mut self, call: &Call<'_>, is_in: bool) -> io::Result<()> {
        if let Some((thread, was_in)) = self.last
            && thread != call.thread
            && (was_in || call.depth > 0)
        {
            writeln!(self.to)?;
        }
        self.last = Some((call.thread, is_in));
        Ok(())
    }

    /// Writes the call that was entered last.
    fn begin(&mut self) -> io::Result<()> {
        let Some((_, depth, tid, text)) = self.entered.take() else { return Ok(()) };
        self.line("", (tid, depth), &format!("{text} {{"))
    }

    fn text(&self, call: &Call<'_>) -> String {
        format!("{}({})", self.functions[call.function][0], String::from_utf8_lossy(call.kept))
    }
}

impl<W: Write> Visitor for Lines<W> {
    const WRITES: bool = true;

    fn keep(&mut self, event: &Event<'_>) -> Box<[u8]> {
        value::kept(event)
    }

    fn function(&mut self, event: &Event<'_>) {
        let name = Foreign::new(saved::function(event)).shown().to_string();
        let end = self.style.paint(Role::Dim, format!("/* {name} */")).to_string();
        self.functions.push([self.style.paint(Role::Name, name).to_string(), end]);
    }

    fn enter(&mut self, call: Call<'_>) -> io::Result<()> {
        if call.depth + 1 == self.depth {
            return self.leaf(call);
        }
        if call.depth >= self.depth {
            return Ok(());
        }
        self.begin()?;
        self.turn(&call, true)?;
        self.entered = Some((call.thread, call.depth, call.tid, self.text(&call)));
        Ok(())
    }

    fn leave(&mut self, call: Call<'_>) -> io::Result<()> {
        if call.depth + 1 >= self.depth {
            return Ok(());
        }
        let is_empty =
            matches!(self.entered, Some((thread, depth, ..)) if (thread, depth) == (call.thread, call.depth));
        if is_empty {
            // All that was made in it is left out.
            self.entered = None;
            self.last = Some((call.thread, call.depth > 0));
            return self.leaf_line(&call);
        }
        self.begin()?;
        self.turn(&call, call.depth > 0)?;
        let took = took(&call);
        let text = format!("}} {}", self.functions[call.function][1]);
        self.line(&took, (call.tid, call.depth), &text)
    }

    fn leaf(&mut self, call: Call<'_>) -> io::Result<()> {
        if call.depth >= self.depth {
            return Ok(());
        }
        self.begin()?;
        self.turn(&call, call.depth > 0)?;
        self.leaf_line(&call)
    }
}

/// How long a call took.
fn took(call: &Call<'_>) -> String {
    if call.is_left { "left".to_owned() } else { call.took_ns.map(time).unwrap_or_default() }
}

impl<W: Write> Lines<W> {
    fn leaf_line(&mut self, call: &Call<'_>) -> io::Result<()> {
        let took = took(call);
        let text = self.text(call) + ";";
        self.line(&took, (call.tid, call.depth), &text)
    }
}

fn aggregate(args: &Graph) -> Result<io::Result<Walked>, Failure> {
    let (folds, walked) = Folds::read(&args.choice, &part(args))?;
    let style = Style::new(args.color, &io::stdout());
    let mut to = BufWriter::new(io::stdout().lock());
    let head = format!("{:>10} {:>10} {:>10}  FUNCTION", "TOTAL", "SELF", "CALLS");
    let mut written = writeln!(to, "{}", style.paint(Role::Head, head));
    for (comm, root) in folds.roots() {
        written = written.and_then(|()| writeln!(to, "{:34}{}", "", style.paint(Role::Dim, comm.shown())));
        for way in &root.inside {
            written = written.and_then(|()| branch(&mut to, &folds, args, style, (folds.way(*way), 1)));
        }
    }
    Ok(written.and_then(|()| to.flush()).map(|()| walked))
}

/// A way and those that go on from there.
fn branch(
    to: &mut impl Write,
    folds: &Folds,
    args: &Graph,
    style: Style,
    (fold, depth): (&Fold, usize),
) -> io::Result<()> {
    if args.depth.is_some_and(|most| depth > usize::from(most))
        || args.time.is_some_and(|least| fold.total_ns < least)
    {
        return Ok(());
    }
    let (total, own) = (time(fold.total_ns), time(fold.self_ns));
    let name = style.paint(Role::Name, folds.name(fold.function).shown().to_string());
    let blanks = (2 * depth).min(MOST_BLANKS);
    writeln!(to, "{total:>10} {own:>10} {:>10}  {:blanks$}{name}", fold.calls, "")?;
    fold.inside.iter().try_for_each(|way| branch(to, folds, args, style, (folds.way(*way), depth + 1)))
}
