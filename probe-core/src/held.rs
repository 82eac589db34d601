//! What keeps alive what the tables and lists lead to: a value that only the code which keeps it alive can make.

/// The proof that nothing which a table leads to is freed: a [`Section`](crate::state::context::Section) of the hit path, or the
/// registry's lock. A reference that is found with it does not outlive it.
///
/// # Safety
/// As long as a value of the type lives, nothing that was in a table since it was made is freed, nor a table's array.
pub(crate) unsafe trait Held {}
