//! The trampolines of return probes and detours, and the traps that end detours and jprobes: the only code
//! that must be executed on the architecture itself.
//!
//! A return stub ([`fill_stubs`](probe_core::arch::Calls::fill_stubs)) arrives here with two words pushed on
//! the stack as it was at the function's return: the stub's address plus 5, below it the handler's. All
//! registers are untouched. The trampoline builds a [`Regs`] there, calls the handler and resumes from the
//! `Regs`. Its frame description lets an unwinder pass from the handler to the function's caller.
//!
//! A handler may raise the stack pointer but not lower it. The stack pointer has to be aligned to a word, as
//! all compiled code keeps it. Source: System V ABI AMD64 1.0, 3.2; SDM volume 1, 13.

use crate::X86_64;
use crate::regs::Regs;
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::{
    DetourCalls, DetourLayout, Displaced, NativeArch, NativeCalls, NativeJumps, Resume, SaveSet,
};
use probe_core::error::Refusal;
use probe_x86_decode::LongMode;
use probe_x86_decode::call::{self, FOLLOWING_CALL, STUB_CALL_LEN};
use probe_x86_decode::detour::{self, FOLLOW_LEN, RED_ZONE_LEN, Trampoline, WORD_DISTANCE};
use probe_x86_decode::fpu::{self, Known, LIGHT_OPMASKS, LIGHT_ZMM16, OPMASK, Saver};

/// The size of the XSAVE area and 64 bytes for its alignment. Written before the trampoline's address is
/// known to anyone.
static XSAVE_ROOM: AtomicUsize = AtomicUsize::new(0);
/// The state components to save, EDX:EAX of XSAVE (the upper half is 0).
static XSAVE_COMPONENTS: AtomicU32 = AtomicU32::new(0);

// SAFETY: fetches see stores without further ado (SDM volume 3, 12.6).
unsafe impl NativeArch for X86_64 {
    const ADDS_TO_MEMORY: bool = true;

    unsafe fn publish(_at: CodeAddr, _len_bytes: usize) {}
}

// SAFETY: the trampolines below keep the protocol of `return_trampoline`: held by the native tests, which
// compare all general, flag, x87 and vector registers around them. `jprobe_return` begins with the
// breakpoint.
unsafe impl NativeCalls<Regs> for X86_64 {
    fn return_trampoline(self, save: SaveSet) -> CodeAddr {
        choose(save, &RETURNS)
    }

    fn fill_return_stubs(
        self,
        chunk: CodeAddr,
        trampoline: CodeAddr,
        handler: usize,
        out: &mut [u8],
    ) -> usize {
        let fill =
            if has_red_zone() { call::fill_followed_stubs::<LongMode> } else { call::fill_stubs::<LongMode> };
        fill(chunk, trampoline, handler, out)
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new(jprobe_return as *const () as usize)
    }
}

// SAFETY: as above; `detour_resume` begins with the breakpoint.
unsafe impl NativeJumps<Regs> for X86_64 {
    fn detour_trampoline(self, save: SaveSet) -> CodeAddr {
        choose(save, &DETOURS)
    }

    fn entry_trampoline(self, save: SaveSet) -> Option<CodeAddr> {
        has_red_zone().then(|| choose(save, &ENTRIES))
    }

    fn fill_entry_detour(
        self,
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        calls: &DetourCalls,
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        detour::fill::<LongMode>(displaced, text, place, entry, Trampoline::Following, calls, out)
    }

    fn detour_resume_trap(self) -> CodeAddr {
        CodeAddr::new(detour_resume as *const () as usize)
    }
}

/// How this processor saves its state; the first call notes how much there is.
fn saver() -> Saver {
    static KNOWN: Known = Known::new();
    KNOWN.get(|| {
        let area = fpu::save_area(cpuid, xcr0);
        XSAVE_COMPONENTS.store(area.components, Ordering::Relaxed);
        XSAVE_ROOM.store(area.len_bytes + 64, Ordering::Relaxed);
        area.saver
    })
}

/// A trampoline for each way of saving: the general registers alone, and with FXSAVE, XSAVE, XSAVEC.
type EachWay = [unsafe extern "C" fn(); 4];

/// The trampoline for this processor's state.
fn choose(save: SaveSet, [general, fxsave, xsave, xsavec]: &EachWay) -> CodeAddr {
    note_segments();
    let full = || match saver() {
        Saver::Xsavec => xsavec,
        Saver::Xsave => xsave,
        // Every processor with 64-bit mode has it.
        Saver::Fxsave | Saver::Fnsave => fxsave,
    };
    let trampoline = if save == SaveSet::General { general } else { full() };
    CodeAddr::new(*trampoline as usize)
}

