//! The kernel's interface as this crate uses it: raw system calls. The structures of signal delivery are in
//! `abi`.
//!
//! `rt_sigaction` and `rt_sigprocmask` are raw on purpose: an agent interposes libc's, and libc's leave out
//! the signals that libc itself uses (32 and 33), which must not interrupt the hit path either. libc's
//! `syscall` may be probed, and a hit that made a system call through it before its thread is known would
//! never end.

pub use crate::abi::{Action, AltStack, Restorer, SigInfo, SignalSet};

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Makes a system call with up to six arguments; the program's errno stays as it is. Without libc, whose
/// functions may be probed.
///
/// # Errors
/// The errno.
///
/// # Safety
/// As for the system call.
pub unsafe fn call<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> Result<usize, c_int> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    let result = unsafe { crate::arch::syscall(number, &all) };
    // The last page of addresses is never a result.
    if (-4095..0).contains(&result) { Err(-result as c_int) } else { Ok(result as usize) }
}

/// Whether the program has forbidden itself system calls.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// Notes that the program is about to forbid itself system calls: from now on none is made that is not in
/// nearly every program's list (`rt_sigprocmask`, `mmap`, `mprotect`).
pub(crate) fn confine() {
    IS_CONFINED.store(true, Ordering::Relaxed);
}

/// Whether [`confine`] was called.
pub(crate) fn is_confined() -> bool {
    IS_CONFINED.load(Ordering::Relaxed)
}

/// Whether system calls are made that only save time.
static MAY_ASK: AtomicBool = AtomicBool::new(true);

/// Lets no system call be made any more that only saves time.
pub(crate) fn spare() {
    MAY_ASK.store(false, Ordering::Relaxed);
}

/// Whether system calls may be made that only save time.
pub(crate) fn may_ask() -> bool {
    MAY_ASK.load(Ordering::Relaxed) && !is_confined()
}

/// The address of something that a system call reads.
fn from<T>(what: Option<&T>) -> usize {
    what.map_or(0, |what| core::ptr::from_ref(what).expose_provenance())
}

/// The address of something that a system call writes.
fn into<T>(what: &mut T) -> usize {
    core::ptr::from_mut(what).expose_provenance()
}

/// The calling thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's errno.
    unsafe { *errno_location() }
}

/// What libc's functions do with an errno.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the calling thread's own.
    unsafe { errno_location().write(errno) };
    -1
}

/// The address of the calling thread's errno.
pub(crate) fn errno_location() -> *mut c_int {
    // SAFETY: it has no preconditions.
    unsafe { libc::__errno_location() }
}

/// `rt_sigaction`: sets the action of `signal` where `new` is given; returns the one before.
///
/// # Errors
/// The errno: EINVAL for a signal that has no action.
///
/// # Safety
/// A handler in `new` must be a signal handler that may run at any moment from now on.
pub unsafe fn sigaction(signal: c_int, new: Option<&Action>) -> Result<Action, c_int> {
    /// On riscv64 QEMU 7.2 has a restorer before the mask, which the kernel has not: the mask stands where
    /// either looks for it.
    #[repr(C)]
    struct Passed {
        action: Action,
        mask: SignalSet,
    }
    let new = new.map(|action| Passed { action: *action, mask: action.mask });
    let mut old = Passed { action: Action::DEFAULT, mask: SignalSet::EMPTY };
    let arguments = [signal as usize, from(new.as_ref()), into(&mut old), size_of::<SignalSet>()];
    // SAFETY: both pointers are null or point to kernel-shaped structures that live through the call; what
    // `new` installs is the caller's promise.
    unsafe { call(libc::SYS_rt_sigaction, arguments) }.map(|_| old.action)
}

/// `rt_sigprocmask`: with `how` = `SIG_SETMASK` and the like; returns the mask before.
pub(crate) fn sigprocmask(how: c_int, set: Option<SignalSet>) -> SignalSet {
    let mut old = SignalSet::EMPTY;
    let arguments = [how as usize, from(set.as_ref()), into(&mut old), size_of::<SignalSet>()];
    // SAFETY: both pointers are null or point to 8-byte sets that live through the call.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
    old
}

/// `sigaltstack`: sets the calling thread's alternate stack; returns the one before.
///
/// # Errors
/// EPERM while the thread is on the old one.
///
/// # Safety
/// The new stack's memory is writable, and used for nothing else as long as it is set.
pub(crate) unsafe fn sigaltstack(new: Option<&AltStack>) -> Result<AltStack, c_int> {
    let mut old = AltStack { base: 0, flags: libc::SS_DISABLE, len_bytes: 0 };
    let arguments = [from(new), into(&mut old)];
    // SAFETY: both pointers are null or valid; the stack itself is the caller's promise.
    unsafe { call(libc::SYS_sigaltstack, arguments) }.map(|_| old)
}

/// The calling thread's number.
pub fn thread_id() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { call(libc::SYS_gettid, []) }.unwrap_or(0) as u32
}

