//! Runs programs: bare, counted, with probes.

use crate::Counts;
use crate::places::Code;
use crate::programs::{self, Program};
use crate::steps::{self, Stepped};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fmt::{self, Write};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;

/// The agent, built by the build script.
const AGENT: Option<&str> = option_env!("PROBE_EVERYTHING_AGENT");
/// The plugin, built by the build script for the machine that QEMU runs on.
const PLUGIN: Option<&str> = option_env!("PROBE_EVERYTHING_PLUGIN");
/// No run takes longer.
const LIMIT_SECONDS: u32 = 3 * 3600;

/// What the agent is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Probes that are disabled; the program is counted.
    Step,
    /// Probes with pre handlers.
    Pre,
    /// With pre and post handlers.
    Post,
}

/// What can be told of a run.
#[derive(PartialEq, Eq)]
pub(crate) struct Output {
    status: (Option<i32>, Option<i32>),
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = f.precision().unwrap_or(usize::MAX);
        let part = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned();
        write!(
            f,
            "status {:?}, {} bytes\n{}{}",
            self.status,
            self.stdout.len(),
            part(&self.stdout),
            part(&self.stderr)
        )
    }
}

/// How programs are started here.
pub(crate) struct Runner {
    agent: &'static str,
    /// The emulator and its arguments; empty: the kernel itself.
    words: Vec<OsString>,
    scratch: PathBuf,
}

impl Runner {
    /// Looks where this process runs.
    ///
    /// # Errors
    /// A sentence: no agent has been built.
    pub(crate) fn new() -> Result<Self, String> {
        let agent = AGENT.ok_or("a static C library loads no agent")?;
        let runner = std::env::var("PROBE_RUNNER").unwrap_or_default();
        let scratch = programs::scratch();
        fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        Ok(Self { agent, words: runner.split_whitespace().map(OsString::from).collect(), scratch })
    }

    /// The program, with `environment` in it, and nothing else of ours.
    fn command(
        &self,
        target: &Target,
        environment: &[(&str, &str)],
        plugin: Option<&str>,
    ) -> Result<Command, String> {
        let mut command = match self.words.first() {
            None => Command::new(&target.program),
            Some(emulator) => {
                let mut command = Command::new(emulator);
                command.args(&self.words[1..]);
                // Not by a variable, which the program would see.
                command.args(plugin.into_iter().flat_map(|plugin| ["-plugin", plugin]));
                for (name, value) in environment {
                    command.args(["-E", &format!("{name}={value}")]);
                }
                command.arg("-0").arg(&target.arguments[0]).arg(&target.program);
                command
            }
        };
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs([("LC_ALL", "C"), ("PYTHONHASHSEED", "0"), ("HOME", "/nonexistent")]);
        if self.words.is_empty() {
            command.arg0(&target.arguments[0]).envs(environment.iter().copied());
        }
        command.args(&target.arguments[1..]).current_dir(&self.scratch);
        let input = match &target.input {
            Some(path) => {
                Stdio::from(fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?)
            }
            None => Stdio::null(),
        };
        command.stdin(input);
        let prepare = || {
            // SAFETY: sets a timer, which stays across `execve`, and a flag.
            unsafe { libc::alarm(LIMIT_SECONDS) };
            // SAFETY: as above: the same addresses in every run.
            unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
            Ok(())
        };
        // SAFETY: the closure makes two async-signal-safe calls.
        unsafe { command.pre_exec(prepare) };
        Ok(command)
    }

    /// The same in all runs with the agent: programs look through their environment.
    fn environment<'a>(&'a self, control: &'a str) -> Vec<(&'a str, &'a str)> {
        let mut environment = vec![("LD_PRELOAD", self.agent), ("PROBE_EVERYTHING_CONTROL", control)];
        if !self.words.is_empty() {
            environment.push(("PROBE_EVERYTHING_COUNTS", "1"));
        }
        environment
    }
}

/// A program that is going to be run.
pub(crate) struct Target {
    program: PathBuf,
    arguments: Vec<String>,
    input: Option<PathBuf>,
    /// The files of the program and of all that is loaded with it.
    pub(crate) objects: Vec<PathBuf>,
}