/// Whether interruptions spare the red zone below the stack pointer: signals of a program do, interrupts in a
/// kernel do not.
fn has_red_zone() -> bool {
    const PRIVILEGE_LEVEL: usize = 3;
    segments().0 & PRIVILEGE_LEVEL == PRIVILEGE_LEVEL
}

fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    #[allow(
        unused_unsafe,
        reason = "a safe function in newer versions of Rust than the oldest that we promise"
    )]
    // SAFETY: every processor with 64-bit mode has CPUID.
    let result = unsafe { core::arch::x86_64::__cpuid_count(leaf, subleaf) };
    [result.eax, result.ebx, result.ecx, result.edx]
}

fn xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register that exists: `save_area` calls this only where CPUID reports OSXSAVE.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// CS and SS, the same for all code of one program. Written before the trampoline's address is known to
/// anyone.
static SEGMENTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

fn segments() -> (usize, usize) {
    let (cs, ss): (usize, usize);
    // SAFETY: reads two registers.
    unsafe {
        core::arch::asm!("mov {:e}, cs", "mov {:e}, ss", out(reg) cs, out(reg) ss, options(nomem, nostack, preserves_flags));
    }
    (cs, ss)
}

fn note_segments() {
    let (cs, ss) = segments();
    let [first, second] = &SEGMENTS;
    first.store(cs, Ordering::Relaxed);
    second.store(ss, Ordering::Relaxed);
}

/// TF, DF and AC, which a handler's code does not expect to be set.
const UNEXPECTED: i32 = 1 << 8 | 1 << 10 | 1 << 18;

/// These, and what stands above OF in its byte: IOPL and NT.
const UNUSUAL: i32 = UNEXPECTED | 3 << 12 | 1 << 14;

/// The size of the frame.
const FRAME: usize = size_of::<Regs>();
/// From the frame to the stack as it was at the return: the handler's and the stub's words.
const AT_RETURN: usize = FRAME + 16;
/// From a detour trampoline's frame to the stack as it was at the place: the return address and the red zone.
const AT_PLACE: usize = FRAME + 8 + RED_ZONE_LEN;

/// x87, AVX and the upper halves of ZMM0-15: the state components that moves of XMM registers do not
/// preserve.
const NOT_LIGHT: u8 = 1 | 1 << 2 | 1 << 6;

/// Describes the interrupted frame from the saved registers. The core has put the place or the real return
/// address into `rip`; where the stub's address is still there, the stub's own frame description leads on.
macro_rules! interrupted {
    () => {
        ".cfi_def_cfa rbp, {outside}
        .cfi_offset rip, {rip} - {outside}
        .cfi_offset rbx, {rbx} - {outside}
        .cfi_offset rbp, {rbp} - {outside}
        .cfi_offset r12, {r12} - {outside}
        .cfi_offset r13, {r13} - {outside}
        .cfi_offset r14, {r14} - {outside}
        .cfi_offset r15, {r15} - {outside}"
    };
}

