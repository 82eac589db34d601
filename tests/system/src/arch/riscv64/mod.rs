//! QEMU's -M virt with OpenSBI: S mode, NS16550, the SBI's timer and interrupts.
//!
//! `tp` is the running task, as the trap frame of a task has it wherever the task goes on; `sscratch` is this
//! CPU.

/// Reads a control and status register.
macro_rules! csrr {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading it has no effect.
        unsafe { asm!(concat!("csrr {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
        value
    }};
}

/// Writes a control and status register, or by `csrs` and `csrc` some of its bits.
macro_rules! csrw {
    ($instruction:literal, $name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: the register is this kernel's to set, and the code around says why.
        unsafe {
            asm!(concat!($instruction, " ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags));
        };
    }};
}

mod sbi;

use super::{Interrupts, Ipi, Machine, Outcome, Paging, Regs, asked};
use crate::cpu::{self, Cpu};
use crate::memory::Protection;
use crate::task::{self, Task};
use crate::trap;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_arch_native::backend::regs::RA;
use probe_core::error::Refusal;

global_asm!(
    include_str!("boot.s"),
    include_str!("entry.s"),
    include_str!("../function.s"),
    // Instructions of four bytes, where the machine's file does not say otherwise.
    ".option push",
    ".option norvc",
    include_str!("targets.s"),
    include_str!("../targets.s"),
    ".option pop"
);

/// The machine.
pub struct Riscv64;

const FINISHER: usize = 0x10_0000;
const UART: usize = 0x1000_0000;
const UART_STATUS: usize = UART + 5;
const UART_RECEIVED: u8 = 1;

/// Interrupts' causes, and their bits in `sie` and `sip` (Privileged ISA, table 4.2).
const SOFTWARE: u32 = 1;
const TIMER: u32 = 5;
/// Between two timer interrupts, in ticks of 100 ns.
const TIMER_TICKS: u64 = 40_000;

/// `sstatus`: interrupts enabled, and whether they were before the trap.
const SIE: u64 = 1 << 1;
const SPIE: u64 = 1 << 5;

/// The hart that booted, written by the entry code. It is CPU 0, in whose place CPU `BOOT_HART` is hart 0.
#[unsafe(no_mangle)]
static BOOT_HART: AtomicUsize = AtomicUsize::new(0);

fn hart_of(cpu: usize) -> usize {
    let boot = BOOT_HART.load(Ordering::Relaxed);
    match cpu {
        0 => boot,
        _ if cpu == boot => 0,
        _ => cpu,
    }
}

impl Paging for Riscv64 {
    // Sv48: the alias lies beyond what Sv39 has below the gap.
    const LEVELS: &'static [u32] = &[39, 30, 21, 12];

    fn leaf(physical: usize, protection: Protection) -> u64 {
        // Valid, readable, global, accessed, dirty.
        const PAGE: u64 = 1 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 7;
        Self::branch(physical, 0)
            | match protection {
                Protection::None => return 0,
                Protection::ReadOnly => PAGE,
                Protection::ReadWrite | Protection::Device => PAGE | WRITABLE,
                Protection::ReadExecute => PAGE | EXECUTABLE,
            }
    }

    fn branch(table: usize, _shift: u32) -> u64 {
        (table as u64 >> 12) << 10 | 1
    }

    fn table(entry: u64) -> usize {
        ((entry >> 10) << 12) as usize
    }

    fn allows(leaf: u64) -> (bool, bool) {
        (leaf & WRITABLE != 0, leaf & EXECUTABLE != 0)
    }

    unsafe fn activate(root: usize) {
        const SV48: u64 = 9 << 60;
        Self::flush_all();
        csrw!("csrw", "satp", SV48 | root as u64 >> 12);
        Self::flush_all();
    }

    fn flush_all() {
        // SAFETY: forgets translations, which are read again.
        unsafe { asm!("sfence.vma", options(nostack, preserves_flags)) };
    }
}

const WRITABLE: u64 = 1 << 2;
const EXECUTABLE: u64 = 1 << 3;

impl Machine for Riscv64 {
    type Backend = probe_arch_native::Native;
    // Below lies OpenSBI.
    const RAM: (usize, usize) = (0x8020_0000, 0x8400_0000);
    // Between data and text.
    const UNUSED: (usize, usize) = (0x8050_0000, 0x8060_0000);
    const PAGE_FAULT: u32 = LOAD_PAGE_FAULT as u32;
    const BREAKPOINT: u32 = BREAKPOINT as u32;
    // S mode has neither a step flag nor the debug triggers.
    const CAN_STEP: bool = false;
    const DEVICES: &'static [usize] = &[FINISHER, UART];

    fn put_byte(byte: u8) {
        // SAFETY: the data register of the NS16550; QEMU's is always ready.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(UART).write_volatile(byte) };
    }

    fn take_byte() -> Option<u8> {
        // SAFETY: a register of the NS16550.
        let status = unsafe { core::ptr::with_exposed_provenance::<u8>(UART_STATUS).read_volatile() };
        if status & UART_RECEIVED == 0 {
            return None;
        }
        // SAFETY: as above.
        Some(unsafe { core::ptr::with_exposed_provenance::<u8>(UART).read_volatile() })
    }

    fn exit(outcome: Outcome) -> ! {
        // The test finisher's "fail" has a status: 33, as on x86, never by accident.
        const FAIL: u32 = 0x3333;
        let status: u32 = if outcome == Outcome::Passed { 33 } else { 35 };
        // SAFETY: ends the machine.
        unsafe {
            core::ptr::with_exposed_provenance_mut::<u32>(FINISHER).write_volatile(status << 16 | FAIL)
        };
        loop {
            core::hint::spin_loop();
        }
    }

    /// `pause` lets no other hart run in QEMU 7.2, but `wfi` does. It must not wait: this hart's software
    /// interrupt is pending meanwhile.
    fn relax() {
        let interrupts = Self::disable_interrupts();
        csrw!("csrs", "sip", 1 << SOFTWARE);
        // SAFETY: an interrupt is pending, and enabled in `sie`.
        unsafe { asm!("wfi", options(nostack, preserves_flags)) };
        csrw!("csrc", "sip", 1 << SOFTWARE);
        // Whoever asks says so first: one whose interrupt went with this one is seen.
        if asked::is_asked() {
            csrw!("csrs", "sip", 1 << SOFTWARE);
        }
        cpu::restore(interrupts);
    }

    fn idle() {
        // SAFETY: waits until an interrupt is pending, then lets it in.
        unsafe { asm!("wfi", "csrsi sstatus, 2", options(nostack, preserves_flags)) };
    }

    fn disable_interrupts() -> Interrupts {
        let status: u64;
        // SAFETY: disables interrupts.
        unsafe { asm!("csrrci {}, sstatus, 2", out(reg) status, options(nostack, preserves_flags)) };
        if status & SIE == 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn enable_interrupts() {
        // SAFETY: the caller is ready for them. Not `nomem`: what a lock protects must not move beyond.
        unsafe { asm!("csrsi sstatus, 2", options(nostack, preserves_flags)) };
    }

    fn interrupts_of(regs: &Regs) -> Interrupts {
        if regs.status & SPIE == 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn set_interrupts_of(regs: &mut Regs, interrupts: Interrupts) {
        regs.status &= !SPIE;
        if interrupts == Interrupts::Enabled {
            regs.status |= SPIE;
        }
    }

    fn set_this_cpu(cpu: &'static Cpu) {
        csrw!("csrw", "sscratch", core::ptr::from_ref(cpu).expose_provenance() as u64);
    }

    #[inline(always)]
    fn this_cpu() -> &'static Cpu {
        let cpu: *const Cpu;
        // SAFETY: reads what `set_this_cpu` wrote. Not `nomem`: a task may be on another CPU the next time.
        unsafe { asm!("csrr {}, sscratch", out(reg) cpu, options(readonly, nostack, preserves_flags)) };
        // SAFETY: areas are never freed.
        unsafe { &*cpu }
    }

    fn set_current(task: *const Task) {
        // SAFETY: TP has no other use: there are no thread-local variables.
        unsafe { asm!("mv tp, {}", in(reg) task.expose_provenance(), options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    fn current() -> *const Task {
        let task: *const Task;
        // SAFETY: reads what `set_current` wrote.
        unsafe { asm!("mv {}, tp", out(reg) task, options(readonly, nostack, preserves_flags)) };
        task
    }

    fn init_cpu() {
        unsafe extern "C" {
            static trap_entry: u8;
        }
        csrw!("csrw", "stvec", (&raw const trap_entry).addr() as u64);
        csrw!("csrw", "sie", 1 << SOFTWARE | 1 << TIMER);
    }

    fn start_cpu(number: usize, stack_top: usize) {
        unsafe extern "C" {
            fn secondary_start();
        }
        let stack = super::stack_with(number, stack_top);
        sbi::start_hart(hart_of(number), secondary_start as *const () as usize, stack);
    }

    fn send_ipi(number: usize, ipi: Ipi) {
        asked::ask(number, ipi);
        // What was written before must be seen by who is interrupted.
        // SAFETY: a barrier.
        unsafe { asm!("fence rw, rw", options(nostack, preserves_flags)) };
        sbi::interrupt(hart_of(number));
    }

    fn start_timer() {
        sbi::set_timer(csrr!("time") + TIMER_TICKS);
    }

    fn synchronise() {
        // SAFETY: a barrier.
        unsafe { asm!("fence.i", options(nostack, preserves_flags)) };
    }

    fn watchpoints() -> Result<usize, Refusal> {
        Err(Refusal::unsupported("smode.no_watchpoints", "the debug triggers belong to machine mode"))
    }

    unsafe fn new_stack(top: usize) -> usize {
        // As `switch_stacks` leaves a stack: RA, S0 to S11.
        let frame = core::ptr::with_exposed_provenance_mut::<[usize; 14]>(top - 112);
        let mut words = [0; 14];
        words[0] = task::first_run as *const () as usize;
        // SAFETY: the caller says that there is room.
        unsafe { frame.write(words) };
        frame.addr()
    }

    /// A jump to nowhere: `ecall` leads to the firmware.
    fn null_trap(value: usize) -> usize {
        // SAFETY: the handler goes on at RA.
        unsafe { asm!("jalr {}", in(reg) NULL_TRAP, out("ra") _, options(nostack, preserves_flags)) };
        value
    }

    fn ticks() -> u64 {
        csrr!("instret")
    }

    // Under -icount shift=0.
    const TICKS: (u64, u64) = (1, 1);

    fn now_ns() -> u64 {
        csrr!("time") * 100
    }
}

/// Where nothing is mapped: what [`Machine::null_trap`] jumps to.
const NULL_TRAP: usize = 0x1000;

/// Exceptions' causes (Privileged ISA, table 4.2).
const BREAKPOINT: u64 = 3;
const INSTRUCTION_PAGE_FAULT: u64 = 12;
const LOAD_PAGE_FAULT: u64 = 13;
const STORE_PAGE_FAULT: u64 = 15;

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn riscv64_exception(regs: &mut Regs, cause: u64) {
    // By itself: asked first.
    if cause == BREAKPOINT {
        return trap::breakpoint(regs);
    }
    match cause {
        INSTRUCTION_PAGE_FAULT if regs.pc == NULL_TRAP as u64 => regs.pc = regs.x(RA),
        LOAD_PAGE_FAULT | STORE_PAGE_FAULT => {
            trap::fault(regs, LOAD_PAGE_FAULT as u32, csrr!("stval") as usize);
        }
        _ => trap::fault(regs, cause as u32, csrr!("stval") as usize),
    }
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn riscv64_interrupt(_regs: &mut Regs, cause: u64) {
    match cause as u32 {
        SOFTWARE => {
            csrw!("csrc", "sip", 1 << SOFTWARE);
            asked::answer();
        }
        TIMER => {
            Riscv64::start_timer();
            trap::timer();
        }
        other => panic!("unexpected interrupt {other}"),
    }
}
