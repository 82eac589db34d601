//! What is asked of each probe: its definition, and the options that belong to it.

use super::args::Clause;
use super::failure::Failure;
use crate::def::Definition;
use crate::filter::{self, Scope};
use crate::registers;
use crate::wire::{Plan, Rule};

/// One probe.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) definition: Definition,
    /// Whether a condition decides which hits count.
    pub(super) is_filtered: bool,
}

/// The options of one probe, as typed.
struct Asked<'a> {
    definition: &'a str,
    conditions: Vec<&'a str>,
}

/// Parses all definitions and what belongs to them; the first that is wrong ends the command.
///
/// # Errors
/// A sentence with the place that it is about.
pub(super) fn queries(clauses: &[Clause]) -> Result<(Vec<Query>, Vec<Plan>), Failure> {
    let (mut queries, mut plans) = (Vec::new(), Vec::new());
    for asked in by_probe(clauses) {
        let definition = Definition::parse(asked.definition, registers())?;
        let rule = rule(&definition, &asked)?;
        queries.push(Query { is_filtered: rule.is_some(), definition });
        plans.push(Plan { definition: asked.definition.to_owned(), rule });
    }
    Ok((queries, plans))
}

/// Options behind a probe belong to that one, options before the first probe to all.
fn by_probe(clauses: &[Clause]) -> Vec<Asked<'_>> {
    let (mut of_all, mut probes): (Vec<&str>, Vec<Asked<'_>>) = (Vec::new(), Vec::new());
    for clause in clauses {
        match clause {
            Clause::Probe(definition) => probes.push(Asked { definition, conditions: of_all.clone() }),
            Clause::If(condition) => {
                probes.last_mut().map_or(&mut of_all, |probe| &mut probe.conditions).push(condition);
            }
        }
    }
    probes
}

/// What the agent runs at each hit, if anything is asked.
fn rule(definition: &Definition, asked: &Asked<'_>) -> Result<Option<Rule>, Failure> {
    if asked.conditions.is_empty() {
        return Ok(None);
    }
    let mut scope = Scope::new(definition, registers());
    let compiled = filter::compile(&mut scope, &asked.conditions)?;
    let Scope { values, extras, patterns, .. } = scope;
    let program = compiled.program.iter().flat_map(|insn| insn.to_bytes()).collect();
    Ok(Some(Rule { program, values, words: compiled.words, extras, patterns }))
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
        let conditions: Vec<_> = asked.iter().map(|asked| asked.conditions.clone()).collect();
        assert_eq!(conditions, [vec!["1", "2", "3"], vec!["1"]]);
    }
}
