//! `probe graph`: the calls of each thread as a tree, in order of time, or put together by the way they went.

use super::args::Graph;
use super::failure::{Failure, failed};
use super::fold::{DEEPEST, Fold, Folds};
use super::foreign::Foreign;
use super::nests::{Done, Nests};
use super::saved::{self, Saved};
use super::status::Status;
use super::style::{Role, Style, time};
use super::trace::Outcome;
use super::value;
use crate::file::{Event, Item};
use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::rc::Rc;

/// The most calls that are kept in memory.
const MOST_NODES: usize = if cfg!(target_pointer_width = "64") { 1 << 20 } else { 1 << 16 };

/// A call, or a hit.
struct Node {
    function: Rc<str>,
    args: Box<str>,
    took_ns: Option<u64>,
    depth: usize,
    inside: Vec<Self>,
}

/// Calls as they are found.
struct Trees<'a> {
    args: &'a Graph,
    style: Style,
    nests: Nests<Vec<Node>>,
    nodes: usize,
    /// Whether calls were shown before their callers were known.
    is_early: bool,
    functions: HashMap<u32, Rc<str>>,
    to: BufWriter<io::StdoutLock<'static>>,
}

/// Prints the tree of a record.
///
/// # Errors
/// The record cannot be read.
pub(super) fn run(args: &Graph) -> Result<Outcome, Failure> {
    let written = if args.aggregate { aggregate(args)? } else { replay(args)? };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Outcome::Signal(libc::SIGPIPE)),
        Err(error) => Err(failed(format!("the graph could not be written: {error}"))),
        Ok(()) => Ok(Outcome::Status(Status::Success.code())),
    }
}

fn replay(args: &Graph) -> Result<io::Result<()>, Failure> {
    let mut saved = Saved::open(&args.choice)?;
    let mut trees = Trees {
        args,
        style: Style::new(args.color, &io::stdout()),
        nests: Nests::default(),
        nodes: 0,
        is_early: false,
        functions: HashMap::new(),
        to: BufWriter::with_capacity(1 << 16, io::stdout().lock()),
    };
    let head = trees.style.paint(Role::Head, "# DURATION     TID     FUNCTION");
    let mut written = writeln!(trees.to, "{head}");
    saved.read(|item| {
        if let Item::Event(event) = item {
            trees.add(&event);
            if trees.nodes > MOST_NODES {
                trees.is_early = true;
                written = std::mem::replace(&mut written, Ok(())).and_then(|()| trees.show());
            }
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let written = written.and_then(|()| trees.show()).and_then(|()| trees.to.flush());
    if trees.is_early {
        eprintln!(
            "probe: not all calls fit into memory at once; some stand before their callers (see --time, --since, --event)"
        );
    }
    if saved.reader().lost() > 0 {
        eprintln!("probe: {} events were lost, and are not in here", saved.reader().lost());
    }
    Ok(written)
}

impl Trees<'_> {
    fn add(&mut self, event: &Event<'_>) {
        let least_ns = self.args.time.unwrap_or(0);
        if event.duration_ns.is_some_and(|took_ns| took_ns < least_ns) {
            // What it called took no longer.
            return;
        }
        let task = (event.pid, event.tid);
        let start_ns = event.time_ns.saturating_sub(event.duration_ns.unwrap_or(0));
        let mut inside = Vec::new();
        if event.duration_ns.is_some() {
            inside.extend(self.nests.claim(task, start_ns).flat_map(|done| done.what));
        }
        let mut args = String::new();
        value::text(&mut args, &event.probe.args, event.values, &event.names);
        let function = self.functions.entry(event.place_number);
        let function = Rc::clone(function.or_insert_with(|| saved::function(event).into()));
        let depth = 1 + inside.iter().map(|node| node.depth).max().unwrap_or(0);
        self.nodes += 1;
        let mut what = Vec::new();
        let is_too_deep = depth > DEEPEST;
        if is_too_deep {
            // Deeper trees are cut.
            self.is_early = true;
            what.append(&mut inside);
        }
        let depth = if is_too_deep { 1 } else { depth };
        let (args, took_ns) = (args.trim_start().into(), event.duration_ns);
        what.push(Node { function, args, took_ns, depth, inside });
        self.nests.wait(task, Done { start_ns, what }, |to, more| to.extend(more));
    }

    /// Shows and forgets all that waits, thread by thread.
    fn show(&mut self) -> io::Result<()> {
        self.nodes = 0;
        for ((_, tid), waiting) in std::mem::take(&mut self.nests).rest() {
            for node in waiting.iter().flat_map(|done| &done.what) {
                self.line(tid, node, 0)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, tid: u32, node: &Node, depth: usize) -> io::Result<()> {
        if self.args.depth.is_some_and(|most| depth >= usize::from(most)) {
            return Ok(());
        }
        let (style, blanks) = (self.style, 2 * depth);
        let name = style.paint(Role::Name, Foreign::new(&*node.function).shown().to_string());
        let took = node.took_ns.map(time).unwrap_or_default();
        let has_inside =
            !node.inside.is_empty() && self.args.depth.is_none_or(|most| depth + 1 < usize::from(most));
        let args = &node.args;
        if !has_inside {
            return writeln!(self.to, "{took:>10} [{tid:>6}] | {:blanks$}{name}({args});", "");
        }
        writeln!(self.to, "{:>10} [{tid:>6}] | {:blanks$}{name}({args}) {{", "", "")?;
        for inside in &node.inside {
            self.line(tid, inside, depth + 1)?;
        }
        let end = style.paint(Role::Dim, format!("/* {} */", Foreign::new(&*node.function).shown()));
        writeln!(self.to, "{took:>10} [{tid:>6}] | {:blanks$}}} {end}", "")
    }
}

fn aggregate(args: &Graph) -> Result<io::Result<()>, Failure> {
    let mut saved = Saved::open(&args.choice)?;
    let mut folds = Folds::default();
    saved.read(|item| {
        if let Item::Event(event) = item {
            folds.add(&event);
        }
        ControlFlow::Continue(())
    })?;
    let roots = folds.finish();
    let style = Style::new(args.color, &io::stdout());
    let mut to = BufWriter::new(io::stdout().lock());
    let head = format!("{:>10} {:>10} {:>10}  FUNCTION", "TOTAL", "SELF", "CALLS");
    let mut written = writeln!(to, "{}", style.paint(Role::Head, head));
    for (comm, all) in &roots {
        let comm = Foreign::new(comm.as_str());
        written = written.and_then(|()| writeln!(to, "{:34}{}", "", style.paint(Role::Dim, comm.shown())));
        for fold in all {
            written = written.and_then(|()| branch(&mut to, &folds, args, style, (fold, 1)));
        }
    }
    Ok(written.and_then(|()| to.flush()))
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
    writeln!(to, "{total:>10} {own:>10} {:>10}  {:blanks$}{name}", fold.calls, "", blanks = 2 * depth)?;
    fold.inside.iter().try_for_each(|inside| branch(to, folds, args, style, (inside, depth + 1)))
}
