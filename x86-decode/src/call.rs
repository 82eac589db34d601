//! Return addresses, stack arguments, return stubs: what the two calling conventions have in common.

use crate::BREAKPOINT;
use crate::mode::Mode;
use crate::registers::Registers;
use crate::simulate::read_word;
use probe_core::CodeAddr;
use probe_core::arch::{Entry, MemFault, Memory, Text};

/// How much of the caller's argument area a jprobe's handler gets a copy of, in bytes (the i386 kernel's
/// promise is 64).
pub const ARGUMENT_AREA_LEN: usize = 128;
/// How far below the caller's stack pointer a jprobe's handler starts, in bytes: a multiple of 16, which
/// keeps the alignment that the caller has made, and more than any simulated instruction pushes.
pub const LOWERED_BY: usize = (ARGUMENT_AREA_LEN + 8).next_multiple_of(16);

/// The room that the veneer at a chunk's end takes, in bytes.
const VENEER_LEN: usize = 32;

/// The number of bytes of the ENDBR64 or ENDBR32 that a function starts with, else 0.
#[must_use]
pub fn entry_offset<M: Mode>(text: &dyn Text, function: CodeAddr) -> usize {
    let endbr = if M::IS_LONG { [0xf3, 0x0f, 0x1e, 0xfa] } else { [0xf3, 0x0f, 0x1e, 0xfb] };
    let mut first = [0; 4];
    if text.read(function, &mut first) == first.len() && first == endbr { endbr.len() } else { 0 }
}

/// The integer argument number `index`, from 0, of the call that has just entered a function: the first six
/// in registers in 64-bit mode (RDI, RSI, RDX, RCX, R8, R9), all others on the stack. `None` if that cannot
/// be read.
#[must_use]
pub fn argument<R: Registers, M: Memory>(regs: &R, index: usize, memory: &M) -> Option<usize> {
    const IN_REGISTERS: [u8; 6] = [7, 6, 2, 1, 8, 9];
    if !R::Mode::IS_LONG {
        return stack_argument(regs, index, memory);
    }
    match IN_REGISTERS.get(index) {
        Some(&number) => Some(regs.general(number) as usize),
        None => stack_argument(regs, index - IN_REGISTERS.len(), memory),
    }
}

/// The machine word number `index` of the caller's argument area, right above the return address.
#[must_use]
pub fn stack_argument<R: Registers, M: Memory>(regs: &R, index: usize, memory: &M) -> Option<usize> {
    let at = index.checked_add(1)?.checked_mul(R::Mode::WORD)?.checked_add(regs.sp())?;
    read_word::<R, M>(memory, at as u64).ok().map(|word| word as usize)
}

/// The return address of the call that has just entered a function, and where it lies.
///
/// # Errors
/// The stack could not be read.
pub fn entry<R: Registers, M: Memory>(regs: &R, memory: &M) -> Result<Entry, MemFault> {
    let frame = regs.sp();
    let return_address = CodeAddr::new(read_word::<R, M>(memory, frame as u64)? as usize);
    Ok(Entry { return_address, frame })
}

/// Replaces the return address of the call that has just entered a function.
///
/// # Errors
/// The stack could not be written.
pub fn set_return_address<R: Registers, M: Memory>(
    regs: &R,
    to: CodeAddr,
    memory: &M,
) -> Result<(), MemFault> {
    let image = (to.as_usize() as u64).to_le_bytes();
    memory.write(regs.sp(), image.get(..R::Mode::WORD).unwrap_or(&image))
}

/// Whether the word at `frame` is still `stub`, or the word that the stub pushes there.
///
/// The stack pointer does not decide: coroutines, signal stacks and migrating stacks lie in any order. A
/// frame that a longjmp has left counts as live until something else is written over it. Without a red zone,
/// a signal between RET and the stub overwrites the word; such a call is given up, and still returns.
pub fn may_return<R: Registers, M: Memory>(frame: usize, stub: CodeAddr, memory: &M) -> bool {
    let Ok(found) = read_word::<R, M>(memory, frame as u64) else { return false };
    found.wrapping_sub(stub.as_usize() as u64) <= STUB_CALL_LEN as u64
}

/// Makes the context call `handler` with a copy of its stack arguments, returning to `return_to`.
///
/// Nothing in memory at or above the stack pointer is written.
///
/// # Errors
/// The stack could not be written; then the registers have not changed.
pub fn enter_jprobe<R: Registers, M: Memory>(
    regs: &mut R,
    handler: usize,
    return_to: CodeAddr,
    memory: &M,
) -> Result<(), MemFault> {
    const SP: u8 = 4;
    let word = R::Mode::WORD;
    let sp = regs.sp();
    let mut area = [0; ARGUMENT_AREA_LEN + 8];
    let image = (return_to.as_usize() as u64).to_le_bytes();
    for (to, from) in area.iter_mut().zip(image.iter().take(word)) {
        *to = *from;
    }
    // The area is longer than most calls' arguments: a stack may end within it.
    for (number, to) in area.chunks_exact_mut(word).enumerate().skip(1) {
        if memory.read(sp.wrapping_add(number * word), to).is_err() {
            break;
        }
    }
    let handler_sp = sp.wrapping_sub(LOWERED_BY);
    memory.write(handler_sp, area.get(..word + ARGUMENT_AREA_LEN).unwrap_or(&area))?;
    regs.set_general(SP, handler_sp as u64);
    regs.set_pc(CodeAddr::new(handler));
    Ok(())
}

