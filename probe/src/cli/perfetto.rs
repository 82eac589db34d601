//! Perfetto's trace format: protocol buffers.
//!
//! Messages and the numbers of their fields are those of `protos/perfetto/trace` in Perfetto's repository;
//! what is written of them is little, and without a library.

use super::args::Choice;
use super::calls::{Call, Part, Visitor, Walked};
use super::failure::Failure;
use super::foreign::Foreign;
use super::saved;
use super::value;
use super::walk;
use crate::file::Event;
use serde_json::Value as Json;
use std::collections::HashSet;
use std::io::{self, Write};

/// `Trace`.
mod trace {
    pub(super) const PACKET: u32 = 1;
}

/// `TracePacket`.
mod packet {
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED: u32 = 12;
    pub(super) const FLAGS: u32 = 13;
    pub(super) const TRACK: u32 = 60;
    /// Nothing is known from before; names are.
    pub(super) const CLEARED: u64 = 1;
    pub(super) const NEEDS_NAMES: u64 = 2;
}

/// `TrackDescriptor`, `ProcessDescriptor`, `ThreadDescriptor`.
mod track {
    pub(super) const UUID: u32 = 1;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const THREAD: u32 = 4;
    pub(super) const PARENT: u32 = 5;
    pub(super) const PROCESS_PID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const THREAD_PID: u32 = 1;
    pub(super) const THREAD_TID: u32 = 2;
    pub(super) const THREAD_NAME: u32 = 5;
}

/// `TrackEvent`.
mod event {
    pub(super) const CATEGORY: u32 = 3;
    pub(super) const ANNOTATION: u32 = 4;
    pub(super) const TYPE: u32 = 9;
    pub(super) const NAME: u32 = 10;
    pub(super) const TRACK: u32 = 11;
    pub(super) const BEGIN: u64 = 1;
    pub(super) const END: u64 = 2;
    pub(super) const INSTANT: u64 = 3;
}

/// `InternedData`, `EventCategory`, `EventName`.
mod interned {
    pub(super) const CATEGORIES: u32 = 1;
    pub(super) const NAMES: u32 = 2;
    pub(super) const NUMBER: u32 = 1;
    pub(super) const NAME: u32 = 2;
}

/// `DebugAnnotation`.
mod annotation {
    pub(super) const BOOL: u32 = 2;
    pub(super) const UNSIGNED: u32 = 3;
    pub(super) const SIGNED: u32 = 4;
    pub(super) const TEXT: u32 = 6;
    pub(super) const NAME: u32 = 10;
    pub(super) const ELEMENT: u32 = 12;
}

/// All packets are of one sequence.
const SEQUENCE: u64 = 1;
/// The most threads that have a name.
const MOST_THREADS: usize = 1 << 20;

/// A message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n > 0x7f {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn number(mut self, field: u32, n: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(n);
        self
    }

    fn bytes(mut self, field: u32, bytes: impl AsRef<[u8]>) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend_from_slice(bytes.as_ref());
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Writes packets.
struct Packets<W> {
    to: W,
    /// Packets that come before the next one.
    before: Message,
    functions: u64,
    threads: HashSet<(u32, u32, Vec<u8>)>,
}

/// Writes a record as a trace of Perfetto; the inner error is of `to`.
///
/// # Errors
/// The record cannot be read.
pub(super) fn write(choice: &Choice, to: impl Write) -> Result<io::Result<Walked>, Failure> {
    let mut packets = Packets { to, before: Message::default(), functions: 0, threads: HashSet::new() };
    let first = Message::default().number(packet::SEQUENCE, SEQUENCE).number(packet::FLAGS, packet::CLEARED);
    packets.before = Message::default().bytes(trace::PACKET, first);
    let walked = walk::walk(choice, &Part::default(), &mut packets)?;
    // Also of a record without events.
    Ok(walked.and_then(|walked| packets.to.write_all(&packets.before.0).map(|()| walked)))
}

/// The track of a thread, or of a process.
fn uuid(pid: u32, tid: u32) -> u64 {
    u64::from(pid) << 32 | u64::from(tid)
}

