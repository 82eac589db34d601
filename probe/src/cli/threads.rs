//! Calls that have returned and wait for their callers, thread by thread, and the telling of them.

use super::calls::{Names, Node, Part, Task, Teller, Visitor, Walked, Way, node, start_ns, weight};
use super::nests::Left;
use crate::file::Event;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;

/// A long call.
#[derive(Debug)]
pub(super) struct Long {
    pub(super) task: Task,
    /// The number of its event.
    pub(super) number: u64,
    pub(super) node: Node,
}

/// A thread's calls that were not shown yet.
#[derive(Default)]
struct Thread {
    way: Way,
    /// In order of their ends: what was called in a call stands before it.
    nodes: Vec<Node>,
    /// Those that nobody has called yet, each later than the one before.
    roots: Vec<usize>,
    /// What all nodes weigh.
    weight: u64,
    /// Long calls that have not been entered, the first one last.
    long: Vec<Long>,
    /// Long calls that have been entered, the innermost last.
    open: Vec<Long>,
    /// When the latest call began that was shown.
    shown_ns: Option<u64>,
}

/// The long calls of a record.
pub(super) struct Survey {
    pub(super) long: Vec<Long>,
    /// What is inside of a long call, at the least.
    pub(super) least: u64,
}

/// All threads, as far as events have been seen.
pub(super) struct Threads<'a, V> {
    part: &'a Part,
    visitor: &'a mut V,
    names: Names,
    numbers: HashMap<Task, usize>,
    /// The thread of the event before.
    last: Option<(Task, usize)>,
    threads: Vec<Thread>,
    left: Left,
    /// The numbers of the long calls' events, the first one last.
    returns: Vec<u64>,
    least: u64,
    pub(super) room: u64,
    number: u64,
    /// What waits in all threads.
    weight: u64,
    pub(super) walked: Walked,
}

impl<'a, V: Visitor> Threads<'a, V> {
    pub(super) fn new(survey: Survey, names: Names, part: &'a Part, visitor: &'a mut V) -> Self {
        let Survey { mut long, least, .. } = survey;
        let mut returns: Vec<u64> = long.iter().map(|long| long.number).collect();
        returns.sort_unstable_by_key(|number| Reverse(*number));
        let mut all = Self {
            part,
            visitor,
            names,
            numbers: HashMap::new(),
            last: None,
            threads: Vec::new(),
            left: Left::default(),
            returns,
            least,
            room: u64::MAX,
            number: 0,
            weight: 0,
            walked: Walked::default(),
        };
        // The outermost of those that begin at once returns last.
        long.sort_by_key(|long| (Reverse(long.node.start_ns), long.number));
        for one in long {
            let thread = all.thread(one.task);
            all.threads[thread].long.push(one);
        }
        all
    }

    fn thread(&mut self, task: Task) -> usize {
        if let Some((last, index)) = self.last
            && last == task
        {
            return index;
        }
        let next = self.threads.len();
        let index = *self.numbers.entry(task).or_insert(next);
        if index == next {
            let way = Way { index, task, ..Way::default() };
            self.threads.push(Thread { way, ..Thread::default() });
        }
        self.last.insert((task, index)).1
    }

    pub(super) fn add(&mut self, event: &Event<'_>) -> io::Result<()> {
        if !self.part.holds(event) {
            return Ok(());
        }
        self.number += 1;
        self.walked.events += 1;
        let index = self.thread((event.pid, event.tid));
        if self.returns.last() == Some(&self.number) {
            self.returns.pop();
            return self.show(index, 0, Some(self.number));
        }
        let start_ns = start_ns(event);
        let mut size = (weight(event), 1);
        let node = node(event, (0, 0), self.part, &mut self.names, self.visitor);
        let thread = &mut self.threads[index];
        if let Some(end_ns) = self.left.ended_before(event) {
            thread.add_late(Node { took_ns: end_ns.saturating_sub(start_ns), ..node }, weight(event));
            self.weight += weight(event);
            return Ok(());
        }
        if event.span_ns().is_some() {
            while let Some(inside) = thread.roots.last().map(|at| &thread.nodes[*at])
                && inside.start_ns >= start_ns
            {
                (size.0, size.1) = (size.0 + inside.weight, size.1 + inside.nodes);
                thread.roots.pop();
            }
            self.walked.is_early |= thread.shown_ns.is_some_and(|shown_ns| shown_ns >= start_ns);
        }
        thread.roots.push(thread.nodes.len());
        thread.nodes.push(Node { weight: size.0, nodes: size.1, ..node });
        thread.weight += weight(event);
        self.weight += weight(event);
        if thread.weight > 2 * self.least {
            self.show(index, self.least, None)?;
        }
        if self.weight > self.room {
            self.show_all()?;
        }
        Ok(())
    }

