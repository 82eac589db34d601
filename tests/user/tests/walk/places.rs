//! Which places are walked: every instruction of the workload's functions, but those that the library
//! refuses, each of them listed with its reason.

use crate::count::Counts;
use crate::workloads::Scope;
use probe_core::arch::{Arch, Jumps, Site, Text};
use probe_core::error::RegisterError;
use probe_core::host::Host;
use probe_core::{CodeAddr, Place};
use probe_host_linux::{Native, Regs, probes};
use std::collections::BTreeMap;
use std::fmt::Write;

/// How many of the places that could have a jump have one, at the least.
const LEAST_PERCENT: u64 = match () {
    () if cfg!(target_arch = "riscv64") => 0,
    () if cfg!(target_arch = "arm") => 30,
    () => 75,
};

/// In how many rounds all places have had their turn to have a jump.
pub(crate) const ROUNDS: usize =
    if jump_len::<<Native as Arch>::Jumps>() > Native::INSN_ALIGN { 6 } else { 1 };

/// How many bytes a jump has, 0 where there are none.
const fn jump_len<J: Jumps<Regs>>() -> usize {
    J::JUMP_LEN
}

/// How far apart two jumps of one round are at the least: a jump never displaces more.
const APART: usize = if ROUNDS > 1 { 4 + Native::MAX_INSN_LEN } else { 0 };

/// One instruction.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Its address, as the core knows it.
    pub(crate) at: usize,
    /// Its function, where a symbol says so.
    function: Option<String>,
    /// Whether it is the function's first instruction.
    is_first: bool,
    /// The bytes, for the reader of a failure.
    #[expect(dead_code, reason = "shown by Debug")]
    insn: Box<[u8]>,
    /// Whether `explain` says that a jump can be there, with a post handler, too.
    can_jump: bool,
}

impl Walk {
    /// Where its first byte lies: what the independent count knows it by.
    pub(crate) fn first_byte(&self) -> usize {
        first_byte(self.at)
    }

    /// The place to register at.
    pub(crate) fn to_place(&self) -> Place {
        let at = CodeAddr::new(self.at);
        // A checked place at a function's start may mean the entry behind a landing pad or a global entry.
        if self.function.is_some() && !self.is_first {
            return Place::addr(at);
        }
        // SAFETY: an instruction starts there: a function does, or the independent count has seen it
        // executed.
        unsafe { Place::unchecked(at) }
    }
}

/// Where the first byte of the instruction at `at` lies.
fn first_byte(at: usize) -> usize {
    Native::first_byte(CodeAddr::new(at)).as_usize()
}

/// Text that nothing is planted in yet.
struct Bare;

impl Text for Bare {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        probes().host().read_text(Native::first_byte(at), out)
    }
}

/// The addresses of executed instructions, as the core knows them. On arm they say the instruction set. What
/// was executed in one piece is of one: T32, where an instruction lies as none of A32 can, or where less than
/// half of the words have no condition, as most of A32 have none.
fn with_set(executed: &[usize]) -> Vec<usize> {
    if !cfg!(target_arch = "arm") {
        return executed.to_vec();
    }
    let is_unconditional = |at: &&usize| {
        let mut word = [0; 4];
        Bare.read(CodeAddr::new(**at), &mut word);
        word[3] >> 4 == 0xe
    };
    let pieces = executed.chunk_by(|a, b| b - a <= 4);
    let with_set = |piece: &[usize]| {
        let is_t32 = piece.iter().any(|at| !at.is_multiple_of(4))
            || piece.iter().filter(is_unconditional).count() * 2 < piece.len();
        piece.iter().map(|at| at | usize::from(is_t32)).collect::<Vec<_>>()
    };
    pieces.flat_map(with_set).collect()
}

/// Everything about the places of one workload.
#[derive(Default)]
pub(crate) struct Walked {
    /// Where probes are planted, sorted by address.
    pub(crate) places: Vec<Walk>,
    /// The independent count.
    pub(crate) counts: Counts,
    functions: BTreeMap<usize, Function>,
    /// By reason code: how many instructions, how many executions, the first of them.
    refused: BTreeMap<&'static str, (u64, u64, String)>,
    methods: BTreeMap<String, u64>,
    /// Of those that are walked, the ones that no jump can be at: by reason code, how many.
    no_jump: BTreeMap<&'static str, u64>,
}

