//! PC: x86-64 and i386, booted through PVH, with the local APIC for timer and cross-CPU interrupts.

mod apic;
mod debug;
mod idt;
#[cfg(target_arch = "x86_64")]
mod ist;
mod segments;

use super::{Interrupts, Ipi, Machine, Outcome, Paging, Regs};
use crate::cpu::Cpu;
use crate::memory::Protection;
use crate::task::{self, Task};
use crate::watch::Ranges;
#[cfg(target_arch = "x86")]
use core::arch::x86::__cpuid;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::__cpuid;
use core::arch::{asm, global_asm};
use core::mem::offset_of;
use probe_arch_native::Native as Backend;
use probe_arch_native::backend::watch;
use probe_core::WatchRange;
use probe_core::arch::SingleStep as _;
use probe_core::error::Refusal;

#[cfg(target_arch = "x86_64")]
global_asm!(
    include_str!("boot64.s"),
    include_str!("entry64.s"),
    include_str!("../function.s"),
    include_str!("targets64.s"),
    include_str!("../targets.s"),
    options(att_syntax)
);
#[cfg(target_arch = "x86")]
global_asm!(
    include_str!("boot32.s"),
    include_str!("entry32.s"),
    include_str!("mem32.s"),
    include_str!("../function.s"),
    include_str!("targets32.s"),
    include_str!("../targets.s"),
    options(att_syntax)
);
#[cfg(target_arch = "x86_64")]
global_asm!(include_str!("trampoline.s"), ".code64", options(att_syntax));
#[cfg(target_arch = "x86")]
global_asm!(include_str!("trampoline.s"), options(att_syntax));

/// A saved register.
#[cfg(target_arch = "x86_64")]
type Word = u64;
/// A saved register.
#[cfg(target_arch = "x86")]
type Word = u32;

/// A PC.
pub struct X86;

const SERIAL: u16 = 0x3f8;
const LINE_STATUS: u16 = SERIAL + 5;
/// QEMU's isa-debug-exit: the status is (value << 1) | 1.
const EXIT: u16 = 0xf4;
const PIC_MASKS: [u16; 2] = [0x21, 0xa1];
const FLAG_INTERRUPTS: usize = 1 << 9;

unsafe fn outb(port: u16, value: u8) {
    // SAFETY: the caller knows the port.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

unsafe fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: the caller knows the port.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

impl Paging for X86 {
    #[cfg(target_arch = "x86_64")]
    const LEVELS: &'static [u32] = &[39, 30, 21, 12];
    #[cfg(target_arch = "x86")]
    const LEVELS: &'static [u32] = &[30, 21, 12];

    fn leaf(physical: usize, protection: Protection) -> u64 {
        const PRESENT: u64 = 1;
        const WRITABLE: u64 = 1 << 1;
        const UNCACHED: u64 = 1 << 4;
        const NO_EXECUTE: u64 = 1 << 63;
        physical as u64
            | match protection {
                Protection::None => 0,
                Protection::ReadOnly => PRESENT | NO_EXECUTE,
                Protection::ReadWrite => PRESENT | WRITABLE | NO_EXECUTE,
                Protection::ReadExecute => PRESENT,
                Protection::Device => PRESENT | WRITABLE | UNCACHED | NO_EXECUTE,
            }
    }

    fn branch(table: usize, shift: u32) -> u64 {
        // Present and writable; the four root entries of PAE have no writable bit.
        let is_pae_root = cfg!(target_arch = "x86") && shift == Self::LEVELS[0];
        table as u64 | if is_pae_root { 1 } else { 3 }
    }

    fn table(entry: u64) -> usize {
        (entry & 0xffff_f000) as usize
    }

    fn allows(leaf: u64) -> (bool, bool) {
        // R/W and XD; the branches above neither forbid writing nor executing (SDM volume 3, 4.6).
        (leaf & 2 != 0, leaf >> 63 == 0)
    }

    unsafe fn activate(root: usize) {
        // SAFETY: the caller maps everything in use.
        unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
    }

    fn flush_all() {
        // SAFETY: reloads what is there. No page is global.
        unsafe { asm!("mov {t}, cr3", "mov cr3, {t}", t = out(reg) _, options(nostack, preserves_flags)) };
    }
}

/// Counts this CPU's reasons not to switch tasks away, up (`inc`) or down (`dec`), by one instruction.
macro_rules! change_preemption {
    ($insn:literal) => {
        // SAFETY: as for `this_cpu`.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(concat!($insn, " qword ptr gs:[{}]"), const offset_of!(Cpu, preemption_off), options(nostack));
        }
        // SAFETY: as for `this_cpu`.
        #[cfg(target_arch = "x86")]
        unsafe {
            asm!(concat!($insn, " dword ptr fs:[{}]"), const offset_of!(Cpu, preemption_off), options(nostack));
        }
    };
}

