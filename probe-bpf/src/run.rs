//! Running a loaded program: no lock, no allocation, no panic, and an end (PRG_1). May be called in any hit.

use crate::fault::{Cause, Fault};
use crate::helpers::{COUNT, COUNT_KEY, Helpers, MAP_HELPERS, NoHelpers, RECORD, RECORD_KEY, VALUE};
use crate::load::Program;
use crate::map::{Map, Scale};
use crate::memory::{CONTEXT, Memory, STACK, STACK_LEN, value_address};
use crate::step::{Op, Step};

/// What one run works on.
#[derive(Debug)]
pub struct Machine<'a, H = NoHelpers> {
    /// What r1 points to; it can be read.
    pub context: &'a [u8],
    /// The maps, by their indices.
    pub maps: &'a [Map],
    /// What else can be called.
    pub helpers: &'a H,
    /// The number of the context that runs it (a CPU in a kernel, a thread in a process): it chooses the
    /// share of the maps to count in.
    pub number: usize,
    /// How many instructions may be executed.
    pub budget: u32,
}

impl<H> Clone for Machine<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Machine<'_, H> {}

/// Registers: sixteen, more than the eleven in use, so that no index of four bits is outside.
type Registers = [u64; 16];

impl Program {
    /// Runs it; returns r0 at its EXIT.
    ///
    /// # Errors
    /// A fault has ended it before.
    #[inline]
    pub fn run<H: Helpers>(&self, machine: &Machine<'_, H>) -> Result<u64, Fault> {
        // To clear the stack costs more than most programs.
        if self.uses_stack { self.run_with_stack(*machine) } else { self.execute(machine, &mut []) }
    }

    /// By value: what is passed by reference has to lie in memory, for the other way, too.
    #[inline(never)]
    fn run_with_stack<H: Helpers>(&self, machine: Machine<'_, H>) -> Result<u64, Fault> {
        self.execute(&machine, &mut [0; STACK_LEN])
    }

    #[inline(always)]
    fn execute<H: Helpers>(&self, machine: &Machine<'_, H>, stack: &mut [u8]) -> Result<u64, Fault> {
        let mut memory = Memory { stack, context: machine.context, maps: machine.maps };
        let mut regs: Registers = [0; 16];
        regs[1] = CONTEXT;
        regs[10] = STACK + STACK_LEN as u64;
        let mut pc = 0;
        for _ in 0..machine.budget {
            let Some(step) = self.steps.get(pc) else {
                return Err(Fault { pc, cause: Cause::NoInstruction });
            };
            match step_once(step, &mut regs, &mut memory, machine) {
                Ok(Next::Following) => pc += 1,
                Ok(Next::Skip) => pc += 2,
                Ok(Next::At(target)) => pc = target as usize,
                Ok(Next::Exit) => return Ok(regs[0]),
                Ok(Next::Return(result)) => return Ok(result),
                Err(cause) => return Err(Fault { pc, cause }),
            }
        }
        Err(Fault { pc, cause: Cause::BudgetSpent })
    }
}

/// Where to go on.
enum Next {
    Following,
    /// Behind both halves of LD_IMM64.
    Skip,
    At(u32),
    Exit,
    /// With this result.
    Return(u64),
}

