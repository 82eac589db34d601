//! QEMU's -M pseries, little-endian (ELFv2) and big-endian (ELFv1): hypervisor calls, XICS, the decrementer,
//! radix paging.

mod hypervisor;

use super::{Interrupts, Ipi, Machine, Outcome, Paging, Regs, asked};
use crate::cpu::Cpu;
use crate::memory::Protection;
use crate::task::{self, Task};
use crate::trap;
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use hypervisor as hv;
use probe_core::CodeAddr;
use probe_core::arch::NativeArch;
use probe_core::arch::SingleStep as _;
use probe_core::error::Refusal;

global_asm!(
    include_str!("function.s"),
    include_str!("boot.s"),
    include_str!("entry.s"),
    include_str!("mem.s"),
    include_str!("targets.s"),
    include_str!("../targets.s"),
    little = const cfg!(target_endian = "little") as i32,
    elfv1 = const cfg!(target_endian = "big") as i32,
);

/// The machine.
pub struct Ppc64;

const MSR_EE: u64 = 1 << 15;
/// Instruction and data translation.
const MSR_TRANSLATION: u64 = 3 << 4;
/// Between two timer interrupts, in ticks of the 512 MHz time base.
const TIMER_TICKS: u64 = 2_048_000;

const VECTORS: [usize; 14] =
    [0x200, 0x300, 0x380, 0x400, 0x480, 0x500, 0x600, 0x700, 0x800, 0x900, 0xc00, 0xd00, 0xf20, 0xf40];
const DATA_STORAGE: u32 = 0x300;
const DATA_SEGMENT: u32 = 0x380;
const EXTERNAL: u32 = 0x500;
const PROGRAM: u32 = 0x700;
const DECREMENTER: u32 = 0x900;
const TRACE: u32 = 0xd00;
/// It does nothing.
const SYSTEM_CALL: u32 = 0xc00;

/// Reads a special register.
macro_rules! mfspr {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading it has no effect.
        unsafe { asm!(concat!($name, " {}"), out(reg) value, options(nostack, preserves_flags)) };
        value
    }};
}

/// Writes a special register.
macro_rules! mtspr {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: the register is this kernel's to set, and the code around says why.
        unsafe { asm!(concat!($name, " {}"), in(reg) value, options(nostack, preserves_flags)) };
    }};
}

/// The process table: only process 0 is used. As large as it is aligned.
#[repr(C, align(65536))]
struct ProcessTable(UnsafeCell<[u64; 8192]>);

// SAFETY: written once, by the boot CPU.
unsafe impl Sync for ProcessTable {}

static PROCESS_TABLE: ProcessTable = ProcessTable(UnsafeCell::new([0; 8192]));

impl Paging for Ppc64 {
    const LEVELS: &'static [u32] = &[39, 30, 21, 12];
    // The root has 13 bits of index; ours uses the first 512 entries.
    const ROOT_TABLES: usize = 16;

    fn leaf(physical: usize, protection: Protection) -> u64 {
        // Valid, leaf, referenced, changed, privileged.
        const PAGE: u64 = 3 << 62 | 0x180 | 8;
        const READ: u64 = 4;
        const WRITE: u64 = 2;
        const EXECUTE: u64 = 1;
        let bits = match protection {
            Protection::None => return 0,
            Protection::ReadOnly => READ,
            Protection::ReadWrite | Protection::Device => READ | WRITE,
            Protection::ReadExecute => READ | EXECUTE,
        };
        (PAGE | physical as u64 | bits).to_be()
    }

    fn branch(table: usize, _shift: u32) -> u64 {
        (1 << 63 | table as u64 | 9).to_be()
    }

    fn table(entry: u64) -> usize {
        (u64::from_be(entry) & 0x00ff_ffff_ffff_f000) as usize
    }

