//! Return addresses, stack arguments, return stubs: what the two calling conventions have in common.

use crate::mode::Mode;
use crate::registers::Registers;
use crate::simulate::read_word;
use crate::{BREAKPOINT, STUB_LEN};
use probe_core::CodeAddr;
use probe_core::arch::{Entry, MemFault, Memory, Text};

/// How much of the caller's argument area a jprobe's handler gets a copy of, in bytes (the i386 kernel's promise
/// is 64).
pub const ARGUMENT_AREA_LEN: usize = 128;
/// How much lower than its caller's a jprobe's handler finds the stack pointer, in bytes: a multiple of 16, so that it finds
/// the alignment that the caller has made. Simulated instructions push less.
pub const LOWERED_BY: usize = (ARGUMENT_AREA_LEN + 8).next_multiple_of(16);

/// How many stubs' room the veneer at a chunk's end takes.
const VENEER_STUBS: usize = 4;

/// The number of bytes of the ENDBR64 or ENDBR32 that a function starts with, else 0.
#[must_use]
pub fn entry_offset<M: Mode>(text: &dyn Text, function: CodeAddr) -> usize {
    let endbr = if M::IS_LONG { [0xf3, 0x0f, 0x1e, 0xfa] } else { [0xf3, 0x0f, 0x1e, 0xfb] };
    let mut first = [0; 4];
    if text.read(function, &mut first) == first.len() && first == endbr { endbr.len() } else { 0 }
}

/// The integer argument number `index`, from 0, of the call that has just entered a function: the first six in registers in 64-bit
/// mode (RDI, RSI, RDX, RCX, R8, R9), all others on the stack. `None` if that cannot be read.
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

/// Whether the word at `frame` still is `stub`.
///
/// Not judged by the stack pointer: coroutines, signal stacks and migrating stacks lie in any order. A frame
/// that was left by a longjmp counts until something else is written over it.
pub fn may_return<R: Registers, M: Memory>(frame: usize, stub: CodeAddr, memory: &M) -> bool {
    read_word::<R, M>(memory, frame as u64) == Ok(stub.as_usize() as u64)
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

/// Fills a chunk with return stubs; see [`Arch::fill_stubs`](probe_core::arch::Arch::fill_stubs).
///
/// Stub `i` is `call veneer`. The veneer at the chunk's end pushes `handler` and jumps to `trampoline`, which so finds,
/// from the stack pointer up: the handler; the stub's address plus [`STUB_CALL_LEN`]; the stack as it was at
/// the function's return. No register and no flag changes. What is overwritten is below that stack pointer. The
/// call keeps the processor's return-address predictor in step: the trampoline leaves with a RET.
pub fn fill_stubs<M: Mode>(chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    for byte in out.iter_mut() {
        *byte = 0xcc;
    }
    let Some(stubs) = (out.len() / STUB_LEN).checked_sub(VENEER_STUBS) else { return 0 };
    let veneer_at = stubs * STUB_LEN;
    for (number, stub) in out.chunks_exact_mut(STUB_LEN).take(stubs).enumerate() {
        let distance = (veneer_at - number * STUB_LEN - STUB_CALL_LEN) as u32;
        let [a, b, c, d] = distance.to_le_bytes();
        if let Some(call) = stub.first_chunk_mut() {
            *call = [0xe8, a, b, c, d];
        }
    }
    let veneer = if M::IS_LONG {
        veneer64(trampoline.as_usize() as u64, handler as u64)
    } else {
        veneer32(chunk.wrapping_add(veneer_at), trampoline, handler as u32)
    };
    if let Some(room) = out.get_mut(veneer_at..).and_then(|rest| rest.first_chunk_mut()) {
        *room = veneer;
    }
    stubs
}

/// The length of the call that a stub is; what the trampoline finds on the stack is the stub plus this.
pub const STUB_CALL_LEN: usize = 5;

/// `push [rip + 10]; jmp [rip + 12]`, padding, the two words.
fn veneer64(trampoline: u64, handler: u64) -> [u8; VENEER_STUBS * STUB_LEN] {
    let mut code = [BREAKPOINT[0]; VENEER_STUBS * STUB_LEN];
    let parts: [&[u8]; 4] = [
        &[0xff, 0x35, 0x0a, 0, 0, 0, 0xff, 0x25, 0x0c, 0, 0, 0],
        &[0xcc; 4],
        &handler.to_le_bytes(),
        &trampoline.to_le_bytes(),
    ];
    fill(&mut code, &parts);
    code
}

/// `push handler; jmp trampoline`.
fn veneer32(at: CodeAddr, trampoline: CodeAddr, handler: u32) -> [u8; VENEER_STUBS * STUB_LEN] {
    let mut code = [BREAKPOINT[0]; VENEER_STUBS * STUB_LEN];
    let distance = (trampoline.as_usize() as u32).wrapping_sub(at.wrapping_add(10).as_usize() as u32);
    fill(&mut code, &[&[0x68], &handler.to_le_bytes(), &[0xe9], &distance.to_le_bytes()]);
    code
}

fn fill(code: &mut [u8], parts: &[&[u8]]) {
    let bytes = parts.iter().flat_map(|part| part.iter());
    for (to, from) in code.iter_mut().zip(bytes) {
        *to = *from;
    }
}
