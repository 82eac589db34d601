//! `cargo ci setup`: the programs and targets that the machine must have; installs those that it lacks.
//!
//! Only what is missing is installed, by name and after saying so. A machine that has everything is left
//! alone, also without a network. Elsewhere than on Debian and Ubuntu the missing packages are printed, not
//! installed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{self, clean};
use crate::matrix::{NATIVE, Need, Target, Witness};
use crate::{kernel_packages, userland};

/// The oldest toolchain that the crates promise to build with (`rust-version` of the workspace).
pub(crate) const MSRV: &str = "1.88";

/// A toolchain that is known to have a standard library for every target of the matrix. It is also the oldest
/// with stable inline assembly on PowerPC, which `rust-version` of the crates that run such assembly says.
pub(crate) const COMPLETE: &str = "1.95.0";

/// What is to be there: the union over the jobs that somebody wants to run.
#[derive(Default, Debug)]
pub(crate) struct Wanted {
    needs: Vec<Need>,
    targets: Vec<&'static str>,
    /// Toolchain ("" = the one in use) and component.
    components: Vec<(&'static str, &'static str)>,
    toolchains: Vec<&'static str>,
    /// Programs that `cargo install` brings, by their names in the registry.
    tools: Vec<&'static str>,
}

impl Wanted {
    /// Everything that `targets` need.
    pub(crate) fn of<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Self {
        let mut wanted = Self::default();
        for target in targets {
            wanted.target(target.triple);
            for &need in target.needs {
                wanted.need(need);
            }
        }
        wanted
    }

    /// Also a standard library of the toolchain in use.
    pub(crate) fn target(&mut self, triple: &'static str) -> &mut Self {
        if triple != NATIVE && !self.targets.contains(&triple) {
            self.targets.push(triple);
        }
        self
    }

    /// Also something from the distribution.
    pub(crate) fn need(&mut self, need: Need) -> &mut Self {
        if !self.needs.contains(&need) {
            self.needs.push(need);
        }
        self
    }

    /// Also a rustup component; `toolchain` "" is the one in use.
    pub(crate) fn component(&mut self, toolchain: &'static str, component: &'static str) -> &mut Self {
        if !toolchain.is_empty() {
            self.toolchain(toolchain);
        }
        if !self.components.contains(&(toolchain, component)) {
            self.components.push((toolchain, component));
        }
        self
    }

    /// Also a toolchain.
    pub(crate) fn toolchain(&mut self, toolchain: &'static str) -> &mut Self {
        if !self.toolchains.contains(&toolchain) {
            self.toolchains.push(toolchain);
        }
        self
    }

    /// Also a program that `cargo install` brings under its own name.
    pub(crate) fn tool(&mut self, name: &'static str) -> &mut Self {
        if !self.tools.contains(&name) {
            self.tools.push(name);
        }
        self
    }

    /// Also everything that `other` wants.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        for need in other.needs {
            self.need(need);
        }
        for triple in other.targets {
            self.target(triple);
        }
        for toolchain in other.toolchains {
            self.toolchain(toolchain);
        }
        for (toolchain, name) in other.components {
            self.component(toolchain, name);
        }
        for name in other.tools {
            self.tool(name);
        }
        self
    }

    /// Installs what of it this machine lacks, and answers whether that was anything.
    ///
    /// # Errors
    /// A sentence that says what could not be installed, and the command with which somebody else can do it.
    pub(crate) fn install(&self) -> Result<bool, String> {
        let mut missing = self.missing();
        // The newest toolchain may come without some of the rarer targets.
        if !missing.unavailable_targets().is_empty() {
            println!(
                "the toolchain in use has no standard library for {}; using Rust {COMPLETE} for everything instead",
                missing.unavailable_targets().join(" ")
            );
            command::use_toolchain(COMPLETE);
            if sysroot(COMPLETE).is_none() {
                rustup(&["toolchain", "install", COMPLETE, "--profile", "minimal"])?;
            }
            missing = self.missing();
        }
        let is_something = !missing.is_nothing();
        missing.install()?;
        Ok(is_something)
    }

    /// What of it this machine lacks.
    fn missing(&self) -> Missing {
        let needs =
            self.needs.iter().filter(|need| !is_met(&need.witness)).map(|need| need.package).collect();
        let targets = self.targets.iter().copied().filter(|triple| !has_std(triple)).collect();
        let toolchains: Vec<_> =
            self.toolchains.iter().copied().filter(|toolchain| sysroot(toolchain).is_none()).collect();
        let components = self
            .components
            .iter()
            .copied()
            .filter(|(toolchain, name)| !has_component(toolchain, name))
            .collect();
        let tools = self.tools.iter().copied().filter(|name| find_program(name).is_none()).collect();
        Missing { packages: needs, targets, toolchains, components, tools }
    }
}

