//! What each job does, and what must be on the machine for it. `cargo ci test` runs many jobs, a hosted
//! engine one per machine, and anybody any of them by name.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::job::{COST, Job, SYSTEM, Work, has_kernel};
use crate::matrix::{BACKENDS, Mode, NATIVE, TARGETS, Target};
use crate::setup::{COMPLETE, MSRV, Wanted};
use crate::step::Step;

/// The versions of Rust that manifests promise (`rust-version`), and the toolchains that stand for them.
const PROMISED: [(&str, &str); 2] = [(MSRV, MSRV), ("1.95", COMPLETE)];
/// Where the backend's assembly is compiled with its oldest Rust, and the component with that target's
/// standard library.
const PPC64_MSRV: &str = "powerpc64le-unknown-linux-gnu";
const PPC64_MSRV_STD: &str = "rust-std-powerpc64le-unknown-linux-gnu";

/// How long the whole workspace's tests may take. From nothing, beside another job, their build alone takes
/// ten minutes on two cores.
const FROM_NOTHING: Duration = Duration::from_secs(25 * 60);

/// The steps of a job in the workspace at `root`.
pub(crate) fn all(job: &Job, root: &Path) -> Vec<Step> {
    match job.work {
        Work::Target(target) => target_steps(root, target),
        Work::Lint => crate::lint::steps(root),
        Work::Loom => vec![Step::run("models of the core", &["cargo", "test", "-p", "probe-tests-models"])],
        Work::CLibraries => c_library_steps(),
        Work::Quick => quick_steps(),
        Work::HitPath => vec![Step::check("hit path without panics", crate::hitpath::check)],
        Work::Linux => crate::linux::steps(),
        Work::Vendor => vendor_steps(root),
        Work::VendorWalk => {
            vec![Step::check("docs/vendoring.md and vendoring-smp.md as kernels", crate::walk::walk)]
        }
        Work::Install => install_steps(),
        Work::Msrv => msrv_steps(root),
        Work::Nightly => nightly_steps(),
        Work::Miri => miri_steps(),
        Work::Tsan => tsan_steps(),
        Work::Coverage => crate::coverage::steps(root),
        Work::Bench => {
            vec![Step::run("benchmark's marks", &["cargo", "ci", "bench", "--mode", "user"])]
        }
        Work::Fuzz => fuzz_steps(root),
        Work::Advisories => advisory_steps(),
        Work::Semver => vec![crate::release::compatibility_step(root)],
    }
}

/// The steps that `cargo ci test` runs: of the lints what needs no other target; of the other process targets
/// a selection ([`selected_steps`]); all of the other jobs. `cargo ci job NAME`, `cargo ci test --whole` and
/// hosted engines run all.
pub(crate) fn short(job: &Job, root: &Path) -> Vec<Step> {
    match job.work {
        Work::Lint => crate::lint::native_steps(root),
        Work::Target(target) if target.mode == Mode::User && !target.is_native() => selected_steps(target),
        _ => all(job, root),
    }
}

/// What must be on the machine for a job.
pub(crate) fn wanted(job: &Job) -> Wanted {
    let mut wanted = Wanted::default();
    match job.work {
        Work::Target(target) => return Wanted::of([target]),
        Work::Lint => return lint_needs(true),
        Work::Quick => return lint_needs(false),
        Work::CLibraries | Work::HitPath | Work::Vendor => return kernel_targets(),
        Work::Linux => return crate::linux::wanted(),
        Work::VendorWalk => {
            return Wanted::of(TARGETS.iter().filter(|target| target.triple == crate::walk::TARGET));
        }
        Work::Semver => return crate::release::compatibility_needs(),
        Work::Msrv => {
            for (_, toolchain) in PROMISED {
                wanted.toolchain(toolchain);
            }
            wanted.component(COMPLETE, PPC64_MSRV_STD);
        }
        Work::Nightly => {
            wanted.toolchain("nightly");
        }
        Work::Miri => {
            wanted.component("nightly", "miri").component("nightly", "rust-src");
        }
        Work::Tsan => {
            wanted.component("nightly", "rust-src");
        }
        Work::Coverage => {
            wanted.component("", "llvm-tools");
        }
        Work::Fuzz => {
            wanted.toolchain("nightly").tool("cargo-fuzz");
        }
        Work::Advisories => {
            wanted.tool("cargo-audit");
        }
        Work::Loom | Work::Install | Work::Bench => {}
    }
    wanted
}

