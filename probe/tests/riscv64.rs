//! What is riscv64's alone, in a C program (`programs/riscv64.c`) with a probe on each of its functions.
#![cfg(all(target_arch = "riscv64", target_env = "gnu"))]

mod common;

use common::{assert_unchanged, compiled, trace};
use rstest::rstest;

#[rstest]
fn hit_11_a_program_is_unchanged_whose_functions_are_all_probed(
    #[values(&["-O2", "-pthread"], &["-Os", "-msave-restore", "-pthread"])] compiler: &[&str],
    #[values("p", "r")] kind: &str,
    #[values(&[], &["--no-jumps"])] options: &[&str],
) {
    let program = compiled("riscv64", compiler);
    let traced = trace(options, &[&format!("{kind} {program}:*")], &[&program]);
    assert_unchanged(&traced, &[&program]);
    assert_eq!(traced.output.status.code(), Some(0));
    let is_there = |name: &str| traced.summary.to_string().contains(name);
    assert!(is_there("two_bytes") && is_there("across_pages"), "{}", traced.summary);
}
