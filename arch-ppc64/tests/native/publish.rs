//! The cache-maintenance sequence: QEMU does not need it, so its instructions are read from the compiled
//! code.

use probe_arch_ppc64::Endian as _;
use probe_arch_ppc64::{Native, NativeEndian};
use probe_core::CodeAddr;
use probe_core::arch::NativeArch;

/// The address of a function's code.
fn code_of(function: usize) -> *const [u8; 4] {
    #[cfg(target_abi = "elfv1")]
    // SAFETY: a function pointer of ELFv1 leads to a descriptor, whose first doubleword is the code's
    // address.
    let function = unsafe { *(function as *const usize) };
    function as *const [u8; 4]
}

#[test]
fn publish_is_dcbst_sync_icbi_sync_isync() {
    let text = [0u32; 64];
    // SAFETY: an array is mapped and readable.
    unsafe { Native::publish(CodeAddr::new(text.as_ptr().addr()), size_of_val(&text)) };
    let code = code_of(Native::publish as *const () as usize);
    let mut sequence = Vec::new();
    for index in 0..400 {
        // SAFETY: the text of this test, which is far longer than what is read behind a function at its
        // start.
        let word = NativeEndian::word(unsafe { code.add(index).read() });
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
