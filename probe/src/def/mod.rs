//! Probe definitions: the grammar is [`probe_definitions`]', which kernels share; what its names match in a
//! process is here.

pub mod names;
mod object;

pub use object::{Fit, HasFile, Named, fit, object_named};
pub use probe_definitions::*;
