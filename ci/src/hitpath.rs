//! The hit path never panics, allocates or formats: checked on the compiled code, for every architecture.
//!
//! `ci/hitpath` is the smallest kernel: it implements `Host` with calls to functions elsewhere and exports
//! the hit path's entries. It is built as a static library; from the entries every function that can be
//! reached is followed by the relocations of the code. Each Rust function stands in its own section, so this
//! is the call graph without a disassembler, and the same for all architectures. Handlers are called through
//! pointers and are not followed: what they do is their author's business.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::process::Command;

use object::read::archive::ArchiveFile;
use object::{File, Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolSection};

use crate::command::clean;
use crate::matrix::{Mode, TARGETS};

/// Where the exported entries' names begin.
const ENTRY: &str = "hitpath_";

/// Entries that are called through pointers: what stands between the core and typed handlers. Two parts of
/// their demangled names; each must be there, or this check has gone blind.
const POINTED_AT: &[(&str, &str)] = &[
    ("probe_core::face::kretprobe::Asked<", ">::enter"),
    ("probe_core::state::handler::Ending<", ">::call_handler"),
    ("probe_core::state::handler::Ending<", ">::only_drop"),
    ("probe_core::state::handler::Pre<", ">::call_handler"),
    ("probe_kernel_kit::events::Events<", ">::record"),
    ("probe_core::face::kretprobe::AskedBytes<", ">::enter"),
    ("probe_core::state::lender::Lender", ">::read"),
    ("probe_core::state::lender::Lender", ">::write"),
    ("probe_core::state::lender::Lender", ">::note_change"),
];

/// As [`POINTED_AT`], of the target alone whose trampolines do not call the core's functions themselves
/// (`NativeArch::handler`).
const WRAPPED: (&str, (&str, &str)) = ("i586-unknown-linux-gnu", ("probe_arch_i386::asm::in_registers", ""));

/// What must not be reached: by the beginning of the demangled name, and why.
const FORBIDDEN: &[(&str, &str)] = &[
    ("core::panicking::", "panics"),
    ("core::option::unwrap_failed", "panics"),
    ("core::option::expect_failed", "panics"),
    ("core::result::unwrap_failed", "panics"),
    ("core::slice::index::slice_", "panics"),
    ("core::fmt::", "formats"),
    ("alloc::", "allocates"),
    ("__rust_alloc", "allocates"),
    ("__rust_dealloc", "allocates"),
    ("__rust_realloc", "allocates"),
    ("__rustc::__rust_", "allocates"),
    ("rust_begin_unwind", "panics"),
    ("__rustc::rust_begin_unwind", "panics"),
];

/// One function: the object it is in and its section there.
type Place = (usize, usize);

/// The code of a static library, ready to be followed.
struct Graph {
    /// Demangled names of the functions that a section holds.
    names: BTreeMap<Place, Vec<String>>,
    /// What the code of a section refers to.
    calls: BTreeMap<Place, BTreeSet<Target>>,
    /// Where each exported name is defined.
    exported: BTreeMap<String, Place>,
}

/// What a relocation names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Target {
    /// A section of the same object.
    Here(Place),
    /// A name that another object may define.
    Name(String),
}

/// The targets whose compiled hit path is read: those of the kernels that are there. Big-endian ELFv1 calls
/// through descriptors; its sources are the others'.
fn triples(root: &Path) -> impl Iterator<Item = &'static str> {
    let kernels =
        TARGETS.iter().filter(|target| target.mode == Mode::System && crate::job::has_kernel(root, target));
    kernels.filter(|target| !target.abi.contains("ELFv1")).map(|target| target.triple)
}

