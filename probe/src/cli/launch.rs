//! Starts the program with the agent in it, and ends the command as the program ended.

use super::failure::Failure;
#[cfg(has_mapped)]
use super::failure::failed;
use super::foreign;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a program may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// The signals that are passed on to the program, and the one that tells of its end.
const SIGNALS: [libc::c_int; 9] = [
    libc::SIGCHLD,
    // From `nobody_reads`.
    libc::SIGPIPE,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
];

/// Tells [`Program::wait`] that nobody reads the events any more.
pub(super) fn nobody_reads() {
    // SAFETY: a signal to ourselves, which every thread holds back and `wait` takes.
    unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGPIPE) };
}

/// A started program.
pub(super) struct Program {
    pid: libc::pid_t,
    signals: libc::sigset_t,
    /// Whether another thread debugs it, as it executes a program.
    is_held: Mutex<bool>,
}

/// Puts the agent into a sealed memfd that the dynamic linker can load through `/proc`.
pub(super) fn agent_file(agent: &[u8]) -> io::Result<OwnedFd> {
    // SAFETY: a NUL-terminated name and flags.
    let fd =
        unsafe { libc::memfd_create(c"probe-agent".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor just created and owned by nobody else.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    io::Write::write_all(&mut file, agent)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: our own descriptor.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file.into())
}

/// The agent that dynamic linkers load into programs which children execute, where these are followed.
///
/// # Errors
/// There is none, or it cannot be stored.
#[cfg(has_mapped)]
pub(super) fn agent_of_children(is_followed: bool) -> Result<Option<OwnedFd>, Failure> {
    if !is_followed {
        return Ok(None);
    }
    let agent =
        crate::AGENT.ok_or_else(|| failed("this `probe` was built without an agent for its own machine"))?;
    let stored = agent_file(agent);
    stored.map(Some).map_err(|error| failed(format!("the agent cannot be stored in memory: {error}")))
}

/// The path by which other processes reach a descriptor of this one.
pub(super) fn path_of(fd: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}

/// What is to be started.
pub(super) struct What<'a> {
    /// The program's file.
    pub(super) path: &'a Path,
    /// What it is called with, its name first.
    pub(super) argv: &'a [OsString],
    /// The command that runs it, words parted by spaces; `None` or empty: the kernel.
    pub(super) runner: Option<&'a OsStr>,
}

/// Starts the program, for its dynamic linker to load the agent. Signals are held back from here on until
/// [`Program::wait`] looks at them.
///
/// # Errors
/// The operating system refused to start it.
pub(super) fn start(what: &What<'_>, agent: &str, region: &str) -> Result<Program, Failure> {
    let (signals, before) = block_signals();
    let before_us = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty());
    let mut command = command(what, &preload(agent, before_us.as_deref()));
    command.env(crate::REGION_VARIABLE, region);
    if before_us.is_some() {
        // The variable that stays, shorter, is not taken out.
        command.env(crate::PAIR_VARIABLE, "");
    }
    let restore = move || {
        // SAFETY: a signal set that was filled by the kernel.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
        Ok(())
    };
    // SAFETY: the closure makes one async-signal-safe call and touches nothing else.
    unsafe { command.pre_exec(restore) };
    spawn(command, signals)
}

fn spawn(mut command: Command, signals: libc::sigset_t) -> Result<Program, Failure> {
    let child = command.spawn().map_err(|error| {
        let started = Path::new(command.get_program());
        Failure::new(format!("`{}` cannot be started: {error}", started.display()))
    })?;
    Ok(Program { pid: child.id().cast_signed(), signals, is_held: Mutex::new(false) })
}

/// Starts the program, stopped before its first instruction, for this thread to put the agent into it; with
/// the signal mask that it is to have. Signals are held back as by [`start`].
///
/// # Errors
/// As of [`start`].
#[cfg(has_mapped)]
pub(super) fn start_stopped(what: &What<'_>) -> Result<(Program, libc::sigset_t), Failure> {
    let (signals, before) = block_signals();
    let mut command = Command::new(what.path);
    command.arg0(&what.argv[0]).args(&what.argv[1..]);
    // SAFETY: the closure makes async-signal-safe calls and touches nothing else.
    unsafe { command.pre_exec(move || super::attach::to_be_stopped(&before)) };
    // A child that has one debugger already cannot have us.
    let status = || std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let started = spawn(command, signals).map_err(|failure| match tracer(&status()) {
        None => failure,
        Some(debugger) => Failure::new(format!(
            "`{}` cannot be started: it gets its agent as a debugger's program does, and has process {debugger} as its debugger, which follows `probe`",
            what.path.display()
        )),
    })?;
    Ok((started, before))
}