/// A function's extent.
struct Function {
    name: String,
    len_bytes: usize,
}

/// The symbol that covers `at`.
fn function_at(at: usize) -> Option<(usize, Function)> {
    let mut found = None;
    probes().host().symbol_at(CodeAddr::new(at), &mut |symbol| {
        // What lies behind a function of T32 may be A32.
        let is_of_set = Native::same_set(symbol.start, CodeAddr::new(at)) == symbol.start;
        if symbol.len_bytes != 0 && is_of_set {
            let function = Function { name: symbol.name.into(), len_bytes: symbol.len_bytes };
            found = Some((symbol.start.as_usize(), function));
        }
    });
    found
}

/// The function `name`, of which there is one.
fn function_named(name: &str) -> Result<(usize, Function), String> {
    let mut found = Vec::new();
    probes().host().find_symbols(name, &mut |symbol| {
        found.push((symbol.start.as_usize(), Function { name: name.into(), len_bytes: symbol.len_bytes }));
    });
    let one = found.pop().ok_or(format!("no symbol {name}"))?;
    if found.is_empty() { Ok(one) } else { Err(format!("several symbols {name}")) }
}

/// Whether a symbol of the C library's object is the C library's own: a static program holds Rust's
/// functions, too.
fn is_c_name(name: &str) -> bool {
    !["_ZN", "_R", "__rust", "rust_", "walk_", "main"].iter().any(|prefix| name.starts_with(prefix))
        && !name.contains("probe_")
}

impl Walked {
    /// Finds the places of a workload, given what was executed when it ran.
    ///
    /// # Errors
    /// A function is missing or was not run, an entry is refused, or an instruction was executed where none
    /// starts.
    pub(crate) fn find(scope: Scope, counts: Counts) -> Result<Self, String> {
        let mut walked = Self { counts, ..Self::default() };
        match scope {
            Scope::Functions(names) => {
                for name in names {
                    let (start, function) = function_named(name)?;
                    walked.functions.insert(start, function);
                }
            }
            Scope::CLibrary => walked.find_c_library()?,
        }
        let functions: Vec<_> = walked.functions.iter().map(|(&start, f)| (start, f.len_bytes)).collect();
        for (start, len) in functions {
            walked.add_function(start, len)?;
        }
        walked.places.sort_by_key(|place| place.at);
        Ok(walked)
    }

    /// Every function of the C library's object that was run; places that no symbol covers, one by one.
    fn find_c_library(&mut self) -> Result<(), String> {
        let (snprintf, _) = function_named("snprintf")?;
        let object = probes().host().object_name(CodeAddr::new(snprintf));
        let executed: Vec<usize> = self.counts.keys().copied().collect();
        for at in with_set(&executed) {
            if probes().host().object_name(CodeAddr::new(at)) != object {
                continue;
            }
            match function_at(at) {
                Some((start, function)) if is_c_name(&function.name) => {
                    self.functions.entry(start).or_insert(function);
                }
                Some(_) => {}
                None => self.add(at, None)?,
            }
        }
        if self.functions.contains_key(&snprintf) { Ok(()) } else { Err("snprintf was not run".into()) }
    }

    /// Adds every instruction of a function.
    fn add_function(&mut self, start: usize, len_bytes: usize) -> Result<(), String> {
        let mut at = start;
        let mut boundaries = 0;
        let from = first_byte(start);
        let before = self.counts.range(from..from + len_bytes).count();
        let end = CodeAddr::new(start + len_bytes);
        while at < start + len_bytes {
            boundaries += usize::from(self.counts.contains_key(&first_byte(at)));
            self.add(at, Some(start))?;
            let mut bytes = [0; 16];
            let bytes = &mut bytes[..Native::MAX_INSN_LEN.min(start + len_bytes - at)];
            let read = Bare.read(CodeAddr::new(at), bytes);
            let Some(len) = Native::insn_len(CodeAddr::new(at), &bytes[..read]) else { break };
            let site =
                Site { at: CodeAddr::new(at), function: Some((CodeAddr::new(start), end)), text: &Bare };
            at += len + Native::data_behind(&site, len);
        }
        if boundaries == before && before != 0 {
            return Ok(());
        }
        let name = &self.functions[&start].name;
        Err(format!(
            "{name}: {before} addresses were executed, {boundaries} of them where an instruction starts"
        ))
    }

