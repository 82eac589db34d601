//! QEMU's -M virt with an ARMv7 processor: PL011, GICv2, the virtual timer, PSCI. The kernel is A32, in
//! Supervisor mode, with the large physical address extension.
//!
//! Three registers for thread identifiers are free for software (DDI 0406C.d B4.1.150 ff.): the privileged
//! one is this CPU, the one that users may read is the running task.

/// Reads a register of the system control coprocessor, or of another one.
macro_rules! mrc {
    ($coprocessor:literal, $name:literal) => {{
        let value: u32;
        // SAFETY: reading it has no effect.
        unsafe {
            asm!(concat!("mrc ", $coprocessor, ", {}, ", $name), out(reg) value,
                options(nomem, nostack, preserves_flags));
        };
        value
    }};
}

/// Writes a register of the system control coprocessor, or of another one.
macro_rules! mcr {
    ($coprocessor:literal, $name:literal, $value:expr) => {{
        let value: u32 = $value;
        // SAFETY: the register is this kernel's to set, and the code around says why.
        unsafe {
            asm!(concat!("mcr ", $coprocessor, ", {}, ", $name), in(reg) value,
                options(nostack, preserves_flags));
        };
    }};
}

use super::{Interrupts, Ipi, Machine, Outcome, Paging, Regs, virt};
use crate::cpu::Cpu;
use crate::memory::Protection;
use crate::task::{self, Task};
use crate::trap;
use core::arch::{asm, global_asm};
use probe_arch_native::backend::regs::CPSR_T;
use probe_core::error::Refusal;

global_asm!(
    include_str!("boot.s"),
    include_str!("entry.s"),
    include_str!("../function.s"),
    include_str!("targets.s"),
    include_str!("../targets.s")
);

/// The machine.
pub struct Arm;

const SYNC: u32 = 1;
const RESCHEDULE: u32 = 2;
/// The virtual timer's private interrupt.
const TIMER: u32 = 27;
/// Between two timer interrupts, in ticks of 16 ns.
const TIMER_TICKS: u32 = 250_000;

/// CPSR: interrupts are masked.
const CPSR_I: u32 = 1 << 7;

impl Paging for Arm {
    // Four entries of the first level are used, of 32 bits of address.
    const LEVELS: &'static [u32] = &[30, 21, 12];

    /// B3.6.2. The attributes are two of those that [`Paging::activate`] sets.
    fn leaf(physical: usize, protection: Protection) -> u64 {
        const PAGE: u64 = 3 | ACCESSED;
        const ACCESSED: u64 = 1 << 10;
        const SHAREABLE: u64 = 3 << 8;
        const DEVICE: u64 = 1 << 2;
        physical as u64
            | match protection {
                Protection::None => 0,
                Protection::ReadOnly => PAGE | SHAREABLE | READ_ONLY | NO_EXECUTE,
                Protection::ReadWrite => PAGE | SHAREABLE | NO_EXECUTE,
                Protection::ReadExecute => PAGE | SHAREABLE | READ_ONLY,
                Protection::Device => PAGE | DEVICE | NO_EXECUTE,
            }
    }

    fn branch(table: usize, _shift: u32) -> u64 {
        table as u64 | 3
    }

    fn table(entry: u64) -> usize {
        (entry & 0xffff_f000) as usize
    }

    fn allows(leaf: u64) -> (bool, bool) {
        (leaf & READ_ONLY == 0, leaf & NO_EXECUTE == 0)
    }

    unsafe fn activate(root: usize) {
        const LARGE_ADDRESSES: u32 = 1 << 31;
        // Attribute 0: normal, write-back; 1: device (B4.1.104).
        mcr!("p15, 0", "c10, c2, 0", 0x04ff);
        // Write-back inner-shareable walks by TTBR0, of all addresses (B4.1.153).
        mcr!("p15, 0", "c2, c0, 2", LARGE_ADDRESSES | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23);
        // SAFETY: the tables are right, as the caller says.
        unsafe {
            asm!("mcrr p15, 0, {}, {}, c2", in(reg) root, in(reg) 0, options(nostack, preserves_flags))
        };
        Self::flush_all();
        // MMU, data and instruction caches, branch prediction.
        mcr!("p15, 0", "c1, c0, 0", mrc!("p15, 0", "c1, c0, 0") | 1 | 1 << 2 | 1 << 11 | 1 << 12);
        Self::synchronise();
    }

