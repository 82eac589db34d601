//! The one table of what is supported and tested: every target with its mode, linker, runner and needs.
//!
//! Set-up, the local test run, the lints, `.cargo/config.toml`, both hosted CI descriptions and the README's support
//! table are derived from [`TARGETS`]. To support another target, add a row (CONTRIBUTING.md says what else).

use std::collections::BTreeSet;

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

/// Something that must be on the machine, how to see that it is, and the Debian and Ubuntu package that brings it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Debian's and Ubuntu's name. `{gcc}` stands for the newest GCC version that the distribution has; with an
    /// architecture (`busybox,git:arm64`) they are unpacked below the target folder, not installed.
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

const fn program(package: &'static str, name: &'static str) -> Need {
    Need { package, witness: Witness::Program(name) }
}

const fn file(package: &'static str, path: &'static str) -> Need {
    Need { package, witness: Witness::File(path) }
}

/// For the programs of tests/strangers that throw.
const CXX: Need = program("g++", "c++");

/// QEMU user mode, all architectures in one package.
const QEMU_USER: Need = program("qemu-user", "qemu-aarch64");

/// GNU ld for big-endian ppc64, whose ELFv1 objects LLD does not link.
const PPC64_LD: Need = program("binutils-powerpc64-linux-gnu", "powerpc64-linux-gnu-ld");

/// Programs of another architecture, for `probe trace` to trace.
const PROGRAMS_ARM64: Need =
    file("busybox,coreutils,git,python3:arm64", "target/ci/userland/arm64/bin/python3");
const PROGRAMS_I386: Need = file("busybox,coreutils,git,python3:i386", "target/ci/userland/i386/bin/python3");
const PROGRAMS_PPC64EL: Need =
    file("busybox,coreutils,git,python3:ppc64el", "target/ci/userland/ppc64el/bin/python3");

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
    /// `linker` in `.cargo/config.toml`; `None`: rustc's default, or (system mode) the test kernels' own.
    pub(crate) linker: Option<&'static str>,
    /// `runner` in `.cargo/config.toml`; `None`: it runs natively, or not at all.
    pub(crate) runner: Option<&'static str>,
    /// `rustflags` in `.cargo/config.toml`.
    pub(crate) rustflags: &'static [&'static str],
    /// What it needs on the machine beside Rust.
    pub(crate) needs: &'static [Need],
    /// The packages that are built for it in [`Mode::Build`]; elsewhere the mode says what is run.
    pub(crate) packages: &'static [&'static str],
    /// The boot code of its test kernel (system mode): without it there is nothing to run.
    pub(crate) kernel: Option<&'static str>,
    /// Why it is in the table. Goes into `.cargo/config.toml` too.
    pub(crate) why: &'static str,
}

impl Target {
    /// Whether this is the machine that most developers and hosted engines have, and on which everything is run.
    pub(crate) fn is_native(&self) -> bool {
        self.triple == NATIVE
    }
}

/// The target on which the whole workspace is tested, and the only kind of machine on which `cargo ci` runs everything.
pub(crate) const NATIVE: &str = "x86_64-unknown-linux-gnu";