    /// Adds one instruction, unless it is refused.
    fn add(&mut self, at: usize, function: Option<usize>) -> Result<(), String> {
        let name = function.map(|start| self.functions[&start].name.clone());
        // SAFETY: an instruction starts there: executed, or reached from the function's start. Nothing is
        // planted yet, and the registration checks the boundary again, for the whole batch at once; here it
        // would cost the square.
        let unchecked = unsafe { Place::unchecked(CodeAddr::new(at)) };
        match probes().explain(&unchecked) {
            Ok(explained) => {
                *self.methods.entry(format!("{:?}", explained.method).to_lowercase()).or_default() += 1;
                if let Err(why) = explained.jump_with_post {
                    *self.no_jump.entry(why.code).or_default() += 1;
                }
                self.places.push(Walk {
                    at,
                    function: name,
                    is_first: function == Some(at),
                    insn: explained.insn,
                    can_jump: explained.jump_with_post.is_ok(),
                });
                Ok(())
            }
            // What the hit path itself calls, as a whole.
            Err(error) if function == Some(at) && !matches!(error, RegisterError::Blacklisted(_)) => {
                Err(format!("the entry of {} is refused: {error}", name.unwrap_or_default()))
            }
            Err(error) => {
                let refused = self.refused.entry(error.code()).or_default();
                refused.0 += 1;
                refused.1 += self.counts.get(&first_byte(at)).copied().unwrap_or(0);
                if refused.2.is_empty() {
                    let start = function.unwrap_or(at);
                    refused.2 = format!("{}+{:#x}: {error}", name.unwrap_or_default(), at - start);
                }
                Ok(())
            }
        }
    }

    /// The places of a round: far enough from each other that every one can have a jump, as far as its
    /// instructions allow.
    pub(crate) fn round(&self, round: usize) -> Vec<usize> {
        let mut last_end = [0; ROUNDS];
        let mut chosen = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            // Into the first round that has room.
            if let Some(into) = last_end.iter().position(|end| *end <= place.at) {
                last_end[into] = place.at + APART;
                if into == round {
                    chosen.push(index);
                }
            }
        }
        chosen
    }

    /// Whether as many places have had jumps, with post handlers, as `explain` has said; but for the few
    /// where no memory is free where a jump over short instructions can lead. On riscv64 that may be none: a
    /// jump reaches 1 MiB, in the middle of a C library. In T32 it leads to one place in 4 KiB, up to 4 MiB
    /// away, and neighbours' places overlap.
    ///
    /// # Errors
    /// How many have.
    pub(crate) fn check_jumps(&self, jumps: u64) -> Result<(), String> {
        let rounds = (0..ROUNDS).flat_map(|round| self.round(round));
        let wanted = rounds.filter(|&index| self.places[index].can_jump).count() as u64;
        let has_jumps = Native::JUMPS.is_some();
        if !has_jumps && wanted == 0 && jumps == 0 {
            return Ok(());
        }
        if wanted > 0 && jumps <= wanted && jumps * 100 >= wanted * LEAST_PERCENT {
            return Ok(());
        }
        Err(format!("{jumps} places had jumps, of {wanted} that could: {}", self.summary()))
    }

    /// What was walked and what was not, for the reader.
    pub(crate) fn summary(&self) -> String {
        let executed = self.places.iter().filter_map(|place| self.counts.get(&place.first_byte()));
        let (places_run, executions) = executed.fold((0, 0), |(n, sum), count| (n + 1, sum + count));
        let unnamed = self.places.iter().filter(|place| place.function.is_none()).count();
        let mut text = format!(
            "    {} places ({unnamed} without a symbol) in {} functions, {places_run} of them run, {executions} hits; {:?}; no jump: {:?}",
            self.places.len(),
            self.functions.len(),
            self.methods,
            self.no_jump
        );
        for (code, (places, executions, first)) in &self.refused {
            let _ = write!(text, "\n    refused: {code}: {places} places, {executions} executions; {first}");
        }
        text
    }
}
