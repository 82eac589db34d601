//! The backends' verdicts on the instructions of a file.

use super::elf::ObjectFile;
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Method, Site, Text};
use probe_core::dry_run::{BranchTargets, displaced_by_jump, post_by_jump};
use probe_core::error::Refusal;

/// The text of a file.
struct FileText<'a>(&'a ObjectFile);

impl Text for FileText<'_> {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        self.0.read(at.as_usize() as u64, out)
    }
}

/// One instruction and the verdict on it.
pub(super) struct Verdict {
    /// Where it is.
    pub(super) addr: usize,
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// How a breakpoint's probe executes it, or why there can be none.
    pub(super) outcome: Result<Method, Refusal>,
    /// Whether a jump can stand there in place of a breakpoint, or why not.
    pub(super) jump: Result<(), Refusal>,
    /// Why a post handler takes the jump away.
    pub(super) no_post: Option<Refusal>,
}

/// How the functions of one object are judged: by the backend for its machine.
pub(super) type Judge = fn(&ObjectFile, usize, usize) -> Vec<Verdict>;

/// Judges every instruction from `start` to `end`.
pub(super) fn walk<A: Arch>(object: &ObjectFile, start: usize, end: usize) -> Vec<Verdict> {
    let text = FileText(object);
    let function = Some((CodeAddr::new(start), CodeAddr::new(end)));
    let (mut addr, mut verdicts) = (start, Vec::new());
    let mut targets = BranchTargets::new();
    let sequences = object.sequences();
    while addr < end {
        let mut bytes = vec![0; A::MAX_INSN_LEN.min(end - addr)];
        let len = text.read(CodeAddr::new(addr), &mut bytes);
        bytes.truncate(len);
        let known = A::insn_len(CodeAddr::new(addr), &bytes).filter(|&len| len > 0 && len <= bytes.len());
        bytes.truncate(known.unwrap_or(A::INSN_ALIGN).min(bytes.len()));
        let site = Site { at: CodeAddr::new(addr), function, text: &text };
        let decoded = A::decode(&site);
        let no_post =
            decoded.as_ref().ok().and_then(|decoded| post_by_jump::<A>(decoded.method, &decoded.plan).err());
        let forbidden = |at: usize| {
            let len = |text: &FileText<'_>| {
                let mut bytes = [0; 16];
                let read = text.read(CodeAddr::new(at), &mut bytes);
                A::insn_len(CodeAddr::new(at), &bytes[..read])
            };
            sequences.refusal(at as u64, || len(&text)).map_or(Ok(()), Err)
        };
        let outcome = forbidden(addr).and(decoded.map(|decoded| decoded.method));
        let jump = displaced_by_jump::<A>(&mut targets, &site)
            .and_then(|displaced| displaced.starts().try_for_each(|start| forbidden(addr + start)));
        let step = bytes.len();
        verdicts.push(Verdict { addr, bytes, outcome, jump, no_post });
        if step == 0 {
            break;
        }
        addr += step;
    }
    verdicts
}
