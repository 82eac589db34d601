//! From the first instruction of the program's own objects to the last: what runs before `main` and behind
//! it, and what of it is the tracer's own doing.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, trace};

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
