//! QEMU's plugin: how it comes to be loaded, and how it is asked.

use super::Counts;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The plugin, built by the build script for the machine that QEMU runs on.
const PLUGIN: Option<&str> = option_env!("PROBE_WALK_PLUGIN");
/// Set, to the file that the plugin writes, in a process that was started with it.
const OUTPUT: &str = "PROBE_WALK_COUNTS";
/// `close` of this "descriptor" tells the plugin where counting begins and ends.
const ANNOUNCE: usize = 0x5741_4c4b;

/// Whether this process is emulated. `/proc/thread-self` is what QEMU's user mode does not disguise.
pub(crate) fn is_under_qemu() -> bool {
    emulator().is_some()
}

/// The emulator's program.
fn emulator() -> Option<PathBuf> {
    let program = std::fs::read_link("/proc/thread-self/exe").ok()?;
    program.file_name()?.to_str()?.starts_with("qemu-").then_some(program)
}

/// Executes this program again under the same QEMU with the plugin, unless that has been done.
///
/// # Errors
/// It cannot be executed, or the plugin was not built.
pub(crate) fn restart_with_plugin() -> Result<(), String> {
    if std::env::var_os(OUTPUT).is_some() {
        return Ok(());
    }
    let plugin = PLUGIN.ok_or("the build script built no plugin for this target")?;
    let emulator = emulator().ok_or("this is no QEMU")?;
    let arguments = std::fs::read("/proc/thread-self/cmdline").map_err(|error| error.to_string())?;
    let arguments = arguments.split(|&byte| byte == 0).skip(1).map(|word| OsString::from_vec(word.to_vec()));
    let mut arguments: Vec<OsString> = arguments.collect();
    // What follows the last argument's zero byte.
    arguments.pop();
    let output = format!("{}/walk-{}.counts", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let error = Command::new(emulator)
        .args(arguments)
        .env("QEMU_PLUGIN", format!("file={plugin},out={output}"))
        .env(OUTPUT, output)
        .exec();
    Err(format!("QEMU cannot be executed again: {error}"))
}

/// Tells the plugin where counting begins and ends. Neither place has been executed yet: the plugin sees code
/// only when QEMU translates it.
pub(super) fn announce(begins: usize, ends: usize) {
    // SAFETY: no such descriptor is open, so this does nothing; and the kernel's `close` does not look at the
    // rest.
    unsafe { libc::syscall(libc::SYS_close, ANNOUNCE, begins, ends) };
}

/// Reads what the plugin has counted.
pub(super) fn end() -> Result<Counts, String> {
    super::mark(super::walk_counting_ends);
    let output = std::env::var(OUTPUT).map_err(|error| error.to_string())?;
    let lines = std::fs::read_to_string(&output).map_err(|error| format!("{output}: {error}"))?;
    std::fs::remove_file(&output).map_err(|error| format!("{output}: {error}"))?;
    let parse = |line: &str| {
        let (addr, executions) = line.split_once(' ')?;
        Some((usize::from_str_radix(addr, 16).ok()?, executions.parse().ok()?))
    };
    lines.lines().map(|line| parse(line).ok_or(format!("{output}: {line}"))).collect()
}
