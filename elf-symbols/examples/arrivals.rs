//! Counts, over the ELF files that are named or lie in folders that are, to which functions no call comes
//! (REG_19), by reason, and which of them have symbols. Files are of any machine with as wide addresses.
//!
//! cargo run --release -p probe-elf-symbols --example arrivals -- /usr/bin /usr/lib/x86_64-linux-gnu

use probe_core::host::Arrival;
use probe_elf_symbols::arrival::InFile;
use probe_elf_symbols::file::read_symbols;
use probe_elf_symbols::index::Kind;
use probe_elf_symbols::sequences::Sequences;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What one reason has refused.
#[derive(Default)]
struct Refused {
    symbols: usize,
    objects: BTreeSet<PathBuf>,
    /// Descriptions whose code no symbol names.
    unnamed: usize,
    /// How many objects have a symbol of that name; of parts the ending stands for all.
    names: BTreeMap<String, usize>,
}

/// Adds a file, or those below a folder; what a link leads to once.
fn add(files: &mut BTreeSet<PathBuf>, path: &Path) {
    let Ok(path) = std::fs::canonicalize(path) else { return };
    if !path.is_dir() {
        // What is not linked yet runs nowhere.
        if path.extension().is_none_or(|extension| extension != "o") {
            files.insert(path);
        }
        return;
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let is_linked_folder = entry.path().is_symlink() && entry.path().is_dir();
        if !is_linked_folder {
            add(files, &entry.path());
        }
    }
}

fn main() {
    let mut files = BTreeSet::new();
    std::env::args().skip(1).for_each(|path| add(&mut files, Path::new(&path)));
    let mut by_reason: BTreeMap<&'static str, Refused> = BTreeMap::new();
    let (mut objects, mut functions, mut sequences) = (0, 0, 0);
    for path in files {
        let Ok(data) = std::fs::read(&path) else { continue };
        let Ok(index) = read_symbols(&path) else { continue };
        let file = InFile::new(&data);
        objects += 1;
        sequences += usize::from(!Sequences::of_file(&data).is_empty());
        let mut named = BTreeSet::new();
        let mut note = |arrival, name: Option<&str>| {
            let Arrival::NotCalled(refusal) = arrival else { return };
            let refused = by_reason.entry(refusal.code).or_default();
            refused.objects.insert(path.clone());
            let Some(name) = name else {
                refused.unnamed += 1;
                return;
            };
            refused.symbols += 1;
            let name = name.find(".cold").map_or(name, |at| &name[at..]);
            *refused.names.entry(name.to_owned()).or_default() += 1;
        };
        for entry in index.entries().iter().filter(|entry| matches!(entry.kind, Kind::Function | Kind::Label))
        {
            if named.insert(entry.addr as u64) {
                functions += 1;
                note(file.arrival(index.name(entry), entry.addr as u64), Some(index.name(entry)));
            }
        }
        for at in file.described().into_iter().filter(|at| !named.contains(at)) {
            note(file.arrival("", at), None);
        }
    }
    println!(
        "{objects} objects, {functions} functions with symbols; {sequences} objects with restartable sequences"
    );
    for (code, refused) in by_reason {
        let objects = refused.objects.len();
        println!(
            "{code}: {} symbols, {} without a symbol, in {objects} objects",
            refused.symbols, refused.unnamed
        );
        let mut names: Vec<_> = refused.names.into_iter().collect();
        names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        names.iter().take(12).for_each(|(name, count)| println!("    {count:>6}  {name}"));
    }
}
