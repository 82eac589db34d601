//! The machine: a first file system of a few files, QEMU, and what it says.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Linux, Options, SOURCES};
use crate::step::run_lines;
use crate::tree::read;

/// No boot takes longer, on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(840);
/// Nor one whose cases are long.
const LONG_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The case that needs counted instructions, where it is the only one.
const COST: &str = "cost";

/// What Linux says when something is wrong, whatever the cases say.
const ALARMS: [&str; 7] =
    ["BUG:", "WARNING:", "Oops", "Kernel panic", "general protection", "unregister_netdevice", "INFO: task"];

/// Boots, and runs the cases.
pub(super) fn boot(root: &Path, linux: &Linux, module: &Path, options: &Options<'_>) -> Result<(), String> {
    let folder = linux.folder(root);
    let release = linux.release(root)?;
    let cases = cases(root, options)?;
    let image = folder.join(format!("initramfs-{}", options.cpus));
    let failed = |error: std::io::Error| format!("{}: {error}", image.display());
    fs::write(&image, initramfs(root, linux, module)?).map_err(failed)?;
    let [program, machine @ ..] = linux.qemu else { return Err("no QEMU is named".to_owned()) };
    let mut qemu = Command::new(program);
    qemu.args(machine).args(["-m", "768M", "-smp", &options.cpus.to_string()]);
    qemu.args(match (options.counts_instructions, options.is_parallel) {
        (true, _) => ["-icount", "shift=0"],
        // QEMU 7.2 loses patches of text that another CPU executes if each CPU has a thread.
        (false, false) => ["-accel", "tcg,thread=single"],
        (false, true) => ["-accel", "tcg,thread=multi"],
    });
    // A serial line, and nothing else.
    qemu.args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nodefaults"]);
    qemu.arg("-kernel").arg(folder.join(format!("root/boot/{}-{release}", linux.image)));
    qemu.arg("-initrd").arg(&image).arg("-append").arg(format!(
        "{} quiet panic=-1 oops=panic nowatchdog no_timer_check nokaslr rcupdate.rcu_cpu_stall_suppress=1 preempt=full rounds={} cases={}",
        linux.console,
        options.rounds,
        cases.join(",")
    ));
    let started = Instant::now();
    let limit = limit(&cases, options.rounds);
    let log = folder.join(format!("log-{}", options.cpus));
    let mut log = fs::File::create(&log).map_err(failed)?;
    let mut lines = Vec::new();
    let status = run_lines(qemu, limit, |line| {
        // What cannot be written there is shown at a failure all the same.
        let _ = writeln!(log, "{line}");
        if is_shown(&line) {
            println!("{line}");
        }
        lines.push(line);
    });
    let status = status.map_err(|error| format!("{program}: {error}"))?;
    println!("Linux {release}, {} CPUs: {:.1} s", options.cpus, started.elapsed().as_secs_f64());
    let wrong = verdict(&cases, &lines);
    if status.is_some_and(|status| status.success()) && wrong.is_empty() {
        return Ok(());
    }
    let ended = status
        .map_or_else(|| "QEMU was ended, it took too long".to_owned(), |status| format!("QEMU: {status}"));
    Err(format!("{}\n{}\n{ended}", lines.join("\n"), wrong.join("\n")))
}

/// How long a boot with these cases may take: all at once, `walk` among them, as `cargo ci torture linux`
/// does, need more than those that `cargo ci test` runs.
fn limit(cases: &[String], rounds: u32) -> Duration {
    let is_long = rounds > 1 || cases.iter().any(|case| case.starts_with("walk") || case == "faults");
    if is_long { LONG_LIMIT } else { LIMIT }
}

/// What the module and the cases say.
fn is_shown(line: &str) -> bool {
    line.contains("probes: ") || line.starts_with("CASE ")
}

/// What is wrong with what a machine said.
fn verdict(cases: &[String], lines: &[String]) -> Vec<String> {
    let mut wrong: Vec<String> =
        lines.iter().filter(|line| ALARMS.iter().any(|alarm| line.contains(alarm))).cloned().collect();
    for case in cases {
        let ok = format!("CASE {case} ok");
        if !lines.iter().any(|line| line.contains(&ok)) {
            wrong.push(format!("the case {case} did not end well"));
        }
    }
    if !lines.iter().any(|line| line.contains("ALL CASES HAVE RUN")) {
        wrong.push("the machine stopped before the end".to_owned());
    }
    wrong
}

