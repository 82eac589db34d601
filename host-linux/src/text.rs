//! Writing text.
//!
//! Natively through `/proc/self/mem`, which stores into pages that are mapped without write permission: no
//! page is ever writable and executable (SAFE_1). An emulator that translates code ahead does not see such a
//! store; a self-test at start finds out (`TextWriter::start`). Only then are pages made writable *and*
//! executable for the duration of one write, as other threads go on executing in them.
//!
//! The descriptor stays open, out of the program's way (above number 500 where the limit allows), closed on
//! exec, until somebody closes it ([`crate::close_descriptor`]). The program may close it, too, and give its
//! number to another file (a daemon that closes everything), and in a fork's child it names the parent's
//! memory. So it is checked before every write, or every few: same process, same file.
//!
//! Many writes one after the other are a stretch (`stretch`).

mod run;
mod stretch;

use crate::arch::{Native, RETURN_ONE, RETURN_TWO, function_entry};
use crate::lock::{Lock, Quiet};
use crate::symbols::objects;
use crate::{memory, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::NativeArch;
use probe_core::error::TextError;
use run::Runs;
use stretch::{Look, Stretch};

/// Whether the self-test has found an emulator, or no `/proc`. Fit for handlers.
static IS_UNPROTECTING: AtomicBool = AtomicBool::new(false);

/// Whether text is written in the way of emulators ([`TextAccess::Unprotect`]).
pub(crate) fn is_unprotecting() -> bool {
    IS_UNPROTECTING.load(Ordering::Relaxed)
}

/// The lowest number that the descriptor shall have.
const DESCRIPTOR_FROM: c_int = 500;

/// How text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextAccess {
    /// Through `/proc/self/mem`; pages stay as they are.
    Alias,
    /// By making the page writable and executable for one write: an emulator ignores the alias, or there is
    /// no `/proc`.
    Unprotect,
}

/// The one writer of text.
pub(crate) struct TextWriter {
    state: Lock<State>,
    /// Whether a stretch has begun. Only who has the registry's lock begins one, and writes.
    is_in_stretch: AtomicBool,
    /// Whether something waits to be stored. Then no other thread runs that could see it.
    is_waiting: AtomicBool,
}

struct State {
    access: TextAccess,
    file: Option<MemFile>,
    stretch: Stretch,
}

/// The open `/proc/self/mem`, and how to know it again.
#[derive(Clone, Copy)]
struct MemFile {
    descriptor: c_int,
    process: u32,
    identity: sys::FileIdentity,
}

impl TextWriter {
    /// A writer that has not been tested yet.
    pub(crate) const fn new() -> Self {
        let state = State { access: TextAccess::Alias, file: None, stretch: Stretch::none() };
        Self {
            state: Lock::new(state),
            is_in_stretch: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
        }
    }

    /// Runs the self-test: patches a function of our own that has run before, and looks whether it has
    /// changed. Returns the way of writing that works here.
    ///
    /// # Errors
    /// Neither does.
    pub(crate) fn start(&self) -> Result<TextAccess, TextError> {
        for access in [TextAccess::Alias, TextAccess::Unprotect] {
            self.state.lock().access = access;
            if self.self_test()? {
                IS_UNPROTECTING.store(access == TextAccess::Unprotect, Ordering::Relaxed);
                return Ok(access);
            }
        }
        Err(TextError::Denied(CodeAddr::new(0), libc::ENOSYS))
    }

