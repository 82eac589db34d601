//! The one table of supported and tested targets: every target with its mode, linker, runner and needs.
//!
//! Set-up, the local test run, the lints, `.cargo/config.toml`, both hosted CI descriptions and the README's
//! support table are derived from [`TARGETS`]. To support another target, add a row (CONTRIBUTING.md says
//! what else).

mod row;

pub(crate) use row::{Backend, Long, Mode, Need, Target, Witness};

use row::{PROCESS, file, program, system};
use std::collections::BTreeSet;

/// For the programs of tests/strangers that throw.
const CXX: Need = program("g++", "c++");

/// Whose stacks those of `probe trace --stack` are compared with.
const GDB: Need = program("gdb", "gdb");

/// C programs of musl's, static and dynamic, for `probe trace` to start.
const MUSL: Need = program("musl-tools", "musl-gcc");

/// QEMU user mode, all architectures in one package.
const QEMU_USER: Need = program("qemu-user", "qemu-aarch64");

/// GNU ld for big-endian ppc64, whose ELFv1 objects LLD does not link.
const PPC64_LD: Need = program("binutils-powerpc64-linux-gnu", "powerpc64-linux-gnu-ld");

/// riscv64's oracle, and what it is asked about.
const RISCV64_OBJDUMP: Need = program("binutils-riscv64-linux-gnu", "riscv64-linux-gnu-objdump");
const RISCV64_LIBC: Need = file("libc6-riscv64-cross", "/usr/riscv64-linux-gnu/lib/libc.so.6");

/// arm's oracle, and what it is asked about.
const ARM_OBJDUMP: Need = program("binutils-arm-linux-gnueabihf", "arm-linux-gnueabihf-objdump");
const ARM_LIBC: Need = file("libc6-armhf-cross", "/usr/arm-linux-gnueabihf/lib/libc.so.6");

/// Programs of another architecture, for `probe trace` to trace.
const PROGRAMS_ARM64: Need =
    file("busybox,coreutils,git,python3:arm64", "target/ci/userland/arm64/bin/python3");
const PROGRAMS_I386: Need = file("busybox,coreutils,git,python3:i386", "target/ci/userland/i386/bin/python3");
const PROGRAMS_PPC64EL: Need =
    file("busybox,coreutils,git,python3:ppc64el", "target/ci/userland/ppc64el/bin/python3");

/// The backends, in the order of the documents.
pub(crate) const BACKENDS: [Backend; 7] = [
    Backend { folder: "arch-x86_64", ..X86_FAMILY },
    Backend { folder: "arch-i386", ..X86_FAMILY },
    Backend {
        folder: "arch-aarch64",
        words: &["aarch64", "arm64"],
        sources: "arch-aarch64/src",
        effects: None,
        pure: &["probe-arch-aarch64", "--lib"],
    },
    Backend {
        folder: "arch-ppc64",
        words: &["ppc64", "powerpc64"],
        sources: "arch-ppc64/src",
        effects: None,
        pure: &["probe-arch-ppc64", "--lib"],
    },
    Backend {
        folder: "arch-ppc32",
        words: &["ppc32", "powerpc-", "\"powerpc\""],
        sources: "arch-ppc32/src",
        effects: None,
        pure: &["probe-arch-ppc32", "--lib"],
    },
    Backend {
        folder: "arch-riscv64",
        words: &["riscv"],
        sources: "arch-riscv64/src",
        effects: None,
        pure: &["probe-arch-riscv64", "--lib"],
    },
    Backend {
        folder: "arch-arm",
        words: &["arm"],
        sources: "arch-arm/src",
        effects: None,
        pure: &["probe-arch-arm", "--lib"],
    },
];

/// Both decode with one crate.
const X86_FAMILY: Backend = Backend {
    folder: "",
    words: &["x86", "i386", "i586", "i686", "EM_386"],
    sources: "x86-decode/src",
    effects: Some("x86-decode/src/plan.rs"),
    // The two façades are tested by that.
    pure: &["probe-x86-decode", "--test", "pure", "--test", "vectors"],
};

/// The target on which the whole workspace is tested, and the only kind of machine on which `cargo ci` runs
/// everything.
pub(crate) const NATIVE: &str = "x86_64-unknown-linux-gnu";

