//! Tracing real programs: what the events say, and that the programs do not notice.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{assert_unchanged, bare, probe, program, scratch, trace};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

const MALLOC: &str = "r libc.so.6:malloc size=$arg1:u64 ptr=$retval:x64";

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_recursive_listing_is_unchanged_and_every_path_is_seen() {
    let program = ["/bin/ls", "-R", common::tree()];
    let traced = trace(&["--buffer", "64M"], &["p libc.so.6:opendir path=$arg1:string", MALLOC], &program);
    assert_unchanged(&traced, &program);
    let listed: BTreeSet<String> = String::from_utf8_lossy(&traced.output.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(':').filter(|line| line.starts_with('/')).map(str::to_owned))
        .collect();
    let seen: BTreeSet<String> =
        traced.named("opendir").map(|event| event["args"]["path"].as_str().unwrap().to_owned()).collect();
    assert_eq!(seen, listed);
    let mut calls = 0;
    for event in traced.named("malloc%return") {
        calls += 1;
        assert!(event["args"]["size"].as_u64().unwrap() < 1 << 30);
        assert!(event["args"]["ptr"].as_str().unwrap().starts_with("0x"));
        assert!(event["duration_ns"].as_u64().unwrap() > 0);
    }
    let row = traced.row("malloc%return");
    assert!(calls > 100);
    assert_eq!((row["hits"].as_u64(), row["dropped_events"].as_u64()), (Some(calls), Some(0)));
    assert_eq!(row["duration_ns"]["count"].as_u64(), Some(calls));
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn events_come_in_order_of_time() {
    let numbers = numbers(500_000);
    let program = ["sort", "--parallel=4", "-S", "64M", numbers.to_str().unwrap()];
    let traced = trace(
        &[],
        &["p libc.so.6:pthread_mutex_lock", "p libc.so.6:pthread_create", "r libc.so.6:read n=$retval:s64"],
        &program,
    );
    assert_unchanged(&traced, &program);
    let times: Vec<u64> = traced.events.iter().map(|event| event["time_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "events of several threads are merged by time");
    let threads: BTreeSet<u64> = traced.events.iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert!(threads.len() > 1, "sort uses threads for so much: {}", traced.summary);
    let read: i64 = traced.named("read%return").map(|event| event["args"]["n"].as_i64().unwrap()).sum();
    assert_eq!(read.cast_unsigned(), fs::metadata(&numbers).unwrap().len());
    let _ = fs::remove_file(numbers);
}

fn numbers(count: u64) -> std::path::PathBuf {
    let mut text = String::new();
    for i in 0..count {
        let _ = writeln!(text, "{}", i * 7919 % 1_000_003);
    }
    let path = scratch("numbers");
    fs::write(&path, text).unwrap();
    path
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn python_with_threads_says_the_same() {
    let script = "import json, threading\n\
        def work(): json.loads(json.dumps(list(range(3000))))\n\
        threads = [threading.Thread(target=work) for _ in range(8)]\n\
        [t.start() for t in threads]; [t.join() for t in threads]\n\
        print('done', sum(range(1000)))";
    let program = ["python3", "-c", script];
    let traced =
        trace(&["--no-events"], &["r libc.so.6:malloc", "p libc.so.6:mem*", "p libc.so.6:strlen"], &program);
    assert_unchanged(&traced, &program);
    assert!(traced.events.is_empty());
    for (name, least) in [("malloc%return", 100), ("memchr", 10), ("strlen", 100)] {
        assert!(traced.row(name)["hits"].as_u64().unwrap() > least, "{name}: {}", traced.row(name));
    }
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn many_short_threads_share_the_rings() {
    let script = "import threading\n\
        for _ in range(1500):\n\
        \x20   t = threading.Thread(target=int); t.start(); t.join()\n\
        print('done')";
    let program = ["python3", "-c", script];
    let traced =
        trace(&["--buffer", "256K"], &["p libc.so.6:madvise", "p libc.so.6:pthread_create"], &program);
    assert_unchanged(&traced, &program);
    assert_eq!(traced.summary["lost_events"], 0);
    assert_eq!(traced.named("pthread_create").count(), 1500);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn gzip_packs_the_same_bytes() {
    let numbers = numbers(50_000);
    let program = ["gzip", "-c", "-n", numbers.to_str().unwrap()];
    let traced = trace(&[], &["r libc.so.6:write n=$retval:s64", "r libc.so.6:read n=$retval:s64"], &program);
    assert_eq!(traced.output.stdout, bare(&program).stdout);
    let written: i64 = traced.named("write%return").map(|event| event["args"]["n"].as_i64().unwrap()).sum();
    assert_eq!(written as usize, traced.output.stdout.len());
    let _ = fs::remove_file(numbers);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn git_log_is_unchanged() {
    let program = ["git", "-C", env!("CARGO_MANIFEST_DIR"), "--no-pager", "log", "--oneline", "-20"];
    let traced = trace(&[], &[MALLOC], &program);
    assert_unchanged(&traced, &program);
    assert!(traced.row("malloc%return")["hits"].as_u64().unwrap() > 0);
}

const PIPELINE: [&str; 3] = ["sh", "-c", "ls /usr | sort -r | head -3; exit 7"];

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_pipeline_is_followed_with_f() {
    let traced = trace(&["-f"], &["p libc.so.6:write fd=$arg1:s32 text=$arg2:string"], &PIPELINE);
    assert_unchanged(&traced, &PIPELINE);
    assert_eq!(traced.output.status.code(), Some(7));
    let names: BTreeSet<&str> = traced.named("write").map(|event| event["comm"].as_str().unwrap()).collect();
    assert!(["head", "ls", "sort"].iter().all(|name| names.contains(name)), "{names:?}");
    let processes: BTreeSet<u64> =
        traced.named("write").map(|event| event["pid"].as_u64().unwrap()).collect();
    assert!(processes.len() >= 3);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn without_f_children_run_bare() {
    let traced = trace(&[], &["p libc.so.6:write"], &PIPELINE);
    assert_unchanged(&traced, &PIPELINE);
    assert_eq!(traced.row("write")["hits"], 0, "the shell itself writes nothing");
    let program = ["sh", "-c", "env | sort; true"];
    let traced = trace(&[], &["p libc.so.6:write"], &program);
    let text = String::from_utf8_lossy(&traced.output.stdout).into_owned();
    assert!(!text.contains("LD_PRELOAD") && !text.contains("PROBE_TRACE"), "{text}");
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_program_executed_in_place_is_traced() {
    let program = ["env", "sh", "-c", "exec ls /usr"];
    let traced = trace(&[], &["p libc.so.6:opendir path=$arg1:string"], &program);
    assert_unchanged(&traced, &program);
    let event = traced.named("opendir").next().expect("ls opens a folder");
    assert_eq!((&event["comm"], &event["args"]["path"]), (&"ls".into(), &"/usr".into()));
    let environment = trace(&[], &["p libc.so.6:opendir"], &["env", "env"]);
    assert!(!String::from_utf8_lossy(&environment.output.stdout).contains("PROBE_TRACE"));
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn an_earlier_preload_is_kept() {
    let output = probe()
        .args([
            "trace",
            "-p",
            "p libc.so.6:write",
            "--output",
            "/dev/null",
            "--",
            &program("sh"),
            "-c",
            "echo $LD_PRELOAD",
        ])
        .env("LD_PRELOAD", "libc.so.6")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "libc.so.6\n");
}

/// With a preloaded library of the program's own, which stays, and without.
#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn hit_13_arguments_environment_and_auxiliary_vector_are_where_they_are_bare() {
    let start = common::compiled("start", &[]);
    // What is preloaded under an emulator is the emulator's, too.
    let preloads = [None, Some("libc.so.6")].into_iter().take(if common::is_emulated() { 1 } else { 2 });
    for preload in preloads {
        let run = |mut command: Command, arguments: &[&str]| {
            command.args(arguments).env_remove("LD_PRELOAD").envs(preload.map(|value| ("LD_PRELOAD", value)));
            command.output().expect("it runs")
        };
        let bare = run(common::started(&start), &["one"]);
        let trace = ["trace", "-p", "p libc.so.6:printf", "--output", "/dev/null", "--", &start, "one"];
        let traced = run(probe(), &trace);
        assert!(bare.status.success() && traced.status.success(), "{traced:?} {bare:?}");
        // QEMU hands over an environment in its own order.
        let lines = |output: &[u8]| {
            let text = String::from_utf8_lossy(output).into_owned();
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&traced.stdout), lines(&bare.stdout), "{preload:?}");
    }
}

/// What the first argument is in: the register of one of the calling conventions, or the stack.
fn first_argument() -> &'static str {
    let is_here = |name: &str| probe_trace::registers().iter().any(|(here, _)| *here == name);
    let registers = [("rdi", "%di"), ("x0", "%x0"), ("gpr3", "%gpr3"), ("a0", "%a0")];
    registers.iter().find(|(name, _)| is_here(name)).map_or("$stack1", |(_, written)| written)
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn every_kind_of_value_arrives() {
    let first = first_argument();
    let definition = format!(
        "p:wrote libc.so.6:write fd={first}:s32 text=$arg2:string same=+0($arg2):string first=+0($arg2):char \
         bytes=+0($arg2):x8[3] len=$arg3 comm=$comm seven=\\7:u8 minus=\\-1:s16 bad=+0(\\16):u64 \
         badtext=\\16:string badarray=+8(\\16):x32[4] nested=+0(+0(@environ)):char caller=$stack0:symbol \
         names=+0(@environ):string[2]"
    );
    let shell = program("sh");
    let traced = trace(&[], &[&definition], &["env", "-i", "FIRST=1", "SECOND=2", &shell, "-c", "echo abc"]);
    assert_eq!(traced.output.stdout, b"abc\n");
    let args = &traced.named("wrote").next().expect("echo writes")["args"];
    assert_eq!(args["fd"], 1);
    assert_eq!((&args["text"], &args["same"]), (&"abc\n".into(), &"abc\n".into()));
    assert_eq!(args["first"], "a");
    assert_eq!(args["bytes"], serde_json::json!(["0x61", "0x62", "0x63"]));
    assert_eq!((&args["len"], &args["comm"]), (&"0x4".into(), &"sh".into()));
    assert_eq!((&args["seven"], &args["minus"]), (&7.into(), &(-1).into()));
    for bad in ["bad", "badtext", "badarray"] {
        assert_eq!(args[bad], Value::Null, "{bad}");
    }
    // QEMU hands over an environment in its own order, with what is for the agent in it.
    if !common::is_emulated() {
        assert_eq!(args["nested"], "F");
        assert_eq!(args["names"][0], "FIRST=1");
    }
    assert_eq!(args["names"][0].as_str().unwrap()[..1], args["nested"]);
    if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
        assert!(!args["caller"].as_str().unwrap().is_empty());
    }
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_return_probe_sees_entry_arguments_and_what_they_point_to_at_return() {
    let file = scratch("content");
    fs::write(&file, "hello\0").unwrap();
    let program = ["wc", file.to_str().unwrap()];
    let definition = "p libc.so.6:read%return fd=$arg1:s32 text=$arg2:string n=$retval:s64";
    let traced = trace(&[], &[definition, "r libc.so.6:read"], &program);
    let read = traced.events.iter().find(|event| event["args"]["n"] == 6).expect("wc reads the file");
    assert_eq!(read["args"]["text"], "hello");
    let _ = fs::remove_file(file);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn exit_status_and_death_by_signal_are_passed_on() {
    for status in [0, 1, 42, 255] {
        let traced = trace(&[], &["p libc.so.6:write"], &["sh", "-c", &format!("exit {status}")]);
        assert_eq!(traced.output.status.code(), Some(status));
    }
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGUSR1, libc::SIGTRAP] {
        let traced = trace(&[], &["p libc.so.6:write"], &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(traced.output.status.signal(), Some(signal));
    }
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn signals_to_the_command_reach_the_program() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut command = probe();
        // Whoever runs the tests may ignore the signal (`nohup`, a shell's background job), and programs
        // inherit that.
        let restore = move || {
            // SAFETY: the default action needs no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: `signal` may be called between fork and exec.
        unsafe { command.pre_exec(restore) };
        let mut child = command
            .args(["trace", "-p", "p libc.so.6:read fd=$arg1:s32", "--", &program("cat")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // `cat` waits for input now.
        assert!(lines.any(|line| line.unwrap().contains("fd=0")));
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        assert!(rest.iter().any(|line| line.contains("was killed by signal")), "{rest:?}");
        assert_eq!(child.wait().unwrap().signal(), Some(signal));
    }
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_program_that_takes_too_long_is_ended() {
    // Under an emulator the agent itself needs more time to start.
    let limit = if common::is_emulated() { "5s" } else { "200ms" };
    let mut child = probe()
        .args([
            "trace",
            "--duration",
            limit,
            "-p",
            "p libc.so.6:read",
            "-o",
            "/dev/null",
            "--",
            &program("cat"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let input = child.stdin.take();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    drop(input);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_full_buffer_drops_events_and_counts_them() {
    let program = ["/bin/ls", "-R", common::tree()];
    // i386's busybox compares and measures strings by code of its own.
    let often = if cfg!(target_arch = "x86") { "malloc" } else { "strlen" };
    let traced = trace(&["--buffer", "4K"], &[&format!("p libc.so.6:{often} text=$arg1:string")], &program);
    assert_unchanged(&traced, &program);
    let row = traced.row(often);
    let (hits, dropped) = (row["hits"].as_u64().unwrap(), row["dropped_events"].as_u64().unwrap());
    assert!(dropped > 0, "{row}");
    assert_eq!(traced.events.len() as u64 + dropped, hits);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_program_that_handles_signals_and_blocks_them_is_unchanged() {
    let script = "import signal, os\n\
        signal.signal(signal.SIGTRAP, lambda *a: print('trapped', flush=True))\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n\
        os.getenv('X'); open('/dev/null').read()\n\
        signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 65))\n\
        os.kill(os.getpid(), signal.SIGTRAP)\n\
        print(signal.getsignal(signal.SIGTRAP) is not None)";
    let program = ["python3", "-c", script];
    let traced =
        trace(&["--no-events"], &["p libc.so.6:read", "p libc.so.6:malloc", "p libc.so.6:kill"], &program);
    assert_unchanged(&traced, &program);
    assert!(traced.row("kill")["hits"].as_u64().unwrap() > 0);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_pattern_plants_on_all_matches_and_file_offsets_and_several_probes_share_a_place() {
    let traced = trace(
        &[],
        &["p libc.so.6:*dir", "p:again libc.so.6:opendir", "r:ret libc.so.6:opendir"],
        &["ls", "/"],
    );
    // With 32 bits programs call `readdir64`, which the pattern does not match.
    let read = if cfg!(target_pointer_width = "64") { "readdir" } else { "opendir" };
    for name in ["opendir", read, "closedir", "again", "ret"] {
        assert!(traced.row(name)["hits"].as_u64().unwrap() > 0, "{name}");
    }
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn every_function_of_libc_at_once() {
    let script = "import threading\n\
        threads = [threading.Thread(target=lambda: sum(range(1000))) for _ in range(4)]\n\
        [t.start() for t in threads]; [t.join() for t in threads]\n\
        print('done')";
    let python = ["python3", "-c", script];
    let shell = ["sh", "-c", "ls /usr | sort | head -3"];
    for program in [&python, &shell] {
        for every in ["p libc.so.6:*", "r libc.so.6:*"] {
            let traced = trace(&["--no-events"], &[every], program);
            assert_unchanged(&traced, program);
            assert!(traced.summary["probes"].as_array().unwrap().len() > 1000);
        }
    }
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn text_has_a_head_columns_and_a_summary() {
    let output = probe()
        .args([
            "trace",
            "-p",
            "p libc.so.6:opendir path=$arg1:string",
            "-p",
            "r libc.so.6:malloc",
            "--",
            &program("ls"),
            "/",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains('\x1b'), "no colours without a terminal");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("SECONDS") && lines[0].contains("EVENT"));
    let column = lines[0].find("EVENT").unwrap();
    let opened = lines.iter().find(|line| line.contains("path=")).unwrap();
    assert!(opened[column..].starts_with("opendir ") && opened.ends_with(" path=\"/\""), "{opened}");
    assert!(text.contains("exited with 0") && text.contains("malloc%return took") && text.contains('█'));
}

/// RET_2: pools grow with the threads, before they are empty.
#[test]
fn ret_2_three_hundred_threads_are_inside_of_one_function() {
    let program = common::compiled("blocked", &["-O1", "-pthread"]);
    let probe = format!("r {program}:blocked number=$arg1:s32");
    let traced = trace(&[], &[&probe], &[&program]);
    assert_unchanged(&traced, &[&program]);
    let row = traced.row("blocked%return");
    assert_eq!((&row["hits"], &row["missed_pool"]), (&Value::from(300), &Value::from(0)));
}

/// EVT_1: what the agent does where a thread is created is not the program's.
#[test]
fn evt_1_a_thread_that_is_created_asks_the_loader_nothing() {
    let program = common::compiled("blocked", &["-O1", "-pthread"]);
    let inside = format!("r {program}:blocked");
    let traced = trace(&[], &["p libc.so.6:dl_iterate_phdr", &inside], &[&program]);
    assert_unchanged(&traced, &[&program]);
    let rows = ["dl_iterate_phdr", "blocked%return"].map(|name| traced.row(name)["hits"].clone());
    assert_eq!(rows, [0, 300].map(Value::from));
}
