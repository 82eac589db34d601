//! The facts that the agents have reported about their programs.
//!
//! An agent runs in the traced program, which can report the same things. So all facts together have a
//! bounded size, a counter belongs to one point only, and a report that ends the command is believed only
//! before the program has run.

use super::foreign::Foreign;
use super::query::Query;
use super::summary::{self, NotFollowed, Row};
use super::symbols::{MappedId, NamedFile};
use crate::def::{DefError, Definition, Kind as DefKind};
use crate::wire::{Image, Meta, Point, Reader};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The most bytes that all facts may take: enough for a million places with long names.
const MOST_BYTES: usize = if cfg!(target_pointer_width = "64") { 512 << 20 } else { 64 << 20 };
/// The most objects that are kept of one program, as each name of an address is looked for in all of them.
const MOST_OBJECTS: usize = 1 << 12;

/// What events refer to.
pub(super) enum Fact<'a> {
    /// What an agent has said of its program: that it has started, or what is loaded in it.
    Program(Meta),
    /// A place.
    Place(Image, &'a Planted),
}

/// A planted point and its name.
pub(super) struct Planted {
    /// Its number among all that are planted, from 0.
    pub(super) number: u32,
    pub(super) point: Point,
    pub(super) name: String,
    pub(super) definition: usize,
}

/// An object of a program.
pub(super) struct Object {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) bias: u64,
    pub(super) file: NamedFile,
}

/// A process image.
#[derive(Default)]
pub(super) struct Running {
    points: HashMap<u32, Planted>,
    pub(super) objects: Vec<Object>,
}

/// Why functions that match a pattern were refused, and which: for each definition's text.
type Refused = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// What is known.
pub(super) struct Learned {
    pub(super) queries: Vec<Query>,
    /// The first program that has started.
    pub(super) program: Option<String>,
    pub(super) failure: Option<DefError>,
    /// How many agents have not planted everything yet that the trace begins with.
    pub(super) awaited: usize,
    /// What was said and cannot be, or was too much.
    pub(super) ignored: u64,
    images: HashMap<Image, Running>,
    refused: Refused,
    /// Programs that were not followed, and why: how often.
    not_followed: BTreeMap<(String, String), u64>,
    /// The counters and durations that a point has: no two have the same.
    taken: HashSet<u32>,
    /// How many places have been planted.
    planted: u32,
    room: usize,
}

impl Learned {
    pub(super) fn new(queries: Vec<Query>) -> Self {
        Self {
            queries,
            program: None,
            failure: None,
            awaited: 1,
            ignored: 0,
            images: HashMap::new(),
            refused: BTreeMap::new(),
            not_followed: BTreeMap::new(),
            taken: HashSet::new(),
            planted: 0,
            room: MOST_BYTES,
        }
    }

    /// The program that a point's event came from, and the point.
    pub(super) fn point(&self, image: Image, point: u32) -> Option<(&Running, &Planted)> {
        let image = self.images.get(&image)?;
        Some((image, image.points.get(&point)?))
    }

    /// The objects of a program, by the lower bits of its number.
    pub(super) fn objects(&self, image: u32) -> impl DoubleEndedIterator<Item = &Object> {
        self.images.get(&image).into_iter().flat_map(|image| &image.objects)
    }