/// Executes one step: a table, an arm for each operation.
#[inline(always)]
fn step_once<H: Helpers>(
    step: &Step,
    regs: &mut Registers,
    memory: &mut Memory<'_>,
    machine: &Machine<'_, H>,
) -> Result<Next, Cause> {
    let (dst, src) = (usize::from(step.dst & 15), usize::from(step.src & 15));
    let (a, b) = (regs[dst], if step.is_imm { step.imm } else { regs[src] });
    let (a32, b32) = (a as u32, b as u32);
    let jump = |taken: bool| Ok(if taken { Next::At(step.at) } else { Next::Following });
    // Section 5: the address of a load is the source register's, that of a store the destination's.
    let offset = step.at as i32 as i64;
    let (from, to) = (regs[src].wrapping_add_signed(offset), a.wrapping_add_signed(offset));
    regs[dst] = match step.op {
        Op::Add64 => a.wrapping_add(b),
        Op::Sub64 => a.wrapping_sub(b),
        Op::Mul64 => a.wrapping_mul(b),
        // Section 4.1: the quotient by zero is zero, the remainder what was divided.
        Op::Div64 => a.checked_div(b).unwrap_or(0),
        Op::Sdiv64 => {
            if b == 0 {
                0
            } else {
                (a as i64).wrapping_div(b as i64) as u64
            }
        }
        Op::Mod64 => a.checked_rem(b).unwrap_or(a),
        Op::Smod64 => {
            if b == 0 {
                a
            } else {
                (a as i64).wrapping_rem(b as i64) as u64
            }
        }
        Op::Or64 => a | b,
        Op::And64 => a & b,
        Op::Xor64 => a ^ b,
        Op::Lsh64 => a.wrapping_shl(b32),
        Op::Rsh64 => a.wrapping_shr(b32),
        Op::Arsh64 => (a as i64).wrapping_shr(b32) as u64,
        Op::Neg64 => a.wrapping_neg(),
        Op::Mov64 => b,
        Op::Sx8 => b as i8 as u64,
        Op::Sx16 => b as i16 as u64,
        Op::Sx32 => b as i32 as u64,
        Op::Add32 => a32.wrapping_add(b32).into(),
        Op::Sub32 => a32.wrapping_sub(b32).into(),
        Op::Mul32 => a32.wrapping_mul(b32).into(),
        Op::Div32 => a32.checked_div(b32).unwrap_or(0).into(),
        Op::Sdiv32 => {
            if b32 == 0 {
                0
            } else {
                u64::from((a32 as i32).wrapping_div(b32 as i32) as u32)
            }
        }
        Op::Mod32 => a32.checked_rem(b32).unwrap_or(a32).into(),
        Op::Smod32 => {
            if b32 == 0 {
                a32.into()
            } else {
                u64::from((a32 as i32).wrapping_rem(b32 as i32) as u32)
            }
        }
        Op::Or32 => (a32 | b32).into(),
        Op::And32 => (a32 & b32).into(),
        Op::Xor32 => (a32 ^ b32).into(),
        Op::Lsh32 => a32.wrapping_shl(b32).into(),
        Op::Rsh32 => a32.wrapping_shr(b32).into(),
        Op::Arsh32 => u64::from((a32 as i32).wrapping_shr(b32) as u32),
        Op::Neg32 => a32.wrapping_neg().into(),
        Op::Mov32 => b32.into(),
        Op::Sx8To32 => u64::from(b as i8 as u32),
        Op::Sx16To32 => u64::from(b as i16 as u32),
        Op::Le16 => (a as u16).to_le().into(),
        Op::Le32 => a32.to_le().into(),
        Op::Le64 => a.to_le(),
        Op::Be16 => (a as u16).to_be().into(),
        Op::Be32 => a32.to_be().into(),
        Op::Be64 => a.to_be(),
        Op::Swap16 => (a as u16).swap_bytes().into(),
        Op::Swap32 => a32.swap_bytes().into(),
        Op::Swap64 => a.swap_bytes(),
        Op::Load8 => memory.load::<1>(from)?,
        Op::Load16 => memory.load::<2>(from)?,
        Op::Load32 => memory.load::<4>(from)?,
        Op::Load64 => memory.load::<8>(from)?,
        Op::LoadSx8 => memory.load::<1>(from)? as i8 as u64,
        Op::LoadSx16 => memory.load::<2>(from)? as i16 as u64,
        Op::LoadSx32 => memory.load::<4>(from)? as i32 as u64,
        Op::Wide => {
            regs[dst] = step.imm;
            return Ok(Next::Skip);
        }
        Op::Ja => return Ok(Next::At(step.at)),
        Op::Jeq64 => return jump(a == b),
        Op::Jgt64 => return jump(a > b),
        Op::Jge64 => return jump(a >= b),
        Op::Jset64 => return jump(a & b != 0),
        Op::Jne64 => return jump(a != b),
        Op::Jsgt64 => return jump(a as i64 > b as i64),
        Op::Jsge64 => return jump(a as i64 >= b as i64),
        Op::Jlt64 => return jump(a < b),
        Op::Jle64 => return jump(a <= b),
        Op::Jslt64 => return jump((a as i64) < b as i64),
        Op::Jsle64 => return jump(a as i64 <= b as i64),
        Op::Jeq32 => return jump(a32 == b32),
        Op::Jgt32 => return jump(a32 > b32),
        Op::Jge32 => return jump(a32 >= b32),
        Op::Jset32 => return jump(a32 & b32 != 0),
        Op::Jne32 => return jump(a32 != b32),
        Op::Jsgt32 => return jump(a32 as i32 > b32 as i32),
        Op::Jsge32 => return jump(a32 as i32 >= b32 as i32),
        Op::Jlt32 => return jump(a32 < b32),
        Op::Jle32 => return jump(a32 <= b32),
        Op::Jslt32 => return jump((a32 as i32) < b32 as i32),
        Op::Jsle32 => return jump(a32 as i32 <= b32 as i32),
        Op::Store8 => return memory.store::<1>(to, b).map(|()| Next::Following),
        Op::Store16 => return memory.store::<2>(to, b).map(|()| Next::Following),
        Op::Store32 => return memory.store::<4>(to, b).map(|()| Next::Following),
        Op::Store64 => return memory.store::<8>(to, b).map(|()| Next::Following),
        Op::Atomic32 => {
            let before = memory.atomic::<4>(to, step.imm as i32, b, regs[0])?;
            return Ok(fetched(step, regs, before));
        }
        Op::Atomic64 => {
            let before = memory.atomic::<8>(to, step.imm as i32, b, regs[0])?;
            return Ok(fetched(step, regs, before));
        }
        Op::Call => {
            regs[0] = call(step.imm as i32, regs, machine)?;
            return Ok(Next::Following);
        }
        Op::Exit => return Ok(Next::Exit),
        Op::Return => return Ok(Next::Return(step.imm)),
        Op::Hole => return Err(Cause::NoInstruction),
    };
    Ok(Next::Following)
}

