//! From a place as the user names it to an instruction that can be probed, or the reason why it cannot.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, Decoded, Jumps, Site, Text};
use crate::arrival::Arrival;
use crate::error::{Refusal, RegisterError};
use crate::held::Hold;
use crate::jump::WINDOW;
use crate::place::{Place, Target};
use crate::state::host::{Host, JumpsOf, Probeable, Symbol};
use crate::state::probes::Probes;
use crate::state::text::{self, Standing};
use alloc::format;
use alloc::vec::Vec;

/// How far before a place a probe may stand that shows where instructions start, in bytes.
const CLOSE: usize = 256;

/// The bytes of an instruction, and zeros.
pub(super) type Insn = [u8; 16];

/// Return probes and jprobes on an architecture whose backend has no [`Calls`].
pub(super) const NO_CALLS: Refusal =
    Refusal::unsupported("core.no_calls", "calls cannot be followed on this architecture");

/// The decision of the host's architecture about an instruction.
pub(super) type DecodedOf<H> = Decoded<<<H as Host>::Arch as Arch>::Plan>;

/// A function: the part of a symbol that the registry needs.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) start: CodeAddr,
    /// One past the last byte, as far as the symbol table says.
    pub(super) end: CodeAddr,
    local_entry: u8,
}

impl Function {
    fn of(symbol: &Symbol<'_>) -> Self {
        Self {
            start: symbol.start,
            end: symbol.start.wrapping_add(symbol.len_bytes),
            local_entry: symbol.local_entry,
        }
    }
}

/// A place found in the symbol table and allowed by the host.
#[derive(Clone, Copy)]
pub(super) struct Resolved {
    pub(super) at: CodeAddr,
    pub(super) function: Option<Function>,
    /// Whether the boundary is to be checked.
    pub(super) is_checked: bool,
}

impl Resolved {
    /// Whether [`Probes::decode`] checks that an instruction starts there.
    pub(super) fn has_checked_boundary(&self) -> bool {
        self.is_checked && self.function.is_some()
    }
}

/// Text as it would read without our breakpoints and jumps.
pub(super) struct Pristine<'a, H: Host> {
    probes: &'a Probes<H>,
    /// What keeps the points, and text as they say it is.
    hold: &'a Hold,
}

impl<H: Host> Text for Pristine<'_, H> {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let read = self.probes.host.read_text(H::Arch::first_byte(at), out).min(out.len());
        let breakpoint = H::Arch::breakpoint(at);
        let Some(text) = out.get_mut(..read) else { return read };
        let Some(first) = breakpoint.first() else { return read };
        // Breakpoints start where instructions may.
        let align = H::Arch::INSN_ALIGN;
        let mut from = H::Arch::first_byte(at).as_usize().wrapping_neg() & (align - 1);
        while let Some(rest) = text.get(from..) {
            let mut starts = rest.chunks_exact(align);
            let Some(found) = starts.position(|start| start.first() == Some(first)) else { break };
            let index = from + found * align;
            if rest.get(found * align..).is_some_and(|text| text.starts_with(breakpoint)) {
                self.restore(at.wrapping_add(index), at, text);
            }
            from = index + align;
        }
        // A breakpoint that begins before the text, or goes on after it, is not seen whole.
        for distance in 1..breakpoint.len() {
            self.restore(at.wrapping_offset(-(distance as isize)), at, text);
            self.restore(at.wrapping_add(read.wrapping_sub(distance)), at, text);
        }
        self.restore_displaced(at, text);
        read
    }
}

impl<'a, H: Host> Pristine<'a, H> {
    pub(super) fn new(probes: &'a Probes<H>, hold: &'a Hold) -> Self {
        Self { probes, hold }
    }

