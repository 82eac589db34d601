//! The peer that is no Rust library: frida-gum, through its Python package. Its agent wants a process for
//! itself, so a second process of this program calls the victims, in the same rounds, one process after the
//! other on the same CPU.

use crate::victims;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What this program is called with to be the second process.
const ARGUMENT: &str = "--frida-victims";

/// A process that one talks to line by line; ended when dropped.
struct Talker {
    child: Child,
    /// None: it has been told that there is no more.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Talker {
    fn start(command: &mut Command) -> Result<Self, String> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| error.to_string())?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.ok_or("it has no output")?).lines();
        Ok(Self { child, input, output })
    }

    /// The next line that it says.
    fn line(&mut self) -> Result<String, String> {
        match self.output.next() {
            Some(line) => line.map_err(|error| error.to_string()),
            None => Err(self.last_words()),
        }
    }

    fn say(&mut self, line: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("it listens no more")?;
        writeln!(input, "{line}").map_err(|error| error.to_string())
    }

    /// The last line of what it complained about.
    fn last_words(&mut self) -> String {
        let errors =
            self.child.stderr.take().map(|errors| BufReader::new(errors).lines().map_while(Result::ok));
        errors.and_then(Iterator::last).unwrap_or_else(|| "it ended".to_owned())
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.input = None;
        // It ends with its input; if it does not, nobody waits for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The two processes: the one that calls the victims, and the one that laid the Interceptor.
pub(crate) struct Frida {
    victims: Talker,
    python: Talker,
}

impl Frida {
    /// Starts both. `PROBE_FRIDA_PYTHON` is the Python that has the package `frida`, if that is not
    /// `python3`.
    ///
    /// # Errors
    /// A sentence: the package is not installed, or cannot be used here.
    pub(crate) fn start() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut victims = Talker::start(Command::new(program).arg(ARGUMENT))?;
        let said = victims.line()?;
        let (process, function) = said.split_once(' ').ok_or("the victims' process says nothing")?;
        let python = std::env::var_os("PROBE_FRIDA_PYTHON").unwrap_or_else(|| "python3".into());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/hit/interceptor.py");
        let mut python = Talker::start(Command::new(python).args([script, process, function]))?;
        let ready = python.line()?;
        if ready.starts_with("ready") { Ok(Self { victims, python }) } else { Err(ready) }
    }

    /// Nanoseconds over the unprobed call in one round.
    ///
    /// # Errors
    /// A sentence: a process has died.
    pub(crate) fn round(&mut self) -> Result<f64, String> {
        self.victims.say("round")?;
        let line = self.victims.line()?;
        line.parse().map_err(|error| format!("{line}: {error}"))
    }

    /// How often the Interceptor was hit; the end.
    ///
    /// # Errors
    /// A sentence: a process has died.
    pub(crate) fn count(mut self) -> Result<u64, String> {
        self.python.input = None;
        let line = self.python.line()?;
        line.parse().map_err(|error| format!("{line}: {error}"))
    }
}

/// The second process, if this is it: says its number and the victim, then times a round for each line of its
/// input.
pub(crate) fn is_victims_process() -> bool {
    if !std::env::args().any(|argument| argument == ARGUMENT) {
        return false;
    }
    // Who attaches is no ancestor, which some machines ask for. If it is refused, so is attaching.
    // SAFETY: it takes no pointer.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    println!("{} {:#x}", std::process::id(), victims::bench_frida as *const () as usize);
    for _ in std::io::stdin().lines() {
        let bare = crate::time(victims::bench_bare);
        println!("{}", crate::time(victims::bench_frida) - bare);
    }
    true
}
