//! The toy machine with the smallest backend that there can be.

pub mod backend;
#[path = "../../toy/instructions.rs"]
pub mod instructions;
#[path = "../../toy/machine.rs"]
pub mod machine;
#[path = "../../toy/world.rs"]
pub mod world;

pub use backend::*;
pub use instructions::*;
pub use machine::*;
pub use world::*;
