//! How control arrives at a function: by a call, which leaves a return address, or otherwise (REG_19).
//!
//! A return probe replaces the return address. At code that no call enters, the same word holds something
//! else (an argument count, a saved register), and replacing it would break the program.

use crate::error::Refusal;

/// How control arrives at a function's entry. The entry is the symbol table's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// By a call, or by a jump that leaves everything as the call before it did: the return address is where
    /// a call puts it.
    Called,
    /// Otherwise: no return probe and no jprobe can stand there, for this reason.
    NotCalled(Refusal),
    /// The host cannot tell. Then the symbol's name decides ([`Arrival::by_name`]).
    Unknown,
}

impl Arrival {
    /// No call arrives: a program or a context starts there.
    pub const START: Self = Self::NotCalled(Refusal::invalid(
        "entry.start",
        "a program or a context starts there, so there is no return address",
    ));
    /// A jump arrives, with a frame in place.
    pub const PART: Self = Self::NotCalled(Refusal::invalid(
        "entry.part",
        "a jump comes there from within a function or a stub, whose frame is in place already",
    ));
    /// A call comes there that has left its return address in another register than the ABI's calls do.
    pub const OTHER_LINK: Self = Self::NotCalled(Refusal::invalid(
        "entry.other_link",
        "it is called with its return address in a register that functions of the ABI do not take it from",
    ));
    /// The return from a signal's or an interrupt's handler arrives.
    pub const SIGNAL_RETURN: Self = Self::NotCalled(Refusal::invalid(
        "entry.signal_return",
        "the way back from a signal begins there; no call comes there",
    ));
    /// A call arrives whose return address the function reads as data.
    pub const READS_RETURN: Self = Self::NotCalled(Refusal::invalid(
        "entry.reads_return",
        "the function reads its own return address, to tell its caller where that is",
    ));

    /// The meaning of a symbol's name to compilers, linkers and C libraries: for hosts without unwind
    /// information, and for places that it does not cover.
    #[must_use]
    pub fn by_name(name: &str) -> Self {
        const STARTS: [&str; 5] = ["_start", "__start", "_dlstart", "_dl_start_user", "__start_context"];
        const SIGNAL_RETURNS: [&str; 3] = ["__restore", "__restore_rt", "__default_rt_sa_restorer"];
        // The loader's resolvers run in the frame of a stub; the others end a function that has jumped there.
        const PARTS: [&str; 5] =
            ["_dl_runtime_resolve", "_dl_runtime_profile", "_restgpr0_", "_restfpr_", "__riscv_restore_"];
        // GCC's and LLVM's -msave-restore.
        const OTHER_LINKS: [&str; 1] = ["__riscv_save_"];
        if STARTS.contains(&name) {
            Self::START
        } else if SIGNAL_RETURNS.contains(&name) {
            Self::SIGNAL_RETURN
        } else if PARTS.iter().any(|part| name.starts_with(part)) || is_cold_part(name) {
            Self::PART
        } else if OTHER_LINKS.iter().any(|link| name.starts_with(link)) {
            Self::OTHER_LINK
        } else if name.contains(".get_pc_thunk.") {
            Self::READS_RETURN
        } else {
            Self::Unknown
        }
    }
}

/// `work.cold`, and `work.cold.3` of older compilers.
fn is_cold_part(name: &str) -> bool {
    let number = name.rsplit_once(".cold").map(|(_, number)| number);
    number.is_some_and(|number| {
        let digits = number.strip_prefix('.').unwrap_or(number);
        number.is_empty() || number.len() > digits.len() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_no_call_comes_to() {
        for (name, arrival) in [
            ("_start", Arrival::START),
            ("__start_context", Arrival::START),
            ("work.cold", Arrival::PART),
            ("work.isra.0.cold.12", Arrival::PART),
            ("_dl_runtime_resolve_xsavec", Arrival::PART),
            ("_restgpr0_14", Arrival::PART),
            ("__riscv_restore_0", Arrival::PART),
            ("__riscv_save_12", Arrival::OTHER_LINK),
            ("__restore_rt", Arrival::SIGNAL_RETURN),
            ("__x86.get_pc_thunk.bx", Arrival::READS_RETURN),
            ("work", Arrival::Unknown),
            ("work.part.0", Arrival::Unknown),
            ("work.colder", Arrival::Unknown),
            ("work.cold.rs", Arrival::Unknown),
            ("_start_c", Arrival::Unknown),
            ("_savegpr0_14", Arrival::Unknown),
        ] {
            assert_eq!(Arrival::by_name(name), arrival, "{name}");
        }
    }
}
