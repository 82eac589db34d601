//! Transparency: every instruction of the vector files that may be probed is executed on this processor, bare
//! and as a probe would execute it, from the same random states. Registers, flags, memory, the next address
//! and the signal are the same (HIT_1, HIT_3, HIT_9, HIT_11).
//!
//! Built for x86-64 it runs the 64-bit rows, for i686 the 32-bit ones.

#![cfg(any(target_arch = "x86_64", target_arch = "x86"))]

mod common;
#[path = "../../tests/transparency.rs"]
mod coverage;
mod native;

use common::Vector;
use coverage::{Coverage, LEAST_STATES, Way};
use native::arena::Arena;
use native::machine::{Machine, Outcome};
use native::state::{Pattern, Pointers, Random, registers};
use native::{Backend, Native};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Decoded, Regs, Site, Tail};
use probe_x86_decode::insn::{Map, Prefixes};
use probe_x86_decode::{Effect, FlagBits, Insn, LoopKind, Mode, Plan, Registers, Source, StackEffect};
#[cfg(target_arch = "x86")]
use std::arch::x86 as arch;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as arch;
use std::collections::BTreeMap;

type NativeMode = <Native as Registers>::Mode;

/// Where GS (64-bit) or FS (32-bit) begins in these tests: not at 0, so that a lost prefix is noticed.
const SEGMENT_BASE: usize = 0x100;
/// How many states a row is compared from, at least: more where a class has few rows.
const STATES: usize = 500;

classes! { Effect:
    Effect::Copy => "copy" Boost,
    Effect::IpRelative { .. } => "rip-relative" Boost,
    Effect::Ip32Relative { .. } => "eip-relative" Boost,
    Effect::SystemCall => "system call" Step,
    Effect::SegmentJump { .. } => "jmp through a segment" Step,
    Effect::SegmentCall { .. } => "call through a segment" Step,
    Effect::Nop => "nop" Simulate,
    Effect::Jump { .. } => "jmp" Simulate,
    Effect::Branch { .. } => "jcc" Simulate,
    Effect::Loop { kind: LoopKind::Loop, .. } => "loop" Simulate,
    Effect::Loop { kind: LoopKind::LoopEqual, .. } => "loope" Simulate,
    Effect::Loop { kind: LoopKind::LoopNotEqual, .. } => "loopne" Simulate,
    Effect::Loop { kind: LoopKind::JumpIfZero, .. } => "jcxz" Simulate,
    Effect::Call { .. } => "call" Simulate,
    Effect::JumpIndirect(Source::Register(_)) => "jmp register" Simulate,
    Effect::JumpIndirect(Source::Memory(_)) => "jmp memory" Simulate,
    Effect::CallIndirect(Source::Register(_)) => "call register" Simulate,
    Effect::CallIndirect(Source::Memory(_)) => "call memory" Simulate,
    Effect::Return { drops: 0 } => "ret" Simulate,
    Effect::Return { .. } => "ret imm" Simulate,
    Effect::Stack(StackEffect::Push(_)) => "push" Simulate,
    Effect::Stack(StackEffect::PushImmediate(_)) => "push imm" Simulate,
    Effect::Stack(StackEffect::Pop(_)) => "pop" Simulate,
    Effect::Stack(StackEffect::Leave) => "leave" Simulate,
    Effect::Stack(StackEffect::PushFlags(_)) => "pushf" Simulate,
    Effect::Stack(StackEffect::PopFlags(_)) => "popf" Simulate,
    Effect::Stack(StackEffect::DisableInterrupts) => "cli" Simulate,
    Effect::Stack(StackEffect::EnableInterrupts) => "sti" Simulate,
    Effect::MoveRegister { .. } => "mov register" Simulate,
    Effect::MoveImmediate { .. } => "mov imm" Simulate,
    Effect::LoadAddress { .. } => "lea" Simulate,
}

/// The classes that the native mode does not have.
fn absent() -> &'static [(&'static str, &'static str)] {
    const NO_IP: &str = "32-bit code has no addresses relative to EIP";
    if NativeMode::IS_LONG {
        return &[];
    }
    &[("rip-relative", NO_IP), ("eip-relative", NO_IP)]
}

struct Run {
    outcome: Outcome,
    data: Vec<u8>,
    stack: Vec<u8>,
}

struct Bench {
    arena: Arena,
    machine: Machine,
    /// Registers with this process's segments.
    segments: Native,
    pattern: Pattern,
}