    /// Keeps what an agent has said; returns what events may refer to.
    pub(super) fn learn(&mut self, meta: Meta) -> Option<Fact<'_>> {
        let place = if let Meta::Point(image, point) = &meta { Some((*image, point.point)) } else { None };
        let program = matches!(meta, Meta::Started { .. } | Meta::Object { .. }).then(|| meta.clone());
        if self.keep(meta).is_none() {
            self.ignored = self.ignored.saturating_add(1);
            return None;
        }
        if let Some((image, point)) = place {
            return Some(Fact::Place(image, self.point(image, point)?.1));
        }
        program.map(Fact::Program)
    }

    /// `None` for what cannot be, or is too much.
    fn keep(&mut self, meta: Meta) -> Option<()> {
        self.pay(&meta)?;
        match meta {
            Meta::Started { image, program, .. } => {
                self.program.get_or_insert(program);
                self.images.entry(image).or_default();
            }
            Meta::Object { image, start, end, bias, path, file: (device, inode), build_id } => {
                let file =
                    NamedFile { path: path.into(), id: MappedId { device: Some(device), inode }, build_id };
                let objects = &mut self.images.entry(image).or_default().objects;
                (objects.len() < MOST_OBJECTS).then(|| objects.push(Object { start, end, bias, file }))?;
            }
            Meta::Point(image, point) => self.keep_point(image, point)?,
            Meta::Refused { definition, symbol, reason, .. } => {
                let query = self.queries.get(definition as usize)?;
                let reasons = self.refused.entry(query.definition.text.clone()).or_default();
                reasons.entry(reason).or_default().insert(symbol);
            }
            Meta::Failed { definition, span, sentence, .. } => {
                if self.awaited == 0 {
                    return None;
                }
                let text = self.queries.get(definition as usize).map_or("", |query| &query.definition.text);
                let error = DefError::new(text, (span.0 as usize, span.1 as usize), sentence);
                self.failure.get_or_insert(error);
            }
            Meta::Ready(_) => self.awaited = self.awaited.saturating_sub(1),
            Meta::NotFollowed { program, reason, .. } => {
                let times = self.not_followed.entry((program, reason)).or_default();
                *times = times.saturating_add(1);
            }
        }
        Some(())
    }

    /// Takes the room that a record needs for good.
    fn pay(&mut self, meta: &Meta) -> Option<()> {
        /// What tables keep beside the texts, at the most.
        const ENTRY: usize = 2 * (size_of::<Planted>() + size_of::<Running>());
        let texts = match meta {
            Meta::Started { program, .. } => program.len(),
            Meta::Object { path, build_id, .. } => path.len() + build_id.len(),
            // The name that its events have is made from the symbol's.
            Meta::Point(_, point) => 2 * point.symbol.len() + point.object.len(),
            Meta::Refused { symbol, reason, .. } => symbol.len() + reason.len(),
            Meta::Failed { sentence, .. } => sentence.len(),
            Meta::NotFollowed { program, reason, .. } => program.len() + reason.len(),
            Meta::Ready(_) => return Some(()),
        };
        self.room = self.room.checked_sub(texts.checked_add(ENTRY)?)?;
        Some(())
    }

    fn keep_point(&mut self, image: Image, point: Point) -> Option<()> {
        let definition = point.definition as usize;
        let of = &self.queries.get(definition)?.definition;
        let image = self.images.entry(image).or_default();
        if image.points.contains_key(&point.point) {
            return None;
        }
        let durations = Some(point.durations).filter(|&offset| offset != u32::MAX);
        if !self.taken.insert(point.counters) || durations.is_some_and(|offset| !self.taken.insert(offset)) {
            return None;
        }
        let name = event_name(of, &point);
        let number = self.planted;
        self.planted = number.checked_add(1)?;
        image.points.insert(point.point, Planted { number, point, name, definition });
        Some(())
    }

    /// The summary's rows, in the order of the definitions, and the texts of the definitions that have none.
    pub(super) fn rows(&self, reader: &Reader) -> (Vec<Row>, Vec<Foreign<String>>) {
        let mut rows: BTreeMap<(usize, String, String), Row> = BTreeMap::new();
        for planted in self.images.values().flat_map(|image| image.points.values()) {
            let point = &planted.point;
            let query = &self.queries[planted.definition];
            let symbol = place_name(point);
            let key = (planted.definition, point.object.clone(), symbol.clone());
            let row =
                rows.entry(key).or_insert_with(|| Row::new(&planted.name, query, &point.object, &symbol));
            if let Some(counts) = reader.counts(point.counters) {
                row.add(&counts);
            }
            if let Some(all) = &mut row.durations {
                reader.add_durations(point.durations, all);
            }
        }
        let is_planted: HashSet<usize> = rows.keys().map(|(definition, ..)| *definition).collect();
        let never = self.queries.iter().enumerate().filter(|(index, _)| !is_planted.contains(index));
        let never = never.map(|(_, query)| Foreign::new(query.definition.text.clone())).collect();
        (rows.into_values().collect(), never)
    }

    /// Programs that were not followed.
    pub(super) fn take_not_followed(&mut self) -> Vec<NotFollowed> {
        let all = std::mem::take(&mut self.not_followed).into_iter();
        let shown = |((program, reason), times)| NotFollowed {
            program: Foreign::new(program),
            reason: Foreign::new(reason),
            times,
        };
        all.map(shown).collect()
    }

    /// Why functions that match a pattern were refused, and which.
    pub(super) fn take_refused(&mut self) -> summary::Refused {
        let listed = |(reason, symbols): (String, BTreeSet<String>)| {
            (Foreign::new(reason), symbols.into_iter().map(Foreign::new).collect())
        };
        let refused = std::mem::take(&mut self.refused);
        let all = refused
            .into_iter()
            .map(|(text, reasons)| (Foreign::new(text), reasons.into_iter().map(listed).collect()));
        all.collect()
    }
}

