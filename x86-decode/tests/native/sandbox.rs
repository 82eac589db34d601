//! A child process for what may end in any way; what it was at is in memory that both share.

/// What the child is at.
#[derive(Clone, Copy)]
pub(crate) struct Current(*mut Noted);

#[derive(Clone, Copy)]
struct Noted {
    seed: u64,
    index: u64,
    bytes: [u8; 15],
}

impl Current {
    /// Shared with the children of this process.
    pub(crate) fn map() -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Noted>(), access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    /// Notes what comes next.
    pub(crate) fn note(&self, seed: u64, index: u64, bytes: &[u8]) {
        let mut noted = Noted { seed, index, bytes: [0; 15] };
        noted.bytes[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: mapped for as long as the process lives, and written by the child alone.
        unsafe { self.0.write_volatile(noted) };
    }

    fn told(&self) -> String {
        // SAFETY: mapped, and the child has ended.
        let noted = unsafe { self.0.read_volatile() };
        format!("seed {}, number {}: {:02x?}", noted.seed, noted.index, noted.bytes)
    }
}

/// Runs `work` in a child, which has to return within so much processor time, and within ten times that in
/// all.
///
/// # Panics
/// It has ended in another way: with what it was at.
pub(crate) fn run(current: &Current, limit_seconds: u32, work: impl FnOnce()) {
    // SAFETY: the child runs `work` and leaves by `_exit`; it needs nothing of this process's other threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // What does not end is ended; other programs' load is not counted.
        let limit = libc::rlimit { rlim_cur: limit_seconds as _, rlim_max: limit_seconds as _ };
        // SAFETY: the structure is readable.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const limit) }, 0);
        // SAFETY: takes a number only.
        unsafe { libc::alarm(10 * limit_seconds) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(waited == child && status == 0, "status {status:#x} at {}", current.told());
}
