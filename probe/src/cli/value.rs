//! Fetched values as text and as JSON.

use super::foreign::{Foreign, quoted};
use super::functions::Function;
use crate::def::{Argument, MAX_STACK, Scalar, Width};
use crate::file::{self, Event};
use crate::wire::{EXACT, Value, Values};
use serde_json::Value as Json;
use std::fmt::Write;

/// Turns an address into `symbol+0xoffset` where a symbol covers it.
pub(super) trait Symbolize {
    /// The symbol that covers `addr`, with the distance from it.
    fn symbol(&self, addr: u64) -> Option<Foreign<String>>;

    /// The functions at the place of a frame, each inlined in the one behind it; at least one.
    fn functions(&self, place: u64) -> Vec<Function>;
}

/// A frame of a stack.
pub(super) struct Frame {
    /// Its address.
    pub(super) addr: u64,
    /// The functions there, each inlined in the one behind it.
    pub(super) functions: Vec<Function>,
}

/// The stack among the values: its frames, innermost first, and why there are no more.
pub(super) fn stack(
    args: &[Argument],
    values: Values<'_>,
    symbols: &dyn Symbolize,
) -> Option<(Vec<Frame>, StackEnd)> {
    let (end, frames) = file::frames(file::stack(args, values)?)?;
    let frame = |(frame, is_signal): (u64, bool)| Frame {
        addr: frame & !EXACT,
        functions: if is_signal { vec![signal()] } else { symbols.functions(file::place(frame)) },
    };
    Some((with_signals(frames.take(MAX_STACK)).map(frame).collect(), StackEnd::of(end)))
}

/// Frames, and whether each is what a signal's handler returns to: the next one was interrupted.
pub(super) fn with_signals(frames: impl Iterator<Item = u64> + Clone) -> impl Iterator<Item = (u64, bool)> {
    let next = frames.clone().skip(1).map(|next| next & EXACT != 0).chain([false]);
    frames.zip(next)
}

/// What is shown for code that a signal's handler returns to.
pub(super) fn signal() -> Function {
    Function::new("<signal handler called>", "")
}

/// The value of a number among the arguments; 0 where it is negative.
pub(super) fn unsigned_argument(args: &[Argument], mut values: Values<'_>, name: &str) -> Option<u64> {
    for arg in args {
        if arg.name != name {
            skip(arg, &mut values);
            continue;
        }
        let (bytes, _) = elements(arg, &mut values).into_iter().next().flatten()?;
        return Some(match arg.ty.scalar {
            Scalar::Signed(width) => signed(bytes, width).max(0).cast_unsigned(),
            Scalar::Bits(bits) => bits.of(unsigned(bytes)),
            Scalar::String | Scalar::Stack => return None,
            _ => unsigned(bytes),
        });
    }
    None
}

/// Why a stack has no more frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StackEnd {
    /// Nobody has called the last one.
    #[default]
    Outermost,
    /// More were not wanted.
    Depth,
    /// Nothing says who has called the last one.
    Lost,
}

impl StackEnd {
    fn of(word: u64) -> Self {
        match word {
            0 => Self::Outermost,
            1 => Self::Depth,
            _ => Self::Lost,
        }
    }

    /// What stands behind the last frame, if anything does.
    pub(super) const fn mark(self) -> Option<&'static str> {
        match self {
            Self::Outermost => None,
            Self::Depth => Some("…"),
            Self::Lost => Some("(nothing says who has called this)"),
        }
    }

    /// In JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Outermost => "outermost",
            Self::Depth => "depth",
            Self::Lost => "lost",
        }
    }
}

/// What becomes of what could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faults {
    /// It is shown as that.
    Shown,
    /// It is left out: of a call that was left, nothing else is to be expected.
    LeftOut,
}

/// Appends ` NAME=VALUE` for each argument.
pub(super) fn text(
    out: &mut String,
    args: &[Argument],
    mut values: Values<'_>,
    symbols: &dyn Symbolize,
    faults: Faults,
) {
    for arg in args {
        if arg.ty.scalar == Scalar::Stack {
            skip(arg, &mut values);
            continue;
        }
        let elements = elements(arg, &mut values);
        if faults == Faults::LeftOut && !elements.iter().any(Option::is_some) {
            continue;
        }
        let _ = write!(out, " {}=", arg.name);
        if arg.ty.count.is_some() && elements.iter().any(Option::is_some) {
            out.push('{');
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                element_text(out, arg.ty.scalar, element.as_ref(), symbols);
            }
            out.push('}');
        } else {
            element_text(out, arg.ty.scalar, elements.first().and_then(Option::as_ref), symbols);
        }
    }
}

