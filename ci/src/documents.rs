//! The documents against the repository: links lead somewhere, what is named in code is there, and words are
//! spelt.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tree::found;

/// Names of other people's, spelt as they spell them.
const FOREIGN: [&str; 1] = ["set_writeable_for_address"];

/// Wrong spellings that are met again and again, and the right ones.
const MISSPELT: &[(&str, &str)] = &[
    ("acheive", "achieve"),
    ("accomodate", "accommodate"),
    ("accross", "across"),
    ("adress", "address"),
    ("allign", "align"),
    ("alot", "a lot"),
    ("apparant", "apparent"),
    ("arbitary", "arbitrary"),
    ("architechture", "architecture"),
    ("assertation", "assertion"),
    ("availble", "available"),
    ("begining", "beginning"),
    ("beleive", "believe"),
    ("calback", "callback"),
    ("choosen", "chosen"),
    ("commited", "committed"),
    ("compability", "compatibility"),
    ("comparision", "comparison"),
    ("completly", "completely"),
    ("conditionaly", "conditionally"),
    ("consistant", "consistent"),
    ("correspoding", "corresponding"),
    ("decriptor", "descriptor"),
    ("definately", "definitely"),
    ("dependancy", "dependency"),
    ("descripter", "descriptor"),
    ("determin ", "determine"),
    ("dissasemble", "disassemble"),
    ("emmulate", "emulate"),
    ("enviroment", "environment"),
    ("exectuable", "executable"),
    ("existance", "existence"),
    ("explicitely", "explicitly"),
    ("familar", "familiar"),
    ("funtion", "function"),
    ("garantee", "guarantee"),
    ("gaurantee", "guarantee"),
    ("happend", "happened"),
    ("immediatly", "immediately"),
    ("implemenation", "implementation"),
    ("independant", "independent"),
    ("infomation", "information"),
    ("initalise", "initialise"),
    ("instuction", "instruction"),
    ("instrution", "instruction"),
    ("interupt", "interrupt"),
    ("intruction", "instruction"),
    ("lenght", "length"),
    ("libary", "library"),
    ("manualy", "manually"),
    ("mispell", "misspell"),
    ("neccessary", "necessary"),
    ("occassion", "occasion"),
    ("occured", "occurred"),
    ("occurence", "occurrence"),
    ("ommit", "omit"),
    ("overriden", "overridden"),
    ("paramter", "parameter"),
    ("particulary", "particularly"),
    ("performace", "performance"),
    ("persistant", "persistent"),
    ("posible", "possible"),
    ("preceed", "precede"),
    ("priviledge", "privilege"),
    ("proccess", "process"),
    ("prefered", "preferred"),
    ("programm ", "program"),
    ("recieve", "receive"),
    ("reentrent", "reentrant"),
    ("refered", "referred"),
    ("regiser", "register"),
    ("registeration", "registration"),
    ("relevent", "relevant"),
    ("retreive", "retrieve"),
    ("seperate", "separate"),
    ("sucess", "success"),
    ("suprise", "surprise"),
    ("teh ", "the "),
    ("threshhold", "threshold"),
    ("transparant", "transparent"),
    ("truely", "truly"),
    ("unneccessary", "unnecessary"),
    ("untill", "until"),
    ("usefull", "useful"),
    ("wether", "whether"),
    ("wich ", "which "),
    ("writeable", "writable"),
];

/// Every relative link of every document leads to a file of the repository, and to a heading there if it says
/// so. A link whose text is code names something that stands in the file.
pub(crate) fn links_lead_somewhere(root: &Path) -> Result<(), String> {
    let mut wrong = Vec::new();
    for path in tracked(root, ".md")? {
        let text = read(&root.join(&path))?;
        for link in links(&text) {
            if let Err(why) = follow(root, &path, &link) {
                wrong.push(format!("{}:{}: {why}", path.display(), link.line));
            }
        }
    }
    found(wrong)
}