/// What is not there.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    packages: Vec<&'static str>,
    targets: Vec<&'static str>,
    toolchains: Vec<&'static str>,
    components: Vec<(&'static str, &'static str)>,
    tools: Vec<&'static str>,
}

impl Missing {
    /// Whether the machine has everything.
    fn is_nothing(&self) -> bool {
        self.packages.is_empty()
            && self.targets.is_empty()
            && self.toolchains.is_empty()
            && self.components.is_empty()
            && self.tools.is_empty()
    }

    /// Those of the missing targets that the toolchain in use does not offer at all.
    fn unavailable_targets(&self) -> Vec<&'static str> {
        if self.targets.is_empty() {
            return Vec::new();
        }
        let Some(offered) = output(&["rustup", "target", "list"]) else { return Vec::new() };
        let is_offered =
            |triple: &&&str| offered.lines().any(|line| line.split_whitespace().next() == Some(**triple));
        self.targets.iter().filter(|triple| !is_offered(triple)).copied().collect()
    }

    /// Says what it will install, then installs it.
    fn install(&self) -> Result<(), String> {
        if self.is_nothing() {
            return Ok(());
        }
        let packages = if self.installed().next().is_none() { Vec::new() } else { self.package_names()? };
        println!("missing here, installing now:\n{}", self.list(&packages));
        if !packages.is_empty() {
            apt_install(&packages)?;
        }
        for package in self.unpacked() {
            unpack(package)?;
        }
        for toolchain in &self.toolchains {
            rustup(&["toolchain", "install", toolchain, "--profile", "minimal"])?;
        }
        if !self.targets.is_empty() {
            rustup(&[&["target", "add"], self.targets.as_slice()].concat())?;
        }
        for (toolchain, component) in &self.components {
            let mut words = vec!["component", "add", component];
            if !toolchain.is_empty() {
                words.extend(["--toolchain", toolchain]);
            }
            rustup(&words)?;
        }
        self.tools.iter().try_for_each(|name| cargo_install(name))
    }

    fn list(&self, packages: &[String]) -> String {
        let mut text = String::new();
        let mut line = |what: &str, names: &[String]| {
            if !names.is_empty() {
                let _ = writeln!(text, "  {what}: {}", names.join(" "));
            }
        };
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        line("packages (apt)", packages);
        line("packages (unpacked below target/ci)", &owned(&self.unpacked().collect::<Vec<_>>()));
        line("toolchains (rustup)", &owned(&self.toolchains));
        line("targets (rustup)", &owned(&self.targets));
        let components: Vec<_> = self
            .components
            .iter()
            .map(
                |(toolchain, name)| {
                    if toolchain.is_empty() { (*name).to_owned() } else { format!("{name} ({toolchain})") }
                },
            )
            .collect();
        line("components (rustup)", &components);
        line("programs (cargo install)", &owned(&self.tools));
        text
    }

    /// The packages that are installed.
    fn installed(&self) -> impl Iterator<Item = &'static str> {
        self.packages.iter().copied().filter(|package| userland::architecture(package).is_none())
    }

    /// The packages of other architectures that are only unpacked.
    fn unpacked(&self) -> impl Iterator<Item = &'static str> {
        self.packages.iter().copied().filter(|package| userland::architecture(package).is_some())
    }

    /// The distribution's names of the packages that are to be installed.
    fn package_names(&self) -> Result<Vec<String>, String> {
        if find_program("apt-get").is_none() {
            return Err(format!(
                "this is not Debian or Ubuntu, so these are yours to install (their Debian names): {}\n\
                 What counts is that these are there afterwards:\n{}",
                self.packages.join(" "),
                "  the programs and files that ci/src/matrix.rs names beside each package"
            ));
        }
        let mut names: Vec<String> = self.installed().map(with_gcc_version).collect();
        // Packages that apt does not know yet: its lists are missing or old.
        if names.iter().any(|name| !apt_knows(name)) {
            apt(&["update"])?;
            names = self.installed().map(with_gcc_version).collect();
        }
        match names.iter().find(|name| !apt_knows(name)) {
            Some(unknown) => Err(format!("apt has no package {unknown}, also after apt-get update")),
            None => Ok(names),
        }
    }
}