    fn self_test(&self) -> Result<bool, TextError> {
        let len = sys::page_len();
        let denied = |errno| TextError::Denied(CodeAddr::new(0), errno);
        let at = sys::map(0, len, libc::PROT_READ | libc::PROT_WRITE).map_err(denied)?;
        // SAFETY: the page is ours and writable.
        unsafe { core::ptr::copy_nonoverlapping(RETURN_ONE.as_ptr(), at as *mut u8, RETURN_ONE.len()) };
        // SAFETY: the page is ours alone.
        unsafe { sys::protect(at, len, libc::PROT_READ | libc::PROT_EXEC) }.map_err(denied)?;
        // SAFETY: the page is mapped.
        unsafe { Native::publish(CodeAddr::new(at), RETURN_ONE.len()) };
        // The compiler takes it that descriptors never change, and would read this one before it is written.
        let descriptor = [at, 0, 0];
        let entry = core::hint::black_box(function_entry(&descriptor));
        // SAFETY: the page holds a function of that type.
        let function = unsafe { core::mem::transmute::<usize, extern "C" fn() -> c_int>(entry) };
        let before = function();
        // SAFETY: the page is ours alone, and nobody executes it now.
        let written = unsafe { self.write(CodeAddr::new(at), RETURN_TWO) };
        let works = before == 1 && written.is_ok() && function() == 2;
        // SAFETY: nobody uses the page any more.
        unsafe { sys::unmap(at, len) };
        Ok(works)
    }

    /// How text is written here.
    pub(crate) fn access(&self) -> TextAccess {
        self.state.lock().access
    }

    /// Stores `bytes` at `at` and makes them visible to instruction fetch on this core.
    ///
    /// # Errors
    /// Nothing was written.
    ///
    /// # Safety
    /// See [`probe_core::host::Host::write_text`].
    pub(crate) unsafe fn write(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        // SAFETY: the caller's promise.
        unsafe { self.state.lock().write(at, bytes) }
    }

    /// What [`Self::write`] does, in a stretch if one has begun: there the bytes may wait to be stored with
    /// their neighbours. Not where an object has gone.
    ///
    /// # Errors
    /// Nothing was written.
    ///
    /// # Safety
    /// As for [`Self::write`]; under the registry's lock.
    pub(crate) unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        if !self.is_in_stretch.load(Ordering::Relaxed) {
            if objects::is_gone(at.as_usize()) {
                return Err(TextError::Unmapped(at));
            }
            // SAFETY: the caller's promise.
            return unsafe { self.write(at, bytes) };
        }
        let mut state = self.state.lock_in_quiet();
        if state.stretch.runs.add(at.as_usize(), bytes) {
            self.is_waiting.store(true, Ordering::Relaxed);
            return Ok(());
        }
        state.with_runs(|runs, store| runs.make_room(at.as_usize(), bytes.len(), store));
        if state.stretch.wants_look() {
            let asks = state.stretch.wants_to_know_company();
            // Not under this lock: it takes others.
            drop(state);
            let look = Look::take(asks);
            state = self.state.lock_in_quiet();
            state.stretch.looked(look);
            state.drop_file_of_others();
        }
        if state.stretch.is_gone(at.as_usize()) {
            return Err(TextError::Unmapped(at));
        }
        // SAFETY: the caller's promise.
        unsafe { state.write(at, bytes) }?;
        state.stretch.count();
        // What was written shows that more can be written to this block.
        if state.stretch.is_alone() && state.access == TextAccess::Alias {
            state.stretch.runs.begin(at.as_usize(), bytes);
        }
        Ok(())
    }

    /// Begins a stretch of writes, or one within another. Under the registry's lock.
    pub(crate) fn begin_stretch(&self) {
        let quiet = Quiet::begin();
        self.state.lock_in_quiet().stretch.begin(quiet);
        self.is_in_stretch.store(true, Ordering::Relaxed);
    }

    /// Ends what [`Self::begin_stretch`] began.
    pub(crate) fn end_stretch(&self) {
        let mut state = self.state.lock_in_quiet();
        let quiet = state.stretch.end();
        if quiet.is_some() {
            state.store_runs();
            self.is_waiting.store(false, Ordering::Relaxed);
            self.is_in_stretch.store(false, Ordering::Relaxed);
        }
        drop(state);
        drop(quiet);
    }

    /// Stores what waits.
    #[inline]
    pub(crate) fn store_waiting(&self) {
        if self.is_waiting.load(Ordering::Relaxed) {
            self.state.lock_in_quiet().store_runs();
            self.is_waiting.store(false, Ordering::Relaxed);
        }
    }

    /// Stores what waits, if some of it lies among these bytes.
    #[inline]
    pub(crate) fn store_waiting_at(&self, at: usize, len_bytes: usize) {
        if self.is_waiting.load(Ordering::Relaxed)
            && self.state.lock_in_quiet().stretch.runs.meets(at, len_bytes)
        {
            self.store_waiting();
        }
    }

    /// Closes the descriptor; the next write opens it again.
    pub(crate) fn close(&self) {
        self.state.lock().close();
    }

    /// Before a fork.
    pub(crate) fn hold(&self) {
        self.state.take();
    }

    /// After a fork, in both processes.
    ///
    /// # Safety
    /// This thread has called [`Self::hold`] before the fork.
    pub(crate) unsafe fn release(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.state.give() };
    }
}

