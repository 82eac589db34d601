//! Bad input: one sentence, an exit status of its own, and the program is not started.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{probe, scratch};
use rstest::rstest;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A definition or the command line is wrong.
const USAGE: i32 = 2;
/// The program cannot be traced.
const NOT_TRACEABLE: i32 = 126;
/// There is no such program.
const NOT_FOUND: i32 = 127;

/// Runs the command with a program that would leave a file behind; returns what it says of a wrong
/// definition.
fn refused(definitions: &[&str], program: Option<&Path>) -> String {
    refused_with(USAGE, definitions, program)
}

/// The same for whatever is wrong, with the exit status that it has.
fn refused_with(status: i32, definitions: &[&str], program: Option<&Path>) -> String {
    let mark = scratch("started");
    let mut command = probe();
    command.arg("trace");
    definitions.iter().for_each(|definition| {
        command.args(["-p", definition]);
    });
    command.arg("--");
    match program {
        Some(program) => command.arg(program),
        None => command.arg(common::program("touch")),
    };
    let output = command.arg(&mark).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(output.stdout.is_empty());
    assert!(!mark.exists(), "the program was started: {said}");
    assert!(said.starts_with("probe: "), "{said}");
    said
}

/// What is said of a file's header: some linkers put it into one segment with the code.
const NO_CODE: &str = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    "0x0 is not code"
} else {
    "no symbol covers 0x0"
};