/// Section 5.3: where the value before goes.
fn fetched(step: &Step, regs: &mut Registers, before: u64) -> Next {
    use crate::insn::atomic::{CMPXCHG, FETCH};
    match step.imm as i32 {
        CMPXCHG => regs[0] = before,
        code if code & FETCH != 0 => regs[usize::from(step.src & 15)] = before,
        _ => {}
    }
    Next::Following
}

/// Section 4.3.1: a helper by its number.
#[inline(always)]
fn call<H: Helpers>(number: i32, regs: &Registers, machine: &Machine<'_, H>) -> Result<u64, Cause> {
    let [_, r1, r2, r3, r4, r5, ..] = *regs;
    if !MAP_HELPERS.contains(&number) {
        return machine.helpers.call(number, [r1, r2, r3, r4, r5]).ok_or(Cause::Helper { number });
    }
    let map = usize::try_from(r1).ok().and_then(|index| machine.maps.get(index));
    match (number, map) {
        (COUNT, Some(Map::Counter(counter))) => counter.add(machine.number, r2),
        (RECORD, Some(Map::Histogram(histogram))) => histogram.record(machine.number, r2 as i64),
        (COUNT_KEY, Some(Map::Hash(hash))) => {
            return Ok(u64::from(!hash.add(machine.number, [r2, r3], r4)));
        }
        (RECORD_KEY, Some(Map::Hash(hash))) => {
            let bucket = Scale::Steps.bucket(r3 as i64) as u64;
            return Ok(u64::from(!hash.add(machine.number, [r2, bucket], 1)));
        }
        (VALUE, Some(Map::Array(array))) => {
            return Ok(array.offset_of(r2).map_or(0, |offset| value_address(r1, offset)));
        }
        _ => return Err(Cause::WrongMap { helper: number, map: r1 }),
    }
    Ok(0)
}
