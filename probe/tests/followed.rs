//! `probe trace -f`, and programs that its agent cannot be loaded into: the command puts one into them, or
//! they run as without it, and are named.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "x86")))]

mod common;

use common::{Traced, compiled, compiled_by, probe, scratch, trace};
use rstest::rstest;
use serde_json::json;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::OnceLock;

/// Whether the command puts no agent into programs that no dynamic linker loads it into.
const IS_ALONE: bool = cfg!(target_arch = "x86");

fn executes() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("executes", &["-O1"]))
}

fn executes_static() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("executes", &["-O1", "-static"]))
}

fn traced(how: &str, path: &str, user: &[&str]) -> Traced {
    let program = [&[executes(), how, path][..], user].concat();
    trace(&["-f"], &["p work n=$arg1:s64"], &program)
}

/// The program has run as without `probe`, which names it; `status` is in hexadecimal, as `wait` has it.
#[track_caller]
fn assert_is_alone(traced: &Traced, said: &str, path: &str, reason: &str) {
    assert_eq!(String::from_utf8_lossy(&traced.output.stdout), said, "{:?}", traced.output);
    let wanted = json!([{ "program": path, "reason": reason, "times": 1 }]);
    assert_eq!(traced.summary["not_followed"], wanted);
    let seen: Vec<_> = traced.events.iter().map(|event| event["args"]["n"].as_i64()).collect();
    assert_eq!(seen, [Some(7), Some(9)]);
}

/// The same where the command puts the agent into it, before its first constructor.
#[track_caller]
fn assert_is_followed(traced: &Traced, said: &str, path: &str, reason: &str) {
    if IS_ALONE {
        return assert_is_alone(traced, said, path, reason);
    }
    assert_eq!(String::from_utf8_lossy(&traced.output.stdout), said, "{:?}", traced.output);
    assert_eq!(traced.summary["not_followed"], json!([]));
    let seen: Vec<_> = traced.events.iter().map(|event| event["args"]["n"].as_i64()).collect();
    assert_eq!(seen, [7, 9, 7, 0, 1, 2].map(Some));
}

#[rstest]
fn evt_1_a_static_program_that_a_traced_one_executes_is_followed(
    #[values("execve", "execl", "execvp", "fexecve", "execveat", "vfork", "spawn")] how: &str,
) {
    let path = executes_static();
    assert_is_followed(&traced(how, path, &[]), "bare alone\n500\n", path, "it is static");
}

/// Its linker would end it if it were to load the agent.
#[cfg(target_arch = "x86_64")]
#[rstest]
fn evt_1_a_program_of_musl_that_one_of_glibc_executes_is_followed(
    #[values("execve", "vfork", "spawn")] how: &str,
) {
    let path = &compiled_by("musl-gcc", "executes", &["-O1"]);
    let reason = "it has a dynamic linker other than glibc's";
    assert_is_followed(&traced(how, path, &[]), "bare alone\n500\n", path, reason);
}

/// Whatever executes it.
#[cfg(target_arch = "x86_64")]
#[rstest]
#[case::a_static_one(compiled("executes", &["-O1", "-static-pie"]))]
#[case::one_of_musl(compiled_by("musl-gcc", "executes", &["-O1"]))]
fn evt_1_what_a_program_without_glibcs_linker_executes_is_followed(
    #[case] by: String,
    #[values("execve", "vfork", "spawn")] how: &str,
) {
    let of_musl = &compiled_by("musl-gcc", "executes", &["-O1", "-static"]);
    for path in [executes_static(), of_musl, &by] {
        let traced = trace(&["-f"], &["p work n=$arg1:s64"], &[&by, how, path]);
        assert_is_followed(&traced, "bare alone\n500\n", path, "");
    }
    let traced = trace(&["-f"], &["p work n=$arg1:s64"], &[&by, how, executes()]);
    assert_eq!(traced.events.len(), 6, "{:?}", traced.output);
}

/// The definition of `work` in that program alone.
#[cfg(target_arch = "x86_64")]
fn work_of(path: &str) -> String {
    format!("p {}:work n=$arg1:s64", path.rsplit('/').next().unwrap())
}