/// The command that starts the program with `preload` in it. An emulator is a program of the host machine,
/// which must not load that itself.
fn command(what: &What<'_>, preload: &OsStr) -> Command {
    let words = what.runner.map_or(&[][..], OsStr::as_bytes).split(|&byte| byte == b' ');
    let mut words = words.filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let Some(runner) = words.next() else {
        let mut command = Command::new(what.path);
        command.arg0(&what.argv[0]).env("LD_PRELOAD", preload);
        command.args(&what.argv[1..]);
        return command;
    };
    let mut given = OsString::from("LD_PRELOAD=");
    given.push(preload);
    let mut command = Command::new(runner);
    command.args(words).args([OsStr::new("-0"), &what.argv[0], OsStr::new("-E"), &given]);
    command.arg(what.path).args(&what.argv[1..]).env_remove("LD_PRELOAD");
    command.envs(what.runner.map(|runner| (crate::RUNNER_VARIABLE, runner)));
    command
}

/// The agent first, then what was there.
fn preload(agent: &str, before: Option<&OsStr>) -> OsString {
    let mut value = OsString::from(agent);
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

/// Blocks [`SIGNALS`] and returns them with the mask that was there before.
fn block_signals() -> (libc::sigset_t, libc::sigset_t) {
    // SAFETY: a signal set is plain bits.
    let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = signals;
    // SAFETY: a set of our own.
    unsafe { libc::sigemptyset(&mut signals) };
    for signal in SIGNALS {
        // SAFETY: a set of our own, a signal that exists.
        unsafe { libc::sigaddset(&mut signals, signal) };
    }
    // SAFETY: sets of our own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &mut before) };
    (signals, before)
}

impl Program {
    /// Its process.
    #[cfg(has_mapped)]
    pub(super) fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// What is to be said where the program has a debugger as it starts: one that debugs `probe` and follows
    /// its children.
    pub(super) fn debugger(&self, program: &OsStr) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        // A program that has asked its parent to debug it has asked us.
        let debugger = tracer(&status).filter(|&debugger| debugger != std::process::id())?;
        let name = std::fs::read(format!("/proc/{debugger}/comm")).unwrap_or_default();
        let name = foreign::Foreign::new(name.trim_ascii_end());
        Some(format!(
            "{} (process {debugger}) debugs `{}`, and sees a SIGTRAP at each probe without a jump, which it has to pass on \
             (in gdb: `handle SIGTRAP nostop noprint pass`)",
            name.shown(),
            foreign::os(program)
        ))
    }

    /// Waits for its end; passes on signals meanwhile; ends it with SIGTERM after `limit`, or when nobody
    /// reads the events any more.
    pub(super) fn wait(&self, limit: Option<Duration>) -> ExitStatus {
        let started = Instant::now();
        let mut deadline = limit.map(|limit| (limit, libc::SIGTERM));
        loop {
            if let Some(status) = self.status() {
                return status;
            }
            let left = deadline.map(|(at, _)| at.saturating_sub(started.elapsed()));
            match self.next_signal(left) {
                Some(info) if info.si_signo == libc::SIGCHLD => {}
                Some(info) if info.si_signo == libc::SIGPIPE => {
                    if deadline.is_none_or(|(_, signal)| signal == libc::SIGTERM) {
                        deadline = Some((started.elapsed(), libc::SIGTERM));
                    }
                }
                // What the terminal sends, it sends to the program, too.
                Some(info) if info.si_code == SI_KERNEL => {}
                Some(info) => self.send(info.si_signo),
                None => {
                    if let Some((at, signal)) = deadline
                        && started.elapsed() >= at
                    {
                        self.send(signal);
                        let is_asked = signal == libc::SIGTERM;
                        deadline = is_asked.then(|| (started.elapsed() + GRACE, libc::SIGKILL));
                    }
                }
            }
        }
    }

    fn status(&self) -> Option<ExitStatus> {
        let is_held = self.is_held.lock();
        if is_held.as_ref().is_ok_and(|is_held| **is_held) {
            return None;
        }
        loop {
            let mut status = 0;
            // SAFETY: our own child and a place for its status.
            let done = unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) };
            if done < 0 {
                // The agent was being put there, which holds back every signal but one.
                return Some(std::os::unix::process::ExitStatusExt::from_raw(libc::SIGKILL));
            }
            if done != self.pid {
                return None;
            }
            if !libc::WIFSTOPPED(status) {
                return Some(std::os::unix::process::ExitStatusExt::from_raw(status));
            }
            self.go_on(libc::WSTOPSIG(status));
        }
    }

    /// Lets a program go on that has asked its parent to debug it (`PTRACE_TRACEME`) and was stopped by
    /// `signal`. The SIGTRAP that the kernel sends after an execution is the debugger's.
    fn go_on(&self, signal: libc::c_int) {
        // SAFETY: plain data that the call fills.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: our own child, which is stopped, and a place for what has stopped it.
        let told = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, self.pid, nothing, &raw mut info) };
        // SAFETY: a signal that a process has sent names it.
        let is_from_itself =
            told == 0 && info.si_code == libc::SI_USER && unsafe { info.si_pid() } == self.pid;
        let signal = if signal == libc::SIGTRAP && is_from_itself { 0 } else { signal };
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_CONT, self.pid, nothing, signal as libc::c_long) };
    }

    /// Sends a signal; a program that has just ended is not a failure.
    pub(super) fn send(&self, signal: libc::c_int) {
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(self.pid, signal) };
    }

    /// The next signal, or `None` after `timeout` (or an interruption).
    fn next_signal(&self, timeout: Option<Duration>) -> Option<libc::siginfo_t> {
        // SAFETY: plain data that the call fills.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let got = match timeout {
            // SAFETY: a set and a buffer of our own.
            None => unsafe { libc::sigwaitinfo(&self.signals, &mut info) },
            Some(timeout) => {
                let timeout = libc::timespec {
                    // `time_t` has 32 bits on some targets.
                    tv_sec: timeout.as_secs().min(i32::MAX as u64) as _,
                    tv_nsec: timeout.subsec_nanos() as libc::c_long,
                };
                // SAFETY: a set, a buffer and a timeout of our own.
                unsafe { libc::sigtimedwait(&self.signals, &mut info, &timeout) }
            }
        };
        (got > 0).then_some(info)
    }
}

