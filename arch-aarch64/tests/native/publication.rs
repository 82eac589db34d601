//! The publication sequence (SAFE_3), held by its own instructions: QEMU shows stale text to nobody, so only
//! this can.

use probe_arch_aarch64::{Aarch64, Lines};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, NativeArch, NativeCalls};

unsafe extern "C" {
    static probe_aarch64_publish: [u8; 0];
    static probe_aarch64_publish_end: [u8; 0];
}

/// The words of the sequence that matter, in the order of their addresses, with (distance, name).
fn steps() -> Vec<(usize, &'static str)> {
    let start = (&raw const probe_aarch64_publish).cast::<u32>();
    let len = (&raw const probe_aarch64_publish_end).addr() - start.addr();
    // SAFETY: the text between the two labels.
    let words = unsafe { core::slice::from_raw_parts(start, len / 4) };
    let named = words.iter().map(|word| match u32::from_le(*word) {
        word if word & 0xffff_ffe0 == 0xd53b_0020 => "mrs ctr_el0",
        word if word & 0xfff8_001f == 0x37e0_0002 => "tbnz x2, #28",
        word if word & 0xfff8_001f == 0x37e8_0002 => "tbnz x2, #29",
        word if word & 0xffff_ffe0 == 0xd50b_7b20 => "dc cvau",
        word if word & 0xffff_ffe0 == 0xd50b_7520 => "ic ivau",
        0xd503_3b9f => "dsb ish",
        0xd503_3fdf => "isb",
        0xd65f_03c0 => "ret",
        word if word & 0xff00_001f == 0x5400_0003 => "b.lo",
        _ => "",
    });
    named.enumerate().filter(|(_, name)| !name.is_empty()).collect()
}

#[test]
fn safe_3_text_is_published_in_the_architectures_order() {
    let names: Vec<_> = steps().into_iter().map(|(_, name)| name).collect();
    let want = [
        "mrs ctr_el0",
        "tbnz x2, #28",
        "dc cvau",
        "b.lo",
        "dsb ish",
        "tbnz x2, #29",
        "ic ivau",
        "b.lo",
        "dsb ish",
        "isb",
        "ret",
    ];
    assert_eq!(names, want);
}

/// The skips lead past exactly the loop that CTR_EL0 makes needless.
#[test]
fn safe_3_idc_and_dic_skip_their_own_half() {
    let steps = steps();
    let at = |index: usize| steps[index].0;
    let start = (&raw const probe_aarch64_publish).cast::<u32>();
    let target = |index: usize| {
        let word = start.with_addr(start.addr() + at(index) * 4);
        // SAFETY: inside the sequence.
        let word = u32::from_le(unsafe { *word });
        let bits = if word >> 24 == 0x37 { 14 } else { 19 };
        let imm = ((word << (32 - 5 - bits)) as i32) >> (32 - bits);
        at(index).wrapping_add_signed(imm as isize)
    };
    assert_eq!(target(1), at(4), "IDC leads to the first dsb");
    assert_eq!(target(5), at(9), "DIC leads to the isb");
    assert_eq!(target(3), at(2), "the cleaning loop");
    assert_eq!(target(7), at(6), "the invalidating loop");
}

#[test]
fn safe_3_any_range_can_be_published() {
    let text = [0u8; 300];
    for (from, len) in [(0, 0), (0, 1), (3, 4), (60, 8), (0, 300), (299, 1)] {
        // SAFETY: inside `text`.
        unsafe { Aarch64::publish(CodeAddr::new(text.as_ptr().addr() + from), len) };
    }
    let ctr: u64;
    // SAFETY: reads an identification register that processes may read.
    unsafe { core::arch::asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack)) };
    let lines = Lines::from_ctr_el0(ctr);
    assert!(lines.data_bytes.is_none_or(|bytes| (16..=2048).contains(&bytes)));
}

#[test]
fn jmp_2_the_return_trap_is_a_breakpoint() {
    let at = Aarch64.jprobe_return_trap();
    // SAFETY: text of the backend.
    let bytes = unsafe { *(at.as_usize() as *const [u8; 4]) };
    assert!(Aarch64::is_breakpoint(at, &bytes));
    assert_ne!(bytes, Aarch64::BREAKPOINT);
}
