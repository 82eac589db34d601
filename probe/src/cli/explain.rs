//! `probe explain`: how a place would be probed, or why not.
//!
//! The backends' decoders are pure, so files of every architecture can be explained on every machine.

use super::args::Explain;
use super::elf::{Libraries, ObjectFile, demangled, with_offset};
use super::failure::{Failure, did_you_mean};
use super::foreign::{self, Foreign};
use super::judge::{Judge, Verdict};
use super::style::{Role, Style};
use super::{disasm, machine};
use crate::def::names::{self, Candidate};
use crate::def::{Definition, Glob, Place, near_matches};
use probe_core::arch::Method;
use probe_core::error::Refusal;
use probe_core::host::Arrival;
use probe_elf_symbols::index::{Entry, Kind};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Explains a place, or counts over a whole object.
///
/// # Errors
/// There is no such object or symbol.
pub(super) fn run(args: &Explain) -> Result<(), Failure> {
    let style = Style::new(args.color, &io::stdout());
    match (&args.place, &args.all) {
        (_, Some(object)) => {
            let path = Libraries::new().object(&object.to_string_lossy())?;
            statistics(&ObjectFile::open(&path)?, style)
        }
        (Some(place), None) => explain_place(place, style),
        (None, None) => Err(Failure::new("a place is missing")),
    }
}

/// The backend for an object's machine.
fn judge_for(object: &ObjectFile) -> Result<Judge, Failure> {
    let (machine, is_big_endian) = object.machine();
    machine::backend(machine, is_big_endian).map(|backend| backend.judge).ok_or_else(|| {
        let sentence = format!(
            "`{}` is for a machine that has no backend (ELF machine {})",
            object.name.shown(),
            machine.0
        );
        Failure::new(sentence)
    })
}

/// Explains `OBJECT:SYMBOL[+OFFSET]`.
fn explain_place(text: &str, style: Style) -> Result<(), Failure> {
    let definition = Definition::parse(&format!("p {text}"), &[])?;
    let Some(object) = &definition.object else {
        return Err(Failure::new(format!(
            "`{text}` does not name its object; write OBJECT:SYMBOL, such as libc.so.6:{text}"
        )));
    };
    let file = match Libraries::new().object(object) {
        Err(_) if Glob::is_pattern(object) => {
            return explain_objects(&definition, &Glob::new(object), style);
        }
        file => file?,
    };
    let object = ObjectFile::open(&file)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    explain_in(&mut out, &object, &definition, style)?;
    ignore_broken_pipe(out.flush())
}

