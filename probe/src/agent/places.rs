//! From definitions to places in the loaded objects, and the sentences about those that cannot be found or
//! probed.

use super::objects::{self, Loaded};
use crate::def::names::{self, Candidate};
use crate::def::{Definition, Named, Place as Wanted, near_matches, object_named};
use probe_core::CodeAddr;
use probe_core::error::RegisterError;
use probe_core::host::Host;
use probe_host_linux::{Indirect, NAMELESS, probes};
use std::collections::HashSet;
use std::sync::OnceLock;

/// One place to be planted.
pub(super) struct Target {
    pub(super) definition: usize,
    pub(super) at: CodeAddr,
    pub(super) symbol: String,
    pub(super) offset: u64,
    pub(super) object: String,
    pub(super) is_one_of_many: bool,
}

/// The bytes of a definition that are to blame, and one sentence.
pub(super) type Blamed = ((usize, usize), String);

/// The places that a definition means. An error with the span (0, 0): its object is not loaded.
pub(super) fn targets_of(
    objects: &[Loaded],
    number: usize,
    definition: &Definition,
    indirect: Indirect,
) -> Result<Vec<Target>, Blamed> {
    let object = match &definition.object {
        None => None,
        Some(wanted) => match object_named(objects, wanted) {
            Named::One(object) => Some(object),
            Named::All(all) => {
                let mut targets = Vec::new();
                for object in &all {
                    // One that lacks it is not meant.
                    targets.extend(
                        targets_in(objects, Some(object), number, definition, indirect).unwrap_or_default(),
                    );
                }
                targets.iter_mut().for_each(|target| target.is_one_of_many = true);
                if targets.is_empty() {
                    let sentence = format!("none of {} has such a function", listed(&all));
                    return Err((definition.place_span, sentence));
                }
                return Ok(targets);
            }
            Named::Nothing => return Err(((0, 0), no_object(objects, wanted))),
            Named::Several(several) => {
                let names: Vec<&str> = several.iter().map(|object| object.name.as_str()).collect();
                let sentence = format!("`{wanted}` may be {}; name one", names.join(" or "));
                return Err((definition.place_span, sentence));
            }
        },
    };
    targets_in(objects, object, number, definition, indirect)
}

