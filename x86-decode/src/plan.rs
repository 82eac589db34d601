//! What is decided about an instruction: the description that a point keeps.

/// What is needed to simulate an instruction or to build its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it does.
    pub effect: Effect,
    /// Its length in bytes.
    pub len_bytes: u8,
}

// The core keeps one in every point.
const _: () = assert!(size_of::<Plan>() <= 16);

/// The effect of an instruction, or how its slot is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    // ---- run in a slot ------------------------------------------------------------------------------------
    /// The slot holds the instruction unchanged.
    Copy,
    /// The slot holds the instruction with the RIP-relative displacement at byte `displacement_at` moved.
    IpRelative {
        /// Where the four bytes of displacement are.
        displacement_at: u8,
    },
    /// EIP-relative (64-bit mode, prefix 67): the slot holds the absolute form, one SIB byte longer, whose
    /// ModRM byte is at `modrm_at`.
    Ip32Relative {
        /// Where the ModRM byte is.
        modrm_at: u8,
    },
    /// SYSCALL, which leaves the slot's address in RCX, and `int 80h`.
    SystemCall,
    /// JMP through memory in FS or GS, whose base is not in the registers: the slot loads the target into a
    /// general register.
    SegmentJump {
        /// Where the opcode is; ModRM follows.
        opcode_at: u8,
    },
    /// CALL through memory in FS or GS: the slot pushes the target and exchanges it with the return address,
    /// which waits in the general register `borrowed`.
    SegmentCall {
        /// Where the opcode is; ModRM follows.
        opcode_at: u8,
        /// A register that the address does not use.
        borrowed: u8,
    },

    // ---- simulated ----------------------------------------------------------------------------------------
    /// NOP and ENDBR.
    Nop,
    /// JMP rel.
    Jump {
        /// From the next instruction.
        displacement: i32,
    },
    /// Jcc rel.
    Branch {
        /// When it is taken.
        condition: Condition,
        /// From the next instruction.
        displacement: i32,
    },
    /// LOOP, LOOPE, LOOPNE, JCXZ, JECXZ, JRCXZ.
    Loop {
        /// Which one.
        kind: LoopKind,
        /// The size of the counter.
        counter: AddressSize,
        /// From the next instruction.
        displacement: i8,
    },
    /// CALL rel.
    Call {
        /// From the next instruction.
        displacement: i32,
    },
    /// JMP r/m.
    JumpIndirect(Source),
    /// CALL r/m.
    CallIndirect(Source),
    /// RET, RET imm16.
    Return {
        /// How many bytes of arguments it drops.
        drops: u16,
    },
    /// Instructions on the stack and the flags.
    Stack(StackEffect),
    /// MOV r, r (32 or 64 bits).
    MoveRegister {
        /// Where to.
        to: u8,
        /// Where from.
        from: u8,
        /// How much.
        width: Width,
    },
    /// MOV r, imm32, sign-extended if `width` is 64 bits.
    MoveImmediate {
        /// Where to.
        to: u8,
        /// How much.
        width: Width,
        /// The number.
        value: i32,
    },
    /// LEA (32 or 64 bits).
    LoadAddress {
        /// Where to.
        to: u8,
        /// How much.
        width: Width,
        /// The address.
        operand: MemoryOperand,
    },
}

/// The size of a general register access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16 bits.
    Bits16,
    /// 32 bits.
    Bits32,
    /// 64 bits.
    Bits64,
}

/// Simulated instructions whose work is on the stack or in the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackEffect {
    /// PUSH r, full width.
    Push(u8),
    /// PUSH imm, full width, sign-extended.
    PushImmediate(i32),
    /// POP r, full width.
    Pop(u8),
    /// LEAVE, full width.
    Leave,
    /// PUSHF, PUSHFD, PUSHFQ.
    PushFlags(Width),
    /// POPF, POPFD, POPFQ.
    PopFlags(Width),
    /// CLI.
    DisableInterrupts,
    /// STI.
    EnableInterrupts,
}

/// A jump condition: the low four bits of a Jcc opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition(pub u8);

/// Branches on the counter register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopKind {
    /// LOOPNE: while the counter is not 0 and ZF is clear.
    LoopNotEqual,
    /// LOOPE: while the counter is not 0 and ZF is set.
    LoopEqual,
    /// LOOP: while the counter is not 0.
    Loop,
    /// JCXZ, JECXZ, JRCXZ: if the counter is 0; it is not changed.
    JumpIfZero,
}

/// The size of an address or a loop counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSize {
    /// 16 bits.
    Bits16,
    /// 32 bits.
    Bits32,
    /// 64 bits.
    Bits64,
}

impl AddressSize {
    /// The bits of a number of this size.
    #[must_use]
    pub const fn mask(self) -> u64 {
        match self {
            Self::Bits16 => 0xffff,
            Self::Bits32 => 0xffff_ffff,
            Self::Bits64 => u64::MAX,
        }
    }
}

/// Where an indirect branch takes its target from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A general register.
    Register(u8),
    /// Memory, in a segment that starts at 0.
    Memory(MemoryOperand),
}

/// A memory operand's offset: `base + (index << scale) + displacement`, cut to `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOperand {
    /// A general register, [`MemoryOperand::NO_REGISTER`] or [`MemoryOperand::NEXT_IP`].
    pub base: u8,
    /// A general register or [`MemoryOperand::NO_REGISTER`].
    pub index: u8,
    /// How many bits of the sum count.
    pub size: AddressSize,
    /// The shift of the index: 0 to 3.
    pub scale: u8,
    /// Added, sign-extended.
    pub displacement: i32,
}

impl MemoryOperand {
    /// No register: 0.
    pub const NO_REGISTER: u8 = 0xff;
    /// The address of the next instruction.
    pub const NEXT_IP: u8 = 0xfe;
}
