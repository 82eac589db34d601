//! Objects that are loaded for the agent alone (libgcc_s, if the program does not use it): their destructors
//! are the tracer's own work, not the program's.
//!
//! The dynamic linker calls destructors one by one, with the program's in between. So each place in the list
//! of destructors of such an object, DT_FINI_ARRAY, gets a function of ours, which runs them all while this
//! thread is muted. ELF gABI, Dynamic Section; Initialization and Termination Functions.

use super::process::Muted;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;

#[cfg(target_pointer_width = "64")]
type Header = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type Header = libc::Elf32_Phdr;

type Destructor = unsafe extern "C" fn();

/// The destructors that were taken off the dynamic linker's lists, in the order of these lists.
static TAKEN: Mutex<Vec<Destructor>> = Mutex::new(Vec::new());

const DT_NULL: usize = 0;
const DT_NEEDED: usize = 1;
const DT_STRTAB: usize = 5;
const DT_SONAME: usize = 14;
const DT_FINI_ARRAY: usize = 26;
const DT_FINI_ARRAYSZ: usize = 28;

/// An entry of a dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: usize,
    value: usize,
}

/// What an object's dynamic section says.
#[derive(Default)]
struct Dynamic {
    is_agent: bool,
    soname: String,
    needed: Vec<String>,
    /// Address and number of its destructors.
    destructors: (usize, usize),
    /// What the loader has made read-only, from and to.
    read_only: (usize, usize),
}

/// Looks for such objects. Nobody else has started yet.
pub(super) fn start() {
    let mut objects: Vec<Dynamic> = Vec::new();
    // SAFETY: `add` takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut objects).cast()) };
    let Some(agent) = objects.iter().find(|object| object.is_agent) else { return };
    let others = || objects.iter().filter(|object| !object.is_agent);
    let is_ours = |object: &&Dynamic| {
        let is_needed_by = |by: &Dynamic| by.needed.contains(&object.soname);
        !object.soname.is_empty() && is_needed_by(agent) && !others().any(is_needed_by)
    };
    for object in others().filter(is_ours) {
        take(object);
    }
}

/// Puts [`run_quietly`] in the place of each destructor.
fn take(object: &Dynamic) {
    // SAFETY: asks only.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let Ok(mut taken) = TAKEN.lock() else { return };
    let (start, count) = object.destructors;
    for place in (0..count).map(|i| start + i * size_of::<Destructor>()) {
        let at = std::ptr::with_exposed_provenance_mut::<Destructor>(place);
        // The loader protects whole pages only.
        let is_read_only =
            (object.read_only.0 & !(page - 1)..object.read_only.1 & !(page - 1)).contains(&place);
        let protect = |protection: c_int| {
            let start = std::ptr::with_exposed_provenance_mut(place & !(page - 1));
            // SAFETY: a page of the object's data, which nobody else uses yet.
            !is_read_only || unsafe { libc::mprotect(start, page, protection) } == 0
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            continue;
        }
        // SAFETY: an entry of the list, a function as the gABI says.
        taken.push(unsafe { at.read() });
        // SAFETY: as above; writable by now.
        unsafe { at.write(run_quietly) };
        protect(libc::PROT_READ);
    }
}

/// Runs the destructors that were taken, once, the last first as the dynamic linker does.
unsafe extern "C" fn run_quietly() {
    let _muted = Muted::new();
    let taken = TAKEN.try_lock().map(|mut taken| std::mem::take(&mut *taken)).unwrap_or_default();
    for destructor in taken.into_iter().rev() {
        // SAFETY: the dynamic linker calls this where it would have called that.
        unsafe { destructor() };
    }
}

#[allow(clippy::useless_conversion, reason = "addresses have 32 bits on 32-bit machines")]
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _len: usize, objects: *mut c_void) -> c_int {
    // SAFETY: the list of `start`, used by nobody else meanwhile.
    let objects = unsafe { &mut *objects.cast::<Vec<Dynamic>>() };
    // SAFETY: the loader passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: the loader's table of program headers.
    let headers: &[Header] =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let range = |header: &Header| {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        (start, start.wrapping_add(header.p_memsz as usize))
    };
    let mut object = Dynamic::default();
    let own = add as *const () as usize;
    let mut section = None;
    for header in headers {
        let (start, end) = range(header);
        match header.p_type {
            libc::PT_LOAD => object.is_agent |= (start..end).contains(&own),
            libc::PT_GNU_RELRO => object.read_only = (start, end),
            libc::PT_DYNAMIC => section = Some((start, end)),
            _ => {}
        }
    }
    if let Some((start, end)) = section {
        let at = std::ptr::with_exposed_provenance::<Entry>(start);
        // SAFETY: the dynamic section of a loaded object, which the loader has relocated.
        let entries = unsafe { std::slice::from_raw_parts(at, (end - start) / size_of::<Entry>()) };
        // SAFETY: as above.
        unsafe { object.read(entries, bias) };
    }
    objects.push(object);
    0
}

impl Dynamic {
    /// # Safety
    /// The dynamic section of an object that is loaded at `bias`.
    unsafe fn read(&mut self, entries: &[Entry], bias: usize) {
        let entries = || entries.iter().take_while(|entry| entry.tag != DT_NULL);
        let value = |tag| entries().find(|entry| entry.tag == tag).map(|entry| entry.value);
        let Some(strings) = value(DT_STRTAB) else { return };
        // The loader has added the bias, but not in the vDSO's section, which is the kernel's.
        let strings = if strings < bias { strings + bias } else { strings };
        let text = |offset: usize| {
            let at = std::ptr::with_exposed_provenance::<c_char>(strings.wrapping_add(offset));
            // SAFETY: the caller's promise: a string of the object's table.
            unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
        };
        self.soname = value(DT_SONAME).map(text).unwrap_or_default();
        self.needed =
            entries().filter(|entry| entry.tag == DT_NEEDED).map(|entry| text(entry.value)).collect();
        if let (Some(at), Some(len)) = (value(DT_FINI_ARRAY), value(DT_FINI_ARRAYSZ)) {
            self.destructors = (bias.wrapping_add(at), len / size_of::<Destructor>());
        }
    }
}
