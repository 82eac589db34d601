//! Programs that no dynamic linker of glibc's starts, static ones and those of musl: traced from before their
//! first constructor on, and as without `probe`.
#![cfg(all(target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]

mod common;

use common::{compiled, compiled_by, probe, scratch, trace};
use rstest::rstest;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Of the constructor, and of four threads.
const CALLS: u64 = 7 + 4 * 1000;

/// How `programs/starts.c` is made.
#[derive(Clone, Copy)]
enum Made {
    Static,
    StaticPie,
    StaticOfMusl,
    DynamicOfMusl,
}

impl Made {
    fn path(self) -> &'static str {
        static BUILT: [OnceLock<String>; 4] = [const { OnceLock::new() }; 4];
        let musl = |options: &[&str]| compiled_by("musl-gcc", "starts", options);
        BUILT[self as usize].get_or_init(|| match self {
            Self::Static => compiled("starts", &["-O1", "-pthread", "-static", "-no-pie"]),
            Self::StaticPie => compiled("starts", &["-O1", "-pthread", "-static-pie"]),
            Self::StaticOfMusl => musl(&["-O1", "-static", "-no-pie"]),
            Self::DynamicOfMusl => musl(&["-O1"]),
        })
    }
}

/// The command in the way of this, and without it.
fn both(path: &str, argument: &str, change: impl Fn(&mut Command)) -> [Output; 2] {
    let mut traced = probe();
    traced.args(["trace", "-o", "/dev/null", "-p", "p work", "-p", "r work", "--", path, argument]);
    let mut bare = common::started(path);
    bare.arg(argument).env_remove("LD_PRELOAD");
    [traced, bare].map(|mut command| {
        change(&mut command);
        command.stdin(Stdio::null()).output().expect("it runs")
    })
}

/// HIT_7 and EVT_1: what runs before `main` as well.
#[rstest]
#[case::by_jump(&[])]
#[case::by_trap(&["--no-jumps"])]
fn hit_7_every_hit_from_the_first_constructor_on_is_counted(
    #[case] options: &[&str],
    #[values(Made::Static, Made::StaticPie, Made::StaticOfMusl, Made::DynamicOfMusl)] made: Made,
) {
    let probes = ["p:work work n=$arg1:s64", "r:worked work"];
    let traced = trace(options, &probes, &[made.path()]);
    assert_eq!(String::from_utf8_lossy(&traced.output.stdout), "5998000\n", "{:?}", traced.output);
    assert_eq!(traced.output.status.code(), Some(7));
    assert_eq!([traced.row("work"), traced.row("worked")].map(|row| row["hits"].as_u64()), [Some(CALLS); 2]);
    let first: Vec<_> = traced.named("work").take(7).map(|event| event["args"]["n"].as_i64()).collect();
    assert_eq!(first, (0..7).map(Some).collect::<Vec<_>>());
}

/// HIT_1: every function of theirs, and of their C library.
#[rstest]
#[case::by_jump(&["--no-events"])]
#[case::by_trap(&["--no-events", "--no-jumps"])]
fn hit_1_a_program_with_all_its_functions_probed_does_the_same(
    #[case] options: &[&str],
    #[values(Made::Static, Made::StaticPie, Made::StaticOfMusl, Made::DynamicOfMusl)] made: Made,
) {
    let traced = trace(options, &["p *", "r *"], &[made.path()]);
    assert_eq!(String::from_utf8_lossy(&traced.output.stdout), "5998000\n", "{:?}", traced.output);
    assert_eq!(traced.output.status.code(), Some(7));
}

/// HIT_13: signals, threads, descriptors, variables and `errno` of the program, and who debugs it.
#[rstest]
fn hit_13_a_program_sees_nothing_of_how_it_was_started(
    #[values(Made::Static, Made::StaticPie, Made::StaticOfMusl, Made::DynamicOfMusl)] made: Made,
) {
    let block = || {
        // SAFETY: a signal set is plain bits.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a set of our own, signals that exist.
        unsafe { libc::sigaddset(&mut set, libc::SIGTRAP) };
        // SAFETY: as above.
        unsafe { libc::sigaddset(&mut set, libc::SIGUSR1) };
        // SAFETY: as above.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        Ok(())
    };
    let [traced, bare] = both(made.path(), "show", |command| {
        // SAFETY: calls that are async-signal-safe.
        unsafe { command.pre_exec(block) };
    });
    assert_eq!(String::from_utf8_lossy(&traced.stdout), String::from_utf8_lossy(&bare.stdout), "{traced:?}");
    assert!(String::from_utf8_lossy(&bare.stdout).starts_with("SIGTRAP 1 SIGUSR1 1\n"));
    assert_eq!(traced.status, bare.status);
}

