//! The trampolines of return probes and detours, and the traps that end detours and jprobes: the only code
//! that must be executed on the architecture itself.
//!
//! A return stub ([`fill_stubs`](probe_core::arch::Calls::fill_stubs)) arrives here with two words pushed on
//! the stack as it was at the function's return (below the arguments that `ret n` drops): the stub's address
//! plus 5, below it the handler's. All registers are untouched. The trampoline builds a [`Regs`] there, calls
//! the handler and resumes from the `Regs`. Its frame description lets an unwinder pass from the handler to
//! the function's caller.
//!
//! A handler may raise the stack pointer but not lower it. The stack pointer has to be aligned to a word, as
//! all compiled code keeps it. Source: System V ABI i386 1.1, 2.2; SDM volume 1, 13.

#![expect(bad_asm_style, reason = "a difference of two symbols can only be written in the other syntax")]

use crate::I386;
use crate::regs::Regs;
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::{
    DetourCalls, DetourLayout, Displaced, NativeArch, NativeCalls, NativeJumps, Resume, SaveSet,
    TrampolineHandler,
};
use probe_core::error::Refusal;
use probe_x86_decode::ProtectedMode;
use probe_x86_decode::call::{self, FOLLOWING_CALL_LEN_32 as FOLLOWING_CALL_LEN, STUB_CALL_LEN};
use probe_x86_decode::detour::{self, PUSHED_LEN, Trampoline, WORDS_LEN};
use probe_x86_decode::detour::{FOLLOW_LEN_32, FOLLOWED_32 as FOLLOWED, NOT_FOLLOWED_32 as NOT_FOLLOWED};
use probe_x86_decode::fpu::{self, Known, LIGHT_OPMASKS, OPMASK, Saver};

/// The size of the XSAVE area and 64 bytes for its alignment. Written before the trampoline's address is
/// known to anyone.
static XSAVE_ROOM: AtomicUsize = AtomicUsize::new(0);
/// The state components to save, EDX:EAX of XSAVE (the upper half is 0).
static XSAVE_COMPONENTS: AtomicU32 = AtomicU32::new(0);

// SAFETY: fetches see stores without further ado (SDM volume 3, 12.6).
unsafe impl NativeArch for I386 {
    const ADDS_TO_MEMORY: bool = true;

    fn handler<T: TrampolineHandler<Regs>>() -> usize {
        in_registers::<T> as extern "fastcall" fn(usize, *mut Regs) -> Resume as usize
    }

    unsafe fn publish(_at: CodeAddr, _len_bytes: usize) {}
}

// SAFETY: the trampolines below keep the protocol of `return_trampoline`: held by the native tests, which
// compare all general, flag, x87 and vector registers around them. `jprobe_return` begins with the
// breakpoint.
unsafe impl NativeCalls<Regs> for I386 {
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
        let fill = if is_program() {
            call::fill_followed_stubs::<ProtectedMode>
        } else {
            call::fill_stubs::<ProtectedMode>
        };
        fill(chunk, trampoline, handler, out)
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new(jprobe_return as *const () as usize)
    }
}

// SAFETY: as above; `detour_resume` begins with the breakpoint.
unsafe impl NativeJumps<Regs> for I386 {
    fn detour_trampoline(self, save: SaveSet) -> CodeAddr {
        choose(save, &DETOURS)
    }

    fn entry_trampoline(self, save: SaveSet) -> Option<CodeAddr> {
        is_program().then(|| choose(save, &ENTRIES))
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
        detour::fill::<ProtectedMode>(displaced, text, place, entry, Trampoline::Following, calls, out)
    }

    fn detour_resume_trap(self) -> CodeAddr {
        CodeAddr::new(detour_resume as *const () as usize)
    }
}

