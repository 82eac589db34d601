//! Loaded instructions: an operation from a dense table, with its operands decoded.

/// One checked instruction. [`Op::Hole`] stands for the second half of LD_IMM64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) dst: u8,
    pub(crate) src: u8,
    /// Whether the second operand is `imm`, or the source register.
    pub(crate) is_imm: bool,
    /// For a jump the index to go to, else the signed offset into memory.
    pub(crate) at: u32,
    /// The immediate, sign-extended; both halves for LD_IMM64; the code of an atomic operation.
    pub(crate) imm: u64,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[rustfmt::skip]
pub(crate) enum Op {
    Add64, Sub64, Mul64, Div64, Sdiv64, Mod64, Smod64, Or64, And64, Xor64, Lsh64, Rsh64, Arsh64, Neg64, Mov64,
    Sx8, Sx16, Sx32,
    Add32, Sub32, Mul32, Div32, Sdiv32, Mod32, Smod32, Or32, And32, Xor32, Lsh32, Rsh32, Arsh32, Neg32, Mov32,
    Sx8To32, Sx16To32,
    Le16, Le32, Le64, Be16, Be32, Be64, Swap16, Swap32, Swap64,
    Ja,
    Jeq64, Jgt64, Jge64, Jset64, Jne64, Jsgt64, Jsge64, Jlt64, Jle64, Jslt64, Jsle64,
    Jeq32, Jgt32, Jge32, Jset32, Jne32, Jsgt32, Jsge32, Jlt32, Jle32, Jslt32, Jsle32,
    Load8, Load16, Load32, Load64, LoadSx8, LoadSx16, LoadSx32,
    Store8, Store16, Store32, Store64,
    Atomic32, Atomic64,
    Wide, Call, Exit, Return, Hole,
}
