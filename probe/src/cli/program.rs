//! The program to be traced: where it is, and how the agent comes into it.

use super::elf::needed;
use super::failure::{Failure, did_you_mean};
use super::machine;
use super::status::Status;
use crate::def::near_matches;
use object::{Object, ObjectKind, elf};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How many `#!` may follow one another, as in the kernel.
const MAX_INTERPRETERS: usize = 4;

/// How the agent comes into a program as it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Its dynamic linker loads it, first of all libraries.
    Loaded,
    /// The command puts it there, with the program stopped (`attach`).
    Put,
}

/// What is known of one file.
enum Found {
    /// A script, and what runs it.
    Script(PathBuf),
    /// A program.
    Program(Way),
}

/// Finds `name` as a shell would: in PATH unless it holds a slash.
///
/// # Errors
/// There is none, or it may not be executed; with near matches.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = name.display();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let sentence = format!("there is no program `{shown}`{}", neighbours(&path));
                Err(Failure::new(sentence).with(Status::NotFound))
            }
            Err(error) => Err(untraceable(format!("the program `{shown}` cannot be read: {error}"))),
            Ok(metadata) if !metadata.is_file() => Err(untraceable(format!("`{shown}` is not a program"))),
            Ok(metadata) if !may_execute(&metadata) => Err(untraceable(format!(
                "`{shown}` may not be executed (its mode is {:o})",
                metadata.mode() & 0o7777
            ))),
            Ok(_) => Ok(path),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for folder in &folders {
        let candidate = folder.join(name);
        if fs::metadata(&candidate).is_ok_and(|metadata| metadata.is_file() && may_execute(&metadata)) {
            return Ok(candidate);
        }
    }
    let names: Vec<String> = folders.iter().flat_map(|folder| file_names(folder)).collect();
    let near = near_matches(&name.to_string_lossy(), names.iter().map(String::as_str), 3);
    let sentence = format!("there is no program `{shown}` in PATH{}", did_you_mean(&near));
    Err(Failure::new(sentence).with(Status::NotFound))
}

fn neighbours(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = file_names(folder);
    did_you_mean(&near_matches(&wanted, names.iter().map(String::as_str), 3))
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn may_execute(metadata: &fs::Metadata) -> bool {
    metadata.permissions().mode() & 0o111 != 0
}

/// The program is there, but cannot be traced.
fn untraceable(sentence: String) -> Failure {
    Failure::new(sentence).with(Status::NotTraceable)
}

/// Says how the agent comes into the program at `path`.
///
/// # Errors
/// It is not a program, for another machine, set-uid, of Go, or static without what has to be known of it.
pub(super) fn way_into(path: &Path) -> Result<Way, Failure> {
    let mut path = path.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        match check_one(&path)? {
            Found::Program(way) => return Ok(way),
            Found::Script(interpreter) => path = interpreter,
        }
    }
    Err(untraceable(format!("`{}` has too many interpreters behind one another", path.display())))
}

