//! One object's symbols: sorted by address, hashed by name, built once.

use crate::{building, demangle};
use std::sync::OnceLock;

/// What a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Code.
    Function,
    /// A resolver, which returns the address of the implementation (`STT_GNU_IFUNC`).
    Indirect,
    /// A symbol without a type in executable memory: assembly, mostly.
    Label,
    /// Data.
    Data,
}

/// One symbol as a file describes it.
#[derive(Clone, Copy, Debug)]
pub struct RawSymbol<'a> {
    /// The name, with its version (`memcpy@GLIBC_2.2.5`, `memcpy@@GLIBC_2.14`) where it has one.
    pub name: &'a str,
    /// The address in the file's own numbering.
    pub addr: u64,
    /// The length in bytes, 0 where the file does not say.
    pub len_bytes: u64,
    /// What it names.
    pub kind: Kind,
    /// 0 global, 1 weak, 2 local.
    pub locality: u8,
    /// The distance in bytes from the global to the local entry (ppc64 ELFv2).
    pub local_entry: u8,
}

/// One symbol in an [`Index`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The address in the file's own numbering.
    pub addr: usize,
    /// The length in bytes, 0 where the file does not say.
    pub len_bytes: usize,
    name_at: u32,
    name_len: u16,
    /// With the version.
    full_len: u16,
    /// What it names.
    pub kind: Kind,
    locality: u8,
    /// Not the version that a plain name means.
    is_hidden: bool,
    /// The distance in bytes from the global to the local entry (ppc64 ELFv2).
    pub local_entry: u8,
}

impl Entry {
    fn end(&self) -> usize {
        self.addr.saturating_add(self.len_bytes.max(1))
    }
}

/// One object's symbols.
#[derive(Debug, Default)]
pub struct Index {
    names: String,
    /// By address; those at one address with the best name first.
    entries: Vec<Entry>,
    /// The largest end of this and all earlier entries.
    reach: Vec<usize>,
    by_name: Vec<(u64, u32)>,
    demangled: OnceLock<Vec<(u64, u32)>>,
}

/// Collects an [`Index`].
#[derive(Debug, Default)]
pub struct Builder {
    names: String,
    entries: Vec<Entry>,
}

impl Builder {
    /// Adds a symbol.
    pub fn add(&mut self, symbol: &RawSymbol<'_>) {
        let (name, version, is_hidden) = match symbol.name.split_once('@') {
            Some((name, version)) => match version.strip_prefix('@') {
                Some(version) => (name, version, false),
                None => (name, version, true),
            },
            None => (symbol.name, "", false),
        };
        let full_len = name.len() + if version.is_empty() { 0 } else { 1 + version.len() };
        if name.is_empty() || full_len > u16::MAX as usize || self.names.len() > u32::MAX as usize - full_len
        {
            return;
        }
        let name_at = self.names.len() as u32;
        self.names.push_str(name);
        if !version.is_empty() {
            self.names.push('@');
            self.names.push_str(version);
        }
        self.entries.push(Entry {
            addr: symbol.addr as usize,
            len_bytes: symbol.len_bytes as usize,
            name_at,
            name_len: name.len() as u16,
            full_len: full_len as u16,
            kind: symbol.kind,
            locality: symbol.locality,
            is_hidden,
            local_entry: symbol.local_entry,
        });
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sorts what was added. Symbols that several tables have are kept once.
    pub fn finish(self) -> Index {
        let Self { names, mut entries } = self;
        let name = |entry: &Entry| {
            let at = entry.name_at as usize;
            &names[at..at + entry.name_len as usize]
        };
        entries.sort_by(|a, b| {
            let key = |entry: &Entry| {
                let name = name(entry);
                let underscores = name.len() - name.trim_start_matches('_').len();
                (entry.len_bytes == 0, entry.locality, entry.is_hidden, underscores, name.len())
            };
            // Few share an address: their names are not looked at for the others.
            let at_one = || key(a).cmp(&key(b)).then_with(|| name(a).cmp(name(b)));
            a.addr.cmp(&b.addr).then_with(at_one).then(b.full_len.cmp(&a.full_len))
        });
        entries.dedup_by(|b, a| a.addr == b.addr && name(a) == name(b) && !b.is_hidden);
        let reach = entries.iter().scan(0, |reach, entry| {
            *reach = (*reach).max(entry.end());
            Some(*reach)
        });
        let reach = reach.collect();
        let mut by_name = Vec::with_capacity(entries.len());
        for (i, entry) in entries.iter().enumerate() {
            by_name.push((hash(name(entry)), i as u32));
            if entry.full_len > entry.name_len {
                let at = entry.name_at as usize;
                by_name.push((hash(&names[at..at + entry.full_len as usize]), i as u32));
            }
        }
        by_name.sort_unstable();
        Index { names, entries, reach, by_name, demangled: OnceLock::new() }
    }
}

impl Index {
    /// The name as the symbol table spells it, without version.
    pub fn name(&self, entry: &Entry) -> &str {
        &self.names[entry.name_at as usize..][..entry.name_len as usize]
    }