/// Some of the objects by name, and how many more there are.
fn listed(objects: &[&Loaded]) -> String {
    const MOST: usize = 4;
    let names: Vec<&str> = objects.iter().take(MOST).map(|object| object.name.as_str()).collect();
    match objects.len().saturating_sub(MOST) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// The places that a definition means in `object`, or in any if that is `None`.
pub(super) fn targets_in(
    objects: &[Loaded],
    object: Option<&Loaded>,
    number: usize,
    definition: &Definition,
    indirect: Indirect,
) -> Result<Vec<Target>, Blamed> {
    let blame = |sentence: String| (definition.place_span, sentence);
    match &definition.place {
        Wanted::Symbol { name, offset } => {
            one(objects, object, number, (name, *offset), indirect).map(|target| vec![target]).map_err(blame)
        }
        Wanted::Glob(glob) => {
            let targets = matching(objects, object, number, &|name| names::matches(glob, name), indirect);
            if targets.is_empty() {
                let why = stripped(object).unwrap_or_default();
                return Err(blame(format!("no function matches `{}`{}{why}", glob.as_str(), within(object))));
            }
            Ok(targets)
        }
        Wanted::FileOffset(offset) => {
            let object = object.ok_or_else(|| blame("a file offset needs an object".into()))?;
            let at = object.addr_of_offset(*offset);
            let at =
                at.ok_or_else(|| blame(format!("offset {offset:#x} of {} is not loaded", object.name)))?;
            let mut target = Target {
                definition: number,
                at: CodeAddr::new(at),
                symbol: String::new(),
                offset: *offset,
                object: object.name.clone(),
                is_one_of_many: false,
            };
            probes().host().symbol_at(target.at, &mut |symbol| {
                target.symbol = symbol.name.to_owned();
                target.offset = (at - symbol.start.as_usize()) as u64;
            });
            Ok(vec![target])
        }
    }
}

/// ` in libc.so.6`, or nothing.
fn within(object: Option<&Loaded>) -> String {
    object.map(|object| format!(" in {}", object.name)).unwrap_or_default()
}

fn no_object(objects: &[Loaded], wanted: &str) -> String {
    let names: Vec<&str> = objects.iter().map(|object| object.name.as_str()).collect();
    let near = near_matches(wanted, names.iter().copied(), 2);
    let hint = if near.is_empty() {
        let some = names.iter().take(8).copied().collect::<Vec<_>>().join(", ");
        format!("loaded are {some}; what the program loads later can be named by its path")
    } else {
        format!("did you mean `{}`?", near.join("` or `"))
    };
    format!("no object `{wanted}` is loaded before the program starts; {hint}")
}

/// The indirect functions that a definition's pattern matches in `object` and that `targets` lack.
pub(super) fn left_out(object: &Loaded, definition: &Definition, targets: &[Target]) -> Vec<String> {
    let mut names = HashSet::new();
    probes().host().for_each_symbol(&mut |symbol, _| {
        let is_meant = match &definition.place {
            Wanted::Symbol { name, .. } => name == symbol.name || names::has_base_name(symbol.name, name),
            Wanted::Glob(glob) => names::matches(glob, symbol.name),
            Wanted::FileOffset(_) => false,
        };
        let at = symbol.start.wrapping_add(usize::from(symbol.local_entry));
        if is_meant && belongs(Some(object), symbol.module) && !targets.iter().any(|target| target.at == at) {
            names.insert(symbol.name.to_owned());
        }
    });
    names.retain(|name| !targets.iter().any(|target| target.symbol == *name));
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_unstable();
    names
}

/// The file name of the object that a symbol belongs to.
fn object_name<'a>(objects: &'a [Loaded], module: Option<&'a str>) -> &'a str {
    match module {
        Some(module) => module,
        None => objects.iter().find(|object| object.is_program).map_or("", |object| &object.name),
    }
}

/// Whether a symbol of `module` belongs to `object`, if one is named.
fn belongs(object: Option<&Loaded>, module: Option<&str>) -> bool {
    object.is_none_or(|object| match module {
        None => object.is_program,
        Some(module) => !object.is_program && object.name == module,
    })
}

/// A function that a name may mean.
struct Function {
    target: Target,
    /// As its table spells it.
    symbol: String,
    len_bytes: usize,
}

/// The functions called `name`, each address once.
fn called(
    objects: &[Loaded],
    object: Option<&Loaded>,
    number: usize,
    (name, offset): (&str, u64),
    indirect: Indirect,
    found: &mut Vec<Function>,
) {
    let is_meant = |module: Option<&str>| belongs(object, module);
    probes().host().find_functions_within(&is_meant, name, indirect, &mut |symbol| {
        let entry = if offset == 0 { usize::from(symbol.local_entry) } else { 0 };
        let at = symbol.start.wrapping_add(offset as usize).wrapping_add(entry);
        if found.iter().any(|function| function.target.at == at) {
            return;
        }
        let target = Target {
            definition: number,
            at,
            symbol: name.to_owned(),
            offset,
            object: object_name(objects, symbol.module).to_owned(),
            is_one_of_many: false,
        };
        found.push(Function { target, symbol: symbol.name.to_owned(), len_bytes: symbol.len_bytes });
    });
}

/// The one function that a name means: by its symbol, by its demangled name, or, if nothing has that name, by
/// the last components of a demangled name.
fn one(
    objects: &[Loaded],
    object: Option<&Loaded>,
    number: usize,
    (name, offset): (&str, u64),
    indirect: Indirect,
) -> Result<Target, String> {
    let mut found: Vec<Function> = Vec::new();
    called(objects, object, number, (name, offset), indirect, &mut found);
    if found.is_empty() {
        let mut mangled: Vec<String> = Vec::new();
        probes().host().for_each_symbol(&mut |symbol, _| {
            if belongs(object, symbol.module) && names::has_base_name(symbol.name, name) {
                mangled.push(symbol.name.to_owned());
            }
        });
        mangled.sort_unstable();
        mangled.dedup();
        for symbol in &mangled {
            called(objects, object, number, (symbol, offset), indirect, &mut found);
        }
        found.iter_mut().for_each(|function| {
            function.target.symbol = names::spelled(&function.symbol).unwrap_or_else(|| name.to_owned());
        });
    }
    // The program's own symbol hides those of its libraries.
    if object.is_none() && found.len() > 1 {
        let program = object_name(objects, None);
        if found.iter().any(|function| function.target.object == program) {
            found.retain(|function| function.target.object == program);
        }
    }
    match found.len() {
        0 => Err(no_symbol(object, name)),
        1 => {
            let Function { target, len_bytes, .. } = found.remove(0);
            if offset > 0 && len_bytes > 0 && offset >= len_bytes as u64 {
                return Err(format!("{name} has {len_bytes} bytes, so +{offset:#x} lies outside"));
            }
            Ok(target)
        }
        _ => {
            let candidates: Vec<Candidate> =
                found.into_iter().map(|function| candidate(objects, function)).collect();
            Err(names::ambiguous(name, &candidates))
        }
    }
}

fn candidate(objects: &[Loaded], function: Function) -> Candidate {
    let Function { target, symbol, .. } = function;
    let object = objects.iter().find(|object| object.name == target.object);
    Candidate {
        demangled: names::spelled(&symbol),
        file_offset: object.and_then(|object| object.offset_of_addr(target.at.as_usize())),
        object: target.object,
        symbol,
    }
}

/// What is to be said of names that are not found, where the program has been stripped of all. A name without
/// an object may be a library's, if there are libraries.
fn stripped(object: Option<&Loaded>) -> Option<String> {
    if !object.map_or_else(is_static, |object| object.is_program) {
        return None;
    }
    let mut some = None;
    let mut has_names = false;
    probes().host().for_each_symbol(&mut |symbol, _| {
        if symbol.module.is_none() {
            has_names |= !symbol.name.starts_with(NAMELESS);
            some.get_or_insert_with(|| symbol.name.to_owned());
        }
    });
    let remedy = "the program has been stripped of its names: install its debug symbols";
    match some {
        _ if has_names => None,
        Some(some) => Some(format!("; {remedy}, or name a function by its address in the file, as `{some}`")),
        None => Some(format!("; {remedy}")),
    }
}

fn no_symbol(object: Option<&Loaded>, name: &str) -> String {
    let mut names: HashSet<String> = HashSet::new();
    probes().host().for_each_symbol(&mut |symbol, _| {
        if belongs(object, symbol.module) {
            names.insert(symbol.name.to_owned());
        }
    });
    let near = near_matches(name, names.iter().map(String::as_str), 3);
    let hint = stripped(object).unwrap_or_else(|| match near.as_slice() {
        [] => String::new(),
        near => format!("; did you mean `{}`?", near.join("` or `")),
    });
    format!("there is no function `{name}`{}{hint}", within(object))
}

/// All functions whose name matches, each address once.
fn matching(
    objects: &[Loaded],
    object: Option<&Loaded>,
    number: usize,
    is_wanted: &dyn Fn(&str) -> bool,
    indirect: Indirect,
) -> Vec<Target> {
    let host = probes().host();
    let mut names: Vec<(bool, String)> = Vec::new();
    host.for_each_symbol(&mut |symbol, _| {
        if belongs(object, symbol.module) && is_wanted(symbol.name) {
            // Labels of assembly have no length.
            names.push((symbol.len_bytes == 0, symbol.name.to_owned()));
        }
    });
    // Of several names of one address the plainest is used, and a function's before a label's.
    names.sort_unstable_by(|(is_label, a), (b_is_label, b)| {
        is_label.cmp(b_is_label).then_with(|| plainness(a).cmp(&plainness(b))).then_with(|| a.cmp(b))
    });
    names.dedup();
    let (mut targets, mut known) = (Vec::new(), HashSet::new());
    let is_meant = |module: Option<&str>| belongs(object, module);
    for (_, name) in names {
        // Asked by name, so that indirect functions lead to what they stand for.
        host.find_functions_within(&is_meant, &name, indirect, &mut |symbol| {
            let at = symbol.start.wrapping_add(usize::from(symbol.local_entry));
            if known.insert(at) {
                targets.push(Target {
                    definition: number,
                    at,
                    symbol: names::spelled(&name).unwrap_or_else(|| name.clone()),
                    offset: 0,
                    object: object_name(objects, symbol.module).to_owned(),
                    is_one_of_many: true,
                });
            }
        });
    }
    targets
}

/// A key that is lower for the name that people use: few leading underscores, then short.
fn plainness(name: &str) -> (usize, usize) {
    (name.len() - name.trim_start_matches('_').len(), name.len())
}

/// The sentence for a place that cannot be probed, in terms of its symbol.
pub(super) fn sentence(error: &RegisterError, target: &Target) -> String {
    let place = if target.symbol.is_empty() {
        format!("{:#x}", target.offset)
    } else if target.offset == 0 {
        target.symbol.clone()
    } else {
        format!("{}+{:#x}", target.symbol, target.offset)
    };
    match error {
        RegisterError::InsideInstruction { at, start } => {
            let before = at.offset_from(*start).unsigned_abs() as u64;
            let start = match target.offset.saturating_sub(before) {
                0 => target.symbol.clone(),
                offset => format!("{}+{offset:#x}", target.symbol),
            };
            format!("{place} lies inside an instruction that starts at {start}")
        }
        RegisterError::Refused { refusal, .. } => {
            format!("the instruction at {place} cannot be probed: {refusal}")
        }
        RegisterError::NotCalled { refusal, .. } => {
            format!("{place} can have no return probe: {refusal}")
        }
        RegisterError::Blacklisted(_) => {
            format!("{place} must not be probed: the probes themselves run through it")
        }
        RegisterError::NotText(_) => format!("{place} is not code"),
        RegisterError::NoSymbolCovers(_) => {
            format!("no symbol covers {place}, so nobody can tell where instructions start there")
        }
        other => format!("{place} cannot be probed: {other}"),
    }
}

/// The reason alone, the same for all places that share it.
pub(super) fn reason(error: &RegisterError) -> String {
    match error {
        RegisterError::Refused { refusal, .. } | RegisterError::NotCalled { refusal, .. } => {
            refusal.to_string()
        }
        RegisterError::Blacklisted(_) => "the probes themselves run through it".into(),
        RegisterError::Undecodable { .. } => "its instructions cannot be decoded".into(),
        RegisterError::NotText(_) => "it is not code".into(),
        other => other.code().into(),
    }
}

/// Whether an object of this name is libc.
fn is_libc(name: &str) -> bool {
    name.starts_with("libc.") || name.starts_with("ld-musl-")
}

/// Whether the program has libc in it; one that loads libc does so before the agent is there.
fn is_static() -> bool {
    static IS_STATIC: OnceLock<bool> = OnceLock::new();
    *IS_STATIC.get_or_init(|| !objects::loaded().iter().any(|object| is_libc(&object.name)))
}

/// Calls `found` with where each function of libc called `name` begins.
pub(super) fn find_in_libc(name: &str, found: &mut dyn FnMut(CodeAddr)) {
    let is_libc = |module: Option<&str>| match module {
        Some(module) => is_libc(module),
        None => is_static(),
    };
    probes().host().find_functions_within(&is_libc, name, Indirect::Resolve, &mut |symbol| {
        found(symbol.start.wrapping_add(usize::from(symbol.local_entry)));
    });
}

/// Where the functions of libc with these names begin, as far as they can be probed.
pub(super) fn in_libc(names: &[&str]) -> Vec<CodeAddr> {
    let mut places = Vec::new();
    for name in names {
        find_in_libc(name, &mut |at| {
            if !places.contains(&at) {
                places.push(at);
            }
        });
    }
    let checked = probes().check_all(&places.iter().map(|&at| (at.into(), false)).collect::<Vec<_>>());
    places.into_iter().zip(checked).filter(|(_, checked)| checked.is_ok()).map(|(at, _)| at).collect()
}