/// The documents whose names in code, if they are long, are those of tests and functions.
const NAMING_TESTS: [&str; 4] =
    ["ARCHITECTURE.md", "SECURITY.md", "docs/emulators.md", "docs/reliability.md"];

/// The tests and functions that the documents name exist.
pub(crate) fn named_tests_exist(root: &Path) -> Result<(), String> {
    let mut sources = String::new();
    for path in tracked(root, ".rs")? {
        sources.push_str(&read(&root.join(path))?);
    }
    let mut wrong = Vec::new();
    for document in NAMING_TESTS {
        let text = read(&root.join(document))?;
        let missing = long_names(&text).into_iter().filter(|name| !sources.contains(&format!("fn {name}")));
        wrong.extend(missing.map(|name| format!("{document}: there is no function {name}")));
    }
    found(wrong)
}

/// The packages whose every file ARCHITECTURE.md names. The backends' files have the same names in each.
const MAPPED: [&str; 10] = [
    "arch-x86_64",
    "capi",
    "ci",
    "definitions",
    "elf-symbols",
    "host-linux",
    "kernel-kit",
    "probe",
    "probe-bpf",
    "probe-core",
];

/// ARCHITECTURE.md names each source file, by its path below `src` or by its own name. Of modules with a file
/// for each architecture it names the module.
pub(crate) fn architecture_names_every_file(root: &Path) -> Result<(), String> {
    let text = read(&root.join("ARCHITECTURE.md"))?;
    let named: BTreeSet<&str> =
        text.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches(".rs")).collect();
    let mut wrong = Vec::new();
    for path in tracked(root, ".rs")? {
        let Some(file) = MAPPED.iter().find_map(|package| path.strip_prefix(format!("{package}/src")).ok())
        else {
            continue;
        };
        let file = file.with_extension("");
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let is_named = |file: &Path| {
            let whole = file.to_string_lossy();
            named.iter().any(|named| {
                *named == whole
                    || whole.ends_with(&format!("/{named}"))
                    || named.ends_with(&format!("/src/{whole}"))
            })
        };
        let words = crate::matrix::BACKENDS.iter().flat_map(|backend| backend.words);
        let is_of_architecture = words.into_iter().any(|word| name.starts_with(word));
        let told = if name == "mod" || is_of_architecture { file.parent().unwrap_or(&file) } else { &file };
        if !matches!(&*name, "lib" | "main") && !is_named(told) {
            wrong.push(format!("ARCHITECTURE.md does not name {}", path.display()));
        }
    }
    found(wrong)
}

/// No text of the repository has one of the well-known misspellings.
pub(crate) fn words_are_spelt(root: &Path) -> Result<(), String> {
    let mut wrong = Vec::new();
    for ending in [".md", ".rs", ".toml", ".c", ".h", ".S", ".s", ".ld"] {
        for path in tracked(root, ending)?.into_iter().filter(|path| !path.ends_with("ci/src/documents.rs")) {
            for (number, line) in read(&root.join(&path))?.lines().enumerate() {
                let lower =
                    FOREIGN.iter().fold(line.to_ascii_lowercase(), |line, name| line.replace(name, ""));
                for (misspelt, right) in MISSPELT.iter().filter(|(word, _)| begins_a_word(&lower, word)) {
                    let at = format!("{}:{}", path.display(), number + 1);
                    wrong.push(format!("{at}: `{}` should be `{}`", misspelt.trim(), right.trim()));
                }
            }
        }
    }
    found(wrong)
}

/// Whether a word of `text` begins with `word`.
fn begins_a_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| !text[..at].ends_with(|before: char| before.is_ascii_alphabetic()))
}

/// A link of a document.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    line: usize,
    text: String,
    target: String,
}

/// The links of a document, outside of blocks of code.
fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let mut rest = line;
        while let Some(middle) = rest.find("](").filter(|_| !is_code) {
            let (before, after) = (&rest[..middle], &rest[middle + 2..]);
            rest = after;
            let (Some(open), Some(close)) = (before.rfind('['), after.find(')')) else { continue };
            let (text, target) = (before[open + 1..].to_owned(), after[..close].to_owned());
            links.push(Link { line: number + 1, text, target });
        }
    }
    links
}

