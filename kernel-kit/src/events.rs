//! Events on probes, as Linux's `kprobe_events` defines them: a line of text becomes a probe, its hits become
//! records in a [`Trace`], and a reader gets lines of text.
//!
//! ```text
//! p[:[GROUP/]EVENT]            [MODULE:]SYMBOL[+OFFSET] [FETCHARG]…
//! r[MAXACTIVE][:[GROUP/]EVENT] [MODULE:]SYMBOL          [FETCHARG]…
//! p[:[GROUP/]EVENT]            ADDRESS                  [FETCHARG]…
//! -:[GROUP/]EVENT
//! ```
//!
//! The grammar is [`probe_definitions`]', which the command `probe` shares. An event is disabled at first, as
//! in Linux, and enabled by [`Events::enable`]. What Linux knows and this does not: patterns, a second place
//! for one event, filters and triggers, types of BTF; `@SYMBOL` finds what [`Host::find_symbols`] finds.
//!
//! A hit reads the arguments and the kernel's [`Stamps`] and takes a record: no lock, no allocation. All else
//! is for tasks.

mod error;
mod line;

use crate::fetch::{self, Entry, Plan, Scene};
use crate::trace::{Taken, Trace};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};
use probe_core::arch::Regs;
use probe_core::host::Host;
use probe_core::{AnyProbe, CodeAddr, Kprobe, Kretprobe, Place, Probe, Probes};
use probe_definitions::{DefError, Definition, Kind, MAX_ARGUMENT};

pub use error::EventError;

/// The length of a task's name.
const COMM_LEN: usize = 16;
/// What a record begins with: event, CPU, task, time, the task's name, the place, where a call returns to.
const HEAD_LEN: usize = 4 + 4 + 4 + 8 + COMM_LEN + 2 * size_of::<usize>();

/// What a kernel says of a hit's time and task. In a hit: no lock, no allocation.
pub trait Stamps: Send + Sync + 'static {
    /// The time, in nanoseconds.
    fn now_ns(&self) -> u64 {
        0
    }

    /// The running CPU's number.
    fn cpu(&self) -> u32 {
        0
    }

    /// The running task's number.
    fn task(&self) -> u32 {
        0
    }

    /// The running task's name, ended by a zero byte if it is shorter.
    fn comm(&self) -> [u8; COMM_LEN] {
        [0; COMM_LEN]
    }
}

/// No stamps: all are zero.
impl Stamps for () {}

/// What is known of an event by its hits and by the reader of its records.
struct Format {
    number: u32,
    group: String,
    name: String,
    plans: Box<[Plan]>,
    is_return: bool,
}

/// A defined event.
struct Event<H: Host> {
    format: Arc<Format>,
    /// The definition, as `kprobe_events` reads.
    text: String,
    probe: Probe<H>,
}

/// What tasks change, one at a time.
struct Table<H: Host> {
    events: Vec<Event<H>>,
    /// Formats of removed events, with the position up to which there may be records of them.
    removed: Vec<(Arc<Format>, usize)>,
    last_number: u32,
    /// What was wrong with the last line that was refused.
    error: String,
    /// The line that is being read, and how much of it has been.
    line: (String, usize),
    /// How many dropped records readers know of.
    told: usize,
}

/// The events of a kernel, and the [`Trace`] of its `CELLS` records.
pub struct Events<H: Host, S: Stamps, const CELLS: usize> {
    probes: &'static Probes<H>,
    stamps: S,
    trace: Trace<CELLS>,
    is_locked: AtomicBool,
    table: UnsafeCell<Table<H>>,
}

// SAFETY: the table is reached by `with_table` alone, one task at a time.
unsafe impl<H: Host, S: Stamps, const CELLS: usize> Sync for Events<H, S, CELLS> where Probe<H>: Send {}

impl<H: Host, S: Stamps, const CELLS: usize> Events<H, S, CELLS> {
    /// No event yet.
    pub const fn new(probes: &'static Probes<H>, stamps: S) -> Self {
        let table = Table {
            events: Vec::new(),
            removed: Vec::new(),
            last_number: 0,
            error: String::new(),
            line: (String::new(), 0),
            told: 0,
        };
        Self {
            probes,
            stamps,
            trace: Trace::new(),
            is_locked: AtomicBool::new(false),
            table: UnsafeCell::new(table),
        }
    }