/// The core's function with its arguments in ECX and EDX.
extern "fastcall" fn in_registers<T: TrampolineHandler<Regs>>(word: usize, regs: *mut Regs) -> Resume {
    T::FUNCTION(word, regs)
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

/// A trampoline for each way of saving: the general registers alone, and with FNSAVE, FXSAVE, XSAVE, XSAVEC.
type EachWay = [unsafe extern "C" fn(); 5];

/// The trampoline for this processor's state.
fn choose(save: SaveSet, [general, fnsave, fxsave, xsave, xsavec]: &EachWay) -> CodeAddr {
    let full = || match saver() {
        Saver::Xsavec => xsavec,
        Saver::Xsave => xsave,
        Saver::Fxsave => fxsave,
        Saver::Fnsave => fnsave,
    };
    let trampoline = if save == SaveSet::General { general } else { full() };
    CodeAddr::new(*trampoline as usize)
}

/// Whether this is a program, where a predicted return is worth some instructions more. A kernel's hits are
/// to be few instructions.
fn is_program() -> bool {
    const PRIVILEGE_LEVEL: u32 = 3;
    let cs: u32;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mov {}, cs", out(reg) cs, options(nomem, nostack, preserves_flags)) };
    cs & PRIVILEGE_LEVEL == PRIVILEGE_LEVEL
}

fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    #[allow(
        unused_unsafe,
        reason = "a safe function in newer versions of Rust than the oldest that we promise"
    )]
    // SAFETY: i586, the oldest processor that this backend is for, has CPUID.
    let result = unsafe { core::arch::x86::__cpuid_count(leaf, subleaf) };
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

/// TF, DF and AC, which a handler's code does not expect to be set.
const UNEXPECTED: i32 = 1 << 8 | 1 << 10 | 1 << 18;

/// These, and what stands above OF in its byte: IOPL and NT.
const UNUSUAL: i32 = UNEXPECTED | 3 << 12 | 1 << 14;

/// x87, AVX and the upper halves of ZMM0-7: the state components that moves of XMM registers do not preserve.
const NOT_LIGHT: u8 = 1 | 1 << 2 | 1 << 6;

/// The size of the frame, which lies right below the word that EBP points to.
const FRAME: usize = size_of::<Regs>();
/// From that word to the stack as it was at the return: EBP itself, the handler's and the stub's words.
const AT_RETURN: usize = 4 + 8;
/// From a detour trampoline's to the stack as it was at the place: EBP, the return address and what the
/// detour has pushed.
const AT_PLACE: usize = 8 + PUSHED_LEN;
/// The same of a followed function's.
const AT_ENTRY: usize = 8 + WORDS_LEN;

/// From EBP to a register in the frame.
macro_rules! saved {
    ($field:ident) => {
        offset_of!(Regs, $field) as isize - FRAME as isize
    };
}

/// Pushes a word of the frame.
macro_rules! push {
    ($what:literal) => {
        concat!("push ", $what, "\n.cfi_adjust_cfa_offset 4")
    };
}

/// Pushes a segment as a word: in Intel syntax that is taken for half of one.
macro_rules! push_segment {
    ($segment:literal) => {
        concat!(".att_syntax prefix\npushl %", $segment, "\n.intel_syntax noprefix\n.cfi_adjust_cfa_offset 4")
    };
}