    fn flush_all() {
        // TLBIALLIS
        // SAFETY: forgets translations, which are read again.
        unsafe {
            asm!("dsb ishst", "mcr p15, 0, {}, c8, c3, 0", "dsb ish", "isb", in(reg) 0,
                options(nostack, preserves_flags));
        };
    }
}

const READ_ONLY: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 54;

impl Machine for Arm {
    type Backend = probe_arch_native::Native;
    const RAM: (usize, usize) = (0x4000_0000, 0x4400_0000);
    const PAGE_FAULT: u32 = DATA_ABORT;
    const BREAKPOINT: u32 = DEBUG_EVENT;
    // A breakpoint on all addresses but one steps user mode only (C3.3.6), and QEMU 7.2 has none.
    const CAN_STEP: bool = false;
    const DEVICES: &'static [usize] = &[virt::UART, virt::DISTRIBUTOR, virt::INTERFACE];

    fn put_byte(byte: u8) {
        virt::put_byte(byte);
    }

    fn take_byte() -> Option<u8> {
        virt::take_byte()
    }

    fn exit(outcome: Outcome) -> ! {
        unsafe extern "C" {
            fn call_host(call: usize, block: *const [usize; 2]);
        }
        // Semihosting: SYS_EXIT_EXTENDED with ADP_Stopped_ApplicationExit and a status. 33, as on x86: never
        // by accident.
        let block = [0x20026, if outcome == Outcome::Passed { 33 } else { 35 }];
        // SAFETY: ends the machine.
        unsafe { call_host(0x20, &raw const block) };
        loop {
            Self::relax();
        }
    }

    fn relax() {
        // SAFETY: a hint.
        unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
    }

    fn idle() {
        // SAFETY: waits until an interrupt is pending, then lets it in.
        unsafe { asm!("wfi", "cpsie i", options(nostack, preserves_flags)) };
    }

    fn disable_interrupts() -> Interrupts {
        let status: u32;
        // SAFETY: masks interrupts.
        unsafe { asm!("mrs {}, cpsr", "cpsid i", out(reg) status, options(nostack, preserves_flags)) };
        if status & CPSR_I != 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn enable_interrupts() {
        // SAFETY: the caller is ready for them. Not `nomem`: what a lock protects must not move beyond.
        unsafe { asm!("cpsie i", options(nostack, preserves_flags)) };
    }

    fn interrupts_of(regs: &Regs) -> Interrupts {
        if regs.cpsr & CPSR_I != 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn set_interrupts_of(regs: &mut Regs, interrupts: Interrupts) {
        regs.cpsr &= !CPSR_I;
        if interrupts == Interrupts::Disabled {
            regs.cpsr |= CPSR_I;
        }
    }

    fn set_this_cpu(cpu: &'static Cpu) {
        mcr!("p15, 0", "c13, c0, 4", core::ptr::from_ref(cpu).expose_provenance() as u32);
    }

    #[inline(always)]
    fn this_cpu() -> &'static Cpu {
        let cpu: *const Cpu;
        // SAFETY: reads what `set_this_cpu` wrote. Not `nomem`: a task may be on another CPU the next time.
        unsafe {
            asm!("mrc p15, 0, {}, c13, c0, 4", out(reg) cpu, options(readonly, nostack, preserves_flags))
        };
        // SAFETY: areas are never freed.
        unsafe { &*cpu }
    }

    fn set_current(task: *const Task) {
        mcr!("p15, 0", "c13, c0, 3", task.expose_provenance() as u32);
    }

    #[inline(always)]
    fn current() -> *const Task {
        let task: *const Task;
        // SAFETY: reads what `set_current` wrote.
        unsafe {
            asm!("mrc p15, 0, {}, c13, c0, 3", out(reg) task, options(readonly, nostack, preserves_flags))
        };
        task
    }

    fn init_cpu() {
        unsafe extern "C" {
            static vectors: u8;
        }
        mcr!("p15, 0", "c12, c0, 0", (&raw const vectors).addr() as u32);
        enable_floating_point();
        virt::init_interrupts(TIMER);
    }

    fn start_cpu(number: usize, stack_top: usize) {
        const CPU_ON: u32 = 0x8400_0003;
        unsafe extern "C" {
            fn secondary_start();
        }
        let stack = super::stack_with(number, stack_top);
        // The other CPU runs without caches first.
        clean_to_memory(stack);
        // SAFETY: it finds its stack there.
        unsafe {
            asm!(".arch_extension virt", "hvc #0", inout("r0") CPU_ON => _, inout("r1") number => _,
                inout("r2") secondary_start as *const () as usize => _, inout("r3") stack => _, options(nostack));
        }
    }

    fn send_ipi(number: usize, ipi: Ipi) {
        // What was written before must be seen by who is interrupted.
        // SAFETY: a barrier.
        unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
        virt::send_interrupt(number, if ipi == Ipi::Sync { SYNC } else { RESCHEDULE });
    }

    fn start_timer() {
        mcr!("p15, 0", "c14, c3, 0", TIMER_TICKS);
        mcr!("p15, 0", "c14, c3, 1", 1);
    }

    fn synchronise() {
        // SAFETY: a barrier.
        unsafe { asm!("isb", options(nostack, preserves_flags)) };
    }

    fn watchpoints() -> Result<usize, Refusal> {
        Err(Refusal::unsupported(
            "arm.no_step",
            "a watchpoint traps before the access, and nothing steps over that",
        ))
    }

    unsafe fn new_stack(top: usize) -> usize {
        // As `switch_stacks` leaves a stack: r3 to r11, lr.
        let frame = core::ptr::with_exposed_provenance_mut::<[usize; 10]>(top - 40);
        let mut words = [0; 10];
        words[9] = task::first_run as *const () as usize;
        // SAFETY: the caller says that there is room.
        unsafe { frame.write(words) };
        frame.addr()
    }

    fn null_trap(value: usize) -> usize {
        // SAFETY: the handler does nothing; the trap is one of this mode, so that LR is its return address.
        unsafe { asm!("svc #0", out("lr") _, options(nostack, preserves_flags)) };
        value
    }

    fn ticks() -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: reads a counter.
        unsafe {
            asm!("isb", "mrrc p15, 1, {}, {}, c14", out(reg) low, out(reg) high,
                options(nomem, nostack, preserves_flags));
        };
        u64::from(high) << 32 | u64::from(low)
    }

