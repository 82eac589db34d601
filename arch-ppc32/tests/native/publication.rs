//! Publication (SAFE_3): QEMU does not need the cache maintenance, so its instructions are read from the
//! compiled code.

use probe_arch_ppc32::Ppc32;
use probe_core::CodeAddr;
use probe_core::arch::{Arch, NativeArch, NativeCalls};

#[test]
fn safe_3_publish_is_dcbst_sync_icbi_sync_isync() {
    let text = [0_u32; 64];
    // SAFETY: an array is mapped and readable.
    unsafe { Ppc32::publish(CodeAddr::new(text.as_ptr().addr()), size_of_val(&text)) };
    let code = Ppc32::publish as *const () as *const u32;
    let mut sequence = Vec::new();
    for index in 0..400 {
        // SAFETY: the text of this test, which is far longer than what is read behind a function at its
        // start.
        let at = unsafe { code.add(index) };
        // SAFETY: as above.
        let word = unsafe { at.read() };
        match (word >> 26, word >> 1 & 0x3ff) {
            (31, 54) => sequence.push("dcbst"),
            (31, 982) => sequence.push("icbi"),
            (31, 598) => sequence.push("sync"),
            (19, 150) => sequence.push("isync"),
            _ => {}
        }
        if sequence.last() == Some(&"isync") {
            break;
        }
    }
    assert_eq!(sequence, ["dcbst", "sync", "icbi", "sync", "isync"]);
}

#[test]
fn jmp_2_the_return_trap_is_a_breakpoint() {
    let at = Ppc32.jprobe_return_trap();
    // SAFETY: text of the backend.
    let bytes = unsafe { *(at.as_usize() as *const [u8; 4]) };
    assert!(Ppc32::is_breakpoint(at, &bytes));
}
