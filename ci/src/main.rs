//! Set-up, tests, lints, benchmarks and the CI matrix, behind cargo ci.
fn main() {}
