//! The row of a target in the table: a backend, a target, what they need.

use super::NATIVE;

/// How a target is tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// In a Linux process: natively, or under QEMU user mode. `cargo test --target T` runs it.
    User,
    /// In a kernel of our own that boots under QEMU: the excluded package `tests/system`.
    System,
    /// Only built: what a kernel without a test kernel of ours would compile.
    Build,
}

impl Mode {
    /// The word for it on the command line and in the tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::System => "system",
            Self::Build => "build",
        }
    }
}

/// Something that must be on the machine, how to see that it is, and the Debian and Ubuntu package that
/// brings it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Debian's and Ubuntu's name. `{gcc}` stands for the newest GCC version that the distribution has; with
    /// an architecture (`busybox,git:arm64`) they are unpacked below the target folder, not installed.
    pub(crate) package: &'static str,
    /// What the package brings; present, from wherever it came, means that nothing has to be installed.
    pub(crate) witness: Witness,
}

/// How to see that a [`Need`] is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Witness {
    /// A program in `PATH`.
    Program(&'static str),
    /// A file, absolute or from the workspace's root on; one `*` stands for one path component.
    File(&'static str),
}

pub(super) const fn program(package: &'static str, name: &'static str) -> Need {
    Need { package, witness: Witness::Program(name) }
}

pub(super) const fn file(package: &'static str, path: &'static str) -> Need {
    Need { package, witness: Witness::File(path) }
}

/// One backend: what is made from it and tested of it, whatever it is built for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backend {
    /// Its folder, `arch-NAME`. `docs/architectures/NAME.md` and `tests/vectors/NAME.txt` are named after it.
    pub(crate) folder: &'static str,
    /// The words by which files name it or its family: of a new one, the folder's name and the targets'.
    pub(crate) words: &'static [&'static str],
    /// Where its refusals are.
    pub(crate) sources: &'static str,
    /// Where the effects that its plans name are described, if its plans name any.
    pub(crate) effects: Option<&'static str>,
    /// Its pure code's tests, which Miri runs: the package, and arguments of `cargo test`.
    pub(crate) pure: &'static [&'static str],
}

impl Backend {
    /// As users write it.
    pub(crate) fn name(&self) -> &'static str {
        self.folder.trim_start_matches("arch-")
    }
}

/// Arguments of `cargo test`, and the variable that makes the test long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Long {
    /// The package, the test program, the filter.
    pub(crate) test: [&'static str; 3],
    /// The variable and its value.
    pub(crate) variable: (&'static str, &'static str),
}

/// One target in one mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The name of its job: `cargo ci job NAME`.
    pub(crate) job: &'static str,
    /// Rust's name of the target.
    pub(crate) triple: &'static str,
    /// How it is tested.
    pub(crate) mode: Mode,
    /// The folder of its backend; `None` where only neutral code is built.
    pub(crate) backend: Option<&'static str>,
    /// What the support table says about byte order, ABI and C library.
    pub(crate) abi: &'static str,
    /// `linker` in `.cargo/config.toml`, for kernels in that of the test kernels; `None`: rustc's default.
    pub(crate) linker: Option<&'static str>,
    /// `runner` there; `None`: it runs natively, or not at all.
    pub(crate) runner: Option<&'static str>,
    /// `rustflags` there: values of rustc's `-C`.
    pub(crate) rustflags: &'static [&'static str],
    /// What it needs on the machine beside Rust.
    pub(crate) needs: &'static [Need],
    /// The packages that are built for it in [`Mode::Build`]; in [`Mode::User`] those that it has, where it
    /// has not all; elsewhere the mode says what is run.
    pub(crate) packages: &'static [&'static str],
    /// Beside the conformance suite and the walk, what `cargo ci test` runs on it (user mode): arguments of
    /// `cargo test -p`.
    pub(crate) selected: &'static [&'static [&'static str]],
    /// Its generated encodings, for `cargo ci torture generated`.
    pub(crate) generated: Option<Long>,
    /// The boot code of its test kernel (system mode): without it there is nothing to run.
    pub(crate) kernel: Option<&'static str>,
    /// Why it is in the table. Goes into `.cargo/config.toml` too.
    pub(crate) why: &'static str,
}

impl Target {
    /// Whether this is the machine that most developers and hosted engines have, and on which everything is
    /// run.
    pub(crate) fn is_native(&self) -> bool {
        self.triple == NATIVE
    }
}

/// What a row has that says nothing else.
pub(super) const PROCESS: Target = Target {
    job: "",
    triple: "",
    mode: Mode::User,
    backend: None,
    abi: "",
    linker: None,
    runner: None,
    rustflags: &[],
    needs: &[],
    packages: &[],
    selected: &[],
    generated: None,
    kernel: None,
    why: "",
};

/// A kernel of our own.
pub(super) const fn system(
    job: &'static str,
    triple: &'static str,
    backend: &'static str,
    abi: &'static str,
    kernel: &'static str,
    needs: &'static [Need],
) -> Target {
    Target {
        job,
        triple,
        mode: Mode::System,
        backend: Some(backend),
        abi,
        runner: Some("./run"),
        needs,
        kernel: Some(kernel),
        why: "the same probes where there is no operating system below: traps, CPUs and pages of our own",
        ..PROCESS
    }
}