/// The process where it is least like elsewhere, as far as an emulator gets in its time: how control arrives,
/// what a C library lists, signals.
const GUARD: &[&str] = &[
    "probe-host-linux",
    "--test",
    "arrival",
    "--test",
    "guard",
    "--test",
    "odd_orders",
    "--test",
    "rseq",
    "--test",
    "signed_returns",
];
/// What a C library may do otherwise: masks, waits, executions.
const SIGNALS: &[&str] = &[
    "probe-host-linux",
    "--test",
    "arrival",
    "--test",
    "blocked",
    "--test",
    "guard",
    "--test",
    "execution",
    "--test",
    "deferral",
    "--test",
    "odd_orders",
    "--test",
    "rseq",
    "--test",
    "signals",
    "--test",
    "system_calls",
];
/// The library in C, and a program that uses it.
const C: &[&str] = &["probe-c", "--test", "programs"];
const WORK: &[&str] = &["probe-trace", "--test", "work"];
const PPC64_BACKEND: &[&str] = &["probe-arch-ppc64", "--no-fail-fast"];
const PPC32_BACKEND: &[&str] = &["probe-arch-ppc32", "--no-fail-fast"];
const RISCV64_BACKEND: &[&str] = &["probe-arch-riscv64", "--no-fail-fast"];
const ARM_BACKEND: &[&str] = &["probe-arch-arm", "--no-fail-fast"];

