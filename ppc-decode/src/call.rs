//! Frames: what the ABIs have in common. The first word of a frame is the address of its caller's (the back
//! chain). Runs on the hit path. Pure.

use crate::Mode;
use probe_core::CodeAddr;
use probe_core::arch::{MemFault, Memory};

/// How many frames [`may_return`] walks before it gives up.
const CHAIN_STEPS: usize = 64;

/// Where a function keeps the return address that it was entered with: this far above the stack pointer at
/// its entry. The condition register has a word in between in 64-bit mode alone.
const fn lr_save<M: Mode>() -> usize {
    if M::IS_64_BIT { 16 } else { 4 }
}

/// Whether the call that was entered with stack pointer `frame` may still return to `stub`.
///
/// It may not once the stack pointer is that of its caller, or of a caller further up the back chain. (A call
/// that has tail-called another one is recognised by its stub being the other's return address; the core
/// looks there first.) It may where the stub's address lies in the caller's LR save word (a callee that
/// is not a leaf, perhaps on another stack), or where the caller's frame is on the back chain of `sp` (a leaf
/// that a signal handler has interrupted, perhaps on the signal stack). A chain that cannot be read or is too
/// deep counts as a live call.
#[must_use]
pub fn may_return<M: Mode, S: Memory>(frame: usize, stub: CodeAddr, sp: usize, memory: &S) -> bool {
    if sp >= frame && chain::<M, S>(frame, sp, memory) == Chain::Found {
        return false;
    }
    let saved = frame.checked_add(lr_save::<M>()).map(|at| M::load(memory, at));
    match saved {
        Some(Ok(saved)) if saved != stub.as_usize() as u64 => {
            chain::<M, S>(sp, frame, memory) != Chain::NotThere
        }
        _ => true,
    }
}

/// What a walk along a back chain has shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chain {
    Found,
    NotThere,
    Unknown,
}

/// Looks for `frame` on the back chain that starts at `from`.
fn chain<M: Mode, S: Memory>(from: usize, frame: usize, memory: &S) -> Chain {
    let mut at = from;
    for _ in 0..CHAIN_STEPS {
        if at == frame {
            return Chain::Found;
        }
        let Ok(up) = M::load(memory, at) else { return Chain::Unknown };
        let up = up as usize;
        // The end of the chain, or a frame of the same stack that spans the one looked for.
        if up == 0 || (at < frame && frame < up) {
            return Chain::NotThere;
        }
        at = up;
    }
    Chain::Unknown
}

/// Copies up to the end of mapped memory; the caller's frame may be the first of its stack.
///
/// # Errors
/// Not even the first word could be read.
pub fn read_as_far_as_mapped<M: Mode, S: Memory>(
    memory: &S,
    at: usize,
    out: &mut [u8],
) -> Result<(), MemFault> {
    if memory.read(at, out).is_ok() {
        return Ok(());
    }
    for (index, word) in out.chunks_exact_mut(M::WORD).enumerate() {
        match memory.read(at.wrapping_add(index * M::WORD), word) {
            Ok(()) => {}
            Err(fault) if index == 0 => return Err(fault),
            Err(_) => break,
        }
    }
    Ok(())
}
