//! A toy instruction set, a toy machine and a toy world, so that every rule can be tested on any computer,
//! and every access counted and made to fail.

pub mod backend;
pub mod instructions;
pub mod machine;
pub mod world;

pub use backend::*;
pub use instructions::*;
pub use machine::*;
pub use world::*;