/// The table. Its order is the order of the test run and of the support table.
pub(crate) const TARGETS: &[Target] = &[
    Target {
        job: "x86_64",
        triple: NATIVE,
        mode: Mode::User,
        backend: Some("arch-x86_64"),
        abi: "glibc",
        linker: None,
        runner: None,
        rustflags: &[],
        needs: &[CXX],
        packages: &[],
        kernel: None,
        why: "the whole workspace, natively: the only place where stale caches and torn patches can show",
    },
    Target {
        job: "x86_64-musl",
        triple: "x86_64-unknown-linux-musl",
        mode: Mode::User,
        backend: Some("arch-x86_64"),
        abi: "musl, static",
        linker: Some("rust-lld"),
        runner: None,
        rustflags: &[],
        needs: &[],
        packages: &[],
        kernel: None,
        why: "a static program, and a C library that is not glibc",
    },
    Target {
        job: "i386-musl",
        triple: "i686-unknown-linux-musl",
        mode: Mode::User,
        backend: Some("arch-i386"),
        abi: "musl, static",
        linker: Some("rust-lld"),
        runner: None,
        rustflags: &[],
        needs: &[],
        packages: &[],
        kernel: None,
        why: "runs natively on x86-64: QEMU 7.2 mixes up the thread pointers of i386 threads",
    },
    Target {
        job: "i386-gnu",
        triple: "i686-unknown-linux-gnu",
        mode: Mode::User,
        backend: Some("arch-i386"),
        abi: "glibc, dynamic",
        linker: Some("ci/ld/i686-linux-gnu"),
        runner: None,
        rustflags: &[],
        needs: &[
            file("libc6-dev-i386-cross", "/usr/i686-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-i386-cross", "/usr/lib/gcc-cross/i686-linux-gnu/*/crtbeginS.o"),
            file("libc6-i386", "/lib/ld-linux.so.2"),
            file("lib32gcc-s1", "/usr/lib32/libgcc_s.so.1"),
            program("gcc-i686-linux-gnu", "i686-linux-gnu-gcc"),
            PROGRAMS_I386,
        ],
        packages: &[],
        kernel: None,
        why: "shared objects that come and go; runs natively",
    },
    Target {
        job: "aarch64-musl",
        triple: "aarch64-unknown-linux-musl",
        mode: Mode::User,
        backend: Some("arch-aarch64"),
        abi: "musl, static",
        linker: Some("rust-lld"),
        runner: Some("ci/qemu aarch64"),
        rustflags: &[],
        needs: &[QEMU_USER],
        packages: &[],
        kernel: None,
        why: "needs nothing but QEMU: the quickest look at aarch64",
    },
    Target {
        job: "aarch64-gnu",
        triple: "aarch64-unknown-linux-gnu",
        mode: Mode::User,
        backend: Some("arch-aarch64"),
        abi: "glibc, dynamic",
        linker: Some("ci/ld/aarch64-linux-gnu"),
        runner: Some("ci/qemu aarch64 -L /usr/aarch64-linux-gnu"),
        rustflags: &[],
        needs: &[
            QEMU_USER,
            file("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-arm64-cross", "/usr/lib/gcc-cross/aarch64-linux-gnu/*/crtbeginS.o"),
            program("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
            PROGRAMS_ARM64,
        ],
        packages: &[],
        kernel: None,
        why: "shared objects that come and go, BTI and PAC in a real libc",
    },
    Target {
        job: "ppc64-musl",
        triple: "powerpc64-unknown-linux-musl",
        mode: Mode::User,
        backend: Some("arch-ppc64"),
        abi: "big endian, ELFv2, musl, static",
        linker: Some("rust-lld"),
        runner: Some("ci/qemu ppc64"),
        rustflags: &["-C", "target-feature=+crt-static"],
        needs: &[QEMU_USER],
        packages: &[],
        kernel: None,
        why: "big endian with local entries; not static by itself, unlike the other musl targets",
    },
    Target {
        job: "ppc64-gnu",
        triple: "powerpc64-unknown-linux-gnu",
        mode: Mode::User,
        backend: Some("arch-ppc64"),
        abi: "big endian, ELFv1, glibc, dynamic",
        linker: Some("ci/ld/powerpc64-linux-gnu"),
        runner: Some("ci/qemu ppc64 -L /usr/powerpc64-linux-gnu"),
        rustflags: &[],
        needs: &[
            QEMU_USER,
            PPC64_LD,
            file("libc6-dev-ppc64-cross", "/usr/powerpc64-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-ppc64-cross", "/usr/lib/gcc-cross/powerpc64-linux-gnu/*/crtbeginS.o"),
            program("gcc-powerpc64-linux-gnu", "powerpc64-linux-gnu-gcc"),
        ],
        packages: &[],
        kernel: None,
        why: "big endian with function descriptors; ELFv1 is the one format that LLD does not link",
    },
    Target {
        job: "ppc64le-gnu",
        triple: "powerpc64le-unknown-linux-gnu",
        mode: Mode::User,
        backend: Some("arch-ppc64"),
        abi: "little endian, ELFv2, glibc, dynamic",
        linker: Some("ci/ld/powerpc64le-linux-gnu"),
        runner: Some("ci/qemu ppc64le -L /usr/powerpc64le-linux-gnu"),
        rustflags: &[],
        needs: &[
            QEMU_USER,
            file("libc6-dev-ppc64el-cross", "/usr/powerpc64le-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-ppc64el-cross", "/usr/lib/gcc-cross/powerpc64le-linux-gnu/*/crtbeginS.o"),
            program("gcc-powerpc64le-linux-gnu", "powerpc64le-linux-gnu-gcc"),
            PROGRAMS_PPC64EL,
        ],
        packages: &[],
        kernel: None,
        why: "what POWER machines run today",
    },
    system(
        "system-x86_64",
        "x86_64-unknown-none",
        "arch-x86_64",
        "kernel",
        "tests/system/src/arch/x86/boot64.s",
        &[X86],
    ),
    system(
        "system-i386",
        "i586-unknown-linux-gnu",
        "arch-i386",
        "kernel without SSE",
        "tests/system/src/arch/x86/boot32.s",
        &[X86],
    ),
    system(
        "system-aarch64",
        "aarch64-unknown-none-softfloat",
        "arch-aarch64",
        "kernel",
        "tests/system/src/arch/aarch64/boot.s",
        &[ARM],
    ),
    system(
        "system-ppc64",
        "powerpc64-unknown-linux-gnu",
        "arch-ppc64",
        "kernel, big endian, ELFv1",
        "tests/system/src/arch/ppc64/boot.s",
        &[PPC, PPC64_LD],
    ),
    system(
        "system-ppc64le",
        "powerpc64le-unknown-linux-gnu",
        "arch-ppc64",
        "kernel, little endian, ELFv2",
        "tests/system/src/arch/ppc64/boot.s",
        &[PPC],
    ),
    Target {
        job: "build-riscv64",
        triple: "riscv64gc-unknown-none-elf",
        mode: Mode::Build,
        backend: None,
        abi: "kernel",
        linker: None,
        runner: None,
        rustflags: &[],
        needs: &[],
        packages: &["probe-core"],
        kernel: None,
        why: "the core builds for an architecture that has no backend: it knows none",
    },
];

const X86: Need = program("qemu-system-x86", "qemu-system-x86_64");
const ARM: Need = program("qemu-system-arm", "qemu-system-aarch64");
const PPC: Need = program("qemu-system-ppc", "qemu-system-ppc64");

const fn system(
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
        linker: None,
        runner: None,
        rustflags: &[],
        needs,
        packages: &[],
        kernel: Some(kernel),
        why: "the same probes where there is no operating system below: traps, CPUs and pages of our own",
    }
}

/// The folders of the backends.
pub(crate) fn backends() -> BTreeSet<&'static str> {
    TARGETS.iter().filter_map(|target| target.backend).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_are_unique() {
        for (i, target) in TARGETS.iter().enumerate() {
            assert!(TARGETS[i + 1..].iter().all(|other| other.job != target.job), "{}", target.job);
        }
    }

    #[test]
    fn every_backend_runs_in_both_modes() {
        for backend in backends() {
            for mode in [Mode::User, Mode::System] {
                let found =
                    TARGETS.iter().any(|target| target.backend == Some(backend) && target.mode == mode);
                assert!(found, "{backend} has no {} row", mode.name());
            }
        }
    }

    /// It conflicts with every cross compiler; apt would remove those without a word.
    #[test]
    fn gcc_multilib_is_not_needed() {
        assert!(
            TARGETS.iter().flat_map(|target| target.needs).all(|need| !need.package.contains("multilib"))
        );
    }
}