/// The command ends as the program did.
#[rstest]
fn a_signal_that_ends_the_program_ends_the_command(
    #[values(Made::Static, Made::DynamicOfMusl)] made: Made,
    #[values(libc::SIGKILL, libc::SIGTERM, libc::SIGTRAP)] signal: i32,
) {
    let [traced, bare] = both(made.path(), &signal.to_string(), |_| ());
    assert_eq!((traced.status.signal(), bare.status.signal()), (Some(signal), Some(signal)), "{traced:?}");
}

/// What is wrong is said, with this status, and nothing of the program has run.
fn refused(options: &[&str], program: &str, status: i32, sentence: &str) {
    let output = probe().arg("trace").args(options).args(["--", program]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.starts_with("probe: ") && said.contains(sentence), "{said}");
    assert_eq!(output.stdout, b"", "{said}");
}

#[rstest]
fn a_program_that_cannot_be_traced_does_not_come_to_its_main(
    #[values(Made::Static, Made::DynamicOfMusl)] made: Made,
) {
    refused(&["-p", "p worc"], made.path(), 2, "did you mean `work`?");
    refused(&["--runner", "qemu-x86_64", "-p", "p work"], made.path(), 126, "under an emulator");
}

/// A copy of the static program, changed by `objcopy`.
fn copied(made: Made, options: &[&str]) -> String {
    let copy = scratch("copy").display().to_string();
    let status = Command::new("objcopy").args(options).args([made.path(), &copy]).status();
    assert!(status.expect("objcopy runs").success());
    copy
}

#[test]
fn a_program_of_go_is_refused() {
    let copy = copied(Made::Static, &["--add-section", ".go.buildinfo=/dev/null"]);
    refused(&["-p", "p work"], &copy, 126, "one of Go");
}

/// Of `probe` and its children, so that the program can have no other.
#[test]
fn a_program_that_has_a_debugger_is_refused() {
    let mut command = Command::new(compiled("follows", &["-O1"]));
    command.arg(probe().get_program()).args(["trace", "-p", "p work", "--", Made::Static.path()]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*output.stdout), (Some(126), &b""[..]), "{said}");
    assert!(said.starts_with("probe: ") && said.contains("which follows `probe`"), "{said}");
}

#[test]
fn a_stripped_program_has_no_place_that_could_be_named() {
    refused(&["-p", "p work"], &copied(Made::Static, &["--strip-all"]), 2, "there is no function `work`");
}

/// Rust's, which a program of musl is most often.
#[test]
fn hit_7_a_static_program_of_rust_is_traced_from_its_start() {
    let built = scratch("attach_musl").display().to_string();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/attach_musl.rs");
    let options = ["--edition=2024", "-O", "--target=x86_64-unknown-linux-musl", "-o", &built, source];
    assert!(Command::new(rustc).args(options).status().expect("rustc runs").success());
    let mut command = probe();
    command.args(["trace", "--no-events", "--format", "json", "-p", "p work", "-p", "p mmap", "--", &built]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command runs");
    child.stdin.take().unwrap().write_all(b"1000\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n0 wrong\n");
    let said = String::from_utf8_lossy(&output.stderr);
    let summary: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(summary["probes"][0]["hits"], 4000, "{said}");
    refused(&["-p", "r work"], &built, 126, "can throw exceptions");
}

/// A program that is stopped takes SIGTERM only when it goes on, which nobody lets it: SIGKILL ends it.
#[test]
fn the_end_of_the_time_ends_the_program() {
    let mut command = probe();
    command.args(["trace", "--duration", "50ms", "-o", "/dev/null", "-p", "p work", "--"]);
    let stopped = command.args([Made::Static.path(), &libc::SIGSTOP.to_string()]).output().unwrap();
    assert_eq!(stopped.status.signal(), Some(libc::SIGKILL), "{stopped:?}");
}
