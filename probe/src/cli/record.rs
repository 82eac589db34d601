//! `probe record`: events go into a file as they are.

use super::answers::Answer;
use super::args::Trace;
use super::consumer::{Shown, Sink};
use super::failure::{Failure, failed};
use super::foreign::{self, Foreign};
use super::functions::Function;
use super::learned::Fact;
use super::output::label;
use super::query::Query;
use super::summary::{NotFollowed, Row, Summary};
use crate::file::{self, Head, Hit, Naming, Probe, Writer};
use crate::wire::Meta;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long events stay in memory at the most, while more come.
const LONGEST: Duration = Duration::from_millis(100);

/// A file that counts what is written into it.
struct Counted {
    file: File,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        self.bytes += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a record.
struct Recorder {
    writer: Writer<Counted>,
    path: PathBuf,
    events: u64,
    written: Instant,
}

/// The file that events go to.
///
/// # Errors
/// It cannot be written.
pub(super) fn sink(args: &Trace, queries: &[Query]) -> Result<Box<dyn Sink>, Failure> {
    let path = args.output.as_deref().unwrap_or(Path::new(super::args::DEFAULT_RECORD));
    let unwritten = |error| failed(format!("`{}` cannot be written: {error}", foreign::path(path)));
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let began_ns = u64::try_from(began.as_nanos()).unwrap_or(u64::MAX);
    let file = Counted { file: File::create(path).map_err(unwritten)?, bytes: 0 };
    let mut writer = Writer::new(file, Head::here(began_ns)).map_err(unwritten)?;
    for query in queries {
        let probe = Probe {
            text: query.definition.text.clone(),
            label: label(query),
            is_return: query.definition.is_timed(),
            args: query.definition.args.clone(),
        };
        writer.fact(&file::Fact::Probe(probe)).map_err(unwritten)?;
    }
    writer.flush().map_err(unwritten)?;
    Ok(Box::new(Recorder { writer, path: path.to_owned(), events: 0, written: Instant::now() }))
}

impl Sink for Recorder {
    fn fact(&mut self, fact: Fact<'_>) -> io::Result<()> {
        self.writer.fact(&match fact {
            Fact::Program(Meta::Started { image, pid, program }) => {
                file::Fact::Started { image, pid, program }
            }
            Fact::Program(Meta::Object { image, start, end, bias, path, build_id, .. }) => {
                file::Fact::Object { image, start, end, bias, path, build_id }
            }
            Fact::Program(_) => return Ok(()),
            Fact::Place(image, planted) => file::Fact::Place {
                image,
                probe: planted.point.definition,
                addr: planted.point.addr,
                offset: planted.point.offset,
                name: planted.name.clone(),
                symbol: planted.point.symbol.clone(),
                object: planted.point.object.clone(),
            },
        })
    }

    fn lost(&mut self, events: u64) {
        self.writer.set_lost(events);
    }

    fn event(&mut self, event: &Shown<'_>) -> io::Result<()> {
        let mut comm = [0; 16];
        comm.iter_mut().zip(*event.comm.raw()).for_each(|(to, byte)| *to = *byte);
        let hit = Hit {
            time_ns: event.time_ns,
            place: event.place,
            pid: event.pid,
            tid: event.tid,
            comm,
            duration_ns: event.duration_ns.or(event.left_ns).unwrap_or(0),
            is_left: event.left_ns.is_some(),
            values: event.values,
        };
        self.events += 1;
        self.writer.event(&hit, |addr, naming| match naming {
            Naming::Symbol => event.symbols.symbol(addr).map(|name| name.raw().clone()),
            Naming::Frame => Some(Function::to_lines(&event.symbols.functions(addr))),
        })
    }