/// The part that all trampolines share. It saves EBP, builds a frame of [`Regs`] below it and describes it to
/// unwinders; from then on EBP points to where EBP is saved, and the interrupted stack is `outside` bytes
/// above. `place` pushes EIP and may use EBP. `call` calls the handler, which answers in EAX, and may use ECX
/// and EDX.
///
/// After [`Resume::Unchanged`](probe_core::arch::Resume) only the registers that calls may change are loaded
/// again; `leave` follows, with ESP one word above the saved EBP. Otherwise `changed` runs, all registers are
/// loaded, and `leave_changed` follows, with ESP at the end of the frame's general registers.
///
/// POPFD is slow, so where nothing was changed an addition that overflows sets OF, and SAHF the other status
/// flags. A context with TF, DF, AC, IOPL or NT set takes the slow way.
macro_rules! trampoline {
    (
        $(#[$doc:meta])* $name:ident, outside: $outside:ident, enter: [$($enter:expr),*], place: [$($place:expr),*],
        call: [$($call:expr),*], unchanged: [$($unchanged:expr),*], changed: [$($changed:expr),*],
        leave: [$($leave:expr),*], leave_changed: [$($leave_changed:expr),*],
        $($operands:tt)*
    ) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc simple",
                $($enter,)*
                ".cfi_def_cfa esp, {outside} - 4",
                push!("ebp"),
                push_segment!("ss"),
                // No flag changes before PUSHFD.
                "lea ebp, [esp + 4 + {outside}]",
                push!("ebp"),
                "pushfd",
                ".cfi_adjust_cfa_offset 4",
                push_segment!("cs"),
                $($place,)*
                push!("-1"),
                push_segment!("gs"),
                push_segment!("fs"),
                push_segment!("es"),
                push_segment!("ds"),
                push!("eax"),
                push!("[esp + {frame} - 4 - {ebp_at}]"),
                push!("edi"),
                push!("esi"),
                push!("edx"),
                push!("ecx"),
                push!("ebx"),
                "lea ebp, [esp + {frame}]",
                // The frame of what is interrupted, from the saved registers; the handler's user has put the
                // place or the real return address into `eip`, or the stub's own frame description leads to
                // it.
                ".cfi_def_cfa ebp, {outside}",
                ".cfi_offset eip, {eip} - {outside}",
                ".cfi_offset ebx, {ebx} - {outside}",
                ".cfi_offset esi, {esi} - {outside}",
                ".cfi_offset edi, {edi} - {outside}",
                ".cfi_offset ebp, {ebp} - {outside}",
                "test dword ptr [ebp + {flags}], {unusual}",
                "jnz 5f",
                $($call,)*
                "test eax, eax",
                "jnz 3f",
                $($unchanged,)*
                // OF is bit 3 of this byte, and the highest that is set.
                "add byte ptr [ebp + {flags} + 1], 0x78",
                "mov ah, [ebp + {flags}]",
                "sahf",
                "mov ecx, [ebp + {ecx}]",
                "mov edx, [ebp + {edx}]",
                "mov eax, [ebp + {eax}]",
                ".cfi_remember_state",
                "leave",
                ".cfi_def_cfa esp, {outside} - 4",
                $($leave,)*
                ".cfi_restore_state",
                ".cfi_remember_state",
                "3:",
                $($changed,)*
                "4:",
                "push [ebp + {flags}]",
                "popfd",
                "lea esp, [ebp - {frame}]",
                "pop ebx",
                "pop ecx",
                "pop edx",
                "pop esi",
                "pop edi",
                "pop ebp",
                ".cfi_def_cfa esp, {outside} + {frame} - {eax_at}",
                "pop eax",
                ".cfi_adjust_cfa_offset -4",
                $($leave_changed,)*
                // POPF is slow, and almost never needed.
                ".cfi_restore_state",
                "5:",
                "pushfd",
                "and dword ptr [esp], {usual}",
                "popfd",
                $($call,)*
                "jmp 3b",
                ".cfi_endproc",
                frame = const FRAME,
                outside = const $outside,
                unusual = const UNUSUAL,
                usual = const !UNEXPECTED,
                ebp_at = const offset_of!(Regs, ebp),
                eax_at = const offset_of!(Regs, eax),
                ebx = const saved!(ebx),
                ecx = const saved!(ecx),
                edx = const saved!(edx),
                esi = const saved!(esi),
                edi = const saved!(edi),
                ebp = const saved!(ebp),
                eax = const saved!(eax),
                eip = const saved!(eip),
                flags = const saved!(eflags),
                $($operands)*
            );
        }
    };
}

