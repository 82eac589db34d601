//! What decides about a hit, in the hit: a program of the command's, run by `probe-bpf`.
//!
//! No lock, no allocation, no fault, and an end. The kernel is asked for the thread's name and the processor
//! only where a condition names them.

use super::confined;
use super::fetch::{MAX_STRING, Plan, Scene};
use super::process::Here;
use crate::def::{Definition, glob_matches};
use crate::wire::{
    COUNT_COMM, FETCH, MATCH, MOST_WORDS, NUMBER_TEXT, Pattern, Region, Rule as Asked, RuleValue as Value,
    Site,
};
use probe_bpf::{Helpers, Machine, Map, Program};
use probe_core::arch::Memory;
use probe_host_linux::sys;
use std::sync::OnceLock;

/// How many instructions a run may take; programs have no loops.
const BUDGET: u32 = 1 << 16;

/// A rule that has been checked.
pub(super) struct Rule {
    program: Program,
    values: Box<[Value]>,
    /// What lies in the program's context.
    words: Box<[Value]>,
    pub(super) extras: Box<[Plan]>,
    patterns: Box<[Pattern]>,
    maps: Box<[Map]>,
    /// The number of this process image.
    image: u32,
}

/// What a rule says of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The hit counts.
    Passed,
    /// It does not.
    Failed,
    /// Something that had to be known could not be read.
    Unjudged,
}

/// The rules of all definitions.
static RULES: OnceLock<Box<[Option<Rule>]>> = OnceLock::new();

/// Makes the rules known; called once, before anything is planted.
pub(super) fn start(rules: Vec<Option<Rule>>) {
    let _ = RULES.set(rules.into());
}

/// The rule of a definition, if it has one.
pub(super) fn of(definition: usize) -> Option<&'static Rule> {
    RULES.get()?.get(definition)?.as_ref()
}

impl Rule {
    /// Checks what the command has sent, for `definition`.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn new(
        asked: Asked,
        definition: &Definition,
        registers: &[(&str, usize)],
        region: &Region,
        image: u32,
    ) -> Result<Self, String> {
        let program = Program::from_bytes(&asked.program, asked.maps.len(), &Known)
            .map_err(|error| error.to_string())?;
        let extras = asked.extras.iter().map(|text| {
            // They name no symbol.
            definition.also_fetch(text, registers).map(|argument| Plan::new(argument, 0))
        });
        let maps = asked.maps.iter().map(|map| region.map(*map));
        let words = asked.words.iter().map(|word| asked.values.get(*word as usize).copied());
        let words: Option<Box<[Value]>> = words.collect();
        Ok(Self {
            program,
            words: words
                .filter(|words| words.len() <= MOST_WORDS)
                .ok_or("a rule names no value of its own")?,
            extras: extras.collect::<Result<_, _>>()?,
            values: asked.values.into(),
            patterns: asked.patterns.into(),
            maps: maps.collect::<Result<_, _>>().map_err(|error| error.to_string())?,
            image,
        })
    }

    /// Whether hits are counted in maps, and not shown one by one.
    pub(super) fn is_aggregate(&self) -> bool {
        !self.maps.is_empty()
    }

    /// Decides about a hit of a probe with these arguments, and counts it where it passes.
    #[inline]
    pub(super) fn judge<M: Memory>(
        &self,
        args: &[Plan],
        scene: &Scene<'_, M>,
        here: &Here,
        took_ns: u64,
    ) -> Verdict {
        let subject = Subject { rule: self, args, scene, here, took_ns };
        let mut context = [0; 8 * MOST_WORDS];
        let (words, _) = context.as_chunks_mut::<8>();
        for (word, value) in words.iter_mut().zip(&self.words) {
            let Some(number) = subject.number(*value) else { return Verdict::Unjudged };
            *word = number.to_ne_bytes();
        }
        // Which share of the maps is this thread's.
        let number = if self.maps.is_empty() { 0 } else { here.thread() as usize };
        let machine =
            Machine { context: &context, maps: &self.maps, helpers: &subject, number, budget: BUDGET };
        match self.program.run(&machine) {
            Ok(0) => Verdict::Failed,
            Ok(_) => Verdict::Passed,
            Err(_) => Verdict::Unjudged,
        }
    }
}

/// The helpers of rules, without a hit.
struct Known;

impl Helpers for Known {
    fn is_known(&self, number: i32) -> bool {
        matches!(number, FETCH | MATCH | COUNT_COMM | NUMBER_TEXT)
    }
    fn call(&self, _: i32, _: [u64; 5]) -> Option<u64> {
        None
    }
}