/// Text in UTF-8, which it has to be in.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl<W: Write> Packets<W> {
    /// Says once what a thread is called, and of which process it is.
    fn thread(&mut self, call: &Call<'_>) {
        let key = (call.pid, call.tid, call.comm.to_owned());
        if self.threads.len() >= MOST_THREADS || !self.threads.insert(key) {
            return;
        }
        let of_process = Message::default().number(track::PROCESS_PID, call.pid.into());
        let of_process = match call.tid == call.pid {
            true => of_process.bytes(track::PROCESS_NAME, text(call.comm)),
            false => of_process,
        };
        let process =
            Message::default().number(track::UUID, uuid(call.pid, 0)).bytes(track::PROCESS, of_process);
        let of_thread = Message::default()
            .number(track::THREAD_PID, call.pid.into())
            .number(track::THREAD_TID, call.tid.into())
            .bytes(track::THREAD_NAME, text(call.comm));
        let thread = Message::default()
            .number(track::UUID, uuid(call.pid, call.tid))
            .number(track::PARENT, uuid(call.pid, 0))
            .bytes(track::THREAD, of_thread);
        for descriptor in [process, thread] {
            let one = Message::default().number(packet::SEQUENCE, SEQUENCE).bytes(packet::TRACK, descriptor);
            self.before = std::mem::take(&mut self.before).bytes(trace::PACKET, one);
        }
    }

    fn event(&mut self, call: &Call<'_>, time_ns: u64, kind: u64) -> io::Result<()> {
        self.thread(call);
        let mut event =
            Message::default().number(event::TYPE, kind).number(event::TRACK, uuid(call.pid, call.tid));
        if kind != event::END {
            let function = call.function as u64 + 1;
            event = event.number(event::CATEGORY, function).number(event::NAME, function);
            event.0.extend_from_slice(call.kept);
        }
        let one = Message::default()
            .number(packet::TIMESTAMP, time_ns)
            .number(packet::SEQUENCE, SEQUENCE)
            .number(packet::FLAGS, packet::NEEDS_NAMES)
            .bytes(packet::TRACK_EVENT, event);
        let all = std::mem::take(&mut self.before).bytes(trace::PACKET, one);
        self.to.write_all(&all.0)
    }
}

fn annotated(name: Option<&str>, value: &Json) -> Message {
    let message = name.map_or_else(Message::default, |name| Message::default().bytes(annotation::NAME, name));
    match value {
        Json::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => message.number(annotation::UNSIGNED, n),
            (None, Some(n)) => message.number(annotation::SIGNED, n.cast_unsigned()),
            (None, None) => message,
        },
        Json::String(text) => message.bytes(annotation::TEXT, text),
        Json::Bool(is) => message.number(annotation::BOOL, u64::from(*is)),
        Json::Array(all) => all
            .iter()
            .fold(message, |message, element| message.bytes(annotation::ELEMENT, annotated(None, element))),
        _ => message.bytes(annotation::TEXT, "(fault)"),
    }
}

impl<W: Write> Visitor for Packets<W> {
    const WRITES: bool = true;

    /// The event's arguments, as fields of `TrackEvent`.
    fn keep(&mut self, event: &Event<'_>) -> Box<[u8]> {
        let mut all = Message::default();
        if let Json::Object(args) = value::json(&event.probe.args, event.values, &event.names) {
            for (name, value) in &args {
                all = all.bytes(event::ANNOTATION, annotated(Some(name), value));
            }
        }
        if event.left_ns.is_some() {
            all = all.bytes(event::ANNOTATION, annotated(Some("$left"), &true.into()));
        }
        all.0.into()
    }

    fn function(&mut self, event: &Event<'_>) {
        self.functions += 1;
        let entry = |name: &str| {
            let name = Foreign::new(name).shown().to_string();
            Message::default().number(interned::NUMBER, self.functions).bytes(interned::NAME, name)
        };
        let data = Message::default()
            .bytes(interned::CATEGORIES, entry(&event.place.point.object))
            .bytes(interned::NAMES, entry(saved::function(event)));
        let one = Message::default().number(packet::SEQUENCE, SEQUENCE).bytes(packet::INTERNED, data);
        self.before = std::mem::take(&mut self.before).bytes(trace::PACKET, one);
    }

    fn enter(&mut self, call: Call<'_>) -> io::Result<()> {
        self.event(&call, call.start_ns, event::BEGIN)
    }

    fn leave(&mut self, call: Call<'_>) -> io::Result<()> {
        self.event(&call, call.start_ns.saturating_add(call.took_ns.unwrap_or(0)), event::END)
    }

    fn leaf(&mut self, call: Call<'_>) -> io::Result<()> {
        if call.took_ns.is_none() {
            return self.event(&call, call.start_ns, event::INSTANT);
        }
        self.enter(call)?;
        self.leave(call)
    }
}
