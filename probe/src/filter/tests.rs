//! Errors with their places; and the compiled program against the tree that it was made from.

use super::check::{Number, Operation, Relation, Scope, Sign, Test};
use super::compile::{Keys, compile};
use crate::def::{DefError, Definition};
use crate::wire::{FETCH, MATCH, MOST_WORDS, RuleValue as Value};
use probe_bpf::{Helpers, Machine, Program};
use rstest::rstest;
use std::collections::BTreeMap;

const REGISTERS: &[(&str, usize)] = &[("di", 0)];
const DEFINITION: &str = "r f size=$arg1:u64 fd=$arg2:s32 small=$arg3:u8 far=+8($arg1):s64 path=$arg4:string list=$arg5:u8[4] back=$retval";

fn definition() -> Definition {
    Definition::parse(DEFINITION, REGISTERS).unwrap()
}

/// Compiles an expression for [`DEFINITION`].
fn compiled(text: &str) -> Result<(), DefError> {
    let definition = definition();
    compile(&mut Scope::new(&definition, REGISTERS), &[text], &Keys::default(), &[]).map(drop)
}

#[rstest]
#[case("size >= 1M && $took > 20us")]
#[case("$retval < 0")]
#[case("$retval:s32 == -1 || $arg6:u16 & 0xf0 != 0")]
#[case("path ~ \"/etc/*\" && !(path == \"/etc/passwd\")")]
#[case("path !~ \"*\\x00\\\"\" || $comm != \"ls\"")]
#[case("$pid != $tid && $cpu == 0 && !fd")]
#[case("far << 3 >> 1 ^ size | 1 == 017 + 'a' - '\\n'")]
#[case("1.5ms < $took && 0.5K == 512")]
#[case("$arg4:string ~ \"a\" && fd")]
fn well_formed(#[case] text: &str) {
    compiled(text).unwrap_or_else(|error| panic!("{error}"));
}

/// Each malformed expression, the text under the caret and a part of the sentence.
#[rstest]
#[case::empty(" ", " ", "is empty")]
#[case::assigned("size = 1", "=", "`==`")]
#[case::letter("size > 1 §", "§", "means nothing")]
#[case::register("%di > 1", "%", "registers are fetched")]
#[case::memory("@environ > 1", "@", "memory is fetched")]
#[case::unclosed("(size > 1", "(", "not closed")]
#[case::closed("size > 1)", ")", "has no `(`")]
#[case::no_value("size >", "", "value is missing here")]
#[case::no_left("&& size", "&&", "missing before")]
#[case::word("size > 1 and fd", "and", "`&&`")]
#[case::two_values("size 1", "1", "operator is expected")]
#[case::chain("1 < fd < 3", "<", "does not follow")]
#[case::compared("(fd < 3) < 3", "(fd < 3)", "no number")]
#[case::added("(fd < 3) + 1", "(fd < 3)", "no number")]
#[case::unit("size > 3Q", "3Q", "`Q` is no unit")]
#[case::hex("size > 0xfg", "0xfg", "no whole number")]
#[case::part("size > 1.5", "1.5", "no whole number")]
#[case::huge("size > 18446744073709551616", "18446744073709551616", "no whole number")]
#[case::huge_size("size > 18014398509481984K", "18014398509481984K", "no whole number")]
#[case::name("siez > 1", "siez", "`size`")]
#[case::unknown("zebra > 1", "zebra", "it fetches `size`")]
#[case::no_dollar("retval < 0", "retval", "`$retval`")]
#[case::variable("$tok > 1", "$tok", "`$took`")]
#[case::far_variable("$zebra > 1", "$zebra", "there are $retval")]
#[case::ty("$retval:s31 < 0", "$retval:s31", "`s32`")]
#[case::no_type("$took:u32 > 1", "$took:u32", "take a type")]
#[case::argument("$arg99 > 1", "$arg99", "counted from 1")]
#[case::never_below("size < 0", "size", "never below zero")]
#[case::never_minus("-1 == small", "small", "signed type")]
#[case::default_type("back < 0", "back", "signed type")]
#[case::argument_sign("$arg1:u32 >= 0", "$arg1:u32", "no sign")]
#[case::array("list == 1", "list", "array")]
#[case::text_alone("path", "path", "neither true nor false")]
#[case::literal_alone("\"x\"", "\"x\"", "neither true nor false")]
#[case::text_number("path == 1", "1", "double quotes")]
#[case::number_text("size == \"x\"", "size", "as a string")]
#[case::text_order("path < \"x\"", "path < \"x\"", "compared by")]
#[case::two_texts("path == $comm", "path == $comm", "double quotes")]
#[case::two_literals("\"a\" == \"b\"", "\"a\" == \"b\"", "depend")]
#[case::pattern_first("\"/etc\" ~ path", "\"/etc\"", "behind `~`")]
#[case::glob_number("size ~ 1", "size ~ 1", "matches a text")]
#[case::open_text("path == \"x", "\"x", "not closed")]
#[case::escape("path == \"\\q\"", "\\", "escapes")]
#[case::long_letter("size == 'ab'", "'", "one byte")]
#[case::time("$took > 1M", "1M", "is a time")]
fn malformed(#[case] text: &str, #[case] under: &str, #[case] part: &str) {
    let error = compiled(text).unwrap_err();
    assert_eq!(&text[error.span.0..error.span.1], under, "{error}");
    assert!(error.sentence.contains(part), "{error}");
}