    /// Lays the instructions that the jumps of optimised probes displace over `out`, which is the text from
    /// `start` on.
    fn restore_displaced(&self, start: CodeAddr, out: &mut [u8]) {
        if self.probes.places.texts().jumps() == 0 {
            return;
        }
        let align = H::Arch::INSN_ALIGN;
        let before = JumpsOf::<H>::JUMP_LEN.saturating_sub(1).next_multiple_of(align);
        let aligned = start.as_usize() & !(align - 1);
        let first = H::Arch::same_set(CodeAddr::new(aligned.wrapping_sub(before)), start);
        for distance in (0..before + out.len() + align).step_by(align) {
            let place = first.wrapping_add(distance);
            let Some(point) = self.probes.places.at(place, self.hold) else { continue };
            let Some(detour) = Standing::<H>::of(point).detour() else { continue };
            if text::is_overwritten(&self.probes.host, point) {
                continue;
            }
            for (index, byte) in detour.text.iter().take(JumpsOf::<H>::JUMP_LEN).enumerate() {
                let offset = place.wrapping_add(index).as_usize().wrapping_sub(start.as_usize());
                if let Some(out) = out.get_mut(offset) {
                    *out = *byte;
                }
            }
        }
    }

    /// A boundary in the function at `start`, at or before `at`: the place of a probe close by, if there is
    /// one, so that where many are, a registration walks no further than where few are; else the start.
    fn boundary_before(&self, start: CodeAddr, at: CodeAddr) -> CodeAddr {
        let far = at.as_usize().saturating_sub(start.as_usize()).min(CLOSE);
        let is_boundary = |place: &CodeAddr| {
            let point = self.probes.places.at(*place, self.hold);
            point.is_some_and(|point| {
                point.is_boundary
                    && point.text.is_planted()
                    && !text::is_overwritten(&self.probes.host, point)
            })
        };
        let distances = (0..far).step_by(H::Arch::INSN_ALIGN);
        distances.map(|back| at.wrapping_offset(-(back as isize))).find(is_boundary).unwrap_or(start)
    }

    /// Lays the original bytes of a probe at `place` over `out`, which is the text from `start` on.
    fn restore(&self, place: CodeAddr, start: CodeAddr, out: &mut [u8]) {
        let Some(point) = self.probes.places.at(place, self.hold) else { return };
        if !point.text.is_planted() {
            return;
        }
        for (index, byte) in point.saved.iter().take(H::Arch::breakpoint(place).len()).enumerate() {
            let offset = place.wrapping_add(index).as_usize().wrapping_sub(start.as_usize());
            if let Some(out) = out.get_mut(offset) {
                *out = *byte;
            }
        }
    }
}

/// Up to where the boundaries of one function's instructions are known: for places in ascending order each
/// instruction is looked at once.
pub(super) struct Boundaries {
    function: CodeAddr,
    /// The last one that was found.
    last: CodeAddr,
    window: [u8; WINDOW],
    window_start: CodeAddr,
    window_len: usize,
}

impl Boundaries {
    pub(super) const fn new() -> Self {
        let nowhere = CodeAddr::new(0);
        Self { function: nowhere, last: nowhere, window: [0; WINDOW], window_start: nowhere, window_len: 0 }
    }

    /// Checks that an instruction starts at `at`, seen from the start of the function.
    fn check<H: Host>(
        &mut self,
        text: &Pristine<'_, H>,
        function: &Function,
        at: CodeAddr,
    ) -> Result<(), RegisterError> {
        if self.function != function.start || self.last > at {
            let last = text.boundary_before(function.start, at);
            *self = Self { function: function.start, last, ..Self::new() };
        }
        while self.last < at {
            let last = self.last;
            let Some(len) = H::Arch::insn_len(last, self.bytes(text)).filter(|len| *len != 0) else {
                return Err(RegisterError::Undecodable { at, stuck: self.last });
            };
            let site = Site { at: last, function: Some((function.start, function.end)), text };
            let next = self.last.wrapping_add(len).wrapping_add(H::Arch::data_behind(&site, len));
            if next > at {
                return Err(RegisterError::InsideInstruction { at, start: self.last });
            }
            self.last = next;
        }
        // The function's first byte by an address of another instruction set lies before its start.
        if self.last == at { Ok(()) } else { Err(RegisterError::InsideInstruction { at, start: self.last }) }
    }