/// The hit that is judged.
struct Subject<'a, M> {
    rule: &'a Rule,
    args: &'a [Plan],
    scene: &'a Scene<'a, M>,
    here: &'a Here,
    took_ns: u64,
}

impl<M: Memory> Helpers for Subject<'_, M> {
    fn is_known(&self, number: i32) -> bool {
        Known.is_known(number)
    }

    fn call(&self, number: i32, [value, pattern, ..]: [u64; 5]) -> Option<u64> {
        match number {
            COUNT_COMM => return self.count_comm(value, pattern),
            NUMBER_TEXT => return self.number_text(value, pattern),
            _ => {}
        }
        let value = *self.rule.values.get(usize::try_from(value).ok()?)?;
        match number {
            FETCH => self.number(value),
            MATCH => {
                let pattern = self.rule.patterns.get(usize::try_from(pattern).ok()?)?;
                self.matches(value, pattern).map(u64::from)
            }
            _ => None,
        }
    }
}

impl<M: Memory> Subject<'_, M> {
    /// A number; `None` where it cannot be read.
    #[inline]
    fn number(&self, value: Value) -> Option<u64> {
        let Here { process, child, .. } = *self.here;
        match value {
            Value::Argument(index) => self.args.get(index as usize)?.number(self.scene),
            Value::Extra(index) => self.rule.extras.get(index as usize)?.number(self.scene),
            Value::Result => Some(int_or_long(self.scene.return_value?)),
            Value::Took => Some(self.took_ns),
            Value::Process => Some(child.map_or(process, |child| child.pid).into()),
            Value::Thread => Some(child.map_or_else(|| self.here.thread(), |child| child.tid).into()),
            Value::Processor => processor(),
            Value::Comm => None,
            Value::Caller => {
                let addr = self.scene.caller()? as u64;
                Some(Site { addr, image: self.rule.image }.word())
            }
        }
    }

    /// Adds to the sum of the thread's name.
    fn count_comm(&self, map: u64, amount: u64) -> Option<u64> {
        let Map::Hash(hash) = self.rule.maps.get(usize::try_from(map).ok()?)? else { return None };
        let name = confined::thread_name();
        // What stands behind the name is not part of it.
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let mut key = [0; 16];
        key.get_mut(..len)?.copy_from_slice(name.get(..len)?);
        let (low, high) = key.split_first_chunk()?;
        let high = high.first_chunk()?;
        let key = [u64::from_ne_bytes(*low), u64::from_ne_bytes(*high)];
        Some(u64::from(!hash.add(self.here.thread() as usize, key, amount)))
    }

    /// Whether a text is, or matches, a pattern; `None` where it cannot be read.
    #[inline(never)]
    fn matches(&self, value: Value, pattern: &Pattern) -> Option<bool> {
        let mut room = [0; MAX_STRING];
        let text = self.text(value, &mut room)?;
        Some(if pattern.is_glob { glob_matches(&pattern.text, text) } else { text == &*pattern.text })
    }

    /// The number of a text; 0 where there is no room for it, `None` where it cannot be read.
    #[inline(never)]
    fn number_text(&self, map: u64, value: u64) -> Option<u64> {
        let Map::Texts(texts) = self.rule.maps.get(usize::try_from(map).ok()?)? else { return None };
        let value = *self.rule.values.get(usize::try_from(value).ok()?)?;
        let mut room = [0; MAX_STRING];
        Some(texts.number(self.text(value, &mut room)?).unwrap_or(0))
    }

    /// The text of a value; `None` where it cannot be read.
    fn text<'r>(&'r self, value: Value, room: &'r mut [u8; MAX_STRING]) -> Option<&'r [u8]> {
        match value {
            Value::Comm => {
                let room = room.first_chunk_mut()?;
                *room = confined::thread_name();
                room.split(|&byte| byte == 0).next()
            }
            Value::Argument(index) => self.args.get(index as usize)?.text(self.scene, room),
            Value::Extra(index) => self.rule.extras.get(index as usize)?.text(self.scene, room),
            _ => None,
        }
    }
}

/// A return value whose type is not known: an `int` leaves the upper half of its register as it likes, mostly
/// 0.
#[inline]
fn int_or_long(word: usize) -> u64 {
    match u32::try_from(word) {
        Ok(word) => i64::from(word.cast_signed()).cast_unsigned(),
        Err(_) => word as u64,
    }
}

/// The processor that runs this, where the kernel may be asked.
fn processor() -> Option<u64> {
    if confined::is_confined() {
        return None;
    }
    let mut number = 0_u32;
    let at = (&raw mut number).expose_provenance();
    // SAFETY: writes a number there; the others may be null.
    unsafe { sys::call(libc::SYS_getcpu, [at, 0, 0]) }.ok()?;
    Some(number.into())
}
