//! The lock of those who install actions: one thread at a time.

use crate::lock::Lock;

pub(super) static WRITER: Lock<()> = Lock::new(());

/// Runs `body` as the only installer of actions, where the program's signals wait already.
pub(crate) fn installing_in_quiet<T>(body: impl FnOnce() -> T) -> T {
    let _writer = WRITER.lock_in_quiet();
    body()
}

/// As [`installing_in_quiet`]; `None`: another thread does so.
pub(crate) fn try_installing_in_quiet<T>(body: impl FnOnce() -> T) -> Option<T> {
    let _writer = WRITER.try_lock_in_quiet()?;
    Some(body())
}
