//! The command line.
//!
//! Documentation of arguments is what `--help` shows: brackets in it are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use super::processes::{self, Target};
use crate::def::MAX_STACK;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub(super) use super::views::{
    Choice, Color, DEFAULT_RECORD, Export, ExportFormat, Format, Graph, Print, Report, Sort,
};

/// See what a running program does: kprobe-style probes in any Linux process, without root.
#[derive(Debug, Parser)]
#[command(name = "probe", version, disable_help_subcommand = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Start a program with probes in it and print what they see.
    Trace(Box<Trace>),
    /// Start a program with probes in it and keep what they see in a file, to be looked at later.
    Record(Box<Record>),
    /// Print what is in a file of `probe record`, as `probe trace` would have.
    Print(Print),
    /// Show a file of `probe record` by function: calls, time in all and in the function itself.
    Report(Report),
    /// Show the calls in a file of `probe record` as a tree: who called whom, and how long that took.
    Graph(Graph),
    /// Write a file of `probe record` for other programs: flame graphs, Perfetto, Firefox Profiler, Chrome.
    Export(Export),
    /// Show what can be probed in a program and the libraries it loads.
    List(List),
    /// Say how a place would be probed, or why not, instruction by instruction.
    Explain(Explain),
    /// Write the manual pages and shell completions of this command below a folder.
    InstallDocs(InstallDocs),
}

/// The grammar of DEF, for `--help` and the manual.
pub(super) const GRAMMAR: &str = "\
DEF is what kprobe_events and uprobe_events take:
  p[:NAME] [OBJECT:]SYMBOL[+OFFSET] [FETCHARG]…   at each execution
  r[N][:NAME] [OBJECT:]SYMBOL [FETCHARG]…         at each return
  p[:NAME] [OBJECT:]SYMBOL%return [FETCHARG]…     the same
  p[:NAME] OBJECT:0xFILEOFFSET [FETCHARG]…        by its place in the file
OBJECT    a path, a file name, or its beginning up to a dot: libc;
          or a pattern for several: lib*.so*:mem*
SYMBOL    as in the symbol table, or demangled, with or without scopes
          and parameters; or a pattern: libc:mem*
FETCHARG  [NAME=]FETCH[:TYPE]
FETCH     $arg1 $arg2 … $retval $stack $stackN $comm %REGISTER
          @SYMBOL[+-OFFSET] @ADDRESS \\NUMBER \\\"TEXT\" +-[u]OFFSET(FETCH)
TYPE      u8 u16 u32 u64 s8 … s64 x8 … x64 char string ustring symbol
          symstr bWIDTH@OFFSET/CONTAINER, and arrays of these: x32[4]";

/// What people begin with, for `--help` and the manual.
pub(super) const EXAMPLES: &str = "  probe trace -p 'p libc:opendir path=$arg1:string' -- ls -R /usr
  probe trace -p 'r libc:malloc $arg1:u64' --no-events -- python3 -c ''
  probe trace -p 'r libc:open* path=$arg1:string' --if '$retval < 0' -- ls
  probe trace -p 'p libc:malloc size=$arg1:u64' --hist size -- ls
  probe trace -p 'r libc:write fd=$arg1:s32' --by fd --sum '$retval' -- ls
  probe trace -p 'r libc:open path=$arg1:string' --hist '$took' --by path -- ls
  probe trace -f -p 'p libc:write $arg1:s32' -o out.txt -- sh -c 'ls|sort'";