/// Each wrong definition, a part of the sentence, and what stands over the carets.
#[rstest]
#[case::malformed("x libc.so.6:malloc", "starts with `p`", "x")]
#[case::ty("p libc.so.6:malloc size=$arg1:u7", "unknown type `u7`", "u7")]
#[case::object("p libc.so.7:malloc", "did you mean `libc.so.6`?", "libc.so.7:malloc")]
#[case::nowhere("p libxyzzy.so.1:f", "can be named by its path", "libxyzzy.so.1:f")]
#[case::no_file("p /no/such/file.so:f", "can be named by its path", "/no/such/file.so:f")]
#[case::symbol("p libc.so.6:mallco", "did you mean `malloc`", "libc.so.6:mallco")]
#[case::symbol_anywhere("p mallco", "did you mean `malloc`", "mallco")]
#[case::pattern("p libc.so.6:xyzzy*", "no function matches `xyzzy*`", "libc.so.6:xyzzy*")]
#[case::outside("p libc.so.6:malloc+0x99999", "lies outside", "libc.so.6:malloc+0x99999")]
#[case::data("p libc.so.6:malloc x=@no_such_symbol", "no symbol `no_such_symbol`", "x=@no_such_symbol")]
#[case::retval("p libc.so.6:malloc $retval", "only a return probe", "$retval")]
#[case::returns_twice("r libc.so.6:vfork", "it returns more than once", "libc.so.6:vfork")]
#[case::looks_at_caller("r libc.so.6:dlsym", "who calls it", "libc.so.6:dlsym")]
#[case::not_text("p libc.so.6:0x0", NO_CODE, "libc.so.6:0x0")]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_definition(#[case] definition: &str, #[case] sentence: &str, #[case] marked: &str) {
    let said = refused(&["p libc.so.6:opendir", definition], None);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains(sentence), "{said}");
    assert_eq!(lines[1].trim_start(), definition);
    let carets = lines[2].find('^').unwrap();
    assert_eq!(&lines[1][carets..carets + lines[2].matches('^').count()], marked, "{said}");
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn an_offset_inside_an_instruction() {
    let output = probe().args(["explain", "libc.so.6:malloc"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let offsets = text.lines().filter_map(|line| line.trim_start().strip_prefix("+0x")?.split(' ').next());
    let offsets: Vec<u64> = offsets.map(|offset| u64::from_str_radix(offset, 16).unwrap()).collect();
    let long = offsets.windows(2).find(|pair| pair[0] > 0 && pair[1] > pair[0] + 1).expect("a long one")[0];
    let said = refused(&[&format!("p libc.so.6:malloc+{:#x}", long + 1)], None);
    let sentence =
        format!("malloc+{:#x} lies inside an instruction that starts at malloc+{long:#x}\n", long + 1);
    assert!(said.contains(&sentence), "{said}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_refused_instruction() {
    let output = probe().args(["explain", "libc.so.6:abort"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("refused")).expect("abort ends with hlt");
    let offset = line.split_whitespace().next().unwrap();
    let said = refused(&[&format!("p libc.so.6:abort{offset}")], None);
    assert!(said.contains("cannot be probed: ") && said.contains("x86."), "{said}");
}

#[test]
fn an_unknown_program() {
    let said = refused_with(NOT_FOUND, &["p malloc"], Some("no-such-program-anywhere".as_ref()));
    assert!(said.contains("there is no program `no-such-program-anywhere` in PATH"), "{said}");
    if !common::HAS_PROGRAMS {
        return;
    }
    let said = refused_with(NOT_FOUND, &["p malloc"], Some(&common::folder().join("slep")));
    assert!(said.contains("did you mean") && said.contains("`sleep`"), "{said}");
}

/// A copy of `touch` that `change` has worked on.
fn changed(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let output = common::bare(&["sh", "-c", "command -v touch"]);
    let own = String::from_utf8(output.stdout).unwrap();
    let touch = common::program("touch");
    let mut data = fs::read(if touch.contains('/') { &touch } else { own.trim() }).unwrap();
    change(&mut data);
    let path = scratch(name);
    fs::write(&path, data).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
#[cfg(all(target_pointer_width = "64", target_endian = "little"))]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_static_program() {
    let program = changed("static", |data| {
        // PT_INTERP (3) becomes PT_NULL: what a static program's headers look like.
        let table = u64::from_le_bytes(data[32..40].try_into().unwrap()) as usize;
        let count = u16::from_le_bytes(data[56..58].try_into().unwrap()) as usize;
        for header in data[table..].chunks_mut(56).take(count) {
            if header[..4] == [3, 0, 0, 0] {
                header[0] = 0;
            }
        }
    });
    let said = refused_with(NOT_TRACEABLE, &["p malloc"], Some(&program));
    assert!(said.contains("is a static program"), "{said}");
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_set_uid_program() {
    let program = changed("setuid", |_| {});
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let said = refused_with(NOT_TRACEABLE, &["p malloc"], Some(&program));
    assert!(said.contains("is a set-uid program"), "{said}");
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_program_for_another_machine() {
    // EM_MIPS in both byte orders.
    let program = changed("machine", |data| data[18..20].copy_from_slice(&[8, 8]));
    let said = refused_with(NOT_TRACEABLE, &["p malloc"], Some(&program));
    assert!(said.contains("is a program for ELF machine"), "{said}");
}

#[test]
fn a_text_and_a_script_without_interpreter() {
    let text = scratch("text");
    fs::write(&text, "hello\n").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(
        refused_with(NOT_TRACEABLE, &["p malloc"], Some(&text))
            .contains("neither an ELF program nor a script")
    );
    fs::write(&text, "#!/no/such/interpreter\n").unwrap();
    assert!(refused_with(NOT_TRACEABLE, &["p malloc"], Some(&text)).contains("/no/such/interpreter"));
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn an_output_that_cannot_be_written() {
    let output = probe()
        .args(["trace", "-p", "p malloc", "-o", "/no/such/folder/file", "--", &common::program("echo"), "x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be written"));
}

#[test]
fn a_wrong_command_line() {
    for args in [&["trace", "--", "ls"][..], &["trace", "-p", "p malloc"], &["nonsense"], &["explain"]] {
        assert_eq!(probe().args(args).output().unwrap().status.code(), Some(2), "{args:?}");
    }
    assert!(probe().arg("--help").output().unwrap().status.success());
}
