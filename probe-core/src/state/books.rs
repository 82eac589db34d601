//! What only the holder of the registry's lock sees.

use crate::held::Lent;
use crate::list::{Dead, List};
use crate::state::host::Host;
use crate::state::point::{Node, Point};
use crate::state::pool::Pool;
use crate::state::refused::Refused;
use crate::state::watch::WatchNode;
use crate::table::RetiredArrays;
use alloc::boxed::Box;

/// The registry's books.
pub(crate) struct Books<H: Host> {
    /// The generation of the newest probe.
    pub(crate) generation: u32,
    pub(crate) arrays: RetiredArrays,
    /// Points that a context was still stepping when they were to be freed. Off the table.
    pub(crate) parked: List<Point<H::Arch>>,
    /// Points whose text has gone, while handles are left. Off the table.
    pub(crate) gone: List<Point<H::Arch>>,
    /// Pools whose probe has gone, while calls are in flight.
    pub(crate) pools: List<Pool<H::Arch>>,
    /// Whether a stub may be left that no instance has: its chunk is freed when it has come back.
    pub(crate) has_left_stubs: bool,
    /// Where there was no room for a detour, in this batch.
    pub(crate) refused: Refused,
    buried: Buried<H>,
}

/// What is freed when the lock has been let go: what handlers own may call us.
pub(super) struct Buried<H: Host> {
    pub(super) nodes: Dead<Node<H::Arch>>,
    pub(super) watches: Dead<WatchNode<H::Arch>>,
}

impl<H: Host> Books<H> {
    /// Empty ones.
    pub(crate) const fn new() -> Self {
        Self {
            generation: 0,
            arrays: RetiredArrays::new(),
            parked: List::new(),
            gone: List::new(),
            pools: List::new(),
            has_left_stubs: false,
            refused: Refused::new(),
            buried: Buried { nodes: Dead::new(), watches: Dead::new() },
        }
    }

    /// The points whose text has gone.
    pub(crate) fn gone_points(&self) -> impl Iterator<Item = Lent<'_, Point<H::Arch>>> {
        self.gone.iter()
    }

    /// Frees a node that nobody can reach any more, once the lock is let go.
    pub(crate) fn bury(&mut self, node: Box<Node<H::Arch>>) {
        self.buried.nodes.push(node);
    }

    /// Frees a watchpoint that nobody can reach any more, once the lock is let go.
    pub(crate) fn bury_watch(&mut self, node: Box<WatchNode<H::Arch>>) {
        self.buried.watches.push(node);
    }

    /// All that is buried.
    pub(super) fn take_buried(&mut self) -> Buried<H> {
        Buried { nodes: self.buried.nodes.take(), watches: self.buried.watches.take() }
    }
}