#[test]
fn a_probe_of_hits_has_no_return_value_and_no_duration() {
    let definition = Definition::parse("p f", REGISTERS).unwrap();
    for (text, part) in [
        ("$retval < 0", "only a return probe"),
        ("$took > 1", "only a return probe"),
        ("x > 1", "it fetches nothing"),
    ] {
        let error = compile(&mut Scope::new(&definition, REGISTERS), &[text], &Keys::default(), &[])
            .err()
            .expect("it is refused");
        assert!(error.sentence.contains(part), "{error}");
    }
}

#[test]
fn what_is_deep_or_long_is_refused() {
    let deep = format!("{}1{}", "(".repeat(100), ")".repeat(100));
    assert!(compiled(&deep).unwrap_err().sentence.contains("deep"));
    let signs = format!("{}1", "!".repeat(100_000));
    assert!(compiled(&signs).is_err());
    let long = format!("1{}", "+1".repeat(100_000));
    assert!(compiled(&long).unwrap_err().sentence.contains("words"));
}

/// Values that a program is run on: numbers by the index of what they are asked for, texts as they match.
struct Given {
    numbers: BTreeMap<usize, u64>,
    matches: BTreeMap<(usize, usize), bool>,
}

impl Helpers for Given {
    fn is_known(&self, number: i32) -> bool {
        matches!(number, FETCH | MATCH)
    }
    fn call(&self, number: i32, [a, b, ..]: [u64; 5]) -> Option<u64> {
        match number {
            FETCH => self.numbers.get(&(a as usize)).copied(),
            _ => self.matches.get(&(a as usize, b as usize)).map(|matches| u64::from(*matches)),
        }
    }
}

/// What a tree says, as numbers without bounds that are cut to 64 bits after each operation.
impl Given {
    fn number(&self, number: &Number) -> i128 {
        let word = |word: u64, sign| if sign == Sign::Signed { i128::from(word as i64) } else { word.into() };
        match number {
            Number::Constant(value, sign) => word(*value, *sign),
            Number::Value(index, sign) => word(self.numbers[index], *sign),
            Number::Negate(inner) => i128::from(-self.number(inner) as i64),
            Number::Binary(operation, a, b) => {
                // Both sides as the result is: signed or not.
                let is_signed = number.sign() != Sign::Unsigned;
                let cut =
                    |value: i128| if is_signed { (value as i64).into() } else { i128::from(value as u64) };
                let (a, b) = (cut(self.number(a)), cut(self.number(b)));
                let count = (b as u64 % 64) as u32;
                cut(match operation {
                    Operation::Add => a + b,
                    Operation::Subtract => a - b,
                    Operation::Multiply => a.wrapping_mul(b),
                    Operation::Divide => a.checked_div(b).unwrap_or(0),
                    Operation::Remainder => a.checked_rem(b).unwrap_or(a),
                    Operation::And => a & b,
                    Operation::Or => a | b,
                    Operation::Xor => a ^ b,
                    Operation::Left => a << count,
                    Operation::Right => a >> count,
                })
            }
        }
    }

    fn test(&self, test: &Test) -> bool {
        match test {
            Test::Compare(relation, a, b) => {
                let (a, b) = (self.number(a), self.number(b));
                match relation {
                    Relation::Equal => a == b,
                    Relation::NotEqual => a != b,
                    Relation::Less => a < b,
                    Relation::LessOrEqual => a <= b,
                    Relation::Greater => a > b,
                    Relation::GreaterOrEqual => a >= b,
                }
            }
            Test::Matches(value, pattern) => self.matches[&(*value, *pattern)],
            Test::Not(inner) => !self.test(inner),
            Test::And(a, b) => self.test(a) && self.test(b),
            Test::Or(a, b) => self.test(a) || self.test(b),
        }
    }
}

