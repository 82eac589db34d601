//! A command's process: its lines of output as they come, its end, and the limit after which it is ended with
//! all that it has started.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Runs `command` to its end, or for `limit`: then it is ended, and there is no status. With all its lines of
/// output.
pub(crate) fn run_within(
    command: Command,
    limit: Duration,
) -> std::io::Result<(Option<ExitStatus>, Vec<String>)> {
    let mut all = Vec::new();
    let status = run_lines(command, limit, |line| all.push(line))?;
    Ok((status, all))
}

/// As [`run_within`]; each line is handed on as it comes.
pub(crate) fn run_lines(
    command: Command,
    limit: Duration,
    line: impl FnMut(String),
) -> std::io::Result<Option<ExitStatus>> {
    let (mut child, lines) = spawn(command)?;
    follow(&mut child, &lines, limit, line)
}

/// Starts `command`; its lines of output and errors come through the channel, in the order in which they are
/// read.
pub(super) fn spawn(mut command: Command) -> std::io::Result<(Child, Receiver<String>)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>);
    let stderr = child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>);
    for stream in [stdout, stderr].into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
    }
    Ok((child, lines))
}

/// Hands on each line until the child has ended; `None` if it had to be ended because `limit` was over.
pub(super) fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
    mut line: impl FnMut(String),
) -> std::io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        let left = limit.saturating_sub(started.elapsed());
        match lines.recv_timeout(left.min(Duration::from_secs(1))) {
            Ok(text) => line(text),
            Err(RecvTimeoutError::Disconnected) => return child.wait().map(Some),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                end_tree(child.id());
                child.wait()?;
                return Ok(None);
            }
            // Silent for a second. If it has ended, something that it started still holds its output open.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(Some(status));
                }
            }
        }
    }
}

/// Ends a process and everything below it. The children go first, so that none is adopted and lost.
fn end_tree(process: u32) {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
        end_tree(child);
    }
    // A failure means that it ended by itself in between.
    let _ = Command::new("kill").args(["-9", &process.to_string()]).stderr(Stdio::null()).status();
}