fn target_steps(root: &Path, target: &Target) -> Vec<Step> {
    match target.mode {
        Mode::User if target.is_native() => native_steps(),
        Mode::User if target.packages.is_empty() => vec![whole_step(target)],
        Mode::User => {
            let mut steps = selected_steps(target);
            steps.push(whole_step(target));
            steps
        }
        Mode::System => system_steps(root, target),
        Mode::Build => vec![
            Step::run(format!("{} (build)", target.triple), &["cargo", "build", "--target", target.triple])
                .args(target.packages.iter().flat_map(|package| ["--package", package])),
        ],
    }
}

/// The whole workspace's tests (docs/emulators.md says what they leave out).
fn whole_step(target: &Target) -> Step {
    let whole = ["cargo", "test", "--no-fail-fast", "--target", target.triple];
    let packages = target.packages.iter().flat_map(|package| ["--package", package]);
    Step::run(format!("{} (user), whole", target.triple), &whole).args(packages)
}

/// What finds most in a short time: what the target's row selects, the conformance suite and the walk.
fn selected_steps(target: &Target) -> Vec<Step> {
    let test = ["cargo", "test", "--target", target.triple, "--package"];
    let mut steps = Vec::new();
    for tests in target.selected {
        let names = tests.iter().filter(|word| !word.starts_with("--"));
        let what = names.copied().collect::<Vec<_>>().join(" ");
        steps.push(Step::run(format!("{} (user), {what}", target.triple), &test).args(tests.iter().copied()));
    }
    // All tests of that package, the suite and the walk among them.
    if target.selected.iter().any(|tests| tests.contains(&"probe-tests-user")) {
        return steps;
    }
    let suite = ["probe-tests-user", "--test", "conformance"];
    steps.push(Step::run(format!("{} (user)", target.triple), &test).args(suite));
    let walk = ["probe-tests-user", "--test", "walk"];
    steps.push(Step::run(format!("{} (user), walk", target.triple), &test).args(walk));
    steps
}

/// `cargo install` into a folder of the build's own, then the main job with nothing of the repository in
/// reach.
fn install_steps() -> Vec<Step> {
    let install = ["cargo", "install", "--locked", "--path", "probe", "--root", "target/install"];
    let trace = ["trace", "-p", "p libc.so.6:opendir path=$arg1:string", "--", "ls", "/"];
    vec![
        Step::run("cargo install", &install).args(["--target-dir", "target"]),
        Step::run("the installed command traces", &["target/install/bin/probe"]).args(trace),
    ]
}

fn native_steps() -> Vec<Step> {
    let test = ["cargo", "test", "--workspace", "--no-fail-fast"];
    vec![
        Step {
            limit: FROM_NOTHING,
            ..Step::run(format!("{NATIVE} (user)"), &test).args(["--tests", "--examples"])
        },
        // The library of the models is the core once more; naming a kind of target would test it, whatever
        // its manifest says.
        Step::run("documentation's examples", &test).args(["--doc", "--exclude", "probe-tests-models"]),
    ]
}

