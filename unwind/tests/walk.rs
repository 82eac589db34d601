//! Walks of this process' own stacks, compared with libgcc's: at every instruction of calls through libc, in
//! handlers of signals, and from registers that nobody should have.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use probe_core::arch::{Access, MemFault, Memory};
use probe_unwind::walk::{EXACT, End, Object, Registers, Walker};
use probe_unwind::x86::FRAMES as X86_64;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// This process' memory, read by a system call, which does not fault.
struct Own;

// SAFETY: nothing is touched but what the kernel finds readable.
unsafe impl Memory for Own {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: out.len() };
        let own = std::process::id().cast_signed();
        // SAFETY: one buffer of ours, and addresses that the kernel checks.
        let read = unsafe { libc::process_vm_readv(own, &local, 1, &remote, 1, 0) };
        if read == out.len() as isize { Ok(()) } else { Err(MemFault { addr, access: Access::Read }) }
    }

    fn write(&self, addr: usize, _: &[u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Write })
    }
}

unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, all: *mut c_void) -> c_int {
    // SAFETY: the list of `walker`, which nobody else uses meanwhile.
    let all = unsafe { &mut *all.cast::<Vec<Object>>() };
    // SAFETY: the loader passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: the loader's table of program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let at = |header: &libc::Elf64_Phdr| info.dlpi_addr as usize + header.p_vaddr as usize;
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let header = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    if let (Some(header), Some(start), Some(end)) =
        (header, loaded().map(at).min(), loaded().map(|header| at(header) + header.p_memsz as usize).max())
    {
        all.push(Object { start, end, header: at(header), header_len: header.p_memsz as usize });
    }
    0
}

fn walker() -> &'static Walker {
    static WALKER: OnceLock<&Walker> = OnceLock::new();
    static PLACE: Walker = Walker::new(&X86_64);
    WALKER.get_or_init(|| {
        let mut all: Vec<Object> = Vec::new();
        // SAFETY: `add` takes what it is given here.
        unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut all).cast()) };
        PLACE.set_objects(&all);
        &PLACE
    })
}

/// The registers of a context, by DWARF's numbers.
fn registers(context: *mut c_void) -> Registers {
    #[rustfmt::skip]
    const IN_ORDER: [c_int; 16] = [
        libc::REG_RAX, libc::REG_RDX, libc::REG_RCX, libc::REG_RBX, libc::REG_RSI, libc::REG_RDI, libc::REG_RBP,
        libc::REG_RSP, libc::REG_R8, libc::REG_R9, libc::REG_R10, libc::REG_R11, libc::REG_R12, libc::REG_R13,
        libc::REG_R14, libc::REG_R15,
    ];
    // SAFETY: the kernel passes a context to a handler with SA_SIGINFO.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let word = |register: c_int| context.uc_mcontext.gregs[register as usize] as usize;
    let mut registers = Registers::new(word(libc::REG_RIP));
    for (number, register) in (0..).zip(IN_ORDER) {
        registers.set(&X86_64, number, word(register));
    }
    registers.set(&X86_64, 16, word(libc::REG_RIP));
    registers
}

/// Without memory of its own: it may run within `malloc`.
fn walk_into<'a>(registers: &Registers, frames: &'a mut [u64; 128]) -> (&'a [u64], End) {
    let walked = walker().walk(registers, true, &Own, |addr| addr, frames);
    (&frames[..walked.len], walked.end)
}

fn walk(registers: &Registers) -> (Vec<u64>, End) {
    let mut frames = [0; 128];
    let (frames, end) = walk_into(registers, &mut frames);
    (frames.to_vec(), end)
}

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C" fn note(context: *mut c_void, all: *mut c_void) -> c_int {
    // SAFETY: the list of `by_libgcc`, which nobody else uses meanwhile.
    let all = unsafe { &mut *all.cast::<Vec<u64>>() };
    // SAFETY: the context that libgcc passes.
    all.push(unsafe { _Unwind_GetIP(context) } as u64);
    0
}

/// The frames from this function on, as libgcc sees them.
#[inline(never)]
fn by_libgcc() -> Vec<u64> {
    let mut all: Vec<u64> = Vec::new();
    // SAFETY: `note` takes what it is given here.
    unsafe { _Unwind_Backtrace(note, (&raw mut all).cast()) };
    all.retain(|ip| *ip != 0);
    all
}

