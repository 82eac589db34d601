//! Probes of the core on functions of both sets, in the smallest host that a process can be: on every
//! instruction, by breakpoints and slots of its set; calls and returns between the sets (REG_4, HIT_1,
//! RET_4).

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use probe_arch_arm::{Arm, PtRegs};
use probe_core::arch::{Access, Arch, MemFault, Memory, NativeArch, Regs, SaveSet};
use probe_core::error::{Errno, TextError};
use probe_core::host::{Blacklisted, Context, Host, Probeable, Symbol, Task};
use probe_core::traps::Trap;
use probe_core::{CodeAddr, Kprobe, Kretprobe, Place, Probes};
use std::sync::Arc;

core::arch::global_asm!(
    r#"
    .pushsection .text.probed, "ax", %progbits
    .syntax unified
    .p2align 4
    .arm
    .globl probed_a32
    .type probed_a32, %function
probed_a32:
    push {{r4, lr}}
    mov r4, r0
    cmp r1, #3
    addeq r4, r4, #100
    addne r4, r4, r1
    cmp r0, #0
    addne r4, r4, #1
    ldr r2, 2f
    add r0, r4, r2
    blx probed_leaf_t32
    pop {{r4, pc}}
    .globl probed_a32_end
probed_a32_end:
2:  .word 0x1000

    .thumb
    .p2align 2
    .globl probed_t32
    .type probed_t32, %function
probed_t32:
    push {{r4, lr}}
    mov r4, r0
    cmp r1, #3
    ite eq
    addeq r4, #100
    addne r4, r1
    cbz r0, 1f
    add.w r4, r4, #1
1:  ldr r2, 2f
    add.w r0, r4, r2
    blx probed_leaf_a32
    pop {{r4, pc}}
    .globl probed_t32_end
probed_t32_end:
    .p2align 2
2:  .word 0x1000

    // A table and a constant between the instructions, in which decoding would go astray.
    .thumb
    .p2align 2
    .globl probed_data
    .type probed_data, %function
probed_data:
    push {{r4, lr}}
    movs r4, r0
    beq 1f
    adds r4, #1
1:  ldr r2, 7f
    ldr r3, 9f
    subs r0, r1, #3
    beq 2f
    movs r0, #1
2:  tbb [pc, r0]
3:  .byte (4f - 3b) / 2, (5f - 3b) / 2, (5f - 3b) / 2, 0xf8
4:  adds r4, #100
    b 6f
5:  adds r4, r4, r1
6:  adds r0, r4, r2
    b 8f
    .p2align 2
7:  .word 0xffff1234
8:  add.w r0, r0, r3
    pop {{r4, pc}}
    .globl probed_data_end
probed_data_end:
    .p2align 2
9:  .word 0xfdcd                         // 0x1001 less the other one

    // Both add one.
    .thumb
    .type probed_leaf_t32, %function
probed_leaf_t32:
    adds r0, #1
    bx lr
    .p2align 2
    .arm
    .type probed_leaf_a32, %function
probed_leaf_a32:
    add r0, r0, #1
    bx lr

    // call_from_t32(function, a, b): the caller of a function is of T32.
    .thumb
    .globl call_from_t32
    .type call_from_t32, %function
call_from_t32:
    push {{r4, lr}}
    mov r3, r0
    mov r0, r1
    mov r1, r2
    blx r3
    pop {{r4, pc}}
    .popsection
    "#
);

type Function = unsafe extern "C" fn(u32, u32) -> u32;

unsafe extern "C" {
    fn probed_a32(a: u32, b: u32) -> u32;
    fn probed_t32(a: u32, b: u32) -> u32;
    fn probed_data(a: u32, b: u32) -> u32;
    fn call_from_t32(function: usize, a: u32, b: u32) -> u32;
    static probed_a32_end: [u8; 0];
    static probed_t32_end: [u8; 0];
    static probed_data_end: [u8; 0];
}

/// What the functions compute.
fn expected(a: u32, b: u32) -> u32 {
    a + if b == 3 { 100 } else { b } + u32::from(a != 0) + 0x1001
}

/// All: name, first instruction with its set, length.
fn functions() -> [(&'static str, usize, usize); 3] {
    let function = |name, function: Function, end: *const [u8; 0]| {
        let start = function as usize;
        (name, start, (end.addr() & !1) - (start & !1))
    };
    [
        function("probed_a32", probed_a32, &raw const probed_a32_end),
        function("probed_t32", probed_t32, &raw const probed_t32_end),
        function("probed_data", probed_data, &raw const probed_data_end),
    ]
}

struct Process;

/// The process's memory: what these tests access is there.
struct Direct;

static PROBES: Probes<Process> = Probes::new(Process);
static CONTEXT: Context<Arm> = Context::new();
static TASK: Task<Arm> = Task::new();
static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

// SAFETY: it is right where memory is there, and fails for the first page.
unsafe impl Memory for Direct {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        if addr < 4096 {
            return Err(MemFault { addr, access: Access::Read });
        }
        // SAFETY: the tests read stacks and literals.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        if addr < 4096 {
            return Err(MemFault { addr, access: Access::Write });
        }
        // SAFETY: the tests write stacks.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        Ok(())
    }
}

