//! What a process knows of itself: its auxiliary vector, its threads, no environment.

use super::calls::PAGE;
use super::thread::fail;
use probe_host_linux::sys;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_long, c_ulong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The auxiliary vector: types and values.
static AUXILIARY: OnceLock<Vec<[usize; 2]>> = OnceLock::new();

/// Thread-local storage of the standard library's, one for all threads: nothing in a hit uses it, and outside
/// of hits one thread at a time runs here.
#[repr(C, align(64))]
struct Local(UnsafeCell<[u8; LOCAL_LEN]>);

const LOCAL_LEN: usize = 4096;

// SAFETY: one thread at a time, as above.
unsafe impl Sync for Local {}

static LOCAL: Local = Local(UnsafeCell::new([0; LOCAL_LEN]));

unsafe extern "C" {
    /// The object's own first byte; of the linker's making.
    #[link_name = "__ehdr_start"]
    static OWN: libc::Elf64_Ehdr;
}

/// The object's program headers.
fn own_headers() -> &'static [libc::Elf64_Phdr] {
    let own = &raw const OWN;
    // SAFETY: the header is mapped with the object.
    let header = unsafe { &*own };
    let at = own.cast::<u8>().wrapping_add(header.e_phoff as usize).cast();
    // SAFETY: the headers lie in the first segment, which is mapped for good.
    unsafe { std::slice::from_raw_parts(at, usize::from(header.e_phnum)) }
}

/// Fills the storage with what it begins with, once.
pub(super) fn start() {
    static IS_FILLED: AtomicBool = AtomicBool::new(false);
    if IS_FILLED.swap(true, Ordering::Relaxed) {
        return;
    }
    for header in own_headers().iter().filter(|header| header.p_type == libc::PT_TLS) {
        let from = (&raw const OWN).cast::<u8>().wrapping_add(header.p_vaddr as usize);
        let len = (header.p_filesz as usize).min(LOCAL_LEN);
        // SAFETY: both are mapped, `len` bytes of each; no other thread runs here.
        unsafe { std::ptr::copy_nonoverlapping(from, LOCAL.0.get().cast(), len) };
    }
}

/// `tls_index` of the ABI: a module, which is always this one, and an offset in its storage.
///
/// # Safety
/// The linker's own.
#[unsafe(no_mangle)]
unsafe extern "C" fn __tls_get_addr(index: *const [usize; 2]) -> *mut c_void {
    // SAFETY: the caller's promise.
    let [_, offset] = unsafe { *index };
    LOCAL.0.get().cast::<u8>().wrapping_add(offset).cast()
}

#[unsafe(no_mangle)]
extern "C" fn getauxval(kind: c_ulong) -> c_ulong {
    let entries = AUXILIARY.get_or_init(|| {
        let bytes = std::fs::read("/proc/self/auxv").unwrap_or_default();
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
        bytes.chunks_exact(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect()
    });
    let found = entries.iter().find(|[known, _]| *known == kind as usize);
    found.map_or(0, |[_, value]| *value as c_ulong)
}

#[unsafe(no_mangle)]
extern "C" fn sysconf(what: c_int) -> c_long {
    match what {
        libc::_SC_PAGESIZE => PAGE as c_long,
        _ => fail(libc::EINVAL) as c_long,
    }
}

#[unsafe(no_mangle)]
extern "C" fn getenv(_name: *const c_char) -> *mut c_char {
    std::ptr::null_mut()
}

/// No environment.
#[repr(transparent)]
struct Environment(UnsafeCell<*mut *mut c_char>);

// SAFETY: nobody writes it.
unsafe impl Sync for Environment {}

#[unsafe(no_mangle)]
static environ: Environment = Environment(UnsafeCell::new(std::ptr::null_mut()));

/// No thread has an end that this object is told of.
#[unsafe(no_mangle)]
extern "C" fn pthread_key_create(_key: *mut u32, _destructor: *const c_void) -> c_int {
    libc::EAGAIN
}

#[unsafe(no_mangle)]
extern "C" fn pthread_key_delete(_key: u32) -> c_int {
    libc::EINVAL
}

#[unsafe(no_mangle)]
extern "C" fn pthread_setspecific(_key: u32, _value: *const c_void) -> c_int {
    libc::EINVAL
}

/// No fork is told of.
#[unsafe(no_mangle)]
extern "C" fn pthread_atfork(_before: *const c_void, _parent: *const c_void, _child: *const c_void) -> c_int {
    libc::ENOMEM
}

#[unsafe(no_mangle)]
extern "C" fn pthread_testcancel() {}

/// What tells objects apart for destructors; of the start files, which this object has none of.
#[unsafe(no_mangle)]
static __dso_handle: u8 = 0;

/// Thread-local storage is for good.
#[unsafe(no_mangle)]
extern "C" fn __cxa_thread_atexit_impl(
    _destructor: *const c_void,
    _at: *mut c_void,
    _object: *mut c_void,
) -> c_int {
    0
}

/// # Safety
/// As of the GNU `strerror_r(3)` that POSIX describes.
#[unsafe(no_mangle)]
unsafe extern "C" fn __xpg_strerror_r(errno: c_int, to: *mut c_char, len: usize) -> c_int {
    let text = format!("errno {errno}\0");
    if text.len() > len {
        return libc::ERANGE;
    }
    // SAFETY: room for it, by the caller's promise and the comparison.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len()) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn abort() -> ! {
    loop {
        // SAFETY: ends the process, whose memory cannot be relied on any more.
        let _ = unsafe { sys::call(libc::SYS_kill, [sys::process_id() as usize, libc::SIGKILL as usize]) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    loop {
        // SAFETY: ends all threads of the process.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [status as usize]) };
    }
}