#[cfg(has_mapped)]
impl super::attach::Waits for Program {
    fn hold(&self, pid: libc::pid_t, is_held: bool) {
        if pid != self.pid {
            return;
        }
        if let Ok(mut held) = self.is_held.lock() {
            *held = is_held;
        }
        if !is_held {
            // What has become of it meanwhile, nobody was told.
            // SAFETY: a signal to ourselves, which every thread holds back and `wait` takes.
            unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGCHLD) };
        }
    }
}

/// The process that debugs another one, as that one's `/proc/PID/status` says.
fn tracer(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|&process| process != 0)
}

/// The sender of a signal is the kernel (the terminal), not a process.
const SI_KERNEL: libc::c_int = 0x80;

/// Ends this process by `signal`, as the traced program ended, without a core file of our own.
pub(super) fn die_by(signal: libc::c_int) -> ExitCode {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a limit of our own.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    // SAFETY: the default action is always legal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: a signal set is plain bits.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of our own.
    unsafe { libc::sigemptyset(&mut set) };
    // SAFETY: a set of our own and a signal that exists.
    unsafe { libc::sigaddset(&mut set, signal) };
    // SAFETY: a signal to ourselves; nothing of this process is needed any more.
    unsafe { libc::raise(signal) };
    // SAFETY: sets of our own.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_preload_stays_behind_the_agent() {
        assert_eq!(preload("/agent", None), "/agent");
        assert_eq!(preload("/agent", Some("".as_ref())), "/agent");
        assert_eq!(preload("/agent", Some("libx.so".as_ref())), "/agent:libx.so");
    }

    #[test]
    fn a_runner_gets_the_name_and_the_agent_as_options() {
        let argv = ["cat".into(), "a b".into()];
        let what = What { path: "/bin/cat".as_ref(), argv: &argv, runner: Some("qemu-x  -L /x".as_ref()) };
        let command = command(&what, "/agent".as_ref());
        assert_eq!(command.get_program(), "qemu-x");
        let said: Vec<_> = command.get_args().collect();
        assert_eq!(said, ["-L", "/x", "-0", "cat", "-E", "LD_PRELOAD=/agent", "/bin/cat", "a b"]);
        assert!(command.get_envs().any(|(name, value)| name == "LD_PRELOAD" && value.is_none()));
        let bare = super::command(&What { runner: Some("".as_ref()), ..what }, "/agent".as_ref());
        assert_eq!(bare.get_program(), "/bin/cat");
        assert!(bare.get_envs().any(|(name, value)| name == "LD_PRELOAD" && value.is_some()));
    }

    #[test]
    fn a_tracer_is_a_process_other_than_none() {
        assert_eq!(tracer("Name:\tTracerPid: 7\nPid:\t12\nTracerPid:\t34\nUid:\t0\n"), Some(34));
        assert_eq!(tracer("Name:\tx\nTracerPid:\t0\n"), None);
        assert_eq!(tracer(""), None);
    }

    #[test]
    fn the_agents_file_is_readable_and_sealed() {
        let fd = agent_file(b"\x7fELF").unwrap();
        let path = path_of(&fd);
        assert_eq!(std::fs::read(&path).unwrap(), b"\x7fELF");
        assert!(std::fs::write(&path, b"x").is_err());
    }
}
