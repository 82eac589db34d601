//! The parser of whole definitions: the command letter, the place, the arguments.

use super::word::{Word, is_identifier, number, words};
use super::{Argument, DefError, Definition, Glob, Kind, MAX_ARGS, Place, fetch};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

impl Definition {
    /// Parses a definition for an architecture whose registers are called as in `registers`
    /// (`probe_core::arch::Regs::names`).
    ///
    /// # Errors
    /// A sentence with the place in `text` that it is about.
    pub fn parse(text: &str, registers: &[(&str, usize)]) -> Result<Self, DefError> {
        definition(text, registers)
    }

    /// Parses `FETCH[:TYPE]` as an argument of this definition, which does not have it.
    ///
    /// # Errors
    /// One sentence.
    pub fn also_fetch(&self, text: &str, registers: &[(&str, usize)]) -> Result<Argument, String> {
        let parsed = fetch::argument(text, Word { text, start: 0 }, 0, self.kind, registers);
        parsed.map(|(argument, _)| argument).map_err(|error| error.sentence)
    }
}

fn definition(line: &str, registers: &[(&str, usize)]) -> Result<Definition, DefError> {
    let words = words(line)?;
    let [command, rest @ ..] = words.as_slice() else {
        return Err(DefError::new(
            line,
            (0, line.len()),
            "a probe definition is empty; it starts with `p` or `r`",
        ));
    };
    let (mut kind, name) = command_word(line, *command)?;
    let [place, args @ ..] = rest else {
        let end = command.start + command.text.len();
        return Err(DefError::new(
            line,
            (end, end),
            "a place is missing: `[OBJECT:]SYMBOL[+OFFSET]` follows here",
        ));
    };
    let (object, at, is_return) = place_word(line, *place)?;
    if is_return && kind == Kind::Hit {
        kind = Kind::Return { max_active: None };
    }
    check_return_place(line, *place, kind, &at)?;
    if args.len() > MAX_ARGS {
        return Err(args[MAX_ARGS].error(line, format!("more than {MAX_ARGS} arguments")));
    }
    let parsed = arguments(line, args, kind, registers)?;
    Ok(Definition {
        text: line.to_owned(),
        kind,
        name,
        object,
        place: at,
        place_span: place.span(),
        args: parsed,
        end: None,
    })
}

