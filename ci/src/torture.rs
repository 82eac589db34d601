//! The long tests; `cargo ci test` has a short form of each. One command each,
//! `cargo ci torture NAME`; docs/reliability.md has what they last said.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::matrix::{Long, Mode, NATIVE, TARGETS, Target};
use crate::mutants;
use crate::step::{self, Step};
use crate::userland;

/// No long test takes longer.
const LONG: Duration = Duration::from_secs(6 * 3600);

/// One long test.
pub(crate) struct Torture {
    /// What to type after `cargo ci torture`.
    pub(crate) name: &'static str,
    /// What it shows, in a few words.
    pub(crate) about: &'static str,
    run: Run,
}

enum Run {
    /// These steps; `--only` picks some.
    Steps(fn() -> Vec<Step>),
    /// A function of the workspace's root and `--only`.
    Own(fn(&Path, &str) -> Result<(), String>),
}

/// All of them.
pub(crate) const ALL: &[Torture] = &[
    Torture {
        name: "mutants",
        about: "each of the deliberate defects of ci/mutants.txt is noticed by its test",
        run: Run::Own(mutants::run),
    },
    Torture {
        name: "storm",
        about: "ten minutes of threads that hit, register, fork and load at once",
        run: Run::Steps(|| vec![user_test("storm", "storm", &[("PROBE_STORM_SECONDS", "600")])]),
    },
    Torture {
        name: "jumps",
        about: "a million times jumps come and go in bytes that threads execute",
        run: Run::Steps(|| {
            let jumps = |name| user_test(name, "jumps", &[("PROBE_JUMP_CYCLES", "1000000")]);
            vec![
                jumps("jumps x86-64"),
                jumps("jumps i386").env("CARGO_BUILD_TARGET", "i686-unknown-linux-gnu"),
            ]
        }),
    },
    Torture {
        name: "cycles",
        about: "programs at work are attached to and left, a thousand times each",
        run: Run::Steps(|| {
            let filter = ["cycles", "ctl_7"];
            vec![package_test("attach and leave", "probe-trace", filter, ("PROBE_ATTACH_CYCLES", "1000"))]
        }),
    },
    Torture {
        name: "generated",
        about: "generated encodings of every backend behave probed as bare, a million of them on x86",
        run: Run::Steps(|| {
            let step = |target: &Target| {
                let Long { test: [package, program, filter], variable } = target.generated?;
                let name = format!("generated, {}", target.triple);
                let step = package_test(&name, package, [program, filter], variable);
                Some(step.env("CARGO_BUILD_TARGET", target.triple))
            };
            TARGETS.iter().filter_map(step).collect()
        }),
    },
    Torture {
        name: "everything",
        about: "real programs with a probe on every instruction, of their libraries and the loader too",
        run: Run::Steps(|| {
            let native = TARGETS.iter().filter(|target| target.is_native());
            let others = TARGETS.iter().filter(|target| {
                target.mode == Mode::User && !target.is_native() && target.abi.contains("glibc, dynamic")
            });
            native.chain(others).map(every_instruction).collect()
        }),
    },
    Torture {
        name: "strangers",
        about: "small hostile and odd programs, bare and traced in eight modes; --only PROGRAM, /MODE or both",
        run: Run::Own(strangers),
    },
    Torture {
        name: "arrivals",
        about: "which functions of programs and libraries take no return probe; --only part of a target's name",
        run: Run::Own(arrivals),
    },
    Torture {
        name: "linux",
        about: "all cases of tests/linux, a hundred rounds of the long ones",
        run: Run::Steps(|| {
            crate::linux::long_steps().into_iter().map(|step| Step { limit: LONG, ..step }).collect()
        }),
    },
    Torture {
        name: "stacks",
        about: "10,000 stacks of a C++ program without frame pointers, each compared with gdb's, in three ways",
        run: Run::Steps(|| {
            let filter = ["stacks", "stacks_of_cpp"];
            vec![package_test("stacks beside gdb", "probe-trace", filter, ("PROBE_STACKS", "10000"))]
        }),
    },
    Torture {
        name: "looks",
        about: "the page of `probe report --html` in Chromium, the tree of `probe graph` beside uftrace's",
        run: Run::Own(looks),
    },
    Torture {
        name: "model",
        about: "20,000 random sequences of operations, on the registry and on a plain model",
        run: Run::Steps(|| {
            let filter = ["contract", "model"];
            vec![package_test("registry and model", "probe-core", filter, ("PROPTEST_CASES", "20000"))]
        }),
    },
    Torture {
        name: "inputs",
        about: "a million generated inputs for each fuzz target",
        run: Run::Steps(|| {
            let filter = ["short", "every_target"];
            vec![package_test(
                "generated inputs",
                "probe-fuzz-checks",
                filter,
                ("PROBE_FUZZ_ROUNDS", "1000000"),
            )]
        }),
    },
];