/// Numbers in a row that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A number as it is likely to be at a bound.
    fn word(&mut self) -> u64 {
        let near = self.of(&[0, 1, 7, 8, 31, 32, 63]);
        let base = self.of(&[0_u64, 1 << near, u64::MAX, 1 << 63, u64::from(u32::MAX), i64::MAX as u64]);
        base.wrapping_add(self.below(5) as u64).wrapping_sub(2)
    }

    fn number(&mut self, depth: usize) -> String {
        let choice = self.below(if depth == 0 { 2 } else { 5 });
        match choice {
            0 => self
                .of(&[
                    "size",
                    "fd",
                    "small",
                    "far",
                    "$retval",
                    "$retval:u32",
                    "$took",
                    "$pid",
                    "$arg7",
                    "$arg8:s8",
                ])
                .to_owned(),
            1 => self.word().to_string(),
            2 => format!("-({})", self.number(depth - 1)),
            _ => {
                let sign = self.of(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]);
                format!("({} {sign} {})", self.number(depth - 1), self.number(depth - 1))
            }
        }
    }

    fn test(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 3 } else { 7 }) {
            0 => self.of(&["path == \"x\"", "path ~ \"*\"", "$comm !~ \"y\"", "fd"]).to_owned(),
            1 | 2 => {
                let sign = self.of(&["==", "!=", "<", "<=", ">", ">="]);
                format!("{} {sign} {}", self.number(depth.min(4)), self.number(depth.min(4)))
            }
            3 => format!("!({})", self.test(depth - 1)),
            4 | 5 => format!("({} && {})", self.test(depth - 1), self.test(depth - 1)),
            _ => format!("({} || {})", self.test(depth - 1), self.test(depth - 1)),
        }
    }
}

#[test]
fn a_compiled_expression_says_what_its_tree_says() {
    let definition = definition();
    let mut random = Random(9);
    let (mut judged, mut held) = (0, 0);
    for _ in 0..4000 {
        let text = random.test(4);
        let mut scope = Scope::new(&definition, REGISTERS);
        // Some can never hold, and are refused for that.
        let Ok(tree) = scope.condition(&text) else { continue };
        let mut scope = Scope::new(&definition, REGISTERS);
        let compiled =
            compile(&mut scope, &[&text], &Keys::default(), &[]).unwrap_or_else(|error| panic!("{error}"));
        assert!(compiled.words.len() <= MOST_WORDS);
        for _ in 0..8 {
            let numbers = scope.values.iter().enumerate().map(|(index, value)| {
                let word = random.word();
                // As wide as its type.
                (
                    index,
                    match value {
                        Value::Argument(1) => i64::from(word as i32) as u64,
                        Value::Argument(2) => word & 0xff,
                        Value::Extra(extra) if scope.extras[*extra as usize].ends_with("s8") => {
                            i64::from(word as i8) as u64
                        }
                        Value::Extra(extra) if scope.extras[*extra as usize].ends_with("u32") => {
                            word & 0xffff_ffff
                        }
                        _ => word,
                    },
                )
            });
            let numbers = numbers.collect();
            let matches = (0..scope.values.len())
                .flat_map(|value| (0..scope.patterns.len()).map(move |pattern| (value, pattern)))
                .map(|pair| (pair, random.below(2) == 0));
            let given = Given { numbers, matches: matches.collect() };
            let context: Vec<u8> = compiled
                .words
                .iter()
                .flat_map(|word| given.numbers[&(*word as usize)].to_ne_bytes())
                .collect();
            let program =
                Program::load(&compiled.program, 0, &given).unwrap_or_else(|error| panic!("{error}"));
            let machine =
                Machine { context: &context, maps: &[], helpers: &given, number: 0, budget: 1 << 16 };
            let want = given.test(&tree);
            assert_eq!(program.run(&machine), Ok(want.into()), "{text} with {:?}", given.numbers);
            judged += 1;
            held += usize::from(want);
        }
    }
    assert!(judged > 10_000 && (judged / 5..judged * 4 / 5).contains(&held), "{held} of {judged}");
}

