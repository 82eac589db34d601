//! Why an instruction is not probed: every code that a decoder of this crate can answer with.
//!
//! The codes are stable; tools may match them. Both modes share them, hence the prefix `x86`.

use probe_core::error::Refusal;

/// The bytes are no instruction whose length is certain.
pub const UNDECODABLE: Refusal = Refusal::not_an_instruction(
    "x86.undecodable",
    "the bytes are no valid instruction, or one whose length is not certain",
);
/// INT3, in either form.
pub const BREAKPOINT: Refusal = Refusal::not_an_instruction(
    "x86.breakpoint",
    "int3 is a breakpoint of somebody else's, and cannot be told from ours when it traps",
);
/// UD0, UD1, UD2.
pub const UNDEFINED: Refusal = Refusal::unsupported(
    "x86.undefined",
    "ud0, ud1 and ud2 are there to be read by their trap handler, which would read our breakpoint",
);
/// INT n, but for the system call.
pub const INTERRUPT: Refusal = Refusal::unsupported(
    "x86.int",
    "int n and into save the address of the slot, which their handler may read or return past",
);
/// INT1.
pub const INT1: Refusal =
    Refusal::unsupported("x86.int1", "int1 raises the debug exception, which belongs to a debugger");
/// IRET.
pub const IRET: Refusal = Refusal::unsupported("x86.iret", "iret returns from an interrupt, out of the slot");
/// CALL, JMP and RET to another segment.
pub const FAR_TRANSFER: Refusal = Refusal::unsupported(
    "x86.far_transfer",
    "a far call, jump or return changes the code segment and leaves the slot",
);
/// SYSRET, SYSEXIT, ERETS, ERETU, UIRET, RSM, SEAMRET.
pub const PRIVILEGED_RETURN: Refusal = Refusal::unsupported(
    "x86.privileged_return",
    "sysret, sysexit, eret, uiret, rsm and seamret go to another context, out of the slot",
);
/// SYSENTER.
pub const SYSENTER: Refusal = Refusal::unsupported(
    "x86.sysenter",
    "sysenter does not return to the next instruction but where the kernel decides",
);
/// HLT.
pub const HLT: Refusal = Refusal::unsupported(
    "x86.hlt",
    "hlt waits for an interrupt that may already have come while the breakpoint was handled",
);
/// STI in front of HLT, MWAIT, SYSEXIT or IRET.
pub const STI_SHADOW: Refusal = Refusal::unsupported(
    "x86.sti_shadow",
    "sti here protects the next instruction from interrupts, which a probe cannot",
);
/// MOV SS, POP SS, LSS.
pub const STACK_SEGMENT: Refusal = Refusal::unsupported(
    "x86.stack_segment",
    "a load of ss protects the next instruction from interrupts, which a probe cannot",
);
/// SWAPGS.
pub const SWAPGS: Refusal = Refusal::unsupported(
    "x86.swapgs",
    "around swapgs the trap handler would run with the wrong per-processor data",
);
/// XBEGIN.
pub const XBEGIN: Refusal = Refusal::unsupported(
    "x86.xbegin",
    "xbegin begins a transaction, which every trap aborts, and names its fallback relative to itself",
);
/// VMLAUNCH, VMRESUME, VMRUN, SKINIT, GETSEC, ENCLU, ENCLS, ENCLV, SEAMCALL.
pub const WORLD_SWITCH: Refusal = Refusal::unsupported(
    "x86.world_switch",
    "entering a virtual machine or an enclave saves and leaves the address of the slot",
);
/// Near branches with the operand-size prefix.
pub const NARROW_BRANCH: Refusal = Refusal::unsupported(
    "x86.narrow_branch",
    "a near branch with an operand-size prefix cuts its target or ignores the prefix, as the vendor decides",
);
/// LOOPE and LOOPNE with a repeat prefix.
pub const REPEATED_LOOP: Refusal = Refusal::unsupported(
    "x86.repeated_loop",
    "loope or loopne with a repeat prefix takes its condition from the opcode or from the prefix, as the vendor decides",
);
/// REX2 and EVEX map 4 (APX).
pub const APX: Refusal = Refusal::unsupported(
    "x86.apx",
    "apx encodings (rex2, evex map 4) are not known to this decoder and include branches",
);
/// A slot too far from what a RIP-relative instruction addresses.
pub const OUT_OF_REACH: Refusal = Refusal::unsupported(
    "x86.out_of_reach",
    "the slot is more than 2 GiB away from what the instruction addresses",
);
/// A copy that outgrows the slot.
pub const TOO_LONG: Refusal =
    Refusal::unsupported("x86.too_long", "the relocated instruction would be longer than 15 bytes");
/// Linux's way out of a signal's handler.
pub const SIGNAL_RETURN: Refusal = Refusal::unsupported(
    "x86.signal_return",
    "unwinders know the way out of a signal's handler by these very bytes",
);
/// CALL and JMP through RIP-relative memory in FS or GS.
pub const SEGMENT_IP_RELATIVE: Refusal = Refusal::unsupported(
    "x86.segment_ip_relative",
    "the branch target is at an address relative to both a segment and the instruction, as no compiler makes it",
);
/// No jump: no symbol says where the function ends.
pub const NO_FUNCTION: Refusal = Refusal::unsupported(
    "x86.no_function",
    "no symbol says where the function ends, so that a jump of five bytes could reach into the next one",
);
/// No jump: the function, or its last block, is too short for it.
pub const NEXT_FUNCTION: Refusal = Refusal::unsupported(
    "x86.next_function",
    "a jump of five bytes would reach into what follows the function",
);
/// No jump: an instruction under it has no copy elsewhere.
pub const NOT_COPIED: Refusal = Refusal::unsupported(
    "x86.not_copied",
    "one of the instructions under the jump cannot run elsewhere without a trap",
);
