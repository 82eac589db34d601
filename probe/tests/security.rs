//! What a traced program's neighbours can do with the agent and with the ring buffers: nothing.
//!
//! Natively, where the kernel knows of set-group-id files and of other users; an emulator runs under neither.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

mod common;

use common::{bare, probe, scratch};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Nobody's number, as a user and as a group.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: asks only.
    unsafe { libc::geteuid() == 0 }
}

/// A group that files may be given to, and that is not this process's own; none if the user is in one only.
fn other_group() -> Option<u32> {
    if is_root() {
        return Some(NOBODY);
    }
    let mut groups = [0; 64];
    // SAFETY: room for so many.
    let count = unsafe { libc::getgroups(groups.len() as i32, groups.as_mut_ptr()) };
    // SAFETY: asks only.
    let own = unsafe { libc::getegid() };
    groups.iter().copied().take(count.max(0).unsigned_abs() as usize).find(|&group| group != own)
}

/// A copy of `cat` with those bits of its mode.
fn cat(name: &str, mode: u32, user: Option<u32>, group: Option<u32>) -> PathBuf {
    let found = bare(&["sh", "-c", "command -v cat"]).stdout;
    let path = scratch(name);
    fs::copy(String::from_utf8(found).unwrap().trim(), &path).unwrap();
    std::os::unix::fs::chown(&path, user, group).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755 | mode)).unwrap();
    path
}

/// What the program at `path` shows of its identity and its mappings when a traced shell starts it.
fn shown_by(path: &Path) -> String {
    let line = format!("{} /proc/self/status /proc/self/maps; echo traced", path.display());
    let output =
        probe().args(["trace", "-f", "-p", "p libc.so.6:read", "--", "sh", "-c", &line]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.ends_with("traced\n"), "{said}");
    said
}

/// Whether the ids in the line of `/proc/PID/status` that begins with `key` differ: real, effective, saved,
/// file system.
fn differ(status: &str, key: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel shows it");
    let mut ids = line.split_whitespace();
    ids.next() != ids.next()
}

/// What gains rights when it is executed gets neither the agent nor the memory; what does not gets both.
#[test]
fn a_set_id_program_that_a_traced_one_starts_has_no_agent() {
    let is_in = |said: &str| said.contains("probe-agent") || said.contains("probe-trace");
    let said = shown_by(&cat("plain", 0, None, None));
    assert!(said.contains("probe-agent") && said.contains("probe-trace"), "{said}");
    let group = other_group();
    let mut programs = Vec::new();
    programs.extend(group.map(|group| (cat("setgid", 0o2000, None, Some(group)), "Gid:")));
    programs.extend(is_root().then(|| (cat("setuid", 0o4000, Some(NOBODY), None), "Uid:")));
    for (path, key) in programs {
        let said = shown_by(&path);
        // Where the file system does not heed the bits, nothing is gained, and nothing is to be kept away.
        if differ(&said, key) {
            assert!(!is_in(&said), "{said}");
        } else {
            println!("{} gains nothing here", path.display());
        }
    }
}

/// Agent and ring buffers have no name that somebody else could use: they are no files, and the descriptors
/// that lead to them are the command's own. Its sockets are pairs, without an address.
#[test]
fn other_users_reach_neither_agent_nor_ring_buffers() {
    let mut command = probe();
    command.args(["trace", "-f", "-p", "p libc.so.6:read", "--", "sh", "-c", "echo ready; read line"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let folder = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let mut ours = Vec::new();
    for entry in fs::read_dir(&folder).unwrap().flatten() {
        let leads_to = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        if let Some(socket) = leads_to.strip_prefix("socket:[") {
            let number = socket.trim_end_matches(']');
            let known = fs::read_to_string("/proc/net/unix").unwrap();
            let mut lines = known.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let words = lines.find(|words| words.get(6) == Some(&number)).expect("a pair's end");
            assert_eq!(words.len(), 7, "it has no name: {words:?}");
        }
        assert!(!leads_to.starts_with("/dev/shm") && !leads_to.starts_with("/tmp"), "{leads_to}");
        if leads_to.contains("memfd:probe-") {
            ours.push(entry.path());
        }
    }
    assert_eq!(ours.len(), 2, "the agent and the ring buffers: {ours:?}");
    let metadata = fs::metadata(&folder).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o500);
    // SAFETY: asks only.
    assert_eq!(metadata.uid(), unsafe { libc::geteuid() });
    // The traced program has the memory, and no descriptor that leads to it.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let traced = children.split_whitespace().next().expect("the shell");
    let maps = fs::read_to_string(format!("/proc/{traced}/maps")).unwrap();
    assert!(maps.contains("memfd:probe-trace"), "{maps}");
    for entry in fs::read_dir(format!("/proc/{traced}/fd")).unwrap().flatten() {
        let leads_to = fs::read_link(entry.path()).unwrap_or_default();
        assert!(!leads_to.display().to_string().contains("memfd:probe-"), "{leads_to:?}");
    }
    for path in &ours {
        assert!(fs::File::open(path).is_ok(), "the user that traces can");
        if is_root() {
            let mut other = Command::new("cat");
            let said = other.arg(path).uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).output().unwrap();
            let error = String::from_utf8(said.stderr).unwrap();
            assert!(!said.status.success() && said.stdout.is_empty(), "{path:?}");
            assert!(error.contains("denied"), "{error}");
        }
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}
