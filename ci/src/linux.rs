//! `cargo ci linux`: Debian's Linux 6.1 boots under QEMU with the library as a module, and runs the cases of
//! tests/linux: a host that nobody here has written.
//!
//! [`kernel_packages`](crate::kernel_packages) gets the kernel and what its modules are built with;
//! [`library`] makes one object of the C face; [`module`] builds the module around it; [`machine`] boots.

mod library;
mod machine;
mod module;

use std::path::{Path, PathBuf};

use crate::kernel_packages::FOLDER;
use crate::matrix::{Need, TARGETS, Witness};
use crate::setup::Wanted;
use crate::step::Step;

/// Its sources.
const SOURCES: &str = "tests/linux";

/// One architecture's Linux.
pub(crate) struct Linux {
    /// Debian's name of the architecture.
    pub(crate) name: &'static str,
    /// Rust's name of the target that the library is built for.
    triple: &'static str,
    /// How that is done: `RUSTFLAGS`.
    flags: &'static str,
    /// What the C compiler's and the linker's names begin with.
    tools: &'static str,
    /// The kernel's file in `/boot`, without its version.
    image: &'static str,
    /// The console, for the kernel's command line.
    console: &'static str,
    /// QEMU and its machine.
    qemu: &'static [&'static str],
    /// The packages, and what is there once they are.
    need: Need,
    /// What else the build of a module needs.
    needs: &'static [Need],
}

/// In the order in which they are built.
pub(crate) const ALL: &[Linux] = &[Linux {
    name: "amd64",
    triple: "x86_64-unknown-none",
    // Modules lie in the last two GiB.
    flags: "-C relocation-model=static -C code-model=kernel",
    tools: "",
    image: "vmlinuz",
    // A busy machine makes Linux mistake the rate of the time stamps, by which it would keep time.
    console: "console=ttyS0 tsc=unstable",
    qemu: &["qemu-system-x86_64", "-M", "q35", "-cpu", "max"],
    need: Need {
        package: "linux-image-amd64,linux-headers-amd64,busybox-static:amd64",
        witness: Witness::File("target/ci/linux/amd64/release"),
    },
    needs: &[
        Need { package: "make", witness: Witness::Program("make") },
        Need { package: "gcc-12", witness: Witness::Program("gcc-12") },
        Need { package: "libelf1", witness: Witness::File("/usr/lib/x86_64-linux-gnu/libelf.so.1") },
    ],
}];

impl Linux {
    /// Where its files are.
    fn folder(&self, root: &Path) -> PathBuf {
        root.join(FOLDER).join(self.name)
    }

    /// Of what is unpacked: `6.1.0-56-amd64`.
    fn release(&self, root: &Path) -> Result<String, String> {
        let text = crate::tree::read(&self.folder(root).join("release"));
        text.map(|text| text.trim().to_owned()).map_err(|error| format!("{error}; run cargo ci setup --all"))
    }
}

/// Whether this machine's distribution has that Linux.
fn is_offered() -> bool {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let has = |line: &str| release.lines().any(|other| other == line);
    has("ID=debian") && has("VERSION_ID=\"12\"")
}

/// What has to be on the machine; nothing where there is no such Linux.
pub(crate) fn wanted() -> Wanted {
    let mut wanted = Wanted::default();
    for linux in ALL.iter().filter(|_| is_offered()) {
        let target = TARGETS.iter().filter(|target| target.triple == linux.triple);
        wanted = wanted.merge(Wanted::of(target));
        wanted.need(linux.need);
        for &need in linux.needs {
            wanted.need(need);
        }
    }
    wanted
}

/// What `cargo ci test` runs.
pub(crate) fn steps() -> Vec<Step> {
    vec![step(
        "Linux on amd64, 2 CPUs",
        &["amd64", "--cpus", "2", "pairs", "pairs_by_jump", "examples", "unload", "churn", "tracer"],
    )]
}

/// What `cargo ci torture linux` runs beside that.
pub(crate) fn long_steps() -> Vec<Step> {
    let all = ["1", "2"].map(|cpus| {
        let name = format!("Linux on amd64, {cpus} CPUs, all cases");
        step(&name, &["amd64", "--cpus", cpus, "--rounds", "100"])
    });
    let cost = step("Linux on amd64, cost of a hit", &["amd64", "--icount"]);
    all.into_iter().chain([cost]).collect()
}

fn step(name: &str, arguments: &[&str]) -> Step {
    if is_offered() {
        Step::run(name, &["cargo", "ci", "linux"]).args(arguments.iter().copied())
    } else {
        Step::skip(name, "only Debian 12 has Linux 6.1 in its archive")
    }
}

/// What to boot, and what to run there.
pub(crate) struct Options<'a> {
    /// Debian's name of the architecture.
    pub(crate) name: &'a str,
    pub(crate) cpus: u32,
    /// How long the cases are: how often the longest of them do what they do.
    pub(crate) rounds: u32,
    /// Whether QEMU counts instructions instead of time.
    pub(crate) counts_instructions: bool,
    /// One thread of QEMU for each CPU, instead of one for all.
    pub(crate) is_parallel: bool,
    /// Which; all, if none is named.
    pub(crate) cases: &'a [String],
}

/// Builds, boots, and says how the cases went.
///
/// # Errors
/// A sentence with what the machine has said: a case has failed or said nothing, or something cannot be
/// built.
pub(crate) fn run(root: &Path, options: &Options<'_>) -> Result<(), String> {
    let linux = ALL.iter().find(|linux| linux.name == options.name);
    let linux = linux.ok_or_else(|| format!("there is no Linux for {}", options.name))?;
    let library = library::build(root, linux)?;
    let module = module::build(root, linux, &library)?;
    machine::boot(root, linux, &module, options)
}

/// The last part of a command's output, if it failed.
fn run_command(mut command: std::process::Command) -> Result<Vec<u8>, String> {
    let name = format!("{command:?}");
    let output = command.stdin(std::process::Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&said)))
}
