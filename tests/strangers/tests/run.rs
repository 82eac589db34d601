//! One run of a program: in a folder of its own, within a time limit, with nothing left behind.

use crate::mode::Mode;
use crate::program::Program;
use std::fmt;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// By this variable the processes of a run are found. Programs that print their environment leave it out.
const MARK: &str = "STRANGER";
/// Where the programs find others.
const FOLDERS: [&str; 2] = ["/usr/bin", "/bin"];
/// How long processes that a program leaves behind have to end.
const LEFT: Duration = Duration::from_secs(3);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// Not at all, within the limit.
    Hang,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Hang => write!(f, "no end within the limit"),
        }
    }
}

/// What can be told of a run from outside.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) end: End,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Processes that were still there at the end.
    pub(crate) left: usize,
    /// What `probe` wrote: an object per line.
    pub(crate) report: String,
}

/// What all runs share.
#[derive(Debug)]
pub(crate) struct Runner {
    /// The command.
    pub(crate) probe: PathBuf,
    /// Where the built programs are.
    pub(crate) built: PathBuf,
    /// Where runs have their folders.
    pub(crate) scratch: PathBuf,
    /// How long one may take.
    pub(crate) limit: Duration,
}

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // A program may have taken its folder away, or what can be written in it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether a tool is installed.
pub(crate) fn is_installed(tool: &str) -> bool {
    FOLDERS.iter().any(|folder| Path::new(folder).join(tool).exists())
}

impl Runner {
    /// Runs a program, bare or in a mode.
    ///
    /// # Errors
    /// It could not be started, or what it printed could not be read.
    pub(crate) fn run(&self, program: &Program, mode: Option<&Mode>) -> Result<Seen, String> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        // Names of one length: the stack's contents move with them.
        let id = format!("{:07}-{:05}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let folder = Folder(self.scratch.join(&id));
        let wrong = |error: std::io::Error| format!("{}: {error}", folder.0.display());
        let inside = folder.0.join("in");
        fs::create_dir_all(&inside).map_err(wrong)?;
        for file in program.files() {
            // A copy that is being written cannot be executed while some other run starts.
            fs::hard_link(self.built.join(&file), inside.join(&file)).map_err(wrong)?;
        }
        let file = |name: &str| folder.0.join(name);
        let mut command = self.command(program, mode, &inside, &file("report"));
        command.stdout(File::create(file("stdout")).map_err(wrong)?);
        command.stderr(File::create(file("stderr")).map_err(wrong)?);
        command.env(MARK, &id).stdin(Stdio::null()).current_dir(&inside).process_group(0);
        // Whoever starts this test may have left descriptors open.
        let close = || {
            // SAFETY: a system call that takes numbers; what std itself has open here closes by exec, too.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
            Ok(())
        };
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(close) };
        let mut child = command.spawn().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
        let end = self.wait(&mut child).map_err(|error| format!("waiting: {error}"))?;
        let left = clear(&child, &id, if end == End::Hang { Duration::ZERO } else { LEFT });
        let read = |name: &str| fs::read(file(name)).map_err(wrong);
        let report = fs::read_to_string(file("report")).unwrap_or_default();
        Ok(Seen { end, stdout: read("stdout")?, stderr: read("stderr")?, left, report })
    }

    fn command(&self, program: &Program, mode: Option<&Mode>, inside: &Path, report: &Path) -> Command {
        let path = inside.join(&program.name);
        let under = |inner: &Path| match program.under.split_first() {
            None => Command::new(inner),
            Some((tool, arguments)) => {
                let mut command = Command::new(tool);
                command.args(arguments).arg(inner);
                command
            }
        };
        let mut command = match mode {
            None => under(&path),
            Some(mode) => {
                let mut command = under(&self.probe);
                command.args(["trace", "--format", "json", "-o"]).arg(report);
                command.args(mode.arguments(&program.name)).args(&program.probe);
                if !program.has_events {
                    command.arg("--no-events");
                }
                command.arg("--").arg(&path);
                command
            }
        };
        command.args(&program.argv);
        command.env_clear().env("PATH", FOLDERS.join(":")).env("LC_ALL", "C").env("HOME", "/nonexistent");
        command
    }

    /// Waits until it ends, or its time has.
    fn wait(&self, child: &mut Child) -> std::io::Result<End> {
        if let Some(pid) = descriptor(child.id().cast_signed())
            && is_readable(&pid, self.limit)
        {
            return Ok(End::of(child.wait()?));
        }
        Ok(child.try_wait()?.map_or(End::Hang, End::of))
    }
}

impl End {
    fn of(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or_default()), Self::Status)
    }
}

/// A descriptor that is readable when the process has ended.
fn descriptor(pid: libc::pid_t) -> Option<OwnedFd> {
    // SAFETY: a system call that takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: a descriptor just made, which nobody else has.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Whether it is, within the time.
fn is_readable(fd: &OwnedFd, time: Duration) -> bool {
    let ends = Instant::now() + time;
    loop {
        let left = ends.saturating_duration_since(Instant::now()).as_millis();
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry of our own.
        match unsafe { libc::poll(&mut poll, 1, i32::try_from(left).unwrap_or(i32::MAX)) } {
            1 => return true,
            0 => return false,
            _ => {}
        }
    }
}

/// Ends what is left of a run, after `grace`: how many processes that were.
fn clear(child: &Child, id: &str, grace: Duration) -> usize {
    let group = child.id().cast_signed();
    let ends = Instant::now() + grace;
    let patient = processes(id, group).into_iter().filter_map(descriptor);
    let _ = patient.filter(|pid| is_readable(pid, ends.saturating_duration_since(Instant::now()))).count();
    let left = processes(id, group);
    for &pid in &left {
        // SAFETY: a process of this run.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    // SAFETY: the group that this run was started in. Its leader may be waited for below only, so the number
    // is not another's.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    // SAFETY: our own child; an error says that it has been waited for.
    unsafe { libc::waitpid(group, std::ptr::null_mut(), 0) };
    left.len()
}

/// The living processes of a run.
fn processes(id: &str, group: libc::pid_t) -> Vec<libc::pid_t> {
    let mark = format!("{MARK}={id}\0");
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<libc::pid_t>().ok());
    let is_ours = |&pid: &libc::pid_t| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        // `pid (name) state parent group …`
        let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let (state, its) = (fields.next().unwrap_or("Z"), fields.nth(1).unwrap_or_default());
        let environment = || fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_marked = || environment().windows(mark.len()).any(|part| part == mark.as_bytes());
        !matches!(state, "Z" | "X") && (its.parse() == Ok(group) || is_marked())
    };
    pids.filter(is_ours).collect()
}