/// Explains a place in each object that matches a pattern and has it.
fn explain_objects(definition: &Definition, pattern: &Glob, style: Style) -> Result<(), Failure> {
    let files = Libraries::new().matching(pattern);
    if files.is_empty() {
        let sentence = format!("no shared object matches `{}`", pattern.as_str());
        return Err(definition.place_error(sentence).into());
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut failure = None;
    let mut is_found = false;
    for file in &files {
        // Not everything with such a name is an object.
        let Ok(object) = ObjectFile::open(file) else { continue };
        let mut text = Vec::new();
        match explain_in(&mut text, &object, definition, style) {
            Ok(()) => {
                let between = if std::mem::replace(&mut is_found, true) { "\n" } else { "" };
                let head = style.paint(Role::Head, foreign::path(file));
                ignore_broken_pipe(writeln!(out, "{between}{head}").and_then(|()| out.write_all(&text)))?;
            }
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(_) if !is_found && files.len() > 1 => {
            let sentence = format!("none of {} objects that match has such a function", files.len());
            Err(definition.place_error(sentence).into())
        }
        Some(error) if !is_found => Err(error),
        _ => ignore_broken_pipe(out.flush()),
    }
}

/// Explains a place in one object.
fn explain_in(
    out: &mut impl Write,
    object: &ObjectFile,
    definition: &Definition,
    style: Style,
) -> Result<(), Failure> {
    let judge = judge_for(object)?;
    match &definition.place {
        Place::Glob(glob) => explain_matches(out, object, glob, judge, style),
        Place::FileOffset(offset) => {
            let addr = object.addr_of_offset(*offset).filter(|&addr| object.is_text(addr));
            let addr = addr.ok_or_else(|| {
                definition.place_error(format!("offset {offset:#x} of `{}` is not code", object.name.raw()))
            })?;
            let entry = object.index.covering(addr as usize).copied().ok_or_else(|| {
                definition
                    .place_error(format!("no symbol covers offset {offset:#x} of `{}`", object.name.raw()))
            })?;
            explain_function(out, object, &entry, addr as usize - entry.addr, judge, style, definition)
        }
        Place::Symbol { name, offset } => {
            let entry = find_function(object, name, definition)?;
            explain_function(out, object, &entry, *offset as usize, judge, style, definition)
        }
    }
}

/// The function called `name`, as `probe trace` finds it; the caret is put under the place where there is
/// none.
fn find_function(object: &ObjectFile, name: &str, definition: &Definition) -> Result<Entry, Failure> {
    let mut found: Vec<Entry> = Vec::new();
    let mut add = |entry: &Entry| {
        if entry.kind != Kind::Data && !found.iter().any(|other| other.addr == entry.addr) {
            found.push(*entry);
        }
    };
    object.index.find(name, &mut add);
    if found.is_empty() {
        let entries = object.code_symbols();
        entries.filter(|entry| names::has_base_name(object.index.name(entry), name)).for_each(|entry| {
            if !found.iter().any(|other| other.addr == entry.addr) {
                found.push(*entry);
            }
        });
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => {
            let names = object.code_symbols().map(|entry| object.index.name(entry));
            let hint = did_you_mean(&near_matches(name, names, 3));
            let within = object.name.raw();
            Err(definition.place_error(format!("there is no function `{name}` in {within}{hint}")).into())
        }
        several => {
            let candidates: Vec<Candidate> =
                several.iter().map(|entry| candidate(object, entry, definition)).collect();
            Err(definition.place_error(names::ambiguous(name, &candidates)).into())
        }
    }
}

fn candidate(object: &ObjectFile, entry: &Entry, definition: &Definition) -> Candidate {
    let symbol = object.index.name(entry);
    Candidate {
        // As it was typed: a path stays one.
        object: definition.object.clone().unwrap_or_else(|| object.name.raw().clone()),
        symbol: symbol.to_owned(),
        demangled: names::spelled(symbol),
        file_offset: object.offset_of_addr(entry.addr as u64),
    }
}

/// The end of a function: what its symbol says, else the next symbol.
fn end_of(object: &ObjectFile, entry: &Entry) -> usize {
    if entry.len_bytes > 0 {
        return entry.addr + entry.len_bytes;
    }
    let entries = object.index.entries();
    let next = entries.get(entries.partition_point(|other| other.addr <= entry.addr));
    next.map_or(entry.addr + 16, |next| next.addr.min(entry.addr + 4096))
}

fn explain_function(
    out: &mut impl Write,
    object: &ObjectFile,
    entry: &Entry,
    offset: usize,
    judge: Judge,
    style: Style,
    definition: &Definition,
) -> Result<(), Failure> {
    let end = end_of(object, entry);
    let name = demangled(object.index.name(entry));
    let called = name.raw();
    if entry.addr + offset >= end {
        let sentence = format!("`{called}` has {} bytes, so +{offset:#x} lies outside", end - entry.addr);
        return Err(definition.place_error(sentence).into());
    }
    let mut verdicts = judge(object, entry.addr, end);
    let all = verdicts.len();
    if offset > 0 {
        let inside = verdicts.iter().rev().find(|verdict| verdict.addr <= entry.addr + offset);
        if let Some(before) = inside.filter(|verdict| verdict.addr != entry.addr + offset) {
            let sentence = format!(
                "{called}+{offset:#x} lies inside an instruction that starts at {called}+{:#x}",
                before.addr - entry.addr
            );
            return Err(definition.place_error(sentence).into());
        }
        verdicts.retain(|verdict| verdict.addr == entry.addr + offset);
    }
    ignore_broken_pipe(print_function(out, object, entry, &name, (&verdicts, all), style))
}

fn print_function(
    out: &mut impl Write,
    object: &ObjectFile,
    entry: &Entry,
    name: &Foreign<String>,
    (verdicts, all): (&[Verdict], usize),
    style: Style,
) -> io::Result<()> {
    let all_bytes = end_of(object, entry) - entry.addr;
    let head = format!(
        "{}:{}  {:#x}  {all_bytes} bytes, {all} instructions",
        object.name.shown(),
        name.shown(),
        entry.addr
    );
    writeln!(out, "{}", style.paint(Role::Head, head))?;
    if entry.kind == Kind::Indirect {
        let note =
            "  chosen at run time (IFUNC): this is the code that chooses; a probe goes to what it has chosen";
        writeln!(out, "{}", style.paint(Role::Dim, note))?;
    }
    if let Arrival::NotCalled(refusal) =
        object.arrivals().arrival(object.index.name(entry), entry.addr as u64)
    {
        let note = format!("  no return probe or jprobe: {refusal}");
        writeln!(out, "{}", style.paint(Role::Bad, note))?;
    }
    let (machine, is_big_endian) = object.machine();
    let symbol = |addr: u64| {
        let covering = object.index.covering(usize::try_from(addr).ok()?)?;
        Some(with_offset(demangled(object.index.name(covering)), addr - covering.addr as u64))
    };
    let longest = verdicts.iter().map(|verdict| verdict.bytes.len()).max().unwrap_or(0);
    let insns: Vec<String> = verdicts
        .iter()
        .map(|v| disasm::instruction(machine, is_big_endian, &v.bytes, v.addr as u64, &symbol))
        .collect();
    // As narrow as the function allows, so that it fits into terminals of 80 columns more often.
    let width = insns.iter().map(|insn| insn.chars().count()).max().unwrap_or(0).min(44);
    let digits = format!("+{:#x}", all_bytes.saturating_sub(1)).len();
    for (verdict, insn) in verdicts.iter().zip(&insns) {
        let hex: Vec<String> = verdict.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let offset = format!("+{:#x}", verdict.addr - entry.addr);
        let how = match &verdict.outcome {
            Ok(method) => how(*method, verdict, style),
            Err(refusal) => style.paint(Role::Bad, format!("refused    {refusal}")).to_string(),
        };
        let left = format!(
            "  {offset:<digits$}  {:<bytes$}",
            hex.join(" "),
            bytes = longest * 3 - usize::from(longest > 0)
        );
        writeln!(out, "{}  {insn:<width$}  {how}", style.paint(Role::Dim, left))?;
    }
    Ok(())
}

/// One line for each function that matches: how its entry would be probed.
fn explain_matches(
    out: &mut impl Write,
    object: &ObjectFile,
    glob: &Glob,
    judge: Judge,
    style: Style,
) -> Result<(), Failure> {
    let functions: Vec<&Entry> =
        object.functions().filter(|entry| names::matches(glob, object.index.name(entry))).collect();
    if functions.is_empty() {
        return Err(Failure::new(format!(
            "no function of {} matches `{}`",
            object.name.raw(),
            glob.as_str()
        )));
    }
    for entry in functions {
        let verdicts = judge(object, entry.addr, end_of(object, entry));
        let how = match verdicts.first().map(|verdict| &verdict.outcome) {
            Some(Ok(method)) => how(*method, &verdicts[0], style),
            Some(Err(refusal)) => style.paint(Role::Bad, format!("refused    {refusal}")).to_string(),
            None => style.paint(Role::Bad, "refused    it is empty".to_owned()).to_string(),
        };
        let name = style
            .paint(Role::Name, format!("{:<40}", demangled(object.index.name(entry)).shown()))
            .to_string();
        ignore_broken_pipe(writeln!(out, "{name}  {how}"))?;
    }
    Ok(())
}

/// How a probe there works, in words: by a jump, or by a trap and why.
fn how(method: Method, verdict: &Verdict, style: Style) -> String {
    let name = |text: String| style.paint(Role::Good, text).to_string();
    match (&verdict.jump, verdict.no_post) {
        (Ok(()), None) => name("jump       no trap".to_owned()),
        (Ok(()), Some(refusal)) => {
            let why = style.paint(Role::Dim, format!("; {}", refusal.sentence));
            format!("{}{why}", name("jump       no trap".to_owned()))
        }
        (Err(refusal), _) => {
            let (what, traps) = method_name(method);
            let why = style.paint(Role::Dim, format!("; no jump: {}", refusal.sentence));
            format!("{}{why}", name(format!("{what:<9}  {traps}")))
        }
    }
}

/// How an instruction is executed at a hit with a trap, in words, and how many traps that takes.
fn method_name(method: Method) -> (&'static str, &'static str) {
    match method {
        Method::Simulate => ("emulated", "one trap"),
        Method::Boost => ("boosted", "one trap, two with a post handler"),
        Method::Step => ("stepped", "two traps"),
    }
}

/// Counts over all functions of an object.
#[derive(Default)]
struct Statistics {
    functions: usize,
    instructions: usize,
    methods: BTreeMap<&'static str, usize>,
    refusals: Reasons,
    entries: BTreeMap<&'static str, usize>,
    /// Functions whose entries can have a jump, and why the others cannot.
    jumps: usize,
    no_jumps: Reasons,
    /// Functions to which no call comes.
    not_called: Reasons,
}

/// How many there are by reason, and the first one.
type Reasons = BTreeMap<(&'static str, &'static str), (usize, Foreign<String>)>;

/// Counts one more.
fn count(reasons: &mut Reasons, refusal: &Refusal, example: impl FnOnce() -> Foreign<String>) {
    reasons.entry((refusal.code, refusal.sentence)).or_insert_with(|| (0, example())).0 += 1;
}

impl Statistics {
    fn add(&mut self, object: &ObjectFile, entry: &Entry, verdicts: &[Verdict]) {
        self.functions += 1;
        for (i, verdict) in verdicts.iter().enumerate() {
            self.instructions += 1;
            let what = match &verdict.outcome {
                Ok(Method::Simulate) => "emulated",
                Ok(Method::Boost) => "boosted",
                Ok(Method::Step) => "stepped",
                Err(refusal) => {
                    let offset = (verdict.addr - entry.addr) as u64;
                    count(&mut self.refusals, refusal, || {
                        with_offset(Foreign::new(object.index.name(entry).to_owned()), offset)
                    });
                    "refused"
                }
            };
            *self.methods.entry(what).or_default() += 1;
            if i == 0 {
                *self.entries.entry(what).or_default() += 1;
                match &verdict.jump {
                    Ok(()) => self.jumps += 1,
                    Err(refusal) => {
                        let example = || Foreign::new(object.index.name(entry).to_owned());
                        count(&mut self.no_jumps, refusal, example);
                    }
                }
            }
        }
    }
}

fn statistics(object: &ObjectFile, style: Style) -> Result<(), Failure> {
    let judge = judge_for(object)?;
    let arrivals = object.arrivals();
    let mut statistics = Statistics::default();
    let mut covered = 0;
    for entry in object.functions().filter(|entry| entry.len_bytes > 0) {
        // Aliases and overlapping labels are counted once.
        let start = entry.addr.max(covered);
        let end = end_of(object, entry);
        if start == entry.addr && start < end {
            statistics.add(object, entry, &judge(object, start, end));
            let name = object.index.name(entry);
            if let Arrival::NotCalled(refusal) = arrivals.arrival(name, start as u64) {
                count(&mut statistics.not_called, &refusal, || Foreign::new(name.to_owned()));
            }
            covered = end;
        }
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = print_statistics(&mut out, object, &statistics, style).and_then(|()| out.flush());
    ignore_broken_pipe(written)
}

fn print_statistics(
    out: &mut impl Write,
    object: &ObjectFile,
    all: &Statistics,
    style: Style,
) -> io::Result<()> {
    let share = |n: usize, of: usize| 100.0 * n as f64 / of.max(1) as f64;
    writeln!(out, "{}", style.paint(Role::Head, foreign::path(&object.path)))?;
    writeln!(out, "{:<10}  {:>12}  {:>8}  {:>10}  {:>8}", "", "INSTRUCTIONS", "", "ENTRIES", "")?;
    for what in ["boosted", "emulated", "stepped", "refused"] {
        let (n, entries) =
            (all.methods.get(what).copied().unwrap_or(0), all.entries.get(what).copied().unwrap_or(0));
        let (of_all, of_entries) = (share(n, all.instructions), share(entries, all.functions));
        writeln!(out, "{what:<10}  {n:>12}  {of_all:>7.3}%  {entries:>10}  {of_entries:>7.3}%")?;
    }
    writeln!(out, "{:<10}  {:>12}  {:>8}  {:>10}", "all", all.instructions, "", all.functions)?;
    writeln!(
        out,
        "{:<10}  {:>12}  {:>8}  {:>10}  {:>7.3}%",
        "by a jump",
        "",
        "",
        all.jumps,
        share(all.jumps, all.functions)
    )?;
    print_reasons(out, "REFUSED, BY REASON", &all.refusals, style)?;
    print_reasons(out, "ENTRIES WITHOUT A JUMP, BY REASON", &all.no_jumps, style)?;
    print_reasons(out, "ENTRIES WITHOUT A RETURN PROBE, BY REASON", &all.not_called, style)?;
    Ok(())
}

fn print_reasons(out: &mut impl Write, title: &str, reasons: &Reasons, style: Style) -> io::Result<()> {
    if !reasons.is_empty() {
        writeln!(out, "\n{}", style.paint(Role::Head, title))?;
    }
    let mut reasons: Vec<_> = reasons.iter().collect();
    reasons.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
    for ((code, sentence), (n, example)) in reasons {
        let code = style.paint(Role::Bad, format!("{code:<28}")).to_string();
        writeln!(out, "{n:>10}  {code}  {sentence}; first: {}", example.shown())?;
    }
    Ok(())
}

/// A reader that has seen enough is no failure.
fn ignore_broken_pipe(done: io::Result<()>) -> Result<(), Failure> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn libc() -> ObjectFile {
        ObjectFile::open(&Libraries::new().object("libc.so.6").unwrap()).unwrap()
    }

    #[test]
    fn a_whole_function_is_judged_instruction_by_instruction() {
        let libc = libc();
        let definition = Definition::parse("p libc.so.6:opendir", &[]).unwrap();
        let entry = find_function(&libc, "opendir", &definition).unwrap();
        let verdicts = judge_for(&libc).unwrap()(&libc, entry.addr, end_of(&libc, &entry));
        assert_eq!(verdicts.iter().map(|verdict| verdict.bytes.len()).sum::<usize>(), entry.len_bytes);
        assert!(verdicts[0].outcome.is_ok());
    }

    #[test]
    fn the_program_itself_can_be_explained() {
        let this = ObjectFile::open(Path::new("/proc/self/exe")).unwrap();
        assert!(judge_for(&this).is_ok());
    }
}