    fn answers(&mut self, _time_ns: u64, _per: Duration, _answers: &[Answer]) -> io::Result<()> {
        Ok(())
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        self.writer.set_lost(summary.all_lost());
        self.writer.finish(&end(summary))?;
        let lost = match summary.all_lost() {
            0 => "none lost".to_owned(),
            lost => format!("{lost} LOST"),
        };
        let (events, bytes) = (self.events, self.writer.get().bytes);
        eprintln!("probe: {events} events in {} ({bytes} bytes), {lost}", foreign::path(&self.path));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.written.elapsed() < LONGEST {
            return Ok(());
        }
        self.written = Instant::now();
        self.writer.flush()
    }
}

/// A summary as it stands in a record.
fn end(summary: &Summary) -> file::End {
    let row = |row: &Row| file::Row {
        name: row.name.raw().clone(),
        object: row.object.raw().clone(),
        symbol: row.symbol.raw().clone(),
        from_pattern: row.from_pattern,
        counts: [row.hits, row.missed_nested, row.missed_pool, row.abandoned, row.dropped],
        judged: row.judged.map(|judged| (judged.passed, judged.unjudged)),
        times: row.durations.clone(),
    };
    let mut refused = Vec::new();
    for (definition, reasons) in &summary.refused {
        for (reason, symbols) in reasons {
            refused.extend(symbols.iter().map(|symbol| file::Refused {
                definition: definition.raw().clone(),
                reason: reason.raw().clone(),
                symbol: symbol.raw().clone(),
            }));
        }
    }
    let lost_by = summary.lost_by.iter().map(|loss| file::Loss {
        pid: loss.pid,
        tid: loss.tid,
        comm: loss.comm,
        events: loss.events,
    });
    let not_followed = |known: &NotFollowed| file::NotFollowed {
        program: known.program.raw().clone(),
        reason: known.reason.raw().clone(),
        times: known.times,
    };
    file::End {
        rows: summary.rows.iter().map(row).collect(),
        refused,
        not_followed: summary.not_followed.iter().map(not_followed).collect(),
        never_planted: summary.never_planted.iter().map(|text| text.raw().clone()).collect(),
        lost_by: lost_by.collect(),
        lost: summary.lost,
        garbled: summary.garbled,
        ran_ns: summary.ran_ns,
        ended: summary.ended.clone(),
        program: summary.program.raw().clone(),
    }
}

/// The summary that stands in a record.
pub(super) fn summary(end: file::End) -> Summary {
    let row = |row: file::Row| {
        let [hits, missed_nested, missed_pool, abandoned, dropped] = row.counts;
        Row {
            name: Foreign::new(row.name),
            object: Foreign::new(row.object),
            symbol: Foreign::new(row.symbol),
            from_pattern: row.from_pattern,
            is_counted: false,
            hits,
            missed_nested,
            missed_pool,
            abandoned,
            dropped,
            judged: row.judged.map(|(passed, unjudged)| super::summary::Judged { passed, unjudged }),
            durations: row.times,
        }
    };
    let mut refused = super::summary::Refused::new();
    for file::Refused { definition, reason, symbol } in end.refused {
        let reasons = refused.entry(Foreign::new(definition)).or_default();
        reasons.entry(Foreign::new(reason)).or_default().push(Foreign::new(symbol));
    }
    let not_followed = |file::NotFollowed { program, reason, times }| NotFollowed {
        program: Foreign::new(program),
        reason: Foreign::new(reason),
        times,
    };
    let lost_by = end.lost_by.into_iter();
    let lost_by =
        lost_by.map(|file::Loss { pid, tid, comm, events }| super::losses::Loss { pid, tid, comm, events });
    Summary {
        rows: end.rows.into_iter().map(row).collect(),
        refused,
        not_followed: end.not_followed.into_iter().map(not_followed).collect(),
        answers: Vec::new(),
        never_planted: end.never_planted.into_iter().map(Foreign::new).collect(),
        lost: end.lost,
        lost_by: lost_by.collect(),
        garbled: end.garbled,
        ran_ns: end.ran_ns,
        ended: Foreign::new(end.ended).shown().to_string(),
        program: Foreign::new(end.program),
    }
}
