//! The tree of calls over all that went the same way: how many, how long, and how long in the function
//! itself.

use super::args::Choice;
use super::calls::{Call, Part, Visitor, Walked};
use super::failure::Failure;
use super::foreign::Foreign;
use super::saved;
use super::walk;
use crate::file::Event;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// The most ways that are told apart.
const MOST_WAYS: usize = if cfg!(target_pointer_width = "64") { 1 << 18 } else { 1 << 16 };
/// The longest way.
const DEEPEST: usize = 2048;
/// What finds no room is in its caller's own time.
const NO_ROOM: usize = usize::MAX;

/// A function as it was called on one way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fold {
    /// The number of its name.
    pub(super) function: usize,
    pub(super) calls: u64,
    pub(super) total_ns: u64,
    pub(super) self_ns: u64,
    /// The ways that go on from there, the longest first.
    pub(super) inside: Vec<usize>,
    depth: usize,
}

/// All ways, by the names of threads.
#[derive(Default)]
pub(super) struct Folds {
    names: Vec<String>,
    ways: Vec<Fold>,
    /// Where a function leads from a way; the first ones are the threads' names.
    known: HashMap<(usize, usize), usize>,
    roots: BTreeMap<Vec<u8>, usize>,
    /// For each thread the calls that have been entered, and how long those inside of them took.
    open: Vec<Vec<(usize, u64)>>,
    is_full: bool,
}

impl Folds {
    /// Puts together all calls of a record.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(super) fn read(choice: &Choice, part: &Part) -> Result<(Self, Walked), Failure> {
        let mut folds = Self::default();
        let walked = walk::walk(choice, part, &mut folds)?;
        folds.sort();
        if folds.is_full {
            eprintln!("probe: not all ways of calls find room; what is left out is in its callers' own time");
        }
        // Nothing of it is written to anywhere.
        Ok((folds, walked.unwrap_or_default()))
    }

    /// The name of a function.
    pub(super) fn name(&self, function: usize) -> Foreign<&str> {
        Foreign::new(self.names.get(function).map_or("", String::as_str))
    }

    /// The names of all functions.
    pub(super) fn names(&self) -> impl Iterator<Item = Foreign<&str>> {
        self.names.iter().map(|name| Foreign::new(name.as_str()))
    }

    /// How long all took that a way leads to.
    pub(super) fn inside_ns(&self, way: &Fold) -> u64 {
        way.inside.iter().map(|inside| self.ways[*inside].total_ns).fold(0, u64::saturating_add)
    }

    /// A way.
    pub(super) fn way(&self, way: usize) -> &Fold {
        &self.ways[way]
    }

    /// What threads of each name have called.
    pub(super) fn roots(&self) -> impl Iterator<Item = (Foreign<&[u8]>, &Fold)> {
        self.roots.iter().map(|(comm, way)| (Foreign::new(comm.as_slice()), &self.ways[*way]))
    }

    /// Puts the longest ways first.
    pub(super) fn sort(&mut self) {
        let by: Vec<_> = self.ways.iter().map(|way| (Reverse(way.total_ns), way.function)).collect();
        self.ways.iter_mut().for_each(|way| way.inside.sort_by_key(|inside| by[*inside]));
    }

    fn root(&mut self, comm: &[u8]) -> usize {
        if let Some(root) = self.roots.get(comm) {
            return *root;
        }
        self.ways.push(Fold::default());
        self.roots.insert(comm.to_owned(), self.ways.len() - 1);
        self.ways.len() - 1
    }

    /// Where a call leads.
    fn step(&mut self, call: &Call<'_>) -> usize {
        if self.open.len() <= call.thread {
            self.open.resize(call.thread + 1, Vec::new());
        }
        let from = match self.open[call.thread].last() {
            Some((NO_ROOM, _)) => return NO_ROOM,
            Some((way, _)) => *way,
            None => self.root(call.comm),
        };
        if let Some(way) = self.known.get(&(from, call.function)) {
            return *way;
        }
        let depth = self.ways[from].depth + 1;
        if depth > DEEPEST || depth > 1 && self.ways.len() >= MOST_WAYS {
            self.is_full = true;
            return NO_ROOM;
        }
        let way = self.ways.len();
        self.ways.push(Fold { function: call.function, depth, ..Fold::default() });
        self.ways[from].inside.push(way);
        self.known.insert((from, call.function), way);
        way
    }

    fn count(&mut self, call: &Call<'_>, way: usize, inside_ns: u64) {
        let Some(total_ns) = call.took_ns.filter(|_| way != NO_ROOM) else { return };
        let fold = &mut self.ways[way];
        fold.calls += 1;
        fold.total_ns = fold.total_ns.saturating_add(total_ns);
        fold.self_ns = fold.self_ns.saturating_add(total_ns.saturating_sub(inside_ns));
        if let Some((_, inside_ns)) = self.open[call.thread].last_mut() {
            *inside_ns = inside_ns.saturating_add(total_ns);
        }
    }
}

/// Hits take no time, and are left out.
impl Visitor for Folds {
    fn keep(&mut self, _event: &Event<'_>) -> Box<[u8]> {
        Box::default()
    }

    fn function(&mut self, event: &Event<'_>) {
        self.names.push(saved::function(event).to_owned());
    }

    fn enter(&mut self, call: Call<'_>) -> io::Result<()> {
        let way = self.step(&call);
        self.open[call.thread].push((way, 0));
        Ok(())
    }

    fn leave(&mut self, call: Call<'_>) -> io::Result<()> {
        if let Some((way, inside_ns)) = self.open[call.thread].pop() {
            self.count(&call, way, inside_ns);
        }
        Ok(())
    }

    fn leaf(&mut self, call: Call<'_>) -> io::Result<()> {
        if call.took_ns.is_some() {
            let way = self.step(&call);
            self.count(&call, way, 0);
        }
        Ok(())
    }
}