#[derive(Debug, Args)]
#[command(after_help = format!("{GRAMMAR}\n\nExamples:\n{EXAMPLES}\n\nOutput, exit status and environment: man probe-trace"))]
pub(super) struct Trace {
    /// A probe definition; may be given many times.
    ///
    /// Hits are seen from the first initialiser of the program's own objects on, to the last destructor. What
    /// the dynamic linker itself calls before that, and the resolvers of indirect functions, run before the
    /// probes are there.
    #[arg(
        short = 'p',
        long = "probe",
        value_name = "DEF",
        required_unless_present = "to",
        allow_hyphen_values = true
    )]
    pub(super) probes: Vec<String>,
    /// Where a time between two places begins, in the same thread, and where it ends: at --to.
    ///
    /// Each hit of --from begins anew; one of --to that comes first, or again, ends nothing. An event is of
    /// --to, with the time as TOOK, which is $took to what stands behind it (--if, --hist, --by …). Both are
    /// definitions as of --probe, and may be given many times: any --from begins, any --to ends.
    #[arg(long, value_name = "DEF", requires = "to", allow_hyphen_values = true)]
    pub(super) from: Vec<String>,
    /// Where it ends; see --from.
    #[arg(long, value_name = "DEF", requires = "from", allow_hyphen_values = true)]
    pub(super) to: Vec<String>,
    /// Only hits for which this holds, such as 'size >= 1M && $took > 20us'.
    ///
    /// It belongs to the probe before it, or, before the first one, to all. Of several all have to hold. It
    /// is run in the hit; what does not pass costs no event. See CONDITIONS in probe-trace(1).
    #[arg(long = "if", value_name = "EXPRESSION", allow_hyphen_values = true)]
    pub(super) conditions: Vec<String>,
    /// Count the sizes of this number, such as '$took' or size, instead of showing each hit.
    ///
    /// This and the next three belong to probes as --if does, and count the hits that pass it, in the hit:
    /// exactly, also where the program is killed. See ANSWERS in probe-trace(1).
    #[arg(long = "hist", value_name = "ARG", allow_hyphen_values = true)]
    pub(super) histograms: Vec<String>,
    /// Show with each hit who has called: the stack, up to this many frames [default: 64; at most 128].
    ///
    /// It belongs to the probe before it, or, before the first one, to all. The program needs no frame
    /// pointers: the stack is found in the hit, by the information that compilers write for exceptions.
    /// Functions that were inlined are shown where the program has debugging information.
    #[arg(long, value_name = "DEPTH", value_parser = stack_depth, num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_STACK)]
    pub(super) stack: Vec<usize>,
    /// Count hits by this: a number, a text such as a path or '$comm', or '$caller'; or by two of them.
    #[arg(long = "by", value_name = "ARG[,ARG]", allow_hyphen_values = true)]
    pub(super) by: Vec<String>,
    /// The same as --by; comm is the thread's name, stack who has called.
    #[arg(long = "count-by", value_name = "stack|comm|ARG", allow_hyphen_values = true)]
    pub(super) count_by: Vec<String>,
    /// Add up this number; with --by for each key.
    #[arg(long = "sum", value_name = "ARG", allow_hyphen_values = true)]
    pub(super) sums: Vec<String>,
    /// How many keys of --by are shown, those with the most first [default: 20; in JSON all].
    #[arg(long, value_name = "N")]
    pub(super) top: Option<usize>,
    /// Show what has been counted since the last time, each time this much time has passed (such as 1s).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) every: Option<Duration>,
    /// Probes and what belongs to them, as they were typed.
    #[arg(skip)]
    pub(super) clauses: Vec<Clause>,
    /// Whether events are kept in a file: `probe record`.
    #[arg(skip)]
    pub(super) is_record: bool,
    /// Follow forked children, too, and the programs that they execute.
    ///
    /// A program that the traced process executes in its own place is always followed. With -f, definitions
    /// whose object is not loaded in a program are left out there.
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Write events and summary there instead of to standard error; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// How events and summary are written (json: one object per line).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// Trace the process of this number, or all of this name, which run already, and start no program.
    ///
    /// May be given many times. A name is the kernel's (comm), or that of the program's file. When the trace
    /// ends (Ctrl-C, --duration), the processes go on as they were. On x86-64; not Go. See
    /// ATTACHING in probe-trace(1).
    #[arg(long = "pid", value_name = "PID|NAME", value_parser = processes::target, conflicts_with_all = ["program", "runner"])]
    pub(super) pids: Vec<Target>,
    /// Count and time only, without an event per hit.
    #[arg(long)]
    pub(super) no_events: bool,
    /// Plant breakpoints only, which trap, where a jump to the probe would do.
    ///
    /// For programs that look at their own code, or run with stacks of a few kilobytes: after a jump, the
    /// probe runs on the program's stack.
    #[arg(long)]
    pub(super) no_jumps: bool,
    /// End the program with SIGTERM, or the trace of --pid, after this time (such as 10, 1.5s, 200ms, 2m).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// Buffer per thread (such as 512K, 16M); see --on-full.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_BUFFER, value_parser = size)]
    pub(super) buffer: usize,
    /// What a thread does whose buffer is full.
    ///
    /// Its hits and durations are counted in any case. As long as the command reads, a thread that waits
    /// loses no event; the program's timing then depends on how fast events can be written.
    #[arg(long, value_enum, default_value_t = OnFull::Drop, value_name = "WHAT")]
    pub(super) on_full: OnFull,
    /// Start the program, and what it executes, through this command: an emulator that takes QEMU's options
    /// -0 and -E [default: what the variable PROBE_RUNNER holds].
    ///
    /// For a `probe` of another architecture that itself runs under the emulator, where the kernel does not
    /// start one by itself (binfmt_misc): 'qemu-aarch64 -L /usr/aarch64-linux-gnu'.
    #[arg(long, value_name = "COMMAND")]
    pub(super) runner: Option<OsString>,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(super) color: Color,
    /// The program and its arguments.
    #[arg(
        required_unless_present = "pids",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub(super) program: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = format!("{GRAMMAR}\n\nExamples:\n{RECORD_EXAMPLES}\n\nConditions, attaching, exit status: man probe-trace"))]
