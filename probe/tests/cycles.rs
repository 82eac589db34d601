//! Programs at work are attached to and left again and again: nothing that they do is wrong, and afterwards
//! text and executable mappings are as before.
//!
//! `PROBE_ATTACH_CYCLES` says how often.
#![cfg(all(target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]

#[path = "common/attached.rs"]
mod attached;
mod common;

use attached::{Program, command};
use common::{compiled, program, started};
use rstest::rstest;
use std::io::Read;
use std::process::Command;

/// Eight threads that pass numbers on to each other as text.
const PYTHON: &str = "
import json, queue, sys, threading
over, wrong, done = threading.Event(), [0], [0]
def work(own, other):
    while not over.is_set():
        try: n = json.loads(own.get(timeout=0.1))['n']
        except queue.Empty: continue
        other.put(json.dumps({'n': n + 1}))
        done[0] += 1
queues = [queue.Queue() for _ in range(8)]
threads = [threading.Thread(target=work, args=(queues[i], queues[(i + 1) % 8])) for i in range(8)]
for thread in threads: thread.start()
queues[0].put(json.dumps({'n': 0}))
print('ready', flush=True)
sys.stdin.read()
over.set()
for thread in threads: thread.join()
left = [json.loads(q.get())['n'] for q in queues if not q.empty()]
print('worked' if left == [done[0]] else f'{left} {done}')
";

/// A shell that forks and executes, and compares what comes back.
const SHELL: &str = "
echo ready
i=0
while read -t 0.001 line; [ $? -gt 128 ]; do
    i=$((i+1))
    x=$(echo $i | cat | cat)
    [ \"$x\" = $i ] || { echo wrong $i $x; exit 3; }
    /bin/true || { echo wrong $i; exit 4; }
done
echo worked
";

fn python() -> Command {
    let mut command = started(&program("python3"));
    command.args(["-c", PYTHON]);
    command
}

fn shell() -> Command {
    let mut command = started(&program("bash"));
    command.args(["-c", SHELL]);
    command
}

fn crowd() -> Command {
    started(&compiled("crowd", &["-O1", "-pthread"]))
}

/// CTL_7.
#[rstest]
#[case::threads_that_come_and_go(crowd(), &["--no-jumps"], &["p work", "r libc:malloc"], "lived, 0 wrong")]
#[case::threads_of_python(python(), &[], &["r libc:malloc", "p libc:read", "p libc:memcpy"], "worked")]
#[case::a_shell_and_its_children(shell(), &["-f"], &["p libc:fork", "r libc:malloc", "p libc:write"], "worked")]
fn ctl_7_a_program_at_work_is_attached_to_and_left(
    #[case] start: Command,
    #[case] options: &[&str],
    #[case] probes: &[&str],
    #[case] verdict: &str,
) {
    let cycles = std::env::var("PROBE_ATTACH_CYCLES").map_or(20, |cycles| cycles.parse().expect("a number"));
    let program = Program::start_by(start);
    let before = program.state();
    for cycle in 0..cycles {
        let options: Vec<&str> =
            options.iter().copied().chain(["--no-events", "--duration", "20ms"]).collect();
        let output = command(program.pid(), &options, probes).output().expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "cycle {cycle}: {said}");
        assert!(said.contains("goes on"), "cycle {cycle}: {said}");
    }
    program.state().assert_goes_on_as(&before);
    let mut said = String::new();
    let Program { mut child, input, mut output } = program;
    drop(input);
    output.read_to_string(&mut said).expect("it says something");
    assert_eq!((said.trim_end(), child.wait().unwrap().code()), (verdict, Some(0)));
}
