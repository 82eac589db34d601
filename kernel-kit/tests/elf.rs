//! The symbols of this test program itself, read as a kernel would read its own.
#![cfg(all(feature = "elf", target_os = "linux"))]

use probe_kernel_kit::elf::{ElfError, ElfSymbols};
use probe_kernel_kit::symbols::Table;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn kernel_kit_first(a: usize) -> usize {
    std::hint::black_box(a) + 1
}

std::arch::global_asm!(
    ".pushsection .text.kernel_kit_labels,\"ax\"",
    "kernel_kit_label: .skip 24, 0x90",
    "kernel_kit_sized: .skip 16, 0x90",
    ".type kernel_kit_sized, %function",
    ".size kernel_kit_sized, 16",
    ".globl kernel_kit_label",
    ".globl kernel_kit_sized",
    ".popsection",
);

unsafe extern "C" {
    fn kernel_kit_label();
    fn kernel_kit_sized();
}

fn own_file() -> Vec<u8> {
    std::fs::read("/proc/self/exe").expect("it is there")
}

#[test]
fn functions_are_found_by_name_and_by_address() {
    let file = own_file();
    let symbols = ElfSymbols::read(&file).expect("it is an ELF file");
    let of = |name: &str| {
        let found: Vec<_> = symbols.named(name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0]
    };
    assert_eq!(kernel_kit_first(1), 2);
    let first = of("kernel_kit_first");
    assert!(first.len_bytes > 0);
    // The program lies anywhere: distances are the file's.
    let (label, sized) = (of("kernel_kit_label"), of("kernel_kit_sized"));
    let distance = kernel_kit_sized as *const () as usize - kernel_kit_label as *const () as usize;
    assert_eq!((sized.start - label.start, sized.len_bytes), (distance, 16));
    assert_eq!(label.len_bytes, 24);
    assert_eq!(symbols.covering(first.start).map(|found| found.name), Some("kernel_kit_first"));
    let inside = symbols.covering(sized.start + 15).map(|found| found.name);
    assert_eq!(inside, Some("kernel_kit_sized"));
    assert_eq!(symbols.covering(label.start + 23).map(|found| found.name), Some("kernel_kit_label"));
    assert_eq!(symbols.named("kernel_kit").count(), 0);
    let mut before = 0;
    for function in symbols.all() {
        assert!(function.start >= before && function.len_bytes > 0, "{function:?}");
        before = function.start;
        assert!(symbols.named(function.name).any(|found| found == function), "{function:?}");
    }
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let file = own_file();
    let error = |file: &[u8]| ElfSymbols::read(file).err();
    assert_eq!(error(b""), Some(ElfError::NotElf));
    assert_eq!(error(&[0; 64]), Some(ElfError::NotElf));
    let mut other = file.clone();
    other[4] ^= 3;
    assert_eq!(error(&other), Some(ElfError::OtherMachine));
    // Into the last section's header, which is the file's end.
    assert_eq!(error(&file[..file.len() - 40]), Some(ElfError::CutOff));
    assert_eq!(error(&file[..64]), Some(ElfError::CutOff));
    let mut stripped = file;
    let sections = if size_of::<usize>() == 8 { 60..62 } else { 48..50 };
    stripped[sections].fill(0);
    assert_eq!(error(&stripped), Some(ElfError::Stripped));
}

/// Whatever bytes are changed: an answer, and no panic.
#[test]
fn nothing_in_a_file_is_believed() {
    let file = own_file();
    let sections =
        usize::from_ne_bytes(*file[if size_of::<usize>() == 8 { 40.. } else { 32.. }].first_chunk().unwrap());
    let mut file = file;
    // The head, and every byte of a section's header in one of them.
    for at in (16..64).chain((sections..file.len()).step_by(11)) {
        let before = std::mem::replace(&mut file[at], [0, 0x7f, 0xff][at % 3]);
        if let Ok(symbols) = ElfSymbols::read(&file) {
            let _ = symbols.covering(usize::MAX);
        }
        file[at] = before;
    }
}