    fn allows(leaf: u64) -> (bool, bool) {
        // The encoded access authority (Power ISA 3.1, book III, 6.7.10.2).
        let leaf = u64::from_be(leaf);
        (leaf & 2 != 0, leaf & 1 != 0)
    }

    unsafe fn activate(root: usize) {
        let table = PROCESS_TABLE.0.get().cast::<u64>();
        // SAFETY: see `ProcessTable`.
        if unsafe { table.read_volatile() } == 0 {
            // A 52-bit tree whose root has 13 bits of index.
            let entry = 5 << 5 | 2 << 61 | root as u64 | 13;
            // SAFETY: as above.
            unsafe { table.write_volatile(entry.to_be()) };
            const RADIX: u64 = 0x1d;
            let (status, ..) =
                hv::call(hv::H_REGISTER_PROC_TBL, [RADIX, table.expose_provenance() as u64, 0, 4]);
            assert_eq!(status, 0, "no radix tree on this machine");
        }
        // Process 0.
        mtspr!("mtspr 48,", 0);
        Self::synchronise();
        mtspr!("mtmsrd", mfspr!("mfmsr") | MSR_TRANSLATION);
        Self::synchronise();
    }

    fn flush_all() {
        // tlbie with IS = process, RIC = all, PRS = process, R = radix. Power ISA 3.1, Book III, 6.9.3.3.
        // SAFETY: forgets translations, which are read again.
        unsafe {
            asm!("ptesync", ".long 0x7c0b0264 | (6 << 21) | (5 << 11)", "eieio", "tlbsync", "ptesync",
                in("r5") 1 << 10, in("r6") 0, options(nostack, preserves_flags));
        }
    }
}

impl Machine for Ppc64 {
    type Backend = probe_arch_native::Native;
    const RAM: (usize, usize) = (0, 64 << 20);
    const PAGE_FAULT: u32 = DATA_STORAGE;
    const BREAKPOINT: u32 = PROGRAM;
    const DEVICES: &'static [usize] = &[];

    fn put_byte(byte: u8) {
        const BUSY: u64 = 1;
        while hv::call(hv::H_PUT_TERM_CHAR, [0, 1, u64::from(byte) << 56, 0]).0 == BUSY {}
    }

    fn take_byte() -> Option<u8> {
        // One character at a time could be lost: the call gives up to 16.
        static WAITING: crate::lock::SpinLock<(u64, u64)> = crate::lock::SpinLock::new((0, 0));
        let mut waiting = WAITING.lock();
        if waiting.0 == 0 {
            // The results' third word does not come back through `call`: 8 characters are enough for a
            // person.
            let (_, len, bytes) = hv::call(hv::H_GET_TERM_CHAR, [0; 4]);
            *waiting = (len.min(8), bytes);
        }
        if waiting.0 == 0 {
            return None;
        }
        let byte = (waiting.1 >> 56) as u8;
        *waiting = (waiting.0 - 1, waiting.1 << 8);
        Some(byte)
    }

    fn exit(outcome: Outcome) -> ! {
        match outcome {
            Outcome::Passed => hv::rtas(hv::RTAS_POWER_OFF, &[0, 0]),
            Outcome::Failed => hv::rtas(hv::RTAS_OS_TERM, &[0]),
        }
        loop {
            Self::relax();
        }
    }

    fn relax() {
        // Very low priority makes QEMU run another CPU; then back to medium.
        // SAFETY: hints.
        unsafe { asm!("or 31,31,31", "or 2,2,2", options(nomem, nostack, preserves_flags)) };
    }

    fn idle() {
        hv::call(hv::H_CEDE, [0; 4]);
        Self::enable_interrupts();
    }

