//! The time, where the processor's counter may not be read.
//!
//! A process can forbid itself to read the counter (`PR_SET_TSC`, and the kernel's strict mode). A handler
//! that asks the vDSO for the time then faults. The counter reads as zero for it, which the vDSO takes for
//! the moment of the kernel's last tick.

use crate::arch::{self, UContext};
use crate::symbols::objects::{self, Role};
use crate::{memory, threads};
use core::sync::atomic::{AtomicUsize, Ordering};

/// The bounds of the vDSO's code, 0 where there is none.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Looks for the vDSO.
pub(crate) fn start() {
    for object in objects::snapshot().iter().filter(|object| object.role == Role::Vdso) {
        for text in object.segments.iter().filter(|segment| segment.is_executable) {
            START.store(text.start, Ordering::Relaxed);
            END.store(text.end, Ordering::Relaxed);
        }
    }
}

/// Resumes a hit that has faulted where the vDSO reads the counter; `false` if it has faulted elsewhere.
#[cold]
pub(crate) fn skip_counter(context: UContext) -> bool {
    let vdso = START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed);
    if !vdso.contains(&context.pc()) || !threads::current().is_some_and(threads::Block::is_busy) {
        return false;
    }
    let mut insn = [0; 4];
    memory::read_some(context.pc(), &mut insn);
    arch::skip_counter(context, insn)
}
