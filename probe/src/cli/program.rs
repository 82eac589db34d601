//! The program to be traced: where it is, and whether the agent can be loaded into it.

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

/// Checks that the dynamic linker will load the agent into the program at `path`.
///
/// # Errors
/// It is not a program, for another machine, static, or set-uid.
pub(super) fn check_traceable(path: &Path) -> Result<(), Failure> {
    let mut path = path.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        match check_one(&path)? {
            None => return Ok(()),
            Some(interpreter) => path = interpreter,
        }
    }
    Err(untraceable(format!("`{}` has too many interpreters behind one another", path.display())))
}

/// Checks one file; for a script, returns its interpreter.
fn check_one(path: &Path) -> Result<Option<PathBuf>, Failure> {
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
        return Ok(Some(interpreter));
    }
    let file = object::File::parse(&*data)
        .map_err(|_| untraceable(format!("`{shown}` is neither an ELF program nor a script")))?;
    check_machine(path, &data)?;
    if !matches!(file.kind(), ObjectKind::Executable | ObjectKind::Dynamic) {
        return Err(untraceable(format!("`{shown}` is not a linked program")));
    }
    if !has_interpreter(&data) {
        return Err(untraceable(format!(
            "`{shown}` is a static program: no dynamic linker runs in it, so the agent cannot be loaded"
        )));
    }
    if metadata.mode() & 0o6000 != 0 {
        let which = if metadata.mode() & 0o4000 != 0 { "set-uid" } else { "set-gid" };
        return Err(untraceable(format!(
            "`{shown}` is a {which} program: the dynamic linker does not load the agent into those"
        )));
    }
    if insists_on_being_first(&data) && !may_come_second(std::env::var_os("ASAN_OPTIONS").as_deref()) {
        return Err(untraceable(format!(
            "`{shown}` is built with AddressSanitizer, which ends programs in which another library is loaded before its own; set ASAN_OPTIONS=verify_asan_link_order=0"
        )));
    }
    Ok(None)
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

/// Whether the program asks for a dynamic linker.
fn has_interpreter(data: &[u8]) -> bool {
    use object::read::elf::{FileHeader, ProgramHeader};
    fn any<E: FileHeader<Endian = object::Endianness>>(data: &[u8]) -> Option<bool> {
        let header = E::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        Some(segments.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP))
    }
    any::<elf::FileHeader64<object::Endianness>>(data)
        .or_else(|| any::<elf::FileHeader32<object::Endianness>>(data))
        .unwrap_or(false)
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
        assert!(check_traceable("/etc/passwd".as_ref()).unwrap_err().to_string().contains("neither an ELF"));
    }

    #[test]
    fn the_sanitizer_takes_the_last_of_its_settings() {
        let may = |options: &str| may_come_second(Some(options.as_ref()));
        assert!(may("verify_asan_link_order=0") && may("detect_leaks=1:verify_asan_link_order=false"));
        assert!(!may("") && !may("verify_asan_link_order=1") && !may_come_second(None));
        assert!(!may("verify_asan_link_order=0,verify_asan_link_order=1"));
    }

    #[test]
    fn a_program_can_be_traced_if_it_is_dynamic() {
        let verdict = check_traceable("/proc/self/exe".as_ref());
        if cfg!(target_env = "gnu") {
            verdict.unwrap();
        } else {
            assert!(verdict.unwrap_err().to_string().contains("is a static program"));
        }
    }
}
