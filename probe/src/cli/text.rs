//! Events and summary as text.

use super::answers::Answer;
use super::consumer::{Shown, Sink};
use super::style::{Role, Style, time};
use super::summary::{self, Summary};
use super::value::{self, Faults};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

/// The least width of the column of names.
const NAME_WIDTH: usize = 14;
/// The width of `name-pid/tid`.
const TASK_WIDTH: usize = 20;

/// Writes a line per event.
pub(super) struct Text<W: Write + Send> {
    to: W,
    style: Style,
    line: String,
    has_head: bool,
    name_width: usize,
    /// How many keys of a table are shown.
    top: usize,
}

impl<W: Write + Send> Text<W> {
    /// A writer to `to`; `widest` is the longest name that is expected.
    pub(super) fn new(to: W, style: Style, widest: usize, top: usize) -> Self {
        let name_width = widest.clamp(NAME_WIDTH, 40);
        Self { to, style, line: String::new(), has_head: false, name_width, top }
    }

    fn head(&mut self) -> io::Result<()> {
        self.has_head = true;
        let head = format!(
            "{:>12}  {:<TASK_WIDTH$}  {:>8}  {:<width$}  ARGUMENTS",
            "SECONDS",
            "TASK",
            "TOOK",
            "EVENT",
            width = self.name_width
        );
        writeln!(self.to, "{}", self.style.paint(Role::Head, head))
    }
}

impl<W: Write + Send> Text<W> {
    /// The frames, a line each, below the event.
    fn stack(&mut self, event: &Shown<'_>) {
        const INDENT: &str = "                ";
        let Some((frames, end)) = value::stack(event.args, event.values, event.symbols) else { return };
        for function in frames.iter().flat_map(|frame| &frame.functions) {
            let _ = writeln!(self.line, "{INDENT}{}", function.shown());
        }
        if let Some(mark) = end.mark() {
            let _ = writeln!(self.line, "{INDENT}{}", self.style.paint(Role::Dim, mark));
        }
    }
}

impl<W: Write + Send> Sink for Text<W> {
    fn event(&mut self, event: &Shown<'_>) -> io::Result<()> {
        if !self.has_head {
            self.head()?;
        }
        let seconds = format!("{:>5}.{:06}", event.time_ns / 1_000_000_000, event.time_ns / 1000 % 1_000_000);
        let mut task = format!("{}-{}", event.comm.shown(), event.pid);
        if event.tid != event.pid {
            let _ = write!(task, "/{}", event.tid);
        }
        let left = event.left_ns.map(|_| "left".to_owned());
        let took = event.duration_ns.map(time).or(left).unwrap_or_default();
        self.line.clear();
        let _ = write!(
            self.line,
            "{}  {task:<TASK_WIDTH$}  {took:>8}  {} ",
            self.style.paint(Role::Dim, seconds),
            self.style.paint(Role::Name, format!("{:<width$}", event.name.shown(), width = self.name_width)),
        );
        let before = self.line.len();
        let faults = if event.left_ns.is_some() { Faults::LeftOut } else { Faults::Shown };
        value::text(&mut self.line, event.args, event.values, event.symbols, faults);
        if self.line.len() == before {
            self.line.truncate(self.line.trim_end().len());
        }
        self.line.push('\n');
        self.stack(event);
        self.to.write_all(self.line.as_bytes())
    }

    fn answers(&mut self, time_ns: u64, per: Duration, answers: &[Answer]) -> io::Result<()> {
        let mut text = format!("\n{}\n", self.style.paint(Role::Dim, format!("after {}", time(time_ns))));
        answers.iter().for_each(|answer| answer.text(&mut text, self.style, self.top, Some(per)));
        self.to.write_all(text.as_bytes())
    }

    fn summary(&mut self, summary: &Summary) -> io::Result<()> {
        self.to.write_all(summary::text(summary, self.style, self.top).as_bytes())?;
        self.to.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
