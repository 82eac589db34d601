//! The two modes of the processor that can be probed.

#[cfg(any(feature = "long-mode", feature = "protected-mode"))]
use yaxpeax_arch::LengthedInstruction;

mod sealed {
    pub trait Sealed {}
}

/// A mode of the processor: 64-bit mode or 32-bit protected mode (flat segments).
///
/// Sealed: [`LongMode`] and [`ProtectedMode`] are all there are.
pub trait Mode: sealed::Sealed + 'static {
    /// The size of a general register and of a stack slot in bytes: 8 or 4.
    const WORD: usize;
    /// Whether this is 64-bit mode.
    const IS_LONG: bool;
    /// The size of a return stub in bytes, with what may stand before the next one.
    const STUB_LEN: usize;

    /// The length of the valid instruction that `bytes` start with, as yaxpeax-x86 sees it, or `None`
    /// where it knows none.
    fn known_len(bytes: &[u8; crate::MAX_INSN_LEN]) -> Option<usize>;
}

/// 64-bit mode.
#[cfg(feature = "long-mode")]
#[derive(Debug)]
pub enum LongMode {}

#[cfg(feature = "long-mode")]
impl sealed::Sealed for LongMode {}

#[cfg(feature = "long-mode")]
impl Mode for LongMode {
    const WORD: usize = 8;
    const IS_LONG: bool = true;
    const STUB_LEN: usize = 32;

    fn known_len(bytes: &[u8; crate::MAX_INSN_LEN]) -> Option<usize> {
        // A fresh instruction each time: `decode_into` with a used one leaks state between encodings.
        let insn = yaxpeax_x86::amd64::InstDecoder::default().decode_slice(bytes).ok()?;
        usize::try_from(insn.len().to_const()).ok()
    }
}

/// 32-bit protected mode.
#[cfg(feature = "protected-mode")]
#[derive(Debug)]
pub enum ProtectedMode {}

#[cfg(feature = "protected-mode")]
impl sealed::Sealed for ProtectedMode {}

#[cfg(feature = "protected-mode")]
impl Mode for ProtectedMode {
    const WORD: usize = 4;
    const IS_LONG: bool = false;
    const STUB_LEN: usize = 16;

    fn known_len(bytes: &[u8; crate::MAX_INSN_LEN]) -> Option<usize> {
        let insn = yaxpeax_x86::protected_mode::InstDecoder::default().decode_slice(bytes).ok()?;
        usize::try_from(insn.len().to_const()).ok()
    }
}
