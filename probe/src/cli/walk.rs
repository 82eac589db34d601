//! The calls of each thread as they were made, outside in: what begins first comes first, and what it calls
//! stands between its beginning and its end.
//!
//! A record has returns, so that what a call has made is known before the call itself. It is read twice. The
//! first time tells the *long* calls, those that much was called in (`Survey`). The second time what
//! returns waits for its caller; where much waits, what has waited longest was called by long calls alone,
//! and can be shown. So any record takes bounded memory. Of what can be read only once, such as a pipe, no
//! long calls are known; there calls may stand before their callers.

use super::args::Choice;
use super::calls::{Names, Part, Visitor, Walked, node, start_ns, weight};
use super::failure::Failure;
use super::nests::{Done, Left, Nests};
use super::saved::Saved;
use super::threads::{Long, Survey, Threads};
use crate::file::Item;
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;

/// What may wait in all threads, in calls without arguments.
const ROOM: u64 = if cfg!(target_pointer_width = "64") { 1 << 18 } else { 1 << 16 };
/// What may wait where there are very many threads, or nothing is known of long calls, is so many times that.
const MOST_ROOMS: u64 = 4;
/// What is inside of a long call, at the least.
const LEAST: u64 = 256;

/// Shows `visitor` all calls of a record; the inner error is its own.
///
/// # Errors
/// The record cannot be read.
pub(super) fn walk(
    choice: &Choice,
    part: &Part,
    visitor: &mut impl Visitor,
) -> Result<io::Result<Walked>, Failure> {
    walk_in(ROOM, choice, part, visitor)
}

