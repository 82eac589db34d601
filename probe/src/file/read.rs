//! Reading a record, which anybody may have written.

use super::block::{
    BLOCK_HEAD_LEN, BlockHead, Damage, END, EVENTS, FACTS, HEAD_LEN, Head, LEFT, MAGIC, MOST_KNOWN,
};
use super::bytes::{From, checksum, unfolded};
use super::end::{End, Row};
use super::event;
use super::facts::{Fact, Probe};
use crate::wire::{Image, Point, Values};
use std::collections::HashMap;
use std::io::{self, Read};
use std::ops::ControlFlow;

/// The bytes that all facts together may take.
const MOST_ROOM: usize = if cfg!(target_pointer_width = "64") { 256 << 20 } else { 64 << 20 };

/// Why the reading has ended.
#[derive(Debug)]
pub enum Stop {
    /// That was all.
    End,
    /// The record has no end yet, or was cut. `at`: how many bytes of it could be read.
    Cut {
        /// Up to where.
        at: u64,
    },
    /// What follows cannot be understood.
    Damaged {
        /// From where on.
        at: u64,
        /// Why.
        damage: Damage,
    },
    /// The file cannot be read.
    Failed(io::Error),
    /// Who is reading has had enough.
    Left,
}

impl Event<'_> {
    /// How long before the event its call began; nothing for a hit.
    #[must_use]
    pub fn span_ns(&self) -> Option<u64> {
        self.duration_ns.or(self.left_ns)
    }
}

/// Where a probe stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The program.
    pub image: Image,
    /// The number of the probe.
    pub probe: u32,
    /// What its events are called.
    pub name: String,
    /// The place.
    pub point: Point,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// When, in nanoseconds since the recording began.
    pub time_ns: u64,
    /// How long the call took, for a return.
    pub duration_ns: Option<u64>,
    /// How long before the event the call began, for one that was left without a return.
    pub left_ns: Option<u64>,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name, NUL padded.
    pub comm: &'a [u8; 16],
    /// The number of its place.
    pub place_number: u32,
    /// Where.
    pub place: &'a Place,
    /// What was asked for.
    pub probe: &'a Probe,
    /// What was fetched, as in a ring of this machine; addresses that are shown by name have 64 bits.
    pub values: Values<'a>,
    /// What addresses are called.
    pub names: Names<'a>,
}

/// What addresses of a process are called.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    all: &'a HashMap<(Image, u32, u64), Name>,
    image: Image,
    pid: u32,
}

/// A name.
pub type Name = String;

impl<'a> Names<'a> {
    /// The name of an address.
    #[must_use]
    pub fn get(&self, addr: u64) -> Option<&'a str> {
        self.all.get(&(self.image, self.pid, addr)).map(String::as_str)
    }
}

