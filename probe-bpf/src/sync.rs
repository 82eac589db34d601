//! The atomics of maps, in one place: unit tests replace them by others, which run a hit at a chosen
//! operation.

#[cfg(test)]
pub(crate) use hooked::{AtomicU64, at_operation};

#[cfg(not(test))]
pub(crate) use core::sync::atomic::AtomicU64;
pub(crate) use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Atomics that run a hit before a chosen operation of their thread: an interrupt there, as the operations
/// see it.
#[cfg(test)]
mod hooked {
    extern crate std;

    use core::sync::atomic::{self, Ordering};
    use std::boxed::Box;
    use std::cell::RefCell;

    /// What is to be run, after so many operations more.
    type Hook = (usize, Box<dyn FnOnce()>);

    std::thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Runs `outer`, and `inner` before the operation of that index in it; whether there was one.
    pub(crate) fn at_operation(index: usize, inner: impl FnOnce() + 'static, outer: impl FnOnce()) -> bool {
        HOOK.with(|hook| *hook.borrow_mut() = Some((index, Box::new(inner))));
        outer();
        HOOK.with(|hook| hook.borrow_mut().take()).is_none()
    }

    fn reached() {
        let due = HOOK.with(|hook| {
            let mut hook = hook.borrow_mut();
            match &mut *hook {
                Some((0, _)) => hook.take(),
                Some((left, _)) => {
                    *left -= 1;
                    None
                }
                None => None,
            }
        });
        if let Some((_, inner)) = due {
            inner();
        }
    }

    pub(crate) struct AtomicU64(atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) const fn new(value: u64) -> Self {
            Self(atomic::AtomicU64::new(value))
        }
        pub(crate) fn load(&self, order: Ordering) -> u64 {
            reached();
            self.0.load(order)
        }
        pub(crate) fn store(&self, value: u64, order: Ordering) {
            reached();
            self.0.store(value, order);
        }
        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            reached();
            self.0.fetch_add(value, order)
        }
        pub(crate) fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            change: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            reached();
            self.0.fetch_update(set, fetch, change)
        }
        pub(crate) fn compare_exchange(
            &self,
            from: u64,
            to: u64,
            set: Ordering,
            failed: Ordering,
        ) -> Result<u64, u64> {
            reached();
            self.0.compare_exchange(from, to, set, failed)
        }
    }
}