/// Builds the smallest kernel for every one of [`triples`] and follows its hit path.
///
/// # Errors
/// It does not build, has no entries, or reaches something forbidden (with the chain of calls to it).
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let wrong: Vec<_> = triples(root)
        .filter_map(|triple| check_target(root, triple).err().map(|error| format!("{triple}: {error}")))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn check_target(root: &Path, triple: &str) -> Result<(), String> {
    let target = root.join("target/ci/hitpath");
    // The same versions as the workspace's.
    std::fs::copy(root.join("Cargo.lock"), root.join("ci/hitpath/Cargo.lock"))
        .map_err(|error| format!("cannot copy Cargo.lock: {error}"))?;
    let mut command = clean(Command::new("cargo"));
    command.args(["build", "--quiet", "--release", "--target", triple]).env("CARGO_TARGET_DIR", &target);
    // One spelling of names, whatever this toolchain's default is.
    command.env("RUSTFLAGS", "-C symbol-mangling-version=v0");
    let output = command.current_dir(root.join("ci/hitpath")).output();
    let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let library = target.join(triple).join("release/libprobe_hitpath.a");
    let bytes =
        std::fs::read(&library).map_err(|error| format!("cannot read {}: {error}", library.display()))?;
    let graph = Graph::read(&bytes).map_err(|error| format!("{}: {error}", library.display()))?;
    let wrapped = Some(WRAPPED.1).filter(|_| triple == WRAPPED.0);
    let pointed_at: Vec<_> = POINTED_AT.iter().copied().chain(wrapped).collect();
    graph.follow(&pointed_at)
}

impl Graph {
    fn read(library: &[u8]) -> Result<Self, String> {
        let text = |error: object::Error| error.to_string();
        let mut graph = Self { names: BTreeMap::new(), calls: BTreeMap::new(), exported: BTreeMap::new() };
        for (index, member) in ArchiveFile::parse(library).map_err(text)?.members().enumerate() {
            let data = member.map_err(text)?.data(library).map_err(text)?;
            // A member that is no object is rustc's metadata.
            let Ok(object) = File::parse(data) else { continue };
            graph.add(index, &object);
        }
        Ok(graph)
    }

    fn add(&mut self, index: usize, object: &File<'_>) {
        for symbol in object.symbols().filter(|symbol| symbol.is_definition()) {
            let (SymbolSection::Section(section), Ok(name)) = (symbol.section(), symbol.name()) else {
                continue;
            };
            let place = (index, section.0);
            if symbol.kind() == object::SymbolKind::Text {
                self.names.entry(place).or_default().push(format!("{:#}", rustc_demangle::demangle(name)));
            }
            if symbol.is_global() {
                self.exported.insert(name.to_owned(), place);
            }
        }
        for section in object.sections() {
            let calls = self.calls.entry((index, section.index().0)).or_default();
            for (_, relocation) in section.relocations() {
                let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
                let Ok(symbol) = object.symbol_by_index(symbol) else { continue };
                match (symbol.section(), symbol.name()) {
                    (SymbolSection::Section(section), _) => calls.insert(Target::Here((index, section.0))),
                    (_, Ok(name)) if !name.is_empty() => calls.insert(Target::Name(name.to_owned())),
                    _ => false,
                };
            }
        }
    }

    /// Visits everything that the entries reach, nearest first, and answers each forbidden thing with the way
    /// to it.
    fn follow(&self, pointed_at: &[(&str, &str)]) -> Result<(), String> {
        let exported = self.exported.iter().filter(|(name, _)| name.starts_with(ENTRY));
        let mut entries: Vec<Place> = exported.map(|(_, &place)| place).collect();
        if entries.is_empty() {
            return Err(format!("the library exports nothing that begins with {ENTRY}"));
        }
        for (part, end) in pointed_at {
            let has_both = |name: &String| name.contains(part) && name.contains(end);
            let is_it = |(_, names): &(&Place, &Vec<String>)| names.iter().any(has_both);
            let before = entries.len();
            entries.extend(self.names.iter().filter(is_it).map(|(&place, _)| place));
            if entries.len() == before {
                return Err(format!("the library has no function named like {part}…{end}"));
            }
        }
        let mut came_from: BTreeMap<Place, Place> = BTreeMap::new();
        let mut queue: VecDeque<Place> = entries.into();
        let mut seen: BTreeSet<Place> = queue.iter().copied().collect();
        let mut wrong = Vec::new();
        while let Some(place) = queue.pop_front() {
            for target in self.calls.get(&place).into_iter().flatten() {
                let (next, name) = match target {
                    Target::Here(next) => (Some(*next), None),
                    Target::Name(name) => (self.exported.get(name).copied(), Some(name.as_str())),
                };
                let demangled = name.map(|name| format!("{:#}", rustc_demangle::demangle(name)));
                let names =
                    next.and_then(|next| self.names.get(&next)).into_iter().flatten().chain(&demangled);
                let forbidden = names.filter_map(|name| Some((name, forbidden(name)?))).next();
                if let Some((name, what)) = forbidden {
                    wrong.push(format!("{what}: {} -> {name}", self.way_to(place, &came_from)));
                } else if let Some(next) = next.filter(|next| seen.insert(*next)) {
                    came_from.insert(next, place);
                    queue.push_back(next);
                }
            }
        }
        wrong.sort();
        wrong.dedup();
        if wrong.is_empty() { Ok(()) } else { Err(format!("the hit path {}", wrong.join("\nthe hit path "))) }
    }