/// Runs the one of that name; whether nothing failed.
///
/// # Errors
/// A sentence with all names, if there is none.
pub(crate) fn run(root: &Path, name: &str, only: &str, verbose: bool) -> Result<bool, String> {
    let torture = ALL.iter().find(|torture| torture.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|torture| torture.name).collect();
        format!("there is no {name}; there are: {}", names.join(" "))
    })?;
    match torture.run {
        Run::Own(own) => match own(root, only) {
            Ok(()) => Ok(true),
            Err(wrong) => {
                println!("{wrong}");
                Ok(false)
            }
        },
        Run::Steps(steps) => {
            let steps: Vec<_> = steps().into_iter().filter(|step| step.name.contains(only)).collect();
            if steps.is_empty() {
                return Err(format!("no step has {only} in its name"));
            }
            Ok(step::run_all(root, &[steps], verbose))
        }
    }
}

/// The programs of tests/strangers, all of them in all modes. Their table is the answer, so it is shown as it
/// comes.
fn strangers(root: &Path, only: &str) -> Result<(), String> {
    let test =
        ["test", "--release", "-p", "probe-tests-strangers", "--test", "strangers", "--", "--only", only];
    let mut command = crate::command::clean(std::process::Command::new("cargo"));
    command.args(test).env("PROBE_STRANGERS", "long").current_dir(root);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("strangers: {status}")),
        Err(error) => Err(format!("cargo cannot be started: {error}")),
    }
}

/// What records look like, to programs that no other test needs: they are installed if they are missing.
fn looks(root: &Path, only: &str) -> Result<(), String> {
    let missing: Vec<String> = ["chromium", "uftrace"]
        .into_iter()
        .filter(|program| crate::setup::find_program(program).is_none())
        .map(str::to_owned)
        .collect();
    if !missing.is_empty() {
        crate::setup::apt_install(&missing)?;
    }
    let test = ["test", "--release", "-p", "probe-trace", "--test", "page", "--test", "uftrace", "--", only];
    let mut command = crate::command::clean(std::process::Command::new("cargo"));
    command.args(test).envs([("PROBE_BROWSER", "1"), ("PROBE_UFTRACE", "1")]).current_dir(root);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("looks: {status}")),
        Err(error) => Err(format!("cargo cannot be started: {error}")),
    }
}

/// Counts the functions that no call comes to, by reason, of this machine's programs and libraries, of the
/// cross compilers' libraries, and of the programs that `cargo ci setup` unpacks. Files are only read, so
/// this machine's build reads those of all targets that do not run here.
fn arrivals(root: &Path, only: &str) -> Result<(), String> {
    let is_wanted = |target: &&Target| {
        target.mode == Mode::User && target.abi.contains("glibc") && target.triple.contains(only)
    };
    for target in TARGETS.iter().filter(is_wanted) {
        let mut command = crate::command::clean(std::process::Command::new("cargo"));
        command.args(["run", "--quiet", "--release", "-p", "probe-elf-symbols", "--example", "arrivals"]);
        if target.runner.is_none() {
            command.args(["--target", target.triple]);
        }
        command.arg("--").args(folders(target)).current_dir(root);
        println!("{}", target.triple);
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("arrivals: {status}")),
            Err(error) => return Err(format!("cargo cannot be started: {error}")),
        }
    }
    Ok(())
}

/// Where there are programs and libraries of a target.
fn folders(target: &Target) -> Vec<PathBuf> {
    // Debian's folders are called as targets are, but for the vendor and riscv64's extensions.
    let (architecture, rest) = target.triple.split_once('-').unwrap_or((target.triple, ""));
    let architecture = architecture.trim_end_matches("gc");
    let name = format!("{architecture}-{}", rest.trim_start_matches("unknown-"));
    if target.triple == NATIVE {
        return ["/usr/bin", "/usr/sbin"]
            .map(PathBuf::from)
            .into_iter()
            .chain([format!("/usr/lib/{name}").into()])
            .collect();
    }
    let unpacked = target.needs.iter().find_map(|need| userland::architecture(need.package));
    let unpacked = unpacked.map(|architecture| userland::folder(architecture).with_file_name("root"));
    unpacked.into_iter().chain([format!("/usr/{name}/lib").into()]).collect()
}

/// Real programs of a target with a probe on every instruction. A static C library loads no agent.
fn every_instruction(target: &Target) -> Step {
    let test = ["cargo", "test", "--release", "--target", target.triple, "-p", "probe-tests-everything"];
    let step = Step::run(format!("every instruction, {}", target.triple), &test);
    let step = step.args(["--test", "everything"]).env("PROBE_EVERYTHING", "long");
    Step { limit: LONG, ..step }
}

/// Some tests of a package: the program and the filter, optimised, with what makes them long.
fn package_test(name: &str, package: &str, filter: [&str; 2], long: (&'static str, &str)) -> Step {
    let test =
        ["cargo", "test", "--release", "-p", package, "--test", filter[0], filter[1], "--", "--nocapture"];
    Step { limit: LONG, ..Step::run(name, &test).env(long.0, long.1) }
}

/// A test program of tests/user, optimised, with what makes it long.
fn user_test(name: &str, program: &str, long: &[(&'static str, &str)]) -> Step {
    let test =
        ["cargo", "test", "--release", "-p", "probe-tests-user", "--test", program, "--", "--nocapture"];
    let step = long.iter().fold(Step::run(name, &test), |step, (variable, value)| step.env(variable, *value));
    Step { limit: LONG, ..step }
}
