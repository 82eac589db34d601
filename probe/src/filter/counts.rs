//! What is counted of the hits that pass: histograms, sums, tables by key.

use super::check::{Key, Number, Scope, Sign};
use super::compile::{Compiled, Count, Keys, compile};
use super::parse::{Kind, parse};
use crate::def::DefError;
use crate::wire::MapKind;

/// What is asked of one probe, as typed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked<'a> {
    /// Conditions: all have to hold.
    pub(crate) conditions: Vec<&'a str>,
    /// Numbers whose sizes are counted.
    pub(crate) histograms: Vec<&'a str>,
    /// Numbers that are added up.
    pub(crate) sums: Vec<&'a str>,
    /// What hits are told apart by.
    pub(crate) by: Vec<&'a str>,
    /// How many frames of the stack are wanted, if that was said.
    pub(crate) stack: Option<usize>,
}

/// How a number is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    Unsigned,
    Signed,
    /// Nanoseconds.
    Time,
    /// The name of a thread, in two words.
    Name,
    /// The number of a text.
    Text,
    /// A [`Site`](crate::wire::Site), by its function.
    Function,
    /// The number of a text that is a stack.
    Stack,
}

/// A number or a name, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) looks: Looks,
}

/// What a map holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Sizes of a number.
    Histogram(Column),
    /// The sum of a number.
    Sum(Column),
    /// For each key how many hits there were, or the sum of a number.
    Table(Vec<Column>, Option<Column>),
    /// For each key the sizes of a number.
    Histograms(Column, Column),
    /// The texts among the keys of the others.
    Texts,
}

impl Holds {
    /// The kind of map.
    pub(crate) fn kind(&self) -> MapKind {
        match self {
            Self::Histogram(_) => MapKind::Histogram,
            Self::Sum(_) => MapKind::Sum,
            Self::Table(..) => MapKind::Table,
            Self::Histograms(..) => MapKind::Histograms,
            Self::Texts => MapKind::Texts,
        }
    }
}

/// Compiles all that is asked of a probe; what each map of the program holds, in their order.
///
/// # Errors
/// A sentence with the place that it is about.
pub(crate) fn compile_all(
    scope: &mut Scope<'_>,
    asked: &Asked<'_>,
) -> Result<(Compiled, Vec<Holds>), DefError> {
    let (mut holds, mut counts) = (Vec::new(), Vec::new());
    let by = match asked.by.as_slice() {
        [] => None,
        [by] => Some(*by),
        [_, again, ..] => {
            let sentence = "a probe has one --by or --count-by; put two keys into it: --by A,B";
            return Err(DefError::new(again, (0, again.len()), sentence));
        }
    };
    let Some(by) = by else {
        for text in &asked.histograms {
            let (column, number) = amount(scope, text)?;
            counts.push(Count::Histogram(number, holds.len()));
            holds.push(Holds::Histogram(column));
        }
        for text in &asked.sums {
            let (column, number) = amount(scope, text)?;
            counts.push(Count::Sum(number, holds.len()));
            holds.push(Holds::Sum(column));
        }
        return Ok((compile(scope, &asked.conditions, &Keys::default(), &counts)?, holds));
    };
    let most = if asked.histograms.is_empty() { 2 } else { 1 };
    let (columns, keys): (Vec<Column>, Vec<Key>) = scope.keys(by, most)?.into_iter().map(column).unzip();
    let keys = Keys { keys, texts: holds.len() };
    if keys.keys.iter().any(|key| matches!(key, Key::Text(_) | Key::Stack(_))) {
        holds.push(Holds::Texts);
    }
    for text in &asked.histograms {
        let (of, number) = amount(scope, text)?;
        counts.push(Count::Histograms(number, holds.len()));
        holds.push(Holds::Histograms(columns[0].clone(), of));
    }
    // Histograms by key say how many hits there were, too.
    if asked.histograms.is_empty() || !asked.sums.is_empty() {
        counts.push(Count::Table(None, holds.len()));
        holds.push(Holds::Table(columns.clone(), None));
    }
    for text in &asked.sums {
        let (column, number) = amount(scope, text)?;
        counts.push(Count::Table(Some(number), holds.len()));
        holds.push(Holds::Table(columns.clone(), Some(column)));
    }
    Ok((compile(scope, &asked.conditions, &keys, &counts)?, holds))
}

/// How a key is shown.
fn column((name, key): (String, Key)) -> (Column, Key) {
    let looks = match &key {
        Key::Number(number) => looks(&name, number),
        Key::Text(_) => Looks::Text,
        Key::Stack(_) => Looks::Stack,
        Key::Caller(_) => Looks::Function,
        Key::Comm => Looks::Name,
    };
    (Column { name, looks }, key)
}

fn amount(scope: &mut Scope<'_>, text: &str) -> Result<(Column, Number), DefError> {
    let number = scope.amount(text)?;
    Ok((Column { name: text.trim().to_owned(), looks: looks(text, &number) }, number))
}

fn looks(text: &str, number: &Number) -> Looks {
    let is_took = parse(text).is_ok_and(|node| matches!(node.kind, Kind::Variable(name) if name == "$took"));
    match number.sign() {
        _ if is_took => Looks::Time,
        Sign::Unsigned => Looks::Unsigned,
        _ => Looks::Signed,
    }
}
