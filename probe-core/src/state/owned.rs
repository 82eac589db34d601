//! The ownership of a probe's node.
//!
//! A node lies where hits find it by its address, and is freed by hand, after a grace period. Until then it
//! has one owner, a value that is moved from hand to hand: a registration makes it, the user's handle keeps
//! it, a removal takes it from there, and [`Books::bury`](crate::state::books::Books::bury) gets it last. A
//! handle that is dropped where its probe cannot be removed leaves the node to its point's list, as an
//! orphan, and the code that takes it from the list owns it again.

use crate::arch::Arch;
use crate::held::{Hold, Lent};
use crate::room::{Room, free};
use crate::state::point::{Handlers, LEAVING, Node, ORPHAN, Point};
use crate::sync::{Relaxed, Release};
use alloc::boxed::Box;
use core::ops::Deref;
use core::ptr::{self, NonNull};

/// The one owner of a node: the node exists as long as this value does.
#[must_use = "without an owner it is never freed"]
pub(crate) struct OwnedNode<A: Arch>(NonNull<Node<A>>);

// SAFETY: a node is shared state made for it, and its handlers are Send + Sync.
unsafe impl<A: Arch> Send for OwnedNode<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for OwnedNode<A> {}

impl<A: Arch> OwnedNode<A> {
    /// The owner of a new node.
    pub(crate) fn new(room: Room<Node<A>>, node: Node<A>) -> Self {
        Self(room.fill(node))
    }

    /// The new owner of an orphan.
    ///
    /// # Safety
    /// It is one, on its point's list, and nobody else takes it from there.
    pub(crate) unsafe fn of_orphan(node: Lent<'_, Node<A>>) -> Self {
        Self(node.pointer())
    }

    /// Puts it first on its point's list, or last if it is a jprobe.
    ///
    /// # Safety
    /// The node is of this point. Its owner buries it when it has been unlinked and a grace period has ended,
    /// not before.
    pub(crate) unsafe fn link(&self, _hold: &Hold, point: &Point<A>) {
        let this = self.0.as_ptr();
        if !matches!(self.handlers, Handlers::Jprobe(_)) {
            self.next.store(point.head.load(Relaxed), Relaxed);
            point.head.store(this, Release);
        } else {
            self.next.store(ptr::null_mut(), Relaxed);
            point.nodes().last().map_or(&point.head, |last| &last.next).store(this, Release);
        }
    }

    /// Ends its record: what is left is memory of its own, to be freed without the lock.
    ///
    /// # Safety
    /// Nobody has found it, or a grace period has ended that began when it was on no list and its pool had
    /// forgotten it.
    pub(crate) unsafe fn end(self) -> Box<Node<A>> {
        // SAFETY: it has this one owner, and nobody else reaches it.
        unsafe { free(self.0) }
    }

    /// Leaves it to its point's list: the next call of the registry removes it.
    pub(crate) fn orphan(self) {
        self.set(LEAVING | ORPHAN);
    }
}

impl<A: Arch> Deref for OwnedNode<A> {
    type Target = Node<A>;

    fn deref(&self) -> &Node<A> {
        // SAFETY: `new` was promised that nobody else frees it, and what frees it takes this value first.
        unsafe { self.0.as_ref() }
    }
}
