//! The return trampoline and the jprobe's return trap: what executes.
//!
//! Return stubs ([`fill_stubs`](probe_core::arch::Arch::fill_stubs)) lead here with the handler's address and the
//! stub's (plus 5) on top of the stack as it was at the function's return, and everything else untouched. The
//! trampoline builds a [`Regs`] there, calls the handler and resumes from the `Regs`. Its frame description
//! lets an unwinder pass from the handler to the function's caller.
//!
//! A handler that moves the stack pointer may only raise it. The stack pointer is expected to be aligned to a word, as
//! all code keeps it. Source: System V ABI AMD64 1.0, 3.2; SDM volume 1, 13.

use crate::X86_64;
use crate::regs::Regs;
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, SaveSet};
use probe_x86_decode::call::STUB_CALL_LEN;
use probe_x86_decode::detour::{RED_ZONE_LEN, WORD_DISTANCE};
use probe_x86_decode::fpu::{self, Known, Saver};

/// The size of the XSAVE area and 64 bytes for its alignment. Written before the trampoline's address is known to anyone.
static XSAVE_ROOM: AtomicUsize = AtomicUsize::new(0);
/// The state components to save, EDX:EAX of XSAVE (the upper half is 0).
static XSAVE_COMPONENTS: AtomicU32 = AtomicU32::new(0);

// SAFETY: the trampolines below keep the protocol of `return_trampoline`: held by the native tests, which compare
// all general, flag, x87 and vector registers around them. `jprobe_return` begins with the breakpoint.
unsafe impl NativeArch for X86_64 {
    fn return_trampoline(save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => trampoline_general as unsafe extern "C" fn(),
            SaveSet::Full => full_trampoline(),
        };
        CodeAddr::new(trampoline as usize)
    }

    fn detour_trampoline(save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => detour_general as unsafe extern "C" fn(),
            SaveSet::Full => full_detour_trampoline(),
        };
        CodeAddr::new(trampoline as usize)
    }

    fn detour_resume_trap() -> CodeAddr {
        CodeAddr::new(detour_resume as *const () as usize)
    }

    fn jprobe_return_trap() -> CodeAddr {
        CodeAddr::new(jprobe_return as *const () as usize)
    }

    unsafe fn publish(_at: CodeAddr, _len_bytes: usize) {}
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

/// The trampoline for this processor's state.
fn full_trampoline() -> unsafe extern "C" fn() {
    match saver() {
        Saver::Xsavec => trampoline_xsavec,
        Saver::Xsave => trampoline_xsave,
        // Every processor with 64-bit mode has it.
        Saver::Fxsave | Saver::Fnsave => trampoline_fxsave,
    }
}