/// Looks at one file.
fn check_one(path: &Path) -> Result<Found, Failure> {
    let shown = path.display();
    let metadata =
        fs::metadata(path).map_err(|error| untraceable(format!("`{shown}` cannot be read: {error}")))?;
    let data =
        super::open::read(path).map_err(|error| untraceable(format!("`{shown}` cannot be read: {error}")))?;
    if let Some(line) = data.strip_prefix(b"#!") {
        let line = line.split(|&c| c == b'\n').next().unwrap_or_default();
        let interpreter = line.trim_ascii().split(|c| c.is_ascii_whitespace()).next().unwrap_or_default();
        if interpreter.is_empty() {
            return Err(untraceable(format!("the script `{shown}` does not name its interpreter")));
        }
        let interpreter = PathBuf::from(OsString::from_vec(interpreter.to_owned()));
        if !interpreter.exists() {
            let sentence =
                format!("the interpreter `{}` of the script `{shown}` does not exist", interpreter.display());
            return Err(untraceable(sentence));
        }
        return Ok(Found::Script(interpreter));
    }
    let file = object::File::parse(&*data)
        .map_err(|_| untraceable(format!("`{shown}` is neither an ELF program nor a script")))?;
    check_machine(path, &data)?;
    if !matches!(file.kind(), ObjectKind::Executable | ObjectKind::Dynamic) {
        return Err(untraceable(format!("`{shown}` is not a linked program")));
    }
    if metadata.mode() & 0o6000 != 0 {
        let which = if metadata.mode() & 0o4000 != 0 { "set-uid" } else { "set-gid" };
        return Err(untraceable(format!(
            "`{shown}` is a {which} program: neither does the dynamic linker load the agent into those, nor do they get their rights while a debugger starts them"
        )));
    }
    let Some(linker) = interpreter(&data) else {
        check_static(&shown, &file)?;
        return Ok(Found::Program(Way::Put));
    };
    // What the agent needs of a C library, that of musl does not have.
    if cfg!(has_mapped) && is_of_musl(linker) {
        return Ok(Found::Program(Way::Put));
    }
    if insists_on_being_first(&data) && !may_come_second(std::env::var_os("ASAN_OPTIONS").as_deref()) {
        return Err(untraceable(format!(
            "`{shown}` is built with AddressSanitizer, which ends programs in which another library is loaded before its own; set ASAN_OPTIONS=verify_asan_link_order=0"
        )));
    }
    Ok(Found::Program(Way::Loaded))
}

/// Whether the agent can be put into a static program as it starts.
fn check_static(shown: &impl std::fmt::Display, file: &object::File<'_>) -> Result<(), Failure> {
    let why = if !cfg!(has_mapped) {
        "no dynamic linker runs in it, so the agent cannot be loaded"
    } else if is_go(file) {
        "one of Go, whose threads have stacks that a hit does not fit on"
    } else if !has_errno(file) {
        "its C library is none that `probe` knows (glibc, musl)"
    } else {
        return Ok(());
    };
    Err(untraceable(format!("`{shown}` is a static program: {why}")))
}

#[cfg(has_mapped)]
fn has_errno(file: &object::File<'_>) -> bool {
    super::errno::find(file).is_some()
}

#[cfg(not(has_mapped))]
fn has_errno(_: &object::File<'_>) -> bool {
    false
}

/// Whether the Go linker has made it.
pub(super) fn is_go(file: &object::File<'_>) -> bool {
    [".go.buildinfo", ".note.go.buildid"].iter().any(|name| file.section_by_name(name).is_some())
}

/// Whether this is the path of musl's dynamic linker, which is its C library as well.
fn is_of_musl(linker: &[u8]) -> bool {
    linker.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(b"ld-musl-"))
}

/// Compares class, byte order and machine with this command's own.
pub(super) fn check_machine(path: &Path, data: &[u8]) -> Result<(), Failure> {
    let (theirs, ours) = (machine(data), own_machine());
    if theirs == ours || ours.is_none() {
        return Ok(());
    }
    let name =
        |machine: Option<(u8, u8, elf::Machine)>| machine.map_or("no machine".to_owned(), machine::name);
    Err(untraceable(format!(
        "`{}` is a program for {}, and this `probe` traces programs for {}",
        path.display(),
        name(theirs),
        name(ours)
    )))
}

/// This command's own; its file is large, and its head says it.
fn own_machine() -> Option<(u8, u8, elf::Machine)> {
    let own = super::open::Regular::open("/proc/self/exe".as_ref()).ok()?;
    machine(&own.head::<20>().ok()?)
}

/// Class, byte order and machine of an ELF file.
fn machine(data: &[u8]) -> Option<(u8, u8, elf::Machine)> {
    let head = data.get(..20).filter(|head| head.starts_with(b"\x7fELF"))?;
    let bytes = [head[18], head[19]];
    let machine = if head[5] == 2 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) };
    Some((head[4], head[5], elf::Machine(machine)))
}