    /// The chain of functions from an entry to `place`.
    fn way_to(&self, place: Place, came_from: &BTreeMap<Place, Place>) -> String {
        let mut chain = vec![place];
        while let Some(&before) = chain.last().and_then(|last| came_from.get(last)) {
            chain.push(before);
        }
        let name =
            |place: &Place| self.names.get(place).and_then(|names| names.first()).map_or("?", String::as_str);
        chain.iter().rev().map(name).collect::<Vec<_>>().join(" -> ")
    }
}

/// What is wrong with reaching the function of that name.
fn forbidden(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix('<').unwrap_or(name);
    FORBIDDEN.iter().find(|(beginning, _)| name.starts_with(beginning)).map(|&(_, what)| what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(calls: &[(usize, &[usize])], names: &[&str]) -> Graph {
        let place = |index: usize| (0, index);
        Graph {
            names: names.iter().enumerate().map(|(i, name)| (place(i), vec![(*name).to_owned()])).collect(),
            calls: calls
                .iter()
                .map(|(from, to)| (place(*from), to.iter().map(|&to| Target::Here(place(to))).collect()))
                .collect(),
            exported: BTreeMap::from([("hitpath_breakpoint".to_owned(), place(0))]),
        }
    }

    #[test]
    fn a_panic_deep_down_is_found_with_the_way_to_it() {
        let names =
            ["hitpath_breakpoint", "probe_core::hit::run", "core::panicking::panic_bounds_check", "other"];
        let error = graph(&[(0, &[1]), (1, &[0, 2]), (3, &[2])], &names).follow(&[]).expect_err("it panics");
        assert_eq!(
            error,
            "the hit path panics: hitpath_breakpoint -> probe_core::hit::run -> core::panicking::panic_bounds_check"
        );
    }

    #[test]
    fn what_is_not_reached_may_panic() {
        let names = ["hitpath_breakpoint", "probe_core::hit::run", "core::panicking::panic", "register"];
        assert_eq!(graph(&[(0, &[1]), (3, &[2])], &names).follow(&[]), Ok(()));
    }

    #[test]
    fn a_library_without_entries_is_refused() {
        let mut graph = graph(&[], &["hitpath_breakpoint"]);
        graph.exported.clear();
        assert!(graph.follow(&[]).is_err());
    }

    /// Compiles an entry with this body, which may call `deep`, and follows it.
    fn compiled(name: &str, body: &str) -> Result<(), String> {
        let folder = std::env::temp_dir().join(format!("probe-ci-hitpath-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        let code = format!(
            "static A: [u8; 8] = *b\"01234567\";\n\
             #[inline(never)] pub fn deep(i: usize) -> u8 {{ A[i] }}\n\
             #[unsafe(no_mangle)] pub extern \"C\" fn hitpath_x(i: usize) -> u8 {{ {body} }}\n"
        );
        let (source, library) = (folder.join("lib.rs"), folder.join("lib.a"));
        std::fs::write(&source, code).expect("the source can be written");
        let output = Command::new("rustc")
            .args(["--edition", "2024", "--crate-type", "staticlib", "-C", "opt-level=2", "-o"])
            .args([&library, &source])
            .output()
            .expect("rustc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(&library).expect("the library is there");
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
        Graph::read(&bytes).expect("it is an archive").follow(&[])
    }

    #[test]
    fn compiled_code_that_may_panic_is_found() {
        let error = compiled("panics", "deep(i)").expect_err("it indexes out of bounds");
        assert!(error.contains("deep") && error.contains("core::panicking"), "{error}");
    }

    #[test]
    fn compiled_code_that_cannot_panic_passes() {
        assert_eq!(compiled("fine", "A[i & 7]"), Ok(()));
    }
}
