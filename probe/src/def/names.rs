//! Names of functions: the short forms that people type of a demangled one, and how to name one of several.

use super::Glob;
use probe_elf_symbols::demangle::forms;

/// Whether a pattern matches a symbol as its table or as its language spells it.
pub fn matches(glob: &Glob, symbol: &str) -> bool {
    let mut is_match = glob.matches(symbol);
    if !is_match {
        forms(symbol, &mut |form| is_match |= glob.matches(form));
    }
    is_match
}

/// Whether a mangled symbol is called `wanted` without its parameters and scopes.
pub fn has_base_name(symbol: &str, wanted: &str) -> bool {
    let mut is_it = false;
    if may_have_base_name(symbol, wanted) {
        forms(symbol, &mut |form| is_it |= is_base_name(form, wanted));
    }
    is_it
}

/// A symbol as its language spells it, with everything that distinguishes it; `None` if it is not mangled.
pub fn spelled(symbol: &str) -> Option<String> {
    let mut last = None;
    forms(symbol, &mut |form| last = Some(form.to_owned()));
    last
}

/// Whether `wanted` are the last components of a demangled name that has no parameters: `f`, `S::f` and
/// `ns::S::f` name `ns::S::f`; the arguments of templates may be left out, so that `vector::push_back` names
/// `std::vector<int>::push_back`.
fn is_base_name(demangled: &str, wanted: &str) -> bool {
    let (all, wanted) = (components(demangled), components(wanted));
    wanted.len() <= all.len()
        && all[all.len() - wanted.len()..]
            .iter()
            .zip(&wanted)
            .all(|(component, wanted)| component == wanted || without_arguments(component) == *wanted)
}

/// Whether [`is_base_name`] may find `wanted` in a mangled name: mangling keeps identifiers.
fn may_have_base_name(mangled: &str, wanted: &str) -> bool {
    let is_mangled = ["_Z", "__Z", "_R"].iter().any(|prefix| mangled.starts_with(prefix));
    let last = components(wanted).pop().map(without_arguments).unwrap_or_default();
    let is_identifier = last.bytes().all(|c| c == b'_' || c.is_ascii_alphanumeric());
    is_mangled && (!is_identifier || mangled.contains(last))
}

/// Splits at `::` outside of brackets.
fn components(name: &str) -> Vec<&str> {
    let (mut components, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => {
                components.push(&name[start..at]);
                (start, at) = (at + 2, at + 1);
            }
            _ => {}
        }
        at += 1;
    }
    components.push(&name[start..]);
    components
}

/// `max` of `max<int>`; operators keep their brackets.
fn without_arguments(component: &str) -> &str {
    match component.split_once('<') {
        Some((name, rest)) if rest.ends_with('>') && name != "operator" && !name.is_empty() => name,
        _ => component,
    }
}

/// A place as a definition takes it: in quotes if the symbol would mean something else without.
pub fn place(object: &str, symbol: &str) -> String {
    let is_offset = |at: usize| symbol[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    let needs_quotes = Glob::is_pattern(symbol)
        || symbol.contains(|c: char| c.is_whitespace() || c == '%')
        || symbol.starts_with(|c: char| c.is_ascii_digit())
        || symbol.rfind('+').is_some_and(is_offset);
    let quote = if needs_quotes { "\"" } else { "" };
    format!("{object}:{quote}{symbol}{quote}")
}

/// One of several functions that a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its object's file name.
    pub object: String,
    /// Its symbol as the symbol table spells it.
    pub symbol: String,
    /// Its most exact demangled form.
    pub demangled: Option<String>,
    /// Where it stands in the object's file.
    pub file_offset: Option<u64>,
}

/// Says that `name` means several functions, and how to name each.
pub fn ambiguous(name: &str, candidates: &[Candidate]) -> String {
    const MOST: usize = 8;
    let mut spelled: Vec<String> =
        candidates.iter().map(|candidate| spelling(candidate, candidates)).collect();
    spelled.sort_unstable();
    spelled.truncate(MOST);
    let more = match candidates.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "`{name}` is the name of {} functions; name one: {}{more}; or use a pattern for all",
        candidates.len(),
        spelled.join(", ")
    )
}

