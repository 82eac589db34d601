//! The common part of kprobes and return probes: options for their users, and views for their handlers.

/// The options of kprobes and return probes before they are registered.
macro_rules! options {
    () => {
        /// Registers it disabled (REG_10).
        #[must_use]
        pub fn disabled(mut self) -> Self {
            self.flags |= $crate::state::point::DISABLED;
            self
        }

        /// Never gives it a jump instead of the breakpoint, so that its hits are traps.
        #[must_use]
        pub fn without_jump(mut self) -> Self {
            self.flags |= $crate::state::point::NO_JUMP;
            self
        }

        /// Declares that its handlers leave floating-point and vector registers as they are, so that a hit
        /// without a trap need not save them, which is most of its cost in a process.
        ///
        /// # Safety
        /// The handlers, and all functions that they call, change no floating-point and no vector register,
        /// nor their control and status registers. Compiled code is like that only if it is built without
        /// those registers, or has been inspected: compilers often copy memory with them.
        #[must_use]
        pub unsafe fn no_simd(mut self) -> Self {
            self.flags |= $crate::state::point::NO_SIMD;
            self
        }
    };
}
pub(crate) use options;

/// What handlers see of every kind of hit.
macro_rules! seen {
    ($(#[$pc:meta])* pc, $(#[$regs:meta])* regs) => {
        $(#[$pc])*
        pub fn pc(&self) -> CodeAddr {
            self.node.place()
        }

        $(#[$regs])*
        pub fn regs(&self) -> &A::Regs {
            self.regs
        }

        /// The registers, to be changed.
        pub fn regs_mut(&mut self) -> &mut A::Regs {
            self.is_lent = true;
            self.regs
        }

        /// The interrupted context's memory.
        pub fn memory(&self) -> TargetMemory<'a> {
            TargetMemory(self.node.lender)
        }

        /// This probe's counters.
        pub fn counters(&self) -> Counters {
            Counters::of(self.node)
        }

        /// What this probe has missed; part of its counters.
        #[inline]
        pub fn misses(&self) -> Misses {
            Misses::of(self.node)
        }

        /// Disables this probe: no handler of it starts from now on; the breakpoint goes later (REG_18).
        pub fn disable(&self) {
            self.node.set(DISABLED);
            self.node.lender.note_change();
        }
    };
}
pub(crate) use seen;
