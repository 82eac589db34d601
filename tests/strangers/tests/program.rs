//! The programs: one file each, whose first lines say what it asks and how it wants to be built and run.
//!
//! Lines that begin with `// KEY: ` are for the runner: `cc` what the compiler is told beside the usual
//! (`LIBRARY` is the built library) · `library` what it is told to make `NAME.so` of the same file · `argv`
//! the program's arguments · `under` the tool that runs the program, or `probe` with the program: its name
//! and arguments · `probe` what `probe trace` is told beside the mode · `events: no` counts alone, for
//! programs with very many hits · `short` the short form has it · `documented MODES WHAT,…: FILE: SENTENCE`
//! what differs, where a document says that it does.

use crate::mode::Mode;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// A difference that a document names.
#[derive(Debug)]
pub(crate) struct Documented {
    /// Modes, as a pattern of names with `*`.
    modes: String,
    /// What differs: some of `stdout`, `stderr`, `status`, `calls`, `counts`, `refused`, with commas between.
    what: String,
    sentence: String,
}

/// One program.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// The file's name without its extension, and the program's.
    pub(crate) name: String,
    /// What it asks.
    pub(crate) asks: String,
    source: PathBuf,
    cc: Vec<String>,
    library: Option<Vec<String>>,
    /// What it is called with.
    pub(crate) argv: Vec<String>,
    /// A tool and its arguments, which runs the program, or `probe` with the program.
    pub(crate) under: Vec<String>,
    /// What `probe trace` is told beside the mode.
    pub(crate) probe: Vec<String>,
    /// Whether each hit is an event, too.
    pub(crate) has_events: bool,
    /// Whether misses that are counted may be there.
    pub(crate) has_misses: bool,
    /// Whether counts mean anything.
    pub(crate) has_counts: bool,
    /// Whether the short form has it.
    pub(crate) is_short: bool,
    documented: Vec<Documented>,
}

/// Where the programs are.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// All programs, by name.
///
/// # Errors
/// A file that cannot be read, or a line of one that is not understood.
pub(crate) fn all() -> Result<Vec<Program>, String> {
    let folder = folder();
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut programs = Vec::new();
    for file in files.flatten() {
        let path = file.path();
        if path.extension().is_some_and(|extension| extension == "c" || extension == "cc") {
            programs.push(Program::read(path)?);
        }
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// The words of a line; one in quotes may have blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

impl Program {
    fn read(source: PathBuf) -> Result<Self, String> {
        let text = fs::read_to_string(&source).map_err(|error| format!("{}: {error}", source.display()))?;
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut program = Self { name, has_events: true, has_counts: true, source, ..Self::default() };
        for line in text.lines().map_while(|line| line.strip_prefix("// ")) {
            let line = line.trim_end();
            let (key, value) = line.split_once(':').map_or((line, ""), |(key, value)| (key, value.trim()));
            match key {
                "asks" => value.clone_into(&mut program.asks),
                "cc" => program.cc = words(value),
                "library" => program.library = Some(words(value)),
                "argv" => program.argv = words(value),
                "under" => program.under = words(value),
                "probe" => program.probe = words(value),
                "events" => program.has_events = value != "no",
                "misses" => program.has_misses = value == "yes",
                "counts" => program.has_counts = value != "no",
                "short" => program.is_short = true,
                _ => match key.strip_prefix("documented ") {
                    Some(which) => program.documented.push(Documented::read(which, value)?),
                    // The sentence goes on.
                    None if !program.asks.is_empty() => program.asks.extend([" ", line]),
                    None => return Err(format!("{}: `{line}`?", program.source.display())),
                },
            }
        }
        if program.asks.is_empty() {
            return Err(format!("{}: it does not say what it asks", program.source.display()));
        }
        Ok(program)
    }

    /// Whether a document says that `what` differs in `mode`.
    pub(crate) fn is_documented(&self, mode: &Mode, what: &str) -> bool {
        self.documented.iter().any(|known| known.covers(mode.name, what))
    }

    /// What documents say that differs, where nothing of it does in any mode: `seen` is all that does, with
    /// its mode.
    pub(crate) fn no_longer_so(&self, seen: &[(&str, &str)]) -> impl Iterator<Item = &str> {
        let is_so = |known: &Documented| seen.iter().any(|(mode, what)| known.covers(mode, what));
        self.documented.iter().filter(move |known| !is_so(known)).map(|known| known.sentence.as_str())
    }

    /// Builds it, and its library, into `folder`, unless they are newer than their source there.
    ///
    /// # Errors
    /// What the compiler says.
    pub(crate) fn build(&self, folder: &Path) -> Result<(), String> {
        let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        // Each may include others.
        let sources = fs::read_dir(self::folder()).map_err(|error| error.to_string())?;
        let source = sources.flatten().filter_map(|file| changed(&file.path())).max();
        let is_new = |made: &Path| changed(made).is_some_and(|made: SystemTime| Some(made) > source);
        let library = folder.join(format!("{}.so", self.name));
        if let Some(flags) = self.library.as_ref().filter(|_| !is_new(&library)) {
            let name = format!("-Wl,-soname,{}.so", self.name);
            let shared = ["-shared", "-fPIC", "-DLIBRARY", &name].map(str::to_owned);
            self.compile(&library, &[&shared[..], flags].concat())?;
        }
        let program = folder.join(&self.name);
        if !is_new(&program) {
            let linked = library.display().to_string();
            let word = |word: &String| if word == "LIBRARY" { linked.clone() } else { word.clone() };
            self.compile(&program, &self.cc.iter().map(word).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn compile(&self, made: &Path, flags: &[String]) -> Result<(), String> {
        let is_cxx = self.source.extension().is_some_and(|extension| extension == "cc");
        let output = Command::new(if is_cxx { "c++" } else { "cc" })
            .args(["-O2", "-g0", "-Wall", "-Wextra", "-Wno-clobbered", "-D_GNU_SOURCE", "-pthread", "-o"])
            .args([made, &self.source])
            .args(flags)
            .output()
            .map_err(|error| format!("{}: the compiler cannot be started: {error}", self.source.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        // Also warnings: a program that is not what it seems asks nothing.
        if output.status.success() && said.is_empty() {
            return Ok(());
        }
        let _ = fs::remove_file(made);
        Err(format!("{}: {said}", self.source.display()))
    }

    /// The files that a run needs beside it.
    pub(crate) fn files(&self) -> Vec<String> {
        let library = self.library.as_ref().map(|_| format!("{}.so", self.name));
        std::iter::once(self.name.clone()).chain(library).collect()
    }
}

impl Documented {
    /// `MODES WHAT` and `FILE: SENTENCE`; the sentence has to stand there.
    fn read(which: &str, value: &str) -> Result<Self, String> {
        let wrong = || format!("`documented {which}: {value}`: MODES WHAT,…: FILE: SENTENCE");
        let (modes, what) = which.split_once(' ').ok_or_else(wrong)?;
        let (file, sentence) = value.split_once(": ").ok_or_else(wrong)?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").replace("/// ", "");
        if !flat(&text).contains(&flat(sentence)) {
            return Err(format!("{file} does not say: {sentence}"));
        }
        Ok(Self { modes: modes.to_owned(), what: what.to_owned(), sentence: sentence.to_owned() })
    }

    fn covers(&self, mode: &str, what: &str) -> bool {
        self.what.split(',').any(|known| known == what) && matches(&self.modes, mode)
    }
}

/// Whether a name matches a pattern with `*`.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let rest = name.strip_prefix(before);
    rest.is_some_and(|rest| (0..=rest.len()).any(|at| matches(after, &rest[at..])))
}
