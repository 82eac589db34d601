//! Processes as the command line names them.

use super::failure::Failure;
use super::foreign::Foreign;
use super::status::Status;
use libc::pid_t;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `--pid PID|NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// One process.
    Pid(pid_t),
    /// All that go by this name.
    Name(String),
}

/// What is meant by `text`: a number is a process, all else a name.
pub(super) fn target(text: &str) -> Result<Target, String> {
    if text.is_empty() {
        return Err("a process has a number or a name".into());
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Target::Name(text.to_owned()));
    }
    let number = text.parse().ok().filter(|&number: &pid_t| number > 0);
    number.map(Target::Pid).ok_or_else(|| format!("`{text}` is no number of a process"))
}

/// The processes that are meant, each once.
///
/// # Errors
/// None goes by a name.
pub(super) fn find(targets: &[Target]) -> Result<Vec<pid_t>, Failure> {
    let mut found = Vec::new();
    for target in targets {
        match target {
            Target::Pid(pid) => found.push(*pid),
            Target::Name(name) => {
                let before = found.len();
                found.extend(all().filter(|&pid| is_called(pid, name)));
                if found.len() == before {
                    let shown = Foreign::new(name).shown().to_string();
                    let sentence = format!("there is no process called `{shown}`");
                    return Err(Failure::new(sentence).with(Status::NotFound));
                }
            }
        }
    }
    let mut known = std::collections::HashSet::new();
    found.retain(|&pid| known.insert(pid));
    Ok(found)
}

/// All processes but this one.
pub(super) fn all() -> impl Iterator<Item = pid_t> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id().cast_signed();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(move |&pid| pid != own)
}

/// Whether the kernel, or its program's file, calls a process so.
fn is_called(pid: pid_t, name: &str) -> bool {
    let said = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A program that has been replaced.
    let file = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let file = file.file_name().map(OsStr::as_bytes).unwrap_or_default();
    let file = file.strip_suffix(b" (deleted)").unwrap_or(file);
    said.strip_suffix(b"\n").unwrap_or(&said) == name.as_bytes() || file == name.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_all_else_a_name() {
        assert_eq!(target("12"), Ok(Target::Pid(12)));
        assert_eq!(target("nginx"), Ok(Target::Name("nginx".into())));
        assert_eq!(target("7zip"), Ok(Target::Name("7zip".into())));
        assert!(target("").is_err() && target("0").is_err() && target("99999999999").is_err());
    }

    #[test]
    fn a_process_is_found_by_its_programs_name_once() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        while !is_called(pid, "sleep") {
            std::thread::yield_now();
        }
        let found = find(&[Target::Pid(pid), Target::Name("sleep".into()), Target::Pid(pid)]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.iter().filter(|&&found| found == pid).count(), 1);
        let none = find(&[Target::Name("no such \u{1b}name".into())]).unwrap_err();
        assert!(none.to_string().contains("no process called `no such \\x1bname`"), "{none}");
    }
}