#[test]
fn every_vector_behaves_as_on_hardware() {
    let file = if NativeMode::IS_LONG { common::X86_64 } else { common::I386 };
    let machine = Machine::take();
    let arena = Arena::new();
    let segments = segments(&arena, &machine);
    let pattern = Pattern::new(&arena, &mut Random::new(7));
    let bench = Bench { arena, machine, segments, pattern };
    let executable =
        |vector: &&Vector| !vector.plan.starts_with("refuse") && vector.note != "nondeterministic";
    let vectors = common::vectors(file);
    let mut rows = BTreeMap::new();
    for vector in vectors.iter().filter(executable) {
        *rows.entry(bench.class_of(vector)).or_insert(0_usize) += 1;
    }
    let mut coverage = Coverage::new(CLASSES);
    for (number, vector) in vectors.iter().enumerate().filter(|(_, vector)| executable(vector)) {
        let class = bench.class_of(vector);
        // A few more than wanted: a run that overwrites its own code is not counted.
        let states = (LEAST_STATES / rows[class] + LEAST_STATES / 10).max(STATES);
        bench.check(vector, number as u64, states, &mut coverage);
    }
    coverage.finish(absent());
}

impl Bench {
    fn class_of(&self, vector: &Vector) -> &'static str {
        class(&self.decode(&vector.bytes, self.arena.code()).plan.effect)
    }

    /// Compares a row from so many states; how often the bare run came to its end.
    fn compare(&self, vector: &Vector, seed: u64, states: usize, coverage: &mut Coverage) -> u64 {
        let mut random = Random::new(seed + 1);
        let mut taps = 0;
        let is_branch = vector.asm.contains("jmp") || vector.asm.contains("call");
        let pointers = if is_branch { Pointers::AlsoToCode } else { Pointers::ToData };
        for state in 0..states {
            // Any alignment, also across a cache line.
            let place = self.arena.code() + 0x800 + random.below(0x400);
            let insn = self.placed(&vector.bytes, place);
            let decoded = self.decode(&insn, place);
            let mut regs = registers(&self.arena, place, pointers, &mut random);
            self.choose(vector, &mut regs);
            let memory_seed = random.next();
            let bare = self.run(memory_seed, &insn, place, |bench| bench.machine.run(&regs));
            if self.is_code_overwritten(&insn, place) {
                continue;
            }
            taps += u64::from(bare.outcome.signal == libc::SIGTRAP);
            for way in Way::all(decoded.method) {
                let probed = self.run(memory_seed, &insn, place, |bench| {
                    // What a probe leaves in the text.
                    bench.arena.bytes(bench.arena.code())[place - bench.arena.code()] = 0xcc;
                    match way {
                        Way::Emulated => bench.simulate(&decoded.plan, place, regs, &bare.outcome),
                        Way::Boosted => bench.step(&decoded, &insn, place, regs, Tail::Jump),
                        Way::Stepped => bench.step(&decoded, &insn, place, regs, Tail::Breakpoint),
                    }
                });
                if is_not_canonical(&probed.outcome) {
                    assert_eq!(bare.outcome.signal, libc::SIGSEGV);
                    continue;
                }
                let told = format!("{} at {place:#x}, state {state}, {way:?}, from {regs:x?}", vector.asm);
                assert_eq!(comparable(probed.outcome), comparable(bare.outcome), "{told}");
                assert!(probed.data == bare.data, "data differs: {told}");
                let is_same_stack = probed.stack == bare.stack || self.differs_in_dead_word(&probed, &bare);
                assert!(is_same_stack, "stack differs: {told}");
                coverage.add(class(&decoded.plan.effect), *way, 1);
            }
        }
        taps
    }

    fn check(&self, vector: &Vector, seed: u64, states: usize, coverage: &mut Coverage) {
        let taps = self.compare(vector, seed, states, coverage);
        // The stack is not executable: the call is made, and its target faults.
        let is_into_stack = matches!(vector.bytes[..], [0xff, 0xd4]);
        // The first 64 KiB are not mapped.
        let is_16_bit_access = !NativeMode::IS_LONG && vector.bytes.iter().take(2).any(|byte| *byte == 0x67);
        let may_never_complete = is_into_stack
            || is_16_bit_access
            // LES and LDS: hardly a random selector is valid.
            || !NativeMode::IS_LONG && matches!(vector.bytes[..], [0xc4 | 0xc5, 0x08])
            || vector.note == "faults in a process"
            || is_missing(vector.asm)
            || is_privileged(&vector.bytes);
        assert!(taps > 0 || may_never_complete, "{} never completed", vector.asm);
    }

    /// A CALL that faults on its target may have written the word below the stack pointer; it is nobody's.
    fn differs_in_dead_word(&self, probed: &Run, bare: &Run) -> bool {
        let sp = bare.outcome.regs.sp().wrapping_sub(self.arena.stack());
        let dead = sp.wrapping_sub(NativeMode::WORD)..sp;
        let differ = |at: usize| probed.stack[at] != bare.stack[at];
        bare.outcome.signal != libc::SIGTRAP
            && (0..Arena::LEN).filter(|at| differ(*at)).all(|at| dead.contains(&at))
    }

    /// The row's bytes, with a displacement that no register is added to moved into the data region.
    fn placed(&self, bytes: &[u8], place: usize) -> Vec<u8> {
        let insn = Insn::parse::<NativeMode>(bytes).expect("a whole instruction");
        let mut placed = bytes.to_vec();
        let target = self.arena.data() + 0x808;
        if insn.map == Map::Primary && matches!(insn.opcode, 0xa0..=0xa3) {
            let at = usize::from(insn.modrm_at);
            let len = bytes.len() - at;
            placed[at..].copy_from_slice(&(target as u64).to_le_bytes()[..len]);
        }
        // What has 16 bits reaches no region.
        let is_16_bits = !NativeMode::IS_LONG && insn.has(Prefixes::ADDRESS_SIZE);
        let Some(modrm) = insn.modrm.filter(|modrm| modrm.mode() == 0 && !is_16_bits) else { return placed };
        let modrm_at = usize::from(insn.modrm_at);
        let is_memory = !matches!(insn.opcode, 0x8d | 0x1f);
        let (at, value) = if insn.is_ip_relative::<NativeMode>() {
            (modrm_at + 1, target.wrapping_sub(place + bytes.len()))
        } else if modrm.rm() == 5 && !NativeMode::IS_LONG {
            (modrm_at + 1, target - self.base_of(&insn))
        } else if modrm.rm() == 4 && bytes[modrm_at + 1] & 7 == 5 {
            (modrm_at + 2, target - self.base_of(&insn))
        } else {
            return placed;
        };
        if is_memory {
            placed[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
        }
        placed
    }

    fn base_of(&self, insn: &Insn) -> usize {
        let is_based = insn.has(Prefixes::FS_OR_GS);
        if is_based { SEGMENT_BASE } else { 0 }
    }

    fn decode(&self, insn: &[u8], place: usize) -> Decoded<Plan> {
        self.lay_out(insn, place);
        let site = Site { at: CodeAddr::new(place), function: None, text: &self.arena };
        Backend::decode(&site).expect("not refused")
    }

    /// Whether the last run has stored into the code region: what it executed then is anybody's guess.
    fn is_code_overwritten(&self, insn: &[u8], place: usize) -> bool {
        let found = self.arena.bytes(self.arena.code()).to_vec();
        self.lay_out(insn, place);
        found != *self.arena.bytes(self.arena.code())
    }

    fn lay_out(&self, insn: &[u8], place: usize) {
        let code = self.arena.bytes(self.arena.code());
        code.fill(0xcc);
        let offset = place - self.arena.code();
        code[offset..offset + insn.len()].copy_from_slice(insn);
    }

    /// Registers that a row needs: harmless system calls, segments.
    fn choose(&self, vector: &Vector, regs: &mut Native) {
        const AX: u8 = 0;
        match vector.bytes[..] {
            // getpid in the 64-bit and in the 32-bit table.
            [0x0f, 0x05] => regs.set_general(AX, 39),
            [0xcd, 0x80] => regs.set_general(AX, 20),
            _ => {}
        }
        regs.cs = self.segments.cs;
        regs.ss = self.segments.ss;
        #[cfg(target_arch = "x86")]
        {
            (regs.ds, regs.es) = (self.segments.ds, self.segments.es);
            (regs.fs, regs.gs) = (self.segments.fs, self.segments.gs);
        }
    }

    /// Fills memory from `seed`, lays the instruction out, executes, and keeps what memory is then.
    fn run(&self, seed: u64, insn: &[u8], place: usize, execute: impl FnOnce(&Self) -> Outcome) -> Run {
        self.pattern.fill(&self.arena, seed);
        self.lay_out(insn, place);
        // A branch may lead there, too.
        self.arena.bytes(self.arena.slots()).fill(0xcc);
        let outcome = execute(self);
        let data = self.arena.bytes(self.arena.data()).to_vec();
        let stack = self.arena.bytes(self.arena.stack()).to_vec();
        Run { outcome, data, stack }
    }

    /// What the core does for [`Method::Simulate`].
    fn simulate(&self, plan: &Plan, place: usize, mut regs: Native, bare: &Outcome) -> Outcome {
        let before = regs;
        match Backend::simulate(plan, CodeAddr::new(place), &mut regs, &self.arena) {
            Ok(()) => self.arrived(Outcome { regs, ..*bare }),
            Err(_) => {
                assert_eq!(regs, before, "a fault changes nothing");
                // A stack segment fault (#SS) is SIGBUS to a process; the memory access is the same.
                let is_fault = matches!(bare.signal, libc::SIGSEGV | libc::SIGBUS);
                Outcome { signal: if is_fault { bare.signal } else { libc::SIGSEGV }, regs, ..*bare }
            }
        }
    }

    /// What happens when a context goes on with these registers.
    fn arrived(&self, outcome: Outcome) -> Outcome {
        let pc = outcome.regs.pc().as_usize();
        let is_code =
            [self.arena.code(), self.arena.slots()].iter().any(|&at| (at..at + Arena::LEN).contains(&pc));
        Outcome { signal: if is_code { libc::SIGTRAP } else { libc::SIGSEGV }, ..outcome }
    }

    /// What the core does for [`Method::Boost`] and [`Method::Step`].
    fn step(
        &self,
        decoded: &Decoded<Plan>,
        insn: &[u8],
        place: usize,
        mut regs: Native,
        tail: Tail,
    ) -> Outcome {
        let (place, slot) = (CodeAddr::new(place), CodeAddr::new(self.arena.slots() + 32));
        let room = Backend::SLOT_LEN - size_of::<usize>();
        let slots = self.arena.bytes(self.arena.slots());
        slots.fill(0xcc);
        Backend::fill_slot(&decoded.plan, insn, place, slot, tail, &mut slots[32..32 + room]).unwrap();
        let state = Backend::before_step(&decoded.plan, place, slot, &mut regs);
        let mut outcome = self.machine.run(&regs);
        let end = slot.as_usize()..slot.as_usize() + Backend::SLOT_LEN;
        if end.contains(&outcome.regs.pc().as_usize()) {
            let len = usize::from(decoded.len_bytes);
            if outcome.signal == libc::SIGTRAP {
                assert_eq!(tail, Tail::Breakpoint, "a jump tail does not trap");
                Backend::after_step(&decoded.plan, len, place, slot, &mut outcome.regs, &state);
                outcome = self.arrived(outcome);
            } else {
                Backend::abort_step(&decoded.plan, place, &mut outcome.regs, &state);
            }
        }
        outcome
    }
}