impl State {
    /// # Safety
    /// As for [`TextWriter::write`].
    unsafe fn write(&mut self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        match self.access {
            // SAFETY: the caller's promise.
            TextAccess::Alias => unsafe { self.write_alias(at, bytes) }?,
            // SAFETY: the caller's promise.
            TextAccess::Unprotect => unsafe { write_unprotected(at, bytes) }?,
        }
        // SAFETY: the range was just written, so it is mapped; text is readable.
        unsafe { Native::publish(at, bytes.len()) };
        Ok(())
    }

    /// Stores all runs that wait, and ends them.
    fn store_runs(&mut self) {
        self.with_runs(Runs::end);
    }

    /// Calls `change` with the runs and with what stores one. Its block was written to when it began, and
    /// nobody else has run since: that cannot fail.
    fn with_runs(&mut self, change: impl FnOnce(&mut Runs, &mut dyn FnMut(usize, &[u8]))) {
        let file = self.file;
        change(&mut self.stretch.runs, &mut |at, bytes| {
            let Some(file) = file else { return };
            // SAFETY: `TextWriter::write_text` was given these bytes to write, but for those between, which
            // become what they are.
            let stored = unsafe { sys::write_at(file.descriptor, bytes, at) };
            debug_assert_eq!(stored, Ok(bytes.len()), "text that could be written cannot any more");
            // SAFETY: the range was just written, so it is mapped; text is readable.
            unsafe { Native::publish(CodeAddr::new(at), bytes.len()) };
        });
    }

    /// # Safety
    /// As for [`TextWriter::write`].
    unsafe fn write_alias(&mut self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        let denied = |errno| match errno {
            libc::EIO | libc::EFAULT => TextError::Unmapped(at),
            other => TextError::Denied(at, other),
        };
        let file = self.file().map_err(denied)?;
        // SAFETY: the caller's promise.
        match unsafe { sys::write_at(file.descriptor, bytes, at.as_usize()) } {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(TextError::Unmapped(at)),
            Err(errno) => Err(denied(errno)),
        }
    }

    /// The descriptor, if it still is what we opened; else a new one.
    fn file(&mut self) -> Result<MemFile, c_int> {
        // In a stretch it was looked at a moment ago.
        if let Some(file) = self.file.filter(|file| self.stretch.is_begun() || file.is_ours()) {
            return Ok(file);
        }
        self.close();
        let file = MemFile::open()?;
        self.file = Some(file);
        Ok(file)
    }

    /// Forgets a descriptor that has become somebody else's.
    fn drop_file_of_others(&mut self) {
        if self.file.is_some_and(|file| !file.is_ours()) {
            self.close();
        }
    }