/// As [`kept`], for what has no other place to say that a call was left.
pub(super) fn kept_with_end(event: &Event<'_>) -> Box<[u8]> {
    let args = kept(event);
    if event.left_ns.is_none() { args } else { [&args, &b" (left)"[..]].concat().trim_ascii().into() }
}

/// The arguments of an event that is shown later, as text.
pub(super) fn kept(event: &Event<'_>) -> Box<[u8]> {
    let mut args = String::new();
    let faults = if event.left_ns.is_some() { Faults::LeftOut } else { Faults::Shown };
    text(&mut args, &event.probe.args, event.values, &event.names, faults);
    args.trim_start().as_bytes().into()
}

/// The arguments as a JSON object; what could not be read is `null`.
pub(super) fn json(args: &[Argument], mut values: Values<'_>, symbols: &dyn Symbolize) -> Json {
    let mut map = serde_json::Map::new();
    for arg in args {
        let elements = elements(arg, &mut values);
        if arg.ty.scalar == Scalar::Stack {
            continue;
        }
        let mut all = elements.iter().map(|e| element_json(arg.ty.scalar, e.as_ref(), symbols));
        let value = if arg.ty.count.is_some() && elements.iter().any(Option::is_some) {
            Json::Array(all.collect())
        } else {
            all.next().unwrap_or(Json::Null)
        };
        map.insert(arg.name.clone(), value);
    }
    Json::Object(map)
}

/// The bytes, in hexadecimal, of strings and characters that are not UTF-8, at the places where [`json`] has
/// them; `None` where all are.
pub(super) fn bytes(args: &[Argument], mut values: Values<'_>) -> Option<Json> {
    let mut map = serde_json::Map::new();
    for arg in args {
        let elements = elements(arg, &mut values);
        if !matches!(arg.ty.scalar, Scalar::String | Scalar::Char) {
            continue;
        }
        let all: Vec<Json> =
            elements.iter().map(|element| element.map_or(Json::Null, |(bytes, _)| not_utf8(bytes))).collect();
        if all.iter().all(Json::is_null) {
            continue;
        }
        let one = if arg.ty.count.is_some() { Json::Array(all) } else { all.into_iter().next()? };
        map.insert(arg.name.clone(), one);
    }
    (!map.is_empty()).then_some(Json::Object(map))
}

/// Bytes in hexadecimal; `null` for UTF-8, which a string of JSON holds as it is.
pub(super) fn not_utf8(bytes: &[u8]) -> Json {
    if std::str::from_utf8(bytes).is_ok() {
        return Json::Null;
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

/// Leaves out an argument's values.
pub(super) fn skip(arg: &Argument, values: &mut Values<'_>) {
    let _ = elements(arg, values);
}

/// One element: its bytes, and whether they were cut.
type Element<'a> = (&'a [u8], bool);

/// The elements of one argument; `None` for what could not be read.
fn elements<'a>(arg: &Argument, values: &mut Values<'a>) -> Vec<Option<Element<'a>>> {
    let mut next = || values.next().and_then(|Value { bytes, truncated }| Some((bytes?, truncated)));
    let count = arg.ty.count.unwrap_or(1);
    if matches!(arg.ty.scalar, Scalar::Symbol | Scalar::SymbolText) {
        // Addresses have the width of the machine that they come from.
        let Some((bytes, _)) = next() else { return vec![None] };
        let width = bytes.len() / count;
        return match width {
            1..=8 if bytes.len() == width * count => {
                bytes.chunks_exact(width).map(|element| Some((element, false))).collect()
            }
            _ => vec![None],
        };
    }
    match arg.ty.scalar.bytes() {
        0 => (0..count).map(|_| next()).collect(),
        width => match next() {
            Some((bytes, _)) if bytes.len() == width * count => {
                bytes.chunks_exact(width).map(|element| Some((element, false))).collect()
            }
            _ => vec![None],
        },
    }
}

fn element_text(out: &mut String, scalar: Scalar, element: Option<&Element<'_>>, symbols: &dyn Symbolize) {
    let Some(&(bytes, cut)) = element else {
        out.push_str("(fault)");
        return;
    };
    let _ = match scalar {
        Scalar::Unsigned(_) => write!(out, "{}", unsigned(bytes)),
        Scalar::Signed(width) => write!(out, "{}", signed(bytes, width)),
        Scalar::Hex(_) => write!(out, "{:#x}", unsigned(bytes)),
        Scalar::Char => {
            write!(out, "'{}'", quoted(bytes, '\''))
        }
        Scalar::String => {
            write!(out, "\"{}\"{}", quoted(bytes, '"'), if cut { "…" } else { "" })
        }
        Scalar::Bits(bits) => write!(out, "{}", bits.of(unsigned(bytes))),
        // Shown behind the event.
        Scalar::Stack => Ok(()),
        Scalar::Symbol => write!(out, "{}", symbol(bytes, symbols).shown()),
        Scalar::SymbolText => write!(out, "\"{}\"", quoted(symbol(bytes, symbols).raw().as_bytes(), '"')),
    };
}