/// A branch to where no code can be, told at the target instead of at the branch: the simulation lets
/// addresses of 57 bits be, and a slot that loads its target learns it too late. The context faults when it
/// is resumed.
fn is_not_canonical(outcome: &Outcome) -> bool {
    let pc = outcome.regs.pc().as_usize() as u64 as i64;
    NativeMode::IS_LONG && !matches!(pc >> 47, 0 | -1)
}

/// RF is set in the image of a fault and of nothing else: the processor's, not the instruction's.
fn comparable(mut outcome: Outcome) -> Outcome {
    outcome.regs.set_flags(outcome.regs.flags() & !FlagBits::RF);
    outcome
}

/// Instructions that this processor does not have.
fn is_missing(asm: &str) -> bool {
    #[allow(
        unused_unsafe,
        reason = "a safe function in newer versions of Rust than the oldest that we promise"
    )]
    // SAFETY: every processor that this runs on has CPUID.
    let features = unsafe { arch::__cpuid_count(7, 0) };
    let has = match asm.split(' ').next() {
        Some("movdir64b") => features.ecx >> 28,
        Some("serialize") => features.edx >> 14,
        // RTM.
        Some("xabort" | "xtest") => features.ebx >> 11,
        // AVX512BW, AVX512F.
        Some(name) if name.starts_with('k') => features.ebx >> 30,
        _ if asm.contains("zmm") => features.ebx >> 16,
        _ => 1,
    };
    has & 1 == 0
}

