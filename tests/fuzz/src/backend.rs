//! A backend on any bytes: deciding, building a slot, simulating, displacing.

use probe_core::CodeAddr;
use probe_core::arch::{
    Access, Arch, Calls, DetourCalls, Jumps, MemFault, Memory, Method, Regs, Site, Tail, Text,
};
use std::cell::Cell;

macro_rules! targets {
    ($($variant:ident $bits:literal $name:literal $machine:literal $is_big:literal $arch:ty;)*) => {
        /// A target for each backend, by the bits of its addresses. Slots end in a word of the machine that
        /// they are built on: those of 64-bit architectures need one.
        pub(crate) const TARGETS: &[(u32, crate::Target)] = &[$(($bits, (stringify!($variant), check::<$arch>))),*];
    };
}
probe_arch_native::for_each_backend!(targets);

/// Where the text begins. Below 4 GiB, for i386.
const TEXT: usize = 0x1040_0000;
/// How many bytes of an input are not text: registers, distances, flags.
const HEAD: usize = 16;

/// Text from [`TEXT`] on, and memory that answers every read from what the input says, or faults.
struct World<'a> {
    text: &'a [u8],
    seed: u64,
    /// The access with this number faults; counted down.
    faults_at: Cell<u32>,
    has_written: Cell<bool>,
}

impl Text for World<'_> {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let from = at.as_usize().checked_sub(TEXT).and_then(|offset| self.text.get(offset..)).unwrap_or(&[]);
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}

impl World<'_> {
    fn access(&self, addr: usize, access: Access) -> Result<(), MemFault> {
        match self.faults_at.get() {
            1 => Err(MemFault { addr, access }),
            more => {
                self.faults_at.set(more.saturating_sub(1));
                Ok(())
            }
        }
    }
}

// SAFETY: no memory is touched.
unsafe impl Memory for World<'_> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        self.access(addr, Access::Read)?;
        for (index, byte) in out.iter_mut().enumerate() {
            let mixed = (addr as u64).wrapping_add(index as u64).wrapping_mul(self.seed | 1);
            *byte = (mixed >> 24) as u8;
        }
        Ok(())
    }

    fn write(&self, addr: usize, _: &[u8]) -> Result<(), MemFault> {
        self.access(addr, Access::Write)?;
        self.has_written.set(true);
        Ok(())
    }
}

/// What the registers say to somebody who may only look.
fn shown<R: Regs>(regs: &R) -> Vec<usize> {
    let named = (0..R::names().len()).map(|index| regs.register(index).unwrap_or(0));
    named.chain([regs.pc().as_usize(), regs.sp()]).collect()
}

fn check<A: Arch>(data: &[u8])
where
    A::Regs: Default,
{
    let Some((head, text)) = data.split_first_chunk::<HEAD>() else { return };
    let seed = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
    let place_offset = (usize::from(head[8]) % text.len().max(1)) & !(A::INSN_ALIGN - 1);
    let place = CodeAddr::new(TEXT + place_offset);
    let end = CodeAddr::new(TEXT + text.len());
    let function = [None, Some((CodeAddr::new(TEXT), end)), Some((place, end))][usize::from(head[9]) % 3];
    let faults_at = Cell::new(u32::from(head[10]) % 4);
    let world = World { text, seed, faults_at, has_written: Cell::new(false) };
    let site = Site { at: place, function, text: &world };
    let here = &text[place_offset.min(text.len())..];
    let _ = A::is_breakpoint(place, here);
    if let Some(jumps) = A::JUMPS {
        let _ = jumps.branch_target(&here[..here.len().min(A::MAX_INSN_LEN)], place);
    }
    let offset = A::entry_offset(&world, place, head[11] & !3);
    assert_eq!(offset % A::INSN_ALIGN, 0);
    // Slots lie before and behind, near and as far as they may.
    let distance = u32::from_le_bytes(head[12..16].try_into().expect("four bytes")) as usize;
    let reach = A::SLOT_REACH.min(0x1000_0000);
    let slot = TEXT.wrapping_add(distance % (2 * reach)).wrapping_sub(reach) & !(A::SLOT_LEN - 1);
    decided::<A>(&site, here, CodeAddr::new(slot), &world);
    displaced::<A>(&site, here, distance);
}

