//! `probe print`: a record as text or JSON, as `probe trace` would have written it.

use super::args::Print;
use super::failure::Failure;
use super::output::{self, Looks};
use super::record;
use super::saved::{Saved, shown};
use super::trace::Outcome;
use crate::file::Item;
use std::ops::ControlFlow;

/// Prints a record.
///
/// # Errors
/// It cannot be read, or is damaged: then what comes before that is printed.
pub(super) fn run(args: &Print) -> Result<Outcome, Failure> {
    let mut saved = Saved::open(&args.choice)?.silent();
    let looks = Looks { format: args.format, color: args.color, top: None };
    let labels = saved.reader().probes().iter().map(|probe| probe.label.clone());
    let mut sink = output::written(Some(&args.output), looks, output::widest_name(labels))?;
    let mut failure = None;
    // What is counted at the end is counted of all events.
    let is_all = Saved::is_all(&args.choice);
    let read = saved.read(|item| {
        let done = match item {
            Item::Event(event) => sink.event(&shown(&event)),
            Item::End(end) if is_all => sink.summary(&record::summary(*end)),
            Item::End(_) | Item::Fact(_) => Ok(()),
        };
        match done {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    let flushed = sink.flush();
    match failure.or(flushed.err()) {
        Some(error) => Outcome::written(Err(error), "what is recorded"),
        None => read.and_then(|_| Outcome::written(Ok(()), "what is recorded")),
    }
}
