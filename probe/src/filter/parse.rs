//! From words to a tree.

use super::lex::{self, Token, Unit, Word};
use crate::def::DefError;

/// How deep parentheses and signs may be in one another.
const MOST_DEEP: usize = 40;
/// How many words an expression may have: what is built from it is walked recursively.
const MOST_WORDS: usize = 500;

/// A part of an expression, and the bytes that it was read from.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) span: (usize, usize),
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Number(u64, Unit),
    Text(Vec<u8>),
    Name(String),
    /// `$NAME` or `$NAME:TYPE`.
    Variable(String),
    Not(Box<Node>),
    Negate(Box<Node>),
    /// An operator of [`LEVELS`].
    Binary(&'static str, Box<Node>, Box<Node>),
}

/// The operators with two sides: those that bind least come first. Comparisons stand alone (`a < b < c` is
/// refused).
const LEVELS: [&[&str]; 9] =
    [&["||"], &["&&"], COMPARISONS, &["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"], &["*", "/", "%"]];
pub(super) const COMPARISONS: &[&str] = &["==", "!=", "<=", ">=", "<", ">", "!~", "~"];

struct Parser<'a> {
    text: &'a str,
    words: Vec<Token<'a>>,
    next: usize,
    deep: usize,
}

/// Parses a whole expression.
///
/// # Errors
/// A sentence with the place in `text` that it is about.
pub(super) fn parse(text: &str) -> Result<Node, DefError> {
    let mut all = parse_list(text)?;
    match (all.pop(), all.pop()) {
        (Some(node), None) => Ok(node),
        (Some(node), _) => Err(DefError::new(text, node.span, "one expression is expected, and no list")),
        (None, _) => Err(DefError::new(text, (0, text.len()), "an expression is empty")),
    }
}

/// Parses expressions between commas.
pub(super) fn parse_list(text: &str) -> Result<Vec<Node>, DefError> {
    let mut parser = Parser { text, words: lex::words(text)?, next: 0, deep: 0 };
    if parser.words.is_empty() {
        return Err(DefError::new(text, (0, text.len()), "an expression is empty"));
    }
    if let Some(token) = parser.words.get(MOST_WORDS) {
        return Err(parser.error(token.span, format!("an expression has at most {MOST_WORDS} words")));
    }
    let mut all = vec![parser.binary(0)?];
    while parser.sign(&[","]).is_some() {
        all.push(parser.binary(0)?);
    }
    match parser.words.get(parser.next) {
        None => Ok(all),
        Some(token) => Err(parser.unexpected(token)),
    }
}

impl Parser<'_> {
    fn error(&self, span: (usize, usize), sentence: impl Into<String>) -> DefError {
        DefError::new(self.text, span, sentence)
    }

    /// A word where an operator should be.
    fn unexpected(&self, token: &Token<'_>) -> DefError {
        let sentence = match &token.word {
            Word::Sign(")") => "this `)` has no `(`",
            Word::Name("and" | "AND") => "an operator is expected here; did you mean `&&`?",
            Word::Name("or" | "OR") => "an operator is expected here; did you mean `||`?",
            Word::Sign(sign) if COMPARISONS.contains(sign) => {
                "one comparison does not follow another; join them by `&&`"
            }
            _ => "an operator is expected here, such as `==`, `<` or `&&`",
        };
        self.error(token.span, sentence)
    }

    /// The operator that comes next, if it is one of `among`.
    fn sign(&mut self, among: &[&'static str]) -> Option<&'static str> {
        let Word::Sign(found) = self.words.get(self.next)?.word else { return None };
        let sign = among.iter().find(|sign| **sign == found)?;
        self.next += 1;
        Some(sign)
    }

    fn binary(&mut self, level: usize) -> Result<Node, DefError> {
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(sign) = self.sign(signs) {
            let right = self.binary(level + 1)?;
            let span = (left.span.0, right.span.1);
            left = Node { kind: Kind::Binary(sign, Box::new(left), Box::new(right)), span };
            if *signs == COMPARISONS {
                break;
            }
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Node, DefError> {
        let end = self.text.len();
        let Some(Token { word, span }) = self.words.get(self.next).cloned() else {
            return Err(self.error((end, end), "a value is missing here"));
        };
        self.next += 1;
        self.deep += 1;
        if self.deep > MOST_DEEP {
            return Err(
                self.error(span, format!("an expression is at most {MOST_DEEP} signs or parentheses deep"))
            );
        }
        let kind = match word {
            Word::Number(number, unit) => Kind::Number(number, unit),
            Word::Text(bytes) => Kind::Text(bytes),
            Word::Name(name) => Kind::Name(name.to_owned()),
            Word::Variable(name) => Kind::Variable(name.to_owned()),
            Word::Sign(sign @ ("!" | "-")) => {
                let inner = self.unary()?;
                let span = (span.0, inner.span.1);
                let inner = Box::new(inner);
                self.deep -= 1;
                return Ok(Node {
                    kind: if sign == "!" { Kind::Not(inner) } else { Kind::Negate(inner) },
                    span,
                });
            }
            Word::Sign("(") => {
                let inner = self.binary(0)?;
                match self.words.get(self.next) {
                    Some(Token { word: Word::Sign(")"), span: close }) => {
                        self.next += 1;
                        self.deep -= 1;
                        return Ok(Node { span: (span.0, close.1), ..inner });
                    }
                    Some(token) => return Err(self.unexpected(token)),
                    None => return Err(self.error(span, "this `(` is not closed")),
                }
            }
            Word::Sign("%") => {
                let sentence =
                    "a value is missing before this; registers are fetched by the probe's definition";
                return Err(self.error(span, sentence));
            }
            Word::Sign(_) => return Err(self.error(span, "a value is missing before this")),
        };
        self.deep -= 1;
        Ok(Node { kind, span })
    }
}
