//! What the names of an expression mean for one probe, and whether its parts fit together.

use super::lex::Unit;
use super::parse::{self, COMPARISONS, Kind, Node};
use crate::def::{DefError, Definition, Fetch, Place, STACK, Scalar, Source, Type, near_matches};
use crate::wire::{Pattern, RuleValue as Value};

/// Whether a number may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Never.
    Unsigned,
    /// It may be.
    Signed,
    /// A number that was typed, and is the same in both.
    Either,
}

/// An operation on numbers of 64 bits, which wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    Left,
    Right,
}

/// A number.
#[derive(Clone, Debug)]
pub(super) enum Number {
    Constant(u64, Sign),
    /// A value of [`Scope::values`].
    Value(usize, Sign),
    Negate(Box<Self>),
    Binary(Operation, Box<Self>, Box<Self>),
}

/// How two numbers compare, as numbers: -1 is below each number without a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Something that is so or not.
#[derive(Clone, Debug)]
pub(super) enum Test {
    Compare(Relation, Number, Number),
    /// Whether the text of a value is, or matches, a pattern of [`Scope::patterns`].
    Matches(usize, usize),
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
}

impl Number {
    /// Whether it may be negative.
    pub(super) fn sign(&self) -> Sign {
        match self {
            Self::Constant(_, sign) | Self::Value(_, sign) => *sign,
            Self::Negate(_) | Self::Binary(Operation::Subtract, ..) => Sign::Signed,
            Self::Binary(_, a, b) => match (a.sign(), b.sign()) {
                (Sign::Signed, _) | (_, Sign::Signed) | (Sign::Either, Sign::Either) => Sign::Signed,
                _ => Sign::Unsigned,
            },
        }
    }
}

/// What the expressions of one probe may name, and what they have named.
pub(crate) struct Scope<'a> {
    definition: &'a Definition,
    registers: &'a [(&'a str, usize)],
    /// What has to be fetched for them.
    pub(crate) values: Vec<Value>,
    /// The arguments among them that the definition does not fetch, as a definition would fetch them.
    pub(crate) extras: Vec<String>,
    /// The texts that values are compared with.
    pub(crate) patterns: Vec<Pattern>,
}

/// What hits are told apart by.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Number(Number),
    /// The text of a value.
    Text(usize),
    /// The stack, as a text of its own kind.
    Stack(usize),
    /// Where the call returns to, as a value.
    Caller(usize),
    /// The thread's name, which takes both words of a key.
    Comm,
}

/// A part of an expression, whatever it is.
enum Any {
    Number(Number),
    Test(Test),
    /// The text of a value.
    Text(usize),
    /// A text that was typed.
    Literal(Vec<u8>),
}

/// Variables that every probe has.
const VARIABLES: [(&str, Value); 4] =
    [("$pid", Value::Process), ("$tid", Value::Thread), ("$cpu", Value::Processor), ("$took", Value::Took)];