/// The process's number, asked afresh (libc caches none, but an interposed one may).
pub fn process_id() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { call(libc::SYS_getpid, []) }.unwrap_or(0) as u32
}

/// Whether thread `tid` of `process` exists.
pub fn thread_lives(process: u32, tid: u32) -> bool {
    // SAFETY: signal 0 is only a question.
    let result = unsafe { call(libc::SYS_tgkill, [process as usize, tid as usize, 0]) };
    result != Err(libc::ESRCH)
}

/// Sends the calling thread a signal, as `raise(3)` does.
pub(crate) fn send_to_self(signal: c_int) {
    let arguments = [process_id() as usize, thread_id() as usize, signal as usize];
    // SAFETY: a thread may send itself any signal.
    let _ = unsafe { call(libc::SYS_tgkill, arguments) };
}

/// Queues `info` to a thread of this process, to another one with a code below 0 that is not SI_TKILL;
/// `false` if there is no such thread or no room.
pub(crate) fn queue_to_thread(thread: u32, info: &SigInfo) -> bool {
    let arguments = [process_id() as usize, thread as usize, info.signal as usize, from(Some(info))];
    // SAFETY: `info` is 128 bytes long as the kernel expects; a process may send itself anything.
    unsafe { call(libc::SYS_rt_tgsigqueueinfo, arguments) }.is_ok()
}

/// Calls `visit` with the number of each thread of this process; `None`: nobody tells (without `/proc`).
pub(crate) fn for_each_thread(visit: &mut dyn FnMut(u32)) -> Option<()> {
    /// Where a `struct linux_dirent64` has its length, and its name.
    const LEN_AT: usize = 16;
    const NAME_AT: usize = 19;
    let path = c"/proc/self/task".as_ptr().expose_provenance();
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    // SAFETY: a string.
    let folder = unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0]) }.ok()?;
    let mut entries = [0_u64; 256];
    let done = loop {
        let room = [folder, into(&mut entries), size_of_val(&entries)];
        // SAFETY: the call writes so many bytes at most.
        let Ok(len) = (unsafe { call(libc::SYS_getdents64, room) }) else { break None };
        if len == 0 {
            break Some(());
        }
        let bytes = entries.map(u64::to_ne_bytes);
        let mut rest = bytes.as_flattened().get(..len).unwrap_or(&[]);
        while let Some(&[low, high]) = rest.get(LEN_AT..LEN_AT + 2)
            && let Some((entry, next)) = rest.split_at_checked(usize::from(u16::from_ne_bytes([low, high])))
            && let Some(name) = entry.get(NAME_AT..)
        {
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let number = digits
                .fold(0_u32, |number, digit| number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
            if number != 0 {
                visit(number);
            }
            rest = next;
        }
    };
    close(folder as c_int);
    done
}

/// Waits until another thread calls [`wake`], at most so long; not at all if the word is not `value`. It may
/// return earlier.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, most_ns: Option<libc::c_long>) {
    let time = most_ns.map(|tv_nsec| libc::timespec { tv_sec: 0, tv_nsec });
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let arguments =
        [word.as_ptr().expose_provenance(), operation as usize, value as usize, from(time.as_ref())];
    // SAFETY: the word and the time live through the call.
    let _ = unsafe { call(libc::SYS_futex, arguments) };
}

/// Wakes all who wait for a change of the word.
pub(crate) fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let arguments = [word.as_ptr().expose_provenance(), operation as usize, i32::MAX as usize];
    // SAFETY: changes nothing but that they go on.
    let _ = unsafe { call(libc::SYS_futex, arguments) };
}

/// The signals that are blocked and pending, of the calling thread's and of the process's.
pub(crate) fn pending() -> SignalSet {
    let mut set = SignalSet::EMPTY;
    // SAFETY: a set of eight bytes that lives through the call.
    let _ = unsafe { call(libc::SYS_rt_sigpending, [into(&mut set), size_of::<SignalSet>()]) };
    set
}

/// Queues `info` to the calling thread, with whatever code it carries; `false` if there is no room for it.
pub(crate) fn queue_to_self(info: &SigInfo) -> bool {
    queue_to_thread(thread_id(), info)
}

/// Takes a pending signal `signal` off the calling thread's or the process's queue, without waiting.
pub(crate) fn take_pending(signal: c_int) -> Option<SigInfo> {
    let set = SignalSet::EMPTY.with(signal);
    let mut info = SigInfo::fault(0, 0, 0);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let arguments = [from(Some(&set)), into(&mut info), from(Some(&now)), size_of::<SignalSet>()];
    // SAFETY: the structures are the kernel's and live through the call.
    let result = unsafe { call(libc::SYS_rt_sigtimedwait, arguments) };
    (result == Ok(signal as usize)).then_some(info)
}

/// `membarrier(command)`.
///
/// # Errors
/// The errno.
pub(crate) fn membarrier(command: c_int) -> Result<usize, c_int> {
    // SAFETY: the call takes numbers only.
    unsafe { call(libc::SYS_membarrier, [command as usize, 0, 0]) }
}