    fn disable_interrupts() -> Interrupts {
        let msr = mfspr!("mfmsr");
        mtspr!("mtmsrd", msr & !MSR_EE);
        if msr & MSR_EE == 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn enable_interrupts() {
        mtspr!("mtmsrd", mfspr!("mfmsr") | MSR_EE);
    }

    fn interrupts_of(regs: &Regs) -> Interrupts {
        if regs.msr & MSR_EE == 0 { Interrupts::Disabled } else { Interrupts::Enabled }
    }

    fn set_interrupts_of(regs: &mut Regs, interrupts: Interrupts) {
        regs.msr &= !MSR_EE;
        if interrupts == Interrupts::Enabled {
            regs.msr |= MSR_EE;
        }
    }

    fn set_this_cpu(cpu: &'static Cpu) {
        // r13 is the thread pointer, which compiled code leaves alone.
        // SAFETY: this kernel has no thread-local variables.
        unsafe { asm!("mr 13, {}", in(reg) cpu, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    fn this_cpu() -> &'static Cpu {
        let cpu: *const Cpu;
        // SAFETY: reads what `set_this_cpu` wrote. Not `nomem`: a task may be on another CPU the next time.
        unsafe { asm!("mr {}, 13", out(reg) cpu, options(readonly, nostack, preserves_flags)) };
        // SAFETY: areas are never freed.
        unsafe { &*cpu }
    }

    fn set_current(task: *const Task) {
        Self::this_cpu().current.set(task);
    }

    #[inline(always)]
    fn current() -> *const Task {
        let task: *const Task;
        // SAFETY: the area is this CPU's.
        unsafe {
            asm!("ld {}, {}(13)", out(reg) task, const offset_of!(Cpu, current),
                options(readonly, nostack, preserves_flags));
        }
        task
    }

    fn init_cpu() {
        // What trap entry takes as its own.
        mtspr!("mtsprg 2,", mfspr!("mfmsr") & !MSR_EE | MSR_TRANSLATION);
        if Self::this_cpu().number == 0 {
            install_vectors();
        }
        mtspr!("mtdec", 0x7fff_ffff);
        hv::call(hv::H_CPPR, [0xff, 0, 0, 0]);
    }

    fn start_cpu(number: usize, stack_top: usize) {
        unsafe extern "C" {
            static secondary_start: u8;
        }
        let stack = super::stack_with(number, stack_top);
        let entry = (&raw const secondary_start).addr();
        hv::rtas(hv::RTAS_START_CPU, &[number as u32, entry as u32, stack as u32]);
    }

    fn send_ipi(number: usize, ipi: Ipi) {
        asked::ask(number, ipi);
        const PRIORITY: u64 = 4;
        hv::call(hv::H_IPI, [number as u64, PRIORITY, 0, 0]);
    }

    fn start_timer() {
        mtspr!("mtdec", TIMER_TICKS);
    }

    fn synchronise() {
        // SAFETY: a barrier.
        unsafe { asm!("isync", options(nostack, preserves_flags)) };
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
        // QEMU 7.2 answers H_SET_DABR and H_SET_XDABR with H_HARDWARE, and H_SET_MODE for DAWR0 with H_P2.
        Err(Refusal::unsupported(
            "pseries.no_watchpoints",
            "the hypervisor of this machine gives no data address watchpoint",
        ))
    }

    unsafe fn new_stack(top: usize) -> usize {
        unsafe extern "C" {
            static task_start: u8;
        }
        // As `switch_stacks` leaves a stack: a frame of 36 words, whose caller's frame holds the return
        // address.
        const FRAME_WORDS: usize = 36;
        let caller = core::ptr::with_exposed_provenance_mut::<usize>(top - 512);
        // SAFETY: the caller says that there is room. The third word is the return address.
        let return_address = unsafe { caller.add(2) };
        // SAFETY: as above.
        unsafe { return_address.write((&raw const task_start).addr()) };
        // SAFETY: as above.
        unsafe { caller.sub(FRAME_WORDS) }.addr()
    }

    fn null_trap(value: usize) -> usize {
        // SAFETY: the handler does nothing.
        unsafe { asm!("sc", options(nostack, preserves_flags)) };
        value
    }

    fn ticks() -> u64 {
        mfspr!("mftb")
    }

    // 512 MHz, and 16 ns per instruction under -icount shift=4.
    const TICKS: (u64, u64) = (8192, 1000);

    fn now_ns() -> u64 {
        Self::ticks() * 125 / 64
    }
}

/// Copies the entry stubs to the vectors; translation is off.
fn install_vectors() {
    unsafe extern "C" {
        static vector_start: u32;
        static vector_number: u32;
        static vector_branch: u32;
        static vector_end: u32;
        static program_vector: u32;
        static trap_entry: u32;
        static program_entry: u32;
    }
    if cfg!(target_endian = "little") {
        const LITTLE: u64 = 1;
        const INTERRUPT_ENDIAN: u64 = 4;
        hv::call(hv::H_SET_MODE, [LITTLE, INTERRUPT_ENDIAN, 0, 0]);
    }
    let start = &raw const vector_start;
    let index_of = |label: *const u32| (label.addr() - start.addr()) / 4;
    let (number, branch) = (index_of(&raw const vector_number), index_of(&raw const vector_branch));
    let len = index_of(&raw const vector_end);
    let entry = (&raw const trap_entry).addr();
    for vector in VECTORS.into_iter().filter(|vector| *vector != PROGRAM as usize) {
        // `li` has its operand in the low half.
        install(vector, start, len, &[(number, vector as u32), (branch, absolute_branch(entry))]);
    }
    let entry = (&raw const program_entry).addr();
    install(PROGRAM as usize, &raw const program_vector, 1, &[(0, absolute_branch(entry))]);
}

/// What an absolute branch to `to` has in place of its low bits.
fn absolute_branch(to: usize) -> u32 {
    assert!(to < 1 << 25, "it is out of an absolute branch's reach");
    to as u32
}

/// Copies the `len` words at `stub` to `vector` and sets bits in some of them: (number of the word, bits).
fn install(vector: usize, stub: *const u32, len: usize, bits: &[(usize, u32)]) {
    let to = core::ptr::with_exposed_provenance_mut::<u32>(vector);
    // SAFETY: a stub's own words, copied to the CPU's vector, which has room for 8.
    unsafe { to.copy_from_nonoverlapping(stub, len) };
    for &(word, bits) in bits {
        // SAFETY: one of them.
        let at = unsafe { to.add(word) };
        // SAFETY: copied just now.
        let insn = unsafe { at.read_volatile() };
        // SAFETY: the same word.
        unsafe { at.write_volatile(insn | bits) };
    }
    // SAFETY: just written.
    unsafe { <Ppc64 as Machine>::Backend::publish(CodeAddr::new(vector), len * 4) };
}

fn take_interrupt() {
    const IPI: u64 = 2;
    const NO_PRIORITY: u64 = 0xff;
    let me = Ppc64::this_cpu().number;
    let (_, taken, _) = hv::call(hv::H_XIRR, [0; 4]);
    if taken & 0xff_ffff == IPI {
        hv::call(hv::H_IPI, [me as u64, NO_PRIORITY, 0, 0]);
    }
    hv::call(hv::H_EOI, [taken, 0, 0, 0]);
    asked::answer();
}

/// A trap instruction.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn ppc64_breakpoint(regs: &mut Regs) {
    trap::breakpoint(regs);
}

/// All other interrupts.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn ppc64_trap(regs: &mut Regs, vector: u32) {
    match vector {
        TRACE => trap::step(regs, TRACE),
        SYSTEM_CALL => {}
        EXTERNAL => take_interrupt(),
        DECREMENTER => {
            mtspr!("mtdec", TIMER_TICKS);
            trap::timer();
        }
        DATA_STORAGE | DATA_SEGMENT => trap::fault(regs, vector, mfspr!("mfdar") as usize),
        _ => trap::fault(regs, vector, regs.nip as usize),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ppc64_first_run() -> ! {
    task::first_run()
}
