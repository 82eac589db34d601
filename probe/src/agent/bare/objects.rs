//! The loaded objects, without the loader's services: from its list for debuggers (`struct r_debug` of
//! `<link.h>`), and the vDSO's symbols.
//!
//! The list is read while all other threads are stopped and it is consistent, which whoever maps the agent
//! has seen to, or in the thread that has just changed it (`super::super::later`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

type Visit = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// What the loader tells debuggers of an object: `struct link_map`.
#[repr(C)]
struct Link {
    bias: usize,
    name: *const c_char,
    dynamic: *const Entry,
    next: *const Self,
    previous: *const Self,
}

/// An entry of a dynamic section.
#[repr(C)]
struct Entry {
    tag: usize,
    value: usize,
}

const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_DEBUG: usize = 21;
const DT_HASH: usize = 4;

/// How often the list was found changed, and a sum over what was found.
static CHANGES: AtomicU64 = AtomicU64::new(0);
static SUM: AtomicU64 = AtomicU64::new(0);

fn auxiliary(kind: u64) -> usize {
    // SAFETY: it has no preconditions.
    unsafe { libc::getauxval(kind) as usize }
}

/// The program's own headers.
fn program_headers() -> &'static [libc::Elf64_Phdr] {
    let (at, count) = (auxiliary(libc::AT_PHDR), auxiliary(libc::AT_PHNUM));
    if at == 0 {
        return &[];
    }
    // SAFETY: the kernel's word: so many headers in the program's first segment.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), count) }
}

/// The entry of a dynamic section that has this tag.
///
/// # Safety
/// `section` is an object's dynamic section.
unsafe fn entry(section: *const Entry, wanted: usize) -> Option<usize> {
    let mut at = section;
    loop {
        // SAFETY: not past the last one, which is DT_NULL.
        let entry = unsafe { &*at };
        if entry.tag == wanted {
            return Some(entry.value);
        }
        if entry.tag == DT_NULL {
            return None;
        }
        at = at.wrapping_add(1);
    }
}

/// What is added to the addresses of the program's file.
fn program_bias() -> usize {
    let (at, headers) = (auxiliary(libc::AT_PHDR), program_headers());
    if let Some(own) = headers.iter().find(|header| header.p_type == libc::PT_PHDR) {
        return at.wrapping_sub(own.p_vaddr as usize);
    }
    // glibc's static programs do not name their headers, which lie in the page that the file begins with.
    let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD && header.p_offset == 0);
    let page = at & !(auxiliary(libc::AT_PAGESZ) - 1);
    first.map_or(0, |first| page.wrapping_sub(first.p_vaddr as usize))
}

/// The first object of the loader's list, which is the program; a static one has no list.
fn first() -> Option<&'static Link> {
    let headers = program_headers();
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    let section = std::ptr::with_exposed_provenance(program_bias().wrapping_add(dynamic.p_vaddr as usize));
    // SAFETY: the program's own.
    let debug = unsafe { entry(section, DT_DEBUG) }.filter(|&debug| debug != 0)?;
    let list: *const *const Link = std::ptr::with_exposed_provenance(debug + size_of::<usize>());
    // SAFETY: the loader's structure: a version, padding to a word, the list.
    let first = unsafe { *list };
    // SAFETY: NULL, or an entry of the list, which nobody changes now.
    unsafe { first.as_ref() }
}

/// The headers of an object whose first byte is at `bias`, as that of every shared object is.
///
/// # Safety
/// It is an object of the loader's list that is not the program.
unsafe fn headers_of(bias: usize) -> (*const libc::Elf64_Phdr, u16) {
    let header: *const libc::Elf64_Ehdr = std::ptr::with_exposed_provenance(bias);
    // SAFETY: the caller's promise.
    let header = unsafe { &*header };
    (std::ptr::with_exposed_provenance(bias + header.e_phoff as usize), header.e_phnum)
}