/// The table. Its order is the order of the test run and of the support table.
pub(crate) const TARGETS: &[Target] = &[
    Target {
        job: "x86_64",
        triple: NATIVE,
        backend: Some("arch-x86_64"),
        abi: "glibc",
        needs: &[CXX, GDB, MUSL, RISCV64_OBJDUMP, RISCV64_LIBC, ARM_OBJDUMP, ARM_LIBC],
        generated: Some(Long {
            test: ["probe-x86-decode", "transparency", "generated"],
            variable: ("PROBE_GENERATE", "1000000"),
        }),
        why: "the whole workspace, natively: the only place where stale caches and torn patches can show",
        ..PROCESS
    },
    Target {
        job: "x86_64-musl",
        triple: "x86_64-unknown-linux-musl",
        backend: Some("arch-x86_64"),
        abi: "musl, static",
        linker: Some("rust-lld"),
        selected: &[SIGNALS],
        why: "a static program, and a C library that is not glibc",
        ..PROCESS
    },
    Target {
        job: "i386-musl",
        triple: "i686-unknown-linux-musl",
        backend: Some("arch-i386"),
        abi: "musl, static",
        linker: Some("rust-lld"),
        selected: &[SIGNALS],
        why: "runs natively on x86-64: QEMU 7.2 mixes up the thread pointers of i386 threads",
        ..PROCESS
    },
    Target {
        job: "i386-gnu",
        triple: "i686-unknown-linux-gnu",
        backend: Some("arch-i386"),
        abi: "glibc, dynamic",
        linker: Some("ci/ld/i686-linux-gnu"),
        needs: &[
            file("libc6-dev-i386-cross", "/usr/i686-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-i386-cross", "/usr/lib/gcc-cross/i686-linux-gnu/*/crtbeginS.o"),
            file("libc6-i386", "/lib/ld-linux.so.2"),
            file("lib32gcc-s1", "/usr/lib32/libgcc_s.so.1"),
            program("gcc-i686-linux-gnu", "i686-linux-gnu-gcc"),
            PROGRAMS_I386,
        ],
        selected: &[
            C,
            &[
                "probe-host-linux",
                "--package",
                "probe-trace",
                "--package",
                "probe-tests-user",
                "--package",
                "probe-x86-decode",
                "--tests",
                "--no-fail-fast",
            ],
        ],
        generated: Some(Long {
            test: ["probe-x86-decode", "transparency", "generated"],
            variable: ("PROBE_GENERATE", "1000000"),
        }),
        why: "shared objects that come and go; runs natively",
        ..PROCESS
    },
    Target {
        job: "aarch64-musl",
        triple: "aarch64-unknown-linux-musl",
        backend: Some("arch-aarch64"),
        abi: "musl, static",
        linker: Some("rust-lld"),
        runner: Some("ci/qemu aarch64"),
        needs: &[QEMU_USER],
        selected: &[&["probe-arch-aarch64", "--no-fail-fast"]],
        generated: Some(Long {
            test: ["probe-arch-aarch64", "native", "generated"],
            variable: ("PROBE_GENERATE", "100000"),
        }),
        why: "needs nothing but QEMU: the quickest look at aarch64",
        ..PROCESS
    },
    Target {
        job: "aarch64-gnu",
        triple: "aarch64-unknown-linux-gnu",
        backend: Some("arch-aarch64"),
        abi: "glibc, dynamic",
        linker: Some("ci/ld/aarch64-linux-gnu"),
        runner: Some("ci/qemu aarch64 -L /usr/aarch64-linux-gnu"),
        needs: &[
            QEMU_USER,
            file("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-arm64-cross", "/usr/lib/gcc-cross/aarch64-linux-gnu/*/crtbeginS.o"),
            program("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
            PROGRAMS_ARM64,
        ],
        selected: &[GUARD, C, &["probe-trace", "--test", "work", "--test", "trace", "--test", "errors"]],
        why: "shared objects that come and go, BTI and PAC in a real libc",
        ..PROCESS
    },
    Target {
        job: "ppc64-musl",
        triple: "powerpc64-unknown-linux-musl",
        backend: Some("arch-ppc64"),
        abi: "big endian, ELFv2, musl, static",
        linker: Some("rust-lld"),
        runner: Some("ci/qemu ppc64"),
        rustflags: &["target-feature=+crt-static"],
        needs: &[QEMU_USER],
        selected: &[PPC64_BACKEND],
        generated: Some(Long {
            test: ["probe-arch-ppc64", "native", "hit_11_every_class"],
            variable: ("PROBE_ROUNDS", "20"),
        }),
        why: "big endian with local entries; not static by itself, unlike the other musl targets",
        ..PROCESS
    },
    Target {
        job: "ppc64-gnu",
        triple: "powerpc64-unknown-linux-gnu",
        backend: Some("arch-ppc64"),
        abi: "big endian, ELFv1, glibc, dynamic",
        linker: Some("ci/ld/powerpc64-linux-gnu"),
        runner: Some("ci/qemu ppc64 -L /usr/powerpc64-linux-gnu"),
        needs: &[
            QEMU_USER,
            PPC64_LD,
            file("libc6-dev-ppc64-cross", "/usr/powerpc64-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-ppc64-cross", "/usr/lib/gcc-cross/powerpc64-linux-gnu/*/crtbeginS.o"),
            program("gcc-powerpc64-linux-gnu", "powerpc64-linux-gnu-gcc"),
        ],
        selected: &[GUARD, C, WORK, PPC64_BACKEND],
        why: "big endian with function descriptors; ELFv1 is the one format that LLD does not link",
        ..PROCESS
    },
    Target {
        job: "ppc64le-gnu",
        triple: "powerpc64le-unknown-linux-gnu",
        backend: Some("arch-ppc64"),
        abi: "little endian, ELFv2, glibc, dynamic",
        linker: Some("ci/ld/powerpc64le-linux-gnu"),
        runner: Some("ci/qemu ppc64le -L /usr/powerpc64le-linux-gnu"),
        needs: &[
            QEMU_USER,
            file("libc6-dev-ppc64el-cross", "/usr/powerpc64le-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-ppc64el-cross", "/usr/lib/gcc-cross/powerpc64le-linux-gnu/*/crtbeginS.o"),
            program("gcc-powerpc64le-linux-gnu", "powerpc64le-linux-gnu-gcc"),
            PROGRAMS_PPC64EL,
        ],
        selected: &[GUARD, C, WORK, &["probe-trace", "--test", "real_programs", "ls_prints"], PPC64_BACKEND],
        generated: Some(Long {
            test: ["probe-arch-ppc64", "native", "hit_11_every_class"],
            variable: ("PROBE_ROUNDS", "20"),
        }),
        why: "what POWER machines run today",
        ..PROCESS
    },
    Target {
        job: "ppc32-gnu",
        triple: "powerpc-unknown-linux-gnu",
        backend: Some("arch-ppc32"),
        abi: "big endian, SysV, glibc, dynamic",
        linker: Some("ci/ld/powerpc-linux-gnu"),
        runner: Some("ci/qemu ppc -L /usr/powerpc-linux-gnu"),
        needs: &[
            QEMU_USER,
            file("libc6-dev-powerpc-cross", "/usr/powerpc-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-powerpc-cross", "/usr/lib/gcc-cross/powerpc-linux-gnu/*/crtbeginS.o"),
        ],
        // The others want atomics of 64 bits.
        packages: &["probe-arch-ppc32", "probe-elf-symbols", "probe-host-linux", "probe-unwind"],
        selected: &[GUARD, PPC32_BACKEND],
        generated: Some(Long {
            test: ["probe-arch-ppc32", "native", "generated"],
            variable: ("PROBE_GENERATE", "100000"),
        }),
        why: "32 bits, big endian, and no atomics of 64 bits",
        ..PROCESS
    },
    Target {
        job: "riscv64-gnu",
        triple: "riscv64gc-unknown-linux-gnu",
        backend: Some("arch-riscv64"),
        abi: "glibc, dynamic",
        linker: Some("ci/ld/riscv64-linux-gnu"),
        runner: Some("ci/qemu riscv64 -L /usr/riscv64-linux-gnu"),
        needs: &[
            QEMU_USER,
            file("libc6-dev-riscv64-cross", "/usr/riscv64-linux-gnu/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-riscv64-cross", "/usr/lib/gcc-cross/riscv64-linux-gnu/*/crtbeginS.o"),
            program("gcc-riscv64-linux-gnu", "riscv64-linux-gnu-gcc"),
        ],
        selected: &[GUARD, C, &["probe-trace", "--test", "work", "--test", "riscv64"], RISCV64_BACKEND],
        generated: Some(Long {
            test: ["probe-arch-riscv64", "native", "generated"],
            variable: ("PROBE_GENERATE", "100000"),
        }),
        why: "instructions of two and four bytes in one stream; the only process target with a jump that reaches 1 MiB alone",
        ..PROCESS
    },
    Target {
        job: "arm-gnu",
        triple: "armv7-unknown-linux-gnueabihf",
        backend: Some("arch-arm"),
        abi: "glibc, dynamic",
        linker: Some("ci/ld/arm-linux-gnueabihf"),
        runner: Some("ci/qemu arm -L /usr/arm-linux-gnueabihf"),
        needs: &[
            QEMU_USER,
            file("libc6-dev-armhf-cross", "/usr/arm-linux-gnueabihf/lib/Scrt1.o"),
            file("libgcc-{gcc}-dev-armhf-cross", "/usr/lib/gcc-cross/arm-linux-gnueabihf/*/crtbeginS.o"),
        ],
        selected: &[GUARD, ARM_BACKEND],
        generated: Some(Long {
            test: ["probe-arch-arm", "native", "generated"],
            variable: ("PROBE_GENERATE", "100000"),
        }),
        why: "two instruction sets in one program, a libc in T32, and unwinders that read no DWARF",
        ..PROCESS
    },
    Target {
        rustflags: &[STATIC, "code-model=kernel", "link-arg=-no-pie", NO_BUILD_ID, NO_EH_FRAME_HDR],
        ..system("system-x86_64", "x86_64-unknown-none", "arch-x86_64", "kernel", X86_BOOT[0], &[X86])
    },
    // i586: the last 32-bit target without SSE, which trap handlers would have to save.
    Target {
        linker: Some("rust-lld"),
        rustflags: &[LLD, STATIC, NO_LIBC, "link-arg=-static", NO_BUILD_ID, NO_EH_FRAME_HDR],
        ..system(
            "system-i386",
            "i586-unknown-linux-gnu",
            "arch-i386",
            "kernel without SSE",
            X86_BOOT[1],
            &[X86],
        )
    },
    Target {
        rustflags: &[STATIC, NO_BUILD_ID, NO_EH_FRAME_HDR],
        ..system(
            "system-aarch64",
            "aarch64-unknown-none-softfloat",
            "arch-aarch64",
            "kernel",
            "tests/system/src/arch/aarch64/boot.s",
            &[ARM],
        )
    },
    // No floating point, which trap handlers would have to save.
    Target {
        rustflags: &[STATIC, NO_BUILD_ID, NO_EH_FRAME_HDR],
        ..system(
            "system-riscv64",
            "riscv64imac-unknown-none-elf",
            "arch-riscv64",
            "kernel",
            "tests/system/src/arch/riscv64/boot.s",
            &[RISCV],
        )
    },
    Target {
        rustflags: &[STATIC, NO_BUILD_ID, NO_EH_FRAME_HDR],
        ..system(
            "system-arm",
            "armv7a-none-eabi",
            "arch-arm",
            "kernel",
            "tests/system/src/arch/arm/boot.s",
            &[ARM],
        )
    },
    // No vectors, which trap handlers would have to save; link-time optimisation takes them out of `core`,
    // too.
    Target {
        linker: Some("powerpc64-linux-gnu-ld"),
        rustflags: &[
            NO_VECTORS,
            "linker-flavor=ld",
            STATIC,
            NO_LIBC,
            "link-arg=-static",
            NO_BUILD_ID,
            NO_EH_FRAME_HDR,
        ],
        ..system(
            "system-ppc64",
            "powerpc64-unknown-linux-gnu",
            "arch-ppc64",
            "kernel, big endian, ELFv1",
            PPC64_BOOT,
            &[PPC, PPC64_LD],
        )
    },
    Target {
        linker: Some("rust-lld"),
        rustflags: &[LLD, STATIC, NO_LIBC, "link-arg=-static", NO_BUILD_ID, NO_EH_FRAME_HDR],
        ..system(
            "system-ppc32",
            "powerpc-unknown-linux-gnu",
            "arch-ppc32",
            "kernel",
            "tests/system/src/arch/ppc32/boot.s",
            &[PPC],
        )
    },
    Target {
        linker: Some("rust-lld"),
        rustflags: &[NO_VECTORS, LLD, STATIC, NO_LIBC, "link-arg=-static", NO_BUILD_ID, NO_EH_FRAME_HDR],
        ..system(
            "system-ppc64le",
            "powerpc64le-unknown-linux-gnu",
            "arch-ppc64",
            "kernel, little endian, ELFv2",
            PPC64_BOOT,
            &[PPC],
        )
    },
    Target {
        job: "build-riscv64",
        triple: "riscv64gc-unknown-none-elf",
        abi: "kernel",
        mode: Mode::Build,
        packages: &["probe-core"],
        why: "the core builds for an architecture that has no backend: it knows none",
        ..PROCESS
    },
];

const X86_BOOT: [&str; 2] = ["tests/system/src/arch/x86/boot64.s", "tests/system/src/arch/x86/boot32.s"];
const PPC64_BOOT: &str = "tests/system/src/arch/ppc64/boot.s";

// How kernels are linked: values of rustc's `-C`.
const STATIC: &str = "relocation-model=static";
const NO_LIBC: &str = "link-self-contained=no";
const NO_BUILD_ID: &str = "link-arg=--build-id=none";
const NO_EH_FRAME_HDR: &str = "link-arg=--no-eh-frame-hdr";
const NO_VECTORS: &str = "target-feature=-vsx,-altivec";
const LLD: &str = "linker-flavor=ld.lld";

const X86: Need = program("qemu-system-x86", "qemu-system-x86_64");
const ARM: Need = program("qemu-system-arm", "qemu-system-aarch64");
const RISCV: Need = program("qemu-system-misc", "qemu-system-riscv64");
const PPC: Need = program("qemu-system-ppc", "qemu-system-ppc64");

/// The folders of the backends.
pub(crate) fn backends() -> BTreeSet<&'static str> {
    BACKENDS.iter().map(|backend| backend.folder).collect()
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
    fn every_row_has_a_backend_that_is_in_the_table_and_names_it() {
        for target in TARGETS {
            let Some(folder) = target.backend else { continue };
            let backend = BACKENDS.iter().find(|backend| backend.folder == folder).expect("it is there");
            assert!(backend.words.iter().any(|word| folder.contains(word)), "{folder}");
            assert!(backend.words.iter().any(|word| target.triple.contains(word)), "{}", target.triple);
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