/// Instructions that a process may not execute.
fn is_privileged(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0xe6 | 0xec | 0xfa | 0xfb, ..]
            | [0x0f, 0x00 | 0x06 | 0x09 | 0x20..=0x23 | 0x30 | 0x32, ..]
            | [0x0f, 0x01, 0x38 | 0x10 | 0xca | 0xc1, ..]
            | [0x48, 0x0f, 0x22, ..]
    )
}

/// This process's segment registers, with one for the tests: GS (64-bit) or FS (32-bit) begins at
/// [`SEGMENT_BASE`].
fn segments(arena: &Arena, machine: &Machine) -> Native {
    arena.bytes(arena.code()).fill(0xcc);
    let mut regs = Native::default();
    regs.set_pc(CodeAddr::new(arena.code()));
    regs.set_flags(FlagBits::IF);
    #[cfg(target_arch = "x86_64")]
    {
        const ARCH_SET_GS: i32 = 0x1001;
        // SAFETY: nothing in a 64-bit Linux process uses GS.
        let done = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, SEGMENT_BASE) };
        assert_eq!(done, 0);
        machine.run(&regs).regs
    }
    #[cfg(target_arch = "x86")]
    {
        // struct user_desc: number (-1: any free one), base, limit, then 32-bit, pages, usable.
        let mut descriptor: [u32; 4] = [u32::MAX, SEGMENT_BASE as u32, 0xf_ffff, 0b101_0001];
        // SAFETY: a new descriptor of this thread; GS, which holds the thread pointer, keeps its own.
        let done = unsafe { libc::syscall(libc::SYS_set_thread_area, descriptor.as_mut_ptr()) };
        assert_eq!(done, 0);
        let mut regs = machine.run(&regs).regs;
        regs.fs = probe_arch_i386::regs::Segment::new(descriptor[0] as u16 * 8 + 3);
        regs
    }
}

