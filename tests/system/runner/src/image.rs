//! The kernel's symbol table (its kallsyms) and command line, written into room that its linker script keeps.
//!
//! Layout of `.kallsyms`, all words 32 bits wide in the kernel's byte order (the kernels lie below 4 GiB):
//! count `n`; `n` entries of five words in the order of addresses (address, length, distance to the local
//! entry, offset and length of the name); `n` entry numbers in the order of names; the names.

use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolFlags, SymbolKind};

/// One function of the kernel.
struct Function {
    addr: u32,
    len_bytes: u32,
    local_entry: u32,
    name: String,
}

/// Returns the ELF file with both sections filled.
pub fn complete(mut elf: Vec<u8>, cmdline: &str) -> Result<Vec<u8>, String> {
    let table = {
        let file = object::File::parse(&*elf).map_err(|e| e.to_string())?;
        table(&functions(&file)?, file.is_little_endian())
    };
    fill(&mut elf, ".kallsyms", &table)?;
    fill(&mut elf, ".cmdline", cmdline.as_bytes())?;
    Ok(elf)
}

fn fill(elf: &mut [u8], section: &str, bytes: &[u8]) -> Result<(), String> {
    let (start, len) = object::File::parse(&*elf)
        .map_err(|e| e.to_string())?
        .section_by_name(section)
        .and_then(|s| s.file_range())
        .ok_or_else(|| format!("the kernel has no section {section}"))?;
    // One byte stays zero: the end of the command line.
    if bytes.len() as u64 >= len {
        return Err(format!("{section} has {len} bytes, {} are needed", bytes.len()));
    }
    elf[start as usize..][..bytes.len()].copy_from_slice(bytes);
    Ok(())
}

fn functions(file: &object::File<'_>) -> Result<Vec<Function>, String> {
    let opd = file.section_by_name(".opd");
    let mut found = Vec::new();
    for symbol in file.symbols() {
        let Some(section) = symbol.section_index().and_then(|i| file.section_by_index(i).ok()) else {
            continue;
        };
        let name = symbol.name().map_err(|e| e.to_string())?;
        let is_descriptor = opd.as_ref().is_some_and(|opd| opd.index() == section.index());
        let is_code = is_descriptor || section.kind() == SectionKind::Text;
        let is_mapping_symbol = name.is_empty() || name.starts_with('$') || name.starts_with(".L");
        if !is_code
            || is_mapping_symbol
            || !matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown)
        {
            continue;
        }
        let addr = if is_descriptor {
            described(&section, symbol.address(), file.is_little_endian())?
        } else {
            symbol.address()
        };
        let local_entry = match (file.architecture(), symbol.flags()) {
            (object::Architecture::PowerPc64, SymbolFlags::Elf { st_other, .. }) => {
                ((1 << (st_other >> 5)) >> 2) << 2
            }
            _ => 0,
        };
        // What the linker script names is no function; the compiler's own functions begin so, too.
        if name.starts_with("__") && symbol.kind() != SymbolKind::Text {
            continue;
        }
        found.push(Function {
            addr: u32::try_from(addr).map_err(|_| format!("{name} lies at {addr:#x}, above 4 GiB"))?,
            len_bytes: symbol.size() as u32,
            local_entry,
            name: format!("{:#}", rustc_demangle::demangle(name)),
        });
    }
    found.sort_by(|a, b| (a.addr, b.len_bytes, &a.name).cmp(&(b.addr, a.len_bytes, &b.name)));
    Ok(without_inner_labels(found))
}

/// Drops labels inside functions; a label on its own (assembly) is as long as the way to the next symbol.
fn without_inner_labels(sorted: Vec<Function>) -> Vec<Function> {
    let mut kept: Vec<Function> = Vec::new();
    let mut end = 0;
    for function in sorted {
        if function.len_bytes == 0 && function.addr < end {
            continue;
        }
        if let Some(label) = kept.last_mut().filter(|last| last.len_bytes == 0) {
            label.len_bytes = function.addr - label.addr;
        }
        end = end.max(function.addr + function.len_bytes);
        kept.push(function);
    }
    kept.retain(|function| function.len_bytes != 0);
    kept
}

/// The code address in a function descriptor (ppc64 ELFv1).
fn described(opd: &object::Section<'_, '_>, at: u64, little: bool) -> Result<u64, String> {
    let data = opd.data().map_err(|e| e.to_string())?;
    let word = data
        .get((at - opd.address()) as usize..)
        .and_then(|d| d.first_chunk())
        .ok_or("a symbol outside .opd")?;
    Ok(if little { u64::from_le_bytes(*word) } else { u64::from_be_bytes(*word) })
}

fn table(functions: &[Function], little: bool) -> Vec<u8> {
    let word = |n: u32| if little { n.to_le_bytes() } else { n.to_be_bytes() };
    let count = functions.len() as u32;
    let mut by_name: Vec<u32> = (0..count).collect();
    by_name.sort_by_key(|&i| (functions[i as usize].name.as_str(), i));

    let mut out = word(count).to_vec();
    let mut name_at = 4 + count * 24;
    for f in functions {
        let len = f.name.len() as u32;
        out.extend([f.addr, f.len_bytes, f.local_entry, name_at, len].into_iter().flat_map(word));
        name_at += len;
    }
    out.extend(by_name.into_iter().flat_map(word));
    out.extend(functions.iter().flat_map(|f| f.name.bytes()));
    out
}
