//! One relocatable object of the C face, its backend and the core: every name with a prefix, as Linux has the
//! same ones, and nothing that Linux's module loader does not know.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader, Rela, SectionHeader};

use super::{Linux, run_command};
use crate::command::clean;
use crate::kernel_packages::FOLDER;
use crate::tree::read;

/// What every name of the library begins with in the module.
pub(super) const PREFIX: &str = "our_";
const HEADER: &str = "capi/include/probe.h";

/// What of the library's sections goes where; what is for debuggers and unwinders goes nowhere.
const SECTIONS: &str = "SECTIONS {
  .text : { *(.text .text.*) }
  .rodata : { *(.rodata .rodata.* .data.rel.ro .data.rel.ro.*) }
  .data : { *(.data .data.*) }
  .bss : { *(.bss .bss.* COMMON) }
  /DISCARD/ : { *(.eh_frame*) *(.comment) *(.debug*) *(.gcc_except_table*) *(.llvmbc) *(.llvmcmd) *(.note*) }
}
";

/// The object, and the header with the prefix: `library.o` and `own.h` in the folder that this answers.
pub(super) fn build(root: &Path, linux: &Linux) -> Result<PathBuf, String> {
    let output = root.join(FOLDER).join("library");
    let mut cargo = clean(Command::new("cargo"));
    cargo.args(["build", "--quiet", "--profile", "kernel", "-p", "probe-c", "--no-default-features"]);
    cargo.args(["--target", linux.triple]).arg("--target-dir").arg(&output).current_dir(root);
    run_command({
        cargo.env("RUSTFLAGS", linux.flags);
        cargo
    })?;
    let archive = output.join(linux.triple).join("kernel/libprobe_c.a");
    let folder = linux.folder(root).join("library");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let header = read(&root.join(HEADER))?;
    let names = prefixed(&header);
    let tool = |name: &str| Command::new(format!("{}{name}", linux.tools));
    let mut symbols = tool("nm");
    symbols.args(["--defined-only", "--extern-only", "--format=posix"]).arg(&archive);
    let symbols = run_command(symbols)?;
    let functions = defined(&String::from_utf8_lossy(&symbols), &names);

    fs::write(folder.join("sections.ld"), SECTIONS).map_err(failed)?;
    fs::write(folder.join("prefix.syms"), lines(&functions, |name| format!("{name} {PREFIX}{name}")))
        .map_err(failed)?;
    fs::write(folder.join("keep.syms"), lines(&functions, |name| format!("{PREFIX}{name}")))
        .map_err(failed)?;
    fs::write(folder.join("probe.h"), &header).map_err(failed)?;
    fs::write(folder.join("own.h"), own_header(&names)).map_err(failed)?;
    let mut link = tool("ld");
    link.args(["-r", "--gc-sections", "-e", "probe_kernel_start", "-T", "sections.ld", "-o", "linked.o"]);
    link.args(functions.iter().flat_map(|name| ["-u", name])).arg(&archive).current_dir(&folder);
    run_command(link)?;
    let mut linked = fs::read(folder.join("linked.o")).map_err(failed)?;
    without_got(&mut linked)?;
    fs::write(folder.join("relaxed.o"), linked).map_err(failed)?;
    // Names that are not renamed become local before the others are renamed, or they would be kept, too.
    for (from, to, what) in [
        ("relaxed.o", "renamed.o", "redefine-syms=prefix.syms"),
        ("renamed.o", "library.o", "keep-global-symbols=keep.syms"),
    ] {
        let mut objcopy = tool("objcopy");
        objcopy.args(["--strip-debug", &format!("--{what}"), from, to]).current_dir(&folder);
        run_command(objcopy)?;
    }
    Ok(folder)
}

/// The names that the header can give a prefix.
fn prefixed(header: &str) -> BTreeSet<&str> {
    let names =
        header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(" PROBE_PREFIXED("));
    names.map(|(name, _)| name).filter(|name| !name.contains('(')).collect()
}

/// Those of `names` that the library's table of symbols has as functions.
fn defined<'a>(symbols: &str, names: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let functions: BTreeSet<&str> =
        symbols.lines().filter_map(|line| line.split_once(" T ")).map(|(name, _)| name).collect();
    names.iter().copied().filter(|name| functions.contains(name)).collect()
}