/// Unpacks a package of another architecture, if this machine has the tools for it.
fn unpack(package: &str) -> Result<(), String> {
    if find_program("apt-get").is_none() || find_program("dpkg").is_none() {
        let (_, architecture) = package.split_once(':').unwrap_or_default();
        return Err(format!(
            "this is not Debian or Ubuntu: put a dynamic busybox of Debian's architecture {architecture}, with links for its \
             commands, and sort, git and python3 into {}",
            userland::folder(architecture).display()
        ));
    }
    let root = crate::tree::root();
    if kernel_packages::is_kernel(package) {
        kernel_packages::unpack(&root, package)
    } else {
        userland::unpack(&root, package)
    }
}

/// Where `name` stands in `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn is_met(witness: &Witness) -> bool {
    match witness {
        Witness::Program(name) => find_program(name).is_some(),
        Witness::File(path) => match path.split_once("/*/") {
            None => crate::tree::root().join(path).exists(),
            Some((folder, rest)) => std::fs::read_dir(folder)
                .is_ok_and(|entries| entries.flatten().any(|entry| entry.path().join(rest).exists())),
        },
    }
}

/// What a command prints, if it succeeds.
fn output(words: &[&str]) -> Option<String> {
    let result =
        clean(Command::new(words[0])).args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let result = result.ok().filter(|result| result.status.success())?;
    String::from_utf8(result.stdout).ok()
}

/// The root folder of a toolchain, "" being the one in use. Never makes rustup install one.
pub(crate) fn sysroot(toolchain: &str) -> Option<PathBuf> {
    let words: &[&str] = if toolchain.is_empty() {
        &["rustc", "--print", "sysroot"]
    } else {
        &["rustup", "run", toolchain, "rustc", "--print", "sysroot"]
    };
    output(words).map(|path| PathBuf::from(path.trim()))
}

fn has_std(triple: &str) -> bool {
    output(&["rustc", "--print", "target-libdir", "--target", triple])
        .is_some_and(|folder| Path::new(folder.trim()).is_dir())
}

fn has_component(toolchain: &str, component: &str) -> bool {
    let witness = match component {
        "rust-src" => "lib/rustlib/src/rust/library/core/src/lib.rs",
        "rustfmt" => "bin/rustfmt",
        "clippy" => "bin/cargo-clippy",
        "miri" => "bin/cargo-miri",
        "llvm-tools" => "lib/rustlib/x86_64-unknown-linux-gnu/bin/llvm-profdata",
        "rust-std-powerpc64le-unknown-linux-gnu" => "lib/rustlib/powerpc64le-unknown-linux-gnu/lib",
        other => unreachable!("no witness for the component {other}"),
    };
    sysroot(toolchain).is_some_and(|root| root.join(witness).exists())
}

/// Resolves `{gcc}` to the newest version for which apt has the package (12 on Debian 12, 13 on Ubuntu
/// 24.04).
fn with_gcc_version(name: &str) -> String {
    let Some((before, after)) = name.split_once("{gcc}") else { return name.to_owned() };
    let found = output(&["apt-cache", "search", "--names-only", &format!("^{before}[0-9]+{after}$")]);
    newest_version(&found.unwrap_or_default(), before, after)
}

/// The name with the highest version among the lines of `apt-cache search`.
fn newest_version(lines: &str, before: &str, after: &str) -> String {
    let version = |line: &str| -> Option<u32> {
        line.split_whitespace().next()?.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
    };
    let newest = lines.lines().filter_map(version).max();
    newest.map_or_else(|| format!("{before}N{after}"), |version| format!("{before}{version}{after}"))
}

fn apt_knows(name: &str) -> bool {
    // "Candidate: (none)" is the answer for a name that is only mentioned by others.
    output(&["apt-cache", "policy", name])
        .is_some_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
}

pub(crate) fn apt_install(packages: &[String]) -> Result<(), String> {
    // --no-remove: a conflict (gcc-multilib with the cross compilers, say) must be an error, not a silent
    // removal.
    let words: &[&str] = &["install", "--yes", "--no-install-recommends", "--no-remove"];
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    if apt(&[words, &names].concat()).is_ok() {
        return Ok(());
    }
    // Old lists name versions that the mirror no longer has.
    apt(&["update"])?;
    let refused = match apt(&[words, &names].concat()) {
        Ok(()) => return Ok(()),
        Err(refused) => refused,
    };
    let (in_the_way, own) = in_the_way(&names);
    if own.is_empty() {
        return Err(refused);
    }
    println!("in the way, and taken back to the distribution's own version: {}", in_the_way.join(" "));
    let own = own.iter().map(String::as_str).collect::<Vec<_>>();
    let answer = apt(&[words, &["--allow-downgrades"], &names, &own].concat());
    answer.map_err(|error| {
        format!("{refused}\n{error}\nremove by hand what is in the way: {}", in_the_way.join(" "))
    })
}