fn system_steps(root: &Path, target: &Target) -> Vec<Step> {
    let name = format!("{} (system)", target.triple);
    if !has_kernel(root, target) {
        return vec![Step::skip(name, format!("{SYSTEM} has no kernel for it yet"))];
    }
    // QEMU 7.2 loses patches of text that another CPU executes, so the suite runs the CPUs in turn;
    // contention has a run of its own, where text is patched while the others wait.
    let runs: [(&str, &[&str]); 6] = [
        ("", &[]),
        (", 4 cpus", &["--cpus", "4"]),
        (", hardware step", &["step=hardware"]),
        (", classic examples", &["examples"]),
        (", cost of a hit", &COST),
        (", contention", &["--mttcg", "--cpus", "2", "--timeout", "120", "only=HIT_7"]),
    ];
    let boot = ["cargo", "run", "--release", "--target", target.triple, "--"];
    let step = |(what, arguments): (&str, &[&'static str])| {
        Step::run(format!("{name}{what}"), &boot).args(arguments.iter().copied()).within(SYSTEM)
    };
    runs.map(step).into()
}

/// The standard libraries of all kernel targets.
fn kernel_targets() -> Wanted {
    let mut wanted = Wanted::default();
    for target in TARGETS.iter().filter(|target| target.mode == Mode::System) {
        wanted.target(target.triple);
    }
    wanted
}

/// `every_target`: clippy and the hit path's check want each target's standard library.
fn lint_needs(every_target: bool) -> Wanted {
    let mut wanted = Wanted::default();
    for target in TARGETS.iter().filter(|_| every_target) {
        wanted.target(target.triple);
    }
    std::mem::take(wanted.component("", "rustfmt").component("", "clippy"))
}

fn quick_steps() -> Vec<Step> {
    let mut steps = crate::lint::quick_steps();
    steps.push(Step::run(
        "clippy",
        &["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
    ));
    steps.push(
        Step::run("unit tests", &["cargo", "test", "--workspace", "--lib", "--bins"])
            .args(["--exclude", "probe-tests-models"]),
    );
    steps
}

/// The library for kernels in C. That for processes, and what both do, is tested natively (capi/tests).
fn c_library_steps() -> Vec<Step> {
    let build = ["cargo", "build", "--profile", "kernel", "--package", "probe-c", "--no-default-features"];
    let targets = TARGETS.iter().filter(|target| target.mode == Mode::System);
    let step = |target: &Target| {
        Step::run(format!("{} (C library)", target.triple), &build).args(["--target", target.triple])
    };
    targets.map(step).collect()
}

/// Vendors each architecture into a fresh folder.
fn vendor_steps(root: &Path) -> Vec<Step> {
    let _ = std::fs::remove_dir_all(root.join("target/ci/vendor"));
    let vendor = ["cargo", "ci", "vendor"];
    let step = |architecture: &str| {
        let folder = format!("target/ci/vendor/{architecture}");
        Step::run(format!("vendor {architecture}"), &vendor).args([
            architecture,
            folder.as_str(),
            "--with-conformance",
        ])
    };
    crate::vendor::architectures().into_iter().map(step).collect()
}

/// Each crate with the Rust that its manifest names; the backend with PowerPC assembly for that architecture,
/// too.
fn msrv_steps(root: &Path) -> Vec<Step> {
    let packages = match crate::metadata::packages(root) {
        Ok(packages) => packages,
        Err(error) => return vec![Step::fail("packages of the workspace", error)],
    };
    let check = |name: String, toolchain: &str| {
        Step::run(name, &["rustup", "run", toolchain, "cargo", "check"])
            .env("CARGO_TARGET_DIR", "target/msrv")
    };
    let mut steps = Vec::new();
    for (version, toolchain) in PROMISED {
        let promised = packages.iter().filter(|package| package.rust_version == version);
        let step = check(format!("check with Rust {version}"), toolchain);
        steps.push(promised.fold(step, |step, package| step.args(["--package", &package.name])));
    }
    let [.., (version, toolchain)] = PROMISED;
    let ppc64 = ["--package", "probe-arch-ppc64", "--target", PPC64_MSRV];
    steps.push(check(format!("check with Rust {version} for {PPC64_MSRV}"), toolchain).args(ppc64));
    let known =
        |package: &&crate::metadata::Package| PROMISED.iter().all(|(v, _)| *v != package.rust_version);
    steps.extend(packages.iter().filter(known).map(|package| {
        Step::fail(
            &package.name,
            format!("its rust-version is {}, which no step checks", package.rust_version),
        )
    }));
    steps
}

/// What holds of pure code, as on this machine, and as on a big-endian one that no backend is for: it is the
/// same everywhere.
fn miri_steps() -> Vec<Step> {
    // Not all: a test with return probes takes minutes there.
    const CORE: &[&str] =
        &["probe-core", "--test", "contract", "--", "control::ctl_1", "control::ctl_2", "tion::reg_12"];
    let backends: BTreeSet<_> = BACKENDS.iter().map(|backend| backend.pure).collect();
    let step = |package, tests: &[&'static str], name: &str, target: &[&'static str]| {
        let miri = ["rustup", "run", "nightly", "cargo", "miri", "test", "--package", package];
        let step = Step::run(format!("{package} under Miri{name}"), &miri);
        // The toy worlds live for ever; that the core leaks nothing is counted by its own tests (fault
        // injection).
        let step = step.env("CARGO_TARGET_DIR", "target/miri").env("MIRIFLAGS", "-Zmiri-ignore-leaks");
        step.args([target, tests].concat())
    };
    let both = |tests: &'static [&'static str]| {
        let (package, tests) = (tests[0], &tests[1..]);
        let big_endian = ["--target", "s390x-unknown-linux-gnu"];
        [step(package, tests, "", &[]), step(package, tests, ", big endian", &big_endian)]
    };
    [CORE].into_iter().chain(backends).flat_map(both).collect()
}

fn nightly_steps() -> Vec<Step> {
    let test = ["rustup", "run", "nightly", "cargo", "test", "--workspace"];
    let step = Step::run("native tests, nightly", &test).env("CARGO_TARGET_DIR", "target/nightly");
    vec![Step { limit: FROM_NOTHING, ..step }]
}

/// Contexts that hit, register and remove at once, on real threads, and followed calls of a process. The
/// standard library is built for it, too. docs/reliability.md says what of the process cannot run under it.
fn tsan_steps() -> Vec<Step> {
    const TESTS: [(&str, &[&str]); 2] = [
        ("probe-core", &["--test", "contract", "--", "threads::"]),
        ("probe-host-linux", &["--test", "kretprobe"]),
    ];
    let step = |(package, tests): (&str, &[&'static str])| {
        let test =
            ["rustup", "run", "nightly", "cargo", "test", "-Zbuild-std", "--target", NATIVE, "-p", package];
        let step =
            Step::run(format!("{package} under the thread sanitizer"), &test).args(tests.iter().copied());
        let step = step.env("RUSTFLAGS", "-Zsanitizer=thread --cfg probe_tsan");
        step.env("CARGO_TARGET_DIR", "target/tsan").env("TSAN_OPTIONS", "halt_on_error=1")
    };
    TESTS.map(step).into()
}

/// Where the fuzz targets are: a package outside of the workspace, in the layout of cargo-fuzz.
const FUZZ: &str = "fuzz/fuzz_targets";

/// One run of a minute per fuzz target.
fn fuzz_steps(root: &Path) -> Vec<Step> {
    let run = ["rustup", "run", "nightly", "cargo", "fuzz", "run", "--target-dir", "target/fuzz"];
    let step = |file: &std::path::PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let step = Step::run(format!("fuzz {name}"), &run).args([name.as_str(), "--", "-max_total_time=60"]);
        // The toy worlds live for ever.
        step.env("ASAN_OPTIONS", "detect_leaks=0")
    };
    match crate::tree::rust_files(&root.join(FUZZ)) {
        none if none.is_empty() => vec![Step::fail("fuzz", format!("there are no targets in {FUZZ}"))],
        files => files.iter().map(step).collect(),
    }
}

/// Where lock files are.
const LOCKED: [&str; 6] =
    ["", SYSTEM, "tests/peers", "fuzz", "probe-core/tests/no_panic", "probe-bpf/tests/no_panic"];

/// Each lock file against the RustSec database, which is fetched; or against the copy of it in the folder
/// that `PROBE_ADVISORIES` names, where there is no network.
fn advisory_steps() -> Vec<Step> {
    let audit = ["cargo", "audit", "--deny", "yanked"];
    let copy = std::env::var("PROBE_ADVISORIES").ok();
    let step = |folder: &str| {
        let name = if folder.is_empty() { "the workspace" } else { folder };
        let step = Step::run(format!("advisories for {name}"), &audit).within(folder);
        match &copy {
            Some(copy) => step.args(["--no-fetch", "--db", copy]),
            None => step,
        }
    };
    LOCKED.map(step).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_kernel_is_a_skip_with_a_reason() {
        let target =
            TARGETS.iter().find(|target| target.mode == Mode::System).expect("there are system rows");
        let steps = system_steps(Path::new("/nonexistent"), target);
        assert!(matches!(&steps[..], [Step { action: crate::step::Action::Skip(_), .. }]), "{steps:?}");
    }
}
