//! The loaded objects, as definitions name them.

use crate::def::{Fit, Glob, HasFile, Named, fit, object_named};
use crate::wire::Meta;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[cfg(target_pointer_width = "64")]
type Header = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type Header = libc::Elf32_Phdr;

/// One loaded object.
pub(super) struct Loaded {
    /// Its file name.
    pub(super) name: String,
    /// Its file.
    pub(super) path: PathBuf,
    /// Whether it is the program itself.
    pub(super) is_program: bool,
    /// What is added to the file's addresses.
    pub(super) bias: usize,
    /// Its build id in hexadecimal digits; empty where it has none.
    build_id: String,
    segments: Vec<Segment>,
}

/// A loaded segment.
struct Segment {
    addr: usize,
    len_bytes: usize,
    file_offset: u64,
    file_len: usize,
}

impl Loaded {
    /// Its first address and one past its last.
    pub(super) fn range(&self) -> (usize, usize) {
        let start = self.segments.iter().map(|segment| segment.addr).min().unwrap_or(0);
        let end = self.segments.iter().map(|segment| segment.addr + segment.len_bytes).max().unwrap_or(0);
        (start, end)
    }

    /// What the command is told about it.
    pub(super) fn record(&self, image: u32) -> Meta {
        let (start, end) = self.range();
        let file = std::fs::metadata(&self.path).map_or((0, 0), |metadata| (metadata.dev(), metadata.ino()));
        let path = std::path::absolute(&self.path);
        Meta::Object {
            image,
            start: start as u64,
            end: end as u64,
            bias: self.bias as u64,
            path: path.as_ref().unwrap_or(&self.path).display().to_string(),
            file,
            build_id: self.build_id.clone(),
        }
    }

    /// The address at which an offset of the file is loaded.
    pub(super) fn addr_of_offset(&self, offset: u64) -> Option<usize> {
        self.segments.iter().find_map(|segment| {
            let distance = usize::try_from(offset.checked_sub(segment.file_offset)?).ok()?;
            (distance < segment.file_len).then_some(segment.addr + distance)
        })
    }

    /// The offset in the file of a loaded address.
    pub(super) fn offset_of_addr(&self, addr: usize) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let distance = addr.checked_sub(segment.addr)?;
            (distance < segment.file_len).then_some(segment.file_offset + distance as u64)
        })
    }
}

impl HasFile for Loaded {
    fn file_name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// The objects that a definition means by `wanted`: one, or those that match a pattern.
pub(super) fn meant<'a>(objects: &'a [Loaded], wanted: &str) -> Vec<&'a Loaded> {
    match object_named(objects, wanted) {
        Named::One(object) => vec![object],
        Named::All(all) => all,
        Named::Several(_) | Named::Nothing => Vec::new(),
    }
}

/// Whether the program may load an object later that a definition calls `wanted`: there is a file at that
/// path, or in its folder one that matches it as a pattern, or one of that name (or one that begins so, up to
/// a dot, or matches it as a pattern) where libraries are looked for.
pub(super) fn can_come_later(objects: &[Loaded], wanted: &str) -> bool {
    let pattern = Glob::is_pattern(wanted).then(|| Glob::new(wanted));
    if wanted.contains('/') {
        let Some(pattern) = pattern else { return Path::new(wanted).is_file() };
        let entries = Path::new(wanted).parent().and_then(|folder| folder.read_dir().ok());
        let mut paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        return paths.any(|path| pattern.matches(&path.to_string_lossy()));
    }
    let mut folders: Vec<PathBuf> =
        ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from).into();
    folders.extend(objects.iter().filter_map(|object| object.path.parent().map(Path::to_owned)));
    folders.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    folders.sort_unstable();
    folders.dedup();
    let fits = |name: &OsStr| {
        let text = name.to_string_lossy();
        let is_it = fit(&text, wanted) != Fit::No || pattern.as_ref().is_some_and(|glob| glob.matches(&text));
        is_it && is_library(name)
    };
    folders
        .iter()
        .filter_map(|folder| folder.read_dir().ok())
        .flatten()
        .flatten()
        .any(|entry| fits(&entry.file_name()))
}

fn is_library(name: &OsStr) -> bool {
    name.as_bytes().windows(3).any(|part| part == b".so")
}

/// The loaded objects, the program first; without the agent itself.
pub(super) fn loaded() -> Vec<Loaded> {
    let mut objects: Vec<Loaded> = Vec::new();
    // SAFETY: `add` takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut objects).cast()) };
    let own = add as *const () as usize;
    objects.retain(|object| {
        let (start, end) = object.range();
        !(start..end).contains(&own)
    });
    objects
}

#[allow(clippy::useless_conversion, reason = "offsets have 32 bits on 32-bit machines")]
unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _len: usize, objects: *mut c_void) -> c_int {
    // SAFETY: the list of `loaded`, used by nobody else meanwhile.
    let objects = unsafe { &mut *objects.cast::<Vec<Loaded>>() };
    // SAFETY: the loader passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: the loader's table of program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let is_program = objects.is_empty();
    let path = if is_program {
        std::fs::read_link("/proc/self/exe").unwrap_or_default()
    } else {
        // SAFETY: a NUL-terminated name of the loader's.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    };
    let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| Segment {
        addr: bias.wrapping_add(header.p_vaddr as usize),
        len_bytes: header.p_memsz as usize,
        file_offset: u64::from(header.p_offset),
        file_len: header.p_filesz as usize,
    });
    objects.push(Loaded {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        segments: segments.collect(),
        // SAFETY: an object's notes stay mapped as long as the object, which the loader keeps while this
        // runs.
        build_id: unsafe { build_id(headers, bias) }.unwrap_or_default(),
        path,
        is_program,
        bias,
    });
    0
}

/// The build id among an object's notes, in hexadecimal digits.
///
/// # Safety
/// The headers are those of a loaded object at `bias`, which stays mapped meanwhile.
unsafe fn build_id(headers: &[Header], bias: usize) -> Option<String> {
    /// A note of the name "GNU" with this type; ELF gABI, Note Section.
    const NT_GNU_BUILD_ID: u32 = 3;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        let at = std::ptr::with_exposed_provenance(bias.wrapping_add(header.p_vaddr as usize));
        // SAFETY: the caller's promise: notes of loaded objects lie in their segments.
        let mut notes: &[u8] = unsafe { std::slice::from_raw_parts(at, header.p_memsz as usize) };
        let align = if header.p_align == 8 { 8 } else { 4 };
        while let Some((head, rest)) = notes.split_first_chunk::<12>() {
            let word = |i: usize| u32::from_ne_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
            let name_len = (word(0) as usize).checked_next_multiple_of(4)?;
            let (name, rest) = rest.split_at_checked(name_len)?;
            let (id, _) = rest.split_at_checked(word(4) as usize)?;
            if word(8) == NT_GNU_BUILD_ID && name == b"GNU\0" {
                return Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
            }
            notes = rest.get((word(4) as usize).checked_next_multiple_of(align)?..).unwrap_or_default();
        }
    }
    None
}
