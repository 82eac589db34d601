//! A traced program that writes into the memory that it shares with the command, and replaces what it has
//! named: the command neither crashes nor hangs nor grows, and ends as the program does.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{Traced, compiled, trace};
use std::sync::OnceLock;

/// The program that does it.
fn hostile() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("hostile", &["-O1"]))
}

/// Traces it; it must end as it does by itself.
fn traced(options: &[&str], probe: &str, how: &[&str]) -> Traced {
    let mut program = vec![hostile()];
    program.extend(how);
    let traced = trace(options, &[probe], &program);
    assert_eq!(traced.output.status.code(), Some(7), "{how:?}: {:?}", traced.output);
    assert_eq!(traced.output.stdout, b"done\n");
    traced
}

#[test]
fn evt_2_indices_that_a_program_writes_are_not_followed() {
    let traced = traced(&["--buffer", "64K"], "p work", &["tail"]);
    assert_eq!(traced.named("work").count(), 1, "what the agent wrote is still there");
    assert!(traced.summary["garbled_records"].as_u64().unwrap() > 0);
}

#[test]
fn evt_2_noise_in_the_ring_is_counted_and_nothing_else() {
    let traced = traced(&["--buffer", "64K"], "p work", &["noise"]);
    assert!(traced.named("work").count() >= 1);
    assert_eq!(traced.row("work")["hits"], 1);
}

/// A quarter of a gigabyte of events that are all said to be younger than one that never comes.
#[test]
fn evt_2_a_thread_that_never_finishes_an_event_holds_nothing_back() {
    let traced = traced(&["--buffer", "1M"], "p work", &["busy"]);
    assert_eq!(traced.named("work").count(), 120_001);
    let most_kib = peak_of_children_kib();
    assert!(most_kib < 400 << 10, "{most_kib} KiB at the most");
}

/// The most memory that any child of this process has had.
fn peak_of_children_kib() -> u64 {
    // SAFETY: plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a place for the answer.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    u64::try_from(usage.ru_maxrss).unwrap_or(0)
}

#[test]
fn evt_2_events_from_the_future_come_in_time() {
    let traced = traced(&[], "p work", &["future"]);
    assert_eq!(traced.named("work").count(), 1001);
}

#[test]
fn evt_2_counts_have_an_end() {
    let traced = traced(&[], "r work", &["counts"]);
    assert_eq!(traced.row("work%return")["hits"], u64::MAX);
}

/// Maps of any bits are read, added up and shown; 64 KiB of them are not all.
#[test]
fn evt_2_maps_that_the_program_writes_over_are_still_shown() {
    for counted in [["--hist", "1"], ["--sum", "1"], ["--by", "$arg1:s64"], ["--count-by", "comm"]] {
        for option in [&["--every", "1ms"][..], &[]] {
            let traced = traced(&[option, &["-p", "p work"], &counted].concat(), "p:bare work", &["counts"]);
            assert_eq!(traced.summary["answers"].as_array().map(Vec::len), Some(1), "{counted:?}");
        }
    }
}

/// While the command reads them again and again, and shows what has come since.
#[test]
fn evt_2_maps_that_the_program_goes_on_writing_over_are_shown() {
    for counted in
        [&["--hist", "1"][..], &["--by", "$arg1:s64", "--sum", "$arg1:s64"], &["--count-by", "comm"]]
    {
        for format in [&["--no-events", "--every", "20ms", "-p", "p work"][..], &["-p", "p work"]] {
            let traced = traced(&[format, counted].concat(), "p:bare work", &["maps"]);
            assert_eq!(traced.summary["answers"].as_array().map(Vec::len), Some(1), "{counted:?}");
        }
    }
}

/// Whom the command waits for, how many rings there are, where the agent stands: nothing that is believed.
#[test]
fn evt_2_a_header_that_the_program_writes_over_is_not_believed() {
    for options in [&[][..], &["--on-full", "wait"], &["--no-events"]] {
        let traced = traced(options, "p work", &["header"]);
        assert!(traced.summary["probes"].is_array(), "{}", traced.summary);
    }
}

/// The processes that call are the program, a child that lives for 20 s more, and others.
#[test]
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
fn evt_2_calls_that_a_program_writes_without_end_hold_nothing() {
    let began = std::time::Instant::now();
    let traced = traced(&["-f"], "p work", &["calls"]);
    assert_eq!(traced.named("work").count(), 1);
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
}

#[test]
fn evt_2_a_program_that_runs_cannot_claim_that_it_was_not_started() {
    let traced = traced(&[], "p work", &["failed"]);
    assert_eq!(traced.named("work").count(), 1);
    assert_eq!(traced.summary["garbled_records"], 1);
}

/// Where `work` is, as a value of the type `symbol`, when the program has put `how` under its own name.
fn name_of_work(how: &str) -> String {
    let program = compiled("hostile", &["-O1"]);
    // The same names at the same places.
    let other = compiled("hostile", &["-O1", "-Wl,--build-id=0x0123"]);
    let traced = trace(&[], &["p named at=$arg1:symbol"], &[&program, how, &other]);
    assert_eq!(traced.output.status.code(), Some(7), "{how}: {:?}", traced.output);
    let event = traced.named("named").next().expect("it is called");
    event["args"]["at"].as_str().expect("a name or an address").to_owned()
}

#[test]
fn evt_2_a_file_that_is_replaced_by_a_fifo_is_not_waited_for() {
    assert_eq!(name_of_work("same"), "work");
    assert!(name_of_work("fifo").starts_with("0x"));
}

#[test]
fn evt_2_a_file_that_is_not_the_mapped_one_gives_no_names() {
    assert!(name_of_work("other").starts_with("0x"));
}

/// What `--pid` takes for the C library is a file of any length, which only costs reading.
#[test]
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
fn evt_2_a_library_that_a_running_program_has_made_is_not_read_whole() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let folder = common::scratch("library");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("libc.so.6");
    let mut program = common::started(hostile());
    let program = program.args(["library", file.to_str().unwrap()]).stdin(Stdio::piped());
    let mut child = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "mapped\n");
    let pid = child.id().to_string();
    let traced = common::probe().args(["trace", "--pid", &pid, "-p", "p malloc"]).output().unwrap();
    let said = String::from_utf8_lossy(&traced.stderr);
    assert_eq!(traced.status.code(), Some(126), "{said}");
    assert!(said.contains("cannot be read"), "{said}");
    let most_kib = peak_of_children_kib();
    assert!(most_kib < 400 << 10, "{most_kib} KiB at the most");
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn evt_2_no_path_that_a_program_names_is_opened_unseen() {
    let fifo = common::scratch("fifo");
    let name = std::ffi::CString::new(fifo.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let fifo = fifo.to_str().unwrap();
    let paths =
        ["object", fifo, "/dev/zero", "/dev/random", "/dev/ptmx", "/", "/proc/self/mem", "/proc/kmsg"];
    let traced = traced(&[], "p work at=$arg1:symbol", &paths);
    let addresses =
        traced.named("work").filter(|event| event["args"]["at"].as_str().unwrap().starts_with("0x"));
    assert_eq!(addresses.count(), paths.len());
}
