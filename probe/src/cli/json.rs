//! Events and summary as JSON: one object per line.
//!
//! Events have `"type":"event"`; the last line has `"type":"summary"`. Times are nanoseconds since the
//! command started. Values that could not be read are `null`; hexadecimal types are strings, so that no
//! reader rounds them. Strings are UTF-8, as JSON requires: other bytes become U+FFFD, and the member `bytes`
//! has the string in hexadecimal, at the same path (`.args.path` and `.bytes.args.path`). The manual page
//! probe-trace(1) lists the members.

use super::answers::Answer;
use super::consumer::{Shown, Sink};
use super::foreign::{self, Foreign};
use super::functions::Function;
use super::losses::Loss;
use super::summary::{NotFollowed, Row, Summary};
use super::value;
use serde_json::{Value as Json, json};
use std::io::{self, Write};
use std::time::Duration;

/// Writes an object per line.
pub(super) struct Lines<W: Write + Send> {
    to: W,
    /// How many keys of a table are written.
    top: usize,
}

impl<W: Write + Send> Lines<W> {
    pub(super) fn new(to: W, top: Option<usize>) -> Self {
        Self { to, top: top.unwrap_or(usize::MAX) }
    }

    fn line(&mut self, object: &Json) -> io::Result<()> {
        self.to.write_all(foreign::json(object).as_bytes())?;
        self.to.write_all(b"\n")
    }
}

impl<W: Write + Send> Sink for Lines<W> {
    fn event(&mut self, event: &Shown<'_>) -> io::Result<()> {
        let mut object = json!({
            "type": "event",
            "time_ns": event.time_ns,
            "pid": event.pid,
            "tid": event.tid,
            "comm": event.comm.json(),
            "event": event.name.json(),
            "object": event.point.object,
            "symbol": event.point.symbol,
            "offset": event.point.offset,
            "addr": format!("{:#x}", event.point.addr),
            "args": value::json(event.args, event.values, event.symbols),
        });
        if let Some(duration_ns) = event.duration_ns {
            object["duration_ns"] = duration_ns.into();
        }
        if let Some(left_ns) = event.left_ns {
            object["left_ns"] = left_ns.into();
        }
        if let Some((frames, end)) = value::stack(event.args, event.values, event.symbols) {
            object["stack"] = frames.iter().flat_map(frame).collect();
            object["stack_end"] = end.name().into();
        }
        if let Some(bytes) = bytes(event) {
            object["bytes"] = bytes;
        }
        self.line(&object)
    }

    fn answers(&mut self, time_ns: u64, per: Duration, answers: &[Answer]) -> io::Result<()> {
        let answers: Vec<Json> = answers.iter().map(|answer| answer.json(self.top)).collect();
        let interval_ns = u64::try_from(per.as_nanos()).unwrap_or(u64::MAX);
        self.line(
            &json!({ "type": "answers", "time_ns": time_ns, "interval_ns": interval_ns, "answers": answers }),
        )
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        let rows: Vec<Json> = summary.rows.iter().map(row).collect();
        self.line(&json!({
            "type": "summary",
            "program": summary.program.json(),
            "ended": summary.ended,
            "ran_ns": summary.ran_ns,
            "lost_events": summary.all_lost(),
            "lost_by_thread": summary.lost_by.iter().map(loss).collect::<Vec<_>>(),
            "garbled_records": summary.garbled,
            "refused": refused(summary),
            "not_followed": summary.not_followed.iter().map(not_followed).collect::<Vec<_>>(),
            "never_planted": summary.never_planted.iter().map(Foreign::json).collect::<Vec<_>>(),
            "probes": rows,
            "answers": summary.answers.iter().map(|answer| answer.json(self.top)).collect::<Vec<_>>(),
        }))?;
        self.to.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The functions of a frame.
fn frame(frame: &value::Frame) -> Vec<Json> {
    let last = frame.functions.len().saturating_sub(1);
    let function = |(index, function): (usize, &Function)| {
        let name = Foreign::new(function.name.as_str()).json();
        let mut object = json!({ "function": name, "addr": format!("{:#x}", frame.addr) });
        if !function.at.is_empty() {
            object["at"] = Foreign::new(function.at.as_str()).json();
        }
        if index != last {
            object["inlined"] = true.into();
        }
        object
    };
    frame.functions.iter().enumerate().map(function).collect()
}

fn loss(loss: &Loss) -> Json {
    let comm = loss.comm.split(|&byte| byte == 0).next().unwrap_or_default();
    json!({
        "pid": loss.pid,
        "tid": loss.tid,
        "comm": Foreign::new(String::from_utf8_lossy(comm).into_owned()).json(),
        "lost_events": loss.events,
    })
}

/// The strings of an event that are not UTF-8, in hexadecimal, at the same paths.
fn bytes(event: &Shown<'_>) -> Option<Json> {
    let comm = Some(value::not_utf8(event.comm.raw())).filter(|comm| !comm.is_null());
    let args = value::bytes(event.args, event.values);
    let all = [("comm", comm), ("args", args)];
    let all: serde_json::Map<String, Json> =
        all.into_iter().filter_map(|(name, bytes)| Some((name.to_owned(), bytes?))).collect();
    (!all.is_empty()).then_some(Json::Object(all))
}

fn not_followed(program: &NotFollowed) -> Json {
    json!({ "program": program.program.json(), "reason": program.reason.json(), "times": program.times })
}

/// By definition and reason: the functions.
fn refused(summary: &Summary) -> Json {
    let all = summary.refused.iter().map(|(definition, reasons)| {
        let reasons = reasons.iter().map(|(reason, symbols)| {
            let symbols: Json = symbols.iter().map(Foreign::json).collect();
            (reason.raw().clone(), symbols)
        });
        (definition.raw().clone(), Json::Object(reasons.collect()))
    });
    Json::Object(all.collect())
}

fn row(row: &Row) -> Json {
    let mut object = json!({
        "event": row.name.json(),
        "object": row.object.json(),
        "symbol": row.symbol.json(),
        "hits": row.hits,
        "missed_nested": row.missed_nested,
        "missed_pool": row.missed_pool,
        "abandoned": row.abandoned,
        "dropped_events": row.dropped,
    });
    if let Some(judged) = row.judged {
        object["passed"] = judged.passed.into();
        object["unjudged"] = judged.unjudged.into();
    }
    if let Some(durations) = row.durations.as_ref().filter(|durations| durations.count > 0) {
        object["duration_ns"] = json!({
            "count": durations.count,
            "sum": durations.sum_ns,
            "min": durations.min_ns,
            "median": durations.quantile(0.5),
            "p99": durations.quantile(0.99),
            "max": durations.max_ns,
        });
    }
    object
}
