//! Calls as they are told of: what is told, to whom, and in which order.

use super::saved;
use crate::def::Glob;
use crate::file::Event;
use std::collections::HashMap;
use std::io;

/// So many bytes that are kept of a call count as another one.
const WEIGHT: usize = 32;
/// The most names of threads that are told apart.
const MOST_COMMS: usize = 1 << 16;

/// A call, or a hit, as a [`Visitor`] sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// A number of its thread.
    pub(super) thread: usize,
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// The thread's name, up to its first NUL.
    pub(super) comm: &'a [u8],
    /// The number of its function, from 0.
    pub(super) function: usize,
    pub(super) start_ns: u64,
    /// How long it took, or was known of, if it was left; nothing for a hit.
    pub(super) took_ns: Option<u64>,
    /// Whether it was left without a return.
    pub(super) is_left: bool,
    /// How many calls that are shown it was made in.
    pub(super) depth: usize,
    /// What [`Visitor::keep`] has kept.
    pub(super) kept: &'a [u8],
}

/// Who is told of calls.
pub(super) trait Visitor {
    /// Whether it writes to standard output what it is told, as it comes.
    const WRITES: bool = false;

    /// What is needed of an event until it is shown.
    fn keep(&mut self, event: &Event<'_>) -> Box<[u8]>;
    /// A function that was not seen before gets the next number.
    fn function(&mut self, event: &Event<'_>);
    /// A call in which others follow, up to its [`Visitor::leave`].
    fn enter(&mut self, call: Call<'_>) -> io::Result<()>;
    /// The end of a call.
    fn leave(&mut self, call: Call<'_>) -> io::Result<()>;
    /// A call without others in it.
    fn leaf(&mut self, call: Call<'_>) -> io::Result<()>;
}

/// Which calls are shown.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Those that took at least this long; hits take no time, and are shown.
    pub(super) least_ns: u64,
    /// Those of functions that match, and what they have called.
    pub(super) only: Option<Glob>,
    /// Not those of functions that match, nor what they have called.
    pub(super) without: Option<Glob>,
}

/// What was left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walked {
    /// Whether calls were shown before their callers.
    pub(super) is_early: bool,
    /// How many events had been lost where the record was made.
    pub(super) lost: u64,
    /// How many events there were.
    pub(super) events: u64,
}

impl Walked {
    /// Says what was left out.
    pub(super) fn warn(self) {
        if self.is_early {
            eprintln!(
                "probe: not all calls fit into memory at once; some stand before their callers (see --time, --since, --event)"
            );
        }
        if self.lost > 0 {
            eprintln!("probe: {} events were lost, and are not in here", self.lost);
        }
    }
}

/// A call of which others have returned, or not yet.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) start_ns: u64,
    /// The greatest number for a hit.
    pub(super) took_ns: u64,
    pub(super) is_left: bool,
    /// What it and all inside of it weigh.
    pub(super) weight: u64,
    /// How many nodes it and all inside of it are.
    pub(super) nodes: u32,
    pub(super) function: u32,
    pub(super) comm: u32,
    pub(super) kept: Box<[u8]>,
}

pub(super) type Task = (u32, u32);

/// Functions and names of threads, by number.
#[derive(Default)]
pub(super) struct Names {
    /// For each place the number of its function.
    pub(super) places: Vec<Option<u32>>,
    pub(super) functions: HashMap<String, u32>,
    /// For each function whether it is among those asked for, and among those left out.
    pub(super) parts: Vec<(bool, bool)>,
    pub(super) comms: Vec<[u8; 16]>,
    pub(super) numbers: HashMap<[u8; 16], u32>,
    /// The number that was asked for last.
    pub(super) last_comm: Option<([u8; 16], u32)>,
}

/// Where in a thread's calls the telling is.
#[derive(Default)]
pub(super) struct Way {
    pub(super) index: usize,
    pub(super) task: Task,
    /// How many calls that are shown are entered.
    pub(super) depth: usize,
    /// How many calls that were asked for, and that are left out, are entered.
    pub(super) parts: (usize, usize),
}

/// Tells of calls.
pub(super) struct Teller<'a, V> {
    pub(super) names: &'a Names,
    pub(super) visitor: &'a mut V,
}

impl Node {
    /// What is kept of it weighs.
    pub(super) fn own_weight(&self) -> u64 {
        1 + (self.kept.len() / WEIGHT) as u64
    }
}

/// What an event weighs.
pub(super) fn weight(event: &Event<'_>) -> u64 {
    1 + (event.values.0.len() / WEIGHT) as u64
}

/// When an event's call began.
pub(super) fn start_ns(event: &Event<'_>) -> u64 {
    event.time_ns.saturating_sub(event.span_ns().unwrap_or(0))
}

pub(super) fn node(
    event: &Event<'_>,
    (weight, nodes): (u64, u32),
    part: &Part,
    names: &mut Names,
    visitor: &mut impl Visitor,
) -> Node {
    Node {
        start_ns: start_ns(event),
        took_ns: event.span_ns().unwrap_or(u64::MAX),
        is_left: event.left_ns.is_some(),
        weight,
        nodes,
        function: names.function(event, part, visitor),
        comm: names.comm(event.comm),
        kept: visitor.keep(event),
    }
}

impl Part {
    /// Whether an event counts by itself.
    pub(super) fn holds(&self, event: &Event<'_>) -> bool {
        // What a call has made took no longer.
        event.span_ns().is_none_or(|took_ns| took_ns >= self.least_ns)
    }
}

impl Names {
    fn function(&mut self, event: &Event<'_>, part: &Part, visitor: &mut impl Visitor) -> u32 {
        let index = event.place_number as usize;
        if let Some(Some(number)) = self.places.get(index) {
            return *number;
        }
        let name = saved::function(event);
        let number = match self.functions.get(name) {
            Some(number) => *number,
            None => {
                let is = |glob: &Option<Glob>| glob.as_ref().map(|glob| glob.matches(name));
                self.parts.push((is(&part.only).unwrap_or(true), is(&part.without).unwrap_or(false)));
                self.functions.insert(name.to_owned(), self.functions.len() as u32);
                visitor.function(event);
                self.functions.len() as u32 - 1
            }
        };
        self.places.resize(self.places.len().max(index + 1), None);
        *self.places[index].insert(number)
    }