    fn full_name(&self, entry: &Entry) -> &str {
        &self.names[entry.name_at as usize..][..entry.full_len as usize]
    }

    /// All symbols by address.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Calls `found` with every symbol that `name` means: a plain name, one with a version
    /// (`memcpy@GLIBC_2.2.5`; two `@` mean the same as one), or a demangled one.
    ///
    /// Versions that are not the default one count only where the name has no other.
    pub fn find<'a>(&'a self, name: &str, found: &mut dyn FnMut(&'a Entry)) {
        let folded;
        let name = if let Some((plain, version)) = name.split_once("@@") {
            folded = format!("{plain}@{version}");
            &folded
        } else {
            name
        };
        let matches = |entry: &&Entry| self.name(entry) == name || self.full_name(entry) == name;
        let by_name = with_hash(&self.by_name, hash(name)).map(|i| &self.entries[i]).filter(matches);
        let has_default = by_name.clone().any(|entry| !entry.is_hidden);
        let mut any = false;
        for entry in by_name.filter(|entry| !entry.is_hidden || !has_default) {
            any = true;
            found(entry);
        }
        if !any && demangle::is_demangled(name) {
            let mut last = None;
            for i in with_hash(self.demangled(), hash(name)) {
                let mut is_it = false;
                demangle::forms(self.name(&self.entries[i]), &mut |form| is_it |= form == name);
                if is_it && last != Some(i) {
                    last = Some(i);
                    found(&self.entries[i]);
                }
            }
        }
    }

    fn demangled(&self) -> &[(u64, u32)] {
        if let Some(demangled) = self.demangled.get() {
            return demangled;
        }
        let _building = building::begin();
        self.demangled.get_or_init(|| {
            let mut all = Vec::new();
            for (i, entry) in self.entries.iter().enumerate() {
                demangle::forms(self.name(entry), &mut |form| all.push((hash(form), i as u32)));
            }
            all.sort_unstable();
            all
        })
    }

    /// The code symbol that covers `addr`, the best-named one if there are several; a symbol without length
    /// reaches to the next one, but not over data (GNU ld puts constants behind the text, into one segment
    /// with it).
    pub fn covering(&self, addr: usize) -> Option<&Entry> {
        if let Some(entry) = self.covering_sized(addr) {
            return Some(entry);
        }
        if self.reaching(addr).any(|entry| entry.kind == Kind::Data) {
            return None;
        }
        let before = &self.entries[..self.entries.partition_point(|entry| entry.addr <= addr)];
        let last = before.iter().rev().find(|entry| entry.kind != Kind::Data)?.addr;
        let best = before.partition_point(|entry| entry.addr < last);
        let best = before[best..].iter().find(|entry| entry.kind != Kind::Data)?;
        // A label inside a function ends where the function does.
        (best.len_bytes == 0 && self.covering_sized(last).is_none()).then_some(best)
    }

