//! How each kernel is booted, and how it says that it passed.

use object::{Architecture, Object};
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What makes QEMU's clock tick.
#[derive(Clone, Copy)]
pub enum Clock {
    /// One host thread runs the CPUs in turn: QEMU 7.2 loses no cross-CPU text patch then.
    RoundRobin,
    /// As above, and a guest instruction takes a fixed time: counts are exact and repeatable.
    Instructions,
    /// One host thread per CPU: real contention. Text must be patched under a rendezvous.
    Threads,
}

/// One way to boot.
pub struct Machine {
    program: &'static str,
    package: &'static str,
    arguments: &'static str,
    /// `-icount` with which one instruction is a whole number of the guest's clock ticks.
    icount: &'static str,
    /// The exit status of a kernel that passed. On x86 it is never 0, which a triple fault gives.
    passed: i32,
}

// The kernel lies at the end of the first GiB; what it does not touch takes no memory.
const X86: &str = "-M q35 -cpu max -m 1024M -device isa-debug-exit,iobase=0xf4,iosize=4";
const VIRT: &str = "-M virt -cpu max -m 64M -semihosting-config enable=on,target=native";
const ARM_VIRT: &str = "-M virt -cpu cortex-a15 -m 64M -semihosting-config enable=on,target=native";
const RISCV_VIRT: &str = "-M virt -m 64M";
const PSERIES: &str = "-M pseries,x-vof=on,cap-ccf-assist=off,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken \
                       -cpu power10 -m 256M -nodefaults -action panic=exit-failure";

impl Machine {
    /// The machine that an ELF file is for.
    pub fn of(elf: &[u8]) -> Result<Self, String> {
        let file = object::File::parse(elf).map_err(|e| e.to_string())?;
        Ok(match file.architecture() {
            Architecture::X86_64 => Self {
                program: "qemu-system-x86_64",
                package: "qemu-system-x86",
                arguments: X86,
                icount: "shift=0",
                passed: 33,
            },
            Architecture::I386 => Self {
                program: "qemu-system-i386",
                package: "qemu-system-x86",
                arguments: X86,
                icount: "shift=0",
                passed: 33,
            },
            Architecture::Aarch64 => Self {
                program: "qemu-system-aarch64",
                package: "qemu-system-arm",
                arguments: VIRT,
                icount: "shift=4",
                passed: 33,
            },
            Architecture::Arm => Self {
                program: "qemu-system-arm",
                package: "qemu-system-arm",
                arguments: ARM_VIRT,
                icount: "shift=4",
                passed: 33,
            },
            Architecture::Riscv64 => Self {
                program: "qemu-system-riscv64",
                package: "qemu-system-misc",
                arguments: RISCV_VIRT,
                icount: "shift=0",
                passed: 33,
            },
            Architecture::PowerPc64 => Self {
                program: "qemu-system-ppc64",
                package: "qemu-system-ppc",
                arguments: PSERIES,
                icount: "shift=4",
                passed: 0,
            },
            other => return Err(format!("no machine for {other:?}")),
        })
    }

    /// Boots `kernel` and waits for its end.
    pub fn run(&self, kernel: &Path, cpus: u32, timeout_s: u32, clock: Clock) -> Result<ExitCode, String> {
        let mut qemu = Command::new("timeout");
        qemu.arg("--foreground")
            .arg(timeout_s.to_string())
            .arg(self.program)
            .args(self.arguments.split(' ').filter(|a| !a.is_empty()));
        qemu.args(["-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", "none"]);
        qemu.args(["-smp", &cpus.to_string()]);
        match clock {
            Clock::RoundRobin => qemu.args(["-accel", "tcg,thread=single"]),
            Clock::Instructions => qemu.args(["-icount", self.icount]),
            Clock::Threads => qemu.args(["-accel", "tcg,thread=multi"]),
        };
        let status = qemu.arg("-kernel").arg(kernel).status().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => "the command timeout (package coreutils) is missing".to_string(),
            _ => e.to_string(),
        })?;
        match status.code() {
            Some(code) if code == self.passed => Ok(ExitCode::SUCCESS),
            Some(124) => Err(format!("no verdict within {timeout_s} s")),
            Some(127) => Err(format!("{} is missing: install the package {}", self.program, self.package)),
            Some(code) => Err(format!("the kernel failed ({} ended with status {code})", self.program)),
            None => Err(format!("{} was killed", self.program)),
        }
    }
}
