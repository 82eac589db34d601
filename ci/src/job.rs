//! The jobs: the name of each, what it is for, and who runs it. What each does is in [`steps`](crate::steps).

use std::path::Path;

use crate::matrix::{Mode, TARGETS, Target};

/// Where the kernels of system mode live: a package outside the workspace with its own target configuration.
pub(crate) const SYSTEM: &str = "tests/system";

/// What makes a test kernel measure the cost of a hit, exactly and repeatably, against its table.
pub(crate) const COST: [&str; 4] = ["--icount", "--cpus", "1", "bench"];

/// What a job does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Target(&'static Target),
    Lint,
    Loom,
    CLibraries,
    Quick,
    HitPath,
    Linux,
    Vendor,
    VendorWalk,
    Install,
    Msrv,
    Nightly,
    Miri,
    Tsan,
    Coverage,
    Bench,
    Fuzz,
    Advisories,
    Semver,
}

/// The jobs that are not about one target.
const OTHERS: [(&str, Work, &str); 18] = [
    ("lint", Work::Lint, "what a machine can check without running a test"),
    ("loom", Work::Loom, "the core on loom's atomics: every order in which contexts may run"),
    ("c-libraries", Work::CLibraries, "the C library builds for every kernel target"),
    ("quick", Work::Quick, "before every push: formatting, clippy and the native unit tests"),
    ("hitpath", Work::HitPath, "the compiled hit path reaches no panic, no allocation, no formatting"),
    ("linux", Work::Linux, "the library as a module in Debian's Linux 6.1, beside Linux's own probes"),
    ("vendor", Work::Vendor, "what a kernel copies builds without this repository"),
    (
        "vendor-walk",
        Work::VendorWalk,
        "a kernel made of what docs/vendoring.md says boots, is probed, and names what it does not keep",
    ),
    ("install", Work::Install, "the command, installed elsewhere, finds its agent and traces"),
    ("msrv", Work::Msrv, "every crate builds with the oldest Rust that it promises"),
    ("nightly", Work::Nightly, "the native tests with the newest Rust"),
    ("miri", Work::Miri, "the core's and the backends' pure code under Miri, in both byte orders"),
    ("tsan", Work::Tsan, "tests with threads, of the core and of a process, under the thread sanitizer"),
    ("coverage", Work::Coverage, "the lines that native tests run, by crate, each with a mark"),
    ("bench", Work::Bench, "the marks of docs/benchmarks.md are kept, in processes"),
    ("fuzz", Work::Fuzz, "a minute of random input for each fuzz target"),
    ("advisories", Work::Advisories, "no dependency is known to be vulnerable"),
    ("semver", Work::Semver, "no public item changed more than the version says, since the last release"),
];

/// One job.
pub(crate) struct Job {
    /// What to type after `cargo ci job`.
    pub(crate) name: &'static str,
    /// What it is for, in a few words.
    pub(crate) about: String,
    pub(crate) work: Work,
}

impl Job {
    /// Its target, if it is about one.
    pub(crate) fn target(&self) -> Option<&'static Target> {
        match self.work {
            Work::Target(target) => Some(target),
            _ => None,
        }
    }

    /// Whether `cargo ci test` runs it. What is left out is listed by `cargo ci matrix`.
    pub(crate) fn is_in_test(&self) -> bool {
        matches!(self.work, Work::Target(_) | Work::Lint | Work::HitPath | Work::Linux | Work::Vendor)
    }

    /// Whether hosted engines run it: all but those that are only a shorter way to other jobs, and what only
    /// Debian has.
    pub(crate) fn is_hosted(&self) -> bool {
        !matches!(self.work, Work::Quick | Work::Linux)
    }
}

/// All jobs, in the order in which they are run and listed.
pub(crate) fn all() -> Vec<Job> {
    let targets = TARGETS.iter().map(|target| Job {
        name: target.job,
        about: format!("{}: {}", target.triple, target.why),
        work: Work::Target(target),
    });
    let others = OTHERS.iter().map(|&(name, work, about)| Job { name, about: about.to_owned(), work });
    targets.chain(others).collect()
}

/// The job of that name.
///
/// # Errors
/// A sentence with all names, if there is none.
pub(crate) fn by_name(name: &str) -> Result<Job, String> {
    all().into_iter().find(|job| job.name == name).ok_or_else(|| {
        let names: Vec<_> = all().iter().map(|job| job.name).collect();
        format!("no job is named {name}; there are: {}", names.join(" "))
    })
}

/// Whether the test kernel for `target` is there.
pub(crate) fn has_kernel(root: &Path, target: &Target) -> bool {
    target.mode == Mode::System && target.kernel.is_some_and(|boot_code| root.join(boot_code).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_in_the_test_run() {
        for target in TARGETS {
            let job = by_name(target.job).expect("every target has a job");
            assert!(job.is_in_test(), "{}", target.job);
        }
    }

    #[test]
    fn an_unknown_job_is_answered_with_the_names() {
        let error = by_name("no-such-job").err().expect("it is refused");
        assert!(error.contains("miri") && error.contains("aarch64-musl"), "{error}");
    }
}
