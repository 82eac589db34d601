//! PRG_1: the optimised run path holds no call of the panic machinery and none of the allocator.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]

#[path = "../../tests/no_panic.rs"]
mod shared;

#[test]
fn prg_1_the_run_path_links_without_panics_and_allocations() {
    shared::check(env!("CARGO_MANIFEST_DIR"), "the_run_path_may_panic");
}
