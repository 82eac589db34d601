//! The job `vendor-walk`: makes the kernels of `docs/vendoring.md` and `docs/vendoring-smp.md` out of those
//! pages' own code blocks and of what `cargo ci vendor` copies, boots them, and breaks one obligation after
//! the other to see that the self test names it. What the second kernel was before is the test kernel's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::clean;
use crate::job::SYSTEM;
use crate::tree::{files, read};
use crate::vendor::Suite;

const PAGE: &str = "docs/vendoring.md";
const KERNEL: &str = "target/ci/walk";
/// The kernel's target.
pub(crate) const TARGET: &str = "x86_64-unknown-none";

/// QEMU's end when the kernel has said that all went well, and when it has not: no crash gives either.
const PASSED: i32 = 33;
const FAILED: i32 = 35;

/// What is broken: a file, what stands there, what is put there, and what the self test has to say.
const BROKEN: [(&str, &str, &str, &str); 6] = [
    ("src/host.rs", "Some(&CONTEXT)", "None", "the host does not keep to one context"),
    ("src/host.rs", "Some(&TASK)", "None", "the host does not keep to one task"),
    ("src/text.rs", "&[EXEC.0..EXEC.1]", "&[EXEC.0..EXEC.0]", "no executable memory"),
    (
        "src/host.rs",
        "text::SLOTS.alloc(len_bytes, near)",
        "text::SLOTS.alloc(len_bytes, near).map(|at| at.wrapping_add(64))",
        "is not aligned to its size",
    ),
    (
        "src/text.rs",
        "at.as_usize() + ALIAS, at, bytes",
        "at.as_usize() + ALIAS + 1, at, bytes",
        "is not read there",
    ),
    ("src/entry.s", ".set GAP, 256", ".set GAP, 96", "below the interrupted stack pointer"),
];

/// The second walk.
const SECOND_PAGE: &str = "docs/vendoring-smp.md";
const SECOND_KERNEL: &str = "target/ci/walk-smp";

/// The files of the test kernel that the second kernel was before.
const KEPT: [&str; 12] = [
    "cmdline", "console", "cpu", "heap", "lock", "memory", "stacks", "symbols", "syscalls", "task", "trap",
    "watch",
];

/// What is broken in the second kernel.
const SECOND_BROKEN: [(&str, &str, &str, &str); 2] = [
    ("src/host.rs", "Some(&Native::this_cpu().probes)", "None", "the host does not keep to one context"),
    ("src/host.rs", "memory::alloc_exec(len_bytes, near)", "None", "no executable memory"),
];

/// Walks both.
///
/// # Errors
/// A sentence: a step of a page cannot be taken, or does not do what the page says.
pub(crate) fn walk(root: &Path) -> Result<(), String> {
    first(root)?;
    second(root)
}

fn first(root: &Path) -> Result<(), String> {
    let folder = root.join(KERNEL);
    let probe = folder.join("third-party/probe");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("cannot empty {KERNEL}: {error}"))?;
    }
    crate::vendor::vendor(root, "x86_64", &probe, Suite::With)?;
    let page = take_blocks(root, PAGE, &folder)?;
    take_third_parties(&folder, page.get(".cargo/config.toml").map_or("", String::as_str))?;
    boot(root, &folder, PASSED, "probed")?;
    break_each(PAGE, &folder, &page, &BROKEN, |sentence| boot(root, &folder, FAILED, sentence))
}

/// The second kernel, with what has been vendored for the first.
fn second(root: &Path) -> Result<(), String> {
    let (folder, system) = (root.join(SECOND_KERNEL), root.join(SYSTEM));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("cannot empty {SECOND_KERNEL}: {error}"))?;
    }
    let page = take_blocks(root, SECOND_PAGE, &folder)?;
    std::os::unix::fs::symlink(root.join(KERNEL).join("third-party"), folder.join("third-party"))
        .map_err(|error| format!("cannot link to third-party: {error}"))?;
    let kept = KEPT.iter().map(|name| system.join(format!("src/{name}.rs")));
    let machine =
        files(&system.join("src/arch"), &["rs", "s"]).into_iter().chain(files(&system.join("link"), &["ld"]));
    for file in kept.chain(machine).chain([system.join("build.rs")]) {
        let name = file.strip_prefix(&system).map_err(|error| error.to_string())?;
        write(&folder.join(name), &read(&file)?)?;
    }
    take_third_parties(&folder, &read(&system.join(".cargo/config.toml"))?)?;
    boot_second(root, &folder, true, "TEST-RESULT: PASS")?;
    break_each(SECOND_PAGE, &folder, &page, &SECOND_BROKEN, |sentence| {
        boot_second(root, &folder, false, sentence)
    })
}

/// Writes the files of a page.
fn take_blocks(root: &Path, page: &str, folder: &Path) -> Result<BTreeMap<String, String>, String> {
    let files = blocks(&read(&root.join(page))?);
    for (name, text) in &files {
        write(&folder.join(name), text)?;
    }
    Ok(files)
}

/// What the page says about third parties.
fn take_third_parties(folder: &Path, own: &str) -> Result<(), String> {
    if let Ok(config) = fs::read_to_string(folder.join("third-party/probe/.cargo/config.toml")) {
        let config = config.replace("directory = \"vendor\"", "directory = \"third-party/probe/vendor\"");
        write(&folder.join(".cargo/config.toml"), &format!("{own}\n{config}"))?;
    }
    Ok(())
}

