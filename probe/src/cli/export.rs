//! `probe export`: a record for the programs of others.

use super::args::{Export, ExportFormat};
use super::calls::{Part, Walked};
use super::failure::{Failure, failed};
use super::firefox;
use super::fold::{Fold, Folds};
use super::foreign::{self, Foreign};
use super::nests::Left;
use super::perfetto;
use super::saved::{self, Saved};
use super::stacks::{self, Weight, frame};
use super::trace::Outcome;
use super::value;
use crate::file::{Event, Item};
use inferno::flamegraph::{self, Options};
use serde_json::json;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

/// Writes a record in another format.
///
/// # Errors
/// The record cannot be read, or the file cannot be written.
pub(super) fn run(args: &Export) -> Result<Outcome, Failure> {
    let to: Box<dyn Write> = match args.output.as_deref() {
        None => Box::new(io::stdout().lock()),
        Some(path) => Box::new(
            File::create(path)
                .map_err(|error| failed(format!("`{}` cannot be written: {error}", foreign::path(path))))?,
        ),
    };
    let mut to = BufWriter::with_capacity(1 << 16, to);
    let written = match args.format {
        ExportFormat::Folded => folded(args, &mut to)?,
        ExportFormat::Svg => svg(args, &mut to)?,
        ExportFormat::Perfetto => perfetto::write(&args.choice, &mut to)?,
        ExportFormat::Firefox => firefox::write(&args.choice, &mut to)?,
        ExportFormat::Chrome => chrome(args, &mut to)?,
    };
    let written = written.and_then(|walked| to.flush().map(|()| walked.warn()));
    Outcome::written(written, "what is exported")
}

/// `task;outer;inner WEIGHT` of recorded stacks, or NANOSECONDS, what was spent in inner itself.
fn folded(args: &Export, to: &mut impl Write) -> Result<io::Result<Walked>, Failure> {
    let mut saved = Saved::open(&args.choice)?;
    if stacks::are_in(&saved) {
        let written = stacks::folded(&mut saved, &Weight::new(&args.weight), to)?;
        let walked = Walked { lost: saved.reader().lost(), ..Walked::default() };
        return Ok(written.map(|()| walked));
    }
    let (folds, walked) = Folds::read(&args.choice, &Part::default())?;
    let ways = |(comm, root): (Foreign<&[u8]>, &Fold)| {
        let way = frame(&comm);
        root.inside.iter().try_for_each(|inside| fold_lines(to, &folds, &way, folds.way(*inside)))
    };
    Ok(folds.roots().try_for_each(ways).map(|()| walked))
}

/// A flame graph of the folded lines.
fn svg(args: &Export, to: &mut impl Write) -> Result<io::Result<Walked>, Failure> {
    let mut lines = Vec::new();
    let walked = folded(args, &mut lines)?;
    let lines = String::from_utf8_lossy(&lines);
    let mut options = Options::default();
    let has_stacks = stacks::are_in(&Saved::open(&args.choice)?);
    let (title, count) = match has_stacks {
        true => ("Recorded stacks", args.weight.as_str()),
        false => ("Time by the way that calls went", "ns"),
    };
    options.title = title.to_owned();
    options.count_name = count.to_owned();
    options.name_type = "Function:".to_owned();
    options.hash = true;
    // It says nothing where there is nothing to draw.
    let has_time = lines.lines().any(|line| !line.ends_with(" 0"));
    if !has_time {
        return Err(Failure::new(
            "there is no call with a time in it, so there is nothing to draw: time is that of return probes (-p 'r …')",
        ));
    }
    let drawn = flamegraph::from_lines(&mut options, lines.lines(), to);
    Ok(walked.and_then(|walked| drawn.map(|()| walked)))
}

fn fold_lines(to: &mut impl Write, folds: &Folds, way: &str, fold: &Fold) -> io::Result<()> {
    let way = format!("{way};{}", frame(&folds.name(fold.function)));
    if fold.self_ns > 0 || fold.inside.is_empty() {
        writeln!(to, "{way} {}", fold.self_ns)?;
    }
    fold.inside.iter().try_for_each(|inside| fold_lines(to, folds, &way, folds.way(*inside)))
}

/// The trace event format: a complete event for each return, an instant one for each hit.
fn chrome(args: &Export, to: &mut impl Write) -> Result<io::Result<Walked>, Failure> {
    let mut saved = Saved::open(&args.choice)?;
    let mut tasks: HashSet<(u32, u32, [u8; 16])> = HashSet::new();
    let mut written = write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    let (mut is_first, mut left) = (true, Left::default());
    saved.read(|item| {
        if let Item::Event(event) = item {
            let mut lines = Vec::new();
            if tasks.len() < 1 << 16 && tasks.insert((event.pid, event.tid, *event.comm)) {
                lines.push(task(&event));
            }
            lines.push(line(&event, left.ended_before(&event)));
            for line in lines {
                let before = if std::mem::take(&mut is_first) { "\n" } else { ",\n" };
                if written.is_ok() {
                    written = write!(to, "{before}{line}");
                }
            }
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let walked = Walked { lost: saved.reader().lost(), ..Walked::default() };
    Ok(written.and_then(|()| writeln!(to, "\n]}}")).map(|()| walked))
}

/// The name of a thread.
fn task(event: &Event<'_>) -> String {
    let name = Foreign::new(saved::comm(event)).json();
    let object = json!({
        "ph": "M",
        "name": "thread_name",
        "pid": event.pid,
        "tid": event.tid,
        "args": { "name": name },
    });
    foreign::json(&object)
}

/// `end_ns`: when its call ended, if that is known better than by its time.
fn line(event: &Event<'_>, end_ns: Option<u64>) -> String {
    let start_ns = event.time_ns.saturating_sub(event.span_ns().unwrap_or(0));
    // Microseconds, of which a reader wants fractions.
    let micros = |ns: u64| ns as f64 / 1e3;
    let mut object = json!({
        "name": Foreign::new(saved::function(event)).json(),
        "cat": Foreign::new(event.place.point.object.as_str()).json(),
        "pid": event.pid,
        "tid": event.tid,
        "ts": micros(start_ns),
        "args": value::json(&event.probe.args, event.values, &event.names),
    });
    if event.left_ns.is_some() {
        object["args"]["$left"] = true.into();
    }
    match event.span_ns().map(|span_ns| end_ns.map_or(span_ns, |end_ns| end_ns.saturating_sub(start_ns))) {
        Some(duration_ns) => {
            object["ph"] = "X".into();
            object["dur"] = micros(duration_ns).into();
        }
        None => {
            object["ph"] = "i".into();
            object["s"] = "t".into();
        }
    }
    foreign::json(&object)
}