fn walk_in<V: Visitor>(
    room: u64,
    choice: &Choice,
    part: &Part,
    visitor: &mut V,
) -> Result<io::Result<Walked>, Failure> {
    let mut saved = Saved::open(choice)?;
    let mut names = Names::default();
    let survey = if saved.is_for_two() {
        let survey = survey(&mut saved, room, part, &mut names, visitor)?;
        saved.rewind()?;
        // Lines and a bar do not fit onto one terminal.
        if V::WRITES && io::stdout().is_terminal() {
            saved = saved.silent();
        }
        survey
    } else {
        Survey { long: Vec::new(), least: MOST_ROOMS * room / 2 }
    };
    let mut threads = Threads::new(survey, names, part, visitor);
    threads.room = MOST_ROOMS * room;
    let mut shown = Ok(());
    saved.read(|item| {
        if let Item::Event(event) = item {
            shown = threads.add(&event);
        }
        if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let shown = shown.and_then(|()| threads.show_all());
    let mut walked = threads.walked;
    walked.lost = saved.reader().lost();
    Ok(shown.map(|()| walked))
}

/// Reads a record for its long calls.
fn survey(
    saved: &mut Saved<'_>,
    room: u64,
    part: &Part,
    names: &mut Names,
    visitor: &mut impl Visitor,
) -> Result<Survey, Failure> {
    let mut nests: Nests<u64> = Nests::default();
    let mut survey = Survey { long: Vec::new(), least: LEAST };
    let (mut number, mut long_weight, mut left) = (0, 0, Left::default());
    saved.read(|item| {
        let Item::Event(event) = item else { return ControlFlow::Continue(()) };
        if !part.holds(&event) {
            return ControlFlow::Continue(());
        }
        number += 1;
        let (task, start_ns) = ((event.pid, event.tid), start_ns(&event));
        let mut all = weight(&event);
        if event.span_ns().is_some() && left.ended_before(&event).is_none() {
            all += nests.claim(task, start_ns).map(|done| done.what).sum::<u64>();
        }
        if all > survey.least {
            long_weight += weight(&event);
            survey.long.push(Long { task, number, node: node(&event, (all, 0), part, names, visitor) });
        }
        while long_weight > room / 4 {
            survey.least *= 2;
            let least = survey.least;
            survey.long.retain(|long| long.node.weight > least);
            long_weight = survey.long.iter().map(|long| long.node.own_weight()).sum();
        }
        nests.wait(task, Done { start_ns, what: all }, |to, more| *to += more);
        ControlFlow::Continue(())
    })?;
    // What few threads have to keep may be more, so that most records stand thread after thread.
    let threads = nests.rest().count().max(1) as u64;
    let least = survey.least.max(room / threads);
    survey.long.retain(|long| long.node.weight > least);
    Ok(Survey { least, ..survey })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::calls::Call;
    use crate::def::Definition;
    use crate::file::Event;
    use crate::file::{Fact, Head, Hit, Probe, Writer};
    use crate::wire::Values;
    use std::collections::HashMap;
    use std::fs::File;
    use std::path::PathBuf;

    /// What is shown of a call: when it began, in how many others, which function it is of, and whether
    /// others are in it.
    type Shown = (u64, usize, usize, bool);

    /// Writes down what is shown of each thread, and that what was entered is left.
    #[derive(Default)]
    struct Log {
        shown: HashMap<u32, Vec<Shown>>,
        open: HashMap<u32, Vec<u64>>,
    }

    impl Visitor for Log {
        fn keep(&mut self, event: &Event<'_>) -> Box<[u8]> {
            event.values.0.into()
        }

        fn function(&mut self, _event: &Event<'_>) {}

        fn enter(&mut self, call: Call<'_>) -> io::Result<()> {
            self.leaf(call)?;
            self.shown.get_mut(&call.tid).and_then(|all| all.last_mut()).unwrap().3 = true;
            self.open.entry(call.tid).or_default().push(start_ns(call));
            Ok(())
        }

        fn leave(&mut self, call: Call<'_>) -> io::Result<()> {
            assert_eq!(self.open.get_mut(&call.tid).and_then(Vec::pop), Some(start_ns(call)));
            Ok(())
        }

        fn leaf(&mut self, call: Call<'_>) -> io::Result<()> {
            let shown = (start_ns(call), call.depth, call.function, false);
            self.shown.entry(call.tid).or_default().push(shown);
            Ok(())
        }
    }

    /// When a call began, which is its argument.
    fn start_ns(call: Call<'_>) -> u64 {
        u32::from_ne_bytes(call.kept[4..8].try_into().unwrap()).into()
    }

    /// A record that is made, and what it should be shown as.
    struct Made {
        writer: Writer<File>,
        path: PathBuf,
        now_ns: u64,
        random: u64,
        want: HashMap<u32, Vec<Shown>>,
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    impl Made {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("probe-walk-{name}-{}", std::process::id()));
            let mut writer = Writer::new(File::create(&path).unwrap(), Head::here(0)).unwrap();
            for text in ["r f n=$arg1:u32", "p f n=$arg1:u32"] {
                let definition = Definition::parse(text, &[]).unwrap();
                let is_return = definition.is_return();
                let (text, label) = (text.to_owned(), String::new());
                writer.fact(&Fact::Probe(Probe { text, label, is_return, args: definition.args })).unwrap();
            }
            for place in 0..8 {
                let (name, symbol, object) = (format!("f{place}"), String::new(), String::new());
                let probe = u32::from(place == 7);
                writer
                    .fact(&Fact::Place { image: 1, probe, addr: 0, offset: 0, name, symbol, object })
                    .unwrap();
            }
            Self { writer, path, now_ns: 0, random: 1, want: HashMap::new() }
        }

        fn random(&mut self, most: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) % most
        }

        fn event(&mut self, tid: u32, place: u32, start_ns: u64) {
            let values = [4_u32.to_ne_bytes(), (start_ns as u32).to_ne_bytes()].concat();
            let (time_ns, duration_ns) = (self.now_ns, self.now_ns - start_ns);
            let values = Values(&values);
            let hit = Hit {
                time_ns,
                place,
                pid: 1,
                tid,
                comm: *b"made\0\0\0\0\0\0\0\0\0\0\0\0",
                duration_ns,
                is_left: false,
                values,
            };
            self.writer.event(&hit, |_, _| None).unwrap();
        }

        /// Begins a call.
        fn begin(&mut self, tid: u32, place: u32, depth: usize) -> (u64, usize) {
            self.now_ns += 1 + self.random(3);
            let all = self.want.entry(tid).or_default();
            all.push((self.now_ns, depth, place as usize, false));
            (self.now_ns, all.len())
        }

        fn end(&mut self, tid: u32, place: u32, (start_ns, number): (u64, usize)) {
            self.now_ns += 1 + self.random(3);
            self.event(tid, place, start_ns);
            let all = self.want.get_mut(&tid).unwrap();
            all[number - 1].3 = all.len() > number;
        }

        /// A call with others in it, of which there are about as many as asked for.
        fn tree(&mut self, tid: u32, depth: usize, calls: u64) {
            let place = (depth % 7) as u32;
            let begun = self.begin(tid, place, depth);
            let mut rest = calls.saturating_sub(1);
            while rest > 0 {
                let some = if rest < 3 { rest } else { 1 + self.random(rest) };
                self.tree(tid, depth + 1, some);
                rest -= some;
                if self.random(4) == 0 {
                    let (start_ns, _) = self.begin(tid, 7, depth + 1);
                    self.event(tid, 7, start_ns);
                }
            }
            self.end(tid, place, begun);
        }

        fn check(&mut self, room: u64) -> (Walked, Log) {
            self.writer.flush().unwrap();
            let choice = Choice { file: self.path.clone(), since: None, task: None, event: None };
            let mut log = Log::default();
            let walked = walk_in(room, &choice, &Part::default(), &mut log).unwrap().unwrap();
            assert!(log.open.values().all(Vec::is_empty));
            (walked, log)
        }

        /// Functions are numbered as they return first.
        fn same(&self, log: &Log) {
            assert_eq!(self.want.len(), log.shown.len());
            let mut numbers: HashMap<usize, usize> = HashMap::new();
            for (tid, want) in &self.want {
                let shown = &log.shown[tid];
                assert_eq!(want.len(), shown.len());
                for (want, shown) in want.iter().zip(shown) {
                    assert_eq!((want.0, want.1, want.3), (shown.0, shown.1, shown.3));
                    assert_eq!(*numbers.entry(want.2).or_insert(shown.2), shown.2);
                }
            }
        }
    }

    #[test]
    fn any_tree_is_shown_as_it_was_made_in_little_room() {
        for room in [1_u64 << 11, 1 << 13, 1 << 20] {
            let mut made = Made::new(&format!("trees-{room}"));
            let main = made.begin(1, 0, 0);
            let others = [made.begin(2, 1, 0), made.begin(3, 2, 0)];
            for turn in 0..300_u32 {
                let calls = 1 + made.random(400);
                made.tree(1 + turn % 3, 1, calls);
            }
            made.end(3, 2, others[1]);
            made.end(1, 0, main);
            made.end(2, 1, others[0]);
            let (walked, log) = made.check(room);
            assert!(!walked.is_early && walked.events > 40_000, "{walked:?}");
            made.same(&log);
        }
    }

    #[test]
    fn recursion_is_shown_at_any_depth() {
        let mut made = Made::new("recursion");
        let main = made.begin(1, 0, 0);
        for _ in 0..5 {
            let begun: Vec<_> = (0..3000).map(|depth| made.begin(1, 1, 1 + depth)).collect();
            begun.into_iter().rev().for_each(|begun| made.end(1, 1, begun));
        }
        made.end(1, 0, main);
        let (walked, log) = made.check(1 << 12);
        assert!(!walked.is_early);
        made.same(&log);
    }

    /// So that it is not shown as if nothing were missing.
    #[test]
    fn what_finds_no_room_is_said_and_shown_nevertheless() {
        let mut made = Made::new("no-room");
        let begun: Vec<_> = (0..20_000).map(|depth| made.begin(1, 1, depth)).collect();
        begun.into_iter().rev().for_each(|begun| made.end(1, 1, begun));
        let (walked, log) = made.check(1 << 9);
        assert!(walked.is_early);
        assert_eq!(log.shown[&1].len(), 20_000);
    }
}
