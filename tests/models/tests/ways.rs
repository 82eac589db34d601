//! The bodies that are modelled both ways: hits by traps, and by jumps.

use crate::machine::{Machine, call};
use crate::toy::backend::Toy;
use crate::{context, owned_probe};
use probe_core::AnyProbe;

/// How a probed call comes to the core.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Traps,
    Jumps,
}

impl Way {
    /// To be called when all probes of the body are registered that are to have jumps.
    fn take(self, machine: &'static Machine) {
        if let Self::Jumps = self {
            assert_eq!(machine.jumps().lay().unwrap(), 1);
        }
    }
}

/// A probe goes while another context calls.
pub(crate) fn goes(machine: &'static Machine, way: Way, probe: impl Into<AnyProbe<Toy>>) {
    let probe = machine.register(probe).unwrap();
    way.take(machine);
    let other = context(1, move || assert_eq!(call(machine), 5));
    drop(probe);
    other.join().unwrap();
}

/// A second probe joins and leaves the first one's point while another context calls.
pub(crate) fn joins(machine: &'static Machine, way: Way) {
    let first = machine.register(owned_probe(0)).unwrap();
    way.take(machine);
    let other = context(1, move || assert_eq!(call(machine), 5));
    drop(machine.register(owned_probe(0)).unwrap());
    other.join().unwrap();
    assert_eq!(first.counters().hits, 1);
    first.leak();
}
