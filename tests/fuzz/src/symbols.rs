//! The reader of ELF files on any bytes.

use probe_elf_symbols::arrival::InFile;
use probe_elf_symbols::file::symbols_of;
use probe_elf_symbols::sequences::Sequences;
use std::sync::LazyLock;

/// This program's own file: what inputs are mutations of.
static OWN: LazyLock<Vec<u8>> = LazyLock::new(minimal_object);

/// Reads; then every symbol is found by its name and its address.
pub fn read(data: &[u8]) {
    look(data);
    // Most bytes are no ELF file: the input as changes of one.
    let mut object = OWN.clone();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % object.len();
        object[at] = change[2];
    }
    look(&object);
}

fn look(data: &[u8]) {
    let sequences = Sequences::of_file(data);
    let file = InFile::new(data);
    for at in file.described().into_iter().take(64) {
        let _ = (file.arrival("", at), sequences.refusal(at, || None));
    }
    let Ok(index) = symbols_of(data, None) else { return };
    let mut last = 0;
    for entry in index.entries().iter().take(64) {
        assert!(entry.addr >= last, "sorted by address");
        last = entry.addr;
        let name = index.name(entry).to_owned();
        index.find(&name, &mut |found| assert!(!index.name(found).is_empty() || name.is_empty()));
        let _ = (index.extent(entry), index.covering(entry.addr));
        for covering in index.all_covering(entry.addr) {
            assert!(covering.addr <= entry.addr);
        }
    }
}

/// An object with a section of code, two symbols and their names; of this machine's word size.
fn minimal_object() -> Vec<u8> {
    let is_64 = cfg!(target_pointer_width = "64");
    let (header_len, section_len, symbol_len) = if is_64 { (64, 64, 24) } else { (52, 40, 16) };
    let names = b"\0first\0second\0.text\0.symtab\0.strtab\0";
    let text_at = header_len;
    let names_at = text_at + 32;
    let symbols_at = names_at + names.len();
    let sections_at = symbols_at + 3 * symbol_len;
    let mut out = Vec::new();
    let word = |out: &mut Vec<u8>, value: usize| {
        out.extend_from_slice(&if is_64 {
            (value as u64).to_ne_bytes().to_vec()
        } else {
            (value as u32).to_ne_bytes().to_vec()
        });
    };
    let half = |out: &mut Vec<u8>, value: u16| out.extend_from_slice(&value.to_ne_bytes());
    let int = |out: &mut Vec<u8>, value: usize| out.extend_from_slice(&(value as u32).to_ne_bytes());
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    out.extend_from_slice(&[0x7f, b'E', b'L', b'F', if is_64 { 2 } else { 1 }, order, 1, 0]);
    out.extend_from_slice(&[0; 8]);
    half(&mut out, 3);
    half(&mut out, 62);
    int(&mut out, 1);
    word(&mut out, 0);
    word(&mut out, 0);
    word(&mut out, sections_at);
    int(&mut out, 0);
    for value in [header_len as u16, 0, 0, section_len as u16, 4, 3] {
        half(&mut out, value);
    }
    assert_eq!(out.len(), header_len);
    out.extend_from_slice(&[0x90; 32]);
    out.extend_from_slice(names);
    for (name, at, len, info) in [(0, 0, 0, 0_u8), (1, 0x1000, 16, 0x12), (7, 0x1010, 0, 0x10)] {
        int(&mut out, name);
        if is_64 {
            out.extend_from_slice(&[info, 0]);
            half(&mut out, 1);
            word(&mut out, at);
            word(&mut out, len);
        } else {
            int(&mut out, at);
            int(&mut out, len);
            out.extend_from_slice(&[info, 0]);
            half(&mut out, 1);
        }
    }
    // Name, type, flags, address, offset, length, link, entry length.
    for [name, kind, flags, addr, at, len, link, each] in [
        [0; 8],
        [14, 1, 6, 0x1000, text_at, 32, 0, 0],
        [20, 2, 0, 0, symbols_at, 3 * symbol_len, 3, symbol_len],
        [28, 3, 0, 0, names_at, names.len(), 0, 0],
    ] {
        int(&mut out, name);
        int(&mut out, kind);
        word(&mut out, flags);
        word(&mut out, addr);
        word(&mut out, at);
        word(&mut out, len);
        int(&mut out, link);
        int(&mut out, 0);
        word(&mut out, 1);
        word(&mut out, each);
    }
    out
}