    /// The text from the last boundary on, as much as the longest instruction has.
    fn bytes<H: Host>(&mut self, text: &Pristine<'_, H>) -> &[u8] {
        let wanted = H::Arch::MAX_INSN_LEN.min(WINDOW);
        let offset = self.last.as_usize().wrapping_sub(self.window_start.as_usize());
        let offset = if offset.saturating_add(wanted) > self.window_len {
            self.window_len = text.read(self.last, &mut self.window);
            self.window_start = self.last;
            0
        } else {
            offset
        };
        let end = offset.saturating_add(wanted).min(self.window_len);
        self.window.get(offset..end).unwrap_or(&[])
    }
}

impl<H: Host> Probes<H> {
    /// Every place that a name stands for, in ascending order: for names that match several symbols (REG_2).
    pub fn candidates(&self, place: &Place) -> Vec<CodeAddr> {
        match &place.target {
            Target::Symbol { name, module } => {
                let functions = self.functions(name, module.as_deref()).unwrap_or_default();
                functions.iter().map(|function| function.start.wrapping_offset(place.offset)).collect()
            }
            Target::Address { at, .. } => alloc::vec![at.wrapping_offset(place.offset)],
        }
    }

    fn functions(&self, name: &str, module: Option<&str>) -> Result<Vec<Function>, RegisterError> {
        let mut found: Vec<Function> = Vec::new();
        let mut has_memory = true;
        self.host.find_symbols(name, &mut |symbol| {
            if module.is_some() && module != symbol.module {
                return;
            }
            if found.try_reserve(1).is_ok() {
                found.push(Function::of(symbol));
            } else {
                has_memory = false;
            }
        });
        if !has_memory {
            return Err(RegisterError::NoMemory);
        }
        found.sort_unstable_by_key(|function| (function.start, core::cmp::Reverse(function.end)));
        found.dedup_by_key(|function| function.start);
        Ok(found)
    }

    fn function_at(&self, at: CodeAddr) -> Option<Function> {
        let mut found = None;
        self.host.symbol_at(at, &mut |symbol| found = Some(Function::of(symbol)));
        found
    }

    /// Finds the place, and asks the host whether it may be probed. `wants_entry`: only a function's entry
    /// will do.
    ///
    /// Called without the lock, which it takes only while it looks at text. The host's answers may be slow,
    /// call probed functions, and take locks of the program (the loader's) that a thread which waits for our
    /// lock may hold (in a constructor that registers). It is in no section either, in which hits of
    /// functions that the host calls would count as nested.
    pub(super) fn resolve(&self, place: &Place, wants_entry: bool) -> Result<Resolved, RegisterError> {
        let (at, function, is_checked) = match &place.target {
            Target::Symbol { name, module } => {
                let function = self.one_function(name, module.as_deref())?;
                (self.inside(function, place.offset, name)?, Some(function), true)
            }
            Target::Address { at, is_checked } => {
                let moved = at.as_usize().checked_add_signed(place.offset).map(CodeAddr::new);
                let outside = || RegisterError::OutsideSymbol {
                    name: format!("{at}").into(),
                    offset: place.offset,
                    len_bytes: 0,
                };
                let at = moved.ok_or_else(outside)?;
                (at, self.function_at(at), *is_checked)
            }
        };
        let at = self.adjust(at, function, wants_entry, is_checked)?;
        match self.host.probeable(at) {
            Probeable::Yes => {}
            Probeable::NotText => return Err(RegisterError::NotText(at)),
            Probeable::Blacklisted => return Err(RegisterError::Blacklisted(at)),
            Probeable::Refused(refusal) => return Err(RegisterError::Refused { at, refusal }),
        }
        if function.is_none() && is_checked {
            return Err(RegisterError::NoSymbolCovers(at));
        }
        if H::Arch::first_byte(at).as_usize() % H::Arch::INSN_ALIGN != 0 {
            return Err(RegisterError::Misaligned(at));
        }
        if wants_entry && let Arrival::NotCalled(refusal) = self.arrival(at) {
            return Err(RegisterError::NotCalled { at, refusal });
        }
        Ok(Resolved { at, function, is_checked })
    }