pub(super) struct Record {
    /// A probe definition; may be given many times.
    #[arg(
        short = 'p',
        long = "probe",
        value_name = "DEF",
        required_unless_present = "to",
        allow_hyphen_values = true
    )]
    pub(super) probes: Vec<String>,
    /// Where a time between two places begins, in the same thread, and where it ends: at --to.
    #[arg(long, value_name = "DEF", requires = "to", allow_hyphen_values = true)]
    pub(super) from: Vec<String>,
    /// Where it ends; see --from.
    #[arg(long, value_name = "DEF", requires = "from", allow_hyphen_values = true)]
    pub(super) to: Vec<String>,
    /// Only hits for which this holds, as for probe trace.
    #[arg(long = "if", value_name = "EXPRESSION", allow_hyphen_values = true)]
    pub(super) conditions: Vec<String>,
    /// Keep with each hit who has called: the stack, up to this many frames [default: 64; at most 128].
    #[arg(long, value_name = "DEPTH", value_parser = stack_depth, num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_STACK)]
    pub(super) stack: Vec<usize>,
    /// Probes and what belongs to them, as they were typed.
    #[arg(skip)]
    pub(super) clauses: Vec<Clause>,
    /// Follow forked children, too, and the programs that they execute.
    #[arg(short, long)]
    pub(super) follow: bool,
    /// The file; what was in it is replaced.
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_RECORD)]
    pub(super) output: PathBuf,
    /// Record the process of this number, or all of this name, which run already, and start no program.
    #[arg(long = "pid", value_name = "PID|NAME", value_parser = processes::target, conflicts_with_all = ["program", "runner"])]
    pub(super) pids: Vec<Target>,
    /// Plant breakpoints only, which trap, where a jump to the probe would do.
    #[arg(long)]
    pub(super) no_jumps: bool,
    /// End the program with SIGTERM, or the record of --pid, after this time (such as 10, 1.5s, 200ms, 2m).
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// Buffer per thread (such as 512K, 16M); see --on-full.
    #[arg(long, value_name = "SIZE", default_value = DEFAULT_BUFFER, value_parser = size)]
    pub(super) buffer: usize,
    /// What a thread does whose buffer is full: it waits, and nothing is lost, or drops the event and counts.
    #[arg(long, visible_alias = "full", value_enum, default_value_t = OnFull::Wait, value_name = "WHAT")]
    pub(super) on_full: OnFull,
    /// Start the program, and what it executes, through this command: an emulator, as for probe trace.
    #[arg(long, value_name = "COMMAND")]
    pub(super) runner: Option<OsString>,
    /// The program and its arguments.
    #[arg(
        required_unless_present = "pids",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub(super) program: Vec<OsString>,
}

