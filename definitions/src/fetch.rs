//! The parser of fetch arguments: `[NAME=]FETCH[:TYPE]`.

use super::word::{Word, is_identifier, number};
use super::{
    Argument, Bits, DefError, Fetch, Kind, MAX_ARGUMENT, MAX_ARRAY, MAX_DEREFS, MAX_TEXT, Scalar, Source,
    Type, Width, near_matches,
};

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Every type by name.
const TYPES: [(&str, Scalar); 17] = [
    ("u8", Scalar::Unsigned(Width::W8)),
    ("u16", Scalar::Unsigned(Width::W16)),
    ("u32", Scalar::Unsigned(Width::W32)),
    ("u64", Scalar::Unsigned(Width::W64)),
    ("s8", Scalar::Signed(Width::W8)),
    ("s16", Scalar::Signed(Width::W16)),
    ("s32", Scalar::Signed(Width::W32)),
    ("s64", Scalar::Signed(Width::W64)),
    ("x8", Scalar::Hex(Width::W8)),
    ("x16", Scalar::Hex(Width::W16)),
    ("x32", Scalar::Hex(Width::W32)),
    ("x64", Scalar::Hex(Width::W64)),
    ("char", Scalar::Char),
    ("string", Scalar::String),
    ("ustring", Scalar::String),
    ("symbol", Scalar::Symbol),
    ("symstr", Scalar::SymbolText),
];

/// What a parser of one definition's arguments needs to know.
struct Parser<'a> {
    line: &'a str,
    kind: Kind,
    registers: &'a [(&'a str, usize)],
}

/// Parses argument number `index` (from 0); says whether it was given a name.
pub(super) fn argument(
    line: &str,
    word: Word<'_>,
    index: usize,
    kind: Kind,
    registers: &[(&str, usize)],
) -> Result<(Argument, bool), DefError> {
    let parser = Parser { line, kind, registers };
    // Not one within a text.
    let head = word.text.split('"').next().unwrap_or_default();
    let (name, value) = match head.find('=') {
        Some(at) => {
            let name = word.part(0, at);
            if !is_identifier(name.text) {
                return Err(name.error(line, "an argument's name is made of letters, digits and `_`"));
            }
            (Some(name.text.to_owned()), word.from(at + 1))
        }
        None => (None, word),
    };
    if value.text.is_empty() {
        return Err(word.error(line, "a value is missing after `=`"));
    }
    let (fetch_word, ty) = parser.split_type(value)?;
    let fetch = parser.fetch(fetch_word)?;
    let ty = parser.resolve_type(&fetch, ty)?;
    let is_named = name.is_some();
    let name = name.unwrap_or_else(|| own_name(fetch_word.text, &fetch, index));
    Ok((Argument { name, fetch, ty, span: word.span() }, is_named))
}

/// The name of an argument that was given none: that of its source, so that nobody mistakes one for another.
fn own_name(text: &str, fetch: &Fetch, index: usize) -> String {
    match (&fetch.source, fetch.derefs.as_slice()) {
        (Source::Argument(n), []) => format!("arg{}", n + 1),
        (Source::ReturnValue, []) => "retval".into(),
        (Source::Stack(n), []) => format!("stack{n}"),
        (Source::StackPointer, []) => "stack".into(),
        (Source::Comm, []) => "comm".into(),
        (Source::Register(_), []) if is_identifier(&text[1..]) => text[1..].into(),
        (Source::Symbol { name, offset: 0 }, [0]) if is_identifier(name) => name.clone(),
        _ => format!("value{}", index + 1),
    }
}

