//! The crate `kprobe`, whose host is this process: breakpoint, handler, single step of a copy, end of the
//! step. Its two entry points are called by a SIGTRAP handler, as the trap code of a kernel would.

use kprobe::retprobe::RetprobeInstance;
use kprobe::{
    Kprobe, KprobeAuxiliaryOps, ProbeBuilder, ProbeData, ProbeManager, ProbePointList, PtRegs,
    kprobe_handler_from_break, kprobe_handler_from_debug, register_kprobe, unregister_kprobe,
};
use parking_lot::{Mutex, RawMutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static HITS: AtomicU64 = AtomicU64::new(0);

static MANAGER: ProbeManager<RawMutex, Process> = ProbeManager::new();

/// Its points, and the probe.
type Planted = (ProbePointList<Process>, Arc<Kprobe<RawMutex, Process>>);

static PLANTED: Mutex<Option<Planted>> = Mutex::new(None);

const PAGE: usize = 4096;

/// What the crate asks of its host.
#[derive(Debug)]
struct Process;

impl KprobeAuxiliaryOps for Process {
    fn copy_memory(from: *const u8, to: *mut u8, len: usize, _process: Option<i32>) {
        // SAFETY: the crate copies from the text that it was given to memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }

    fn set_writeable_for_address<F: FnOnce(*mut u8)>(
        address: usize,
        len: usize,
        _process: Option<i32>,
        write: F,
    ) {
        let start = address & !(PAGE - 1);
        let len = address + len - start;
        let protect = |protection| {
            // SAFETY: the pages are text that only changes what may be done with it.
            let result = unsafe { libc::mprotect(start as *mut libc::c_void, len, protection) };
            assert_eq!(result, 0, "text cannot be made writable");
        };
        protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        write(address as *mut u8);
        protect(libc::PROT_READ | libc::PROT_EXEC);
    }

    fn alloc_kernel_exec_memory() -> *mut u8 {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, where nothing is.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED, "no executable memory");
        page.cast()
    }

    fn free_kernel_exec_memory(page: *mut u8) {
        // SAFETY: the crate gives back what `alloc_kernel_exec_memory` gave it.
        let _ = unsafe { libc::munmap(page.cast(), PAGE) };
    }

    fn alloc_user_exec_memory<F: FnOnce(*mut u8)>(_process: Option<i32>, _fill: F) -> *mut u8 {
        unreachable!("there are no probes of other processes")
    }

    fn free_user_exec_memory(_process: Option<i32>, _page: *mut u8) {
        unreachable!("there are no probes of other processes")
    }

    fn insert_kretprobe_instance_to_task(_instance: RetprobeInstance) {
        unreachable!("there are no return probes")
    }

    fn pop_kretprobe_instance_from_task() -> RetprobeInstance {
        unreachable!("there are no return probes")
    }
}

fn on_hit(_data: &dyn ProbeData, _registers: &mut PtRegs) {
    HITS.fetch_add(1, Relaxed);
}

/// Puts a probe on the instruction at `place`: 0 if that worked.
///
/// # Safety
/// An instruction starts there, and nobody runs in it.
#[unsafe(no_mangle)]
unsafe extern "C" fn peer_kprobe_plant(place: usize) -> i32 {
    let builder = ProbeBuilder::<Process>::new().with_symbol_addr(place).with_enable(true);
    let mut points = ProbePointList::new();
    match register_kprobe(&MANAGER, &mut points, builder.with_pre_handler(on_hit)) {
        Ok(probe) => {
            *PLANTED.lock() = Some((points, probe));
            0
        }
        Err(error) => {
            eprintln!("kprobe: {error:?}");
            1
        }
    }
}

/// How often the probe was hit.
#[unsafe(no_mangle)]
extern "C" fn peer_kprobe_hits() -> u64 {
    HITS.load(Relaxed)
}

/// Takes the probe away. Nobody runs at its place.
#[unsafe(no_mangle)]
extern "C" fn peer_kprobe_remove() {
    if let Some((mut points, probe)) = PLANTED.lock().take() {
        unregister_kprobe(&MANAGER, &mut points, probe);
    }
}

/// What has to be SIGTRAP's handler while the probe is hit.
///
/// # Safety
/// The kernel calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn peer_kprobe_on_trap(
    _signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes this thread's own frame, which nobody else sees.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: as above.
    let is_step = unsafe { (*info).si_code } == libc::TRAP_TRACE;
    let saved = &mut context.uc_mcontext.gregs;
    let mut registers = registers(saved);
    let known = if is_step {
        kprobe_handler_from_debug(&MANAGER, &mut registers)
    } else {
        kprobe_handler_from_break(&MANAGER, &mut registers)
    };
    if known.is_none() {
        std::process::abort();
    }
    put_back(&registers, saved);
}

type Saved = [libc::greg_t; 23];

fn registers(saved: &Saved) -> PtRegs {
    let register = |number: i32| saved[number as usize] as usize;
    PtRegs {
        r15: register(libc::REG_R15),
        r14: register(libc::REG_R14),
        r13: register(libc::REG_R13),
        r12: register(libc::REG_R12),
        rbp: register(libc::REG_RBP),
        rbx: register(libc::REG_RBX),
        r11: register(libc::REG_R11),
        r10: register(libc::REG_R10),
        r9: register(libc::REG_R9),
        r8: register(libc::REG_R8),
        rax: register(libc::REG_RAX),
        rcx: register(libc::REG_RCX),
        rdx: register(libc::REG_RDX),
        rsi: register(libc::REG_RSI),
        rdi: register(libc::REG_RDI),
        orig_rax: usize::MAX,
        rip: register(libc::REG_RIP),
        cs: register(libc::REG_CSGSFS) & 0xffff,
        rflags: register(libc::REG_EFL),
        rsp: register(libc::REG_RSP),
        ss: register(libc::REG_CSGSFS) >> 48,
    }
}

fn put_back(registers: &PtRegs, saved: &mut Saved) {
    for (number, value) in [
        (libc::REG_R15, registers.r15),
        (libc::REG_R14, registers.r14),
        (libc::REG_R13, registers.r13),
        (libc::REG_R12, registers.r12),
        (libc::REG_RBP, registers.rbp),
        (libc::REG_RBX, registers.rbx),
        (libc::REG_R11, registers.r11),
        (libc::REG_R10, registers.r10),
        (libc::REG_R9, registers.r9),
        (libc::REG_R8, registers.r8),
        (libc::REG_RAX, registers.rax),
        (libc::REG_RCX, registers.rcx),
        (libc::REG_RDX, registers.rdx),
        (libc::REG_RSI, registers.rsi),
        (libc::REG_RDI, registers.rdi),
        (libc::REG_RIP, registers.rip),
        (libc::REG_EFL, registers.rflags),
        (libc::REG_RSP, registers.rsp),
    ] {
        saved[number as usize] = value as libc::greg_t;
    }
}