    /// The probes that events are made of.
    pub const fn probes(&self) -> &'static Probes<H> {
        self.probes
    }

    /// Takes what is written to `kprobe_events`: lines, each of which defines or removes an event; empty
    /// ones, and comments from `#` on. Lines before one that is refused have had their effect.
    ///
    /// # Errors
    /// The first line that is refused; [`Events::error_log`] shows it.
    pub fn write(&'static self, text: &str) -> Result<(), EventError> {
        self.with_table(|table| {
            for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
                let done = match line.strip_prefix('-') {
                    _ if line.is_empty() => Ok(()),
                    Some(name) => self.remove(table, line, name.trim_start_matches(':')),
                    None => self.define(table, line),
                };
                if let Err(error) = done {
                    table.error = format!("{error}\n");
                    return Err(error);
                }
            }
            Ok(())
        })?
    }

    /// Removes all events: `kprobe_events` was opened to be written anew.
    ///
    /// # Errors
    /// In a handler.
    pub fn clear(&self) -> Result<(), EventError> {
        self.with_table(|table| self.remove_if(table, |_| true))?;
        Ok(())
    }

    /// Enables or disables the events called `name`: `EVENT`, `GROUP/EVENT`, or all those of `GROUP/`; all
    /// if it is empty.
    ///
    /// # Errors
    /// There is none of that name, or a probe cannot be switched; those before it have been.
    pub fn enable(&self, name: &str, to: probe_core::Switch) -> Result<(), EventError> {
        self.with_table(|table| {
            let mut chosen = table.events.iter().filter(|event| event.format.is_called(name)).peekable();
            if chosen.peek().is_none() && !name.is_empty() {
                return Err(EventError::Unknown(name.to_owned()));
            }
            for event in chosen {
                let done = match to {
                    probe_core::Switch::On => event.probe.enable(),
                    probe_core::Switch::Off => event.probe.disable(),
                };
                done.map_err(EventError::Enable)?;
            }
            Ok(())
        })?
    }

    /// Whether the events called `name` are enabled: `None` if some are, and others not.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn is_enabled(&self, name: &str) -> Result<Option<bool>, EventError> {
        self.with_table(|table| {
            let mut states = table
                .events
                .iter()
                .filter(|event| event.format.is_called(name))
                .map(|event| event.probe.is_enabled());
            let first = match states.next() {
                Some(first) => first,
                None if name.is_empty() => false,
                None => return Err(EventError::Unknown(name.to_owned())),
            };
            Ok(states.all(|state| state == first).then_some(first))
        })?
    }

    /// Calls `visit` with the group and the name of each event.
    ///
    /// # Errors
    /// In a handler.
    pub fn for_each(&self, mut visit: impl FnMut(&str, &str)) -> Result<(), EventError> {
        self.with_table(|table| {
            table.events.iter().for_each(|event| visit(&event.format.group, &event.format.name));
        })
    }

    /// What `kprobe_events` reads: a definition for each event, which can be written again.
    ///
    /// # Errors
    /// An error of `out`; and in a handler.
    pub fn definitions(&self, out: &mut dyn Write) -> fmt::Result {
        self.show_each(out, |event, out| writeln!(out, "{}", event.text))
    }

    /// What `kprobe_profile` reads: each event, its hits and its misses.
    ///
    /// # Errors
    /// As above.
    pub fn profile(&self, out: &mut dyn Write) -> fmt::Result {
        self.show_each(out, |event, out| {
            let counters = event.probe.counters();
            let missed = counters.missed_nested + counters.missed_pool;
            writeln!(out, "  {:<44} {:>15} {missed:>15}", event.format.name, counters.hits)
        })
    }

    /// What `error_log` reads: why the last line was refused, with the place in it.
    ///
    /// # Errors
    /// As above.
    pub fn error_log(&self, out: &mut dyn Write) -> fmt::Result {
        let error = self.with_table(|table| table.error.clone()).map_err(|_| fmt::Error)?;
        out.write_str(&error)
    }

    /// What `trace_pipe` reads: lines for records that nobody has read, as many bytes as there is room for; 0
    /// if there is nothing yet. The next read goes on at the next byte: a line may be read in parts.
    ///
    /// # Errors
    /// In a handler.
    pub fn read_trace(&self, out: &mut [u8]) -> Result<usize, EventError> {
        self.with_table(|table| {
            let mut len = 0;
            while let Some(room) = out.get_mut(len..).filter(|room| !room.is_empty()) {
                let rest = table.line.0.as_bytes().get(table.line.1..).unwrap_or_default();
                if rest.is_empty() && !self.next_line(table) {
                    break;
                }
                let rest = table.line.0.as_bytes().get(table.line.1..).unwrap_or_default();
                let taken = rest.len().min(room.len());
                for (to, from) in room.iter_mut().zip(rest) {
                    *to = *from;
                }
                table.line.1 += taken;
                len += taken;
            }
            len
        })
    }

    /// Makes a line of the next record, or of how many have been lost; whether there was one.
    fn next_line(&self, table: &mut Table<H>) -> bool {
        let mut line = core::mem::take(&mut table.line.0);
        line.clear();
        let dropped = self.trace.dropped();
        if dropped != table.told {
            let _ = writeln!(line, "[LOST {} EVENTS]", dropped.wrapping_sub(table.told));
            table.told = dropped;
        } else {
            let mut is_first = true;
            self.trace.drain(|record| {
                if !core::mem::take(&mut is_first) {
                    return Taken::No;
                }
                // Writing to a string does not fail.
                let _ = self.show(table, record, &mut line);
                Taken::Yes
            });
        }
        table.line = (line, 0);
        let trace = &self.trace;
        table.removed.retain(|(_, until)| !trace.is_read_to(*until));
        !table.line.0.is_empty()
    }

    fn show(&self, table: &Table<H>, mut record: &[u8], out: &mut String) -> fmt::Result {
        let record = &mut record;
        let [number, cpu, task] = [(); 3].map(|()| fetch::number(record, 4) as u32);
        let ns = fetch::number(record, 8);
        let comm = fetch::take(record, COMM_LEN).split(|&byte| byte == 0).next().unwrap_or_default();
        let comm = if comm.is_empty() { "<...>".into() } else { String::from_utf8_lossy(comm) };
        let [place, returns_to] = [(); 2].map(|()| fetch::number(record, size_of::<usize>()) as usize);
        let (seconds, micros) = (ns / 1_000_000_000, ns / 1000 % 1_000_000);
        write!(out, "{comm:>16}-{task:<7} [{cpu:03}] {seconds:>5}.{micros:06}: ")?;
        let formats = table.events.iter().map(|event| &event.format);
        let mut formats = formats.chain(table.removed.iter().map(|(format, _)| format));
        let Some(format) = formats.find(|format| format.number == number) else {
            return writeln!(out, "event {number}, which is gone");
        };
        write!(out, "{}: (", format.name)?;
        let host = self.probes.host();
        if format.is_return {
            fetch::show_address(returns_to, host, out)?;
            out.push_str(" <- ");
        }
        fetch::show_address(place, host, out)?;
        out.push(')');
        for plan in &format.plans {
            fetch::show(&plan.argument, record, host, out)?;
        }
        writeln!(out)
    }

    fn define(&'static self, table: &mut Table<H>, typed: &str) -> Result<(), EventError> {
        let definition = Definition::parse(typed, <H::Arch as probe_core::arch::Arch>::Regs::names())
            .map_err(EventError::Definition)?;
        let wrong = |sentence: String| EventError::Definition(definition.place_error(sentence));
        let place = line::place(&definition).map_err(wrong)?;
        let (group, name) = line::names(&definition);
        if table.events.iter().any(|event| event.format.group == group && event.format.name == name) {
            return Err(EventError::Exists(format!("{group}/{name}")));
        }
        let plans = Plan::all(&definition.args, HEAD_LEN, self.probes.host()).map_err(|sentence| {
            EventError::Definition(DefError::new(typed, line::span_of_arguments(&definition), sentence))
        })?;
        table.last_number += 1;
        let is_return = definition.is_return();
        let text = line::text(&definition, &group, &name);
        let format = Arc::new(Format { number: table.last_number, group, name, plans, is_return });
        let probe = self.probe(place, &definition, &format);
        let probe = self.probes.register(probe).map_err(EventError::Register)?;
        table.events.push(Event { format, text, probe });
        Ok(())
    }

    /// The probe of a definition, disabled.
    fn probe(
        &'static self,
        place: Place,
        definition: &Definition,
        format: &Arc<Format>,
    ) -> AnyProbe<H::Arch> {
        let format = format.clone();
        let Kind::Return { max_active } = definition.kind else {
            let hit = Kprobe::at(place).pre(move |hit| {
                let scene =
                    Scene { regs: hit.regs(), memory: hit.memory(), entry: None, value: None, comm: &[] };
                self.record(&format, hit.pc(), 0, scene);
            });
            return hit.disabled().into();
        };
        let most = max_active.map_or(0, |calls| calls as i32);
        let exit = Kretprobe::at(place);
        if format.plans.iter().any(Plan::is_of_entry) {
            let exit = exit.max_active(most).entry(|call| {
                let mut arguments: Entry = [None; MAX_ARGUMENT];
                for (index, argument) in arguments.iter_mut().enumerate() {
                    *argument = call.argument(index);
                }
                Some(arguments)
            });
            let exit = exit.exit(move |ret, arguments| {
                let scene = Scene {
                    regs: ret.regs(),
                    memory: ret.memory(),
                    entry: Some(&arguments),
                    value: Some(ret.value()),
                    comm: &[],
                };
                self.record(&format, ret.pc(), ret.return_address().as_usize(), scene);
            });
            return exit.disabled().into();
        }
        let exit = exit.max_active(most).exit(move |ret, ()| {
            let scene = Scene {
                regs: ret.regs(),
                memory: ret.memory(),
                entry: None,
                value: Some(ret.value()),
                comm: &[],
            };
            self.record(&format, ret.pc(), ret.return_address().as_usize(), scene);
        });
        exit.disabled().into()
    }

    /// Writes the record of a hit. In a hit; a function of its own, so that the hit path's check finds it.
    #[inline(never)]
    fn record(&self, format: &Format, place: CodeAddr, returns_to: usize, scene: Scene<'_, H::Arch>) {
        let Some(mut out) = self.trace.begin() else { return };
        let comm = self.stamps.comm();
        for word in [format.number, self.stamps.cpu(), self.stamps.task()] {
            out.put(&word.to_ne_bytes());
        }
        out.put(&self.stamps.now_ns().to_ne_bytes());
        out.put(&comm);
        for word in [place.as_usize(), returns_to] {
            out.put(&word.to_ne_bytes());
        }
        let comm = comm.split(|&byte| byte == 0).next().unwrap_or_default();
        let scene = Scene { comm, ..scene };
        format.plans.iter().for_each(|plan| plan.put(&scene, &mut out));
    }

    fn remove(&self, table: &mut Table<H>, line: &str, name: &str) -> Result<(), EventError> {
        if name.is_empty() {
            let sentence = "an event's name is missing: `-:[GROUP/]EVENT`";
            return Err(EventError::Definition(DefError::new(line, (0, line.len()), sentence)));
        }
        if self.remove_if(table, |format| format.is_called(name)) {
            return Ok(());
        }
        Err(EventError::Unknown(name.to_owned()))
    }

    /// Removes events; whether there were any.
    fn remove_if(&self, table: &mut Table<H>, is_meant: impl Fn(&Format) -> bool) -> bool {
        let (gone, kept): (Vec<_>, Vec<_>) =
            core::mem::take(&mut table.events).into_iter().partition(|event| is_meant(&event.format));
        table.events = kept;
        let is_any = !gone.is_empty();
        for event in gone {
            // No hit writes a record of it once the probe has been unregistered.
            drop(event.probe);
            table.removed.push((event.format, self.trace.written()));
        }
        is_any
    }

    fn show_each(
        &self,
        out: &mut dyn Write,
        mut show: impl FnMut(&Event<H>, &mut dyn Write) -> fmt::Result,
    ) -> fmt::Result {
        let shown = self.with_table(|table| {
            let mut text = String::new();
            table.events.iter().try_for_each(|event| show(event, &mut text)).map(|()| text)
        });
        // With no lock held: who writes may wait.
        out.write_str(&shown.map_err(|_| fmt::Error)??)
    }

    /// Calls `work` with the table, when nobody else has it.
    fn with_table<T>(&self, work: impl FnOnce(&mut Table<H>) -> T) -> Result<T, EventError> {
        if self.probes.is_in_handler() {
            return Err(EventError::InHandler);
        }
        while self.is_locked.swap(true, Ordering::Acquire) {
            self.probes.host().relax();
        }
        // SAFETY: whoever has set the flag is alone until it is cleared, below.
        let result = work(unsafe { &mut *self.table.get() });
        self.is_locked.store(false, Ordering::Release);
        Ok(result)
    }
}

impl Format {
    /// Whether `name` is `EVENT`, `GROUP/EVENT`, `GROUP/` or nothing.
    fn is_called(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => name.is_empty() || name == self.name,
            Some((group, "")) => group == self.group,
            Some((group, name)) => group == self.group && name == self.name,
        }
    }
}
