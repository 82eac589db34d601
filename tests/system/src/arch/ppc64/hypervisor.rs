//! What a pseries guest asks of its hypervisor: console, interrupts, the radix tree, and RTAS for the rest.

use core::cell::UnsafeCell;

/// Takes a typed character.
pub const H_GET_TERM_CHAR: u64 = 0x54;
/// Prints up to 16 characters.
pub const H_PUT_TERM_CHAR: u64 = 0x58;
/// Ends an interrupt.
pub const H_EOI: u64 = 0x64;
/// Sets which interrupts this CPU takes.
pub const H_CPPR: u64 = 0x68;
/// Interrupts another CPU.
pub const H_IPI: u64 = 0x6c;
/// Takes a pending interrupt.
pub const H_XIRR: u64 = 0x74;
/// Enables interrupts and waits for one.
pub const H_CEDE: u64 = 0xe0;
/// Among others: the byte order of interrupt handlers.
pub const H_SET_MODE: u64 = 0x31c;
/// Says where the process table is.
pub const H_REGISTER_PROC_TBL: u64 = 0x37c;
/// QEMU: RTAS without firmware.
const H_RTAS: u64 = 0xf000;

/// QEMU 7.2's tokens (they stand in the device tree).
pub const RTAS_POWER_OFF: u32 = 0x2003;
/// Starts a CPU.
pub const RTAS_START_CPU: u32 = 0x2006;
/// Panics; with `-action panic=exit-failure` QEMU ends with status 1.
pub const RTAS_OS_TERM: u32 = 0x201f;

/// Calls the hypervisor; returns the status and two results.
pub fn call(number: u64, arguments: [u64; 4]) -> (u64, u64, u64) {
    unsafe extern "C" {
        fn hypervisor_call(block: *mut [u64; 5]);
    }
    let [a, b, c, d] = arguments;
    let mut block = [number, a, b, c, d];
    // SAFETY: the block may be read and written; what the call does is up to our callers in this folder.
    unsafe { hypervisor_call(&raw mut block) };
    (block[0], block[1], block[2])
}

struct Block(UnsafeCell<[u32; 16]>);

// SAFETY: RTAS is called by the boot CPU, or to end the machine.
unsafe impl Sync for Block {}

/// Calls RTAS, whose argument block is big-endian.
pub fn rtas(token: u32, arguments: &[u32]) {
    static BLOCK: Block = Block(UnsafeCell::new([0; 16]));
    let words = [token, arguments.len() as u32, 1];
    let mut block = [0_u32; 16];
    for (word, value) in block.iter_mut().zip(words.iter().chain(arguments)) {
        *word = value.to_be();
    }
    // SAFETY: see `Block`.
    unsafe { BLOCK.0.get().write_volatile(block) };
    call(H_RTAS, [BLOCK.0.get().expose_provenance() as u64, 0, 0, 0]);
}