/// The part that all trampolines share. It builds a frame of [`Regs`], `outside` bytes below the interrupted
/// stack, and describes it to unwinders; RIP is the word `ip` bytes above. `note` loads the handler's first
/// argument into RDI and may use RAX. Then RBP points to the frame, and `call` calls the handler, which
/// answers in EAX.
///
/// After [`Resume::Unchanged`](probe_core::arch::Resume) only the registers that calls may change are loaded
/// again; `leave` follows. Otherwise `changed` runs, all registers are loaded, and `leave_changed` follows.
/// Both start with RSP at the frame's `orig_rax`.
///
/// POPFQ is slow, so where nothing was changed an addition that overflows sets OF, and SAHF the other status
/// flags. A context with TF, DF, AC, IOPL or NT set takes the slow way.
macro_rules! trampoline {
    (
        $(#[$doc:meta])* $name:ident, outside: $outside:ident, ip: $ip:literal, enter: [$($enter:literal),*],
        note: [$($note:literal),*], call: [$($call:literal),*], unchanged: [$($unchanged:literal),*],
        changed: [$($changed:literal),*], leave: [$($leave:literal),*], leave_changed: [$($leave_changed:literal),*],
        $($operands:tt)*
    ) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc simple",
                $($enter,)*
                ".cfi_def_cfa rsp, {outside} - {frame}",
                // No flag changes before PUSHFQ.
                "push qword ptr [rip + {segments} + 8]",
                "push rsp",
                "pushfq",
                "push qword ptr [rip + {segments}]",
                concat!("push qword ptr [rsp + 32 + ", $ip, "]"),
                "push -1",
                ".cfi_adjust_cfa_offset 48",
                ".irp r,rdi,rsi,rdx,rcx,rax,r8,r9,r10,r11,rbx,rbp,r12,r13,r14,r15",
                "push \\r",
                ".cfi_adjust_cfa_offset 8",
                ".endr",
                // It was pushed as it was then.
                "add qword ptr [rsp + {rsp}], {outside} - {frame} + 8",
                // Before anything is read that may be unaligned.
                "test dword ptr [rsp + {flags}], {unusual}",
                "jnz 5f",
                ".cfi_remember_state",
                $($note,)*
                "mov rbp, rsp",
                interrupted!(),
                "mov rsi, rsp",
                $($call,)*
                "test eax, eax",
                "jnz 3f",
                $($unchanged,)*
                // OF is bit 3 of this byte, and the highest that is set.
                "add byte ptr [rbp + {flags} + 1], 0x78",
                "mov ah, [rbp + {flags}]",
                "sahf",
                "lea rsp, [rbp + {r11}]",
                "mov rbp, [rbp + {rbp}]",
                ".cfi_remember_state",
                ".cfi_def_cfa rsp, {outside} - {r11}",
                ".cfi_restore rbx; .cfi_restore rbp; .cfi_restore r12; .cfi_restore r13; .cfi_restore r14; .cfi_restore r15",
                ".irp r,r11,r10,r9,r8,rax,rcx,rdx,rsi,rdi",
                "pop \\r",
                ".cfi_adjust_cfa_offset -8",
                ".endr",
                $($leave,)*
                ".cfi_restore_state",
                ".cfi_remember_state",
                "3:",
                $($changed,)*
                "4:",
                "mov rsp, rbp",
                "push qword ptr [rsp + {flags}]",
                "popfq",
                ".cfi_def_cfa rsp, {outside}",
                ".irp r,r15,r14,r13,r12,rbp,rbx,r11,r10,r9,r8,rax,rcx,rdx,rsi,rdi",
                "pop \\r",
                ".cfi_adjust_cfa_offset -8",
                ".endr",
                $($leave_changed,)*
                // POPF is slow, and almost never needed.
                ".cfi_restore_state",
                ".cfi_restore_state",
                "5:",
                "pushfq",
                "and qword ptr [rsp], {usual}",
                "popfq",
                $($note,)*
                "mov rbp, rsp",
                interrupted!(),
                "mov rsi, rsp",
                $($call,)*
                "jmp 3b",
                ".cfi_endproc",
                segments = sym SEGMENTS,
                frame = const FRAME,
                outside = const $outside,
                unusual = const UNUSUAL,
                usual = const !UNEXPECTED,
                r15 = const offset_of!(Regs, r15),
                r14 = const offset_of!(Regs, r14),
                r13 = const offset_of!(Regs, r13),
                r12 = const offset_of!(Regs, r12),
                rbp = const offset_of!(Regs, rbp),
                rbx = const offset_of!(Regs, rbx),
                r11 = const offset_of!(Regs, r11),
                rip = const offset_of!(Regs, rip),
                flags = const offset_of!(Regs, eflags),
                rsp = const offset_of!(Regs, rsp),
                $($operands)*
            );
        }
    };
}

