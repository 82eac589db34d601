//! Write order and publication.
//!
//! A breakpoint is one aligned word, so there is no order of writes to keep: the one store makes it appear at
//! once (DDI 0487J.a B2.2.1, single-copy atomicity of aligned words; B2.2.5, concurrent modification and
//! execution). B2.2.5 lets B, BL, BRK, HVC, ISB, NOP, SMC and SVC replace each other while another core
//! executes them, which covers a slot's tail. For other instructions it asks the executing core for a context
//! synchronisation event before it may rely on which of the two it executes: that is
//! [`Host::sync_cores`](probe_core::host::Host::sync_cores), and until then the old instruction (no hit) or
//! the new one (a hit) is executed, which the core's life of a point allows for.
//!
//! The sequence that makes written text visible to fetches is `publish` in `asm`: clean the data cache to the
//! point of unification, DSB, invalidate the instruction cache, DSB, ISB, by the line sizes in CTR_EL0, each
//! half left out where CTR_EL0.IDC or DIC says so (B2.7.4.2). [`Lines`] reads that register.

/// What CTR_EL0 says about the caches (DDI 0487J.a D17.2.34).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The smallest data cache line in bytes; `None` where no cleaning is needed (IDC).
    pub data_bytes: Option<usize>,
    /// The smallest instruction cache line in bytes; `None` where no invalidation is needed (DIC).
    pub instruction_bytes: Option<usize>,
}

impl Lines {
    /// Reads the fields of a value of CTR_EL0.
    #[must_use]
    pub const fn from_ctr_el0(ctr: u64) -> Self {
        const WORD: usize = 4;
        let idc = ctr >> 28 & 1 == 1;
        let dic = ctr >> 29 & 1 == 1;
        Self {
            data_bytes: if idc { None } else { Some(WORD << (ctr >> 16 & 0xf)) },
            instruction_bytes: if dic { None } else { Some(WORD << (ctr & 0xf)) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_sizes_come_from_ctr_el0() {
        // Cortex-A57: 64-byte lines in both caches.
        let a57 = Lines { data_bytes: Some(64), instruction_bytes: Some(64) };
        assert_eq!(Lines::from_ctr_el0(0x8444_c004), a57);
        // Neoverse N1 as Linux shows it: neither is needed.
        let n1 = Lines { data_bytes: None, instruction_bytes: None };
        assert_eq!(Lines::from_ctr_el0(0xb444_c004), n1);
        let mixed = Lines { data_bytes: Some(16), instruction_bytes: Some(32) };
        assert_eq!(Lines::from_ctr_el0(0x8002_8003), mixed);
    }
}
