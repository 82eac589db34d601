//! STYLE: a function fits on a screen, a file has one subject.

use super::functions::functions_of;
use super::{Source, found, without_unit_tests};

/// How many lines a function may have, its signature included.
const FUNCTION: usize = 60;
/// How many lines a file may have, without its unit tests.
const FILE: usize = 500;

/// Functions that are longer all the same: tables, and one course of events that parts would hide. Each may
/// have as many lines as here, no more.
const LONG_FUNCTIONS: &[(&str, &str, usize, &str)] = &[
    ("arch-aarch64/src/detour.rs", "copy", 63, "a table: what becomes of each class in a copy"),
    ("arch-i386/src/asm.rs", "$name", 98, "assembly: the frame, line by line"),
    ("arch-x86_64/src/asm.rs", "$name", 91, "assembly: the frame, line by line"),
    ("arch-ppc32/src/insn.rs", "refusal", 64, "a table: a code and a sentence for each reason"),
    ("probe-bpf/src/run.rs", "step_once", 139, "a table: what each operation does"),
    ("tests/everything/tests/main.rs", "check", 64, "one run, and each reason for which it may differ"),
    ("tests/fuzz/src/symbols.rs", "minimal_object", 68, "a table: an ELF file, field by field"),
    ("tests/user/benches/hit/main.rs", "measure_hits", 116, "a table: a line for each row of the benchmark"),
    ("tests/user/tests/jumps.rs", LOWERED, 77, "assembly: one victim for each architecture"),
    ("tests/user/tests/jumps.rs", CYCLES, 71, "threads that have to share one scope's variables"),
    ("tests/user/tests/storm.rs", "main", 71, "threads that have to share one scope's variables"),
    ("x86-decode/src/simulate.rs", "simulate_other", 61, "a table: the effect of each instruction"),
    ("x86-decode/tests/native/machine.rs", "with_fixed_floating_point", 71, "assembly"),
    ("x86-decode/tests/oracle.rs", "synthetic", 62, "a table: encodings"),
    ("x86-decode/tests/trampoline.rs", "a_return_through_a_stub_changes_nothing_else", 71, "assembly"),
    ("x86-decode/tests/trampoline.rs", "hit_1_a_hit_by_jump_changes_nothing_else", 107, "assembly"),
];
const LOWERED: &str = "hit_2_a_pre_handler_may_lower_the_stack_pointer_of_a_simulated_instruction";
const CYCLES: &str = "safe_3_jumps_come_and_go_in_bytes_that_threads_execute";

/// Files that are longer all the same, with their one subject. Each may have as many lines as here, no more.
const LONG_FILES: &[(&str, usize, &str)] = &[
    ("arch-aarch64/tests/native/trampolines.rs", 546, "the trampolines, executed"),
    ("arch-i386/src/asm.rs", 664, "the only file with assembly"),
    ("arch-x86_64/src/asm.rs", 572, "the only file with assembly"),
    ("probe-core/tests/contract/hit.rs", 536, "the rules HIT_1 to HIT_13"),
    ("probe-core/tests/contract/kretprobe.rs", 513, "the rules of return probes"),
    ("probe-core/tests/contract/model.rs", 539, "a plain model of the registry"),
    ("tests/user/tests/storm.rs", 526, "one program: everything at once"),
    ("x86-decode/tests/pure.rs", 569, "decoding, simulation and slots as data"),
    ("x86-decode/tests/trampoline.rs", 525, "the trampolines, executed"),
];

/// Finds functions and files that are too long, and exceptions that nothing needs any more.
///
/// # Errors
/// What was found, a line each.
pub(super) fn check(sources: &[Source]) -> Result<(), String> {
    check_with(sources, LONG_FUNCTIONS, LONG_FILES)
}

fn check_with(
    sources: &[Source],
    long_functions: &[(&str, &str, usize, &str)],
    long_files: &[(&str, usize, &str)],
) -> Result<(), String> {
    let mut wrong = Vec::new();
    let (mut functions_used, mut files_used) =
        (vec![false; long_functions.len()], vec![false; long_files.len()]);
    for Source { path, text } in sources {
        for function in functions_of(text).iter().filter(|function| function.line_count > FUNCTION) {
            let row = long_functions.iter().position(|row| (row.0, row.1) == (path, function.name));
            let allowed = row.map_or(FUNCTION, |row| {
                functions_used[row] = true;
                long_functions[row].2
            });
            if function.line_count > allowed {
                let (line, name, count) = (function.first_line, function.name, function.line_count);
                wrong.push(format!("{path}:{line}: {name} has {count} lines, more than {allowed}"));
            }
        }
        let count = without_unit_tests(text).lines().count();
        if count > FILE {
            let row = long_files.iter().position(|row| row.0 == path);
            let allowed = row.map_or(FILE, |row| {
                files_used[row] = true;
                long_files[row].1
            });
            if count > allowed {
                wrong.push(format!("{path}: {count} lines, more than {allowed}"));
            }
        }
    }
    let unused =
        |path: &str| format!("{path}: an exception in ci/src/lint/sizes.rs that it does not need any more");
    wrong.extend(
        long_functions.iter().zip(&functions_used).filter(|(_, used)| !**used).map(|(row, _)| unused(row.0)),
    );
    wrong
        .extend(long_files.iter().zip(&files_used).filter(|(_, used)| !**used).map(|(row, _)| unused(row.0)));
    found(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(lines_inside: usize) -> Source {
        let text = format!("fn long() {{\n{}}}\n", "    x();\n".repeat(lines_inside));
        Source { path: "a/src/b.rs".to_owned(), text }
    }

    #[test]
    fn nothing_here_is_too_long() {
        let sources = super::super::sources(&crate::tree::root()).expect("the tree is read");
        check(&sources).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    #[test]
    fn a_long_function_is_found() {
        assert_eq!(check_with(&[source(58)], &[], &[]), Ok(()));
        let wrong = check_with(&[source(59)], &[], &[]).expect_err("61 lines");
        assert_eq!(wrong, "a/src/b.rs:1: long has 61 lines, more than 60");
    }

    #[test]
    fn an_exception_holds_up_to_its_own_length_and_must_be_needed() {
        let row = [("a/src/b.rs", "long", 61, "a table")];
        assert_eq!(check_with(&[source(59)], &row, &[]), Ok(()));
        assert!(check_with(&[source(60)], &row, &[]).is_err_and(|wrong| wrong.contains("more than 61")));
        assert!(check_with(&[source(2)], &row, &[]).is_err_and(|wrong| wrong.contains("does not need")));
    }

    #[test]
    fn a_long_file_is_found_without_its_tests() {
        let text = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "//\n".repeat(500), "//\n".repeat(500));
        let mut sources = [Source { path: "a/src/b.rs".to_owned(), text }];
        assert_eq!(check_with(&sources, &[], &[]), Ok(()));
        sources[0].text.insert_str(0, "//\n");
        let wrong = check_with(&sources, &[], &[]).expect_err("501 lines");
        assert_eq!(wrong, "a/src/b.rs: 501 lines, more than 500");
        assert_eq!(check_with(&sources, &[], &[("a/src/b.rs", 501, "one subject")]), Ok(()));
    }
}