/// The cases to run: those that the file of the cases has, or some of them.
fn cases(root: &Path, options: &Options<'_>) -> Result<Vec<String>, String> {
    let text = read(&root.join(SOURCES).join("cases"))?;
    let all = named(&text);
    if options.cases.is_empty() {
        let is_run = |case: &String| (case == COST) == options.counts_instructions;
        return Ok(all.into_iter().filter(is_run).collect());
    }
    match options.cases.iter().find(|case| !all.contains(case)) {
        Some(unknown) => Err(format!("there is no case {unknown}; there are: {}", all.join(" "))),
        None => Ok(options.cases.to_vec()),
    }
}

fn named(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix("case_")?.split_once("()"));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// What the kernel finds as its file system: a cpio archive (Linux, `driver-api/early-userspace/
/// buffer-format`, "newc").
fn initramfs(root: &Path, linux: &Linux, module: &Path) -> Result<Vec<u8>, String> {
    let unpacked = linux.folder(root).join("root");
    let release = linux.release(root)?;
    let sources = root.join(SOURCES);
    let veth = unpacked.join(format!("lib/modules/{release}/kernel/drivers/net/veth.ko"));
    let files = [
        ("init", sources.join("init"), 0o755),
        ("load", sources.join("load"), 0o644),
        ("cases", sources.join("cases"), 0o644),
        ("bin/busybox", unpacked.join("bin/busybox"), 0o755),
        ("lib/veth.ko", veth, 0o644),
        ("lib/probes.ko", module.to_owned(), 0o644),
    ];
    let mut archive = Vec::new();
    for folder in ["bin", "lib", "proc", "sys", "dev", "tmp"] {
        entry(&mut archive, folder, 0o040_755, b"");
    }
    for (name, file, mode) in files {
        let bytes = fs::read(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        entry(&mut archive, name, 0o100_000 | mode, &bytes);
    }
    entry(&mut archive, "bin/sh", 0o120_777, b"busybox");
    entry(&mut archive, "TRAILER!!!", 0, b"");
    Ok(archive)
}

fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, bytes: &[u8]) {
    let number = archive.len() + 1;
    let fields = [number, mode as usize, 0, 0, 1, 0, bytes.len(), 0, 0, 0, 0, name.len() + 1, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08X}").bytes());
    }
    archive.extend(name.bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(bytes);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_says_nothing_has_failed() {
        let cases = vec!["pairs".to_owned()];
        let good = ["CASE pairs ok, from 1 to 2 s", "ALL CASES HAVE RUN"].map(str::to_owned);
        assert!(verdict(&cases, &good).is_empty());
        assert_eq!(verdict(&cases, &good[..1]).len(), 1);
        assert_eq!(verdict(&cases, &good[1..]).len(), 1);
        let oops = [&good[..], &["[ 1.0] BUG: unable to handle page fault".to_owned()]].concat();
        assert_eq!(verdict(&cases, &oops).len(), 1);
    }

    #[test]
    fn the_walk_has_hours() {
        let named = |name: &str| [name.to_owned()];
        assert_eq!(limit(&named("pairs"), 1), LIMIT);
        assert_eq!(limit(&named("pairs"), 2), LONG_LIMIT);
        assert_eq!(limit(&named("walk_posts"), 1), LONG_LIMIT);
    }

    #[test]
    fn cases_are_the_functions_of_the_file() {
        assert_eq!(named("case_pairs() { x; }\nother() {\ncase_soak() {\n"), ["pairs", "soak"]);
    }

    #[test]
    fn an_archive_entry_is_padded_to_words() {
        let mut archive = Vec::new();
        entry(&mut archive, "init", 0o100_755, b"ab");
        assert_eq!(archive.len(), 116 + 4);
        assert!(archive.starts_with(b"07070100000001000081ED"));
    }
}