impl Record {
    /// The same as a trace whose events are kept.
    pub(super) fn into_trace(self) -> Trace {
        let Self { probes, conditions, stack, clauses, follow, output, pids, no_jumps, duration, .. } = self;
        let Self { buffer, on_full, runner, program, .. } = self;
        Trace {
            from: self.from,
            to: self.to,
            probes,
            conditions,
            stack,
            clauses,
            follow,
            pids,
            no_jumps,
            duration,
            buffer,
            on_full,
            runner,
            program,
            is_record: true,
            output: Some(output),
            format: Format::Text,
            color: Color::Never,
            histograms: Vec::new(),
            by: Vec::new(),
            count_by: Vec::new(),
            sums: Vec::new(),
            top: None,
            every: None,
            no_events: false,
        }
    }
}

/// What people begin with, for `--help` and the manual.
pub(super) const RECORD_EXAMPLES: &str = "  probe record -p 'r libc:malloc size=$arg1:u64' -- ls -R /usr
  probe print
  probe record -f -o make.record -p 'r libc:open* path=$arg1:string' -- make -j2
  probe print make.record --event 'open*' --task cc1 --since 1.5s";

/// A probe, or an option that belongs to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Clause {
    /// `-p DEF`.
    Probe(String),
    /// `--from DEF`.
    From(String),
    /// `--to DEF`.
    To(String),
    /// `--if EXPRESSION`.
    If(String),
    /// `--hist ARG`.
    Histogram(String),
    /// `--sum ARG`.
    Sum(String),
    /// `--by ARG[,ARG]`.
    By(String),
    /// `--stack[=DEPTH]`.
    Stack(usize),
}

/// Deeper than most; a hit costs what there is.
const DEFAULT_STACK: &str = "64";

/// 64-bit machines have address space for large rings.
const DEFAULT_BUFFER: &str = if cfg!(target_pointer_width = "64") { "4M" } else { "512K" };

#[derive(Debug, Args)]
pub(super) struct List {
    /// A program (looked up in PATH) or a shared object, or OBJECT:PATTERN for functions of one object alone.
    pub(super) program: OsString,
    /// Which functions, as [OBJECT:]PATTERN, in the program and all libraries it loads [default: the
    /// program's own functions and those that it imports].
    pub(super) glob: Option<String>,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(super) color: Color,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// OBJECT:SYMBOL[+OFFSET]: a whole function, or one instruction of it.
    #[arg(required_unless_present = "all")]
    pub(super) place: Option<String>,
    /// Statistics over all instructions of all functions of OBJECT, by method and by reason.
    #[arg(long, value_name = "OBJECT", conflicts_with = "place")]
    pub(super) all: Option<OsString>,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(super) color: Color,
}

#[derive(Debug, Args)]
pub(super) struct InstallDocs {
    /// Where share/man, share/bash-completion, share/zsh and share/fish are, or are to be [default:
    /// ~/.local].
    pub(super) prefix: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnFull {
    /// Drops the event and counts it: tracing never stops a program, as in the kernel's tracers.
    Drop,
    /// Waits until there is room.
    Wait,
}

/// Parses this process' arguments.
pub(super) fn parse() -> Result<Cli, clap::Error> {
    parse_from(std::env::args_os())
}

fn parse_from(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(words)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    match (&mut cli.command, matches.subcommand()) {
        (Command::Trace(trace), Some((_, matches))) => trace.clauses = clauses(matches),
        (Command::Record(record), Some((_, matches))) => record.clauses = clauses(matches),
        _ => {}
    }
    Ok(cli)
}

/// Probes and their options in the order of the command line.
fn clauses(matches: &ArgMatches) -> Vec<Clause> {
    let mut all: Vec<(usize, Clause)> = Vec::new();
    let mut add = |name: &str, clause: fn(String) -> Clause| {
        // Not every command has all of them.
        let Ok(values) = matches.try_get_many::<String>(name) else { return };
        let values = values.into_iter().flatten();
        let places = matches.indices_of(name).into_iter().flatten();
        all.extend(places.zip(values).map(|(at, value)| (at, clause(value.clone()))));
    };
    add("probes", Clause::Probe);
    add("from", Clause::From);
    add("to", Clause::To);
    add("conditions", Clause::If);
    add("histograms", Clause::Histogram);
    add("sums", Clause::Sum);
    add("by", Clause::By);
    add("count_by", |text| Clause::By(if text == "comm" { "$comm".to_owned() } else { text }));
    if let Ok(Some(depths)) = matches.try_get_many::<usize>("stack") {
        let places = matches.indices_of("stack").into_iter().flatten();
        all.extend(places.zip(depths).map(|(at, depth)| (at, Clause::Stack(*depth))));
    }
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, clause)| clause).collect()
}

