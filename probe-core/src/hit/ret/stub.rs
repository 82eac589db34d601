//! Which addresses are return stubs, and where they lead.

use crate::addr::CodeAddr;
use crate::state::context::Section;
use crate::state::host::Host;
use crate::state::probes::Probes;
use crate::state::stub::Stub;

/// The most stubs that one return address leads through: more than any chain of tail calls between probed functions.
const MAX_CHAIN: usize = 1 << 16;

impl<H: Host> Probes<H> {
    /// Whether `at` is a stub that is handed out. The caller is inside.
    #[inline(always)]
    pub(super) fn is_stub(&self, at: CodeAddr) -> bool {
        self.stubs.may_hold(at) && self.stub_at(at).is_some()
    }

    /// The return address that `at` stands for, if it is a return stub of ours (RET_8): what an unwinder shows, and
    /// goes on with. Takes no lock; may be called from handlers and from signal handlers.
    pub fn real_return_address(&self, at: CodeAddr) -> Option<CodeAddr> {
        let _guard = self.anonymous();
        let home = self.follow_stubs(at);
        (home != at).then_some(home)
    }

    /// Where a return to `at` ends up: `at` itself, unless it is a stub. The caller is inside.
    #[inline(always)]
    pub(super) fn follow_stubs(&self, at: CodeAddr) -> CodeAddr {
        if self.stubs.may_hold(at) { self.follow_chain(at) } else { at }
    }

    /// As [`Probes::follow_stubs`], where `at` may be a stub.
    #[inline(never)]
    pub(super) fn follow_chain(&self, at: CodeAddr) -> CodeAddr {
        let mut home = at;
        for _ in 0..MAX_CHAIN {
            match self.stub_at(home) {
                Some(Stub::Handed(instance)) if instance.life.leads_home() => home = instance.real(),
                Some(Stub::Left(stub)) => return stub.home().unwrap_or(home),
                _ => break,
            }
        }
        home
    }

    /// The stub that is in use at `at`. The caller is inside.
    pub(super) fn stub_at(&self, at: CodeAddr) -> Option<Stub<'_, H>> {
        // SAFETY: the caller is inside.
        let section = unsafe { Section::assume() };
        self.stubs.chunk(at, section)?.stub(at, section)
    }
}