impl Machine for X86 {
    type Backend = Backend;
    // Its end, where the image lies; what there is below is not used.
    const RAM: (usize, usize) = (0x3c00_0000, 0x4000_0000);
    const UNUSED: (usize, usize) = (0x100_0000, 0x3c00_0000);
    const PAGE_FAULT: u32 = 14;
    const BREAKPOINT: u32 = 3;
    const DEVICES: &'static [usize] = &[apic::TRAMPOLINE, apic::BASE];

    fn put_byte(byte: u8) {
        // SAFETY: the first serial port.
        while unsafe { inb(LINE_STATUS) } & 0x20 == 0 {}
        // SAFETY: as above; it has room.
        unsafe { outb(SERIAL, byte) };
    }

    fn take_byte() -> Option<u8> {
        // SAFETY: the first serial port.
        if unsafe { inb(LINE_STATUS) } & 1 == 0 {
            return None;
        }
        // SAFETY: as above; a byte waits.
        Some(unsafe { inb(SERIAL) })
    }

    fn exit(outcome: Outcome) -> ! {
        let value = if outcome == Outcome::Passed { 0x10_u32 } else { 0x11 };
        // SAFETY: ends the machine.
        unsafe { asm!("out dx, eax", in("dx") EXIT, in("eax") value, options(nomem, nostack)) };
        loop {
            Self::relax();
        }
    }

    fn relax() {
        core::hint::spin_loop();
    }

    fn idle() {
        // SAFETY: waits for one interrupt. No interrupt comes between the two.
        unsafe { asm!("sti", "hlt", options(nomem, nostack)) };
    }

    fn disable_interrupts() -> Interrupts {
        let flags: usize;
        // SAFETY: reads the flags and clears one.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("pushfq", "pop {}", "cli", out(reg) flags);
        }
        // SAFETY: as above.
        #[cfg(target_arch = "x86")]
        unsafe {
            asm!("pushfd", "pop {}", "cli", out(reg) flags);
        }
        if flags & FLAG_INTERRUPTS == 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn enable_interrupts() {
        // SAFETY: the caller is ready for them. Not `nomem`: what a lock protects must not move beyond.
        unsafe { asm!("sti", options(nostack)) };
    }