/// # Safety
/// As `dl_iterate_phdr(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dl_iterate_phdr(visit: Option<Visit>, data: *mut c_void) -> c_int {
    let Some(visit) = visit else { return 0 };
    // SAFETY: NULL, or an entry of the list, which nobody changes now.
    let links = || std::iter::successors(first(), |link| unsafe { link.next.as_ref() });
    let mut sum = 0_u64;
    // The program, which is told of from the kernel's words, as a static one has no list.
    let mut count = 1;
    for link in links().skip(1) {
        let dynamic = link.dynamic.expose_provenance() as u64;
        sum = sum.rotate_left(7) ^ link.bias as u64 ^ dynamic.rotate_left(32);
        count += 1;
    }
    if SUM.swap(sum, Ordering::Relaxed) != sum {
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
    let gone = CHANGES.load(Ordering::Relaxed);
    let own = program_headers();
    let program = (program_bias(), c"".as_ptr(), own.as_ptr(), own.len() as u16);
    let others = links().skip(1).map(|link| {
        // SAFETY: an object of the list that is not the program.
        let (headers, header_count) = unsafe { headers_of(link.bias) };
        (link.bias, link.name, headers, header_count)
    });
    for (bias, name, headers, header_count) in std::iter::once(program).chain(others) {
        let mut info = libc::dl_phdr_info {
            dlpi_addr: bias as u64,
            dlpi_name: name,
            dlpi_phdr: headers,
            dlpi_phnum: header_count,
            dlpi_adds: gone + count,
            dlpi_subs: gone,
            dlpi_tls_modid: 0,
            dlpi_tls_data: std::ptr::null_mut(),
        };
        // SAFETY: the caller's promise.
        let result = unsafe { visit(&raw mut info, size_of::<libc::dl_phdr_info>(), data) };
        if result != 0 {
            return result;
        }
    }
    0
}

/// Nothing is loaded; the vDSO is there already.
///
/// # Safety
/// As `dlopen(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(name: *const c_char, _flags: c_int) -> *mut c_void {
    // SAFETY: the caller's promise: a string.
    let is_vdso = !name.is_null() && unsafe { CStr::from_ptr(name) } == c"linux-vdso.so.1";
    let at = if is_vdso { auxiliary(libc::AT_SYSINFO_EHDR) } else { 0 };
    std::ptr::with_exposed_provenance_mut(at)
}

/// # Safety
/// As `dlsym(3)`; `object` is of [`dlopen`].
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(object: *mut c_void, name: *const c_char) -> *mut c_void {
    let base = object.expose_provenance();
    if base == 0 || base != auxiliary(libc::AT_SYSINFO_EHDR) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise: a string.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: the vDSO is an object that the kernel has mapped.
    let found = unsafe { symbol(base, name) };
    std::ptr::with_exposed_provenance_mut(found.unwrap_or(0))
}

/// The address of a symbol of the vDSO, which is not relocated: its addresses are the file's.
///
/// # Safety
/// The vDSO begins at `base`.
unsafe fn symbol(base: usize, wanted: &CStr) -> Option<usize> {
    // SAFETY: the caller's promise.
    let (headers, count) = unsafe { headers_of(base) };
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(headers, usize::from(count)) };
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    let section = std::ptr::with_exposed_provenance(base + dynamic.p_vaddr as usize);
    // SAFETY: the vDSO's own.
    let [names, symbols] = [DT_STRTAB, DT_SYMTAB].map(|tag| unsafe { entry(section, tag) });
    // SAFETY: as above.
    let hashes = unsafe { entry(section, DT_HASH) }?;
    let (names, symbols) = (base + names?, base + symbols?);
    let counts: *const u32 = std::ptr::with_exposed_provenance(base + hashes);
    // SAFETY: the table begins with two counts, the second that of all symbols.
    let count = unsafe { counts.wrapping_add(1).read() } as usize;
    // SAFETY: so many symbols.
    let symbols: &[libc::Elf64_Sym] =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(symbols), count) };
    let is_wanted = |symbol: &&libc::Elf64_Sym| {
        let name = std::ptr::with_exposed_provenance(names + symbol.st_name as usize);
        // SAFETY: a string of the vDSO's table.
        symbol.st_value != 0 && unsafe { CStr::from_ptr(name) } == wanted
    };
    symbols.iter().find(is_wanted).map(|symbol| base + symbol.st_value as usize)
}
