//! The toy instruction set of probe-core's own tests, on this machine.

#[path = "../../../probe-core/tests/contract/toy/backend.rs"]
pub(crate) mod backend;
#[path = "../../../probe-core/tests/contract/toy/instructions.rs"]
pub(crate) mod instructions;
pub(crate) use crate::machine;
/// Nothing of theirs is needed.
pub(crate) mod world {}