/// Fills a chunk with return stubs; see [`Calls::fill_stubs`](probe_core::arch::Calls::fill_stubs).
///
/// Stub `i` is `call veneer`. The veneer at the chunk's end pushes `handler` and jumps to `trampoline`, which
/// finds, from the stack pointer up: the handler; the stub's address plus [`STUB_CALL_LEN`]; the stack as it
/// was at the function's return. No register and no flag changes; only memory below that stack pointer is
/// overwritten. The call keeps the processor's return predictor in step, as the trampoline leaves by RET.
pub fn fill_stubs<M: Mode>(chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    fill_chunk::<M>(chunk, trampoline, handler, out, |stub, _, to_veneer| {
        let [a, b, c, d] = (to_veneer - STUB_CALL_LEN as u32).to_le_bytes();
        put(stub, 0, &[0xe8, a, b, c, d]);
    })
}

/// Fills a chunk with return stubs for functions that detours enter, so that the processor predicts their
/// returns.
///
/// A processor predicts that a return goes to the instruction behind the last call. So a call stands before
/// each stub, and the detour ([`detour`](crate::detour)) leads to that call: the function's return to the
/// stub is predicted, and so is the trampoline's to the caller. The stub itself makes no call; it pushes a
/// word.
///
/// In 64-bit mode the call is `call [rsp - 24]`, which pushes the stub's address to where the return address
/// was. It uses the red zone (System V ABI AMD64 1.0, 3.2.2), which the signals of a program leave alone and
/// a kernel's interrupts do not. 32-bit mode has no red zone: there the call goes to code behind the veneer,
/// which drops the pushed address, as the return address is the stub's already, and jumps to the address in
/// the next word.
pub fn fill_followed_stubs<M: Mode>(
    chunk: CodeAddr,
    trampoline: CodeAddr,
    handler: usize,
    out: &mut [u8],
) -> usize {
    const WORD_AT: usize = 16;
    let stubs = fill_chunk::<M>(chunk, trampoline, handler, out, |stub, at, to_veneer| {
        let word = at.wrapping_add(STUB_CALL_LEN).as_usize();
        if M::IS_LONG {
            // push [rip + d]; jmp veneer
            put(stub, 0, &[0xff, 0x35, WORD_AT as u8 - 6, 0, 0, 0, 0xe9]);
            put(stub, 7, &(to_veneer - 11).to_le_bytes());
            put(stub, WORD_AT, &word.to_le_bytes());
            put(stub, M::STUB_LEN - FOLLOWING_CALL.len(), &FOLLOWING_CALL);
        } else {
            // push word; jmp veneer; call what is behind it
            put(stub, 0, &[0x68]);
            put(stub, 1, &(word as u32).to_le_bytes());
            put(stub, 5, &[0xe9]);
            put(stub, 6, &(to_veneer - 10).to_le_bytes());
            put(stub, M::STUB_LEN - FOLLOWING_CALL_LEN_32, &[0xe8]);
            let to_way = to_veneer + WAY_AT as u32 - M::STUB_LEN as u32;
            put(stub, M::STUB_LEN - FOLLOWING_CALL_LEN_32 + 1, &to_way.to_le_bytes());
        }
    });
    if !M::IS_LONG && stubs != 0 {
        // lea esp, [esp + 8]; jmp [esp]
        put(out, stubs * M::STUB_LEN + WAY_AT, &[0x8d, 0x64, 0x24, 0x08, 0xff, 0x24, 0x24]);
    }
    stubs
}

/// The length of the call in a stub: the trampoline finds the stub's address plus this on the stack.
pub const STUB_CALL_LEN: usize = 5;

/// `call [rsp - 24]`: what stands before the stubs of [`fill_followed_stubs`] in 64-bit mode.
pub const FOLLOWING_CALL: [u8; 4] = [0xff, 0x54, 0x24, 0xe8];

/// The length of the call that stands there in 32-bit mode.
pub const FOLLOWING_CALL_LEN_32: usize = 5;

/// How far behind the veneer what it calls begins, in bytes.
const WAY_AT: usize = 16;

/// Fills a chunk with as many stubs as fit, and the veneer behind them. `fill` gets each stub, its address,
/// and its distance to the veneer.
fn fill_chunk<M: Mode>(
    chunk: CodeAddr,
    trampoline: CodeAddr,
    handler: usize,
    out: &mut [u8],
    fill: impl Fn(&mut [u8], CodeAddr, u32),
) -> usize {
    out.fill(BREAKPOINT[0]);
    let stubs = out.len().saturating_sub(VENEER_LEN) / M::STUB_LEN;
    let (stub_bytes, veneer) = out.split_at_mut(stubs * M::STUB_LEN);
    let veneer_at = chunk.wrapping_add(stub_bytes.len());
    for (number, stub) in stub_bytes.chunks_exact_mut(M::STUB_LEN).enumerate() {
        let at = chunk.wrapping_add(number * M::STUB_LEN);
        fill(stub, at, veneer_at.offset_from(at) as u32);
    }
    if stubs == 0 {
        return 0;
    }
    if M::IS_LONG {
        // push [rip + 10]; jmp [rip + 12]; the two words, aligned: a program may have unaligned accesses
        // fault (AC).
        put(veneer, 0, &[0xff, 0x35, 10, 0, 0, 0, 0xff, 0x25, 12, 0, 0, 0]);
        put(veneer, 16, &(handler as u64).to_le_bytes());
        put(veneer, 24, &(trampoline.as_usize() as u64).to_le_bytes());
    } else {
        // push handler; jmp trampoline
        let distance = trampoline.offset_from(veneer_at.wrapping_add(10)) as u32;
        put(veneer, 0, &[0x68]);
        put(veneer, 1, &(handler as u32).to_le_bytes());
        put(veneer, 5, &[0xe9]);
        put(veneer, 6, &distance.to_le_bytes());
    }
    stubs
}

/// Writes `bytes` at `at`.
fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in out.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}