#[test]
fn what_cannot_be_read_ends_the_program_where_it_is_needed_only() {
    let definition = definition();
    let given = |numbers: &[(usize, u64)]| Given {
        numbers: numbers.iter().copied().collect(),
        matches: BTreeMap::new(),
    };
    let run = |text: &str, given: &Given, context: u64| {
        let compiled =
            compile(&mut Scope::new(&definition, REGISTERS), &[text], &Keys::default(), &[]).unwrap();
        let program = Program::load(&compiled.program, 0, given).unwrap();
        let context = context.to_ne_bytes();
        program.run(&Machine { context: &context, maps: &[], helpers: given, number: 0, budget: 100 }).ok()
    };
    // `far` lies in memory, `size` in a register.
    assert_eq!(run("size && far > 1", &given(&[]), 0), Some(0));
    assert_eq!(run("size && far > 1", &given(&[]), 1), None);
    assert_eq!(run("size && !(far > 1)", &given(&[]), 1), None);
    assert_eq!(run("size && far > 1", &given(&[(1, 2)]), 1), Some(1));
    assert_eq!(run("size || far > 1", &given(&[]), 1), Some(1));
}

#[test]
fn no_text_makes_the_parser_panic() {
    let pieces = [
        "size", "fd", "path", "$retval", "$arg1:", ":s32", "\"", "\"x\"", "'", "'a'", "(", ")", "&&", "||",
        "!", "~", "==", "<", "-", "0x", "1.", "5ms", "9", " ", "\\", "ä", "µs", "$", "§",
    ];
    let mut random = Random(3);
    for _ in 0..20_000 {
        let text: String = (0..8).map(|_| random.of(&pieces)).collect();
        if let Err(error) = compiled(&text) {
            let _ = error.to_string();
        }
    }
}

#[test]
fn what_passes_is_counted_in_its_maps() {
    use super::{Asked, compile_all};
    use probe_bpf::Map;
    use probe_bpf::map::{Counter, Hash, Histogram, Scale};
    let definition = definition();
    let asked = Asked {
        conditions: vec!["fd > 0"],
        sums: vec!["size - 1", "far"],
        by: vec!["fd, small"],
        ..Asked::default()
    };
    let mut scope = Scope::new(&definition, REGISTERS);
    let (compiled, holds) = compile_all(&mut scope, &asked).unwrap();
    assert_eq!(holds.len(), 3);
    let table = || Map::Hash(Hash::new(16, 1).unwrap());
    let maps = [table(), table(), table()];
    let run = |compiled: &super::compile::Compiled, maps: &[Map], numbers: &[(usize, u64)]| {
        let given = Given { numbers: numbers.iter().copied().collect(), matches: BTreeMap::new() };
        let program =
            Program::load(&compiled.program, maps.len(), &given).unwrap_or_else(|error| panic!("{error}"));
        let context: Vec<u8> =
            compiled.words.iter().flat_map(|word| given.numbers[&(*word as usize)].to_ne_bytes()).collect();
        program.run(&Machine { context: &context, maps, helpers: &given, number: 0, budget: 100 })
    };
    // The values are fd, small, size and far.
    let values = |fd: i64, size| [(0, fd.cast_unsigned()), (1, 8), (2, size), (3, 5)];
    assert_eq!(run(&compiled, &maps, &values(3, 10)), Ok(1));
    assert_eq!(run(&compiled, &maps, &values(3, 0)), Ok(1));
    assert_eq!(run(&compiled, &maps, &values(-3, 0)), Ok(0));
    let sums: Vec<_> =
        maps.iter().map(|map| if let Map::Hash(hash) = map { hash.sums() } else { Vec::new() }).collect();
    assert_eq!(sums, [vec![([3, 8], 2)], vec![([3, 8], 8)], vec![([3, 8], 10)]]);
    let asked = Asked { histograms: vec!["size * 2"], sums: vec!["size"], ..Asked::default() };
    let (compiled, _) = compile_all(&mut Scope::new(&definition, REGISTERS), &asked).unwrap();
    let maps =
        [Map::Histogram(Histogram::new(Scale::Steps, 1).unwrap()), Map::Counter(Counter::new(1).unwrap())];
    assert_eq!(run(&compiled, &maps, &[(0, 4)]), Ok(1));
    let [Map::Histogram(histogram), Map::Counter(counter)] = &maps else { panic!() };
    assert_eq!((histogram.counts()[9], counter.sum()), (1, 4));
}