/// What a decision promises: a length that is there and that the length decoder sees too, a slot with a tail
/// that one store switches, a simulation that changes nothing when it faults.
fn decided<A: Arch>(site: &Site<'_>, here: &[u8], slot: CodeAddr, world: &World<'_>)
where
    A::Regs: Default,
{
    let Ok(decoded) = A::decode(site) else { return };
    assert_eq!(A::decode(site).map(|again| again == decoded), Ok(true), "deciding twice");
    let len = usize::from(decoded.len_bytes);
    assert!(len > 0 && len <= A::MAX_INSN_LEN && len <= here.len(), "{decoded:?}");
    assert_eq!(A::insn_len(site.at, &here[..here.len().min(A::MAX_INSN_LEN)]), Some(len), "{decoded:?}");
    let (plan, place) = (&decoded.plan, site.at);
    let mut regs = A::Regs::default();
    A::CALLS.expect("it has calls").set_return_value(&mut regs, world.seed as usize);
    regs.set_pc(place);
    if decoded.method == Method::Simulate {
        assert!(!A::is_system_call(plan));
        let before = shown(&regs);
        if A::simulate(plan, place, &mut regs, world).is_err() {
            assert_eq!(shown(&regs), before, "a fault changes no register: {decoded:?}");
            assert!(!world.has_written.get(), "a fault changes no memory: {decoded:?}");
        }
        return;
    }
    let own = A::SLOT_LEN - size_of::<usize>();
    let insn = &here[..len];
    let filled = |tail| {
        let mut out = vec![0; own];
        A::fill_slot(plan, insn, place, slot, tail, &mut out).map(|()| out)
    };
    let Ok(trapping) = filled(Tail::Breakpoint) else { return };
    assert!(trapping.ends_with(A::BREAKPOINT) || trapping.len() < own, "ends in breakpoints: {decoded:?}");
    if decoded.method == Method::Boost {
        let jumping = filled(Tail::Jump).expect("it has a slot");
        let patched = |tail, mut slot_bytes: Vec<u8>| {
            if let Some(patch) = A::tail(plan, len, place, slot, tail) {
                let at = usize::from(patch.offset);
                let stored = &patch.bytes[..usize::from(patch.len_bytes)];
                slot_bytes[at..at + stored.len()].copy_from_slice(stored);
            }
            slot_bytes
        };
        assert!(A::tail(plan, len, place, slot, Tail::Breakpoint).is_some() || jumping == trapping);
        assert_eq!(patched(Tail::Jump, trapping.clone()), jumping, "{decoded:?}");
        assert_eq!(patched(Tail::Breakpoint, jumping), trapping, "{decoded:?}");
    } else {
        let before = shown(&regs);
        let state = A::before_step(plan, place, slot, &mut regs);
        assert_eq!(regs.pc(), slot);
        let mut aborted = regs;
        A::abort_step(plan, place, &mut aborted, &state);
        assert_eq!(shown(&aborted), before, "an aborted step leaves nothing: {decoded:?}");
        A::after_step(plan, len, place, slot, &mut regs, &state);
        assert_ne!(regs.pc(), slot, "{decoded:?}");
    }
}

/// What a jump needs: instructions that are there, and a detour that holds them.
fn displaced<A: Arch>(site: &Site<'_>, here: &[u8], distance: usize) {
    let Some(jumps) = A::JUMPS else { return };
    let Ok(displaced) = jumps.displace(site) else { return };
    let len = usize::from(displaced.len_bytes);
    assert!(len >= A::Jumps::JUMP_LEN && len <= here.len(), "{displaced:?}");
    let mut starts = displaced.starts();
    assert_eq!(starts.next(), Some(0));
    assert!(starts.all(|start| start < len));
    let from = site.at.wrapping_add(distance % 0x200_0000);
    let Some(entry) = jumps.detour_entry(site.at, &displaced, from) else { return };
    assert!(entry >= from);
    let jump = jumps.jump(site.at, entry);
    for start in displaced.starts().filter(|start| (1..A::Jumps::JUMP_LEN).contains(start)) {
        assert_eq!(jump[start], A::BREAKPOINT[0], "a jump traps where a displaced instruction starts");
    }
    let mut out = vec![0; A::Jumps::DETOUR_LEN];
    let trampoline = CodeAddr::new(TEXT + 0x10_0000);
    let calls = DetourCalls { trampoline, word: 0x1234_5678, post_word: None };
    if let Ok(layout) = jumps.fill_detour(&displaced, &here[..len], site.at, entry, &calls, &mut out) {
        assert!(usize::from(layout.len_bytes) <= A::Jumps::DETOUR_LEN);
        assert!(layout.back <= layout.len_bytes, "{layout:?}");
    }
}