impl Target {
    /// Finds out what it loads.
    ///
    /// # Errors
    /// It cannot be run.
    pub(crate) fn find(program: &Program, runner: &Runner) -> Result<Self, String> {
        let (path, arguments, input) = program.prepare()?;
        let mut target = Self { objects: vec![path.clone()], program: path, arguments, input };
        let trace = [("LD_TRACE_LOADED_OBJECTS", "1")];
        let mut command = runner.command(&target, &trace, None)?;
        let output = command.output().map_err(|error| format!("{}: {error}", target.program.display()))?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // `libc.so.6 => /lib/libc.so.6 (0x...)`, or for the loader `/lib/ld.so (0x...)`.
            let path = line.split_once("=>").map_or(line, |(_, path)| path).trim();
            let path = path.split_once(" (").map_or(path, |(path, _)| path);
            if path.starts_with('/') {
                target.objects.push(path.into());
            }
        }
        if target.objects.len() < 2 {
            return Err(format!("{} loads nothing", target.program.display()));
        }
        Ok(target)
    }

    /// Runs it bare.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn run(&self, runner: &Runner) -> Result<Output, String> {
        finish(runner, runner.command(self, &[], None)?)
    }

    /// Runs it with a probe on every place.
    ///
    /// # Errors
    /// It cannot be started, or the agent has said nothing.
    pub(crate) fn run_probed(
        &self,
        runner: &Runner,
        mode: Mode,
        places: &[(usize, usize)],
    ) -> Result<(Output, Answer), String> {
        let (control, answer) = self.control(runner, mode, places)?;
        let output = finish(runner, runner.command(self, &runner.environment(&control), None)?)?;
        let parsed = Answer::read(&answer).map_err(|error| format!("{mode:?}: {error}: {output:.2000}"))?;
        Ok((output, parsed))
    }

    /// Counts what it executes.
    ///
    /// # Errors
    /// It cannot be started, or stepped.
    pub(crate) fn count(
        &self,
        runner: &Runner,
        codes: &[Rc<Code>],
        places: &[(usize, usize)],
    ) -> Result<Counts, String> {
        let (control, answer) = self.control(runner, Mode::Step, places)?;
        let environment = runner.environment(&control);
        if runner.words.is_empty() {
            let mut command = runner.command(self, &environment, None)?;
            Printed::of(runner, &mut command)?;
            // SAFETY: one system call.
            unsafe { command.pre_exec(steps::be_stepped) };
            let mut child = command.spawn().map_err(|error| error.to_string())?;
            let counted =
                steps::trace(&child, || Answer::read(&answer).map(|answer| (answer.begins, answer.ends)));
            if counted.is_err() {
                let _ = child.kill();
            }
            child.wait().map_err(|error| error.to_string())?;
            return Ok(Answer::read(&answer)?.place(counted?, codes));
        }
        let plugin = PLUGIN.ok_or("the build script built no plugin")?;
        let counted = format!("{answer}.counts");
        let plugin = format!("file={plugin},out={counted}");
        finish(runner, runner.command(self, &environment, Some(&plugin))?)?;
        let lines = fs::read_to_string(&counted).map_err(|error| format!("{counted}: {error}"))?;
        let parse = |line: &str| {
            let (addr, executions) = line.split_once(' ')?;
            let stepped = Stepped { arrivals: executions.parse().ok()?, stays: 0 };
            Some((usize::from_str_radix(addr, 16).ok()?, stepped))
        };
        let counts = lines.lines().map(|line| parse(line).ok_or(format!("{counted}: {line}")));
        Ok(Answer::read(&answer)?.place(counts.collect::<Result<_, _>>()?, codes))
    }

    /// Writes the control file; its path, and that of the answer.
    fn control(
        &self,
        runner: &Runner,
        mode: Mode,
        places: &[(usize, usize)],
    ) -> Result<(String, String), String> {
        let (control, answer) = (runner.scratch.join("control"), runner.scratch.join("answer"));
        let _ = fs::remove_file(&answer);
        let mut text = format!("{}\n{}\n", format!("{mode:?}").to_lowercase(), answer.display());
        for (index, path) in self.objects.iter().enumerate() {
            let _ = writeln!(text, "object {}", path.file_name().unwrap_or_default().display());
            for (_, at) in places.iter().filter(|place| place.0 == index) {
                let _ = writeln!(text, "{at:x}");
            }
        }
        fs::write(&control, text).map_err(|error| format!("{}: {error}", control.display()))?;
        Ok((control.display().to_string(), answer.display().to_string()))
    }
}

