//! The contents of the manual pages beyond the options: grammar, output, exit status, environment.

use super::args::{EXAMPLES, GRAMMAR, RECORD_EXAMPLES};
use super::status::Status;

/// A piece of a section.
pub(super) enum Piece {
    /// A paragraph.
    Text(&'static str),
    /// A word and what it means.
    Item(String, &'static str),
    /// Lines as they are.
    Lines(&'static str),
}

use Piece::{Lines, Text};

/// A section: its title and what it says.
pub(super) type Section = (&'static str, Vec<Piece>);

fn items(items: &[(&str, &'static str)]) -> Vec<Piece> {
    items.iter().map(|(word, meaning)| Piece::Item((*word).to_owned(), meaning)).collect()
}

/// The sections of the page of the command or subcommand called `name`.
pub(super) fn sections(name: &str) -> Vec<Section> {
    match name {
        "probe" => vec![exit_status(), environment(), see_also()],
        "probe-trace" => vec![
            ("PROBE DEFINITIONS", definitions()),
            ("CONDITIONS", conditions()),
            ("ANSWERS", answers()),
            ("EVENTS", events()),
            ("SUMMARY", summary()),
            ("JSON", json()),
            ("HOW TRACING ENDS", ending()),
            ("ATTACHING", attaching()),
            exit_status(),
            environment(),
            ("NOTES", notes()),
            ("EXAMPLES", vec![Lines(EXAMPLES)]),
            see_also(),
        ],
        "probe-explain" => vec![("VERDICTS", verdicts()), exit_status(), see_also()],
        "probe-install-docs" => vec![("FILES", installed()), see_also()],
        "probe-list" => vec![exit_status(), see_also()],
        name => of_records(name),
    }
}

/// Those of what deals with records.
fn of_records(name: &str) -> Vec<Section> {
    match name {
        "probe-record" => vec![
            ("PROBE DEFINITIONS", definitions()),
            ("CONDITIONS", conditions()),
            ("THE RECORD", the_record()),
            ("ATTACHING", attaching()),
            exit_status(),
            environment(),
            ("NOTES", notes()),
            ("EXAMPLES", vec![Lines(RECORD_EXAMPLES)]),
            see_also(),
        ],
        "probe-print" => vec![
            ("OUTPUT", vec![Text("Events and summary are those of probe-trace(1), in text and in JSON.")]),
            ("THE RECORD", the_record()),
            exit_status(),
            see_also(),
        ],
        "probe-graph" => vec![("OUTPUT", graph()), ("THE RECORD", the_record()), exit_status(), see_also()],
        "probe-export" => vec![
            (
                "FORMATS",
                vec![Text(
                    "folded: NAME;FUNCTION;…;FUNCTION NANOSECONDS for each thread's name and way, with the time in the last function itself; of return probes alone. Of a record with stacks (--stack) instead NAME;FUNCTION;…;FUNCTION HITS for each way there, or what --weight says; […] stands for callers that are not known. svg: a flame graph of these. perfetto: a trace of Perfetto, with a slice for each return in its thread's track, an instant for each hit, and arguments. firefox: the Firefox Profiler's processed profile, with a sample for each change of a thread's stack, which weighs microseconds, and a marker for each call with its arguments; it has the first 1048576 calls. chrome: an object of the trace event format, with a complete event for each return, an instant one for each hit, and arguments.",
                )],
            ),
            exit_status(),
            see_also(),
        ],
        "probe-report" => vec![
            ("COLUMNS", columns()),
            (
                "JSON",
                vec![Text(
                    "An object: type (\"report\"), events, lost_events, is_whole (whether the record has its end), and functions, an array with function, by (with --by), calls (that returned), left (those that did not, if there are any), and for return probes total_ns, self_ns, duration_ns with min, median, p99 and max; with --diff also before, the same of the earlier record, or null.",
                )],
            ),
            ("THE RECORD", the_record()),
            exit_status(),
            see_also(),
        ],
        _ => vec![exit_status(), see_also()],
    }
}

fn definitions() -> Vec<Piece> {
    let mut all = vec![
        Lines(GRAMMAR),
        Text(
            "Values mean what they mean in the kernel (Documentation/trace/kprobetrace.rst). All memory is user memory here, so that u and ustring change nothing. N of rN is how many calls may be in flight at the same time. An argument without NAME is called after what it fetches, where the kernel would number it:",
        ),
    ];
    all.extend(items(&[
        ("$argN", "The function's Nth integer argument, from 1, as it was at entry, also for a return probe. Called argN."),
        ("$retval", "What the function returns, for r and %return. Called retval."),
        ("$stack, $stackN", "The stack pointer; the Nth word above it. Called stack, stackN."),
        ("$comm", "The thread's name, a string. Called comm."),
        ("%REGISTER", "A register, called as typed without the %."),
        ("@SYMBOL[+-OFFSET], @ADDRESS", "What lies in memory there. @SYMBOL is called SYMBOL."),
        ("\\NUMBER, \\\"TEXT\"", "The number or the text itself."),
        (
            "+-[u]OFFSET(FETCH)",
            "What lies OFFSET bytes behind (+) or before (-) the address FETCH. This, numbers and texts are called valueN by their position, from 1.",
        ),
        ("u8 … u64, s8 … s64, x8 … x64", "A number: unsigned, signed, hexadecimal. x of the machine's width is the default."),
        ("char", "One byte, as a character."),
        ("string, ustring", "The bytes at the address, up to a NUL or 1024 bytes; a string that was cut ends with … behind its quotes."),
        ("symbol, symstr", "The address as SYMBOL+0xOFFSET; symstr in quotes."),
        (
            "bWIDTH@OFFSET/CONTAINER",
            "WIDTH bits of a word of CONTAINER (8, 16, 32, 64) bits, OFFSET bits above its lowest: b4@0/32 are the lowest four.",
        ),
        ("TYPE[N]", "N of these, one behind the other in memory; of string: N pointers."),
    ]));
    all.push(Text(
        "A name of several functions is refused with a list of how to name each: by its object, by its parameters (in double quotes where there are blanks), or by its place in the file.",
    ));
    all
}

fn conditions() -> Vec<Piece> {
    let mut all = vec![Text(
        "The EXPRESSION of --if is run in the traced thread at each hit. A hit that does not pass is in HITS, and has no event and no time in the summary. An --if belongs to the probe before it; before the first probe it belongs to all. Of several all have to hold. It is made of, from what binds least:",
    )];
    all.extend(items(&[
        ("A || B, A && B", "Either, or both. B is not looked at where A decides. A number that is not 0 is true."),
        (
            "A == B, !=, <, <=, >, >=",
            "Comparisons of numbers as numbers, whatever their types: -1 is below every number without a sign. Texts know == and !=.",
        ),
        ("TEXT ~ \"PATTERN\", !~", "Whether the whole of a text matches a shell-style pattern (* ? [a-z] [!a-z])."),
        ("A | B, A ^ B, A & B, A << B, A >> B", "Bits. They bind more than comparisons: flags & 4 == 4 is (flags & 4) == 4."),
        (
            "A + B, A - B, A * B, A / B, A % B",
            "Numbers of 64 bits, which wrap; signed if one of them is, or for a difference. What is divided by 0 gives 0, and itself as the remainder.",
        ),
        ("!A, -A, (A)", "Not; the number below zero; first of all."),
        ("NAME", "The argument that the definition fetches under that name: a number, or a text if its type is string."),
        (
            "$retval, $argN, each with :TYPE",
            "Also without being fetched. Without a type: as the definition fetches it with one; else $retval is an int or a long, whichever is negative, and $argN has the machine's width and no sign. A value of 32 bits without sign from 2G to 4G needs $retval:u32.",
        ),
        ("$took", "How long the call took, in nanoseconds, for r and %return."),
        ("$pid, $tid, $cpu", "The process, the thread, the processor. $cpu asks the kernel at each hit, and passes nowhere in a program that confines itself by seccomp."),
        ("$comm", "The thread's name, a text. It is asked of the kernel at each hit."),
        ("12, 0x1f, 017, 'a'", "Numbers, as in C. K M G T (also KiB …) are powers of 1024; ns us ms s are nanoseconds; 1.5ms is a number, too."),
        ("\"TEXT\"", "With C's escapes, \\\\ and \\x00 to \\xff among them. The first 1024 bytes of a text count."),
    ]));
    all.push(Text(
        "What needs memory that cannot be read does not pass; the summary says how often that was.",
    ));
    all
}

fn answers() -> Vec<Piece> {
    let mut all = vec![Text(
        "With one of these a probe shows no events: its hits that pass its conditions are counted in the hit, over all threads and, with -f, processes. What was counted stands in the summary, also of a program that was killed. They belong to probes as --if does. ARG is an expression as in CONDITIONS, most often a name. A hit for which one of a probe's expressions cannot be read is not in PASSED; what was counted for it before that stays.",
    )];
    all.extend(items(&[
        ("--hist ARG", "How many hits had which size of ARG: a line for each power of two, with a bar, and the median, 90th and 99th percentile to within 1/32. Numbers below zero are one line."),
        ("--sum ARG", "The sum of ARG, of 64 bits, which wraps."),
        ("--by A[,B], --count-by A", "For each A, or pair of A and B, the number of hits, and of each --sum its own. A and B are numbers or texts: arguments of type string, $comm (for --count-by also comm). Texts are told apart by their first 232 bytes. stack (as --count-by stack, or with --stack=DEPTH before it) is who has called, innermost first: up to 28 frames. $caller is the function that called, where the probe is at a function's entry or return: where it returns to, so that a function that was left by a jump to the probed one is not seen; functions without a symbol are shown as OBJECT+0xADDRESS. There is room for at least 16384 keys in a thread (1024 on 32-bit machines) and for 8192 texts (1024); hits that find none are counted."),
        ("--hist ARG --by A", "For each A how many hits had which size of ARG: a line with the percentiles and a column for each power of two. There is room for 32768 pairs of a key and a size (2048), of which a power of two has sixteen."),
        ("--top N", "How many keys are shown: those with the greatest first sum, or the most hits."),
        ("--every TIME", "Shows each time what has come since the last, also per second; the summary has all."),
    ]));
    all
}

fn events() -> Vec<Piece> {
    let mut all =
        vec![Text("One line for each hit or return, in order of time over all threads and processes.")];
    all.extend(items(&[
        ("SECONDS", "Since the command was started."),
        ("TASK", "NAME-PID, and /TID in threads that are not the first."),
        ("TOOK", "How long the call took, for a return."),
        ("EVENT", "The definition's NAME, else the symbol; %return behind it for a return."),
        ("ARGUMENTS", "NAME=VALUE; (fault) where memory could not be read."),
    ]));
    all.push(Text(
        "Whatever is not the command's own (names of symbols, objects, files and tasks, strings of the program) is printed with control characters, format characters and bytes that are not UTF-8 as in C: \\n, \\x1b.",
    ));
    all
}

fn summary() -> Vec<Piece> {
    let mut all = vec![Text(
        "One row for each place, over all processes. HITS and the times are complete even where events were dropped.",
    )];
    all.extend(items(&[
        ("HITS", "How often the place was executed, or the function returned, with the probe's handler."),
        ("PASSED", "For how many of them the conditions of --if held. Events and times are of these."),
        (
            "NESTED",
            "Hits that came while the same thread was handling another one. The program went on as always, but they are not in HITS and have no event.",
        ),
        (
            "NO ROOM",
            "Calls that were not followed to their return, because the return probe had no room for more calls at the same time. rN gives room for N.",
        ),
        (
            "ABANDONED",
            "Calls that were followed and have not returned: longjmp, an exception or the end of their thread or process cut them off, or they are still under way in a child that goes on. HITS and ABANDONED are all calls that were followed.",
        ),
        ("DROPPED", "Events for which the thread's buffer had no room; see --buffer and --on-full."),
        ("MIN, MEDIAN, P99, MAX", "How long the calls took, for return probes; median and P99 to within 7 %."),
    ]));
    all
}

/// What is told of text that JSON cannot hold.
const BYTES: (&str, &str) = (
    "bytes",
    "Only where a string of the event is not UTF-8 and so has U+FFFD in it: the string's bytes in hexadecimal, in the same place: .bytes.args.path for .args.path, .bytes.comm for .comm.",
);

/// What is told of how a call ended.
const DURATION: (&str, &str) = ("duration_ns", "How long the call took, for a return.");
const LEFT: (&str, &str) = (
    "left_ns",
    "Instead of duration_ns for a call that nobody has seen return, as an exception, longjmp, or the end of its thread or process has left it: how long before the event it began. The event is of the moment when that was found.",
);

fn json() -> Vec<Piece> {
    let mut all = vec![Text(
        "With --format json each line is an object. It is UTF-8 whatever the program's bytes are; numbers are exact up to 64 bits. Each event has:",
    )];
    all.extend(items(&[
        ("type", "\"event\"."),
        ("time_ns", "Nanoseconds since the command was started."),
        ("pid", "The process."),
        ("tid", "The thread."),
        ("comm", "The thread's name."),
        ("event", "The event's name, as in text."),
        ("object", "The file name of the object."),
        ("symbol", "The symbol; empty where none covers the place."),
        ("offset", "The distance in bytes from the symbol."),
        ("addr", "The address, a hexadecimal string."),
        (
            "args",
            "An object: by name, a number for u, s and b types, a string for x types, symbols, characters and strings, an array for arrays; null for what could not be read.",
        ),
        DURATION,
        LEFT,
        (
            "stack",
            "With --stack: an array of the functions that the thread is in, innermost first (of a return from its caller on), each an object with function, addr (a hexadecimal string: where the call returns to, or the next instruction), where it is known at (\"file.c:12\", or the distance from the symbol), and inlined (true) where it is inlined in the next one, at the same addr.",
        ),
        (
            "stack_end",
            "Why there are no more: \"outermost\", \"depth\" (as many as were wanted), or \"lost\" (nothing says who has called).",
        ),
        BYTES,
    ]));
    all.push(Text("The last line is the summary:"));
    all.extend(items(&[
        ("type", "\"summary\"."),
        ("program", "The program's file."),
        ("ended", "How it ended: \"exited with 0\"."),
        ("ran_ns", "How long it ran."),
        ("lost_events", "How many hits have no event, for whatever reason: the only number to ask whether all are there."),
        ("lost_by_thread", "Whose they were: an array of objects with pid, tid, comm and lost_events."),
        ("garbled_records", "Records that no agent writes: the program has written into the buffers itself."),
        ("refused", "For each definition with refused functions an object: for each reason the functions."),
        ("not_followed", "Programs that were executed and not traced (-f): objects with program, reason, times."),
        ("never_planted", "The definitions that were planted nowhere."),
        (
            "probes",
            "A row for each place: event, object, symbol, hits, missed_nested (NESTED), missed_pool (NO ROOM), abandoned, dropped_events, with --if passed and unjudged (hits whose condition needed what could not be read), and for a return probe with hits duration_ns with count, sum, min, median, p99 and max.",
        ),
    ]));
    all.extend(items(&[(
        "answers",
        "An array, in the order of probes and options; each with probe (its name) and type. \"histogram\": of, count, p50, p90, p99, buckets with from (null: below zero), below and count. \"sum\": of, sum. \"table\": by (what keys are of), rows with key (an array), count and sums (by name), the most first; keys, how many there are; lost, hits without room for their key. \"histograms\": of, by, keys and lost, rows with key and what a histogram has.",
    )]));
    all.push(Text(
        "With --every there are lines of type \"answers\" with time_ns, interval_ns and answers as above, of what has come since the last one, interval_ns before.",
    ));
    all.push(Lines("  jq -r 'select(.type == \"event\") | [.comm, .args.path] | @tsv'"));
    all
}

fn graph() -> Vec<Piece> {
    vec![Text(
        "As uftrace's replay: for each thread the calls that return probes saw, from the first to the last, what a call made between its braces, with how long it took at its end; hits of other probes where they came, without a time. A call that an exception or longjmp has left, or the end of its thread or process, says left instead of how long it took; with --aggregate it counts up to where that was found: at the next hit on its stack, or at that end. A call of a process that was killed, or of another thread than the one that ended the process, is not there, and what it called stands where it would have. The record is read twice, so that any number of calls fits into memory; of one that can be read only once, such as a pipe, long calls may come behind what they called, and a sentence on standard error says so. Where threads take turns in a long record, an empty line parts them. With --aggregate ways of more than 2048 functions, and more than 262144 of them, are put together: what is left out is in its callers' own time.",
    )]
}

fn columns() -> Vec<Piece> {
    let mut all = items(&[
        (
            "TOTAL",
            "Time in the function and all that it called, over all calls. Of a call in a call of the same function, the time is in both.",
        ),
        (
            "SELF",
            "The same without the calls of other recorded functions, as far as return probes tell: those that began and returned in it, in the same thread.",
        ),
        ("CALLS", "How many returns, or hits, there are."),
        ("MIN, MEDIAN, P99, MAX", "Of the calls' times; the two in the middle to 1/32."),
    ]);
    all.push(Text(
        "Any number of events takes bounded memory: of more than 131072 rows the later ones are one, (others). Of a million calls in one caller that has not returned yet the oldest are put together; only a caller that begins between two of these can then be charged with one too few. With --by caller those count as called by -, as do calls that no recorded call made. With conditions (--if) a return's time is taken after they were judged, so that a call that began right after its caller may count as beside it.",
    ));
    all
}

fn the_record() -> Vec<Piece> {
    vec![
        Text(
            "A record has the events of all threads and processes in order of time, the names that they need, and at its end the summary. It says the same on every machine, whatever its byte order and whether or not the program is there. It is written ten times a second and at the end; what has been written can be read, also where the command or the machine was stopped, and a file that was cut can be read up to there: one sentence on standard error says so. A file that was changed is refused from there on, by its checksums, with status 125. A record from elsewhere can do no harm.",
        ),
        Text(
            "lost_events of the summary is the one number that says whether all events are there. With --on-full wait it is 0, unless there are more threads than buffers. A record without an end knows how many had been lost when it was last written to.",
        ),
        Text("docs/record-format.md describes the file byte by byte."),
    ]
}

fn ending() -> Vec<Piece> {
    vec![
        Text(
            "The command ends when the program ends, as the program ended: with its exit status, or by the signal that killed it. Signals to the command are passed on to the program.",
        ),
        Text(
            "When nobody reads the events any more (probe trace … 2>&1 | head), the program gets SIGTERM, and SIGKILL if it is still there after five seconds; the command then ends by SIGPIPE. The same happens after --duration, but for SIGPIPE. When the command itself is killed (SIGKILL), the program goes on untraced.",
        ),
    ]
}

fn attaching() -> Vec<Piece> {
    vec![
        Text(
            "With --pid the command stops all threads of a process that runs already, one process after the other, puts its agent into it, and lets it go on with the probes: no function of the program's is called for that, and no system call of its own is cut short. The trace ends with the last of the processes, after --duration, or by Ctrl-C (SIGINT, SIGTERM, SIGHUP, SIGQUIT). Then the process goes on as it was: its text, its mappings, its signals and its descriptors. The command's exit status is its own.",
        ),
        Text(
            "It takes what a debugger takes: the same user, or root; where kernel.yama.ptrace_scope is 1 or 2, root. A process that is debugged already is refused. So are, as yet, Go programs, and return probes in programs that can throw exceptions (those that have loaded libgcc_s, static ones with another language's than C's). With -f, children that it forks from then on are traced, too, and left as it is; programs that they execute are, and keep the agent until they end.",
        ),
        Text(
            "If calls that are followed do not return within some time after the end of the trace, or a thread does not come out of the agent, the agent's memory stays in the process; the summary says so. If the command itself is killed (SIGKILL), a process that it has started, agent-keeper, takes the agent away; the same for a static program that the command has started. If that is killed, too, the process goes on with the probes, untraced; the next trace of the same process takes them away first.",
        ),
    ]
}

fn exit_status() -> Section {
    let table = Status::ALL.iter().map(|status| Piece::Item(status.code().to_string(), status.meaning()));
    let mut all = vec![Text(
        "trace ends as the program did: with its exit status (1 to 255), or by the signal that killed it. Its own statuses:",
    )];
    all.extend(table);
    ("EXIT STATUS", all)
}

fn environment() -> Section {
    let all = items(&[
        ("PATH", "Where programs are looked for."),
        ("LD_LIBRARY_PATH", "Where list and explain look for libraries first, as the dynamic linker does."),
        (
            "LD_PRELOAD",
            "The agent is put in front of what it names. The traced program does not see that, unless -f is given.",
        ),
        ("PROBE_RUNNER", "The default of --runner."),
        ("PROBE_TRACE_REGION", "Set by the command for the agent. Not to be set by hand."),
        ("NO_COLOR", "If it is set and not empty, --color auto means never."),
        ("ASAN_OPTIONS", "See NOTES of probe-trace(1)."),
    ]);
    ("ENVIRONMENT", all)
}

fn notes() -> Vec<Piece> {
    vec![
        Text(
            "A program that needs the shared runtime of AddressSanitizer ends when another library is loaded before that runtime, and the agent is. Such a program is refused, unless ASAN_OPTIONS has verify_asan_link_order=0, with which both work. A program that another one executes (-f) is not looked at beforehand; it ends with the sanitizer's own message.",
        ),
        Text(
            "A static program, and one of musl, is started stopped (ptrace), on x86-64: no dynamic linker loads the agent into it, so the command puts it there before the first constructor runs. Its own set-up before that is not seen. It can be traced by the names that it has.",
        ),
        Text(
            "With -f, a program that a traced one executes is looked at before. A static one, and one of musl, is stopped for a moment as it starts, as above (x86-64). One that the agent can neither be loaded into nor put into runs as it would without probe, untraced, and the summary names it: one of another word size, that gets rights of its own as it starts (set-id, capabilities), whose file cannot be read, or that probe would not start either; and a script that such a one runs.",
        ),
        Text(
            "Set-user-id and set-group-id programs cannot be traced: neither does the dynamic linker load the agent into those, nor do they get their rights while a debugger starts them.",
        ),
    ]
}

fn verdicts() -> Vec<Piece> {
    items(&[
        ("jump", "A jump to the probe can stand there: a hit costs no trap."),
        (
            "boosted",
            "A breakpoint; the instruction runs in a copy, from where the program goes on. One trap, two with a post handler.",
        ),
        ("emulated", "A breakpoint; the instruction's effect is computed. One trap."),
        ("stepped", "A breakpoint; the instruction runs in a copy that ends with a trap. Two traps."),
        ("refused", "It cannot be probed, with the code of the reason and a sentence."),
    ])
}

fn installed() -> Vec<Piece> {
    let mut all = items(&[
        (
            "PREFIX/share/man/man1",
            "The manual pages; man looks below ~/.local/share/man where ~/.local/bin is in PATH.",
        ),
        (
            "PREFIX/share/bash-completion/completions/probe",
            "Completions for bash, with the package bash-completion.",
        ),
        ("PREFIX/share/zsh/site-functions/_probe", "For zsh; the folder has to be in fpath before compinit."),
        ("PREFIX/share/fish/vendor_completions.d/probe.fish", "For fish."),
    ]);
    all.push(Text(
        "For all users: probe install-docs /usr/local. Packagers: probe install-docs \"$DESTDIR/usr\".",
    ));
    all
}

fn see_also() -> Section {
    (
        "SEE ALSO",
        vec![Text(
            "probe(1), probe-trace(1), probe-record(1), probe-print(1), probe-report(1), probe-graph(1), probe-export(1), probe-list(1), probe-explain(1), probe-install-docs(1), strace(1), ltrace(1)",
        )],
    )
}

/// A section in roff.
pub(super) fn render(out: &mut String, (title, pieces): &Section) {
    out.push_str(&format!(".SH \"{}\"\n", escaped(title)));
    for piece in pieces {
        match piece {
            Text(text) => out.push_str(&format!(".PP\n{}\n", escaped(text))),
            Piece::Item(word, meaning) => {
                out.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", escaped(word), escaped(meaning)));
            }
            Lines(lines) => out.push_str(&format!(".PP\n.nf\n{}\n.fi\n", escaped(lines))),
        }
    }
}

/// Text that roff takes as it is: no escapes, no hyphenated minus, no line that begins a request.
fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        if line.starts_with('.') { format!("\\&{line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}
