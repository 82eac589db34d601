//! arm: its exceptions have tables of their own, not DWARF, so a walk has one frame, where no code says more.
//! Register numbers: DWARF for the Arm Architecture 2023Q3, 4.1.

use crate::walk::Machine as Walked;
use gimli::Vendor;

/// How stacks are walked.
pub static FRAMES: Walked = Walked {
    stack_pointer: 13,
    return_address: 14,
    names: &["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "sp", "lr"],
    link: None,
    saved: &[14, 4, 5, 6, 7, 8, 9, 10, 11],
    chain: None,
    address_mask: usize::MAX,
    vendor: Vendor::Default,
    signal: None,
};
