//! `--stack`: the stacks of hits are those that gdb shows, of programs without frame pointers.
//!
//! A static C library loads no agent. gdb is the machine's own: elsewhere a program says itself who has
//! called.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, trace};
use serde_json::Value;

/// The functions of an event's stack.
fn functions(event: &Value) -> Vec<&str> {
    let frames = event["stack"].as_array().unwrap_or_else(|| panic!("no stack: {event}"));
    frames.iter().filter_map(|frame| frame["function"].as_str()).collect()
}

/// `fib` of the program calls itself with a number that is less by one or two.
#[test]
fn a_function_that_calls_itself_has_itself_as_its_caller() {
    let program =
        compiled("work", &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]);
    for options in [&["--stack=64"][..], &["--stack=64", "--no-jumps"]] {
        for probes in [&["p fib n=$arg1:s32"][..], &["p fib n=$arg1:s32", "r fib", "r:again fib"]] {
            let traced = trace(options, probes, &[&program, "calls"]);
            let mut deepest = 0;
            for event in traced.named("fib") {
                let all = functions(event);
                let depth = all.iter().take_while(|name| **name == "fib").count();
                let below = 12 - event["args"]["n"].as_i64().unwrap() as usize;
                assert!((1..=12).contains(&depth) && (depth - 1..2 * depth).contains(&below), "{event}");
                assert!(["main", "calls"].contains(&all[depth]), "{event}");
                assert_eq!(event["stack_end"], "outermost", "{event}");
                deepest = deepest.max(depth);
            }
            assert_eq!(deepest, 12, "with {options:?} {probes:?}");
            // A call that returns is where it was called.
            for event in traced.named("fib%return").chain(traced.named("again")) {
                assert!(["fib", "main", "calls"].contains(&functions(event)[0]), "{event}");
            }
        }
    }
    std::fs::remove_file(&program).unwrap();
}

/// Its linker was asked for no header of its frames.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_static_program_has_stacks() {
    let options = ["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread", "-static"];
    let program = compiled("work", &options);
    let traced = trace(&["--stack"], &["p fib n=$arg1:s32"], &[&program, "calls"]);
    let depth = |event| functions(event).iter().take_while(|name| **name == "fib").count();
    assert_eq!(traced.named("fib").map(depth).max(), Some(12));
    assert!(traced.named("fib").all(|event| event["stack_end"] == "outermost"));
    std::fs::remove_file(&program).unwrap();
}

/// As many frames as are wanted.
#[test]
fn a_stack_has_as_many_frames_as_were_asked_for() {
    let program =
        compiled("work", &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]);
    let traced = trace(&["--stack=3"], &["p fib n=$arg1:s32"], &[&program, "calls"]);
    let all: Vec<&Value> = traced.named("fib").collect();
    assert!(all.len() > 100, "{}", all.len());
    assert!(all.iter().all(|event| functions(event).len() == 3 && event["stack_end"] == "depth"));
    std::fs::remove_file(&program).unwrap();
}

#[cfg(target_arch = "x86_64")]
mod beside_gdb {
    use super::common::{Traced, compiled_by, scratch, trace};
    use serde_json::Value;
    use std::process::Command;

    /// The C++ program, at fixed addresses.
    fn stacks(options: &[&str]) -> String {
        let always = ["-x", "c++", "-std=c++17", "-O2", "-fomit-frame-pointer", "-no-pie"];
        compiled_by("c++", "stacks", &[&always, options].concat())
    }

    /// Where programs at fixed addresses end, and libraries are not.
    const PROGRAM: u64 = 1 << 32;

    /// An address of the program, or that it is another's: those are elsewhere under a debugger.
    fn shared(addr: u64) -> Option<u64> {
        Some(addr).filter(|addr| *addr < PROGRAM)
    }