/// The name that events of a point go by: the definition's, else the symbol's.
fn event_name(definition: &Definition, point: &Point) -> String {
    if let Some(name) =
        definition.name.as_ref().filter(|_| !matches!(definition.place, crate::def::Place::Glob(_)))
    {
        return name.clone();
    }
    let suffix = if matches!(definition.kind, DefKind::Return { .. }) { "%return" } else { "" };
    place_name(point) + suffix
}

/// `symbol`, `symbol+0x4`, or an address.
fn place_name(point: &Point) -> String {
    match (point.symbol.is_empty(), point.offset) {
        (true, _) => format!("{:#x}", point.addr),
        (false, 0) => point.symbol.clone(),
        (false, offset) => format!("{}+{offset:#x}", point.symbol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned() -> Learned {
        let definition = Definition::parse("p f", &[]).unwrap();
        Learned::new(vec![Query { definition, is_judged: false, maps: Vec::new() }])
    }

    fn started(image: Image) -> Meta {
        Meta::Started { image, pid: 1, program: "/bin/x".into() }
    }

    fn point(point: u32, counters: u32) -> Point {
        let (symbol, object) = ("f".into(), "x".into());
        Point { point, definition: 0, addr: 1, offset: 0, counters, durations: u32::MAX, symbol, object }
    }

    #[test]
    fn evt_2_what_a_program_says_takes_bounded_memory() {
        let mut learned = learned();
        learned.learn(started(1));
        learned.learn(Meta::Point(1, point(u32::MAX, 0)));
        assert!(learned.point(1, u32::MAX).is_some(), "no table is as long as a number is large");
        let long = "x".repeat(1 << 20);
        for image in 2..2000 {
            learned.learn(Meta::Started { image, pid: 1, program: long.clone() });
        }
        assert!(learned.images.len() <= MOST_BYTES >> 20);
        assert!(learned.ignored > 0);
    }

    #[test]
    fn evt_2_two_points_do_not_count_the_same_hits() {
        let mut learned = learned();
        learned.learn(started(1));
        learned.learn(started(2));
        learned.learn(Meta::Point(1, point(0, 64)));
        learned.learn(Meta::Point(2, point(0, 64)));
        learned.learn(Meta::Point(1, point(0, 128)));
        assert!(learned.point(1, 0).is_some() && learned.point(2, 0).is_none());
        assert_eq!(learned.ignored, 2, "another's counters, and another place under a known number");
    }

    #[test]
    fn evt_2_a_program_that_runs_cannot_say_that_it_does_not() {
        let failed = |span| Meta::Failed { image: 1, definition: 0, span, sentence: "no".into() };
        let mut running = learned();
        running.learn(started(1));
        running.learn(Meta::Ready(1));
        running.learn(failed((0, 1)));
        assert!(running.failure.is_none() && running.ignored == 1);
        let mut before = learned();
        before.learn(failed((9, u32::MAX)));
        assert!(!before.failure.expect("it has failed").to_string().is_empty());
    }

    #[test]
    fn evt_2_what_names_no_definition_is_ignored() {
        let mut learned = learned();
        learned.learn(Meta::Point(7, Point { definition: 1, ..point(0, 0) }));
        learned.learn(Meta::Refused { image: 7, definition: 9, symbol: "f".into(), reason: "r".into() });
        assert_eq!((learned.ignored, learned.images.len(), learned.refused.len()), (2, 0, 0));
    }
}