mod generated {
    use super::native::generate;
    use super::native::sandbox::{self, Current};
    use super::*;
    use probe_x86_decode::decode::decode_bytes;

    /// Encodings of every map, prefix and addressing form, valid and not, from a seeded generator: what is
    /// decided is the length that the instruction has, what is not refused behaves as in place.
    ///
    /// `PROBE_GENERATE=1000000 cargo test --release -p probe-x86-decode --test transparency generated` is the
    /// long form; `PROBE_GENERATE_SEED` chooses others. In a child, whose end is looked at: what goes wrong
    /// may be anything.
    #[test]
    fn generated_encodings_behave_as_on_hardware() {
        let number = |name: &str, otherwise: u64| {
            std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
        };
        let (count, seed) = (number("PROBE_GENERATE", 4000), number("PROBE_GENERATE_SEED", 1));
        let machine = Machine::take();
        let current = Current::map();
        sandbox::run(&current, 60 + (count / 100) as u32, move || {
            let arena = Arena::new();
            let segments = segments(&arena, &machine);
            let pattern = Pattern::new(&arena, &mut Random::new(seed));
            let bench = Bench { arena, machine, segments, pattern };
            let mut coverage = Coverage::new(CLASSES);
            let mut random = Random::new(seed);
            let (mut refused, mut executed) = (BTreeMap::new(), 0_u64);
            for index in 0..count {
                let bytes = generate::encoding(&mut random);
                current.note(seed, index, &bytes);
                let decoded = match decode_bytes::<NativeMode>(&bytes) {
                    Ok(decoded) => decoded,
                    Err(refusal) => {
                        *refused.entry(refusal.code).or_insert(0_u64) += 1;
                        continue;
                    }
                };
                let bytes = bytes[..usize::from(decoded.len_bytes)].to_vec();
                let insn = Insn::parse::<NativeMode>(&bytes).expect("what is decided is whole");
                assert_eq!(insn.len_bytes, decoded.len_bytes);
                if !generate::may_run(&bytes, &insn) {
                    continue;
                }
                let is_indirect =
                    matches!(decoded.plan.effect, Effect::JumpIndirect(_) | Effect::CallIndirect(_));
                let asm = if is_indirect { "jmp or call" } else { "generated" };
                let bytes = generate::tame(bytes, &insn);
                if is_endless(&bytes) {
                    continue;
                }
                bench.compare(&Vector { bytes, asm, plan: "", note: "" }, index, 6, &mut coverage);
                executed += 1;
            }
            println!("{count} encodings from seed {seed}: {executed} executed, refused: {refused:?}");
            assert!(executed > count / 10, "only {executed} of {count}");
        });
    }

    /// A branch into itself: it may never end, and its bytes are others when it is probed.
    fn is_endless(bytes: &[u8]) -> bool {
        let Ok(decoded) = decode_bytes::<NativeMode>(bytes) else { return true };
        let displacement = match decoded.plan.effect {
            Effect::Jump { displacement } | Effect::Branch { displacement, .. } => displacement,
            Effect::Call { displacement } => displacement,
            Effect::Loop { displacement, .. } => i32::from(displacement),
            _ => return false,
        };
        (-i32::from(decoded.len_bytes)..0).contains(&displacement)
    }
}