/// How many frames of a stack are wanted.
fn stack_depth(text: &str) -> Result<usize, String> {
    let depth = text.parse().ok().filter(|depth| (1..=MAX_STACK).contains(depth));
    depth.ok_or_else(|| format!("a stack has 1 to {MAX_STACK} frames"))
}

/// `10`, `1.5s`, `200ms`, `2m`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        unit => return Err(format!("`{unit}` is not a unit of time; use ms, s, m or h")),
    };
    let number: f64 = digits.parse().map_err(|_| "a time is a number with ms, s, m or h".to_owned())?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "a time is more than nothing and less than an age".to_owned())
}

/// `4096`, `512K`, `16M`, `1G`.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: usize = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "m" | "M" | "MiB" => 1 << 20,
        "g" | "G" | "GiB" => 1 << 30,
        unit => return Err(format!("`{unit}` is not a unit of size; use K, M or G")),
    };
    let number: usize = digits.parse().map_err(|_| "a size is a number with K, M or G".to_owned())?;
    let size = number.checked_mul(unit).filter(|size| (1 << 12..=1 << 30).contains(size));
    size.ok_or_else(|| "a buffer has 4K to 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[rstest]
    #[case("10", Some(10_000))]
    #[case("1.5s", Some(1_500))]
    #[case("200ms", Some(200))]
    #[case("2m", Some(120_000))]
    #[case("0", None)]
    #[case("-1", None)]
    #[case("5y", None)]
    #[case("", None)]
    #[case("NaN", None)]
    fn durations(#[case] text: &str, #[case] ms: Option<u64>) {
        assert_eq!(duration(text).ok(), ms.map(Duration::from_millis));
    }

    #[rstest]
    #[case("4096", Some(4096))]
    #[case("512K", Some(512 << 10))]
    #[case("16M", Some(16 << 20))]
    #[case("1", None)]
    #[case("99999999999G", None)]
    #[case("4X", None)]
    fn sizes(#[case] text: &str, #[case] bytes: Option<usize>) {
        assert_eq!(size(text).ok(), bytes);
    }

    #[test]
    fn probes_and_their_options_keep_their_order() {
        let words = [
            "probe", "trace", "--if=a", "-p", "p f", "--if", "-1 < b", "-p", "p g", "--if", "c", "ls", "--if",
        ];
        let Command::Trace(trace) = parse_from(words).unwrap().command else { panic!("not trace") };
        let condition = |text: &str| Clause::If(text.into());
        let probe = |text: &str| Clause::Probe(text.into());
        let want = [condition("a"), probe("p f"), condition("-1 < b"), probe("p g"), condition("c")];
        assert_eq!(trace.clauses, want);
    }

    #[test]
    fn everything_after_the_program_belongs_to_it() {
        let cli = Cli::try_parse_from(["probe", "trace", "-p", "p f", "ls", "-R", "--color", "x"]).unwrap();
        let Command::Trace(trace) = cli.command else { panic!("not trace") };
        assert_eq!(trace.program, ["ls", "-R", "--color", "x"]);
    }
}
