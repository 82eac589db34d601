//! The devices of Arm's -M virt: a serial port (PL011), an interrupt controller (GICv2).

/// The page of the serial port's registers.
pub const UART: usize = 0x0900_0000;
const UART_FLAGS: usize = 0x18;
const UART_RECEIVE_EMPTY: u32 = 1 << 4;

/// The page of the distributor's registers.
pub const DISTRIBUTOR: usize = 0x0800_0000;
/// The page of this CPU's interface.
pub const INTERFACE: usize = 0x0801_0000;

const CONTROL: usize = 0;
const ENABLE: usize = 0x100;
const SOFTWARE: usize = 0xf00;
const PRIORITY_MASK: usize = 4;
const ACKNOWLEDGE: usize = 0xc;
const END: usize = 0x10;

fn write(register: usize, value: u32) {
    // SAFETY: the three pages are mapped.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(register).write_volatile(value) };
}

fn read(register: usize) -> u32 {
    // SAFETY: as in `write`.
    unsafe { core::ptr::with_exposed_provenance::<u32>(register).read_volatile() }
}

/// Sends a byte; QEMU's serial port is always ready.
pub fn put_byte(byte: u8) {
    write(UART, byte.into());
}

/// Takes a byte that was typed, if one was.
pub fn take_byte() -> Option<u8> {
    let is_empty = read(UART + UART_FLAGS) & UART_RECEIVE_EMPTY != 0;
    (!is_empty).then(|| read(UART) as u8)
}

/// Turns interrupts on, on this CPU.
pub fn init_interrupts(timer: u32) {
    write(DISTRIBUTOR + CONTROL, 1);
    write(DISTRIBUTOR + ENABLE, 1 << timer);
    write(INTERFACE + PRIORITY_MASK, 0xf0);
    write(INTERFACE + CONTROL, 1);
}

/// Interrupts CPU `number` with software interrupt `id`.
pub fn send_interrupt(number: usize, id: u32) {
    write(DISTRIBUTOR + SOFTWARE, 1 << (16 + number) | id);
}

/// Takes the pending interrupt and ends it at once: the handlers run with interrupts disabled.
pub fn take_interrupt() -> u32 {
    let taken = read(INTERFACE + ACKNOWLEDGE);
    write(INTERFACE + END, taken);
    taken & 0x3ff
}
