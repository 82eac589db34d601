//! A target with an instruction whose slot borrows a register, on every architecture: the one that is given
//! back when the step has ended.

/// Runs one instruction whose slot borrows a register, and returns 1 if that register has kept its value.
///
/// `segment_base`: where GS begins (x86); of no use elsewhere.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_borrow(segment_base: usize) -> usize {
    machine::borrow(segment_base)
}

probe_arch_native::native_module!(mod machine by family);
