//! `docs/cookbook.md`, as who reads it would try it: its files are written, its commands run, and what they
//! say is compared with what stands there. Numbers may differ, and how many lines of a kind there are.
//!
//! The programs are the machine's own.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

mod common;

use std::path::Path;
use std::process::Command;

/// A fenced block: what stands behind its fence, its first line's number, its lines.
struct Block {
    info: String,
    at: usize,
    lines: Vec<String>,
}

#[test]
fn every_command_of_the_cookbook_says_what_stands_there() {
    let text = include_str!("../../docs/cookbook.md");
    let folder = common::scratch("cookbook");
    std::fs::create_dir(&folder).expect("a folder for it");
    let (mut run, mut wrong) = (0, String::new());
    for block in blocks(text) {
        if let Some(name) = block.info.split_once("file=").map(|(_, name)| name) {
            std::fs::write(folder.join(name), block.lines.join("\n") + "\n").expect("it can be written");
            continue;
        }
        if block.info != "console" {
            continue;
        }
        for (command, want) in commands(&block.lines) {
            run += 1;
            let said = typed(&folder, &command);
            if !fits(&shapes(&want.join("\n")), &shapes(&said)) {
                wrong += &format!("line {}: $ {command}\n{said}\n", block.at);
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(wrong.is_empty() && run >= 10, "{run} commands run; what others say differs:\n{wrong}");
}

/// What a terminal shows when this is typed.
fn typed(folder: &Path, command: &str) -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_probe")).parent().expect("it lies in a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(own.to_owned()).chain(std::env::split_paths(&path));
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{{ {command}\n}} 2>&1")]).current_dir(folder).env("LC_ALL", "C");
    shell.env("PATH", std::env::join_paths(path).expect("no folder has a colon")).env_remove("LD_PRELOAD");
    let output = shell.output().expect("there is a shell");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The fenced blocks of a document.
fn blocks(text: &str) -> Vec<Block> {
    let (mut all, mut open): (Vec<Block>, Option<Block>) = Default::default();
    for (number, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some(info), None) => {
                open = Some(Block { info: info.to_owned(), at: number + 1, lines: Vec::new() });
            }
            (None, Some(block)) => block.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    all
}

/// The commands of a block, each with what it says.
fn commands(lines: &[String]) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => all.push((command.to_owned(), Vec::new())),
            (None, Some((_, said))) => said.push(line.clone()),
            (None, None) => panic!("{line}: a block begins with a command"),
        }
    }
    all
}

/// Each line without its numbers, units of time and bars; lines of one kind behind another count once.
fn shapes(text: &str) -> Vec<String> {
    let mut shapes: Vec<String> = text.lines().map(shape).collect();
    shapes.dedup();
    // What is left out between two lines of a kind is mostly more of them.
    while let Some(at) = shapes.windows(3).position(|three| three[1] == "…" && three[0] == three[2]) {
        shapes.remove(at + 2);
        shapes.dedup();
    }
    shapes
}

fn shape(line: &str) -> String {
    let is_bar = |c: char| ('▁'..='▏').contains(&c) || c == '█';
    let words = line.split_whitespace().filter(|word| !word.chars().all(is_bar)).map(|word| {
        if matches!(word.trim_end_matches([',', ';']), "ns" | "µs" | "ms" | "s") {
            return word.replace(|c: char| c.is_alphabetic() || c == 'µ', "") + "TIME";
        }
        let mut shape = String::new();
        let mut rest = word.chars().peekable();
        while let Some(c) = rest.next() {
            if !c.is_ascii_digit() {
                shape.push(c);
                continue;
            }
            shape.push('#');
            while rest.peek().is_some_and(|c| c.is_ascii_digit() || *c == '.') {
                rest.next();
            }
        }
        shape
    });
    // How far a histogram reaches is a number, too.
    words.collect::<Vec<_>>().join(" ").replace("P99 # TIME … # TIME", "P99 # TIME")
}

/// Whether `said` is as `want` says, where a line `…` stands for any lines, and `…` in a line for any text.
fn fits(want: &[String], said: &[String]) -> bool {
    match (want, said) {
        ([], said) => said.is_empty(),
        ([any, want @ ..], _) if any == "…" => (0..=said.len()).any(|skipped| fits(want, &said[skipped..])),
        ([line, want @ ..], [first, said @ ..]) => is_line(line, first) && fits(want, said),
        ([_, ..], []) => false,
    }
}

fn is_line(want: &str, said: &str) -> bool {
    let mut parts = want.split('…');
    let Some(mut rest) = said.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn a_shape_tells_lines_apart_and_numbers_not() {
    let said = shapes("a took\n  512 ns   1  ▊\n  32.8 µs  56  ████\n\nread-12 by $x: 4.5 ms, 7\n");
    let fits = |want: &str| fits(&shapes(want), &said);
    assert!(fits("a took\n   16 ns  3\n\nread-1 by $x: 2 s, 3"));
    assert!(fits("…\n   16 ns  3\n…") && fits("…\nread-9 … 3") && fits("a …\n…"));
    assert!(!fits("a took\n   16 ns  3\n") && !fits("a took\n…\nread-1 by $y: 2 s, 3"));
    assert!(!fits("…\nread … 9 of 10") && !fits("b …\n…") && !fits(""));
}