    /// How control arrives at a function's entry (REG_19): by the host's answer, else by the symbol's name.
    /// If the backend has no power of calls, never in a way that can be followed.
    fn arrival(&self, at: CodeAddr) -> Arrival {
        if H::Arch::CALLS.is_none() {
            return Arrival::NotCalled(NO_CALLS);
        }
        let mut arrival = self.host.arrival(at);
        if arrival == Arrival::Unknown {
            self.host.symbol_at(at, &mut |symbol| arrival = Arrival::by_name(symbol.name));
        }
        arrival
    }

    fn one_function(&self, name: &str, module: Option<&str>) -> Result<Function, RegisterError> {
        let functions = self.functions(name, module)?;
        match functions.as_slice() {
            [] => Err(RegisterError::NoSymbol(name.into())),
            [one] => Ok(*one),
            several => Err(RegisterError::Ambiguous {
                name: name.into(),
                candidates: several.iter().map(|function| function.start).collect(),
            }),
        }
    }

    /// The address `offset` bytes into a function (REG_5).
    fn inside(&self, function: Function, offset: isize, name: &str) -> Result<CodeAddr, RegisterError> {
        let len_bytes = function.end.as_usize().wrapping_sub(function.start.as_usize());
        let outside = || RegisterError::OutsideSymbol { name: name.into(), offset, len_bytes };
        let distance = usize::try_from(offset).map_err(|_| outside())?;
        let at = function.start.checked_add(distance).ok_or_else(outside)?;
        let is_inside = if len_bytes == 0 && distance != 0 {
            // The table does not say how long it is; the symbol that covers the address does.
            self.function_at(at).is_some_and(|other| other.start == function.start)
        } else {
            distance == 0 || distance < len_bytes
        };
        if is_inside { Ok(at) } else { Err(outside()) }
    }

    /// Moves a function's entry past the instructions that not every caller runs through (REG_17).
    fn adjust(
        &self,
        at: CodeAddr,
        function: Option<Function>,
        wants_entry: bool,
        is_checked: bool,
    ) -> Result<CodeAddr, RegisterError> {
        let Some(function) = function else { return Ok(at) };
        let distance = at.as_usize().wrapping_sub(function.start.as_usize());
        if distance != 0 && !wants_entry {
            return Ok(at);
        }
        let lock = self.lock();
        let text = Pristine::new(self, lock.hold());
        let entry = H::Arch::entry_offset(&text, function.start, function.local_entry);
        let is_entry = distance <= entry
            || wants_entry
                && H::Arch::CALLS
                    .is_some_and(|calls| distance <= calls.entry_end(&text, function.start, entry));
        match (wants_entry, is_entry) {
            (true, true) => Ok(function.start.wrapping_add(entry)),
            (true, false) if is_checked => Err(RegisterError::NotEntry(at)),
            (false, true) if is_checked => Ok(function.start.wrapping_add(entry)),
            _ => Ok(at),
        }
    }

    /// Checks the boundary and decodes.
    pub(super) fn decode(
        &self,
        hold: &Hold,
        boundaries: &mut Boundaries,
        resolved: &Resolved,
    ) -> Result<(DecodedOf<H>, Insn), RegisterError> {
        let at = resolved.at;
        let text = Pristine::new(self, hold);
        if let (Some(function), true) = (&resolved.function, resolved.is_checked) {
            boundaries.check(&text, function, at)?;
        }
        let mut insn = [0; 16];
        let wanted = H::Arch::MAX_INSN_LEN.clamp(H::Arch::breakpoint(at).len(), insn.len());
        let read = text.read(at, &mut insn[..wanted]);
        if read < H::Arch::breakpoint(at).len() {
            return Err(RegisterError::NotText(at));
        }
        if H::Arch::is_breakpoint(at, &insn[..read]) {
            return Err(RegisterError::ForeignBreakpoint(at));
        }
        let function = resolved.function.map(|function| (function.start, function.end));
        let site = Site { at, function, text: &text };
        let decoded = H::Arch::decode(&site).map_err(|refusal| RegisterError::Refused { at, refusal })?;
        if usize::from(decoded.len_bytes) > read || decoded.len_bytes == 0 {
            return Err(RegisterError::NotText(at));
        }
        Ok((decoded, insn))
    }
}
