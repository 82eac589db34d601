//! QEMU's -M virt: PL011, GICv2, the virtual timer, PSCI.

/// Reads a system register.
macro_rules! mrs {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading it has no effect.
        unsafe { asm!(concat!("mrs {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
        value
    }};
}

/// Writes a system register.
macro_rules! msr {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: the register is this kernel's to set, and the code around says why.
        unsafe { asm!(concat!("msr ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
    }};
}

mod debug;

use super::{Interrupts, Ipi, Machine, Outcome, Paging, Regs, virt};
use crate::cpu::Cpu;
use crate::memory::Protection;
use crate::task::{self, Task};
use crate::trap;
use crate::watch::Ranges;
use core::arch::{asm, global_asm};
use probe_arch_native::backend::watch;
use probe_core::WatchRange;
use probe_core::error::Refusal;

global_asm!(
    include_str!("boot.s"),
    include_str!("entry.s"),
    include_str!("../function.s"),
    include_str!("targets.s"),
    include_str!("../targets.s")
);

/// The machine.
pub struct Aarch64;

const SYNC: u32 = 1;
const RESCHEDULE: u32 = 2;
/// The virtual timer's private interrupt.
const TIMER: u32 = 27;
/// Between two timer interrupts, in ticks of 16 ns.
const TIMER_TICKS: u64 = 250_000;

const PSTATE_I: u64 = 1 << 7;

impl Paging for Aarch64 {
    // 39 bits of address.
    const LEVELS: &'static [u32] = &[30, 21, 12];

    fn leaf(physical: usize, protection: Protection) -> u64 {
        const PAGE: u64 = 3 | ACCESSED;
        const ACCESSED: u64 = 1 << 10;
        const SHAREABLE: u64 = 3 << 8;
        const READ_ONLY: u64 = 2 << 6;
        const DEVICE: u64 = 1 << 2;
        const NO_EXECUTE: u64 = 1 << 53 | 1 << 54;
        const NO_USER_EXECUTE: u64 = 1 << 54;
        physical as u64
            | match protection {
                Protection::None => 0,
                Protection::ReadOnly => PAGE | SHAREABLE | READ_ONLY | NO_EXECUTE,
                Protection::ReadWrite => PAGE | SHAREABLE | NO_EXECUTE,
                Protection::ReadExecute => PAGE | SHAREABLE | READ_ONLY | NO_USER_EXECUTE,
                Protection::Device => PAGE | DEVICE | NO_EXECUTE,
            }
    }

    fn branch(table: usize, _shift: u32) -> u64 {
        table as u64 | 3
    }

    fn table(entry: u64) -> usize {
        (entry & 0xffff_ffff_f000) as usize
    }

    fn allows(leaf: u64) -> (bool, bool) {
        // AP[2] and PXN; the branches above restrict nothing (Arm ARM, D8.4).
        (leaf & 1 << 7 == 0, leaf & 1 << 53 == 0)
    }

    unsafe fn activate(root: usize) {
        // Attribute 0: normal, write-back; 1: device, nGnRE.
        msr!("mair_el1", 0x04ff);
        // 39 bits, write-back inner-shareable walks, 4 KiB, no upper half, 40 bits of physical address.
        msr!("tcr_el1", 25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23 | 2 << 32);
        msr!("ttbr0_el1", root as u64);
        Self::flush_all();
        // MMU, data and instruction caches.
        msr!("sctlr_el1", mrs!("sctlr_el1") | 1 | 1 << 2 | 1 << 12);
        Self::synchronise();
    }

    fn flush_all() {
        // SAFETY: forgets translations, which are read again.
        unsafe { asm!("dsb ishst", "tlbi vmalle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
    }
}

impl Machine for Aarch64 {
    type Backend = probe_arch_native::Native;
    const RAM: (usize, usize) = (0x4000_0000, 0x4400_0000);
    const PAGE_FAULT: u32 = CLASS_DATA_ABORT as u32;
    const BREAKPOINT: u32 = CLASS_BREAKPOINT as u32;
    const DEVICES: &'static [usize] = &[virt::UART, virt::DISTRIBUTOR, virt::INTERFACE];

    fn put_byte(byte: u8) {
        virt::put_byte(byte);
    }

    fn take_byte() -> Option<u8> {
        virt::take_byte()
    }

    fn exit(outcome: Outcome) -> ! {
        // Semihosting: SYS_EXIT with ADP_Stopped_ApplicationExit and a status. 33, as on x86: never by
        // accident.
        let block = [0x20026_u64, if outcome == Outcome::Passed { 33 } else { 35 }];
        // SAFETY: ends the machine.
        unsafe { asm!("hlt #0xf000", in("w0") 0x18, in("x1") &raw const block) };
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
        unsafe { asm!("wfi", "msr daifclr, #2", options(nostack, preserves_flags)) };
    }

    fn disable_interrupts() -> Interrupts {
        let daif = mrs!("daif");
        // SAFETY: masks interrupts.
        unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) };
        if daif & PSTATE_I != 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn enable_interrupts() {
        // SAFETY: the caller is ready for them. Not `nomem`: what a lock protects must not move beyond.
        unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) };
    }

    fn interrupts_of(regs: &Regs) -> Interrupts {
        if regs.pstate & PSTATE_I != 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn set_interrupts_of(regs: &mut Regs, interrupts: Interrupts) {
        regs.pstate &= !PSTATE_I;
        if interrupts == Interrupts::Disabled {
            regs.pstate |= PSTATE_I;
        }
    }

    fn set_this_cpu(cpu: &'static Cpu) {
        msr!("tpidr_el1", core::ptr::from_ref(cpu).expose_provenance() as u64);
    }

    #[inline(always)]
    fn this_cpu() -> &'static Cpu {
        let cpu: *const Cpu;
        // SAFETY: reads what `set_this_cpu` wrote. Not `nomem`: a task may be on another CPU the next time.
        unsafe { asm!("mrs {}, tpidr_el1", out(reg) cpu, options(readonly, nostack, preserves_flags)) };
        // SAFETY: areas are never freed.
        unsafe { &*cpu }
    }

    fn set_current(task: *const Task) {
        msr!("sp_el0", task.expose_provenance() as u64);
    }

    #[inline(always)]
    fn current() -> *const Task {
        let task: *const Task;
        // SAFETY: reads what `set_current` wrote; SP_EL0 has no other use.
        unsafe { asm!("mrs {}, sp_el0", out(reg) task, options(readonly, nostack, preserves_flags)) };
        task
    }

    fn init_cpu() {
        unsafe extern "C" {
            static vectors: u8;
        }
        msr!("vbar_el1", (&raw const vectors).addr() as u64);
        debug::init_cpu();
        Self::synchronise();
        virt::init_interrupts(TIMER);
        // From here on this CPU runs with debug exceptions, but for its traps.
        // SAFETY: they are handled.
        unsafe { asm!("msr daifclr, #8", options(nostack, preserves_flags)) };
    }

    fn start_cpu(number: usize, stack_top: usize) {
        const CPU_ON: u64 = 0xc400_0003;
        unsafe extern "C" {
            fn secondary_start();
        }
        let stack = super::stack_with(number, stack_top);
        // It reads the number with its MMU and caches off.
        Self::clean_to_memory(stack);
        // SAFETY: PSCI starts the CPU at code made for that.
        unsafe {
            asm!("hvc #0", inout("x0") CPU_ON => _, in("x1") number, in("x2") secondary_start as *const () as usize,
                in("x3") stack, clobber_abi("C"));
        }
    }

    fn send_ipi(number: usize, ipi: Ipi) {
        // What was written before must be seen by who is interrupted.
        // SAFETY: a barrier.
        unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
        virt::send_interrupt(number, if ipi == Ipi::Sync { SYNC } else { RESCHEDULE });
    }

    fn start_timer() {
        msr!("cntv_tval_el0", TIMER_TICKS);
        msr!("cntv_ctl_el0", 1);
    }

    fn synchronise() {
        // SAFETY: a barrier.
        unsafe { asm!("isb", options(nostack, preserves_flags)) };
    }

    #[inline]
    fn begin_step(regs: &mut Regs) -> u32 {
        debug::begin_step(regs)
    }

    #[inline]
    fn end_step(regs: &mut Regs, kept: u32) {
        debug::end_step(regs, kept);
    }

    fn watchpoints() -> Result<usize, Refusal> {
        Ok(debug::count())
    }

    fn check_watch(range: &WatchRange) -> Result<(), Refusal> {
        watch::check(range)
    }

    fn load_watchpoints(ranges: &Ranges) {
        debug::load(ranges);
    }

    unsafe fn new_stack(top: usize) -> usize {
        // As `switch_stacks` leaves a stack: x29, x30, x19 to x28.
        let frame = core::ptr::with_exposed_provenance_mut::<[usize; 12]>(top - 96);
        let mut words = [0; 12];
        words[1] = task::first_run as *const () as usize;
        // SAFETY: the caller says that there is room.
        unsafe { frame.write(words) };
        frame.addr()
    }

    fn null_trap(value: usize) -> usize {
        // SAFETY: the handler does nothing.
        unsafe { asm!("svc #0", options(nostack, preserves_flags)) };
        value
    }

    fn ticks() -> u64 {
        let ticks: u64;
        // SAFETY: reads a counter.
        unsafe {
            asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }

    // 62.5 MHz, and 16 ns per instruction under -icount shift=4.
    const TICKS: (u64, u64) = (1, 1);

    fn now_ns() -> u64 {
        Self::ticks() * 16
    }
}

impl Aarch64 {
    fn clean_to_memory(addr: usize) {
        // SAFETY: the address is mapped.
        unsafe { asm!("dc civac, {}", "dsb sy", in(reg) addr, options(nostack, preserves_flags)) };
    }
}

/// The exception class of a BRK.
const CLASS_BREAKPOINT: u64 = 0x3c;
/// The exception class of an SVC: it does nothing.
const CLASS_SUPERVISOR_CALL: u64 = 0x15;
/// The exception class of a data abort without a change of exception level.
const CLASS_DATA_ABORT: u64 = 0x25;

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn aarch64_synchronous(regs: &mut Regs, syndrome: u64) {
    // By itself: asked first.
    if syndrome >> 26 == CLASS_BREAKPOINT {
        return trap::breakpoint(regs);
    }
    match syndrome >> 26 {
        debug::CLASS_STEP => debug::step(regs),
        debug::CLASS_WATCHPOINT => debug::watchpoint(regs),
        CLASS_SUPERVISOR_CALL => {}
        CLASS_DATA_ABORT => {
            let addr = mrs!("far_el1") as usize;
            debug::abort(regs);
            trap::fault(regs, CLASS_DATA_ABORT as u32, addr);
        }
        class => {
            debug::abort(regs);
            trap::fault(regs, class as u32, regs.pc as usize);
        }
    }
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn aarch64_interrupt(_regs: &mut Regs) {
    // Interrupt handlers' references to watched memory are seen; the entry code's are not.
    // SAFETY: lets debug exceptions in.
    unsafe { asm!("msr daifclr, #8", options(nostack, preserves_flags)) };
    handle_interrupt();
    // SAFETY: masks them again.
    unsafe { asm!("msr daifset, #8", options(nostack, preserves_flags)) };
}

fn handle_interrupt() {
    match virt::take_interrupt() {
        SYNC => trap::synchronise(),
        RESCHEDULE => trap::reschedule(),
        TIMER => {
            msr!("cntv_tval_el0", TIMER_TICKS);
            trap::timer();
        }
        // Spurious: it went away.
        _ => {}
    }
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn aarch64_unexpected(regs: &mut Regs, syndrome: u64) -> ! {
    panic!("unexpected exception, syndrome {syndrome:#x}: {regs:#x?}");
}
