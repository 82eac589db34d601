//! The tree of calls over all that went the same way: how many, how long, and how long in the function
//! itself.

use super::foreign::Foreign;
use super::nests::{Done, Nests};
use super::saved;
use crate::file::Event;
use std::collections::{BTreeMap, HashMap};

/// The most nodes that wait; then those that nobody has called yet count as called by nobody.
const MOST_NODES: usize = if cfg!(target_pointer_width = "64") { 1 << 20 } else { 1 << 17 };
/// The deepest tree.
pub(super) const DEEPEST: usize = 2048;

/// A function as it was called on one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fold {
    /// The number of its name.
    pub(super) function: usize,
    pub(super) calls: u64,
    pub(super) total_ns: u64,
    pub(super) self_ns: u64,
    pub(super) inside: Vec<Self>,
    depth: usize,
}

/// All ways, by the names of threads.
#[derive(Default)]
pub(super) struct Folds {
    nests: Nests<Vec<Fold>>,
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    places: HashMap<u32, usize>,
    comms: HashMap<(u32, u32), String>,
    nodes: usize,
    roots: BTreeMap<String, Vec<Fold>>,
}

/// Adds ways to ways; returns how many nodes were the same.
fn join(to: &mut Vec<Fold>, more: Vec<Fold>) -> usize {
    let mut same = 0;
    for fold in more {
        match to.iter_mut().find(|known| known.function == fold.function) {
            None => to.push(fold),
            Some(known) => {
                known.calls += fold.calls;
                known.total_ns = known.total_ns.saturating_add(fold.total_ns);
                known.self_ns = known.self_ns.saturating_add(fold.self_ns);
                known.depth = known.depth.max(fold.depth);
                same += 1 + join(&mut known.inside, fold.inside);
            }
        }
    }
    same
}

impl Folds {
    /// The name of a function.
    pub(super) fn name(&self, function: usize) -> Foreign<&str> {
        Foreign::new(self.names.get(function).map_or("", String::as_str))
    }

    fn number(&mut self, event: &Event<'_>) -> usize {
        if let Some(number) = self.places.get(&event.place_number) {
            return *number;
        }
        let name = saved::function(event).to_owned();
        let next = self.names.len();
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        self.places.insert(event.place_number, number);
        number
    }

    /// Adds a return. Hits take no time, and are left out.
    pub(super) fn add(&mut self, event: &Event<'_>) {
        let Some(total_ns) = event.duration_ns else { return };
        let (function, task) = (self.number(event), (event.pid, event.tid));
        let comm = self.comms.entry(task).or_default();
        let name = String::from_utf8_lossy(saved::comm(event));
        if *comm != name {
            *comm = name.into_owned();
        }
        let start_ns = event.time_ns.saturating_sub(total_ns);
        let mut inside = Vec::new();
        for done in self.nests.claim(task, start_ns) {
            self.nodes -= join(&mut inside, done.what);
        }
        let depth = 1 + inside.iter().map(|fold| fold.depth).max().unwrap_or(0);
        let inside_ns = inside.iter().map(|fold| fold.total_ns).fold(0, u64::saturating_add);
        let self_ns = total_ns.saturating_sub(inside_ns);
        if depth > DEEPEST {
            let root = self.roots.entry(self.comms[&task].clone()).or_default();
            join(root, std::mem::take(&mut inside));
        }
        let fold = Fold { function, calls: 1, total_ns, self_ns, inside, depth: depth.min(DEEPEST) };
        self.nodes += 1;
        let nodes = &mut self.nodes;
        self.nests.wait(task, Done { start_ns, what: vec![fold] }, |to, more| *nodes -= join(to, more));
        if self.nodes > MOST_NODES || self.comms.len() > 1 << 16 {
            self.settle();
        }
    }

    /// What nobody has called so far was called by nobody.
    fn settle(&mut self) {
        for (task, waiting) in std::mem::take(&mut self.nests).rest() {
            let root = self.roots.entry(self.comms.get(&task).cloned().unwrap_or_default()).or_default();
            for done in waiting {
                join(root, done.what);
            }
        }
        self.comms.clear();
        self.nodes = 0;
    }

    /// All ways, by the names of threads; each with the longest first.
    pub(super) fn finish(&mut self) -> BTreeMap<String, Vec<Fold>> {
        self.settle();
        let mut roots = std::mem::take(&mut self.roots);
        roots.values_mut().for_each(|folds| sort(folds));
        roots
    }
}

fn sort(folds: &mut [Fold]) {
    folds.sort_by_key(|fold| (std::cmp::Reverse(fold.total_ns), fold.function));
    folds.iter_mut().for_each(|fold| sort(&mut fold.inside));
}
