//! Expressions over what a probe sees, for conditions and for what is counted: parsed and compiled by the
//! command, to a program of the BPF instruction set that the agent runs in the hit.
//!
//! ```text
//! EXPRESSION  size >= 1M && $took > 20us        path ~ "/etc/*" || !(fd & 1 == 0)
//! operands    an argument's name, $retval, $argN (both with :TYPE), $took, $pid, $tid, $cpu, $comm,
//!             numbers (12, 0x1f, 'c') with units (K M G, ns us ms s), "texts"
//! keys alone  $caller
//! operators   || · && · == != < <= > >= ~ !~ · | · ^ · & · << >> · + - · * / % · ! -
//! ```
//!
//! In the order of reading: [`lex`] words · [`parse`] a tree of them · [`check`] what the names mean, and
//! whether it fits together · [`mod@compile`] instructions · [`counts`] what is counted. Nothing in here
//! touches a process.

mod check;
mod compile;
mod counts;
mod lex;
mod parse;

pub(crate) use check::Scope;
pub(crate) use counts::{Asked, Column, Holds, Looks, compile_all};

#[cfg(test)]
mod tests;