/// The plainest name that only this candidate has.
fn spelling(candidate: &Candidate, all: &[Candidate]) -> String {
    let is_only = |of: &dyn Fn(&Candidate) -> Option<String>| {
        let own = of(candidate)?;
        let same = all.iter().filter(|other| of(other).as_ref() == Some(&own)).count();
        (same == 1).then_some(own)
    };
    let demangled = |c: &Candidate| c.demangled.as_ref().map(|name| place(&c.object, name));
    let symbol = |c: &Candidate| Some(place(&c.object, &c.symbol));
    let offset = |c: &Candidate| Some(format!("{}:{:#x}", c.object, c.file_offset?));
    is_only(&demangled)
        .or_else(|| is_only(&symbol))
        .or_else(|| offset(candidate))
        .unwrap_or_else(|| place(&candidate.object, &candidate.symbol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::free("thrower", "thrower", true)]
    #[case::member("ns::S::f", "f", true)]
    #[case::qualified("ns::S::f", "S::f", true)]
    #[case::whole("ns::S::f", "ns::S::f", true)]
    #[case::wrong_scope("ns::S::f", "T::f", false)]
    #[case::too_long("f", "ns::f", false)]
    #[case::part_of_a_name("ns::self", "f", false)]
    #[case::template("max<int>", "max", true)]
    #[case::template_named("max<int>", "max<int>", true)]
    #[case::template_other("max<int>", "max<long>", false)]
    #[case::in_template("std::vector<a::b>::push_back", "vector::push_back", true)]
    #[case::not_an_argument("f<a::b>", "b>", false)]
    #[case::anonymous("(anonymous namespace)::f", "f", true)]
    #[case::shift("ns::operator<<", "operator<<", true)]
    #[case::arrow("ns::P::operator->", "P::operator->", true)]
    #[case::closure("a::b::{{closure}}", "b::{{closure}}", true)]
    fn base_names(#[case] demangled: &str, #[case] wanted: &str, #[case] want: bool) {
        assert_eq!(is_base_name(demangled, wanted), want);
    }

    #[test]
    fn what_cannot_be_meant_is_not_demangled() {
        assert!(may_have_base_name("_Z7throweri", "thrower") && may_have_base_name("_Zls", "operator<<"));
        assert!(!may_have_base_name("thrower", "thrower") && !may_have_base_name("_Z7throweri", "catcher"));
    }

    #[rstest]
    #[case("malloc", "o:malloc")]
    #[case("f(int)", "o:f(int)")]
    #[case("f(unsigned int)", "o:\"f(unsigned int)\"")]
    #[case("f(char*)", "o:\"f(char*)\"")]
    #[case("operator+", "o:operator+")]
    fn places_can_be_typed_back(#[case] symbol: &str, #[case] want: &str) {
        assert_eq!(place("o", symbol), want);
    }

    fn candidate(object: &str, symbol: &str, demangled: Option<&str>, offset: u64) -> Candidate {
        Candidate {
            object: object.into(),
            symbol: symbol.into(),
            demangled: demangled.map(str::to_owned),
            file_offset: Some(offset),
        }
    }

    #[test]
    fn each_of_several_is_named_as_plainly_as_it_can_be() {
        let overloads =
            [candidate("cpp", "_Z1fi", Some("f(int)"), 1), candidate("cpp", "_Z1fPc", Some("f(char*)"), 2)];
        assert!(ambiguous("f", &overloads).contains("name one: cpp:\"f(char*)\", cpp:f(int); or"));
        let libraries = [candidate("a.so", "g", None, 1), candidate("b.so", "g", None, 1)];
        assert!(ambiguous("g", &libraries).contains("name one: a.so:g, b.so:g; or"));
        let statics = [candidate("cpp", "helper", None, 0x1139), candidate("cpp", "helper", None, 0x1150)];
        assert!(ambiguous("helper", &statics).contains("name one: cpp:0x1139, cpp:0x1150; or"));
        let constructors = [
            candidate("cpp", "_ZN1AC1Ev", Some("A::A()"), 1),
            candidate("cpp", "_ZN1AC2Ev", Some("A::A()"), 2),
        ];
        assert!(ambiguous("A", &constructors).contains("name one: cpp:_ZN1AC1Ev, cpp:_ZN1AC2Ev; or"));
    }
}
