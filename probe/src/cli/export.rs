//! `probe export`: a record for the programs of others.

use super::args::{Export, ExportFormat};
use super::failure::{Failure, failed};
use super::fold::{Fold, Folds};
use super::foreign::{self, Foreign};
use super::saved::{self, Saved};
use super::stacks::{self, Weight, frame};
use super::status::Status;
use super::trace::Outcome;
use super::value;
use crate::file::{Event, Item};
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
    let mut saved = Saved::open(&args.choice)?;
    let written = match args.format {
        ExportFormat::Folded if stacks::are_in(&saved) => {
            stacks::folded(&mut saved, &Weight::new(&args.weight), &mut to)?
        }
        ExportFormat::Folded => folded(&mut saved, &mut to)?,
        ExportFormat::Chrome => chrome(&mut saved, &mut to)?,
    };
    if saved.reader().lost() > 0 {
        eprintln!("probe: {} events were lost, and are not in there", saved.reader().lost());
    }
    match written.and_then(|()| to.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Outcome::Signal(libc::SIGPIPE)),
        Err(error) => Err(failed(format!("it could not be written: {error}"))),
        Ok(()) => Ok(Outcome::Status(Status::Success.code())),
    }
}

/// `task;outer;inner NANOSECONDS`, what was spent in inner itself.
fn folded(saved: &mut Saved<'_>, to: &mut impl Write) -> Result<io::Result<()>, Failure> {
    let mut folds = Folds::default();
    saved.read(|item| {
        if let Item::Event(event) = item {
            folds.add(&event);
        }
        ControlFlow::Continue(())
    })?;
    let roots = folds.finish();
    let ways = |(comm, all): (&String, &Vec<Fold>)| {
        let way = frame(&Foreign::new(comm.as_str()));
        all.iter().try_for_each(|fold| fold_lines(to, &folds, &way, fold))
    };
    Ok(roots.iter().try_for_each(ways))
}

fn fold_lines(to: &mut impl Write, folds: &Folds, way: &str, fold: &Fold) -> io::Result<()> {
    let way = format!("{way};{}", frame(&folds.name(fold.function)));
    if fold.self_ns > 0 || fold.inside.is_empty() {
        writeln!(to, "{way} {}", fold.self_ns)?;
    }
    fold.inside.iter().try_for_each(|inside| fold_lines(to, folds, &way, inside))
}

/// The trace event format: a complete event for each return, an instant one for each hit.
fn chrome(saved: &mut Saved<'_>, to: &mut impl Write) -> Result<io::Result<()>, Failure> {
    let mut tasks: HashSet<(u32, u32, [u8; 16])> = HashSet::new();
    let mut written = write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    let mut is_first = true;
    saved.read(|item| {
        if let Item::Event(event) = item {
            let mut lines = Vec::new();
            if tasks.len() < 1 << 16 && tasks.insert((event.pid, event.tid, *event.comm)) {
                lines.push(task(&event));
            }
            lines.push(line(&event));
            for line in lines {
                let before = if std::mem::take(&mut is_first) { "\n" } else { ",\n" };
                if written.is_ok() {
                    written = write!(to, "{before}{line}");
                }
            }
        }
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(written.and_then(|()| writeln!(to, "\n]}}")))
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

fn line(event: &Event<'_>) -> String {
    let start_ns = event.time_ns.saturating_sub(event.duration_ns.unwrap_or(0));
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
    match event.duration_ns {
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
