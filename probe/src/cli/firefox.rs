//! The Firefox Profiler's format, by its own crate.
//!
//! A sample for each change of a thread's stack, which weighs the microseconds up to the next one, so that
//! the call tree adds up to the time that was measured; and a marker for each call, with its arguments.

use super::args::Choice;
use super::calls::{Call, Part, Visitor, Walked};
use super::failure::Failure;
use super::foreign::Foreign;
use super::saved;
use super::value;
use super::walk;
use crate::file::Event;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval,
    StackHandle, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

/// The profile is made in memory, and nobody looks at more of them.
const MOST_CALLS: usize = if cfg!(target_pointer_width = "64") { 1 << 20 } else { 1 << 17 };

/// A thread of the profile.
struct Thread {
    handle: ThreadHandle,
    /// The calls that have been entered.
    open: Vec<Option<StackHandle>>,
    /// Since when the stack is as it is, and what of that is less than a microsecond.
    since_ns: u64,
    rest_ns: u64,
    /// When the latest call ended.
    end_ns: u64,
}

/// Makes a profile.
struct Maker {
    profile: Profile,
    category: CategoryHandle,
    processes: HashMap<u32, ProcessHandle>,
    threads: Vec<Option<Thread>>,
    functions: Vec<StringHandle>,
    calls: usize,
}

/// A call as a marker.
struct Shown {
    name: StringHandle,
    args: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for Shown {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Call";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.args}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.name}({marker.data.args})");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "args",
        label: "Arguments",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _field: u32) -> StringHandle {
        self.args
    }

    fn number_field_value(&self, _field: u32) -> f64 {
        0.0
    }
}

/// Writes a record as a profile; the inner error is of `to`.
///
/// # Errors
/// The record cannot be read.
pub(super) fn write(choice: &Choice, to: impl Write) -> Result<io::Result<Walked>, Failure> {
    let origin = saved::origin(choice)?;
    let program = Foreign::new(origin.program).shown().to_string();
    let began = ReferenceTimestamp::from(UNIX_EPOCH + Duration::from_nanos(origin.began_ns));
    let mut profile = Profile::new(&program, began, SamplingInterval::from_nanos(1000));
    profile.set_symbolicated(true);
    let category = profile.add_category("Calls", CategoryColor::Blue);
    let (processes, threads, functions) = Default::default();
    let mut maker = Maker { profile, category, processes, threads, functions, calls: 0 };
    let walked = walk::walk(choice, &Part::default(), &mut maker)?;
    if maker.calls > MOST_CALLS {
        eprintln!(
            "probe: only the first {MOST_CALLS} calls of {} are in there; choose some by --since, --task, --event",
            maker.calls
        );
    }
    for thread in maker.threads.iter().flatten() {
        maker.profile.set_thread_end_time(thread.handle, time(thread.end_ns));
    }
    let written = serde_json::to_writer(to, &maker.profile).map_err(io::Error::from);
    Ok(walked.and_then(|walked| written.map(|()| walked)))
}

fn time(ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(ns)
}

impl Maker {
    fn thread(&mut self, call: &Call<'_>) -> &mut Thread {
        if self.threads.len() <= call.thread {
            self.threads.resize_with(call.thread + 1, || None);
        }
        let Self { profile, processes, threads, .. } = self;
        threads[call.thread].get_or_insert_with(|| {
            let name = Foreign::new(call.comm).shown().to_string();
            let process =
                *processes.entry(call.pid).or_insert_with(|| profile.add_process(&name, call.pid, time(0)));
            let handle = profile.add_thread(process, call.tid, time(call.start_ns), call.pid == call.tid);
            profile.set_thread_name(handle, &name);
            Thread { handle, open: Vec::new(), since_ns: call.start_ns, rest_ns: 0, end_ns: 0 }
        })
    }

    /// A thread's stack changes: what it has been since the last time is a sample.
    fn change(&mut self, call: &Call<'_>, now_ns: u64) {
        let is_full = self.calls > MOST_CALLS;
        let thread = self.thread(call);
        let (handle, stack, since_ns) =
            (thread.handle, thread.open.last().copied().flatten(), thread.since_ns);
        let all_ns = now_ns.saturating_sub(since_ns) + thread.rest_ns;
        thread.since_ns = now_ns.max(since_ns);
        let micros = i32::try_from(all_ns / 1000).unwrap_or(i32::MAX);
        if stack.is_none() || is_full {
            // Between two calls nothing is known.
            thread.rest_ns = 0;
            return;
        }
        thread.rest_ns = all_ns % 1000;
        let delta = CpuDelta::from_nanos(now_ns.saturating_sub(since_ns));
        self.profile.add_sample(handle, time(since_ns), stack, delta, micros);
    }

    /// Whether there is room for another call.
    fn counts(&mut self) -> bool {
        self.calls += 1;
        self.calls <= MOST_CALLS
    }

    fn marker(&mut self, call: &Call<'_>) {
        let args = self.profile.intern_string(&String::from_utf8_lossy(call.kept));
        let shown = Shown { name: self.functions[call.function], args, category: self.category };
        let timing = match call.took_ns {
            None => MarkerTiming::Instant(time(call.start_ns)),
            Some(took_ns) => {
                MarkerTiming::Interval(time(call.start_ns), time(call.start_ns.saturating_add(took_ns)))
            }
        };
        let handle = self.thread(call).handle;
        self.profile.add_marker(handle, timing, shown);
    }
}

impl Visitor for Maker {
    fn keep(&mut self, event: &Event<'_>) -> Box<[u8]> {
        value::kept_with_end(event)
    }

    fn function(&mut self, event: &Event<'_>) {
        let name = Foreign::new(saved::function(event)).shown().to_string();
        self.functions.push(self.profile.intern_string(&name));
    }

    fn enter(&mut self, call: Call<'_>) -> io::Result<()> {
        let is_shown = self.counts();
        self.change(&call, call.start_ns);
        if is_shown {
            self.marker(&call);
        }
        let (function, category) = (self.functions[call.function], self.category);
        let thread = self.thread(&call);
        let (handle, outer) = (thread.handle, thread.open.last().copied().flatten());
        let stack = is_shown.then(|| {
            let frame = FrameInfo {
                frame: Frame::Label(function),
                category_pair: category.into(),
                flags: FrameFlags::empty(),
            };
            let frame = self.profile.intern_frame(handle, frame);
            self.profile.intern_stack(handle, outer, frame)
        });
        // What finds no room is its caller's.
        self.thread(&call).open.push(stack.or(outer));
        Ok(())
    }

    fn leave(&mut self, call: Call<'_>) -> io::Result<()> {
        let end_ns = call.start_ns.saturating_add(call.took_ns.unwrap_or(0));
        self.change(&call, end_ns);
        let thread = self.thread(&call);
        thread.open.pop();
        thread.end_ns = thread.end_ns.max(end_ns);
        Ok(())
    }

    fn leaf(&mut self, call: Call<'_>) -> io::Result<()> {
        if call.took_ns.is_some() {
            self.enter(call)?;
            return self.leave(call);
        }
        if self.counts() {
            self.marker(&call);
        }
        Ok(())
    }
}