/// The same for detours.
fn full_detour_trampoline() -> unsafe extern "C" fn() {
    match saver() {
        Saver::Xsavec => detour_xsavec,
        Saver::Xsave => detour_xsave,
        Saver::Fxsave | Saver::Fnsave => detour_fxsave,
    }
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

/// The size of the frame: a [`Regs`] and a word for alignment.
const FRAME: usize = size_of::<Regs>() + 8;
/// From the frame to the stack as it was at the return: the handler's and the stub's words.
const AT_RETURN: usize = FRAME + 16;
/// From a detour trampoline's frame to the stack as it was at the place: the return address and the red zone.
const AT_PLACE: usize = FRAME + 8 + RED_ZONE_LEN;
/// CF, PF, AF, ZF, SF, OF.
const STATUS_FLAGS: u32 = 0x8d5;
/// DF.
const DIRECTION_FLAG: u32 = 0x400;

/// What all trampolines have in common: a frame of [`Regs`], `outside` bytes below the stack of what is interrupted, and its
/// description. `note` fills in what is not common, RAX, R12 and RSI being free. From then on RBP points to the frame: `call`
/// calls the handler, `resume` takes what it left; then all but RSP is loaded, and `leave` goes on.
macro_rules! trampoline {
    (
        $(#[$doc:meta])* $name:ident, outside: $outside:ident, enter: [$($enter:literal),*], note: [$($note:literal),*],
        call: [$($call:literal),*], resume: [$($resume:literal),*], leave: [$($leave:literal),*], $($operands:tt)*
    ) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc simple",
                $($enter,)*
                ".cfi_def_cfa rsp, {outside} - {frame}",
                // No flag changes before PUSHFQ.
                "lea rsp, [rsp - {frame}]",
                ".cfi_def_cfa rsp, {outside}",
                "mov [rsp + {r15}], r15",
                "mov [rsp + {r14}], r14",
                "mov [rsp + {r13}], r13",
                "mov [rsp + {r12}], r12",
                "mov [rsp + {rbp}], rbp",
                "mov [rsp + {rbx}], rbx",
                "mov [rsp + {r11}], r11",
                "mov [rsp + {r10}], r10",
                "mov [rsp + {r9}], r9",
                "mov [rsp + {r8}], r8",
                "mov [rsp + {rax}], rax",
                "mov [rsp + {rcx}], rcx",
                "mov [rsp + {rdx}], rdx",
                "mov [rsp + {rsi}], rsi",
                "mov [rsp + {rdi}], rdi",
                "pushfq",
                $($note,)*
                "mov qword ptr [rsp + {orig_rax}], -1",
                "mov eax, cs",
                "mov [rsp + {cs}], rax",
                "mov eax, ss",
                "mov [rsp + {ss}], rax",
                "lea rax, [rsp + {outside}]",
                "mov [rsp + {rsp}], rax",
                "mov rbp, rsp",
                // The frame of what is interrupted, from the saved registers; the handler's user has put the place or the real
                // return address into `rip`, or the stub's own frame description leads to it.
                ".cfi_def_cfa rbp, {outside}",
                ".cfi_offset rip, {rip} - {outside}",
                ".cfi_offset rbx, {rbx} - {outside}",
                ".cfi_offset rbp, {rbp} - {outside}",
                ".cfi_offset r12, {r12} - {outside}",
                ".cfi_offset r13, {r13} - {outside}",
                ".cfi_offset r14, {r14} - {outside}",
                ".cfi_offset r15, {r15} - {outside}",
                $($call,)*
                "mov rsp, rbp",
                $($resume,)*
                "mov r15, [rsp + {r15}]",
                "mov r14, [rsp + {r14}]",
                "mov r13, [rsp + {r13}]",
                "mov r12, [rsp + {r12}]",
                "mov rbp, [rsp + {rbp}]",
                "mov rbx, [rsp + {rbx}]",
                "mov r11, [rsp + {r11}]",
                "mov r10, [rsp + {r10}]",
                "mov r9, [rsp + {r9}]",
                "mov r8, [rsp + {r8}]",
                "mov rax, [rsp + {rax}]",
                "mov rcx, [rsp + {rcx}]",
                "mov rdx, [rsp + {rdx}]",
                "mov rsi, [rsp + {rsi}]",
                "mov rdi, [rsp + {rdi}]",
                $($leave,)*
                ".cfi_endproc",
                frame = const FRAME,
                outside = const $outside,
                r15 = const offset_of!(Regs, r15),
                r14 = const offset_of!(Regs, r14),
                r13 = const offset_of!(Regs, r13),
                r12 = const offset_of!(Regs, r12),
                rbp = const offset_of!(Regs, rbp),
                rbx = const offset_of!(Regs, rbx),
                r11 = const offset_of!(Regs, r11),
                r10 = const offset_of!(Regs, r10),
                r9 = const offset_of!(Regs, r9),
                r8 = const offset_of!(Regs, r8),
                rax = const offset_of!(Regs, rax),
                rcx = const offset_of!(Regs, rcx),
                rdx = const offset_of!(Regs, rdx),
                rsi = const offset_of!(Regs, rsi),
                rdi = const offset_of!(Regs, rdi),
                orig_rax = const offset_of!(Regs, orig_rax),
                rip = const offset_of!(Regs, rip),
                cs = const offset_of!(Regs, cs),
                flags = const offset_of!(Regs, eflags),
                rsp = const offset_of!(Regs, rsp),
                ss = const offset_of!(Regs, ss),
                $($operands)*
            );
        }
    };
}

