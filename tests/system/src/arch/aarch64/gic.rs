//! The interrupt controller of -M virt, a GICv2.

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
    // SAFETY: both pages are mapped.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(register).write_volatile(value) };
}

/// Turns interrupts on, on this CPU.
pub fn init_cpu(timer: u32) {
    write(DISTRIBUTOR + CONTROL, 1);
    write(DISTRIBUTOR + ENABLE, 1 << timer);
    write(INTERFACE + PRIORITY_MASK, 0xf0);
    write(INTERFACE + CONTROL, 1);
}

/// Interrupts CPU `number` with software interrupt `id`.
pub fn send(number: usize, id: u32) {
    write(DISTRIBUTOR + SOFTWARE, 1 << (16 + number) | id);
}

/// Takes the pending interrupt and ends it at once: the handlers run with interrupts disabled.
pub fn take() -> u32 {
    // SAFETY: the page is mapped.
    let taken = unsafe { core::ptr::with_exposed_provenance::<u32>(INTERFACE + ACKNOWLEDGE).read_volatile() };
    write(INTERFACE + END, taken);
    taken & 0x3ff
}
