//! ARCHITECTURE: the core has floors. A file imports what is on its own floor or below, the two halves do not
//! know each other, and no files import each other in a circle. Nor do the files of the other crates named
//! here.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, found, without_unit_tests};

/// Where the core's files are.
const CORE: &str = "probe-core/src/";

/// Where no file may import itself by way of others, and whether its parts count.
const WITHOUT_CIRCLES: [(&str, Parts); 14] = [
    ("arch-aarch64/src/", Parts::Apart),
    ("arch-ppc64/src/", Parts::Apart),
    ("arch-riscv64/src/", Parts::Apart),
    ("capi/src/", Parts::Imported),
    ("ci/src/", Parts::Apart),
    ("definitions/src/", Parts::Apart),
    ("elf-symbols/src/", Parts::Imported),
    ("host-linux/src/", Parts::Imported),
    ("kernel-kit/src/", Parts::Imported),
    ("ppc-decode/src/", Parts::Apart),
    ("probe-bpf/src/", Parts::Imported),
    ("probe/src/", Parts::Imported),
    ("unwind/src/", Parts::Imported),
    ("x86-decode/src/", Parts::Imported),
];

/// The floors, from below: each with the folder of that name. Other files are below all of them.
const FLOORS: [(&str, u8); 4] = [("state", 1), ("hit", 2), ("registry", 2), ("face", 3)];

/// Finds imports that lead up or to the other half, and circles.
///
/// # Errors
/// What was found, a line each.
pub(super) fn check(sources: &[Source]) -> Result<(), String> {
    let mut wrong = Vec::new();
    let core = files_of(CORE, sources);
    let arrows = arrows(&core, Parts::Apart);
    for (file, all) in &arrows {
        for to in all {
            let (from_floor, to_floor) = (floor(file), floor(to));
            if to_floor.1 > from_floor.1 || to_floor.1 == from_floor.1 && to_floor.0 != from_floor.0 {
                wrong.push(format!("{CORE}{file}.rs: imports {to}, which is not below it"));
            }
        }
    }
    wrong.extend(circles(CORE, &arrows));
    for (root, parts) in WITHOUT_CIRCLES {
        wrong.extend(circles(root, &self::arrows(&files_of(root, sources), parts)));
    }
    found(wrong)
}

/// Whether a file imports the parts that it is composed of, which are in the folder of its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    /// They name their whole, as optional powers name the trait that they are powers of.
    Apart,
    /// A part that names its whole is a circle.
    Imported,
}

/// The files below a folder by their modules' paths, but for the crate's root.
fn files_of<'a>(root: &str, sources: &'a [Source]) -> BTreeMap<&'a str, &'a str> {
    sources
        .iter()
        .filter_map(|source| {
            let file = source.path.strip_prefix(root)?.strip_suffix(".rs")?;
            Some((file.strip_suffix("/mod").unwrap_or(file), without_unit_tests(&source.text)))
        })
        .filter(|(file, _)| !matches!(*file, "lib" | "main"))
        .collect()
}

/// Which file imports which.
fn arrows<'a>(files: &BTreeMap<&'a str, &'a str>, parts: Parts) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, text) in files {
        let paths = imports(file, text);
        let of_parts = if parts == Parts::Imported { files.keys() } else { Default::default() };
        let of_parts = of_parts.filter(|part| parent(part) == *file && names_part(text, part)).copied();
        let named = paths.iter().filter_map(|path| file_of(path, files));
        arrows.entry(file).or_default().extend(named.chain(of_parts).filter(|to| to != file));
    }
    arrows
}

/// Whether a file uses one of its parts: not only declares it.
fn names_part(text: &str, part: &str) -> bool {
    let name = part.rsplit('/').next().unwrap_or(part);
    let code = code_of(text);
    code.match_indices(&format!("{name}::")).any(|(at, _)| {
        let before = &code[..at];
        before.ends_with("self::")
            || !before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'))
    })
}

/// The circles among files, a line each.
fn circles(root: &str, arrows: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in arrows.keys() {
        if let Some(circle) = circle_from(file, arrows)
            && circle.iter().min() == Some(file)
        {
            wrong.push(format!("{root}{file}.rs: imports itself, by way of {}", circle.join(", ")));
        }
    }
    wrong
}

/// The floor that a file is on, and how high that is.
fn floor(file: &str) -> (&str, u8) {
    let folder = file.split('/').next().unwrap_or(file);
    FLOORS.into_iter().find(|(name, _)| *name == folder).unwrap_or(("", 0))
}

/// The file that a path, from the root, leads into.
fn file_of<'a>(path: &str, files: &BTreeMap<&'a str, &'a str>) -> Option<&'a str> {
    let mut path = path;
    loop {
        if let Some((file, _)) = files.get_key_value(path) {
            return Some(file);
        }
        path = path.rsplit_once('/')?.0;
    }
}