fn element_json(scalar: Scalar, element: Option<&Element<'_>>, symbols: &dyn Symbolize) -> Json {
    let Some(&(bytes, _)) = element else { return Json::Null };
    match scalar {
        Scalar::Unsigned(_) => unsigned(bytes).into(),
        Scalar::Signed(width) => signed(bytes, width).into(),
        Scalar::Hex(_) => format!("{:#x}", unsigned(bytes)).into(),
        Scalar::Char | Scalar::String => String::from_utf8_lossy(bytes).into(),
        Scalar::Bits(bits) => bits.of(unsigned(bytes)).into(),
        Scalar::Stack => Json::Null,
        Scalar::Symbol | Scalar::SymbolText => symbol(bytes, symbols).json(),
    }
}

/// `symbol+0xoffset`, or the address where nothing covers it.
fn symbol(bytes: &[u8], symbols: &dyn Symbolize) -> Foreign<String> {
    let addr = unsigned(bytes);
    symbols.symbol(addr).unwrap_or_else(|| Foreign::new(format!("{addr:#x}")))
}

fn unsigned(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    if cfg!(target_endian = "little") {
        word[..len].copy_from_slice(&bytes[..len]);
    } else {
        word[8 - len..].copy_from_slice(&bytes[..len]);
    }
    u64::from_ne_bytes(word)
}