/// Why a link leads nowhere.
fn follow(root: &Path, document: &Path, link: &Link) -> Result<(), String> {
    if link.target.contains("://") || link.target.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = link.target.split_once('#').unwrap_or((&link.target, ""));
    let folder = root.join(document);
    let file = match path {
        "" => folder,
        path => folder.parent().unwrap_or(root).join(path),
    };
    if !file.exists() {
        return Err(format!("the link to {} leads nowhere", link.target));
    }
    if !heading.is_empty() && !headings(&read(&file)?).contains(heading) {
        return Err(format!("{path} has no heading {heading}"));
    }
    let Some(name) = link.text.strip_prefix('`').and_then(|text| text.strip_suffix('`')) else {
        return Ok(());
    };
    // `Traps::breakpoint`: the last name is what has to be there; the name of a file or a folder is what it
    // is.
    let name = name.rsplit("::").next().unwrap_or(name);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_own = Path::new(path)
        .components()
        .any(|part| Path::new(part.as_os_str()).file_stem().is_some_and(|stem| stem == name));
    if file.is_file() && is_name && !is_own && !read(&file)?.contains(name) {
        return Err(format!("{path} does not name {name}"));
    }
    Ok(())
}

/// The headings of a document, as links name them.
fn headings(text: &str) -> BTreeSet<String> {
    let slug = |title: &str| -> String {
        let kept = title.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    text.lines().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_start_matches('#'))).collect()
}

/// The names in code with at least three underscores: those are tests.
fn long_names(text: &str) -> BTreeSet<&str> {
    let is_name = |word: &&str| {
        word.matches('_').count() >= 3
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    text.split('`').skip(1).step_by(2).filter(is_name).collect()
}

/// The files that git knows, new ones that it does not ignore included.
fn tracked(root: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let files = text.lines().filter(|path| path.ends_with(ending)).map(PathBuf::from);
    Ok(files.filter(|path| root.join(path).is_file()).collect())
}

fn read(file: &Path) -> Result<String, String> {
    let bytes = fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "a [b](c.md) and [`d`](e.rs#f)\n```\n[no](x)\n```\n[g](#h)\n";
        let found: Vec<_> = links(text).into_iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(found, [(1, "c.md".to_owned()), (1, "e.rs#f".to_owned()), (5, "#h".to_owned())]);
    }

    #[test]
    fn a_link_must_lead_to_a_file_a_heading_and_a_name() {
        let root = crate::tree::root();
        let link =
            |text: &str, target: &str| Link { line: 1, text: text.to_owned(), target: target.to_owned() };
        let check = |text, target| follow(&root, Path::new("ARCHITECTURE.md"), &link(text, target));
        assert_eq!(check("x", "README.md"), Ok(()));
        assert_eq!(check("x", "README.md#two-commands"), Ok(()));
        assert_eq!(check("`Traps::breakpoint`", "probe-core/src/hit.rs"), Ok(()));
        assert_eq!(check("`hit.rs`", "probe-core/src/hit.rs"), Ok(()));
        assert!(check("x", "NOWHERE.md").is_err());
        assert!(check("x", "README.md#no-such-heading").is_err());
        assert!(check("`no_such_function`", "probe-core/src/hit.rs").is_err());
    }

    #[test]
    fn headings_are_named_as_hosting_sites_name_them() {
        assert!(
            headings("## What does `[GONE]` mean in the listing?\n")
                .contains("what-does-gone-mean-in-the-listing")
        );
    }

    #[test]
    fn a_word_is_misspelt_from_its_beginning() {
        assert!(begins_a_word("do not ommit it", "ommit") && begins_a_word("ommitted", "ommit"));
        assert!(!begins_a_word("commit it", "ommit"));
    }

    #[test]
    fn long_names_are_those_of_tests() {
        let names = long_names("`hit_4_a_hit_neither` and `breakpoint_busy`, `cargo ci job x`");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["hit_4_a_hit_neither"]);
    }
}