    /// The length of a function in bytes: its symbol's. A function without length (assembly: some of musl's)
    /// reaches to the next function; labels inside it are entries of their own.
    pub fn extent(&self, function: &Entry) -> usize {
        if function.len_bytes != 0 {
            return function.len_bytes;
        }
        let after = &self.entries[self.entries.partition_point(|entry| entry.addr <= function.addr)..];
        let next = after.iter().find(|entry| matches!(entry.kind, Kind::Function | Kind::Indirect));
        let end = next.map(|next| next.addr).or(self.reach.last().copied());
        end.map_or(1, |end| end.saturating_sub(function.addr).max(1))
    }

    /// Every code symbol with a length that covers `addr`: the functions there under all of their names, and
    /// the functions around them. Those that begin last come first.
    pub fn all_covering(&self, addr: usize) -> impl Iterator<Item = &Entry> {
        self.reaching(addr).filter(|entry| entry.kind != Kind::Data && entry.len_bytes != 0)
    }

    /// Every symbol that covers `addr` or has that address. Those that begin last come first.
    fn reaching(&self, addr: usize) -> impl Iterator<Item = &Entry> {
        let after = self.entries.partition_point(|entry| entry.addr <= addr);
        (0..after)
            .rev()
            .take_while(move |&i| self.reach[i] > addr)
            .map(|i| &self.entries[i])
            .filter(move |entry| addr < entry.end())
    }

    /// Of the symbols that begin last, the best-named one.
    fn covering_sized(&self, addr: usize) -> Option<&Entry> {
        let mut all = self.all_covering(addr);
        let first = all.next()?;
        Some(all.take_while(|entry| entry.addr == first.addr).last().unwrap_or(first))
    }
}

/// The indices that are filed under `hash`.
fn with_hash(table: &[(u64, u32)], hash: u64) -> impl Iterator<Item = usize> + Clone + '_ {
    let from = table.partition_point(|(known, _)| *known < hash);
    table[from..].iter().take_while(move |(known, _)| *known == hash).map(|(_, i)| *i as usize)
}

