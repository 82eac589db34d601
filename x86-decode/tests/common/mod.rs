//! The vector files, shared by the tests that decode them and the tests that execute them.

#![allow(dead_code, reason = "each test uses a part")]

use probe_core::arch::Method;
use probe_x86_decode::Mode;
use probe_x86_decode::decode::decode_bytes;
use std::fmt::Write as _;

/// One row of a vector file.
pub(crate) struct Vector {
    pub(crate) bytes: Vec<u8>,
    pub(crate) asm: &'static str,
    pub(crate) plan: &'static str,
    pub(crate) note: &'static str,
}

pub(crate) const X86_64: &str = include_str!("../../../tests/vectors/x86_64.txt");
pub(crate) const I386: &str = include_str!("../../../tests/vectors/i386.txt");

/// The rows of a vector file.
pub(crate) fn vectors(file: &'static str) -> Vec<Vector> {
    let rows = file.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    rows.step_by(if cfg!(miri) { 40 } else { 1 })
        .map(|line| {
            let columns: Vec<&str> = line.split('|').map(str::trim).collect();
            let [bytes, asm, plan, note] = columns[..] else { panic!("four columns, not: {line}") };
            let bytes = bytes.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
            Vector { bytes, asm, plan, note }
        })
        .collect()
}

/// What the decoder says about `bytes`, as the vector files spell it: method and effect, or the refusal's
/// code.
pub(crate) fn spelt<M: Mode>(bytes: &[u8]) -> String {
    let decoded = match decode_bytes::<M>(bytes) {
        Ok(decoded) => decoded,
        Err(refusal) => return format!("refuse {}", refusal.code),
    };
    let mut spelt = String::from(match decoded.method {
        Method::Simulate => "simulate",
        Method::Boost => "boost",
        Method::Step => "step",
    });
    write!(spelt, " {:?}", decoded.plan.effect).unwrap();
    spelt.split([' ', '(', '{']).filter(|word| !word.is_empty()).take(3).collect::<Vec<_>>()[..2].join(" ")
}