fn handle(signal: c_int, handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void), flags: c_int) {
    // SAFETY: a `sigaction` is plain numbers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    // SAFETY: a handler of the right kind.
    assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
}

/// One test at a time has signals.
static SIGNALS: Mutex<()> = Mutex::new(());

static STEPPED: AtomicBool = AtomicBool::new(false);
static STEPS: AtomicUsize = AtomicUsize::new(0);
/// The frames that every walk has to end with.
static TAIL: OnceLock<Vec<u64>> = OnceLock::new();
static WRONG: Mutex<Option<([u64; 128], usize, End)>> = Mutex::new(None);

/// The trap flag.
const TF: i64 = 1 << 8;

extern "C" fn step(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    if !STEPPED.load(Ordering::Relaxed) {
        // SAFETY: the kernel passes a context to a handler with SA_SIGINFO.
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize] &= !TF };
        return;
    }
    STEPS.fetch_add(1, Ordering::Relaxed);
    let mut room = [0; 128];
    let (frames, end) = walk_into(&registers(context), &mut room);
    let tail = TAIL.get().map_or(&[][..], Vec::as_slice);
    if !frames.ends_with(tail) || end != End::Outermost {
        // The thread that is interrupted never has this lock.
        if let Ok(mut wrong) = WRONG.try_lock() {
            let len = frames.len();
            wrong.get_or_insert((room, len, end));
        }
    }
}

extern "C" fn begin(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: as above.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize] |= TF };
}

extern "C" fn compare(a: *const c_void, b: *const c_void) -> c_int {
    // SAFETY: an element of the array of `work`.
    let a = unsafe { a.cast::<u32>().read() };
    // SAFETY: as above.
    let b = unsafe { b.cast::<u32>().read() };
    a.cmp(&b) as c_int
}

/// Calls into libc that call back, copy, format, ask the vDSO, allocate.
#[inline(never)]
fn work(depth: usize) -> usize {
    if depth > 0 {
        return work(depth - 1).wrapping_mul(3) + depth;
    }
    let mut words: Vec<u32> = (0..8_u32).map(|word| word.wrapping_mul(2_654_435_761)).collect();
    // SAFETY: so many elements of that size, and a function that compares them.
    unsafe { libc::qsort(words.as_mut_ptr().cast(), words.len(), 4, Some(compare)) };
    let mut text = [0_u8; 64];
    // SAFETY: a buffer with its length, and a format with its arguments.
    unsafe {
        libc::snprintf(
            text.as_mut_ptr().cast(),
            text.len(),
            c"%d %s %f".as_ptr(),
            42,
            c"word".as_ptr(),
            1.5_f64,
        )
    };
    let now = std::time::Instant::now();
    let boxed: Vec<String> = (0..1).map(|number| format!("{number:?} {}", words[number])).collect();
    boxed.len() + usize::from(now.elapsed().as_nanos() > 0)
}

#[inline(never)]
fn stepped() -> usize {
    let mut tail = by_libgcc();
    // Its own frame, and this one's, which goes on to other calls.
    tail.drain(..2);
    TAIL.set(tail).expect("once");
    STEPPED.store(true, Ordering::Relaxed);
    // SAFETY: raises a signal that is handled.
    unsafe { libc::raise(libc::SIGUSR1) };
    let sum = work(5);
    STEPPED.store(false, Ordering::Relaxed);
    sum
}

#[test]
fn every_instruction_of_calls_through_libc_has_its_stack() {
    let _only = SIGNALS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    walker();
    handle(libc::SIGTRAP, step, 0);
    handle(libc::SIGUSR1, begin, 0);
    std::hint::black_box(stepped());
    let steps = STEPS.load(Ordering::Relaxed);
    assert!(steps > 5_000, "{steps} instructions");
    let wrong = WRONG.lock().unwrap().take();
    let wrong = wrong.as_ref().map(|(frames, len, end)| (&frames[..*len], end));
    assert!(wrong.is_none(), "{wrong:x?}\nexpected {:x?}", TAIL.get());
}

static SEEN: Mutex<Vec<(Vec<u64>, Vec<u64>)>> = Mutex::new(Vec::new());

extern "C" fn look(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // libgcc begins here, and comes to the interrupted frame through the signal's.
    let (frames, end) = walk(&registers(context));
    assert_eq!(end, End::Outermost);
    SEEN.lock().unwrap().push((frames, by_libgcc()));
}