/// A trampoline of returns that calls `save` before the handler and `restore` after it. `restore` starts with
/// the stack as `save` has left it, and keeps EAX and the registers that calls preserve.
macro_rules! return_trampoline {
    (
        $(#[$doc:meta])* $name:ident,
        [$($save:literal),*], [$($restore:literal),*] $(, $($operands:tt)+)?
    ) => {
        trampoline!(
            $(#[$doc])* $name,
            outside: AT_RETURN,
            enter: [],
            place: ["mov ebp, [esp + {frame} - {cs_at} + 8]", "lea ebp, [ebp - {stub_call_len}]", push!("ebp")],
            call: [
                $($save,)*
                "mov ecx, [ebp + {eip}]",
                "lea edx, [ebp - {frame}]",
                "call [ebp + 4]"
                $(, $restore)*
            ],
            unchanged: ["mov ecx, [ebp + {eip}]", "mov [ebp + 8], ecx"],
            changed: [
                // RET takes the target from right below the stack pointer that is resumed with.
                "sub dword ptr [ebp + {esp}], 4",
                "mov eax, [ebp + {esp}]",
                "mov ecx, [ebp + {eip}]",
                "mov [eax], ecx"
            ],
            leave: ["lea esp, [esp + 4]", "ret"],
            leave_changed: ["mov esp, [esp + {frame} - {eax_at} - 4 + {esp}]", "ret"],
            stub_call_len = const STUB_CALL_LEN,
            cs_at = const offset_of!(Regs, cs),
            esp = const saved!(esp),
            $($($operands)+)?
        );
    };
}

/// The same of detours.
macro_rules! detour_trampoline {
    (
        $(#[$doc:meta])* $name:ident,
        [$($save:literal),*], [$($restore:literal),*] $(, $($operands:tt)+)?
    ) => {
        any_detour_trampoline!(
            $(#[$doc])* $name, AT_PLACE, [$($save),*], [$($restore),*],
            pushed = const PUSHED_LEN,
            to_copy = const 0,
            $($($operands)+)?
        );
    };
}

/// The trampoline of a detour that follows a call. It returns to the code that leads to the call before the
/// stub, not to the first copy; the stub's address is the return address by then. The detour itself takes
/// back the words that this needs.
macro_rules! entry_trampoline {
    (
        $(#[$doc:meta])* $name:ident,
        [$($save:literal),*], [$($restore:literal),*] $(, $($operands:tt)+)?
    ) => {
        any_detour_trampoline!(
            $(#[$doc])* $name, AT_ENTRY,
            [$($save),*],
            [
                $($restore,)*
                "mov ecx, [ebp + 4]",
                "lea edx, [ecx + {not_followed}]",
                "cmp eax, {is_followed}",
                "jb 22f",
                "lea edx, [ecx + {followed}]",
                "mov [ebp + {outside} - 4], edx",
                "mov edx, [ebp + {outside}]",
                "sub edx, {following_call}",
                "mov [ebp + {outside} - 8], edx",
                "mov edx, ecx",
                "sub eax, {is_followed}",
                "22:",
                "mov [ebp + 4], edx"
            ],
            pushed = const 0,
            to_copy = const FOLLOW_LEN_32 - NOT_FOLLOWED,
            is_followed = const Resume::Followed as usize,
            followed = const FOLLOWED,
            not_followed = const NOT_FOLLOWED,
            following_call = const FOLLOWING_CALL_LEN,
            $($($operands)+)?
        );
    };
}

/// One of detours, `outside` as for [`trampoline`].
macro_rules! any_detour_trampoline {
    (
        $(#[$doc:meta])* $name:ident, $outside:ident, [$($save:literal),*], [$($restore:literal),*], $($operands:tt)+
    ) => {
        trampoline!(
            $(#[$doc])* $name,
            outside: $outside,
            // The interrupted function is at the place itself, not behind a call.
            enter: [".cfi_signal_frame"],
            // The place is the second word of what the core's word, which the detour has pushed last, points
            // to.
            place: ["mov ebp, [esp + {frame} - {cs_at} + 8]", push!("[ebp + 4]")],
            call: [
                $($save,)*
                "mov ecx, [ebp + 8]",
                "lea edx, [ebp - {frame}]",
                "call [ecx]"
                $(, $restore)*
            ],
            unchanged: [],
            changed: [
                "cmp eax, 2",
                "jb 4f",
                "ja 6f",
                // Not far behind the call is the first copy.
                "mov eax, [ebp + 4]",
                "add eax, {to_copy}",
                "mov [ebp + {eip}], eax",
                "6:",
                "sub ebp, {frame}",
                "jmp {resume}"
            ],
            leave: ["ret {pushed}"],
            leave_changed: ["lea esp, [esp + {frame} - {eax_at}]", "ret {pushed}"],
            cs_at = const offset_of!(Regs, cs),
            resume = sym detour_resume,
            $($operands)+
        );
    };
}

/// A trampoline that saves with `insn`, XSAVE or XSAVEC, unless `light` has saved what there is and gone to
/// `8`.
macro_rules! xsave_trampoline {
    (
        $(#[$doc:meta])* $trampoline:ident, $name:ident, $insn:literal,
        [$($light:literal),*], [$($light_restore:literal),*] $(, $operand:ident = const $value:expr)* $(,)?
    ) => {
        $trampoline!(
            $(#[$doc])*
            $name,
            [
                // Position-independent: the statics are addressed from here.
                "call 2f",
                "2: pop ebx",
                // The difference of two symbols is beyond Intel syntax here.
                ".att_syntax prefix",
                "subl {room} - 2b(%ebx), %esp",
                ".intel_syntax noprefix",
                "and esp, -64",
                $($light,)*
                "7:",
                // XRSTOR wants the header's unused words to be 0.
                "lea edi, [esp + 512]",
                "xor eax, eax",
                "mov ecx, 16",
                "rep stosd",
                "xor edx, edx",
                ".att_syntax prefix",
                "movl {components} - 2b(%ebx), %eax",
                ".intel_syntax noprefix",
                $insn,
                // The x87 stack holds a floating-point number that is returned; the handler must find it
                // empty.
                "test byte ptr [esp + 512], 1",
                "jz 6f",
                "fninit",
                "6:",
                "8:"
            ],
            [
                "mov edi, eax",
                $($light_restore,)*
                "7:",
                // Every return from a signal handler makes x87 count as used. An empty stack, no flag and the
                // control word of a reset are to count as what they are: the next time there is less to do.
                "cmp dword ptr [esp], 0x37f",
                "jne 9f",
                "cmp byte ptr [esp + 4], 0",
                "jne 9f",
                "and byte ptr [esp + 512], 0xfe",
                "9:",
                ".att_syntax prefix",
                "movl {components} - 2b(%ebx), %eax",
                ".intel_syntax noprefix",
                "xor edx, edx",
                "xrstor [esp]",
                "8:",
                "mov eax, edi",
                "mov ebx, [ebp + {ebx}]",
                "mov edi, [ebp + {edi}]"
            ],
            room = sym XSAVE_ROOM,
            components = sym XSAVE_COMPONENTS,
            $($operand = const $value,)*
        );
    };
}

/// The same kind of trampoline once for each way of saving.
macro_rules! each_way_of_saving {
    (
        $trampoline:ident, $all:ident,
        $general:ident, $fnsave:ident, $fxsave:ident, $xsave:ident, $xsavec:ident
    ) => {
        static $all: EachWay = [$general, $fnsave, $fxsave, $xsave, $xsavec];

        $trampoline!(
            /// Saves the general registers and flags alone.
            $general,
            ["and esp, -16"],
            []
        );

        $trampoline!(
            /// Also saves the x87 state; FNSAVE leaves the x87 stack empty.
            $fnsave,
            ["sub esp, 112", "and esp, -16", "fnsave [esp]"],
            ["frstor [esp]"]
        );

        $trampoline!(
            /// Also saves x87 and SSE state. The x87 stack may hold the return value; the handler must find
            /// it empty.
            $fxsave,
            ["sub esp, 512", "and esp, -64", "fxsave [esp]", "fninit"],
            ["fxrstor [esp]"]
        );

        xsave_trampoline!(
            /// Also saves all state components that the ABI can return in or a handler can clobber.
            $trampoline,
            $xsave,
            "xsave [esp]",
            [],
            []
        );

        xsave_trampoline!(
            /// The same, with XSAVEC. That and XRSTOR cost several times as much as all the rest of a hit.
            /// Where XGETBV says that x87 and the upper halves of YMM and ZMM are as after a reset, which
            /// most code leaves them at calls, moves do.
            $trampoline,
            $xsavec,
            "xsavec [esp]",
            [
                "mov ecx, 1",
                "xgetbv",
                // There is room between the area and the frame.
                "mov [ebp - {frame} - 8], eax",
                "test al, {not_light}",
                "jnz 7f",
                "stmxcsr [esp + 24]",
                ".irp n,0,1,2,3,4,5,6,7",
                "movaps [esp + 160 + 16*\\n], xmm\\n",
                ".endr",
                ".att_syntax prefix",
                "testb ${opmask}, {components} - 2b(%ebx)",
                ".intel_syntax noprefix",
                "jz 8f",
                ".irp n,0,1,2,3,4,5,6,7",
                "kmovq [esp + {opmasks} + 8*\\n], k\\n",
                ".endr",
                "jmp 8f"
            ],
            [
                "test byte ptr [ebp - {frame} - 8], {not_light}",
                "jnz 7f",
                "vzeroupper",
                "mov ecx, 1",
                "xgetbv",
                "test al, 1",
                "jz 9f",
                "fninit",
                "9:",
                "stmxcsr [ebp - {frame} - 8]",
                "mov eax, [ebp - {frame} - 8]",
                "cmp eax, [esp + 24]",
                "je 9f",
                "ldmxcsr [esp + 24]",
                "9:",
                ".irp n,0,1,2,3,4,5,6,7",
                "movaps xmm\\n, [esp + 160 + 16*\\n]",
                ".endr",
                ".att_syntax prefix",
                "testb ${opmask}, {components} - 2b(%ebx)",
                ".intel_syntax noprefix",
                "jz 8f",
                ".irp n,0,1,2,3,4,5,6,7",
                "kmovq k\\n, [esp + {opmasks} + 8*\\n]",
                ".endr",
                "jmp 8f"
            ],
            not_light = const NOT_LIGHT,
            opmask = const OPMASK,
            opmasks = const LIGHT_OPMASKS,
        );
    };
}

each_way_of_saving!(
    return_trampoline,
    RETURNS,
    return_general,
    return_fnsave,
    return_fxsave,
    return_xsave,
    return_xsavec
);
each_way_of_saving!(
    detour_trampoline,
    DETOURS,
    detour_general,
    detour_fnsave,
    detour_fxsave,
    detour_xsave,
    detour_xsavec
);
each_way_of_saving!(
    entry_trampoline,
    ENTRIES,
    entry_general,
    entry_fnsave,
    entry_fxsave,
    entry_xsave,
    entry_xsavec
);

/// Where a detour's trampoline traps, with EBP pointing to the registers to go on with.
#[unsafe(naked)]
unsafe extern "C" fn detour_resume() {
    naked_asm!("int3", "ud2");
}

/// Where a jprobe's handler returns to: a breakpoint.
#[unsafe(naked)]
unsafe extern "C" fn jprobe_return() {
    naked_asm!("int3", "ud2");
}
