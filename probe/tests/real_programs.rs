//! The main job, on programs that nobody built for it: what they print is what they print bare, and the
//! events carry what really happened. Among them objects that are loaded long after the start, and children
//! made with all signals blocked.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{
    assert_says_the_same, assert_unchanged, bare, compiled, probe, program, scratch, started, trace,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const OPENDIR: &str = "p libc.so.6:opendir path=$arg1:string";
const MALLOC: &str = "r libc.so.6:malloc size=$arg1:u64 ptr=$retval:x64";
const DATE: &str = "p libresolv.so.2:ns_datetosecs text=$arg1:string";

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn ls_prints_its_listing_and_the_trace_shows_paths_that_exist() {
    let program = [&program("/bin/ls"), "-R", common::tree()];
    let output = probe().args(["trace", "-p", OPENDIR, "-p", MALLOC, "--"]).args(program).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let bare = bare(&program);
    assert!(output.stdout == bare.stdout, "the listing is another one");
    assert_eq!(output.status, bare.status);
    let paths = said.lines().filter_map(|line| line.split_once("path=\"")?.1.strip_suffix('"'));
    let paths: BTreeSet<&str> = paths.collect();
    assert!(paths.len() > 5 && paths.iter().all(|path| Path::new(path).is_dir()), "{paths:?}");
    let sizes =
        said.lines().filter_map(|line| line.split_once("size=")?.1.split_once(' ')?.0.parse::<u64>().ok());
    let sizes: Vec<u64> = sizes.collect();
    assert!(sizes.len() > 10 && sizes.iter().all(|&size| size > 0));
}