#[test]
fn a_handler_has_what_it_interrupts_behind_it() {
    let _only = SIGNALS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    handle(libc::SIGUSR2, look, 0);
    // SAFETY: raises a signal that is handled.
    unsafe { libc::raise(libc::SIGUSR2) };
    let (mine, theirs) = SEEN.lock().unwrap().pop().expect("the handler has run");
    let mine: Vec<u64> = mine.iter().map(|frame| frame & !EXACT).collect();
    assert!(theirs.ends_with(&mine) && theirs.len() > mine.len() + 1, "{mine:x?} in {theirs:x?}");
}

/// Calls that never return are the last instructions of their functions: where they return to is another one.
#[test]
fn callers_that_end_with_a_call_are_passed() {
    let _only = SIGNALS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    handle(libc::SIGUSR2, look, 0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {
        // SAFETY: raises a signal that is handled.
        unsafe { libc::raise(libc::SIGUSR2) };
    }));
    let caught = std::panic::catch_unwind(|| panic_with(std::hint::black_box(1)));
    std::panic::set_hook(hook);
    assert!(caught.is_err());
    let (mine, theirs) = SEEN.lock().unwrap().pop().expect("the handler has run");
    let mine: Vec<u64> = mine.iter().map(|frame| frame & !EXACT).collect();
    assert!(theirs.ends_with(&mine), "{mine:x?} in {theirs:x?}");
}

#[inline(never)]
fn panic_with(number: i32) -> i32 {
    panic!("{number}")
}

static THROUGH: Mutex<Option<(Vec<u64>, End)>> = Mutex::new(None);

/// Within a handler another signal: its walk goes through the handler's frame into what that has interrupted.
extern "C" fn raise_another(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: raises a signal that is handled.
    unsafe { libc::raise(libc::SIGURG) };
}

extern "C" fn look_through(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    *THROUGH.lock().unwrap() = Some(walk(&registers(context)));
}

#[inline(never)]
fn raises(signal: c_int) -> Vec<u64> {
    // SAFETY: raises a signal that is handled.
    unsafe { libc::raise(signal) };
    by_libgcc()
}

#[test]
fn a_walk_passes_signals_also_from_another_stack() {
    let _only = SIGNALS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Above the frames that the signal interrupts: the way goes up, and down again.
    let mut stack = [0_u8; 1 << 16];
    let other = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: memory that lives until the stack is given up below.
    assert_eq!(unsafe { libc::sigaltstack(&other, &mut before) }, 0);
    handle(libc::SIGURG, look_through, 0);
    for flags in [0, libc::SA_ONSTACK] {
        handle(libc::SIGUSR2, raise_another, flags);
        let tail = &raises(libc::SIGUSR2)[2..];
        let (frames, end) = THROUGH.lock().unwrap().take().expect("the handler has run");
        assert_eq!(end, End::Outermost);
        assert!(frames.ends_with(tail), "{frames:x?} through {tail:x?}");
        let exact = frames.iter().filter(|frame| **frame & EXACT != 0).count();
        assert_eq!(exact, 2, "the innermost, and what was interrupted");
    }
    // SAFETY: gives it up for the one before.
    assert_eq!(unsafe { libc::sigaltstack(&before, std::ptr::null_mut()) }, 0);
}

/// Registers of any kind: the walk ends, and touches nothing that is not there.
#[test]
fn garbage_ends_a_walk_and_not_the_program() {
    let walker = walker();
    let code = [by_libgcc as *const () as usize, libc::qsort as *const () as usize, 0, 1, usize::MAX];
    let local = [0_usize; 64];
    let stacks = [0, 8, usize::MAX, usize::MAX - 7, 1 << 47, local.as_ptr().addr(), code[0]];
    let mut state = 0x5eed_u64;
    for pc in code.into_iter().chain((0..200).map(|offset| code[1] + offset)) {
        for stack in stacks {
            let mut registers = Registers::new(pc);
            for number in 0..16 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                registers.set(&X86_64, number, [stack, state as usize][(state >> 62) as usize % 2]);
            }
            registers.set(&X86_64, 7, stack);
            let mut frames = [0; 32];
            let walked = walker.walk(&registers, true, &Own, |addr| addr, &mut frames);
            assert!((1..=32).contains(&walked.len));
        }
    }
}