// SAFETY: one thread at a time has probes, and is the context; text is written by unprotecting it.
unsafe impl Host for Process {
    type Arch = Arm;
    type Memory = Direct;

    const SAVE_SET: SaveSet = SaveSet::Full;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        assert_eq!(at.as_usize() & 1, 0, "the address of a byte");
        Direct.read(at.as_usize(), out).map_or(0, |()| out.len())
    }

    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        assert_eq!(at.as_usize() & 1, 0, "the address of a byte");
        let page = at.as_usize() & !0xfff;
        let len = (at.as_usize() + bytes.len()).next_multiple_of(0x1000) - page;
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: what is executed there stays so.
        assert_eq!(unsafe { libc::mprotect(page as *mut c_void, len, all) }, 0);
        // SAFETY: the core owns the range, as the caller promises.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_usize() as *mut u8, bytes.len()) };
        // SAFETY: mapped and readable.
        unsafe { Arm::publish(at, bytes.len()) };
        Ok(())
    }

    fn sync_cores(&self) {
        fence(Ordering::SeqCst);
    }

    fn alloc_exec(&self, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_EXEC;
        let hint = near.map_or(0, |(near, _)| (near.as_usize() & !0xffff) + (4 << 20));
        // SAFETY: new memory; what is too much of it is never used.
        let at = unsafe { libc::mmap(hint as *mut c_void, 2 * len_bytes, access, flags, -1, 0) };
        (at != libc::MAP_FAILED).then(|| CodeAddr::new((at as usize).next_multiple_of(len_bytes)))
    }

    unsafe fn free_exec(&self, _: CodeAddr, _: usize) {}

    fn context(&self) -> Option<&Context<Arm>> {
        Some(&CONTEXT)
    }

    fn task(&self) -> Option<&Task<Arm>> {
        Some(&TASK)
    }

    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Arm>)) {
        visit(&CONTEXT);
    }

    fn parallelism(&self) -> usize {
        1
    }

    fn memory(&self) -> &Direct {
        &Direct
    }

    fn find_symbols(&self, name: &str, found: &mut dyn FnMut(&Symbol<'_>)) {
        functions()
            .iter()
            .filter(|function| function.0 == name)
            .for_each(|function| found(&symbol(function)));
    }

    fn symbol_at(&self, at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>)) {
        let covers =
            |(_, start, len): &&(_, usize, usize)| (at.as_usize() & !1).wrapping_sub(*start & !1) < *len;
        functions().iter().filter(covers).for_each(|function| found(&symbol(function)));
    }

    fn probeable(&self, at: CodeAddr) -> Probeable {
        let mut answer = Probeable::NotText;
        self.symbol_at(at, &mut |_| answer = Probeable::Yes);
        answer
    }

    fn for_each_blacklisted(&self, _: &mut dyn FnMut(&Blacklisted<'_>)) {}

    fn stop(&self, _: &PtRegs) -> ! {
        std::process::abort()
    }
}

fn symbol(&(name, start, len_bytes): &(&'static str, usize, usize)) -> Symbol<'static> {
    Symbol { name, start: CodeAddr::new(start), len_bytes, module: None, local_entry: 0 }
}

extern "C" fn handle(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's, for this handler.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let saved = &mut context.uc_mcontext;
    // SAFETY: R0 to R15 and CPSR lie side by side in Linux's `struct sigcontext`.
    let frame = unsafe { &mut *(&raw mut saved.arm_r0).cast::<[u32; 17]>() };
    let r = core::array::from_fn(|index| frame[index]);
    let mut regs = PtRegs { r, pc: frame[15], cpsr: frame[16], orig_r0: u32::MAX };
    if PROBES.traps().breakpoint(&mut regs) != Trap::Handled {
        std::process::abort();
    }
    frame[..15].copy_from_slice(&regs.r);
    (frame[15], frame[16]) = (regs.pc, regs.cpsr);
}

/// The host, for one test.
fn start() -> std::sync::MutexGuard<'static, ()> {
    let lock = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Arm::set_doubles(true);
    // SAFETY: all zeros is an action.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler is as `SA_SIGINFO` wants it.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action, core::ptr::null_mut()) }, 0);
    lock
}

/// The addresses of a function's instructions.
fn instructions(&(name, start, len): &(&str, usize, usize)) -> Vec<CodeAddr> {
    let mut places = vec![CodeAddr::new(start)];
    loop {
        let last = *places.last().expect("one at the least");
        let mut bytes = [0; 4];
        Process.read_text(Arm::first_byte(last), &mut bytes);
        let next = last.wrapping_add(Arm::insn_len(last, &bytes).expect("an instruction"));
        let offset = next.as_usize() - start;
        // The table and the constant, which the labels of the assembly enclose.
        let next = match (name, offset) {
            ("probed_data", 22) => next.wrapping_add(4),
            ("probed_data", 36) => next.wrapping_add(4),
            _ => next,
        };
        if next.as_usize() >= start + len {
            return places;
        }
        places.push(next);
    }
}

fn text(&(_, start, len): &(&str, usize, usize)) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Process.read_text(CodeAddr::new(start & !1), &mut bytes);
    bytes
}

/// Calls the function from either set, and checks what it returns.
fn call(function: &(&str, usize, usize)) {
    // SAFETY: both functions have this type.
    let direct = unsafe { core::mem::transmute::<usize, Function>(function.1) };
    for (a, b) in [(0, 3), (0, 7), (5, 3), (5, 7)] {
        // SAFETY: they only compute.
        assert_eq!(unsafe { direct(a, b) }, expected(a, b), "{}", function.0);
        // SAFETY: as above.
        assert_eq!(unsafe { call_from_t32(function.1, a, b) }, expected(a, b), "{}", function.0);
    }
}

/// How often [`call`] arrives at the instruction with this index: each time, but for what is jumped over.
fn arrivals(function: &(&str, usize, usize), index: usize) -> u64 {
    match (function.0, index) {
        ("probed_t32", 7) | ("probed_data", 3 | 8 | 10..=12) => 4,
        _ => 8,
    }
}

#[test]
fn hit_1_every_instruction_of_both_sets_is_transparent() {
    let _lock = start();
    for function in functions() {
        let (before, places) = (text(&function), instructions(&function));
        let count = match function.0 {
            "probed_a32" => 11,
            "probed_t32" => 12,
            _ => 17,
        };
        assert_eq!(places.len(), count);
        for (index, &at) in places.iter().enumerate() {
            for has_post in [false, true] {
                let posts = Arc::new(AtomicUsize::new(0));
                let seen = posts.clone();
                let probe = Kprobe::at(Place::addr(at)).pre(move |hit| assert_eq!(hit.pc(), at));
                let probe = match has_post {
                    true => PROBES.register(probe.post(move |_| _ = seen.fetch_add(1, Ordering::Relaxed))),
                    false => PROBES.register(probe),
                };
                let probe = probe.unwrap_or_else(|error| panic!("{} {index}: {error}", function.0));
                assert_ne!(text(&function), before);
                call(&function);
                let want = arrivals(&function, index);
                assert_eq!(probe.counters().hits, want, "{} {index}", function.0);
                drop(probe);
                assert_eq!(posts.load(Ordering::Relaxed) as u64, if has_post { want } else { 0 });
                assert_eq!(text(&function), before, "{} {index}", function.0);
            }
        }
        let probes: Vec<_> = places
            .iter()
            .map(|at| PROBES.register(Kprobe::at(Place::addr(*at)).pre(|_| ())).expect("registered"))
            .collect();
        call(&function);
        for (index, probe) in probes.iter().enumerate() {
            assert_eq!(probe.counters().hits, arrivals(&function, index), "{} {index}", function.0);
        }
        drop(probes);
        assert_eq!(text(&function), before);
    }
}

#[test]
fn ret_4_calls_between_the_sets_return_to_their_callers() {
    let _lock = start();
    for function in functions() {
        let probe = Kretprobe::at(function.0)
            .entry(|call| call.argument(0).zip(call.argument(1)))
            .exit(|ret, (a, b)| assert_eq!(ret.value(), expected(a as u32, b as u32) as usize));
        let probe = PROBES.register(probe).unwrap_or_else(|error| panic!("{}: {error}", function.0));
        call(&function);
        assert_eq!(probe.counters().hits, 8, "{}", function.0);
    }
}

/// REG_4: the middle of an instruction, the other set's address, a breakpoint that hides an instruction.
#[test]
fn reg_4_an_address_of_the_other_set_is_no_boundary() {
    let _lock = start();
    let refused = |at: usize| {
        let result = PROBES.register(Kprobe::<Arm>::at(Place::addr(CodeAddr::new(at))).pre(|_| ()));
        result.map(|_| ()).map_err(|error| error.errno())
    };
    for function in functions() {
        let first = PROBES.register(Kprobe::<Arm>::at(function.0).pre(|_| ())).expect("registered");
        let places = instructions(&function);
        let all = (function.1 & !1)..(function.1 & !1) + function.2;
        for at in all {
            let is_one = places.contains(&CodeAddr::new(at));
            assert_eq!(refused(at), if is_one { Ok(()) } else { Err(Errno::EILSEQ) }, "{at:#x}");
        }
        drop(first);
    }
    let mut regs = PtRegs::default();
    regs.set_pc(CodeAddr::new(functions()[1].1));
    assert_eq!(regs.pc().as_usize() & 1, 1, "the T32 function's address says so");
}
