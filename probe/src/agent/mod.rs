//! The agent: the shared object that the dynamic linker loads into the traced program.
//!
//! Its constructor runs before the program's `main`: it maps the shared memory, reads the definitions, plants
//! all probes in one batch and reports what it has planted; if a definition cannot be used it reports why and
//! ends the process. After that the agent only runs in handlers ([`emit`]) and behind a few interposed
//! functions ([`hooks`]).
//!
//! It uses nothing of the program's: its memory comes from the kernel ([`alloc`]), its files are closed
//! before `main`, its environment variables are gone by then (unless children are to be followed, too).
//!
//! In the order of reading: `launched` the constructor · [`start`] from definitions to probes · [`places`]
//! definitions to places · [`plant`] places to probes · [`later`] objects that come later · [`objects`] the
//! loaded objects · [`emit`] handlers · [`fetch`] values · [`rule`] conditions · [`stacks`] who has called
//! · [`process`] this process, its threads, their rings · [`clock`] the time · [`hooks`] interposed
//! functions · [`confined`] programs that forbid themselves system calls · [`lent`] children in their
//! parent's memory · [`exec`] programs executed in place · [`executed`] what they are · [`debuggers`]
//! children that ask to be debugged · [`trial`] the outcome of a system call, known before it is made ·
//! [`masks`] functions that must not be probed · [`environment`] our variables there · [`quiet`] the
//! destructors of objects that only the agent uses · [`runner`] programs under an emulator · [`alloc`]
//! memory. For a program that is running already: `mapped` what the command runs in its threads · `bare`
//! what stands for libc · `waits` functions that wait with a mask of their own.

mod alloc;
#[cfg(feature = "mapped")]
mod bare;
mod clock;
mod confined;
#[cfg_attr(feature = "mapped", allow(dead_code, reason = "it executes no programs"))]
mod debuggers;
mod emit;
#[cfg_attr(feature = "mapped", allow(dead_code, reason = "it executes no programs"))]
mod environment;
mod exec;
mod executed;
mod fetch;
#[cfg(not(feature = "mapped"))]
mod hooks;
mod later;
#[cfg(not(feature = "mapped"))]
mod launched;
mod lent;
#[cfg(feature = "mapped")]
mod mapped;
mod masks;
mod objects;
mod places;
mod plant;
#[cfg_attr(feature = "mapped", allow(dead_code, reason = "it executes no programs"))]
mod process;
#[cfg(not(feature = "mapped"))]
mod quiet;
mod rule;
#[cfg_attr(feature = "mapped", allow(dead_code, reason = "it executes no programs"))]
mod runner;
mod stacks;
mod start;
mod trial;
#[cfg(feature = "mapped")]
mod waits;