/// A file of `count` lines of numbers in no order.
fn numbers(count: u64) -> PathBuf {
    let mut text = String::with_capacity(count as usize * 7);
    for i in 0..count {
        let _ = writeln!(text, "{}", i * 7919 % 1_000_003);
    }
    let path = scratch("numbers");
    fs::write(&path, text).unwrap();
    path
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn sort_with_threads_sorts_fifty_megabytes() {
    // Under an emulator a tenth of that: still more than sort gives to one thread.
    let numbers = numbers(if common::is_emulated() { 770_000 } else { 7_700_000 });
    let program = ["sort", "-n", "--parallel=2", "-S", "1G", numbers.to_str().unwrap()];
    let traced =
        trace(&[], &["p libc.so.6:pthread_create", "r libc.so.6:read n=$retval:s64", MALLOC], &program);
    let bare = bare(&program);
    assert!(traced.output.stdout == bare.stdout, "the order is another one");
    assert_eq!(traced.output.status, bare.status);
    assert!(traced.named("pthread_create").count() > 0, "so much is sorted by several threads");
    let read: i64 = traced.named("read%return").map(|event| event["args"]["n"].as_i64().unwrap()).sum();
    assert_eq!(read.cast_unsigned(), fs::metadata(&numbers).unwrap().len());
    assert!(traced.named("malloc%return").all(|event| event["args"]["size"].as_u64().unwrap() > 0));
    let _ = fs::remove_file(numbers);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn what_gzip_packs_traced_it_unpacks_traced() {
    let (plain, packed) = (numbers(200_000), scratch("numbers.gz"));
    let pack = ["gzip", "-c", "-n", plain.to_str().unwrap()];
    let traced = trace(&[], &["r libc.so.6:read n=$retval:s64"], &pack);
    assert!(traced.output.stdout == bare(&pack).stdout);
    fs::write(&packed, &traced.output.stdout).unwrap();
    let unpack = ["gzip", "-d", "-c", packed.to_str().unwrap()];
    let traced = trace(&[], &["r libc.so.6:write n=$retval:s64"], &unpack);
    assert!(traced.output.status.success() && traced.output.stdout == fs::read(&plain).unwrap());
    let written: i64 = traced.named("write%return").map(|event| event["args"]["n"].as_i64().unwrap()).sum();
    assert_eq!(written as usize, traced.output.stdout.len());
    let _ = (fs::remove_file(plain), fs::remove_file(packed));
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn git_log_shows_its_files() {
    let program = ["git", "-C", env!("CARGO_MANIFEST_DIR"), "--no-pager", "log", "--oneline", "-20"];
    let traced = trace(&["-f"], &["p libc.so.6:open64 path=$arg1:string", MALLOC], &program);
    assert_unchanged(&traced, &program);
    let paths: BTreeSet<&str> =
        traced.named("open64").filter_map(|event| event["args"]["path"].as_str()).collect();
    assert!(paths.iter().any(|path| path.contains("HEAD")), "{paths:?}");
    assert!(traced.named("malloc%return").any(|event| event["args"]["size"].as_u64().unwrap() > 0));
}

// ---- objects that come later ------------------------------------------------------------------------------

/// Runs Python and returns what it prints.
fn python(script: &str) -> String {
    let output = started(&program("python3")).args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn an_extension_module_is_probed_when_it_is_loaded() {
    let module = python("import _json; print(_json.__file__)");
    let program = ["python3", "-c", "import json; print(json.loads('[1, 2]'))"];
    let definition = format!("p {module}:PyInit__json");
    let name = Path::new(&module).file_name().unwrap().to_str().unwrap();
    let traced = trace(&[], &[&definition, "p libc.so.6:strlen"], &program);
    assert_unchanged(&traced, &program);
    // Not its events: that many others may have filled the buffer.
    assert_eq!(traced.row("PyInit__json")["hits"], 1);
    assert_eq!(traced.row("PyInit__json")["object"], name);
    assert!(traced.row("strlen")["hits"].as_u64().unwrap() > 0, "what is there at the start is planted then");
}

/// Loads a library, calls it and unloads it, three times.
const COMING_AND_GOING: &str = "import ctypes, _ctypes\n\
    for _ in range(3):\n\
    \x20   lib = ctypes.CDLL('libresolv.so.2')\n\
    \x20   print(lib.ns_datetosecs(b'20000101000010', ctypes.byref(ctypes.c_int())))\n\
    \x20   _ctypes.dlclose(lib._handle)";

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_library_that_comes_and_goes_is_probed_each_time() {
    let program = ["python3", "-c", COMING_AND_GOING];
    let traced = trace(&[], &[DATE, "r libresolv.so.2:ns_datetosecs secs=$retval:u32"], &program);
    assert_unchanged(&traced, &program);
    assert_eq!(traced.output.stdout, b"946684810\n946684810\n946684810\n");
    let texts: Vec<_> = traced.named("ns_datetosecs").map(|event| &event["args"]["text"]).collect();
    assert_eq!(texts, ["20000101000010"; 3]);
    let values: Vec<_> = traced.named("ns_datetosecs%return").map(|event| &event["args"]["secs"]).collect();
    assert_eq!(values, [946_684_810; 3]);
    assert_eq!(traced.row("ns_datetosecs")["hits"], 3);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn the_agents_own_work_while_it_plants_is_not_traced() {
    let program = ["python3", "-c", COMING_AND_GOING];
    let opened = |probes: &[&str]| {
        let traced = trace(&[], probes, &program);
        let paths = traced.named("openat").chain(traced.named("open64"));
        paths
            .filter(|event| event["args"]["path"].as_str().is_some_and(|path| path.contains("libresolv")))
            .count()
    };
    let opens = ["p libc.so.6:open64 path=$arg1:string", "p libc.so.6:openat path=$arg2:string"];
    assert_eq!(opened(&[opens[0], opens[1], DATE]), opened(&opens));
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_library_that_never_comes_is_reported() {
    let never = "p libthread_db.so.1:td_init";
    let traced = trace(&[], &[never, "p libc.so.6:write"], &["sh", "-c", "echo x; exit 3"]);
    assert_eq!((traced.output.stdout.as_slice(), traced.output.status.code()), (&b"x\n"[..], Some(3)));
    assert_eq!(traced.summary["never_planted"], serde_json::json!([never]));
    assert_eq!(traced.row("write")["hits"], 1);
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_function_that_a_later_library_does_not_have_is_reported() {
    let wrong = "p libresolv.so.2:ns_datetosex";
    let program = ["python3", "-c", COMING_AND_GOING];
    let traced = trace(&[], &[wrong], &program);
    assert_says_the_same(&traced, &program);
    assert_eq!(traced.output.status.code(), Some(123), "it was planted nowhere");
    let said = traced.summary["refused"].to_string();
    assert!(said.contains("did you mean `ns_datetosecs`"), "{}", traced.summary);
}

/// A function of which a resolver of the library's own decides which code it stands for.
#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn an_indirect_function_of_a_later_library_is_planted_at_the_next_load() {
    let library = compiled("indirect", &["-O1", "-shared", "-fPIC"]);
    let script = format!(
        "import ctypes\n\
         twice = ctypes.CDLL('{library}').indirect_twice\n\
         print(twice(21))\n\
         ctypes.CDLL('libresolv.so.2')\n\
         print(twice(4), twice(5))"
    );
    let program = ["python3", "-c", &script];
    let traced = trace(&[], &[&format!("p:twice {library}:indirect_twice x=$arg1:s32")], &program);
    assert_unchanged(&traced, &program);
    assert_eq!(traced.output.stdout, b"42\n8 10\n");
    let values: Vec<_> = traced.named("twice").map(|event| &event["args"]["x"]).collect();
    assert_eq!(values, [4, 5]);
}

/// What matches is probed when it comes, as what is there already.
#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_pattern_of_objects_means_later_ones_too() {
    let library = compiled("indirect", &["-O1", "-shared", "-fPIC"]);
    let script = format!(
        "import ctypes\n\
         ctypes.CDLL(None).ffs(6)\n\
         twice = ctypes.CDLL('{library}').indirect_twice\n\
         print(twice(21))\n\
         ctypes.CDLL('libresolv.so.2')\n\
         print(twice(4), twice(5))"
    );
    let program = ["python3", "-c", &script];
    let folder = library.rsplit_once('/').map_or(".", |(folder, _)| folder);
    let later = format!("p {folder}/*indirect*:indirect_* x=$arg1:s32");
    let traced = trace(&[], &["p *:ffs x=$arg1:s32", &later], &program);
    assert_says_the_same(&traced, &program);
    assert_eq!(traced.output.stdout, b"42\n8 10\n");
    let of =
        |name| -> Vec<i64> { traced.named(name).filter_map(|event| event["args"]["x"].as_i64()).collect() };
    assert_eq!(of("ffs"), [6]);
    assert_eq!(of("indirect_twice"), [4, 5]);
}

// ---- children made with all signals blocked ---------------------------------------------------------------

#[test]
#[cfg_attr(
    target_arch = "x86",
    ignore = "its children are the machine's own /bin/sh, whose loader says that it is for x86-64"
)]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn spawned_children_of_every_kind_run_with_all_of_libc_probed() {
    let script = "import os, signal, subprocess\n\
        every = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]\n\
        null = os.open('/dev/null', os.O_WRONLY)\n\
        def spawn(**how):\n\
        \x20   pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'echo spawned >&2; exit 7'], os.environ,\n\
        \x20       file_actions=[(os.POSIX_SPAWN_DUP2, null, 2), (os.POSIX_SPAWN_CLOSE, null)], **how)\n\
        \x20   print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\n\
        spawn()\n\
        spawn(setsigmask=[])\n\
        spawn(setsigmask=every)\n\
        spawn(setsigdef=[signal.SIGPIPE], setpgroup=0)\n\
        spawn(setsigdef=every, setsigmask=[])\n\
        print(subprocess.run(['/bin/echo', 'run'], stdout=subprocess.PIPE).stdout)\n\
        print(subprocess.run(['sh', '-c', 'exit 5'], close_fds=False).returncode)\n\
        print(subprocess.run('kill -TRAP $$', shell=True).returncode)\n\
        print(os.popen('echo popen').read())\n";
    // What it starts are the machine's own programs, also under an emulator, where it can start no others
    // untraced. There libc's own `system` would hand them the agent, which is not of their architecture.
    let system = if common::is_emulated() { "" } else { "os.system('exit 3')" };
    let script = format!("{script}{system}");
    let program = ["python3", "-c", &script];
    let wanted =
        ["p libc.so.6:dup2", "p libc.so.6:execve", "p libc.so.6:sigprocmask", "p libc.so.6:sigaction"];
    let traced = trace(&["--no-events"], &wanted, &program);
    assert_unchanged(&traced, &program);
    for every in ["p libc.so.6:*", "r libc.so.6:*"] {
        for options in [&["--no-events"][..], &["--no-events", "-f"]] {
            assert_unchanged(&trace(options, &[every], &program), &program);
        }
    }
}
