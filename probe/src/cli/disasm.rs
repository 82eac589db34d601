//! Disassembly, for people to read. The backends' own decoders decide how an instruction is probed, never
//! this.

use super::foreign::Foreign;
use super::machine;
use object::elf;
use yaxpeax_arch::{Decoder, LengthedInstruction, U8Reader};

/// The instruction at the start of `bytes`, which lies at `addr`; its raw words where no disassembler knows
/// it.
///
/// `name` turns the target of a branch into a symbol.
pub(super) fn instruction(
    machine: elf::Machine,
    is_big_endian: bool,
    bytes: &[u8],
    addr: u64,
    name: &dyn Fn(u64) -> Option<Foreign<String>>,
) -> String {
    let text = match machine {
        elf::EM_X86_64 => yaxpeax_x86::amd64::InstDecoder::default()
            .decode_slice(bytes)
            .ok()
            .map(|insn| (insn.to_string(), insn.len().to_const())),
        elf::EM_386 => yaxpeax_x86::protected_mode::InstDecoder::default()
            .decode_slice(bytes)
            .ok()
            .map(|insn| (insn.to_string(), u64::from(insn.len().to_const()))),
        elf::EM_AARCH64 => yaxpeax_arm::armv8::a64::InstDecoder::default()
            .decode(&mut U8Reader::new(bytes))
            .ok()
            // Branch targets are relative to the instruction itself.
            .map(|insn| (insn.to_string(), 0)),
        _ => None,
    };
    match text {
        Some((text, after)) => absolute(&text, addr.wrapping_add(after), name),
        None => raw(bytes, is_big_endian, machine),
    }
}

/// Replaces `$+0x12` and `$-0x12` by the address that is meant, with its symbol.
fn absolute(text: &str, base: u64, name: &dyn Fn(u64) -> Option<Foreign<String>>) -> String {
    let Some(at) = text.find("$+0x").or_else(|| text.find("$-0x")) else { return text.to_owned() };
    let digits = &text[at + 4..];
    let len = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    let Ok(distance) = u64::from_str_radix(&digits[..len], 16) else { return text.to_owned() };
    let is_back = text[at..].starts_with("$-");
    let target = if is_back { base.wrapping_sub(distance) } else { base.wrapping_add(distance) };
    let symbol = name(target).map(|symbol| format!(" <{}>", symbol.shown())).unwrap_or_default();
    format!("{}{target:#x}{}{symbol}", &text[..at], &digits[len..])
}

/// The words or bytes as they are.
fn raw(bytes: &[u8], is_big_endian: bool, machine: elf::Machine) -> String {
    if machine::backend(machine, is_big_endian).is_some_and(|backend| backend.insn_align == 4) {
        let words = bytes.chunks_exact(4).map(|word| {
            let word = [word[0], word[1], word[2], word[3]];
            if is_big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
        });
        let words: Vec<String> = words.map(|word| format!("{word:#010x}")).collect();
        return format!(".long {}", words.join(", "));
    }
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:#04x}")).collect();
    format!(".byte {}", bytes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(elf::EM_X86_64, &[0x55], "push rbp")]
    #[case(elf::EM_X86_64, &[0xeb, 0x0e], "jmp 0x1010 <there>")]
    #[case(elf::EM_X86_64, &[0xe8, 0xfb, 0xef, 0xff, 0xff], "call 0x0")]
    #[case(elf::EM_386, &[0x40], "inc eax")]
    #[case(elf::EM_AARCH64, &[0x04, 0, 0, 0x14], "b 0x1010 <there>")]
    #[case(elf::EM_PPC64, &[0x00, 0x00, 0x00, 0x60], ".long 0x60000000")]
    #[case(elf::EM_X86_64, &[0x06], ".byte 0x06")]
    fn disassembly(#[case] machine: elf::Machine, #[case] bytes: &[u8], #[case] want: &str) {
        let name = |addr| (addr == 0x1010).then(|| Foreign::new("there".to_owned()));
        assert_eq!(instruction(machine, false, bytes, 0x1000, &name), want);
    }
}