/// The command waits for its end, and is told of its stops meanwhile.
#[cfg(target_arch = "x86_64")]
#[test]
fn evt_1_a_program_that_the_first_one_executes_in_its_own_place_ends_as_it_does() {
    let path = executes_static();
    for _ in 0..20 {
        let traced = trace(&["-f"], &[&work_of(path)], &["sh", "-c", &format!("exec {path} tell")]);
        assert_eq!(String::from_utf8_lossy(&traced.output.stdout), "bare alone\n");
        assert_eq!((traced.output.status.code(), traced.events.len()), (Some(5), 4), "{:?}", traced.output);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn evt_1_many_programs_that_are_executed_at_the_same_time_lose_nothing() {
    let path = executes_static();
    let many = format!("seq 60 | xargs -P 20 -I{{}} {path} tell");
    let traced = trace(&["-f", "--no-events"], &[&work_of(path)], &["sh", "-c", &many]);
    assert_eq!(traced.summary["not_followed"], json!([]));
    assert_eq!(traced.row("work")["hits"], 4 * 60, "{}", traced.summary);
}

/// A program of another word size, which is run by the same kernel.
#[cfg(target_arch = "x86_64")]
#[test]
fn evt_1_a_program_of_another_word_size_runs_as_without() {
    let path = &compiled("small", &["-O1", "-m32", "-ffreestanding", "-nostdlib", "-static", "-no-pie"]);
    assert_is_alone(&traced("spawn", path, &[]), "500\n", path, "it is a 32-bit program");
}

/// It looks as if it had a C library, and sets up no thread.
#[cfg(target_arch = "x86_64")]
fn bare() -> String {
    compiled("bare", &["-O1", "-ffreestanding", "-nostdlib", "-static", "-no-pie"])
}

#[cfg(target_arch = "x86_64")]
const HAS_NO_THREAD: &str = "its C library tells no number of its first thread as it starts";

#[cfg(target_arch = "x86_64")]
#[test]
fn evt_1_a_static_program_that_never_tells_its_threads_number_runs_as_without() {
    let path = &bare();
    let traced = traced("spawn", path, &[]);
    let reason = traced.summary["not_followed"][0]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains(HAS_NO_THREAD), "{}", traced.summary);
    assert_is_alone(&traced, "500\n", path, &reason);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn evt_1_a_static_program_that_has_made_no_call_is_left_at_the_end() {
    let (path, fifo) = (bare(), scratch("fifo"));
    let fifo = fifo.display();
    let script = format!("mkfifo {fifo}; {path} >{fifo} 2>&1 & read line <{fifo}; echo $!");
    let traced = trace(&["-f"], &["p libc:getpid"], &["sh", "-c", &script]);
    let said = String::from_utf8_lossy(&traced.output.stdout).into_owned();
    let pid: i32 = said.trim().parse().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    // SAFETY: the program that has just been asked about.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    assert!(status.contains("\nTracerPid:\t0\n"), "{status}");
    assert!(traced.summary["not_followed"].to_string().contains(HAS_NO_THREAD), "{}", traced.summary);
}

/// The command debugs it meanwhile.
#[cfg(target_arch = "x86_64")]
#[test]
fn evt_1_a_process_whose_execution_fails_stops_as_it_does_alone() {
    let refused = compiled("refused", &["-O1"]);
    let traced = trace(
        &["-f"],
        &["p libc:getpid"],
        &["sh", "-c", &format!("{refused} {}; exit $?", executes_static())],
    );
    assert_eq!(traced.output.status.code(), Some(0), "{:?}", traced.output);
}

#[test]
fn evt_1_a_script_of_a_static_interpreter_is_followed() {
    let (path, interpreter) = (scratch("script").display().to_string(), executes_static());
    // The interpreter is told `tell` and no more.
    let runs = scratch("runs").display().to_string();
    fs::write(&runs, format!("#! {interpreter} tell\n")).unwrap();
    fs::write(&path, format!("#!{runs}\n")).unwrap();
    for script in [&runs, &path] {
        fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let traced = traced("execve", &path, &[]);
    let reason = format!("its interpreter `{interpreter}` is static");
    let all = [json!({ "program": path, "reason": reason, "times": 1 })];
    let alone = usize::from(IS_ALONE);
    assert_eq!(traced.summary["not_followed"], json!(all[..alone]), "{:?}", traced.output);
    assert_eq!(traced.events.len() == 2, IS_ALONE, "{:?}", traced.output);
}

/// What is in the environment besides stays there, and what the agent can be loaded into is followed.
#[test]
fn evt_1_a_preload_of_the_programs_own_stays() {
    let own = "libm.so.6";
    let file = scratch("events.json");
    for (path, said) in [(executes_static(), "libm.so.6 alone\n500\n"), (executes(), "seen\n500\n")] {
        let mut command = probe();
        command.env("LD_PRELOAD", own).args(["trace", "-f", "-p", "p work", "-o"]).arg(&file).arg("--");
        let output = command.args([executes(), "spawn", path]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(told.ends_with(said), "{told}");
        let summary = fs::read_to_string(&file).unwrap();
        let sentence = format!("`{path}` was not followed: it is static");
        assert_eq!(summary.contains(&sentence), IS_ALONE && path != executes(), "{summary}");
    }
}

/// Only root can make what the following need.
fn is_root() -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn evt_1_a_set_id_program_runs_as_without() {
    if !is_root() {
        return;
    }
    let path = &compiled("executes", &["-O1"]);
    chown(path, Some(65534), Some(65534)).unwrap();
    for mode in [0o4755, 0o2755] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let reason = "it gets rights of its own as it starts (set-id or capabilities)";
        assert_is_alone(&traced("vfork", path, &[]), "bare alone\n500\n", path, reason);
    }
    // One that gets no others is as any.
    chown(path, Some(0), Some(0)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(traced("vfork", path, &[]).events.len(), 6);
}

/// The kernel gives no capabilities to a program that is debugged.
#[rstest]
fn evt_1_a_program_with_capabilities_runs_as_without(#[values("-static", "-O1")] linked: &str) {
    if !is_root() {
        return;
    }
    let path = &compiled("executes", &["-O1", linked]);
    // `cap_net_bind_service+ep`: version 2 with "effective", what is permitted, what is inherited.
    let rights: Vec<u8> =
        [0x0200_0001_u32, 1 << 10, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let file = CString::new(path.as_str()).unwrap();
    let (name, value) = (c"security.capability".as_ptr(), rights.as_ptr().cast());
    // SAFETY: two strings, and so many bytes.
    if unsafe { libc::setxattr(file.as_ptr(), name, value, rights.len(), 0) } != 0 {
        let error = std::io::Error::last_os_error().raw_os_error();
        assert!(matches!(error, Some(libc::EPERM | libc::EOPNOTSUPP)), "{error:?}");
        return;
    }
    let reason = "it gets rights of its own as it starts (set-id or capabilities)";
    assert_is_alone(&traced("execve", path, &["65534"]), "bare alone\n500\n", path, reason);
    assert_eq!(
        traced("execve", path, &[]).summary["not_followed"] == json!([]),
        !IS_ALONE || linked == "-O1"
    );
}

#[test]
fn evt_1_a_program_that_cannot_be_read_runs_as_without() {
    if !is_root() {
        return;
    }
    let path = &compiled("executes", &["-O1"]);
    fs::set_permissions(path, fs::Permissions::from_mode(0o711)).unwrap();
    assert_is_alone(&traced("execve", path, &["65534"]), "bare alone\n500\n", path, "it cannot be read");
}

/// As it is executed, its descriptors are closed.
#[test]
fn evt_1_a_program_that_is_executed_without_a_free_descriptor_is_followed() {
    let traced = traced("full", executes(), &[]);
    assert_eq!(traced.summary["not_followed"], json!([]), "{:?}", traced.output);
    assert_eq!(traced.events.len(), 6, "{:?}", traced.output);
}

/// A child of `vfork` would leave to its parent what such a look does not give back.
#[rstest]
fn evt_1_a_look_at_a_program_takes_no_memory(#[values(false, true)] is_script: bool) {
    let script = scratch("script").display().to_string();
    fs::write(&script, format!("#! {} tell\n", executes())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let traced = traced("many", if is_script { &script } else { executes() }, &[]);
    assert_eq!(String::from_utf8_lossy(&traced.output.stdout), "as before\n", "{:?}", traced.output);
}