impl Parser<'_> {
    /// Splits `FETCH:TYPE`. The type starts at the last `:` outside parentheses that is not part of a `::`.
    fn split_type<'w>(&self, word: Word<'w>) -> Result<(Word<'w>, Option<(Word<'w>, Type)>), DefError> {
        if word.text.starts_with("\\\"") {
            let end = word.text[2..].find('"').map_or(word.text.len(), |len| 2 + len + 1);
            let (text, rest) = (word.part(0, end), word.from(end));
            return match rest.text.strip_prefix(':') {
                None if rest.text.is_empty() => Ok((text, None)),
                Some("") => Err(word.error(self.line, "a type is missing after `:`")),
                Some(_) => Ok((text, Some((rest.from(1), self.parse_type(rest.from(1))?)))),
                None => Err(rest.error(self.line, "only `:TYPE` may follow a text")),
            };
        }
        let at = word.text.rfind(':').filter(|&at| at > 0 && !word.text[..at].ends_with(':'));
        let Some(at) = at.filter(|&at| !word.text[at..].contains(')')) else { return Ok((word, None)) };
        let ty = word.from(at + 1);
        if ty.text.is_empty() {
            return Err(word.error(self.line, "a type is missing after `:`"));
        }
        Ok((word.part(0, at), Some((ty, self.parse_type(ty)?))))
    }

    fn parse_type(&self, word: Word<'_>) -> Result<Type, DefError> {
        let (name, count) = match word.text.find('[') {
            None => (word, None),
            Some(at) => {
                let bracket = word.from(at);
                let Some(digits) = bracket.text[1..].strip_suffix(']') else {
                    return Err(bracket.error(self.line, "an array's count ends with `]`"));
                };
                let count = number(digits)
                    .and_then(|n| usize::try_from(n).ok())
                    .filter(|n| (1..=MAX_ARRAY).contains(n));
                let Some(count) = count else {
                    return Err(bracket.error(self.line, format!("an array has 1 to {MAX_ARRAY} elements")));
                };
                (word.part(0, at), Some(count))
            }
        };
        match TYPES.iter().find(|(known, _)| *known == name.text) {
            Some(&(_, scalar)) => Ok(Type { scalar, count }),
            None if name.text.starts_with('b') && name.text.contains('@') => match bits(name.text) {
                Some(bits) => Ok(Type { scalar: Scalar::Bits(bits), count }),
                None => Err(name.error(
                    self.line,
                    "a bit field is bWIDTH@OFFSET/CONTAINER, such as b4@0/32, and lies within its container of 8, 16, 32 or 64 bits",
                )),
            },
            None => {
                let hint = hint("", near_matches(name.text, TYPES.iter().map(|(known, _)| *known), 2));
                Err(name.error(self.line, format!("unknown type `{}`{hint}", name.text)))
            }
        }
    }

    /// The type to use, with the rules that depend on the source.
    fn resolve_type(&self, fetch: &Fetch, ty: Option<(Word<'_>, Type)>) -> Result<Type, DefError> {
        let text = Type { scalar: Scalar::String, count: None };
        match ty {
            None if is_text(&fetch.source) => Ok(text),
            None => Ok(Type::WORD),
            Some((word, ty)) if is_text(&fetch.source) && ty != text => {
                Err(word.error(self.line, "`$comm` and texts have the type `string`"))
            }
            Some((_, ty)) => Ok(ty),
        }
    }

    fn fetch(&self, word: Word<'_>) -> Result<Fetch, DefError> {
        let (mut inner, mut outer) = (word, Vec::new());
        while inner.text.starts_with(['+', '-']) {
            let Some(open) = inner.text.find('(') else {
                return Err(inner.error(self.line, "`(` is missing after the offset of a memory read"));
            };
            let sign_and_digits = inner.part(0, open);
            // The kernel's `+u8(…)` reads user memory; here all memory is.
            let digits = &sign_and_digits.text[1..];
            let digits = digits.strip_prefix('u').unwrap_or(digits);
            let offset = number(digits).and_then(|n| i64::try_from(n).ok());
            let Some(offset) = offset else {
                return Err(sign_and_digits.error(
                    self.line,
                    "the offset of a memory read is a number of bytes, such as +8 or -0x10",
                ));
            };
            outer.push(if inner.text.starts_with('-') { -offset } else { offset });
            if outer.len() > MAX_DEREFS {
                return Err(
                    inner.error(self.line, format!("more than {MAX_DEREFS} memory reads in one another"))
                );
            }
            let rest = inner.from(open);
            let Some(content) = rest.text[1..].strip_suffix(')') else {
                return Err(rest.error(self.line, "`)` is missing at the end of a memory read"));
            };
            inner = rest.part(1, 1 + content.len());
        }
        let (source, mut derefs) = self.source(inner)?;
        if is_text(&source) && !outer.is_empty() {
            return Err(inner.error(self.line, "`$comm` and texts are not addresses"));
        }
        derefs.extend(outer.into_iter().rev());
        Ok(Fetch { source, derefs })
    }

    /// The innermost value, with the memory read that `@` stands for.
    fn source(&self, word: Word<'_>) -> Result<(Source, Vec<i64>), DefError> {
        match word.text.as_bytes().first() {
            Some(b'$') => Ok((self.variable(word)?, Vec::new())),
            Some(b'%') => Ok((self.register(word)?, Vec::new())),
            Some(b'@') => Ok((self.global(word)?, vec![0])),
            Some(b'\\') if word.text[1..].starts_with('"') => {
                // Closed, as all quotes of a definition are.
                let text = word.text[2..].trim_end_matches('"');
                if text.len() > MAX_TEXT {
                    return Err(word.error(self.line, format!("a text has at most {MAX_TEXT} bytes")));
                }
                Ok((Source::Text(text.to_owned()), Vec::new()))
            }
            Some(b'\\') => {
                let digits = &word.text[1..];
                let value = match digits.strip_prefix('-') {
                    Some(digits) => number(digits).map(u64::wrapping_neg),
                    None => number(digits),
                };
                let constant = value.map(Source::Constant);
                Ok((constant.ok_or_else(|| word.error(self.line, "a number, or a text in quotes, follows `\\`"))?, Vec::new()))
            }
            _ => Err(word.error(
                self.line,
                "a value starts with `$` (variable), `%` (register), `@` (symbol or address), `+` or `-` (memory read), or `\\` (number or text)",
            )),
        }
    }

    fn variable(&self, word: Word<'_>) -> Result<Source, DefError> {
        let name = &word.text[1..];
        match name {
            "comm" | "COMM" => return Ok(Source::Comm),
            "stack" => return Ok(Source::StackPointer),
            "retval" if matches!(self.kind, Kind::Return { .. }) => return Ok(Source::ReturnValue),
            "retval" => {
                return Err(word.error(self.line, "only a return probe (`r`, `%return`) has a `$retval`"));
            }
            _ => {}
        }
        if let Some(n) = name.strip_prefix("stack").and_then(index) {
            return Ok(Source::Stack(n));
        }
        if let Some(n) = name.strip_prefix("arg").and_then(index) {
            if !(1..=MAX_ARGUMENT).contains(&n) {
                let sentence = format!("arguments are counted from 1 to {MAX_ARGUMENT}");
                return Err(word.error(self.line, sentence));
            }
            return Ok(Source::Argument(n - 1));
        }
        let known = ["$arg1", "$retval", "$stack0", "$stack", "$comm"];
        let hint = hint("", near_matches(word.text, known, 1));
        Err(word.error(self.line, format!("unknown variable `{}`{hint}", word.text)))
    }

    fn register(&self, word: Word<'_>) -> Result<Source, DefError> {
        let name = &word.text[1..];
        if let Some(&(_, number)) = self.registers.iter().find(|(known, _)| *known == name) {
            return Ok(Source::Register(number));
        }
        let hint = hint("%", near_matches(name, self.registers.iter().map(|(known, _)| *known), 3));
        Err(word.error(self.line, format!("there is no register `{}`{hint}", word.text)))
    }

    /// `@ADDRESS`, `@SYMBOL`, `@SYMBOL±OFFSET`.
    fn global(&self, word: Word<'_>) -> Result<Source, DefError> {
        let text = &word.text[1..];
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let addr = number(text)
                .ok_or_else(|| word.error(self.line, "an address is a number, such as 0x1234"))?;
            return Ok(Source::Constant(addr));
        }
        let sign =
            text.rfind(['+', '-']).filter(|&at| text[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
        let name = &text[..sign.unwrap_or(text.len())];
        if name.is_empty() {
            return Err(word.error(self.line, "a symbol or an address follows `@`"));
        }
        let offset = match sign {
            None => 0,
            Some(at) => {
                let bytes = number(&text[at + 1..]).and_then(|n| i64::try_from(n).ok());
                let Some(bytes) = bytes else {
                    return Err(word
                        .from(at + 2)
                        .error(self.line, "an offset is a number of bytes, such as 4 or 0x1c"));
                };
                if text[at..].starts_with('-') { -bytes } else { bytes }
            }
        };
        Ok(Source::Symbol { name: name.to_owned(), offset })
    }
}

/// Whether a source gives text and no number.
fn is_text(source: &Source) -> bool {
    matches!(source, Source::Comm | Source::Text(_))
}

/// `bWIDTH@OFFSET/CONTAINER`.
fn bits(text: &str) -> Option<Bits> {
    let (width, rest) = text.strip_prefix('b')?.split_once('@')?;
    let (offset, container) = rest.split_once('/')?;
    let container = match container {
        "8" => Width::W8,
        "16" => Width::W16,
        "32" => Width::W32,
        "64" => Width::W64,
        _ => return None,
    };
    let (width, offset) = (number(width)?, number(offset)?);
    let is_inside = width >= 1 && width.checked_add(offset)? <= 8 * container.bytes() as u64;
    is_inside.then_some(Bits { width: width as u8, offset: offset as u8, container })
}

/// The N of `$argN` and `$stackN`.
fn index(digits: &str) -> Option<usize> {
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|&n| n <= 1024)
}