/// Opens an event for a thread of this process, on whatever CPU it runs; `attributes` are a `struct
/// perf_event_attr`.
///
/// # Errors
/// The errno.
pub(crate) fn perf_event_open(attributes: &[u64; 16], thread: u32) -> Result<c_int, c_int> {
    const CLOSE_ON_EXEC: usize = 8;
    let (any, none) = (usize::MAX, usize::MAX);
    // SAFETY: the call reads the attributes.
    unsafe {
        call(libc::SYS_perf_event_open, [from(Some(attributes)), thread as usize, any, none, CLOSE_ON_EXEC])
    }
    .map(|event| event as c_int)
}

/// Writes into a file at that offset, which is an address in this process; returns the number of bytes.
///
/// # Errors
/// The errno.
///
/// # Safety
/// The caller may change the memory that these bytes of the file are.
pub(crate) unsafe fn write_at(descriptor: c_int, bytes: &[u8], at: usize) -> Result<usize, c_int> {
    // An offset is 64 bits: on 32-bit machines two words, the low one first (x86 is little-endian), and this
    // one is never negative.
    let arguments = [descriptor as usize, bytes.as_ptr().expose_provenance(), bytes.len(), at, 0];
    // SAFETY: `bytes` is readable; the rest is the caller's promise.
    unsafe { call(libc::SYS_pwrite64, arguments) }
}

/// The first 16 bytes of the kernel's `struct stat`: the device and the number of the inode, on all our
/// architectures.
pub(crate) type FileIdentity = [usize; 16 / size_of::<usize>()];

/// The identity of a descriptor's file among all files; `None` if the descriptor is closed.
pub(crate) fn identity(descriptor: c_int) -> Option<FileIdentity> {
    #[cfg(target_pointer_width = "64")]
    const FSTAT: libc::c_long = libc::SYS_fstat;
    #[cfg(target_pointer_width = "32")]
    const FSTAT: libc::c_long = libc::SYS_fstat64;
    // More than any of them takes.
    let mut stat = [0; 256 / size_of::<usize>()];
    // SAFETY: the call writes one structure.
    unsafe { call(FSTAT, [descriptor as usize, into(&mut stat)]) }.ok()?;
    stat.first_chunk().copied()
}

/// Closes a file descriptor of ours.
pub(crate) fn close(descriptor: c_int) {
    // SAFETY: it is ours, and nobody uses it again.
    let _ = unsafe { call(libc::SYS_close, [descriptor as usize]) };
}

/// Maps anonymous private memory; `at` is an address to be taken exactly (not replacing anything) or 0.
///
/// # Errors
/// The errno; EEXIST where `at` is taken.
pub(crate) fn map(at: usize, len_bytes: usize, protection: c_int) -> Result<usize, c_int> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: never replaces a mapping (MAP_FIXED_NOREPLACE; a kernel or emulator that does not know the flag
    // takes the address as a hint).
    let got = unsafe { call(MAP, [at, len_bytes, protection as usize, flags as usize, usize::MAX, 0]) }?;
    #[cfg(feature = "mapped")]
    crate::ledger::add(got, len_bytes);
    if at != 0 && got != at {
        // SAFETY: the mapping was just made and nobody knows it.
        unsafe { unmap(got, len_bytes) };
        return Err(libc::EEXIST);
    }
    Ok(got)
}

/// Where the heap ends that grows upwards (`brk`).
pub(crate) fn program_break() -> usize {
    // SAFETY: an address that the heap cannot end at changes nothing.
    unsafe { call(libc::SYS_brk, [0]) }.unwrap_or(0)
}

/// The system call behind `mmap`: on 32-bit machines the one whose offset (0 here) counts pages.
#[cfg(target_pointer_width = "64")]
const MAP: libc::c_long = libc::SYS_mmap;
#[cfg(target_pointer_width = "32")]
const MAP: libc::c_long = libc::SYS_mmap2;

/// Unmaps memory.
///
/// # Safety
/// Nobody uses the range any more.
pub(crate) unsafe fn unmap(at: usize, len_bytes: usize) {
    #[cfg(feature = "mapped")]
    crate::ledger::remove(at, len_bytes);
    // SAFETY: the caller's promise.
    let _ = unsafe { call(libc::SYS_munmap, [at, len_bytes]) };
}

/// Changes the protection of pages.
///
/// # Errors
/// The errno.
///
/// # Safety
/// Whoever uses the range can live with the new protection.
pub(crate) unsafe fn protect(at: usize, len_bytes: usize, protection: c_int) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_mprotect, [at, len_bytes, protection as usize]) }.map(drop)
}

/// The size of a page in bytes.
pub(crate) fn page_len() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    // Asked once: later calls come from handlers.
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: it has no preconditions.
    let asked = (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as usize;
    KNOWN.store(asked, Ordering::Relaxed);
    asked
}