/// What a record holds.
#[derive(Debug)]
pub enum Item<'a> {
    /// A fact.
    Fact(&'a Fact),
    /// An event.
    Event(Event<'a>),
    /// The end.
    End(Box<End>),
}

/// What events refer to.
#[derive(Default)]
struct Known {
    probes: Vec<Probe>,
    places: Vec<Place>,
    tasks: Vec<(u32, u32, [u8; 16])>,
    names: HashMap<(Image, u32, u64), Name>,
    /// As they stand in a ring.
    stacks: Vec<Vec<u8>>,
    /// What facts have taken: for good, and until they are forgotten.
    room: [usize; 2],
}

/// A record that is being read.
pub struct Reader<R> {
    from: R,
    head: Head,
    /// How many bytes have been understood.
    at: u64,
    payload: Vec<u8>,
    values: Vec<u8>,
    known: Known,
    end: End,
    lost: u64,
    since_ns: u64,
}

impl<R: Read> Reader<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// It is no record, or cannot be read.
    pub fn new(mut from: R) -> Result<Self, Stop> {
        let mut head = [0; HEAD_LEN];
        let len = fill(&mut from, &mut head).map_err(Stop::Failed)?;
        let damaged = |damage| Stop::Damaged { at: 0, damage };
        if len < HEAD_LEN {
            let is_cut = len > 0 && MAGIC.starts_with(&head[..len.min(MAGIC.len())]);
            return Err(if is_cut { Stop::Cut { at: 0 } } else { damaged(Damage::NoRecord) });
        }
        let head = Head::from_bytes(&head).map_err(damaged)?;
        Ok(Self {
            from,
            head,
            at: HEAD_LEN as u64,
            payload: Vec::new(),
            values: Vec::new(),
            known: Known::default(),
            end: End::default(),
            lost: 0,
            since_ns: 0,
        })
    }

    /// What it begins with.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Events before this time are left out.
    pub fn skip_until(&mut self, since_ns: u64) {
        self.since_ns = since_ns;
    }

    /// How many events had been lost when the block was written that was read last.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The probes that are known so far.
    pub fn probes(&self) -> &[Probe] {
        &self.known.probes
    }

    /// How many bytes have been read.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Reads all that follows.
    pub fn read(&mut self, mut each: impl FnMut(Item<'_>) -> ControlFlow<()>) -> Stop {
        loop {
            if let Err(stop) = self.block(&mut each) {
                return stop;
            }
        }
    }

    /// Reads a block, if there is one.
    ///
    /// # Errors
    /// There is none.
    pub fn block(&mut self, each: &mut impl FnMut(Item<'_>) -> ControlFlow<()>) -> Result<(), Stop> {
        let at = self.at;
        let damaged = |damage| Stop::Damaged { at, damage };
        let mut head = [0; BLOCK_HEAD_LEN];
        if fill(&mut self.from, &mut head).map_err(Stop::Failed)? < BLOCK_HEAD_LEN {
            return Err(Stop::Cut { at });
        }
        let head = BlockHead::from_bytes(&head).map_err(damaged)?;
        // Memory is taken as bytes come, not as a length says.
        self.payload.clear();
        let len = u64::from(head.len);
        let read = (&mut self.from).take(len).read_to_end(&mut self.payload).map_err(Stop::Failed)?;
        if (read as u64) < len {
            return Err(Stop::Cut { at });
        }
        self.at += BLOCK_HEAD_LEN as u64 + len;
        self.lost = head.lost;
        if head.kind == EVENTS && head.last_ns < self.since_ns {
            return Ok(());
        }
        if checksum(&self.payload) != head.sum {
            return Err(damaged(Damage::Checksum));
        }
        match head.kind {
            FACTS => self.facts(each).map_err(|stop| stop.map_or(Stop::Left, damaged)),
            EVENTS => self.events(head.first_ns, each).map_err(|stop| stop.map_or(Stop::Left, damaged)),
            END => match self.ending() {
                None => Err(damaged(Damage::Nonsense)),
                Some(false) => Ok(()),
                Some(true) => {
                    let _ = each(Item::End(Box::new(std::mem::take(&mut self.end))));
                    Err(Stop::End)
                }
            },
            // Of a later version, which says nothing that is needed here.
            _ => Ok(()),
        }
    }

    fn facts(&mut self, each: &mut impl FnMut(Item<'_>) -> ControlFlow<()>) -> Result<(), Option<Damage>> {
        let mut from = From(&self.payload);
        while !from.0.is_empty() {
            let Some(fact) = Fact::read(&mut from).ok_or(Damage::Nonsense)? else { continue };
            self.known.learn(&fact)?;
            if each(Item::Fact(&fact)).is_break() {
                return Err(None);
            }
        }
        Ok(())
    }

    fn events(
        &mut self,
        first_ns: u64,
        each: &mut impl FnMut(Item<'_>) -> ControlFlow<()>,
    ) -> Result<(), Option<Damage>> {
        let mut from = From(&self.payload);
        let (mut time_ns, mut task, mut is_left) = (first_ns, None, false);
        while !from.0.is_empty() {
            let head = from.number().ok_or(Damage::Nonsense)?;
            if head == 0 {
                let number = from.number().ok_or(Damage::Nonsense)?;
                if number == LEFT {
                    is_left = true;
                    continue;
                }
                let number = usize::try_from(number).map_err(|_| Damage::Nonsense)?;
                task = Some(self.known.tasks.get(number).ok_or(Damage::Nonsense)?);
                continue;
            }
            let event = self.known.event(&mut from, head, &mut time_ns, task, &mut self.values);
            let mut event = event.ok_or(Damage::Nonsense)?;
            if std::mem::take(&mut is_left) {
                event.left_ns = event.duration_ns.take();
            }
            if event.time_ns >= self.since_ns && each(Item::Event(event)).is_break() {
                return Err(None);
            }
        }
        Ok(())
    }

    /// Reads what an ending block holds; `true` where that is the end.
    fn ending(&mut self) -> Option<bool> {
        let mut from = From(&self.payload);
        while !from.0.is_empty() {
            let before = from.0.len();
            let is_last = self.end.read(&mut from)?;
            // A row has a table of a fixed size.
            let took = before - from.0.len() + size_of::<Row>() + 8 * crate::wire::BUCKETS;
            self.known.room[0] = self.known.room[0].checked_add(took).filter(|room| *room <= MOST_ROOM)?;
            if is_last {
                return Some(true);
            }
        }
        Some(false)
    }
}

impl Known {
    fn learn(&mut self, fact: &Fact) -> Result<(), Damage> {
        let [good, passing] = &mut self.room;
        let room = match fact {
            Fact::Task { .. } | Fact::Name { .. } | Fact::Stack(_) => passing,
            _ => good,
        };
        *room = room.saturating_add(fact.room());
        if *room > MOST_ROOM / 2 {
            return Err(Damage::TooMuch);
        }
        match fact {
            Fact::Probe(probe) => self.probes.push(probe.clone()),
            Fact::Place { image, probe, addr, offset, name, symbol, object } => {
                if *probe as usize >= self.probes.len() {
                    return Err(Damage::Nonsense);
                }
                let point = Point {
                    point: self.places.len() as u32,
                    definition: *probe,
                    addr: *addr,
                    offset: *offset,
                    counters: 0,
                    durations: u32::MAX,
                    symbol: symbol.clone(),
                    object: object.clone(),
                };
                self.places.push(Place { image: *image, probe: *probe, name: name.clone(), point });
            }
            Fact::Task { pid, tid, comm } if self.tasks.len() < MOST_KNOWN => {
                self.tasks.push((*pid, *tid, *comm));
            }
            Fact::Name { image, pid, addr, text } if self.names.len() < MOST_KNOWN => {
                self.names.insert((*image, *pid, *addr), text.clone());
            }
            Fact::Stack(stack) if self.stacks.len() < MOST_KNOWN => {
                let words = std::iter::once(&stack.end).chain(&stack.frames);
                self.stacks.push(words.flat_map(|word| word.to_ne_bytes()).collect());
            }
            Fact::Task { .. } | Fact::Name { .. } | Fact::Stack(_) => return Err(Damage::TooMuch),
            Fact::Forget => {
                self.tasks.clear();
                self.names.clear();
                self.stacks.clear();
                self.room[1] = 0;
            }
            Fact::Started { .. } | Fact::Object { .. } => {}
        }
        Ok(())
    }

    /// Reads an event behind its first number.
    #[inline]
    fn event<'a>(
        &'a self,
        from: &mut From<'_>,
        head: u64,
        time_ns: &mut u64,
        task: Option<&'a (u32, u32, [u8; 16])>,
        values: &'a mut Vec<u8>,
    ) -> Option<Event<'a>> {
        let place_number = u32::try_from((head - 1) / 2).ok()?;
        let place = self.places.get(place_number as usize)?;
        let probe = self.probes.get(place.probe as usize)?;
        let (pid, tid, comm) = task?;
        *time_ns = time_ns.wrapping_add_signed(unfolded(from.number()?));
        let duration_ns = if probe.is_return { Some(from.number()?) } else { None };
        values.clear();
        event::read(from, &probe.args, head.is_multiple_of(2), &self.stacks, values)?;
        let names = Names { all: &self.names, image: place.image, pid: *pid };
        let (values, time_ns) = (Values(values), *time_ns);
        Some(Event {
            time_ns,
            duration_ns,
            left_ns: None,
            pid: *pid,
            tid: *tid,
            comm,
            place_number,
            place,
            probe,
            values,
            names,
        })
    }
}

/// Reads until `into` is full or nothing is left; returns how many bytes there were.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < into.len() {
        match from.read(&mut into[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
