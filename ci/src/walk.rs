//! The job `vendor-walk`: makes the kernel of `docs/vendoring.md` out of that page's own code blocks and of
//! what `cargo ci vendor` copies, boots it, and breaks one obligation after the other to see that the self
//! test names it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::clean;
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

/// Walks.
///
/// # Errors
/// A sentence: a step of the page cannot be taken, or does not do what the page says.
pub(crate) fn walk(root: &Path) -> Result<(), String> {
    let folder = root.join(KERNEL);
    let probe = folder.join("third-party/probe");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("cannot empty {KERNEL}: {error}"))?;
    }
    crate::vendor::vendor(root, "x86_64", &probe, Suite::With)?;
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("cannot read {PAGE}: {error}"))?;
    let files = blocks(&page);
    for (name, text) in &files {
        write(&folder.join(name), text)?;
    }
    // What the page says about third parties.
    if let Ok(config) = fs::read_to_string(probe.join(".cargo/config.toml")) {
        let own = files.get(".cargo/config.toml").map_or("", String::as_str);
        let config = config.replace("directory = \"vendor\"", "directory = \"third-party/probe/vendor\"");
        write(&folder.join(".cargo/config.toml"), &format!("{own}\n{config}"))?;
    }
    boot(root, &folder, PASSED, "probed")?;
    for (name, right, wrong, sentence) in BROKEN {
        let text = files.get(name).filter(|text| text.contains(right));
        let text = text.ok_or_else(|| format!("{PAGE} has no {right:?} in {name}"))?;
        write(&folder.join(name), &text.replacen(right, wrong, 1))?;
        boot(root, &folder, FAILED, sentence)
            .map_err(|error| format!("with {wrong:?} in {name}: {error}"))?;
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

/// Builds the kernel offline and boots it: it has to end with `status` and say `sentence`.
fn boot(root: &Path, folder: &Path, status: i32, sentence: &str) -> Result<(), String> {
    let output = root.join("target/ci/walk-build");
    let mut cargo = clean(Command::new("cargo"));
    cargo.args(["build", "--quiet", "--release", "--offline", "--target-dir"]).arg(&output);
    let built = cargo.current_dir(folder).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !built.status.success() {
        return Err(format!("the kernel does not build\n{}", String::from_utf8_lossy(&built.stderr)));
    }
    let machine = "-M q35 -cpu max -m 64M -display none -no-reboot -serial stdio -monitor none \
                   -device isa-debug-exit,iobase=0xf4,iosize=4 -accel tcg,thread=single -kernel";
    let kernel = output.join(TARGET).join("release/walk");
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
        let files = blocks(&fs::read_to_string(root.join(PAGE)).expect("the page is there"));
        for (name, right, ..) in BROKEN {
            assert_eq!(files[name].matches(right).count(), 1, "{right:?} in {name}");
        }
    }
}
