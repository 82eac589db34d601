//! Writing a record: events into a block in memory, blocks into the file.

use super::block::{BlockHead, END, EVENTS, FACTS, Head, LEFT, MOST_KNOWN};
use super::bytes::{checksum, folded, put};
use super::end::End;
use super::event;
use super::facts::{Fact, Probe, Stack};
use crate::def::{MAX_ARGS, MAX_ARRAY, MAX_STACK};
use crate::wire::{Image, Values};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};

/// A block is written when it has this many bytes.
const BLOCK_LEN: usize = 256 << 10;

/// The most names that one event needs.
const MOST_NAMES: usize = MAX_ARGS * MAX_ARRAY + MAX_STACK;
/// The most frames that are remembered, and how much of a name is worth one.
const MOST_FRAMES: usize = 1 << 20;
const BYTES_OF_FRAME: usize = 32;

/// What an address is named for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// A value: its symbol.
    Symbol,
    /// A frame: the functions that are there, each in the one behind it, a line each, with what follows it
    /// behind a tabulator: where in its source, or how far from the symbol.
    Frame,
}

/// An event that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// When, in nanoseconds since the recording began.
    pub time_ns: u64,
    /// The number of its place.
    pub place: u32,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name, NUL padded.
    pub comm: [u8; 16],
    /// How long the call took, or was known of, if it was left; not looked at for a hit.
    pub duration_ns: u64,
    /// Whether the call was left without a return.
    pub is_left: bool,
    /// What was fetched.
    pub values: Values<'a>,
}

/// What tells tasks apart.
type Task = (u32, u32, [u8; 16]);

/// A record that is being written. What it is told of last may still be in memory ([`Writer::flush`]).
pub struct Writer<W> {
    to: W,
    probes: Vec<Known>,
    /// For each place its probe and its program.
    places: Vec<(u32, Image)>,
    facts: Vec<u8>,
    events: Vec<u8>,
    block: BlockHead,
    /// The time of the last event.
    before_ns: u64,
    /// The last event's task, which the next one most often has, too.
    task: Option<Task>,
    tasks: HashMap<Task, u32>,
    names: HashMap<(Image, u32, u64), String>,
    /// The numbers of stacks, by program and process.
    stacks: HashMap<(Image, u32), HashMap<Vec<u8>, u32>>,
    /// How many stacks there are, and how many frames they have together.
    stack_count: u32,
    frame_count: usize,
    lost: u64,
}

struct Known {
    probe: Probe,
    has_addresses: bool,
    has_stack: bool,
}