fn signed(bytes: &[u8], width: Width) -> i64 {
    let unused = 64 - 8 * width.bytes();
    ((unsigned(bytes) << unused) as i64) >> unused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::def::Definition;
    use crate::wire::{FAULT, TRUNCATED};
    use rstest::rstest;

    struct OneSymbol;

    impl Symbolize for OneSymbol {
        fn symbol(&self, addr: u64) -> Option<Foreign<String>> {
            (addr == 0x1010).then(|| Foreign::new("main+0x10".into()))
        }

        fn functions(&self, place: u64) -> Vec<Function> {
            vec![Function::new(if place == 0x100f { "main" } else { "?" }, "+0x10")]
        }
    }

    fn args(types: &str) -> Vec<Argument> {
        Definition::parse(&format!("r f {types}"), &[]).unwrap().args
    }

    fn value(word: u32, bytes: &[u8]) -> Vec<u8> {
        [&word.to_ne_bytes(), bytes].concat()
    }

    fn both(ty: &str, encoded: &[u8]) -> (String, Json) {
        let args = args(&format!("v=$retval:{ty}"));
        let mut out = String::new();
        text(&mut out, &args, Values(encoded), &OneSymbol, Faults::Shown);
        (out.trim_start_matches(" v=").to_owned(), json(&args, Values(encoded), &OneSymbol)["v"].clone())
    }

    #[rstest]
    #[case("u8", 255_u64, "255", Json::from(255))]
    #[case("u64", u64::MAX, "18446744073709551615", Json::from(u64::MAX))]
    #[case("s8", 255, "-1", Json::from(-1))]
    #[case("s16", 0x8000, "-32768", Json::from(-32768))]
    #[case("s32", 0xffff_ffff, "-1", Json::from(-1))]
    #[case("s64", u64::MAX, "-1", Json::from(-1))]
    #[case("x8", 0xab, "0xab", Json::from("0xab"))]
    #[case("x64", 0, "0x0", Json::from("0x0"))]
    #[case("char", b'a'.into(), "'a'", Json::from("a"))]
    #[case("char", 0, "'\\x00'", Json::from("\0"))]
    #[case("char", b'\''.into(), "'\\''", Json::from("'"))]
    #[case("symbol", 0x1010, "main+0x10", Json::from("main+0x10"))]
    #[case("symstr", 0x1010, "\"main+0x10\"", Json::from("main+0x10"))]
    #[case("b4@4/32", 0x1234_5678, "7", Json::from(7))]
    #[case("b1@63/64", u64::MAX, "1", Json::from(1))]
    #[case("symbol", 0x9999, "0x9999", Json::from("0x9999"))]
    fn scalars(#[case] ty: &str, #[case] word: u64, #[case] shown: &str, #[case] as_json: Json) {
        let len = args(&format!("$retval:{ty}"))[0].ty.scalar.bytes();
        let bytes = word.to_ne_bytes();
        let bytes = if cfg!(target_endian = "little") { &bytes[..len] } else { &bytes[8 - len..] };
        assert_eq!(both(ty, &value(len as u32, bytes)), (shown.into(), as_json));
    }

    #[rstest]
    #[case(b"/usr/share", 0, "\"/usr/share\"")]
    #[case(b"", 0, "\"\"")]
    #[case("grün €".as_bytes(), 0, "\"grün €\"")]
    #[case(b"a\"b\\c\n\x1b", 0, "\"a\\\"b\\\\c\\n\\x1b\"")]
    #[case(b"\xff\xfea", 0, "\"\\xff\\xfea\"")]
    #[case(b"long", TRUNCATED, "\"long\"…")]
    fn strings(#[case] bytes: &[u8], #[case] flags: u32, #[case] shown: &str) {
        assert_eq!(both("string", &value(bytes.len() as u32 | flags, bytes)).0, shown);
    }

    #[test]
    fn what_could_not_be_read_is_a_fault() {
        for ty in ["u64", "string", "x32[4]", "symbol", "string[2]"] {
            let encoded = [value(FAULT, b""), value(FAULT, b"")].concat();
            assert_eq!(both(ty, &encoded), ("(fault)".into(), Json::Null), "{ty}");
        }
        assert_eq!(both("u64", b"").0, "(fault)", "an event that was cut");
    }

    #[test]
    fn arrays_stand_in_braces() {
        let words: Vec<u8> = [1_u32, 2, 0xff].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let (shown, as_json) = both("x32[3]", &value(12, &words));
        assert_eq!(shown, "{0x1,0x2,0xff}");
        assert_eq!(as_json, serde_json::json!(["0x1", "0x2", "0xff"]));
        let strings = [value(1, b"a"), value(FAULT, b"")].concat();
        let (shown, as_json) = both("string[2]", &strings);
        assert_eq!(shown, "{\"a\",(fault)}");
        assert_eq!(as_json, serde_json::json!(["a", null]));
    }

    #[test]
    fn evt_2_bytes_that_are_no_utf8_survive_in_json() {
        let args = args("a=$arg1:string b=$arg2:string c=$retval:char d=$arg3:string[3] e=$arg4:u8");
        let encoded = [
            value(4, b"/\xff\xfex"),
            value(2, "ä".as_bytes()),
            value(1, b"\xe4"),
            value(1, b"y"),
            value(1, b"\x80"),
            value(FAULT, b""),
            value(1, b"\xff"),
        ]
        .concat();
        let strings = json(&args, Values(&encoded), &OneSymbol);
        assert_eq!(strings["a"], "/\u{fffd}\u{fffd}x");
        assert_eq!(strings["e"], 255);
        let bytes = bytes(&args, Values(&encoded)).unwrap();
        assert_eq!(bytes, serde_json::json!({ "a": "2ffffe78", "c": "e4", "d": [null, "80", null] }));
        assert_eq!(super::bytes(&args[1..2], Values(&value(2, "ä".as_bytes()))), None);
    }

    #[test]
    fn a_stack_is_no_value_among_others() {
        let args = Definition::parse("r f fd=$retval:s32", &[]).unwrap().with_stack(4).args;
        let words = [2, EXACT | 0x9999, 0x1010];
        let words: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        let encoded = [value(4, &3_i32.to_ne_bytes()), value(24, &words)].concat();
        let mut out = String::new();
        text(&mut out, &args, Values(&encoded), &OneSymbol, Faults::Shown);
        assert_eq!(out, " fd=3");
        assert_eq!(json(&args, Values(&encoded), &OneSymbol), serde_json::json!({ "fd": 3 }));
        let (frames, end) = stack(&args, Values(&encoded), &OneSymbol).unwrap();
        let shown: Vec<_> = frames.iter().map(|frame| (frame.addr, frame.functions[0].shown())).collect();
        assert_eq!(shown, [(0x9999, "?+0x10".into()), (0x1010, "main+0x10".into())]);
        assert_eq!(end, StackEnd::Lost);
        let faulty = [value(4, &3_i32.to_ne_bytes()), value(FAULT, b"")].concat();
        assert!(stack(&args, Values(&faulty), &OneSymbol).is_none(), "there is none");
    }

    #[test]
    fn values_go_to_their_names_in_order() {
        let args = args("path=$arg1:string fd=$retval:s32");
        let encoded = [value(2, b"/x"), value(4, &3_i32.to_ne_bytes())].concat();
        let mut out = String::new();
        text(&mut out, &args, Values(&encoded), &OneSymbol, Faults::Shown);
        assert_eq!(out, " path=\"/x\" fd=3");
    }
}
