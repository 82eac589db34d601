//! The probed places: their points, by address, and who alone writes their text.

use crate::addr::CodeAddr;
use crate::arch::Arch;
use crate::error::NoMemory;
use crate::held::{Held, Hold, Lent};
use crate::state::point::{IN_TABLE, Point};
use crate::state::text::Texts;
use crate::table::{RetiredArray, Table};
use core::ptr::NonNull;

/// All places with a point.
pub(crate) struct Places<A: Arch> {
    points: Table<Point<A>>,
    texts: Texts<A>,
}

impl<A: Arch> Places<A> {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { points: Table::new(), texts: Texts::new() }
    }

    /// The point at `place`.
    #[inline(always)]
    pub(crate) fn at<'g>(&self, place: CodeAddr, held: impl Held<'g>) -> Option<&'g Point<A>> {
        self.points.find(place.as_usize(), held)
    }

    /// Who writes text.
    #[inline(always)]
    pub(crate) fn texts(&self) -> &Texts<A> {
        &self.texts
    }

    /// The point at `place`, as it was allocated: what may be freed once it has been taken off.
    pub(crate) fn lent_at<'g>(&self, place: CodeAddr, hold: &'g Hold) -> Option<Lent<'g, Point<A>>> {
        self.points.find_lent(place.as_usize(), hold)
    }

    /// All points. What has been found may be taken off meanwhile.
    pub(crate) fn all<'g>(&self, hold: &'g Hold) -> impl Iterator<Item = Lent<'g, Point<A>>> {
        self.points.iter(hold)
    }

    /// Makes room for `more` points. The table's former array, if it has another one now.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn reserve(&self, more: usize) -> Result<Option<RetiredArray>, NoMemory> {
        self.points.reserve(more)
    }

    /// Publishes a point; [`Places::reserve`] has made room.
    ///
    /// # Safety
    /// It was made just now, and is freed a grace period after it has been taken off, by who has the lock to
    /// himself.
    pub(crate) unsafe fn add<'g>(&self, point: NonNull<Point<A>>, _hold: &'g Hold) -> Lent<'g, Point<A>> {
        // SAFETY: nothing is freed as long as the lock is borrowed.
        let lent = unsafe { Lent::new(point) };
        lent.set(IN_TABLE);
        // SAFETY: stays for a grace period longer than it is in the table.
        unsafe { self.points.insert(point) };
        lent
    }

    /// Takes a point off, if it is there still. Whoever is inside may go on to look at it.
    pub(crate) fn take_off(&self, point: &Point<A>, _hold: &Hold) {
        if point.is(IN_TABLE) {
            self.points.remove(point);
            point.clear(IN_TABLE);
        }
    }

    /// Takes the table's array, if there is no point left.
    pub(crate) fn retire_if_empty(&self) -> Option<RetiredArray> {
        self.points.retire_if_empty()
    }
}
