//! What is asked of each probe: its definition, and the options that belong to it.

use super::args::Clause;
use super::failure::Failure;
use crate::def::{Definition, End, STACK};
use crate::filter::{self, Asked, Holds, Scope};
use crate::registers;
use crate::wire::{COUNTED_STACK, MapPlan, MapRoom, Plan, Rule};

/// One probe.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) definition: Definition,
    /// Whether something decides which hits count, or counts them.
    pub(super) is_judged: bool,
    /// What is counted of its hits, and where.
    pub(super) maps: Vec<(Holds, MapPlan)>,
}

/// Parses all definitions and what belongs to them, and places their maps; the first that is wrong ends the
/// command.
///
/// # Errors
/// A sentence with the place that it is about.
pub(super) fn queries(clauses: &[Clause], room: &mut MapRoom) -> Result<(Vec<Query>, Vec<Plan>), Failure> {
    let (mut queries, mut plans) = (Vec::new(), Vec::new());
    for (text, end, asked) in by_probe(clauses) {
        let mut definition = Definition::parse(text, registers())?.with_end(end);
        let stack = stack(&definition, &asked)?;
        if let Some(depth) = stack {
            definition = definition.with_stack(depth);
        }
        let (rule, holds) = rule(&definition, &asked, room)?;
        let maps = rule.as_ref().map(|rule| rule.maps.clone()).unwrap_or_default();
        let maps = holds.into_iter().zip(maps).collect();
        queries.push(Query { is_judged: rule.is_some(), maps, definition });
        let stack = stack.map_or(0, |depth| depth as u32);
        plans.push(Plan { definition: text.to_owned(), stack, end, rule });
    }
    Ok((queries, plans))
}

/// Options behind a probe belong to that one, options before the first probe to all.
fn by_probe(clauses: &[Clause]) -> Vec<(&str, Option<End>, Asked<'_>)> {
    let mut of_all = Asked::default();
    let mut probes: Vec<(&str, Option<End>, Asked<'_>)> = Vec::new();
    for clause in clauses {
        let asked = probes.last_mut().map_or(&mut of_all, |(_, _, asked)| asked);
        match clause {
            Clause::Probe(definition) => probes.push((definition, None, of_all.clone())),
            // What is asked of all is asked of times where they end.
            Clause::From(definition) => probes.push((definition, Some(End::From), Asked::default())),
            Clause::To(definition) => probes.push((definition, Some(End::To), of_all.clone())),
            Clause::If(text) => asked.conditions.push(text),
            Clause::Histogram(text) => asked.histograms.push(text),
            Clause::Sum(text) => asked.sums.push(text),
            Clause::By(text) => asked.by.push(text),
            Clause::Stack(depth) => asked.stack = Some(*depth),
        }
    }
    probes
}

/// How many frames of the stack are wanted, if it is.
fn stack(definition: &Definition, asked: &Asked<'_>) -> Result<Option<usize>, Failure> {
    let has_own = definition.args.iter().any(|argument| argument.name == STACK);
    let is_counted = !has_own && asked.by.iter().any(|by| by.split(',').any(|key| key.trim() == STACK));
    match asked.stack {
        Some(_) if has_own => Err(Failure::new(format!(
            "`{}` fetches something that is called `{STACK}`, which is what --stack calls the stack; give it another name",
            definition.text
        ))),
        Some(depth) if is_counted && depth > COUNTED_STACK => Err(Failure::new(format!(
            "a stack that hits are counted by has at most {COUNTED_STACK} frames, not {depth}"
        ))),
        Some(depth) => Ok(Some(depth)),
        None => Ok(is_counted.then_some(COUNTED_STACK)),
    }
}

/// What the agent runs at each hit, if anything is asked, and what its maps hold.
fn rule(
    definition: &Definition,
    asked: &Asked<'_>,
    room: &mut MapRoom,
) -> Result<(Option<Rule>, Vec<Holds>), Failure> {
    let Asked { conditions, histograms, sums, by, stack: _ } = asked;
    if [conditions, histograms, sums, by].iter().all(|texts| texts.is_empty()) {
        return Ok((None, Vec::new()));
    }
    let mut scope = Scope::new(definition, registers());
    let (compiled, holds) = filter::compile_all(&mut scope, asked)?;
    let maps = holds.iter().map(|holds| room.place(holds.kind()));
    let Some(maps) = maps.collect() else {
        return Err(Failure::new("more is to be counted than there is room for; ask for less at once"));
    };
    let Scope { values, extras, patterns, .. } = scope;
    let program = compiled.program.iter().flat_map(|insn| insn.to_bytes()).collect();
    Ok((Some(Rule { program, values, words: compiled.words, extras, patterns, maps }), holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_belongs_to_the_probe_before_it_or_to_all() {
        let probe = |text: &str| Clause::Probe(text.into());
        let condition = |text: &str| Clause::If(text.into());
        let clauses = [condition("1"), probe("p f"), condition("2"), condition("3"), probe("p g")];
        let asked = by_probe(&clauses);
        let conditions: Vec<_> = asked.iter().map(|(_, _, asked)| asked.conditions.clone()).collect();
        assert_eq!(conditions, [vec!["1", "2", "3"], vec!["1"]]);
    }
}