impl<W: Write> Writer<W> {
    /// Begins a record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut to: W, head: Head) -> io::Result<Self> {
        to.write_all(&head.to_bytes())?;
        Ok(Self {
            to,
            probes: Vec::new(),
            places: Vec::new(),
            facts: Vec::new(),
            events: Vec::with_capacity(BLOCK_LEN + (BLOCK_LEN >> 4)),
            block: BlockHead::default(),
            before_ns: 0,
            task: None,
            tasks: HashMap::new(),
            names: HashMap::new(),
            stacks: HashMap::new(),
            stack_count: 0,
            frame_count: 0,
            lost: 0,
        })
    }

    /// Adds a fact. Tasks and names are added by [`Writer::event`].
    ///
    /// # Errors
    /// It cannot be written.
    pub fn fact(&mut self, fact: &Fact) -> io::Result<()> {
        match fact {
            Fact::Probe(probe) => {
                let has_addresses = event::has_addresses(&probe.args);
                let has_stack = event::has_stack(&probe.args);
                self.probes.push(Known { probe: probe.clone(), has_addresses, has_stack });
            }
            Fact::Place { probe, image, .. } => self.places.push((*probe, *image)),
            // Frames of stacks may have other names from here on.
            Fact::Object { .. } if self.stack_count > 0 => self.forget()?,
            _ => {}
        }
        fact.put(&mut self.facts);
        if self.facts.len() >= BLOCK_LEN { self.flush() } else { Ok(()) }
    }

    /// Adds an event of a place and a probe that are known; any other is left out. `name` says what an
    /// address of its program is called.
    ///
    /// # Errors
    /// It cannot be written.
    #[inline]
    pub fn event(
        &mut self,
        hit: &Hit<'_>,
        mut name: impl FnMut(u64, Naming) -> Option<String>,
    ) -> io::Result<()> {
        let Some(&(probe, image)) = self.places.get(hit.place as usize) else { return Ok(()) };
        let Some((has_addresses, has_stack)) =
            self.probes.get(probe as usize).map(|known| (known.has_addresses, known.has_stack))
        else {
            return Ok(());
        };
        // Before anything of this event is told.
        let is_full = self.stack_count as usize >= MOST_KNOWN || self.frame_count > MOST_FRAMES;
        if self.tasks.len() >= MOST_KNOWN || self.names.len() > MOST_KNOWN - MOST_NAMES || is_full {
            self.forget()?;
        }
        if has_addresses {
            self.name_addresses(probe, image, hit, &mut name)?;
        }
        let stack = if has_stack { self.stack(probe, image, hit, &mut name) } else { None };
        let task = (hit.pid, hit.tid, hit.comm);
        if self.task != Some(task) {
            self.switch(task);
        }
        if self.block.events == 0 {
            self.block.first_ns = hit.time_ns;
            self.before_ns = hit.time_ns;
        }
        let Some(Known { probe, .. }) = self.probes.get(probe as usize) else { return Ok(()) };
        let out = &mut self.events;
        let before = out.len();
        let head = |out: &mut Vec<u8>, in_parts: u64| {
            if hit.is_left {
                put(out, 0);
                put(out, LEFT);
            }
            put(out, 1 + 2 * u64::from(hit.place) + in_parts);
            put(out, folded(hit.time_ns.wrapping_sub(self.before_ns).cast_signed()));
            if probe.is_return {
                put(out, hit.duration_ns);
            }
        };
        head(out, 0);
        if event::put_whole(out, &probe.args, hit.values, stack).is_none() {
            out.truncate(before);
            head(out, 1);
            event::put_parts(out, &probe.args, hit.values, stack);
        }
        self.before_ns = hit.time_ns;
        self.block.last_ns = self.block.last_ns.max(hit.time_ns);
        self.block.events += 1;
        if out.len() >= BLOCK_LEN { self.flush() } else { Ok(()) }
    }

    /// Names the addresses among an event's values that have another name than before, or none yet.
    fn name_addresses(
        &mut self,
        probe: u32,
        image: Image,
        hit: &Hit<'_>,
        name: &mut impl FnMut(u64, Naming) -> Option<String>,
    ) -> io::Result<()> {
        let mut all = Vec::new();
        if let Some(known) = self.probes.get(probe as usize) {
            event::addresses(&known.probe.args, hit.values, |addr| all.push(addr));
        }
        for addr in all {
            // A name that has gone is as good as the address itself.
            let text = name(addr, Naming::Symbol).unwrap_or_else(|| format!("{addr:#x}"));
            let key = (image, hit.pid, addr);
            match self.names.get(&key) {
                Some(known) if *known == text => continue,
                // Events before this one mean the name that they had.
                Some(_) => self.flush()?,
                None => {}
            }
            Fact::Name { image, pid: hit.pid, addr, text: text.clone() }.put(&mut self.facts);
            self.names.insert(key, text);
        }
        Ok(())
    }

    /// The number of an event's stack. A stack that is new is told, with the names of its frames; `None`
    /// where there is none.
    fn stack(
        &mut self,
        probe: u32,
        image: Image,
        hit: &Hit<'_>,
        name: &mut impl FnMut(u64, Naming) -> Option<String>,
    ) -> Option<u32> {
        let bytes = event::stack(&self.probes.get(probe as usize)?.probe.args, hit.values)?;
        let known = self.stacks.entry((image, hit.pid)).or_default();
        if let Some(number) = known.get(bytes) {
            return Some(*number);
        }
        let number = self.stack_count;
        known.insert(bytes.to_vec(), number);
        self.stack_count += 1;
        let (end, frames) = event::frames(bytes)?;
        let frames: Vec<u64> = frames.collect();
        self.frame_count += frames.len();
        for addr in frames.iter().map(|frame| event::place(*frame)) {
            if let Entry::Vacant(entry) = self.names.entry((image, hit.pid, addr)) {
                let text = name(addr, Naming::Frame).unwrap_or_else(|| format!("{addr:#x}"));
                self.frame_count += text.len() / BYTES_OF_FRAME;
                Fact::Name { image, pid: hit.pid, addr, text: text.clone() }.put(&mut self.facts);
                entry.insert(text);
            }
        }
        Fact::Stack(Stack { image, pid: hit.pid, end, frames }).put(&mut self.facts);
        Some(number)
    }

    /// The events that follow are this task's.
    fn switch(&mut self, task: Task) {
        let next = self.tasks.len() as u32;
        let facts = &mut self.facts;
        let number = *self.tasks.entry(task).or_insert_with(|| {
            let (pid, tid, comm) = task;
            Fact::Task { pid, tid, comm }.put(facts);
            next
        });
        put(&mut self.events, 0);
        put(&mut self.events, number.into());
        self.task = Some(task);
    }

    /// Tasks and names begin anew.
    fn forget(&mut self) -> io::Result<()> {
        self.flush()?;
        self.tasks.clear();
        self.names.clear();
        self.stacks.clear();
        (self.stack_count, self.frame_count) = (0, 0);
        Fact::Forget.put(&mut self.facts);
        Ok(())
    }

    /// What it writes to.
    pub fn get(&self) -> &W {
        &self.to
    }

    /// Says how many events have been lost so far.
    pub fn set_lost(&mut self, lost: u64) {
        self.lost = lost;
    }

    /// Writes what is in memory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.facts.is_empty() {
            let block = BlockHead { kind: FACTS, ..BlockHead::default() };
            write(&mut self.to, block, self.lost, &self.facts)?;
            self.facts.clear();
        }
        if self.block.events != 0 {
            write(&mut self.to, BlockHead { kind: EVENTS, ..self.block }, self.lost, &self.events)?;
        }
        self.events.clear();
        self.block = BlockHead::default();
        // Each block says again whose its events are.
        self.task = None;
        self.to.flush()
    }

    /// Ends the record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(&mut self, end: &End) -> io::Result<()> {
        self.flush()?;
        let block = BlockHead { kind: END, ..BlockHead::default() };
        let mut payload = Vec::new();
        for piece in end.pieces() {
            payload.extend_from_slice(&piece);
            if payload.len() >= BLOCK_LEN {
                write(&mut self.to, block, self.lost, &payload)?;
                payload.clear();
            }
        }
        if !payload.is_empty() {
            write(&mut self.to, block, self.lost, &payload)?;
        }
        self.to.flush()
    }
}

fn write(to: &mut impl Write, block: BlockHead, lost: u64, payload: &[u8]) -> io::Result<()> {
    let too_long = |_| io::Error::other("an event is longer than a block may be");
    let len = u32::try_from(payload.len()).map_err(too_long)?;
    to.write_all(&BlockHead { len, lost, sum: checksum(payload), ..block }.to_bytes())?;
    to.write_all(payload)
}