/// Files for what a program prints: the same kind of thing in all runs, as its C library asks what it is.
struct Printed {
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Printed {
    /// Sends what `command` prints to files.
    fn of(runner: &Runner, command: &mut Command) -> Result<Self, String> {
        let printed = Self { stdout: runner.scratch.join("stdout"), stderr: runner.scratch.join("stderr") };
        let create =
            |path: &Path| fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()));
        command.stdout(create(&printed.stdout)?).stderr(create(&printed.stderr)?);
        Ok(printed)
    }

    fn read(&self, status: ExitStatus) -> Result<Output, String> {
        let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let status = (status.code(), status.signal());
        Ok(Output { status, stdout: read(&self.stdout)?, stderr: read(&self.stderr)? })
    }
}

fn finish(runner: &Runner, mut command: Command) -> Result<Output, String> {
    let printed = Printed::of(runner, &mut command)?;
    printed.read(command.status().map_err(|error| error.to_string())?)
}

/// What the agent has answered.
pub(crate) struct Answer {
    begins: usize,
    ends: usize,
    /// What is added to the addresses of each object.
    biases: Vec<usize>,
    /// By the place's index: reason code and sentence.
    pub(crate) refused: BTreeMap<usize, (String, String)>,
    /// System calls that the guard makes itself, so that no post handler runs.
    guarded: Vec<usize>,
    hits: PathBuf,
}

impl Answer {
    fn read(path: &str) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let mut answer = Self {
            begins: 0,
            ends: 0,
            biases: Vec::new(),
            refused: BTreeMap::new(),
            guarded: Vec::new(),
            hits: Path::new(path).with_extension("hits"),
        };
        for line in text.lines() {
            answer.line(line).ok_or_else(|| format!("{path}: {line}"))?;
        }
        Ok(answer)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let (what, rest) = line.split_once(' ')?;
        match what {
            "begins" => self.begins = hex(rest)?,
            "guarded" => self.guarded.push(hex(rest)?),
            "ends" => self.ends = hex(rest)?,
            "object" => self.biases.push(hex(rest.rsplit_once(' ')?.1)?),
            "refused" => {
                let (index, rest) = rest.split_once(' ')?;
                let (code, sentence) = rest.split_once(' ')?;
                self.refused.insert(index.parse().ok()?, (code.into(), sentence.into()));
            }
            _ => {}
        }
        Some(())
    }

    /// Whether counting ends at this place.
    pub(crate) fn is_end(&self, (object, at): (usize, usize)) -> bool {
        self.biases[object].wrapping_add(at) == self.ends
    }

    /// Whether the guard makes the system call at this place.
    pub(crate) fn is_guarded(&self, (object, at): (usize, usize)) -> bool {
        self.guarded.contains(&self.biases[object].wrapping_add(at))
    }

    /// How often pre and post handlers have run at each place.
    pub(crate) fn hits(&self, places: usize) -> Result<Vec<(u64, u64)>, String> {
        let bytes = fs::read(&self.hits).map_err(|error| format!("{}: {error}", self.hits.display()))?;
        let (words, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        let (pairs, _) = words.as_chunks::<2>();
        if pairs.len() < places {
            return Err(format!("{} places, {} counted", places, pairs.len()));
        }
        Ok(pairs.iter().take(places).map(|&[pre, post]| (pre, post)).collect())
    }

    /// Counts by object and address in its file; what lies elsewhere is nobody's.
    fn place(&self, counts: HashMap<usize, Stepped>, codes: &[Rc<Code>]) -> Counts {
        let mut placed = Counts::new();
        for (pc, count) in counts {
            let at = |index: usize| pc.wrapping_sub(self.biases[index]);
            let Some(object) = (0..codes.len()).find(|&index| codes[index].bytes(at(index)).is_some()) else {
                continue;
            };
            let stays = if codes[object].is_repeated(at(object)) { 0 } else { count.stays };
            placed.insert((object, at(object)), count.arrivals + stays);
        }
        placed
    }
}