/// A file's text without its comments, in one line.
fn code_of(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or(line)).collect()
}

/// All that a file names by `crate::` or `super::`, as paths from the root, with slashes.
fn imports(file: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    let mut paths = Vec::new();
    for (at, word) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        let is_word =
            code[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric() && before != ':');
        if !is_word {
            continue;
        }
        let mut folder = if word == "crate::" { "" } else { parent(file) };
        let mut rest = &code[at + word.len()..];
        while let Some(higher) = rest.strip_prefix("super::") {
            (folder, rest) = (parent(folder), higher);
        }
        let named = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
            .map_or(rest, |end| &rest[..end]);
        let start = [folder, named.trim_end_matches(':')].join("/").replace("::", "/");
        let start = start.trim_matches('/');
        match rest[named.len()..].strip_prefix('{').and_then(|list| list.split_once('}')) {
            Some((list, _)) if named.is_empty() || named.ends_with("::") => {
                paths.extend(
                    list.split(',')
                        .map(|item| [start, item.trim()].join("/").trim_matches('/').replace("::", "/")),
                );
            }
            _ => paths.push(start.to_owned()),
        }
    }
    paths
}

/// The module that a module is in.
fn parent(module: &str) -> &str {
    module.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The files on a way from `file` back to it.
fn circle_from<'a>(file: &'a str, arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = vec![file];
    while let Some(at) = next.pop() {
        for to in arrows.get(at).into_iter().flatten() {
            if *to == file {
                let mut circle = vec![at];
                while let Some(before) = circle.last().and_then(|last| came_from.get(last)) {
                    circle.push(before);
                }
                if at != file && !circle.contains(&file) {
                    circle.push(file);
                }
                return Some(circle);
            }
            if !came_from.contains_key(to) {
                came_from.insert(to, at);
                next.push(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(files: &[(&str, &str)]) -> Result<(), String> {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("{CORE}{path}.rs"),
            text: (*text).to_owned(),
        };
        check(&files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn an_import_from_above_is_found() {
        let below = ("state/point", "use crate::addr::CodeAddr;\n");
        assert_eq!(
            said(&[("addr", ""), below, ("hit", "use crate::state::point::{Node, Point};\n")]),
            Ok(())
        );
        let above = ("state/text", "use crate::{\n    hit::Trap,\n};\n");
        let wrong = said(&[("hit", ""), above]).expect_err("it is found");
        assert_eq!(wrong, "probe-core/src/state/text.rs: imports hit, which is not below it");
    }

    #[test]
    fn the_two_halves_do_not_know_each_other() {
        let halves = [("hit/fault", ""), ("registry/arm", "fn a() { crate::hit::fault::b() }\n")];
        assert!(said(&halves).is_err_and(|wrong| wrong.contains("registry/arm.rs: imports hit/fault")));
        assert_eq!(said(&[("hit/fault", "//! crate::registry::arm\n"), ("registry/arm", "")]), Ok(()));
    }

    #[test]
    fn a_circle_is_found_once() {
        let circle = [
            ("state/a", "use super::b::B;\n"),
            ("state/b", "use crate::state::c;\n"),
            ("state/c", "use crate::state::a::A;\n"),
        ];
        let wrong = said(&circle).expect_err("it is found");
        assert_eq!(wrong.lines().count(), 1, "{wrong}");
        assert!(wrong.starts_with("probe-core/src/state/a.rs: imports itself, by way of"), "{wrong}");
    }

    #[test]
    fn a_part_that_imports_its_whole_is_found() {
        let source =
            |path: &str, text: &str| Source { path: format!("host-linux/src/{path}"), text: text.to_owned() };
        let whole = |text| source("threads.rs", text);
        let upwards = source("threads/table.rs", "use super::Block;\n");
        let uses = "mod table;\nuse self::table::Table;\n";
        let wrong = check(&[whole(uses), upwards]).expect_err("it is found");
        assert_eq!(wrong, "host-linux/src/threads.rs: imports itself, by way of threads/table, threads");
        let calls = "mod table;\nfn a() { table::start() }\n";
        let upwards = || source("threads/table.rs", "use crate::threads::Block;\n");
        assert!(check(&[whole(calls), upwards()]).is_err());
        assert_eq!(check(&[whole("mod table;\n// table::start\n"), upwards()]), Ok(()));
        assert_eq!(check(&[whole("fn a() { stable::start() }\n"), upwards()]), Ok(()));
    }

    #[test]
    fn the_core_has_floors_and_other_crates_have_no_circles() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(check(&super::super::sources(&root).expect("the repository is there")), Ok(()));
    }
}