/// A trampoline of returns that brackets the call of the handler with `save` and `restore`.
macro_rules! return_trampoline {
    ($(#[$doc:meta])* $name:ident, [$($save:literal),*], [$($restore:literal),*] $(, $($operands:tt)+)?) => {
        trampoline!(
            $(#[$doc])* $name,
            outside: AT_RETURN,
            ip: "8",
            enter: [],
            note: ["sub qword ptr [rsp + {rip}], {stub_call_len}", "mov rdi, [rsp + {rip}]"],
            call: [$($save,)* "call [rbp + {frame}]" $(, $restore)*],
            unchanged: ["mov rcx, [rbp + {rip}]", "mov [rbp + {frame} + 8], rcx"],
            changed: [
                // RET takes the target from right below the stack pointer that is resumed with.
                "sub qword ptr [rbp + {rsp}], 8",
                "mov rax, [rbp + {rsp}]",
                "mov rcx, [rbp + {rip}]",
                "mov [rax], rcx"
            ],
            leave: ["lea rsp, [rsp + {frame} - {orig_rax} + 8]", "ret"],
            leave_changed: ["mov rsp, [rsp + {rsp} - {orig_rax}]", "ret"],
            orig_rax = const offset_of!(Regs, orig_rax),
            stub_call_len = const STUB_CALL_LEN,
            $($($operands)+)?
        );
    };
}

/// A trampoline of detours, with the same.
macro_rules! detour_trampoline {
    ($(#[$doc:meta])* $name:ident, [$($save:literal),*], [$($restore:literal),*] $(, $($operands:tt)+)?) => {
        trampoline!(
            $(#[$doc])* $name,
            outside: AT_PLACE,
            ip: "0",
            // The interrupted function is at the place itself, not behind a call.
            enter: [".cfi_signal_frame"],
            note: [
                "mov rax, [rsp + {frame}]",
                "mov rdi, [rax - {word_distance}]",
                "mov rax, [rdi + 8]",
                "mov [rsp + {rip}], rax"
            ],
            call: [$($save,)* "call [rdi]" $(, $restore)*],
            unchanged: [],
            changed: [
                "cmp eax, 2",
                "jb 4f",
                "ja {resume}",
                // What is behind the call is the first copy.
                "mov rax, [rbp + {frame}]",
                "mov [rbp + {rip}], rax",
                "jmp {resume}"
            ],
            leave: ["lea rsp, [rsp + {frame} - {orig_rax}]", "ret {red_zone}"],
            leave_changed: ["lea rsp, [rsp + {frame} - {orig_rax}]", "ret {red_zone}"],
            orig_rax = const offset_of!(Regs, orig_rax),
            red_zone = const RED_ZONE_LEN,
            word_distance = const WORD_DISTANCE,
            resume = sym detour_resume,
            $($($operands)+)?
        );
    };
}

/// The trampoline of a detour that follows a call. It returns to the code that leads to the call before the
/// stub, not to the first copy; the stub's address is the return address by then.
macro_rules! entry_trampoline {
    ($(#[$doc:meta])* $name:ident, [$($save:literal),*], [$($restore:literal),*] $(, $($operands:tt)+)?) => {
        detour_trampoline!(
            $(#[$doc])*
            $name,
            [$($save),*],
            [
                $($restore,)*
                "mov rcx, [rbp + {frame}]",
                "lea rdx, [rcx + {follow}]",
                "cmp eax, {followed}",
                "jb 2f",
                "mov [rbp + {outside} - 16], rdx",
                "mov rdx, [rbp + {outside}]",
                "sub rdx, {following_call}",
                "mov [rbp + {outside} - 8], rdx",
                "mov rdx, rcx",
                "sub eax, {followed}",
                "2:",
                "mov [rbp + {frame}], rdx"
            ],
            follow = const FOLLOW_LEN,
            followed = const Resume::Followed as usize,
            following_call = const FOLLOWING_CALL.len(),
            $($($operands)+)?
        );
    };
}

/// A trampoline that saves with `insn`, XSAVE or XSAVEC, unless `light` has saved what there is and gone to
/// `8`.
macro_rules! xsave_trampoline {
    (
        $(#[$doc:meta])* $trampoline:ident, $name:ident, $insn:literal,
        [$($light:literal),*], [$($light_restore:literal),*] $(, $operand:ident = const $value:expr)*
    ) => {
        $trampoline!(
            $(#[$doc])*
            $name,
            [
                "sub rsp, [rip + {room}]",
                "and rsp, -64",
                $($light,)*
                "7:",
                // XRSTOR wants the header's unused words to be 0.
                "xor edx, edx",
                "mov [rsp + 512], rdx",
                "mov [rsp + 520], rdx",
                "mov [rsp + 528], rdx",
                "mov [rsp + 536], rdx",
                "mov [rsp + 544], rdx",
                "mov [rsp + 552], rdx",
                "mov [rsp + 560], rdx",
                "mov [rsp + 568], rdx",
                "mov eax, [rip + {components}]",
                $insn,
                // The x87 stack holds a long double that is returned; the handler must find it empty.
                "test byte ptr [rsp + 512], 1",
                "jz 2f",
                "fninit",
                "2:",
                "8:"
            ],
            [
                "mov r8d, eax",
                $($light_restore,)*
                "7:",
                // Every return from a signal handler makes x87 count as used. An empty stack, no flag and the
                // control word of a reset are to count as what they are: the next time there is less to do.
                "cmp dword ptr [rsp], 0x37f",
                "jne 9f",
                "cmp byte ptr [rsp + 4], 0",
                "jne 9f",
                "and byte ptr [rsp + 512], 0xfe",
                "9:",
                "mov eax, [rip + {components}]",
                "xor edx, edx",
                "xrstor64 [rsp]",
                "8:",
                "mov eax, r8d"
            ],
            room = sym XSAVE_ROOM,
            components = sym XSAVE_COMPONENTS
            $(, $operand = const $value)*
        );
    };
}

/// The same kind of trampoline once for each way of saving.
macro_rules! each_way_of_saving {
    ($trampoline:ident, $all:ident, $general:ident, $fxsave:ident, $xsave:ident, $xsavec:ident) => {
        static $all: EachWay = [$general, $fxsave, $xsave, $xsavec];

        $trampoline!(
            /// Saves the general registers and flags alone.
            $general,
            ["and rsp, -16"],
            []
        );

        $trampoline!(
            /// Also saves x87 and SSE state.
            $fxsave,
            ["sub rsp, 512", "and rsp, -64", "fxsave64 [rsp]", "fninit"],
            ["fxrstor64 [rsp]"]
        );

        xsave_trampoline!(
            /// Also saves all state components that the ABI can return in or a handler can clobber.
            $trampoline,
            $xsave,
            "xsave64 [rsp]",
            [],
            []
        );

        xsave_trampoline!(
            /// The same, with XSAVEC. That and XRSTOR cost twice as much as all the rest of a hit. Where
            /// XGETBV says that x87 and the upper halves of YMM and ZMM0-15 are as after a reset, which most
            /// code leaves them at calls, moves do.
            $trampoline,
            $xsavec,
            "xsavec64 [rsp]",
            [
                "mov ecx, 1",
                "xgetbv",
                // There is room between the area and the frame.
                "mov [rbp - 8], eax",
                "test al, {not_light}",
                "jnz 7f",
                "stmxcsr [rsp + 24]",
                ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "movaps [rsp + 160 + 16*\\n], xmm\\n",
                ".endr",
                "test byte ptr [rip + {components}], {opmask}",
                "jz 8f",
                ".irp n,0,1,2,3,4,5,6,7",
                "kmovq [rsp + {opmasks} + 8*\\n], k\\n",
                ".endr",
                ".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vmovdqa64 [rsp + {zmm} + 64*(\\n - 16)], zmm\\n",
                ".endr",
                "jmp 8f"
            ],
            [
                "test byte ptr [rbp - 8], {not_light}",
                "jnz 7f",
                "vzeroupper",
                "mov ecx, 1",
                "xgetbv",
                "test al, 1",
                "jz 9f",
                "fninit",
                "9:",
                "stmxcsr [rbp - 8]",
                "mov eax, [rbp - 8]",
                "cmp eax, [rsp + 24]",
                "je 9f",
                "ldmxcsr [rsp + 24]",
                "9:",
                ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "movaps xmm\\n, [rsp + 160 + 16*\\n]",
                ".endr",
                "test byte ptr [rip + {components}], {opmask}",
                "jz 8f",
                ".irp n,0,1,2,3,4,5,6,7",
                "kmovq k\\n, [rsp + {opmasks} + 8*\\n]",
                ".endr",
                ".irp n,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vmovdqa64 zmm\\n, [rsp + {zmm} + 64*(\\n - 16)]",
                ".endr",
                "jmp 8f"
            ],
            not_light = const NOT_LIGHT,
            opmask = const OPMASK,
            opmasks = const LIGHT_OPMASKS,
            zmm = const LIGHT_ZMM16
        );
    };
}

each_way_of_saving!(return_trampoline, RETURNS, return_general, return_fxsave, return_xsave, return_xsavec);
each_way_of_saving!(detour_trampoline, DETOURS, detour_general, detour_fxsave, detour_xsave, detour_xsavec);
each_way_of_saving!(entry_trampoline, ENTRIES, entry_general, entry_fxsave, entry_xsave, entry_xsavec);

/// Where a detour's trampoline traps, with RBP pointing to the registers to go on with.
#[unsafe(naked)]
unsafe extern "C" fn detour_resume() {
    naked_asm!("int3", "ud2");
}

/// Where a jprobe's handler returns to: a breakpoint.
#[unsafe(naked)]
unsafe extern "C" fn jprobe_return() {
    naked_asm!("int3", "ud2");
}