/// A trampoline of returns that brackets the call of the handler with `save` and `restore`.
macro_rules! return_trampoline {
    ($(#[$doc:meta])* $name:ident, [$($save:literal),*], [$($restore:literal),*] $(, $operand:ident = sym $value:path)*) => {
        trampoline!(
            $(#[$doc])* $name,
            outside: AT_RETURN,
            enter: [],
            note: [
                "pop [rsp + {flags}]",
                "cld",
                "mov rsi, [rsp + {frame} + 8]",
                "sub rsi, {stub_call_len}",
                "mov [rsp + {rip}], rsi"
            ],
            call: [$($save,)* "mov rdi, rbp", "call [rbp + {frame}]" $(, $restore)*],
            resume: [
                // RET takes the target from right below the stack pointer that is resumed with.
                "sub qword ptr [rsp + {rsp}], 8",
                "mov rax, [rsp + {rsp}]",
                "mov rcx, [rsp + {rip}]",
                "mov [rax], rcx",
                "push [rsp + {flags}]",
                "popfq"
            ],
            leave: ["mov rsp, [rsp + {rsp}]", "ret"],
            stub_call_len = const STUB_CALL_LEN,
            $($operand = sym $value,)*
        );
    };
}

/// The same of detours.
macro_rules! detour_trampoline {
    ($(#[$doc:meta])* $name:ident, [$($save:literal),*], [$($restore:literal),*] $(, $operand:ident = sym $value:path)*) => {
        trampoline!(
            $(#[$doc])* $name,
            outside: AT_PLACE,
            // The interrupted function is at the place itself, not behind a call.
            enter: [".cfi_signal_frame"],
            note: [
                "pop rax",
                "mov [rsp + {flags}], rax",
                "mov [rsp + {flags_before}], rax",
                // CLD is slow, and almost never needed.
                "test eax, {direction}",
                "jnz 5f",
                "6:",
                "mov rax, [rsp + {frame}]",
                "mov r12, [rax - {word_distance}]"
            ],
            call: [$($save,)* "mov rdi, rbp", "mov rsi, r12", "call [r12]", "mov rbx, rax" $(, $restore)*],
            resume: [
                "test rbx, rbx",
                "jz {resume}",
                "mov [rsp + {frame}], rbx",
                // POPFQ is slow, and needed only where more than the status flags are not as they are now.
                "mov rax, [rsp + {flags}]",
                "mov rcx, rax",
                "xor rcx, [rsp + {flags_before}]",
                "test ecx, ~{status}",
                "jnz 3f",
                "test eax, {direction}",
                "jnz 3f",
                // OF from bit 11, by an addition that overflows; the others by SAHF, which leaves OF.
                "mov ecx, eax",
                "shr ecx, 11",
                "and ecx, 1",
                "mov ah, al",
                "add cl, 127",
                "sahf",
                "4:"
            ],
            leave: [
                "lea rsp, [rsp + {frame}]",
                "ret",
                "3:",
                "push rax",
                "popfq",
                "jmp 4b",
                "5:",
                "cld",
                "jmp 6b"
            ],
            flags_before = const size_of::<Regs>(),
            word_distance = const WORD_DISTANCE,
            status = const STATUS_FLAGS,
            direction = const DIRECTION_FLAG,
            resume = sym detour_resume,
            $($operand = sym $value,)*
        );
    };
}

/// A trampoline that saves with `insn`, XSAVE or XSAVEC.
macro_rules! xsave_trampoline {
    ($(#[$doc:meta])* $trampoline:ident, $name:ident, $insn:literal) => {
        $trampoline!(
            $(#[$doc])*
            $name,
            [
                "sub rsp, [rip + {room}]",
                "and rsp, -64",
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
                "2:"
            ],
            ["mov eax, [rip + {components}]", "xor edx, edx", "xrstor64 [rsp]"],
            room = sym XSAVE_ROOM,
            components = sym XSAVE_COMPONENTS
        );
    };
}

/// The same kind of trampoline once for each way of saving.
macro_rules! each_way_of_saving {
    ($trampoline:ident, $general:ident, $fxsave:ident, $xsave:ident, $xsavec:ident) => {
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
            "xsave64 [rsp]"
        );

        xsave_trampoline!(
            /// The same, with XSAVEC.
            $trampoline,
            $xsavec,
            "xsavec64 [rsp]"
        );
    };
}

each_way_of_saving!(
    return_trampoline,
    trampoline_general,
    trampoline_fxsave,
    trampoline_xsave,
    trampoline_xsavec
);
each_way_of_saving!(detour_trampoline, detour_general, detour_fxsave, detour_xsave, detour_xsavec);

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