/// The packages that apt would remove for `names`, such as one from elsewhere that breaks the distribution's
/// version of its siblings (qemu-utils of the backports), and `name=version` of the distribution's own for
/// each that has one.
fn in_the_way(names: &[&str]) -> (Vec<String>, Vec<String>) {
    let simulated =
        output(&[&["apt-get", "install", "--simulate", "--no-install-recommends"], names].concat());
    let removed = removals(&simulated.unwrap_or_default());
    let own = removed.iter().filter_map(|name| {
        let versions = output(&["apt-cache", "madison", name])?;
        Some(format!("{name}={}", versions.lines().next()?.split('|').nth(1)?.trim()))
    });
    let own = own.collect();
    (removed, own)
}

/// What a simulation of apt-get says that it would remove.
fn removals(simulated: &str) -> Vec<String> {
    let removed = simulated.lines().filter_map(|line| line.strip_prefix("Remv ")?.split_whitespace().next());
    removed.map(str::to_owned).collect()
}

/// Runs apt-get as root, waiting for other package managers.
fn apt(words: &[&str]) -> Result<(), String> {
    let mut line: Vec<&str> = vec!["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"];
    line.extend(words);
    let is_root = output(&["id", "-u"]).is_some_and(|id| id.trim() == "0");
    let sudo = ["sudo", "--preserve-env=DEBIAN_FRONTEND"];
    if !is_root {
        if find_program("sudo").is_none() {
            return Err(format!("neither root nor sudo here; have somebody run: {}", line.join(" ")));
        }
        line.splice(0..0, sudo);
    }
    println!("  {}", line.join(" "));
    let status = Command::new(line[0])
        .args(&line[1..])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {}: {error}", line[0]))?;
    if status.success() { Ok(()) } else { Err(format!("this failed ({status}): {}", line.join(" "))) }
}

/// Builds and installs a program from the registry, with the versions that it was released with.
fn cargo_install(name: &str) -> Result<(), String> {
    println!("  cargo install --locked {name}");
    let status = clean(Command::new("cargo"))
        .args(["install", "--locked", "--quiet", name])
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    match find_program(name) {
        Some(_) if status.success() => Ok(()),
        None if status.success() => Err(format!("{name} is installed, but its folder is not in PATH")),
        _ => Err(format!("this failed ({status}): cargo install --locked {name}")),
    }
}

fn rustup(words: &[&str]) -> Result<(), String> {
    println!("  rustup {}", words.join(" "));
    let by_hand = format!("rustup {}", words.join(" "));
    if find_program("rustup").is_none() {
        return Err(format!("rustup is not here; your Rust must provide what this would: {by_hand}"));
    }
    let status = clean(Command::new("rustup"))
        .args(words)
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run rustup: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("this failed ({status}): {by_hand}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::TARGETS;

    #[test]
    fn newest_gcc_is_taken() {
        let lines = "libgcc-9-dev-arm64-cross - GCC\nlibgcc-12-dev-arm64-cross - GCC\nlibgcc-11-dev-arm64-cross - x\n";
        assert_eq!(newest_version(lines, "libgcc-", "-dev-arm64-cross"), "libgcc-12-dev-arm64-cross");
    }

    #[test]
    fn removals_are_read_from_a_simulation() {
        let simulated =
            "Remv qemu-utils [1:10.0.2+ds-2~bpo12+1]\nInst qemu-system-x86 (1:7.2 Debian:12 [amd64])\n";
        assert_eq!(removals(simulated), ["qemu-utils"]);
    }

    #[test]
    fn unknown_gcc_stays_visible() {
        assert_eq!(newest_version("", "libgcc-", "-dev-arm64-cross"), "libgcc-N-dev-arm64-cross");
    }

    #[test]
    fn needs_of_several_targets_are_named_once() {
        let wanted = Wanted::of(TARGETS);
        assert_eq!(wanted.needs.iter().filter(|need| need.package == "qemu-user").count(), 1);
        assert!(!wanted.targets.contains(&NATIVE));
    }

    #[test]
    fn a_wildcard_witness_is_one_path_component() {
        assert!(is_met(&Witness::File("/proc/*/stat")));
        assert!(!is_met(&Witness::File("/proc/*/no-such-file")));
        assert!(!is_met(&Witness::Program("no-such-program-anywhere")));
    }
}