/// Breaks one thing after the other; `fails` boots, and has to find the sentence.
fn break_each(
    page: &str,
    folder: &Path,
    files: &BTreeMap<String, String>,
    broken: &[(&str, &str, &str, &str)],
    fails: impl Fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    for (name, right, wrong, sentence) in broken {
        let text = files.get(*name).filter(|text| text.contains(right));
        let text = text.ok_or_else(|| format!("{page} has no {right:?} in {name}"))?;
        write(&folder.join(name), &text.replacen(right, wrong, 1))?;
        fails(sentence).map_err(|error| format!("with {wrong:?} in {name}: {error}"))?;
        write(&folder.join(name), text)?;
    }
    Ok(())
}

/// The code blocks that name a file, ```` ```rust,src/main.rs ````: several of one file make one.
fn blocks(page: &str) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let mut open: Option<Option<String>> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &open) {
            (Some(info), None) => open = Some(info.split_once(',').map(|(_, name)| name.to_owned())),
            (Some(_), Some(_)) => open = None,
            (None, Some(Some(name))) => {
                let text = files.entry(name.clone()).or_default();
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    files
}

/// Builds a kernel offline, and answers where it is.
fn build(root: &Path, folder: &Path, name: &str) -> Result<PathBuf, String> {
    let output = root.join("target/ci/walk-build");
    let mut cargo = clean(Command::new("cargo"));
    cargo
        .args(["build", "--quiet", "--release", "--offline", "--target", TARGET, "--target-dir"])
        .arg(&output);
    let built = cargo.current_dir(folder).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !built.status.success() {
        return Err(format!("the kernel does not build\n{}", String::from_utf8_lossy(&built.stderr)));
    }
    Ok(output.join(TARGET).join("release").join(name))
}

/// Boots the second kernel with two CPUs: it has to pass or not, and to say `sentence`.
fn boot_second(root: &Path, folder: &Path, passes: bool, sentence: &str) -> Result<(), String> {
    let kernel = build(root, folder, "kernel")?;
    let mut runner = clean(Command::new("cargo"));
    runner.args(["run", "--quiet", "--manifest-path"]).arg(root.join(SYSTEM).join("runner/Cargo.toml"));
    let ran =
        runner.arg("--").arg(kernel).args(["--cpus", "2", "--timeout", "120"]).stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| format!("cannot run cargo: {error}"))?;
    let said = String::from_utf8_lossy(&ran.stdout);
    if ran.status.success() == passes && said.contains(sentence) {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&ran.stderr);
    Err(format!("the kernel ended with {}, or did not print {sentence:?}:\n{said}{errors}", ran.status))
}

/// Builds the first kernel and boots it: it has to end with `status` and say `sentence`.
fn boot(root: &Path, folder: &Path, status: i32, sentence: &str) -> Result<(), String> {
    let kernel = build(root, folder, "walk")?;
    let machine = "-M q35 -cpu max -m 64M -display none -no-reboot -serial stdio -monitor none \
                   -device isa-debug-exit,iobase=0xf4,iosize=4 -accel tcg,thread=single -kernel";
    let ran = Command::new("timeout")
        .args(["60", "qemu-system-x86_64"])
        .args(machine.split_whitespace())
        .args([kernel.as_path(), Path::new("-initrd"), kernel.as_path()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run QEMU: {error}"))?;
    let said = String::from_utf8_lossy(&ran.stdout);
    match ran.status.code() {
        Some(code) if code == status && said.contains(sentence) => Ok(()),
        code => Err(format!(
            "QEMU ended with {code:?} instead of {status}, or did not print {sentence:?}:\n{said}{}",
            String::from_utf8_lossy(&ran.stderr)
        )),
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let made = fs::create_dir_all(file.parent().unwrap_or(file)).and_then(|()| fs::write(file, text));
    made.map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_with_a_file_name_are_taken_and_joined() {
        let page = "```toml,a\n1\n```\ntext\n```sh\nno\n```\n```toml,a\n2\n```\n```rust,b/c\n3\n```\n";
        let files = blocks(page);
        assert_eq!(files.len(), 2);
        assert_eq!((files["a"].as_str(), files["b/c"].as_str()), ("1\n2\n", "3\n"));
    }

    #[test]
    fn what_is_to_be_broken_stands_on_the_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace");
        for (page, broken) in [(PAGE, &BROKEN[..]), (SECOND_PAGE, &SECOND_BROKEN[..])] {
            let files = blocks(&fs::read_to_string(root.join(page)).expect("the page is there"));
            for (name, right, ..) in broken {
                assert_eq!(files[*name].matches(right).count(), 1, "{right:?} in {name}");
            }
        }
    }

    #[test]
    fn the_second_page_counts_its_lines() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace");
        let page = fs::read_to_string(root.join(SECOND_PAGE)).expect("the page is there");
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        let lines = blocks(&page)["src/host.rs"].lines().filter(is_code).count();
        assert!(
            page.contains(&format!("| `host.rs`, below | what the probes ask of the kernel | {lines} |")),
            "{lines}"
        );
    }
}
