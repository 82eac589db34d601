//! Many short children: the hits of each are events in its own name, and none is lost because its thread was
//! short.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{Traced, compiled, trace};
use rstest::rstest;
use std::collections::{BTreeMap, BTreeSet};

const CHILDREN: usize = if cfg!(target_arch = "x86_64") { 200 } else { 20 };

fn traced(options: &[&str], how: &str) -> Traced {
    let program = compiled("spawns", &["-O1"]);
    let traced = trace(options, &["p work n=$arg1:s64"], &[&program, how, &CHILDREN.to_string()]);
    assert_eq!(traced.output.stdout, b"done\n", "{:?}", traced.output);
    traced
}

/// How many events have each value, and of how many tasks.
fn counted(traced: &Traced) -> BTreeMap<i64, (usize, usize)> {
    let mut values: BTreeMap<i64, (usize, BTreeSet<u64>)> = BTreeMap::new();
    for event in &traced.events {
        let (count, tasks) = values.entry(event["args"]["n"].as_i64().unwrap()).or_default();
        *count += 1;
        assert_eq!(event["pid"], event["tid"], "none of them has a second thread");
        tasks.insert(event["tid"].as_u64().unwrap());
    }
    values.into_iter().map(|(value, (count, tasks))| (value, (count, tasks.len()))).collect()
}

#[rstest]
#[case::fork("fork", &[(0, 1), (1, CHILDREN)])]
#[case::vfork("vfork", &[(0, 1), (1, CHILDREN)])]
#[case::vfork_and_exec("exec", &[(0, 1), (1, CHILDREN), (2, CHILDREN)])]
#[case::posix_spawn("spawn", &[(0, 1), (2, CHILDREN)])]
fn evt_1_every_hit_of_a_short_child_is_an_event_in_its_own_name(
    #[case] how: &str,
    #[case] wanted: &[(i64, usize)],
) {
    let traced = traced(&["-f", "--buffer", "64K"], how);
    let wanted = wanted.iter().map(|&(value, tasks)| (value, (CHILDREN, tasks))).collect();
    assert_eq!(counted(&traced), wanted, "{}", traced.summary);
    assert_eq!(traced.summary["lost_events"], 0);
    assert_eq!(traced.row("work")["hits"], traced.events.len());
}

/// The first hit in the memory of the parent is a child's: its ring must not be given away when the child
/// ends.
#[test]
fn evt_1_a_child_in_its_parents_memory_takes_the_ring_for_its_parent() {
    let traced = traced(&["-f", "--buffer", "64K"], "quiet");
    let wanted = [(1, (CHILDREN, CHILDREN)), (3, (70, 70)), (4, (1, 1))].into();
    assert_eq!(counted(&traced), wanted, "{}", traced.summary);
    assert_eq!(traced.summary["lost_events"], 0);
}

/// What the agent asks the kernel, in handlers, in children and at their ends, is none of the program's
/// calls.
#[rstest]
#[case::fork("fork")]
#[case::vfork("vfork")]
#[case::exec("exec")]
fn evt_1_the_agents_system_calls_are_nobodys(#[case] how: &str) {
    let program = compiled("spawns", &["-O1"]);
    let traced = trace(&["-f"], &["p work", "p libc.so.6:syscall"], &[&program, how, "5"]);
    assert_eq!(traced.output.stdout, b"done\n", "{:?}", traced.output);
    assert!(traced.row("work")["hits"].as_u64() >= Some(10), "{}", traced.summary);
    let row = traced.row("syscall");
    assert_eq!((&row["hits"], &row["missed_nested"]), (&0.into(), &0.into()), "{}", traced.summary);
}

/// Without -f children are not traced, whether they have memory of their own or not.
#[rstest]
#[case::fork("fork")]
#[case::vfork("vfork")]
fn evt_1_without_f_a_childs_hits_are_nobodys(#[case] how: &str) {
    let traced = traced(&[], how);
    assert_eq!(counted(&traced), [(0, (CHILDREN, 1))].into());
    assert_eq!(traced.row("work")["hits"], CHILDREN);
}

/// By whatever function: an emulator starts what it is told to by those that can be interposed only.
#[rstest]
#[case::alone(&[], "done\n")]
#[case::with_children(&["-f"], "seen\n")]
#[case::by_trap(&["--no-jumps"], "done\n")]
fn evt_1_a_program_executed_in_place_is_traced_on(#[case] options: &[&str], #[case] said: &str) {
    let (first, last) = if common::is_emulated() { (3, 7) } else { (0, 10) };
    let program = compiled("execs", &["-O1"]);
    let traced = trace(options, &["p work n=$arg1:s64"], &[&program, &first.to_string(), &last.to_string()]);
    assert_eq!(String::from_utf8_lossy(&traced.output.stdout), said, "{:?}", traced.output);
    let steps: Vec<_> = traced.events.iter().map(|event| event["args"]["n"].as_i64().unwrap()).collect();
    assert_eq!(steps, (first..=last).collect::<Vec<_>>(), "{}", traced.summary);
}