/// FNV-1a, 64 bits.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(symbols: &[(&str, u64, u64, Kind, u8)]) -> Index {
        let mut builder = Builder::default();
        for &(name, addr, len_bytes, kind, locality) in symbols {
            builder.add(&RawSymbol { name, addr, len_bytes, kind, locality, local_entry: 0 });
        }
        builder.finish()
    }

    fn found(index: &Index, name: &str) -> Vec<usize> {
        let mut all = Vec::new();
        index.find(name, &mut |entry| all.push(entry.addr));
        all
    }

    fn at(index: &Index, addr: usize) -> Option<&str> {
        index.covering(addr).map(|entry| index.name(entry))
    }

    #[test]
    fn a_name_in_two_tables_is_one_symbol_and_two_places_are_two() {
        let index = index(&[
            ("f", 0x10, 4, Kind::Function, 0),
            ("f", 0x10, 4, Kind::Function, 0),
            ("g", 0x20, 4, Kind::Function, 2),
            ("g", 0x30, 4, Kind::Function, 2),
        ]);
        assert_eq!(found(&index, "f"), [0x10]);
        assert_eq!(found(&index, "g"), [0x20, 0x30]);
        assert!(found(&index, "h").is_empty());
    }

    #[test]
    fn a_plain_name_means_the_default_version() {
        let index = index(&[
            ("memcpy@GLIBC_2.2.5", 0x10, 4, Kind::Function, 0),
            ("memcpy@@GLIBC_2.14", 0x20, 4, Kind::Function, 0),
            ("old@V1", 0x30, 4, Kind::Function, 0),
        ]);
        assert_eq!(found(&index, "memcpy"), [0x20]);
        assert_eq!(found(&index, "memcpy@GLIBC_2.2.5"), [0x10]);
        assert_eq!(found(&index, "memcpy@@GLIBC_2.14"), [0x20]);
        assert_eq!(found(&index, "memcpy@GLIBC_2.14"), [0x20]);
        assert_eq!(found(&index, "old"), [0x30]);
    }

    #[test]
    fn mangled_and_demangled_names_both_resolve() {
        let index = index(&[
            ("_ZN2ns1fEi", 0x10, 4, Kind::Function, 0),
            ("_ZN2ns1fEd", 0x20, 4, Kind::Function, 0),
            ("_ZN4core3fmt5write17h0123456789abcdefE", 0x30, 4, Kind::Function, 0),
        ]);
        assert_eq!(found(&index, "_ZN2ns1fEi"), [0x10]);
        assert_eq!(found(&index, "ns::f(double)"), [0x20]);
        assert_eq!(found(&index, "ns::f"), [0x10, 0x20]);
        assert_eq!(found(&index, "core::fmt::write"), [0x30]);
        assert_eq!(found(&index, "core::fmt::write::h0123456789abcdef"), [0x30]);
    }

    #[test]
    fn an_address_has_the_name_that_people_know() {
        let index = index(&[
            ("__libc_malloc", 0x10, 16, Kind::Function, 0),
            ("malloc", 0x10, 16, Kind::Function, 0),
            ("local_alias", 0x10, 16, Kind::Function, 2),
        ]);
        assert_eq!(at(&index, 0x1f), Some("malloc"));
        assert_eq!(at(&index, 0x20), None);
        assert_eq!(at(&index, 0xf), None);
    }

    #[test]
    fn all_names_of_an_address_are_found_and_what_it_lies_in() {
        let index = index(&[
            ("outer", 0x10, 0x20, Kind::Function, 2),
            ("g", 0x18, 8, Kind::Function, 0),
            ("alias_of_g", 0x18, 4, Kind::Function, 2),
            ("data", 0x18, 8, Kind::Data, 0),
            ("label", 0x18, 0, Kind::Label, 0),
        ]);
        let names = |addr| index.all_covering(addr).map(|entry| index.name(entry)).collect::<Vec<_>>();
        assert_eq!(names(0x18), ["alias_of_g", "g", "outer"]);
        assert_eq!(names(0x1c), ["g", "outer"]);
        assert_eq!(names(0x20), ["outer"]);
        assert!(names(0x30).is_empty());
    }

    #[test]
    fn labels_reach_to_the_next_symbol_and_lie_inside_functions() {
        let index = index(&[
            ("label", 0x10, 0, Kind::Label, 0),
            ("f", 0x20, 0x20, Kind::Function, 0),
            ("inner", 0x28, 0, Kind::Label, 2),
            ("data", 0x2c, 0, Kind::Data, 0),
        ]);
        assert_eq!(at(&index, 0x1f), Some("label"));
        assert_eq!(at(&index, 0x2a), Some("f"));
        assert_eq!(at(&index, 0x30), Some("f"));
        assert_eq!(at(&index, 0x50), None);
    }

    #[test]
    fn a_function_without_length_reaches_to_the_next_function() {
        let index = index(&[
            ("memcpy", 0x10, 0, Kind::Function, 0),
            ("inner", 0x13, 0, Kind::Label, 0),
            ("table", 0x18, 4, Kind::Data, 0),
            ("memmove", 0x30, 8, Kind::Function, 0),
            ("memset", 0x40, 0, Kind::Function, 0),
        ]);
        let extents: Vec<_> = index.entries().iter().map(|entry| index.extent(entry)).collect();
        assert_eq!((extents[0], extents[3], extents[4]), (0x20, 8, 1));
    }

    #[test]
    fn data_behind_a_label_is_not_the_labels() {
        let index = index(&[("label", 0x10, 0, Kind::Label, 0), ("data", 0x20, 8, Kind::Data, 0)]);
        assert_eq!(at(&index, 0x1f), Some("label"));
        assert_eq!(at(&index, 0x20), None);
        assert_eq!(at(&index, 0x27), None);
    }

    #[test]
    fn a_sized_symbol_ends_the_label_before_it() {
        let index = index(&[("label", 0x10, 0, Kind::Label, 0), ("f", 0x20, 8, Kind::Function, 0)]);
        assert_eq!(at(&index, 0x28), None);
    }
}