    #[inline]
    fn interrupts_of(regs: &Regs) -> Interrupts {
        if regs.eflags as usize & FLAG_INTERRUPTS == 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    #[inline]
    fn set_interrupts_of(regs: &mut Regs, interrupts: Interrupts) {
        regs.eflags &= !(FLAG_INTERRUPTS as Word);
        if interrupts == Interrupts::Enabled {
            regs.eflags |= FLAG_INTERRUPTS as Word;
        }
    }

    fn set_this_cpu(cpu: &'static Cpu) {
        segments::set_base(cpu);
    }

    #[inline(always)]
    fn this_cpu() -> &'static Cpu {
        let cpu: *const Cpu;
        // SAFETY: the segment's base is the CPU's area, which has its own address.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("mov {}, gs:[{}]", out(reg) cpu, const offset_of!(Cpu, this),
                options(nostack, preserves_flags, readonly));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "x86")]
        unsafe {
            asm!("mov {}, fs:[{}]", out(reg) cpu, const offset_of!(Cpu, this),
                options(nostack, preserves_flags, readonly));
        }
        // SAFETY: areas are never freed.
        unsafe { &*cpu }
    }

    fn set_current(task: *const Task) {
        Self::this_cpu().current.set(task);
    }

    #[inline(always)]
    fn current() -> *const Task {
        let task: *const Task;
        // SAFETY: as for `this_cpu`.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("mov {}, gs:[{}]", out(reg) task, const offset_of!(Cpu, current),
                options(nostack, preserves_flags, readonly));
        }
        // SAFETY: as for `this_cpu`.
        #[cfg(target_arch = "x86")]
        unsafe {
            asm!("mov {}, fs:[{}]", out(reg) task, const offset_of!(Cpu, current),
                options(nostack, preserves_flags, readonly));
        }
        task
    }

    // One instruction each, on the CPU's own: no task is switched away from while it is not 0.
    #[inline(always)]
    fn disable_preemption() {
        change_preemption!("inc");
    }

    #[inline(always)]
    fn enable_preemption() {
        change_preemption!("dec");
    }

    fn preemption_off() -> usize {
        Self::this_cpu().preemption_off.get()
    }

    fn init_cpu() {
        idt::load();
        #[cfg(target_arch = "x86_64")]
        ist::init();
        // The interrupt controllers that the APIC replaced would use the vectors of exceptions.
        for port in PIC_MASKS {
            // SAFETY: masks all their interrupts.
            unsafe { outb(port, 0xff) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn own_trap_stacks(is_on: bool) -> bool {
        ist::set(is_on);
        true
    }

    fn start_cpu(number: usize, stack_top: usize) {
        apic::start(number, stack_top);
    }

    fn send_ipi(number: usize, ipi: Ipi) {
        apic::send(
            number,
            match ipi {
                Ipi::Sync => idt::SYNC_VECTOR,
                Ipi::Reschedule => idt::RESCHEDULE_VECTOR,
            },
        );
    }

    fn start_timer() {
        apic::start_timer();
    }

    fn synchronise() {
        // It serialises.
        __cpuid(0);
    }

    #[inline]
    fn begin_step(regs: &mut Regs) -> u32 {
        Self::Backend::begin(regs)
    }

    #[inline]
    fn end_step(regs: &mut Regs, kept: u32) {
        Self::Backend::end(regs, kept);
    }

    fn watchpoints() -> Result<usize, Refusal> {
        Ok(watch::COUNT)
    }

    fn check_watch(range: &WatchRange) -> Result<(), Refusal> {
        watch::check(range)
    }

    fn load_watchpoints(ranges: &Ranges) {
        debug::load(ranges);
    }

    unsafe fn new_stack(top: usize) -> usize {
        // As `switch_stacks` leaves a stack: callee-saved registers, then the return address; at its call the
        // stack would have been aligned.
        const SAVED: usize = if cfg!(target_arch = "x86_64") { 6 } else { 4 };
        let words = core::ptr::with_exposed_provenance_mut::<usize>(top - 4 * size_of::<usize>());
        // SAFETY: the caller says that there is room.
        unsafe { words.write(task::first_run as *const () as usize) };
        // SAFETY: as above.
        let saved = unsafe { words.sub(SAVED) };
        // SAFETY: as above.
        unsafe { saved.write_bytes(0, SAVED) };
        saved.addr()
    }

    fn null_trap(value: usize) -> usize {
        // SAFETY: the vector's handler does nothing.
        unsafe { asm!("int 0x80", options(nostack)) };
        value
    }

    fn ticks() -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: reads a counter.
        unsafe { asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
        u64::from(high) << 32 | u64::from(low)
    }

    const TICKS: (u64, u64) = (1, 1);

    fn now_ns() -> u64 {
        // QEMU's time stamp counter runs at 1 GHz.
        Self::ticks()
    }
}
