//! Publication (SAFE_3): QEMU shows stale text to nobody, so this holds no more than that what has been
//! published runs.

use probe_arch_riscv64::Riscv64;
use probe_core::CodeAddr;
use probe_core::arch::{Arch, NativeArch, NativeCalls};

#[test]
fn safe_3_what_has_been_published_is_executed() {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), 4096, all, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    for number in 0..31_u16 {
        // c.li a0, number; c.jr ra
        let code = [0x4501 | number << 2, 0x8082];
        // SAFETY: just mapped, and nobody runs there.
        unsafe { at.cast::<[u16; 2]>().write_volatile(code) };
        // SAFETY: mapped and readable.
        unsafe { Riscv64::publish(CodeAddr::new(at.addr()), 4) };
        // SAFETY: it holds a function of this kind.
        let function = unsafe { core::mem::transmute::<*mut libc::c_void, extern "C" fn() -> usize>(at) };
        assert_eq!(function(), usize::from(number));
    }
    // SAFETY: mapped above.
    unsafe { libc::munmap(at, 4096) };
}

#[test]
fn jmp_2_the_return_trap_is_a_breakpoint() {
    let at = Riscv64.jprobe_return_trap();
    // SAFETY: text of the backend.
    let bytes = unsafe { *(at.as_usize() as *const [u8; 2]) };
    assert!(Riscv64::is_breakpoint(at, &bytes));
}