/// The dynamic linker that the program asks for.
fn interpreter(data: &[u8]) -> Option<&[u8]> {
    use object::read::elf::{FileHeader, ProgramHeader};
    fn of<E: FileHeader<Endian = object::Endianness>>(data: &[u8]) -> Option<Option<&[u8]>> {
        let header = E::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        let found = segments.iter().find(|segment| segment.p_type(endian) == elf::PT_INTERP);
        Some(found.map(|segment| segment.data(endian, data).unwrap_or_default()))
    }
    of::<elf::FileHeader64<object::Endianness>>(data)
        .or_else(|| of::<elf::FileHeader32<object::Endianness>>(data))
        .flatten()
}

/// Whether a program needs the shared runtime of AddressSanitizer (gcc's or clang's), which looks for itself
/// at the head of the list of libraries. A runtime within the program does not.
fn insists_on_being_first(data: &[u8]) -> bool {
    needed(data).iter().any(|name| name.starts_with("libasan.so") || name.starts_with("libclang_rt.asan"))
}

/// Whether `ASAN_OPTIONS` switches that off; of several settings the last counts.
fn may_come_second(options: Option<&OsStr>) -> bool {
    let options = options.unwrap_or_default().to_string_lossy();
    let settings = options.split([':', ',', ' ', '\n', '\t', '\r']);
    let last = settings.filter_map(|setting| setting.strip_prefix("verify_asan_link_order=")).next_back();
    last.is_some_and(|value| matches!(value.trim_matches(['"', '\'']), "0" | "no" | "false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_path_or_by_path() {
        assert!(find("sh".as_ref()).unwrap().ends_with("sh"));
        assert_eq!(find("/bin/sh".as_ref()).unwrap(), Path::new("/bin/sh"));
    }

    #[test]
    fn a_mistyped_program_gets_a_suggestion() {
        // Not in /bin, which the C libraries of cross compilers bring their own of.
        let error = find("/usr/bin/slep".as_ref()).unwrap_err().to_string();
        assert!(error.contains("no program `/usr/bin/slep`") && error.contains("`sleep`"), "{error}");
        let error = find("slep".as_ref()).unwrap_err().to_string();
        assert!(error.contains("in PATH") && error.contains("`sleep`"), "{error}");
    }

    #[test]
    fn a_folder_and_a_text_are_not_programs() {
        assert!(find("/etc/".as_ref()).unwrap_err().to_string().contains("is not a program"));
        assert!(find("/etc/passwd".as_ref()).unwrap_err().to_string().contains("may not be executed"));
        assert!(way_into("/etc/passwd".as_ref()).unwrap_err().to_string().contains("neither an ELF"));
    }

    #[test]
    fn the_sanitizer_takes_the_last_of_its_settings() {
        let may = |options: &str| may_come_second(Some(options.as_ref()));
        assert!(may("verify_asan_link_order=0") && may("detect_leaks=1:verify_asan_link_order=false"));
        assert!(!may("") && !may("verify_asan_link_order=1") && !may_come_second(None));
        assert!(!may("verify_asan_link_order=0,verify_asan_link_order=1"));
    }

    #[test]
    fn the_linker_of_musl_is_known_by_its_name() {
        assert!(is_of_musl(b"/lib/ld-musl-x86_64.so.1\0"));
        assert!(!is_of_musl(b"/lib64/ld-linux-x86-64.so.2\0") && !is_of_musl(b"/ld-musl-x/ld.so"));
    }

    #[test]
    fn a_program_can_be_traced_if_it_is_dynamic() {
        let verdict = way_into("/proc/self/exe".as_ref());
        if cfg!(target_env = "gnu") {
            assert_eq!(verdict.unwrap(), Way::Loaded);
        } else {
            assert!(verdict.unwrap_err().to_string().contains("is a static program"));
        }
    }
}