fn lines(names: &BTreeSet<&str>, line: impl Fn(&str) -> String) -> String {
    names.iter().fold(String::new(), |mut text, name| {
        let _ = writeln!(text, "{}", line(name));
        text
    })
}

/// The header with the prefix, after which Linux's names are Linux's again.
fn own_header(names: &BTreeSet<&str>) -> String {
    let undefined = lines(names, |name| format!("#undef {name}"));
    format!("#define PROBE_PREFIX {PREFIX}\n#define PROBE_NO_PT_REGS\n#include \"probe.h\"\n{undefined}")
}

/// Rewrites what goes through a global offset table, which a module has not: a call or jump through an entry
/// becomes a direct one, and a load of an entry the address itself. On x86-64 the standard library's
/// precompiled objects do so; elsewhere nothing does.
fn without_got(object: &mut [u8]) -> Result<(), String> {
    let unreadable = |error: object::Error| format!("the library's object: {error}");
    let mut found: Vec<(usize, usize, u64, i64)> = Vec::new();
    {
        let data = &*object;
        let Ok(header) = elf::FileHeader64::<LittleEndian>::parse(data) else { return Ok(()) };
        if header.e_machine.get(LittleEndian) != elf::EM_X86_64 {
            return Ok(());
        }
        let sections = header.sections(LittleEndian, data).map_err(unreadable)?;
        for section in sections.iter() {
            let Some((relocations, _)) = section.rela(LittleEndian, data).map_err(unreadable)? else {
                continue;
            };
            let target = sections.section(object::SectionIndex(section.sh_info.get(LittleEndian) as usize));
            let text = target.map_err(unreadable)?.sh_offset.get(LittleEndian) as usize;
            let table = section.sh_offset.get(LittleEndian) as usize;
            for (index, relocation) in relocations.iter().enumerate() {
                if matches!(
                    relocation.r_type(LittleEndian, false),
                    elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX
                ) {
                    let at = table + index * size_of::<elf::Rela64<LittleEndian>>();
                    let offset = relocation.r_offset(LittleEndian);
                    found.push((at, text, offset, i64::from(relocation.r_sym(LittleEndian, false))));
                }
            }
        }
    }
    for (row, text, offset, symbol) in found {
        let at = text + offset as usize;
        let start = at.checked_sub(2).ok_or("a relocation before the first instruction")?;
        let insn = object.get_mut(start..at + 4).ok_or("a relocation behind the section's end")?;
        let (offset, kind) = match *insn {
            // call *entry(%rip): addr32 call.
            [0xff, 0x15, ..] => {
                insn[..2].copy_from_slice(&[0x67, 0xe8]);
                (offset, elf::R_X86_64_PLT32)
            }
            // jmp *entry(%rip): jmp; nop.
            [0xff, 0x25, ..] => {
                insn.copy_from_slice(&[0xe9, 0, 0, 0, 0, 0x90]);
                (offset - 1, elf::R_X86_64_PLT32)
            }
            // mov entry(%rip), register: lea.
            [0x8b, modrm, ..] if modrm & 0xc7 == 5 => {
                insn[0] = 0x8d;
                (offset, elf::R_X86_64_PC32)
            }
            _ => return Err(format!("no way around the offset table for {insn:02x?}")),
        };
        object[row..row + 8].copy_from_slice(&offset.to_le_bytes());
        object[row + 8..row + 16].copy_from_slice(&((symbol as u64) << 32 | u64::from(kind.0)).to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_lists_its_names() {
        let header = "#define PROBE_PREFIXED(a, b) PROBE_GLUE(a, b)\n\
            #define kprobe PROBE_PREFIXED(PROBE_PREFIX, kprobe)\n#define probe_stop PROBE_PREFIXED(PROBE_PREFIX, probe_stop)\n";
        let names = prefixed(header);
        assert_eq!(names, BTreeSet::from(["kprobe", "probe_stop"]));
        let symbols = "lib.a[x.o]:\nprobe_stop T 0 10\nmemcpy T 0 10\n";
        assert_eq!(defined(symbols, &names), BTreeSet::from(["probe_stop"]));
        assert!(own_header(&names).ends_with("#undef kprobe\n#undef probe_stop\n"));
    }
}
