//! From the first instruction of the program's own objects to the last: what runs before `main` and behind
//! it, what of it is the tracer's own doing, and libraries that come later.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, trace};
use rstest::rstest;

/// A program with a library of its own.
fn early() -> (String, String) {
    let library = compiled("early", &["-O1", "-shared", "-fPIC", "-DLIBRARY"]);
    // Given by its path, it is loaded by its path. The linker needs it behind the source that it cannot be
    // put behind here.
    let program = compiled("early", &["-O1", "-Wl,--no-as-needed", &library]);
    (library, program)
}

/// EVT_1: initialisers of the program, constructors of its libraries and of itself, `main`, and destructors.
#[test]
fn evt_1_hits_before_and_behind_main_are_seen() {
    let (library, program) = early();
    let traced = trace(&[], &[&format!("p:lwork {library}:lwork n=$arg1:s64")], &[&program]);
    assert_eq!(traced.output.stdout, b"done\n", "{:?}", traced.output);
    let seen: Vec<i64> = traced.named("lwork").map(|event| event["args"]["n"].as_i64().unwrap()).collect();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    assert_eq!(traced.row("lwork")["hits"], 6);
}

/// EVT_1: a C program calls each of these once as it ends, for itself; what the agent calls is nobody's.
#[test]
fn evt_1_the_agents_own_calls_are_nobodys() {
    let (_, program) = early();
    let mut functions = vec!["__cxa_finalize"];
    // Not in every C library.
    functions.extend(cfg!(target_arch = "x86_64").then_some("__unregister_atfork"));
    for function in functions {
        let traced = trace(&[], &[&format!("p libc.so.6:{function}")], &[&program]);
        // The program and its library.
        assert_eq!(traced.row(function)["hits"], 2, "{function}");
    }
}

/// Each definition is a registration of its own, as soon as the library is there.
#[rstest]
#[case::by_jump(&[])]
#[case::by_trap(&["--no-jumps"])]
fn reg_21_definitions_that_come_to_one_function_of_a_later_library_are_all_hit(#[case] options: &[&str]) {
    let probes = ["p libm.so.6:fdim", "r libm.so.6:fdim", "p:third libm.so.6:fdim*"];
    let traced = trace(options, &probes, &[&compiled("later", &["-O1"]), "10"]);
    assert_eq!(traced.output.status.code(), Some(0), "{:?}", traced.output);
    assert_eq!(traced.events.len(), 30, "{}", traced.summary);
    let hits = traced.summary["probes"].as_array().unwrap().iter().map(|row| row["hits"].as_u64().unwrap());
    assert_eq!(hits.filter(|&hits| hits != 0).collect::<Vec<_>>(), [10; 3], "{}", traced.summary);
}
