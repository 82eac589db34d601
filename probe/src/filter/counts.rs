//! What is counted of the hits that pass: histograms, sums, tables by key.

use super::check::{Number, Scope, Sign};
use super::compile::{Compiled, Count, compile};
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
}

impl Holds {
    /// The kind of map.
    pub(crate) fn kind(&self) -> MapKind {
        match self {
            Self::Histogram(_) => MapKind::Histogram,
            Self::Sum(_) => MapKind::Sum,
            Self::Table(..) => MapKind::Table,
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
    for text in &asked.histograms {
        if by.is_some() {
            let sentence = "there is no histogram by key; ask for it without --by, or for --sum";
            return Err(DefError::new(text, (0, text.len()), sentence));
        }
        let (column, number) = amount(scope, text)?;
        counts.push(Count::Histogram(number, holds.len()));
        holds.push(Holds::Histogram(column));
    }
    let Some(by) = by else {
        for text in &asked.sums {
            let (column, number) = amount(scope, text)?;
            counts.push(Count::Sum(number, holds.len()));
            holds.push(Holds::Sum(column));
        }
        return Ok((compile(scope, &asked.conditions, &counts)?, holds));
    };
    let keys = scope.keys(by)?;
    let columns: Vec<Column> = keys
        .iter()
        .map(|(name, number)| Column {
            name: name.clone(),
            looks: number.as_ref().map_or(Looks::Name, |number| looks(name, number)),
        })
        .collect();
    counts.push(Count::Table(keys.clone(), None, holds.len()));
    holds.push(Holds::Table(columns.clone(), None));
    for text in &asked.sums {
        let (column, number) = amount(scope, text)?;
        counts.push(Count::Table(keys.clone(), Some(number), holds.len()));
        holds.push(Holds::Table(columns.clone(), Some(column)));
    }
    Ok((compile(scope, &asked.conditions, &counts)?, holds))
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
