//! The examples in C: built with the target's compiler against the static libraries, and run; the process as
//! a process on each target with glibc, the kernel under QEMU.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[cfg(target_arch = "x86_64")]
const KERNEL_TARGET: &str = "x86_64-unknown-none";

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command to its end and answers its output; a failure is a panic with everything that it has said.
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Builds this package with `words` and answers the static library.
fn library(words: &[&str]) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", "probe-c", "--message-format", "json-render-diagnostics"]).args(words);
    // So that the tests of several checkouts, and the build that runs this, do not share what they should
    // not.
    let output = run(cargo
        .current_dir(folder())
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO_TARGET_DIR", target_folder().0));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names = text.split('"').filter(|name| name.ends_with("libprobe_c.a"));
    names.next_back().map(PathBuf::from).expect("cargo names the static library")
}

/// The folder of this build: that of all targets, and the target if it was named.
fn target_folder() -> (PathBuf, Option<String>) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target folder");
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    if name.matches('-').count() < 2 {
        return (folder.to_owned(), None);
    }
    (folder.parent().expect("targets are in a folder").to_owned(), Some(name.into_owned()))
}

/// The C compiler of a target, as Debian calls it: without the vendor and riscv64's extensions.
fn compiler(target: Option<&str>) -> String {
    let architecture = target.and_then(|target| target.split('-').next());
    let is_own = architecture.is_none_or(|architecture| architecture == "x86_64");
    match architecture {
        Some(architecture) if !is_own => format!("{}-linux-gnu-gcc", architecture.trim_end_matches("gc")),
        _ => "cc".to_owned(),
    }
}

fn output_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[cfg(target_arch = "x86_64")]
fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_c_program_probes_its_libc() {
    let (_, target) = target_folder();
    let of_target: Vec<&str> = target.iter().flat_map(|target| ["--target", target.as_str()]).collect();
    let library = library(&of_target);
    let program = output_file("c-process");
    run(Command::new(compiler(target.as_deref()))
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-I"])
        .args([folder().join("include"), folder().join("examples/process.c"), library])
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program));
    let runner = std::env::var("PROBE_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace().map(Path::new).chain([program.as_path()]);
    let output = run(Command::new(words.next().expect("at least the program")).args(words));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.ends_with("all is as promised\n"), "{text}");
}

/// As capi/README.md says: the header's names and the library's symbols, in a program that has names like the
/// library's.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_c_program_has_all_names_with_a_prefix() {
    let header = std::fs::read_to_string(folder().join("include/probe.h")).expect("it can be read");
    let names =
        header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(" PROBE_PREFIXED("));
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    let renamed: String = names.iter().map(|name| format!("{name} mine_{name}\n")).collect();
    let (table, library_of_ours) = (output_file("prefix.syms"), output_file("libprobe_mine.a"));
    std::fs::write(&table, renamed).expect("it can be written");
    let mut redefine = std::ffi::OsString::from("--redefine-syms=");
    redefine.push(&table);
    run(Command::new("objcopy").arg(redefine).args([library(&[]), library_of_ours.clone()]));
    let others = output_file("others.c");
    let text: String = names.iter().map(|name| format!("int {name}(void) {{ return -1; }}\n")).collect();
    std::fs::write(&others, text).expect("it can be written");
    let program = output_file("c-prefix");
    run(Command::new(compiler(None))
        .args(["-std=gnu11", "-O1", "-fno-builtin", "-DPROBE_PREFIX=mine_", "-I"])
        .args([folder().join("include"), folder().join("examples/process.c")])
        .args(["-c", "-o"])
        .arg(output_file("c-prefix.o")));
    run(Command::new(compiler(None))
        .args([output_file("c-prefix.o"), others, library_of_ours])
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program));
    let text = run(&mut Command::new(&program)).stdout;
    assert!(text.ends_with(b"all is as promised\n"), "{}", String::from_utf8_lossy(&text));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_c_kernel_probes_itself() {
    let has_target = run(Command::new("rustc").args(["--print", "target-libdir", "--target", KERNEL_TARGET]));
    let has_target = Path::new(String::from_utf8_lossy(&has_target.stdout).trim()).exists();
    for (is_there, what) in
        [(has_target, KERNEL_TARGET), (is_there("qemu-system-x86_64"), "qemu-system-x86_64")]
    {
        if !is_there {
            eprintln!("skipped: {what} is not installed (cargo ci setup)");
            return;
        }
    }
    let library = library(&["--profile", "kernel", "--no-default-features", "--target", KERNEL_TARGET]);
    let sources = folder().join("examples/kernel");
    let kernel = output_file("c-kernel");
    run(Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pic", "-no-pie"])
        .args(["-mno-red-zone", "-mgeneral-regs-only", "-fcf-protection=none", "-fno-stack-protector"])
        .args([
            "-fno-asynchronous-unwind-tables",
            "-nostdinc",
            "-nostdlib",
            "-static",
            "-Wl,--build-id=none",
            "-Wl,--gc-sections",
        ])
        .arg("-I")
        .arg(folder().join("include"))
        .arg("-T")
        .args([sources.join("kernel.ld"), sources.join("boot.S"), sources.join("kernel.c"), library])
        .arg("-o")
        .arg(&kernel));
    let mut qemu = Command::new("timeout");
    qemu.args(["60", "qemu-system-x86_64", "-M", "q35", "-cpu", "max", "-m", "64M", "-display", "none"]);
    qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-serial", "stdio", "-monitor", "none"]);
    let output = qemu.args(["-no-reboot", "-kernel"]).arg(&kernel).output().expect("QEMU can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    // 2 * 0x10 + 1: what the kernel writes to the exit device when all is as promised.
    assert_eq!(output.status.code(), Some(33), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.ends_with("PASS\n"), "{text}");
}