    /// Shows what waits in a thread, but for what weighs `rest`; and then the end of a long call.
    fn show(&mut self, index: usize, rest: u64, end: Option<u64>) -> io::Result<()> {
        let thread = &mut self.threads[index];
        let mut teller = Teller { names: &self.names, visitor: self.visitor };
        let before = thread.weight;
        let (mut roots, mut nodes) = (0, 0);
        while let Some(&root) = thread.roots.get(roots)
            && thread.weight - thread.nodes[root].weight >= rest
        {
            (roots, nodes) = (roots + 1, root + 1);
            thread.weight -= thread.nodes[root].weight;
            let start_ns = thread.nodes[root].start_ns;
            while let Some(long) = thread.next_long(start_ns) {
                teller.enter(&mut thread.way, &long.node)?;
                thread.open.push(long);
            }
            thread.shown_ns = thread.shown_ns.max(Some(start_ns));
            teller.tree(&mut thread.way, &thread.nodes[..=root])?;
        }
        thread.roots.drain(..roots);
        thread.roots.iter_mut().for_each(|root| *root -= nodes);
        thread.nodes.drain(..nodes);
        self.weight -= before - thread.weight;
        let Some(end) = end else { return Ok(()) };
        // All that was inside of it may have been of no interest to anybody.
        while thread.open.last().is_none_or(|open| open.number != end)
            && let Some(at) = thread.long.iter().rposition(|long| long.number == end)
        {
            let long = thread.long.remove(at);
            thread.shown_ns = thread.shown_ns.max(Some(long.node.start_ns));
            teller.enter(&mut thread.way, &long.node)?;
            thread.open.push(long);
        }
        if let Some(at) = thread.open.iter().rposition(|open| open.number == end) {
            let long = thread.open.remove(at);
            teller.leave(&mut thread.way, &long.node)?;
        }
        Ok(())
    }

    /// Shows all that waits, thread by thread.
    pub(super) fn show_all(&mut self) -> io::Result<()> {
        let mut order: Vec<usize> = (0..self.threads.len()).collect();
        order.sort_by_key(|&index| {
            let thread = &self.threads[index];
            let root = thread.roots.first().map(|root| thread.nodes[*root].start_ns);
            (root, thread.way.task)
        });
        order.into_iter().try_for_each(|index| self.show(index, 0, None))
    }
}

impl Thread {
    /// Adds a call that was left and found later than the one that it was made in, which still waits for its
    /// caller; if that has been shown, it stands behind it.
    fn add_late(&mut self, node: Node, weight: u64) {
        self.weight += weight;
        let end_ns = |node: &Node| node.start_ns.saturating_add(node.took_ns);
        let holds =
            |outer: &Node| outer.is_left && outer.start_ns <= node.start_ns && end_ns(outer) >= end_ns(&node);
        let mut size = (weight, 1);
        let Some(root) = self.roots.iter().rposition(|at| holds(&self.nodes[*at])) else {
            self.roots.push(self.nodes.len());
            self.nodes.push(Node { weight, nodes: 1, ..node });
            return;
        };
        let mut at = self.roots[root];
        loop {
            let (weight, nodes) = (self.nodes[at].weight + weight, self.nodes[at].nodes + 1);
            let first = at + 1 - self.nodes[at].nodes as usize;
            (self.nodes[at].weight, self.nodes[at].nodes) = (weight, nodes);
            // What was called last stands directly before it.
            match self.nodes[first..at].last().is_some_and(holds) {
                true => at -= 1,
                false => {
                    let mut inside = at;
                    while inside > first && self.nodes[inside - 1].start_ns >= node.start_ns {
                        let Node { weight, nodes, .. } = self.nodes[inside - 1];
                        (size.0, size.1, inside) = (size.0 + weight, size.1 + nodes, inside - nodes as usize);
                    }
                    break;
                }
            }
        }
        self.nodes.insert(at, Node { weight: size.0, nodes: size.1, ..node });
        self.roots[root..].iter_mut().for_each(|root| *root += 1);
    }

    /// The next long call that what began at `start_ns` was called in, and that has not been entered.
    fn next_long(&mut self, start_ns: u64) -> Option<Long> {
        /// Coroutines may have calls that overlap; where there are many of them, those come late.
        const MOST: usize = 16;
        let end = self.open.last().map_or(u64::MAX, |open| open.number);
        let mut next = self.long.iter().enumerate().rev().take(MOST);
        let found = next.find(|(_, long)| long.node.start_ns > start_ns || long.number < end);
        let at = found.filter(|(_, long)| long.node.start_ns <= start_ns).map(|(at, _)| at)?;
        Some(self.long.remove(at))
    }
}