    /// The stacks at `mark`, as gdb shows them.
    fn by_gdb(program: &str, count: usize) -> Vec<Vec<Option<u64>>> {
        const SCRIPT: &str = "
import gdb
gdb.execute('set backtrace past-main on')
gdb.execute('set backtrace past-entry on')
gdb.execute('handle SIGUSR1 SIGUSR2 nostop noprint pass')
gdb.execute('set print inferior-events off')
gdb.execute('break *&mark')
gdb.execute('run', to_string=True)
while gdb.selected_inferior().pid:
    frame, all = gdb.newest_frame(), []
    while frame:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            all.append(hex(frame.pc()))
        frame = frame.older()
    print('STACK', *all)
    gdb.execute('continue', to_string=True)
";
        let script = scratch("stacks.py");
        std::fs::write(&script, SCRIPT).unwrap();
        let output = Command::new("gdb")
            .args(["-q", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-x"])
            .arg(&script)
            .args(["--args", program, &count.to_string()])
            .output()
            .expect("gdb runs; run: cargo ci setup");
        let _ = std::fs::remove_file(&script);
        let said = String::from_utf8_lossy(&output.stdout);
        let stacks = said.lines().filter_map(|line| line.strip_prefix("STACK "));
        let addr = |text: &str| shared(u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap());
        stacks.map(|line| line.split(' ').map(addr).collect()).collect()
    }

    /// The addresses of an event's frames: each that was not inlined is one.
    fn addrs(event: &Value) -> Vec<Option<u64>> {
        let frames = event["stack"].as_array().unwrap_or_else(|| panic!("no stack: {event}"));
        let frames = frames.iter().filter(|frame| frame["inlined"].is_null());
        let addr = |frame: &Value| {
            frame["addr"].as_str().and_then(|text| text.strip_prefix("0x")).map(str::to_owned)
        };
        frames.map(|frame| shared(u64::from_str_radix(&addr(frame).unwrap(), 16).unwrap())).collect()
    }

    /// Of a trace's events at `mark`, in order.
    fn by_probe(traced: &Traced) -> Vec<Vec<Option<u64>>> {
        traced
            .named("mark")
            .map(|event| {
                assert_eq!(event["stack_end"], "outermost", "{event}");
                addrs(event)
            })
            .collect()
    }

    /// How many stacks are compared, at least; gdb takes about 4 ms for each.
    fn count() -> usize {
        std::env::var("PROBE_STACKS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
    }

    fn assert_equal(program: &str, gdb: &[Vec<Option<u64>>], options: &[&str], probes: &[&str]) {
        let options = [&["--stack=128"], options].concat();
        let probes: Vec<String> = probes.iter().map(|probe| probe.replace("PROGRAM", program)).collect();
        let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
        let traced = trace(&options, &probes, &[program, &count().to_string()]);
        assert!(traced.output.status.success(), "{:?}", traced.output);
        let stacks = by_probe(&traced);
        assert_eq!(stacks.len(), gdb.len());
        for (number, (probe, gdb)) in stacks.iter().zip(gdb).enumerate() {
            assert_eq!(probe, gdb, "the {number}th, with {options:?} {probes:?}: {probe:x?} is {gdb:x?}");
        }
    }

    #[test]
    fn stacks_of_cpp_without_frame_pointers_are_gdbs() {
        let program = stacks(&[]);
        let gdb = by_gdb(&program, count());
        assert!(gdb.len() >= count(), "{}", gdb.len());
        let depths: Vec<usize> = gdb.iter().map(Vec::len).collect();
        assert!(depths.iter().max() > Some(&20), "{depths:?}");
        let mark = "p:mark PROGRAM:mark";
        assert_equal(&program, &gdb, &[], &[mark]);
        assert_equal(&program, &gdb, &["--no-jumps"], &[mark]);
        // Calls whose returns are followed have our stubs as return addresses.
        let followed = [mark, "r:go PROGRAM:*go*", "r:deeper PROGRAM:*deeper*", "r:qsort libc:qsort"];
        assert_equal(&program, &gdb, &[], &followed);
        std::fs::remove_file(&program).unwrap();
    }
}