impl<'a> Scope<'a> {
    /// Nothing has been named yet.
    pub(crate) fn new(definition: &'a Definition, registers: &'a [(&'a str, usize)]) -> Self {
        Self { definition, registers, values: Vec::new(), extras: Vec::new(), patterns: Vec::new() }
    }

    /// Whether a value can be had without an access to memory, and so cannot be missing.
    pub(super) fn is_direct(&self, value: usize) -> bool {
        let is_plain = |fetch: &Fetch| fetch.derefs.is_empty();
        match self.values.get(value) {
            Some(Value::Argument(index)) => {
                self.definition.args.get(*index as usize).is_some_and(|argument| is_plain(&argument.fetch))
            }
            Some(Value::Extra(_) | Value::Result | Value::Took) => true,
            _ => false,
        }
    }

    /// Parses and checks a number to be counted.
    pub(super) fn amount(&mut self, text: &str) -> Result<Number, DefError> {
        let node = parse::parse(text)?;
        Checker { scope: self, text }.number(&node)
    }

    /// Parses and checks what hits are told apart by: at most `most` numbers or texts, each as typed.
    pub(super) fn keys(&mut self, text: &str, most: usize) -> Result<Vec<(String, Key)>, DefError> {
        let nodes = parse::parse_list(text)?;
        let mut checker = Checker { scope: self, text };
        if let Some(node) = nodes.get(most) {
            let sentence =
                if most == 1 { "a histogram by key has one key" } else { "there are at most two keys" };
            return checker.error(node, sentence);
        }
        // Both words of a key are one's that has no other beside it.
        let is_alone = nodes.len() == 1 && most == 2;
        let keys = nodes.iter().map(|node| {
            if matches!(&node.kind, Kind::Variable(name) if name == "$caller") {
                return Ok(("$caller".to_owned(), checker.caller(node)?));
            }
            if let Some(stack) = checker.stack(node) {
                return Ok((STACK.to_owned(), Key::Stack(stack)));
            }
            let key = match checker.any(node)? {
                Any::Number(number) => Key::Number(number),
                Any::Text(value) if is_alone && checker.scope.values.get(value) == Some(&Value::Comm) => {
                    Key::Comm
                }
                Any::Text(value) => Key::Text(value),
                Any::Test(_) => return checker.error(node, "a comparison is no key; put it into --if"),
                Any::Literal(_) => return checker.error(node, "a text that is known tells no hits apart"),
            };
            Ok((text[node.span.0..node.span.1].to_owned(), key))
        });
        keys.collect()
    }

    /// Parses and checks a condition.
    pub(super) fn condition(&mut self, text: &str) -> Result<Test, DefError> {
        let node = parse::parse(text)?;
        Checker { scope: self, text }.test(&node)
    }
}

/// At work on one expression.
struct Checker<'s, 'a> {
    scope: &'s mut Scope<'a>,
    text: &'s str,
}

impl Checker<'_, '_> {
    fn error<T>(&self, node: &Node, sentence: impl Into<String>) -> Result<T, DefError> {
        Err(DefError::new(self.text, node.span, sentence))
    }

    fn test(&mut self, node: &Node) -> Result<Test, DefError> {
        match self.any(node)? {
            Any::Test(test) => Ok(test),
            Any::Number(number) => {
                Ok(Test::Compare(Relation::NotEqual, number, Number::Constant(0, Sign::Either)))
            }
            Any::Text(_) | Any::Literal(_) => {
                self.error(node, "a text is neither true nor false; compare it by `==` or `~`")
            }
        }
    }

    fn number(&mut self, node: &Node) -> Result<Number, DefError> {
        match self.any(node)? {
            Any::Number(number) => Ok(number),
            Any::Test(_) => self.error(node, "a comparison is true or false, and no number"),
            Any::Text(_) | Any::Literal(_) => self.error(node, "a text is no number"),
        }
    }

    fn any(&mut self, node: &Node) -> Result<Any, DefError> {
        match &node.kind {
            Kind::Number(number, _) => {
                let sign = if *number >> 63 == 0 { Sign::Either } else { Sign::Unsigned };
                Ok(Any::Number(Number::Constant(*number, sign)))
            }
            Kind::Text(bytes) => Ok(Any::Literal(bytes.clone())),
            Kind::Name(name) => self.argument(node, name),
            Kind::Variable(name) => self.variable(node, name),
            Kind::Not(inner) => Ok(Any::Test(Test::Not(Box::new(self.test(inner)?)))),
            Kind::Negate(inner) => Ok(Any::Number(match self.number(inner)? {
                Number::Constant(number, Sign::Either) => Number::Constant(
                    number.wrapping_neg(),
                    if number == 0 { Sign::Either } else { Sign::Signed },
                ),
                number => Number::Negate(Box::new(number)),
            })),
            Kind::Binary(sign @ ("&&" | "||"), a, b) => {
                let (a, b) = (Box::new(self.test(a)?), Box::new(self.test(b)?));
                Ok(Any::Test(if *sign == "&&" { Test::And(a, b) } else { Test::Or(a, b) }))
            }
            Kind::Binary(sign, a, b) if COMPARISONS.contains(sign) => self.comparison(node, sign, a, b),
            Kind::Binary(sign, a, b) => {
                let operation = match *sign {
                    "+" => Operation::Add,
                    "-" => Operation::Subtract,
                    "*" => Operation::Multiply,
                    "/" => Operation::Divide,
                    "%" => Operation::Remainder,
                    "&" => Operation::And,
                    "|" => Operation::Or,
                    "^" => Operation::Xor,
                    "<<" => Operation::Left,
                    _ => Operation::Right,
                };
                let (a, b) = (self.number(a)?, self.number(b)?);
                let known = folded(operation, &a, &b);
                Ok(Any::Number(known.unwrap_or_else(|| Number::Binary(operation, Box::new(a), Box::new(b)))))
            }
        }
    }

    fn comparison(&mut self, node: &Node, sign: &str, a: &Node, b: &Node) -> Result<Any, DefError> {
        match (self.any(a)?, self.any(b)?) {
            (Any::Text(value), Any::Literal(text)) | (Any::Literal(text), Any::Text(value)) => {
                let (is_glob, is_not) = match sign {
                    "==" => (false, false),
                    "!=" => (false, true),
                    "~" => (true, false),
                    "!~" => (true, true),
                    _ => return self.error(node, "texts are compared by `==`, `!=`, `~` or `!~`"),
                };
                if is_glob && matches!(a.kind, Kind::Text(_)) {
                    return self.error(a, "the pattern stands behind `~`");
                }
                let pattern = place(&mut self.scope.patterns, Pattern { is_glob, text });
                let test = Test::Matches(value, pattern);
                Ok(Any::Test(if is_not { Test::Not(Box::new(test)) } else { test }))
            }
            (Any::Text(_), Any::Text(_)) => self.error(node, "a text is compared with one in double quotes"),
            (Any::Literal(_), Any::Literal(_)) => {
                self.error(node, "two texts that are known do not depend on the hit")
            }
            (Any::Text(_), _) => self.error(b, "a text is compared with one in double quotes"),
            (_, Any::Text(_)) => self.error(a, "a text is compared with one in double quotes"),
            (_, Any::Literal(_)) => {
                self.error(a, "only texts are compared with a text; fetch it as a string")
            }
            (Any::Literal(_), _) => {
                self.error(b, "only texts are compared with a text; fetch it as a string")
            }
            _ if matches!(sign, "~" | "!~") => {
                self.error(node, "`~` matches a text with a pattern in double quotes")
            }
            (Any::Test(_), _) => self.error(a, "a comparison is true or false, and no number"),
            (_, Any::Test(_)) => self.error(b, "a comparison is true or false, and no number"),
            (Any::Number(left), Any::Number(right)) => {
                let relation = match sign {
                    "==" => Relation::Equal,
                    "!=" => Relation::NotEqual,
                    "<" => Relation::Less,
                    "<=" => Relation::LessOrEqual,
                    ">" => Relation::Greater,
                    _ => Relation::GreaterOrEqual,
                };
                self.check_units(a, b)?;
                self.check_sign(a, &left, relation, &right)?;
                self.check_sign(b, &right, relation.mirrored(), &left)?;
                Ok(Any::Test(Test::Compare(relation, left, right)))
            }
        }
    }

    /// A time is not compared with a size.
    fn check_units(&self, a: &Node, b: &Node) -> Result<(), DefError> {
        let is_took = |node: &Node| matches!(&node.kind, Kind::Variable(name) if name == "$took");
        let is_size = |node: &Node| matches!(node.kind, Kind::Number(_, Unit::Size));
        for (took, other) in [(a, b), (b, a)] {
            if is_took(took) && is_size(other) {
                return self.error(other, "`$took` is a time: ns, us, ms or s");
            }
        }
        Ok(())
    }

    /// Refuses what is always so, or never, because a number has no sign.
    fn check_sign(
        &self,
        node: &Node,
        value: &Number,
        relation: Relation,
        bound: &Number,
    ) -> Result<(), DefError> {
        let Number::Constant(number, sign) = bound else { return Ok(()) };
        let is_below = *sign == Sign::Signed;
        let is_settled =
            is_below || *number == 0 && matches!(relation, Relation::Less | Relation::GreaterOrEqual);
        if value.sign() != Sign::Unsigned || !is_settled {
            return Ok(());
        }
        let shown = &self.text[node.span.0..node.span.1];
        let hint = match &node.kind {
            Kind::Name(_) => "fetch it with a signed type, such as s32",
            Kind::Variable(name) if !name.contains(':') => "give it a type: `:s32`",
            _ => "it has no sign",
        };
        self.error(node, format!("`{shown}` is never below zero; {hint}"))
    }

    /// Where the call returns to: known where it enters its function, and where it returns.
    fn caller(&mut self, node: &Node) -> Result<Key, DefError> {
        let definition = self.scope.definition;
        let is_entry = matches!(definition.place, Place::Symbol { offset: 0, .. } | Place::Glob(_));
        if !is_entry && !definition.is_return() {
            return self.error(node, "`$caller` is known where a function begins, and where it returns");
        }
        Ok(Key::Caller(place(&mut self.scope.values, Value::Caller)))
    }

    /// The stack, if that is what is named.
    fn stack(&mut self, node: &Node) -> Option<usize> {
        let Kind::Name(name) = &node.kind else { return None };
        let args = &self.scope.definition.args;
        let index = args.iter().position(|arg| arg.name == *name && arg.ty.scalar == Scalar::Stack)?;
        Some(place(&mut self.scope.values, Value::Argument(index as u32)))
    }

    /// An argument that the definition fetches.
    fn argument(&mut self, node: &Node, name: &str) -> Result<Any, DefError> {
        let args = &self.scope.definition.args;
        let Some(index) = args.iter().position(|argument| argument.name == name) else {
            let variables = VARIABLES.iter().map(|(name, _)| *name).chain(["$retval", "$comm"]);
            let names = args.iter().map(|argument| argument.name.as_str());
            let is_variable = |variable: &&str| variable[1..] == *name;
            if let Some(meant) = variables.clone().find(is_variable) {
                return self.error(node, format!("the probe fetches no `{name}`; did you mean `{meant}`?"));
            }
            let near = near_matches(name, names.clone().chain(variables), 2);
            let hint = match near.as_slice() {
                [] if args.is_empty() => "; it fetches nothing".to_owned(),
                [] => format!("; it fetches `{}`", names.take(8).collect::<Vec<_>>().join("`, `")),
                near => format!("; did you mean `{}`?", near.join("` or `")),
            };
            return self.error(node, format!("the probe fetches no `{name}`{hint}"));
        };
        let ty = args[index].ty;
        self.typed(node, Value::Argument(index as u32), ty)
    }

    /// A value of a definition's type.
    fn typed(&mut self, node: &Node, value: Value, ty: Type) -> Result<Any, DefError> {
        if ty.count.is_some() {
            return self.error(node, "an array is neither a number nor a text");
        }
        if ty.scalar == Scalar::Stack {
            return self.error(node, "a stack tells hits apart, and nothing else: --count-by stack");
        }
        let value = place(&mut self.scope.values, value);
        Ok(match ty.scalar {
            Scalar::String => Any::Text(value),
            Scalar::Signed(_) => Any::Number(Number::Value(value, Sign::Signed)),
            _ => Any::Number(Number::Value(value, Sign::Unsigned)),
        })
    }

    fn variable(&mut self, node: &Node, text: &str) -> Result<Any, DefError> {
        let (name, ty) = text.split_once(':').map_or((text, None), |(name, ty)| (name, Some(ty)));
        let is_fetched =
            name == "$retval" || name.strip_prefix("$arg").is_some_and(|n| n.parse::<u32>().is_ok());
        if is_fetched {
            return self.fetched(node, text, ty.is_some());
        }
        if ty.is_some() {
            return self.error(node, "only `$retval` and `$argN` take a type");
        }
        if name == "$caller" {
            return self.error(node, "`$caller` tells hits apart, and nothing else: --by '$caller'");
        }
        if matches!(name, "$comm" | "$COMM") {
            return Ok(Any::Text(place(&mut self.scope.values, Value::Comm)));
        }
        let Some(&(_, value)) = VARIABLES.iter().find(|(known, _)| *known == name) else {
            let known =
                VARIABLES.iter().map(|(name, _)| *name).chain(["$retval", "$comm", "$caller", "$arg1"]);
            let near = near_matches(name, known, 2);
            let hint = if near.is_empty() {
                "there are $retval, $argN, $took, $comm, $caller, $pid, $tid and $cpu".into()
            } else {
                format!("did you mean `{}`?", near.join("` or `"))
            };
            return self.error(node, format!("unknown variable `{name}`; {hint}"));
        };
        if value == Value::Took && !self.scope.definition.is_timed() {
            return self.error(node, "only a return probe (`r`, `%return`) and --to have a `$took`");
        }
        Ok(Any::Number(Number::Value(place(&mut self.scope.values, value), Sign::Unsigned)))
    }

    /// `$retval` and `$argN`: of the type that is said here, else of the one with which the definition
    /// fetches it.
    fn fetched(&mut self, node: &Node, text: &str, has_type: bool) -> Result<Any, DefError> {
        let parsed = self.scope.definition.also_fetch(text, self.scope.registers);
        let parsed = parsed.or_else(|sentence| self.error(node, sentence))?;
        if !has_type {
            let args = &self.scope.definition.args;
            let same =
                |argument: &crate::def::Argument| argument.fetch == parsed.fetch && argument.ty != Type::WORD;
            if let Some(index) = args.iter().position(same) {
                let ty = args[index].ty;
                return self.typed(node, Value::Argument(index as u32), ty);
            }
            if parsed.fetch.source == Source::ReturnValue {
                let value = place(&mut self.scope.values, Value::Result);
                return Ok(Any::Number(Number::Value(value, Sign::Signed)));
            }
        }
        let extra = place(&mut self.scope.extras, text.to_owned());
        self.typed(node, Value::Extra(extra as u32), parsed.ty)
    }
}

/// The result of an operation on two numbers that were typed, if it fits.
fn folded(operation: Operation, a: &Number, b: &Number) -> Option<Number> {
    let known = |number: &Number| match number {
        Number::Constant(number, Sign::Signed) => Some(i128::from(number.cast_signed())),
        Number::Constant(number, _) => Some(i128::from(*number)),
        _ => None,
    };
    let (a, b) = (known(a)?, known(b)?);
    let result = match operation {
        Operation::Add => a + b,
        Operation::Subtract => a - b,
        Operation::Multiply => a.checked_mul(b)?,
        _ => return None,
    };
    let sign = if i64::try_from(result).is_ok_and(|result| result >= 0) {
        Sign::Either
    } else if result < 0 {
        Sign::Signed
    } else {
        Sign::Unsigned
    };
    let word =
        if result < 0 { i64::try_from(result).ok()?.cast_unsigned() } else { u64::try_from(result).ok()? };
    Some(Number::Constant(word, sign))
}

/// The index of `item` in `all`, which has it from now on.
fn place<T: PartialEq>(all: &mut Vec<T>, item: T) -> usize {
    all.iter().position(|known| *known == item).unwrap_or_else(|| {
        all.push(item);
        all.len() - 1
    })
}