    /// Closes the descriptor. A descriptor inherited from a parent is ours to close only if it is still the
    /// very same file.
    fn close(&mut self) {
        if let Some(old) = self.file.take().filter(MemFile::is_same_file) {
            // The one we opened, perhaps in the process that this one is a copy of.
            sys::close(old.descriptor);
        }
    }
}

impl MemFile {
    fn open() -> Result<Self, c_int> {
        // SAFETY: the path is a C string.
        let low = unsafe { libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if low < 0 {
            return Err(sys::errno());
        }
        // SAFETY: takes numbers only.
        let high = unsafe { libc::fcntl(low, libc::F_DUPFD_CLOEXEC, DESCRIPTOR_FROM) };
        let descriptor = if high < 0 {
            low
        } else {
            // SAFETY: `low` was just opened here.
            unsafe { libc::close(low) };
            high
        };
        if !shows_our_memory(descriptor) {
            // SAFETY: `descriptor` was just opened here.
            unsafe { libc::close(descriptor) };
            return Err(libc::ENXIO);
        }
        let identity = sys::identity(descriptor).ok_or(libc::EBADF)?;
        Ok(Self { descriptor, process: sys::process_id(), identity })
    }

    fn is_ours(&self) -> bool {
        self.process == sys::process_id() && self.is_same_file()
    }

    fn is_same_file(&self) -> bool {
        sys::identity(self.descriptor) == Some(self.identity)
    }
}

/// Whether addresses mean the same in the file as here. Under an emulator that keeps an offset between its
/// own and the program's addresses they do not, and writing blindly would destroy the emulator.
fn shows_our_memory(descriptor: c_int) -> bool {
    let known = [0x5a_u8, 0xc3, 0x17, 0x99, descriptor as u8, 0x42, 0xe1, 0x08];
    let mut seen = [0; 8];
    let at = known.as_ptr() as usize as i64;
    // SAFETY: `seen` is writable and 8 bytes long.
    let len = unsafe { libc::pread64(descriptor, seen.as_mut_ptr().cast(), seen.len(), at) };
    len == 8 && seen == known
}

/// Makes the pages writable for one write. They stay executable: other threads run in them.
///
/// # Safety
/// See [`probe_core::host::Host::write_text`].
unsafe fn write_unprotected(at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
    let at_usize = at.as_usize();
    let page = sys::page_len();
    let start = at_usize & !(page - 1);
    let len = (at_usize + bytes.len()).next_multiple_of(page) - start;
    let mut probe = [0];
    if memory::read_some(at_usize, &mut probe) == 0 {
        return Err(TextError::Unmapped(at));
    }
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the pages stay readable and executable.
    unsafe { sys::protect(start, len, executable | libc::PROT_WRITE) }
        .map_err(|errno| TextError::Denied(at, errno))?;
    // SAFETY: the pages are writable now; the caller owns the bytes.
    unsafe { store(at_usize, bytes) };
    // SAFETY: text and slots are readable and executable and nothing else.
    unsafe { sys::protect(start, len, executable) }.map_err(|errno| TextError::Denied(at, errno))
}

/// Stores aligned words and halves of them at once, as other threads may execute them.
///
/// # Safety
/// The range is writable and the caller's.
unsafe fn store(at: usize, bytes: &[u8]) {
    if let Ok(word) = <[u8; 4]>::try_from(bytes)
        && at.is_multiple_of(4)
    {
        let word = u32::from_ne_bytes(word);
        // SAFETY: writable, by the caller's promise, and aligned.
        unsafe { core::ptr::write_volatile(at as *mut u32, word) };
        return;
    }
    if let Ok(half) = <[u8; 2]>::try_from(bytes)
        && at.is_multiple_of(2)
    {
        let half = u16::from_ne_bytes(half);
        // SAFETY: as above.
        unsafe { core::ptr::write_volatile(at as *mut u16, half) };
        return;
    }
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: writable, by the caller's promise.
        unsafe { core::ptr::write_volatile((at + i) as *mut u8, *byte) };
    }
}