/// `; did you mean …?` or nothing.
fn hint(prefix: &str, names: Vec<&str>) -> String {
    match names.as_slice() {
        [] => String::new(),
        names => {
            let names: Vec<String> = names.iter().map(|name| format!("`{prefix}{name}`")).collect();
            format!("; did you mean {}?", names.join(" or "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use alloc::format;
    use rstest::rstest;

    const REGISTERS: &[(&str, usize)] = &[("di", 0), ("rdi", 0), ("sp", 1), ("rsp", 1)];

    fn one(text: &str) -> Argument {
        Definition::parse(&format!("r f {text}"), REGISTERS).unwrap().args.remove(0)
    }

    fn bits(width: u8, offset: u8, container: Width) -> Scalar {
        Scalar::Bits(Bits { width, offset, container })
    }

    fn symbol(name: &str, offset: i64) -> Source {
        Source::Symbol { name: name.into(), offset }
    }

    #[rstest]
    #[case::argument("$arg1", Source::Argument(0), &[])]
    #[case::retval("$retval", Source::ReturnValue, &[])]
    #[case::stack_word("$stack3", Source::Stack(3), &[])]
    #[case::stack("$stack", Source::StackPointer, &[])]
    #[case::comm("$comm", Source::Comm, &[])]
    #[case::register("%rdi", Source::Register(0), &[])]
    #[case::register_alias("%sp", Source::Register(1), &[])]
    #[case::global("@stdout", symbol("stdout", 0), &[0])]
    #[case::global_offset("@stdout+8", symbol("stdout", 8), &[0])]
    #[case::global_negative("@stdout-0x10", symbol("stdout", -16), &[0])]
    #[case::address("@0x1000", Source::Constant(0x1000), &[0])]
    #[case::constant("\\42", Source::Constant(42), &[])]
    #[case::negative_constant("\\-1", Source::Constant(u64::MAX), &[])]
    #[case::deref("+8(%rsp)", Source::Register(1), &[8])]
    #[case::user_deref("+u8(%rsp)", Source::Register(1), &[8])]
    #[case::user_deref_negative("-u0x10(%rsp)", Source::Register(1), &[-16])]
    #[case::text("\\\"text\"", Source::Text("text".into()), &[])]
    #[case::text_with_everything("\\\"a b:c=$arg1 (d)\"", Source::Text("a b:c=$arg1 (d)".into()), &[])]
    #[case::empty_text("\\\"\"", Source::Text(String::new()), &[])]
    #[case::nested("+8(-0x10(%rsp))", Source::Register(1), &[-16, 8])]
    #[case::nested_global("+4(@list)", symbol("list", 0), &[0, 4])]
    fn fetches(#[case] text: &str, #[case] source: Source, #[case] derefs: &[i64]) {
        let want = Fetch { source, derefs: derefs.to_vec() };
        assert_eq!(one(text).fetch, want);
        assert_eq!(one(&format!("x={text}")).fetch, want);
    }

    #[rstest]
    #[case("$arg1", Type::WORD)]
    #[case("$arg1:u8", Type { scalar: Scalar::Unsigned(Width::W8), count: None })]
    #[case("$arg1:s16", Type { scalar: Scalar::Signed(Width::W16), count: None })]
    #[case("+0($arg1):x32[4]", Type { scalar: Scalar::Hex(Width::W32), count: Some(4) })]
    #[case("$arg1:char", Type { scalar: Scalar::Char, count: None })]
    #[case("$arg1:string", Type { scalar: Scalar::String, count: None })]
    #[case("$arg1:symbol", Type { scalar: Scalar::Symbol, count: None })]
    #[case("+u0($arg1):ustring", Type { scalar: Scalar::String, count: None })]
    #[case("$arg1:symstr", Type { scalar: Scalar::SymbolText, count: None })]
    #[case("$arg1:b4@0/32", Type { scalar: bits(4, 0, Width::W32), count: None })]
    #[case("+0($arg1):b0x3@5/8[2]", Type { scalar: bits(3, 5, Width::W8), count: Some(2) })]
    #[case("$arg1:b64@0/64", Type { scalar: bits(64, 0, Width::W64), count: None })]
    #[case("\\\"a:b\"", Type { scalar: Scalar::String, count: None })]
    #[case("\\\"a:b\":string", Type { scalar: Scalar::String, count: None })]
    #[case("@ns::list", Type::WORD)]
    #[case("@ns::list:u64", Type { scalar: Scalar::Unsigned(Width::W64), count: None })]
    #[case("$comm", Type { scalar: Scalar::String, count: None })]
    fn types(#[case] text: &str, #[case] ty: Type) {
        assert_eq!(one(text).ty, ty);
    }

    #[rstest]
    #[case("$arg3 size=$arg1 $arg2", &["arg3", "size", "arg2"])]
    #[case("$retval $comm $stack $stack2 %di @stdout", &["retval", "comm", "stack", "stack2", "di", "stdout"])]
    #[case("+8($arg1) @ns::list \\7 \\\"x\"", &["value1", "value2", "value3", "value4"])]
    #[case("$arg1 $arg1:string x=$arg1 $arg1:u8", &["arg1", "arg1_2", "x", "arg1_3"])]
    #[case("arg1=$arg2 $arg1", &["arg1", "arg1_2"])]
    #[case("$arg1 arg1=$arg2", &["arg1_2", "arg1"])]
    fn arguments_without_a_name_are_called_as_what_they_fetch(#[case] args: &str, #[case] names: &[&str]) {
        let def = Definition::parse(&format!("r f {args}"), REGISTERS).unwrap();
        assert_eq!(def.args.iter().map(|arg| arg.name.as_str()).collect::<Vec<_>>(), names);
    }

    #[test]
    fn bits_are_counted_from_the_lowest() {
        let bits = |width, offset, container| Bits { width, offset, container };
        assert_eq!(bits(4, 0, Width::W32).of(0x1234_5678), 8);
        assert_eq!(bits(4, 28, Width::W32).of(0x1234_5678), 1);
        assert_eq!(bits(64, 0, Width::W64).of(u64::MAX), u64::MAX);
    }

    #[rstest]
    #[case("$arg1:b0@0/32")]
    #[case("$arg1:b33@0/32")]
    #[case("$arg1:b4@29/32")]
    #[case("$arg1:b4@0/24")]
    #[case("$arg1:b4@0")]
    #[case("\\\"a\":u8")]
    #[case("\\\"a\":string[2]")]
    #[case("\\\"a\"b")]
    #[case("+0(\\\"a\")")]
    #[case("+uu8($arg1)")]
    fn what_the_kernel_refuses_is_refused(#[case] text: &str) {
        Definition::parse(&format!("r f {text}"), REGISTERS).unwrap_err();
    }
}