/// Parses the arguments. Two that were given one name are an error; two that fetch the same are told apart by
/// a number.
fn arguments(
    line: &str,
    words: &[Word<'_>],
    kind: Kind,
    registers: &[(&str, usize)],
) -> Result<Vec<Argument>, DefError> {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut parsed: Vec<(Argument, bool)> = Vec::with_capacity(words.len());
    for (index, word) in words.iter().enumerate() {
        let (argument, is_named) = fetch::argument(line, *word, index, kind, registers)?;
        if is_named && !taken.insert(argument.name.clone()) {
            return Err(word.error(line, format!("two arguments are called `{}`", argument.name)));
        }
        parsed.push((argument, is_named));
    }
    for (argument, _) in parsed.iter_mut().filter(|(_, is_named)| !is_named) {
        let own = argument.name.clone();
        let mut number = 2_usize;
        while !taken.insert(argument.name.clone()) {
            argument.name = format!("{own}_{number}");
            number += 1;
        }
    }
    Ok(parsed.into_iter().map(|(argument, _)| argument).collect())
}

/// `p`, `p:NAME`, `r`, `r20`, `r20:GROUP/NAME`.
fn command_word(line: &str, word: Word<'_>) -> Result<(Kind, Option<String>), DefError> {
    let (letters, name) = match word.text.split_once(':') {
        Some((letters, name)) => {
            (letters, Some(word.part(letters.len() + 1, letters.len() + 1 + name.len())))
        }
        None => (word.text, None),
    };
    let kind = match letters.as_bytes() {
        [b'p'] => Kind::Hit,
        [b'r'] => Kind::Return { max_active: None },
        [b'r', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
            let max_active = letters[1..].parse().ok().filter(|&n| (1..=4096).contains(&n));
            let Some(max_active) = max_active else {
                let digits = word.part(1, letters.len());
                return Err(digits.error(line, "the number of calls in flight is 1 to 4096"));
            };
            Kind::Return { max_active: Some(max_active) }
        }
        [b'p', digits @ ..] if digits.iter().all(u8::is_ascii_digit) => {
            return Err(word
                .part(1, letters.len())
                .error(line, "only `r` takes a number of calls in flight"));
        }
        _ => {
            let head = word.part(0, letters.len().max(1).min(word.text.len()));
            return Err(head.error(line, "a probe definition starts with `p` (hit) or `r` (return)"));
        }
    };
    let name = name.map(|word| event_name(line, word)).transpose()?;
    Ok((kind, name))
}

/// `[GROUP/]NAME`, each a C identifier (the kernel also allows `-` and `.` nowhere).
fn event_name(line: &str, word: Word<'_>) -> Result<String, DefError> {
    let mut at = 0;
    for part in word.text.splitn(2, '/') {
        if !is_identifier(part) {
            let part = word.part(at, at + part.len());
            return Err(part.error(line, "a probe's name is made of letters, digits and `_`"));
        }
        at += part.len() + 1;
    }
    Ok(word.text.to_owned())
}

/// `[OBJECT:]SYMBOL[+OFFSET][%return]`, `OBJECT:0xOFFSET`, with SYMBOL a glob or in quotes.
fn place_word(line: &str, word: Word<'_>) -> Result<(Option<String>, Place, bool), DefError> {
    let (object, symbol) = split_object(word);
    if let Some(object) = object
        && object.text.is_empty()
    {
        return Err(word.error(line, "an object's name is missing before `:`"));
    }
    let object_name = object.map(|object| object.text.trim_matches('"').to_owned());
    let (symbol, is_return) = match symbol.text.strip_suffix("%return") {
        Some(name) => (symbol.part(0, name.len()), true),
        None => (symbol, false),
    };
    if let Some(at) = symbol.text.rfind('%')
        && !symbol.text.starts_with('"')
    {
        return Err(symbol.from(at).error(line, "only `%return` may follow a symbol"));
    }
    if symbol.text.is_empty() {
        return Err(word.error(line, "a symbol's name is missing"));
    }
    if object.is_some() && symbol.text.starts_with(|c: char| c.is_ascii_digit()) {
        let offset = number(symbol.text)
            .ok_or_else(|| symbol.error(line, "a file offset is a number, such as 0x1234"))?;
        return Ok((object_name, Place::FileOffset(offset), is_return));
    }
    Ok((object_name, symbol_place(line, symbol)?, is_return))
}

/// Splits at the first `:` that is not part of a `::` and not in quotes.
fn split_object(word: Word<'_>) -> (Option<Word<'_>>, Word<'_>) {
    let bytes = word.text.as_bytes();
    let (mut i, mut quoted) = (0, false);
    while i < bytes.len() {
        match bytes[i] {
            b'"' => quoted = !quoted,
            b':' if !quoted && bytes.get(i + 1) == Some(&b':') => i += 1,
            b':' if !quoted => return (Some(word.part(0, i)), word.from(i + 1)),
            _ => {}
        }
        i += 1;
    }
    (None, word)
}

/// `SYMBOL`, `SYMBOL+OFFSET`, `"SYMBOL"+OFFSET`, `GLOB`.
fn symbol_place(line: &str, word: Word<'_>) -> Result<Place, DefError> {
    let (name, rest, quoted) = match word.text.strip_prefix('"').and_then(|text| text.split_once('"')) {
        Some((name, _)) => (name, word.from(name.len() + 2), true),
        None => {
            // The last `+` followed by a digit: `operator+` is a name.
            let plus = word
                .text
                .rfind('+')
                .filter(|&at| word.text[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
            let end = plus.unwrap_or(word.text.len());
            (&word.text[..end], word.from(end), false)
        }
    };
    if name.is_empty() {
        return Err(word.error(line, "a symbol's name is missing"));
    }
    let offset = match rest.text.strip_prefix('+') {
        None if rest.text.is_empty() => 0,
        Some(digits) => number(digits)
            .ok_or_else(|| rest.from(1).error(line, "an offset is a number of bytes, such as 4 or 0x1c"))?,
        None => return Err(rest.error(line, "only `+OFFSET` or `%return` may follow a symbol")),
    };
    if !quoted && Glob::is_pattern(name) {
        if !rest.text.is_empty() {
            return Err(rest.error(line, "a pattern cannot have an offset"));
        }
        return Ok(Place::Glob(Glob::new(name)));
    }
    Ok(Place::Symbol { name: name.to_owned(), offset })
}

/// A return probe stands at a function's entry.
fn check_return_place(line: &str, word: Word<'_>, kind: Kind, place: &Place) -> Result<(), DefError> {
    let Kind::Return { .. } = kind else { return Ok(()) };
    match place {
        Place::Symbol { offset, .. } if *offset != 0 => {
            let plus = word.text.rfind('+').unwrap_or(0);
            Err(word
                .from(plus)
                .error(line, "a return probe stands at a function's entry and takes no offset"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use alloc::string::ToString as _;
    use rstest::rstest;

    const REGISTERS: &[(&str, usize)] = &[("di", 0), ("rdi", 0), ("sp", 1), ("rsp", 1)];

    fn parse(text: &str) -> Result<Definition, DefError> {
        Definition::parse(text, REGISTERS)
    }

    fn symbol(name: &str, offset: u64) -> Place {
        Place::Symbol { name: name.into(), offset }
    }

    #[rstest]
    #[case::plain("p malloc", None, symbol("malloc", 0))]
    #[case::object("p libc.so.6:malloc", Some("libc.so.6"), symbol("malloc", 0))]
    #[case::path("p /bin/ls:main", Some("/bin/ls"), symbol("main", 0))]
    #[case::offset("p libc.so.6:malloc+4", Some("libc.so.6"), symbol("malloc", 4))]
    #[case::hex_offset("p malloc+0x1c", None, symbol("malloc", 28))]
    #[case::octal_offset("p malloc+010", None, symbol("malloc", 8))]
    #[case::rust_name("p core::fmt::write", None, symbol("core::fmt::write", 0))]
    #[case::object_and_rust_name("p a.so:core::fmt::write+8", Some("a.so"), symbol("core::fmt::write", 8))]
    #[case::quoted("p a.so:\"ns::f(int, char*)\"+8", Some("a.so"), symbol("ns::f(int, char*)", 8))]
    #[case::operator("p operator+", None, symbol("operator+", 0))]
    #[case::glob("p libc.so.6:mem*", Some("libc.so.6"), Place::Glob(Glob::new("mem*")))]
    #[case::file_offset("p /bin/ls:0x4000", Some("/bin/ls"), Place::FileOffset(0x4000))]
    #[case::blanks("  p \t malloc  ", None, symbol("malloc", 0))]
    #[case::versioned("p memcpy@@GLIBC_2.14", None, symbol("memcpy@@GLIBC_2.14", 0))]
    fn places(#[case] text: &str, #[case] object: Option<&str>, #[case] place: Place) {
        let def = parse(text).unwrap();
        assert_eq!((def.object.as_deref(), def.place), (object, place));
    }

    #[rstest]
    #[case::hit("p f", Kind::Hit, None)]
    #[case::named("p:open f", Kind::Hit, Some("open"))]
    #[case::grouped("p:my/open f", Kind::Hit, Some("my/open"))]
    #[case::ret("r f", Kind::Return { max_active: None }, None)]
    #[case::max_active("r20 f", Kind::Return { max_active: Some(20) }, None)]
    #[case::max_active_named("r20:x f", Kind::Return { max_active: Some(20) }, Some("x"))]
    #[case::percent_return("p f%return", Kind::Return { max_active: None }, None)]
    #[case::r_percent_return("r5 f%return", Kind::Return { max_active: Some(5) }, None)]
    fn kinds(#[case] text: &str, #[case] kind: Kind, #[case] name: Option<&str>) {
        let def = parse(text).unwrap();
        assert_eq!((def.kind, def.name.as_deref()), (kind, name));
    }

    /// Each malformed line, the text under the caret and a part of the sentence.
    #[rstest]
    #[case::empty("", "", "empty")]
    #[case::no_place("p", "", "place is missing")]
    #[case::no_place_after_blank("r ", "", "place is missing")]
    #[case::letter("x malloc", "x", "starts with `p`")]
    #[case::delete("-:name", "-", "starts with `p`")]
    #[case::colon_first(":x f", ":", "starts with `p`")]
    #[case::p_number("p7 f", "7", "only `r`")]
    #[case::max_active_zero("r0 f", "0", "1 to 4096")]
    #[case::max_active_huge("r99999 f", "99999", "1 to 4096")]
    #[case::name("p:a-b f", "a-b", "letters, digits")]
    #[case::empty_name("p: f", "", "letters, digits")]
    #[case::group("p:/b f", "", "letters, digits")]
    #[case::no_object("p :malloc", ":malloc", "object's name is missing")]
    #[case::no_symbol("p libc.so.6:", "libc.so.6:", "symbol's name is missing")]
    #[case::bad_offset("p f+0x", "0x", "number of bytes")]
    #[case::bad_offset_digits("p f+9z", "9z", "number of bytes")]
    #[case::glob_offset("p mem*+4", "+4", "pattern cannot have an offset")]
    #[case::return_offset("r malloc+4", "+4", "takes no offset")]
    #[case::percent_return_offset("p malloc+4%return", "+4%return", "takes no offset")]
    #[case::percent("p malloc%retrun", "%retrun", "only `%return`")]
    #[case::unclosed_quote("p \"ns::f(int", "\"ns::f(int", "not closed")]
    #[case::after_quote("p \"f\"x", "x", "only `+OFFSET`")]
    #[case::file_offset("p a.so:12x", "12x", "file offset is a number")]
    #[case::retval_in_p("p f $retval", "$retval", "only a return probe")]
    #[case::unknown_variable("p f $arg", "$arg", "unknown variable")]
    #[case::arg_zero("p f $arg0", "$arg0", "counted from 1")]
    #[case::arg_large("p f $arg99", "$arg99", "counted from 1")]
    #[case::register("p f %rdx", "%rdx", "no register")]
    #[case::ty("p f $arg1:u7", "u7", "unknown type")]
    #[case::empty_ty("p f $arg1:", "$arg1:", "type is missing")]
    #[case::array("p f $arg1:x32[0]", "[0]", "1 to 64")]
    #[case::array_large("p f $arg1:x32[65]", "[65]", "1 to 64")]
    #[case::array_unclosed("p f $arg1:x32[4", "[4", "`]`")]
    #[case::deref_unclosed("p f +8($arg1", "($arg1", "`)`")]
    #[case::deref_no_number("p f +($arg1)", "+", "number of bytes")]
    #[case::deref_no_paren("p f +8", "+8", "`(`")]
    #[case::deref_of_comm("p f +8($comm)", "$comm", "not addresses")]
    #[case::comm_type("p f $comm:u8", "u8", "`string`")]
    #[case::arg_name("p f a-b=$arg1", "a-b", "letters, digits")]
    #[case::no_fetch("p f a=", "a=", "value is missing")]
    #[case::nonsense("p f hello", "hello", "starts with")]
    #[case::twice("p f a=$arg1 a=$arg2", "a=$arg2", "two arguments")]
    #[case::symbol_missing("p f @", "@", "symbol or an address")]
    fn malformed(#[case] text: &str, #[case] under: &str, #[case] part: &str) {
        let error = parse(text).unwrap_err();
        assert_eq!(&text[error.span.0..error.span.1], under, "{error}");
        assert!(error.sentence.contains(part), "{error}");
    }

    #[test]
    fn a_mistyped_type_or_register_or_variable_gets_a_suggestion() {
        for (text, hint) in
            [("p f $arg1:strin", "`string`"), ("p f %rdj", "`%rdi`"), ("p f $retvla", "`$retval`")]
        {
            let error = parse(text).unwrap_err();
            assert!(error.sentence.contains(hint), "{error}");
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic() {
        let alphabet = [
            "p", "r", " ", ":", "+", "(", ")", "$arg1", "%", "@", "\"", "[", "]", "=", "9", "ä", "\\", "-",
            "*",
        ];
        let mut seed = 7_u32;
        for _ in 0..20_000 {
            let mut text = String::from("p f ");
            for _ in 0..8 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                text.push_str(alphabet[(seed >> 16) as usize % alphabet.len()]);
            }
            for text in [&text[..], &text[4..]] {
                if let Err(error) = parse(text) {
                    let _ = error.to_string();
                }
            }
        }
    }
}
