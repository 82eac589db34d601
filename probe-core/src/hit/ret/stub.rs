//! Which addresses are return stubs, and where they lead.

use crate::addr::CodeAddr;
use crate::state::host::Host;
use crate::state::probes::Probes;
use crate::state::section::Section;
use crate::state::stub::Stub;

/// The most stubs that one return address leads through: more than any chain of tail calls between probed
/// functions.
const MAX_CHAIN: usize = 1 << 16;

impl<H: Host> Probes<H> {
    /// Whether `at` is a stub that is handed out.
    #[inline(always)]
    pub(super) fn is_stub(&self, at: CodeAddr, section: Section<'_>) -> bool {
        self.stubs.may_hold(at) && self.stub_at(at, section).is_some()
    }

    /// The return address behind `at`, if `at` is a return stub of ours (RET_8): an unwinder shows it, and
    /// continues with it. Takes no lock; may be called from handlers and from signal handlers.
    pub fn real_return_address(&self, at: CodeAddr) -> Option<CodeAddr> {
        // Most addresses are none: no section is entered for them.
        if !self.stubs.may_hold(at) {
            return None;
        }
        let inside = self.anonymous();
        let home = self.home_of(at, inside.section());
        (home != at).then_some(home)
    }

    /// The home of a return to `at`: `at` itself, unless it is a stub.
    #[inline(always)]
    pub(super) fn home_of(&self, at: CodeAddr, section: Section<'_>) -> CodeAddr {
        if self.stubs.may_hold(at) { self.home_of_stub(at, section) } else { at }
    }

    /// As [`Probes::home_of`], where `at` may be a stub.
    #[inline(never)]
    pub(super) fn home_of_stub(&self, at: CodeAddr, section: Section<'_>) -> CodeAddr {
        let mut home = at;
        for _ in 0..MAX_CHAIN {
            match self.stub_at(home, section) {
                Some(Stub::Handed(instance)) if instance.life.leads_home() => home = instance.real(),
                Some(Stub::Left(stub)) => return stub.home().unwrap_or(home),
                _ => break,
            }
        }
        home
    }

    /// The stub that is in use at `at`.
    pub(super) fn stub_at<'s>(&self, at: CodeAddr, section: Section<'s>) -> Option<Stub<'s, H>> {
        self.stubs.chunk(at, section)?.stub(at, section)
    }
}