    // 62.5 MHz, and 16 ns per instruction under -icount shift=4.
    const TICKS: (u64, u64) = (1, 1);

    fn now_ns() -> u64 {
        Self::ticks() * 16
    }
}

/// The kernel is built without it; the suite's own assembly is not.
fn enable_floating_point() {
    // CP10 and CP11 (B4.1.40), then FPEXC.EN.
    mcr!("p15, 0", "c1, c0, 2", mrc!("p15, 0", "c1, c0, 2") | 0xf << 20);
    Arm::synchronise();
    // SAFETY: enables instructions.
    unsafe { asm!(".fpu vfpv3", "vmsr fpexc, {}", in(reg) 1 << 30, options(nostack, preserves_flags)) };
}

fn clean_to_memory(addr: usize) {
    // DCCIMVAC
    // SAFETY: the address is mapped.
    unsafe { asm!("mcr p15, 0, {}, c7, c14, 1", "dsb sy", in(reg) addr, options(nostack, preserves_flags)) };
}

/// Traps are numbered by their vectors (B1.8.1), and a debug event by its fault status (B3.13.3).
const UNDEFINED: u32 = 0x04;
const PREFETCH_ABORT: u32 = 0x0c;
const DATA_ABORT: u32 = 0x10;
const DEBUG_EVENT: u32 = 0x22;

/// The status in IFSR or DFSR.
const fn status(register: u32) -> u32 {
    register & 0x3f
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn arm_prefetch_abort(regs: &mut Regs) {
    if status(mrc!("p15, 0", "c5, c0, 1")) == DEBUG_EVENT {
        return trap::breakpoint(regs);
    }
    trap::fault(regs, PREFETCH_ABORT, mrc!("p15, 0", "c6, c0, 2") as usize);
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn arm_data_abort(regs: &mut Regs) {
    trap::fault(regs, DATA_ABORT, mrc!("p15, 0", "c6, c0, 0") as usize);
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn arm_undefined(regs: &mut Regs) {
    if regs.cpsr & CPSR_T != 0 {
        regs.pc += 2;
    }
    trap::fault(regs, UNDEFINED, regs.pc as usize);
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn arm_interrupt(_regs: &mut Regs) {
    match virt::take_interrupt() {
        SYNC => trap::synchronise(),
        RESCHEDULE => trap::reschedule(),
        TIMER => {
            mcr!("p15, 0", "c14, c3, 0", TIMER_TICKS);
            trap::timer();
        }
        // Spurious: it went away.
        _ => {}
    }
}