    fn comm(&mut self, comm: &[u8; 16]) -> u32 {
        if let Some((last, number)) = self.last_comm
            && last == *comm
        {
            return number;
        }
        let number = match self.numbers.get(comm) {
            Some(number) => *number,
            None if self.comms.len() < MOST_COMMS => {
                self.comms.push(*comm);
                let number = self.comms.len() as u32 - 1;
                self.numbers.insert(*comm, number);
                number
            }
            None => self.comms.len() as u32 - 1,
        };
        self.last_comm.insert((*comm, number)).1
    }
}

impl Way {
    fn call<'a>(&self, names: &'a Names, node: &'a Node) -> Call<'a> {
        let comm = names.comms.get(node.comm as usize).map_or(&[][..], |comm| comm);
        Call {
            thread: self.index,
            pid: self.task.0,
            tid: self.task.1,
            comm: comm.split(|&byte| byte == 0).next().unwrap_or_default(),
            function: node.function as usize,
            start_ns: node.start_ns,
            took_ns: (node.took_ns != u64::MAX).then_some(node.took_ns),
            is_left: node.is_left,
            depth: self.depth,
            kept: &node.kept,
        }
    }

    /// Goes into a call, or out of it; whether it is shown.
    fn step(&mut self, names: &Names, node: &Node, is_in: bool) -> bool {
        let (is_wanted, is_unwanted) = names.parts[node.function as usize];
        let step =
            |n: &mut usize, is: bool| *n = if is_in { *n + usize::from(is) } else { *n - usize::from(is) };
        let is_shown = |parts: (usize, usize)| parts.0 > 0 && parts.1 == 0;
        let before = is_shown(self.parts);
        step(&mut self.parts.0, is_wanted);
        step(&mut self.parts.1, is_unwanted);
        if is_in { is_shown(self.parts) } else { before }
    }
}

impl<V: Visitor> Teller<'_, V> {
    pub(super) fn enter(&mut self, way: &mut Way, node: &Node) -> io::Result<()> {
        if !way.step(self.names, node, true) {
            return Ok(());
        }
        self.visitor.enter(way.call(self.names, node))?;
        way.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self, way: &mut Way, node: &Node) -> io::Result<()> {
        if !way.step(self.names, node, false) {
            return Ok(());
        }
        way.depth -= 1;
        self.visitor.leave(way.call(self.names, node))
    }

    pub(super) fn leaf(&mut self, way: &mut Way, node: &Node) -> io::Result<()> {
        let is_shown = way.step(self.names, node, true);
        way.step(self.names, node, false);
        if is_shown { self.visitor.leaf(way.call(self.names, node)) } else { Ok(()) }
    }

    /// Tells of the last call and of all inside of it.
    pub(super) fn tree(&mut self, way: &mut Way, nodes: &[Node]) -> io::Result<()> {
        let mut to_do = vec![(nodes.len() - 1, false)];
        while let Some((at, is_end)) = to_do.pop() {
            let node = &nodes[at];
            if is_end {
                self.leave(way, node)?;
            } else if node.nodes == 1 {
                self.leaf(way, node)?;
            } else {
                self.enter(way, node)?;
                to_do.push((at, true));
                // What was called last stands directly before it, and is told of last.
                let (mut inside, mut rest) = (at, node.nodes - 1);
                while rest > 0 {
                    to_do.push((inside - 1, false));
                    let nodes_of = nodes[inside - 1].nodes;
                    (inside, rest) = (inside - nodes_of as usize, rest - nodes_of);
                }
            }
        }
        Ok(())
    }
}
