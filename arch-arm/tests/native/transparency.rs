//! The same state before, the same state after, with and without a probe: for every vector that is not
//! refused, in IT blocks and outside.

use crate::machine::{Floats, LEN, Machine, PLACE, SLOT, State, VISIBLE};
use probe_arch_arm::{Arm, Plan, PtRegs, Set};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Method, Regs, Tail};
use std::collections::BTreeMap;

/// A row of `tests/vectors/arm.txt`.
struct Vector {
    set: Set,
    word: u32,
    bytes: Vec<u8>,
    asm: &'static str,
    plan: Plan,
    method: Method,
}

impl Vector {
    fn new(set: Set, bytes: Vec<u8>, asm: &'static str) -> Option<Self> {
        let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let word = match (set, bytes.len()) {
            (Set::A32, _) => half(2) << 16 | half(0),
            (Set::T32, 2) => half(0),
            (Set::T32, _) => half(0) << 16 | half(2),
        };
        let (plan, method) = Arm::classify(set, word).ok()?;
        Some(Self { set, word, bytes, asm, plan, method })
    }

    /// The instruction `word`, made from that of a row.
    fn of(set: Set, word: u32, asm: &'static str) -> Option<Self> {
        let halves = |first: u32, second: u32| {
            let [[a, b, ..], [c, d, ..]] = [first.to_le_bytes(), second.to_le_bytes()];
            vec![a, b, c, d]
        };
        let bytes = match (set, word) {
            (Set::A32, _) => word.to_le_bytes().into(),
            (Set::T32, ..0xe800) => halves(word, 0)[..2].into(),
            (Set::T32, ..0x1_0000) => return None,
            (Set::T32, _) => halves(word >> 16, word),
        };
        Self::new(set, bytes, asm)
    }
}

/// The rows that may be probed; but for those that wait, that make a system call, and the counter of cycles,
/// which a process may not read.
fn vectors() -> Vec<Vector> {
    let lines = include_str!("../../../tests/vectors/arm.txt").lines();
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).filter_map(|line| {
        let columns: Vec<_> = line.split('|').map(str::trim).collect();
        let bytes = columns[0].split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
        let set = if columns[3].starts_with("T32") { Set::T32 } else { Set::A32 };
        Vector::new(set, bytes.collect(), columns[1])
    });
    let left_out = ["svc", "wfi", "wfe", "dbg", "mrrc", "mrc 15, 0, r0, cr9"];
    rows.filter(|vector| !left_out.iter().any(|name| vector.asm.starts_with(name))).collect()
}

/// The same numbers every time: xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }

    fn below(&mut self, count: u32) -> u32 {
        self.next() % count
    }

    /// An address that nothing is mapped at, of either set.
    fn nowhere(&mut self) -> u32 {
        (0x1000 + self.below(0x7000)) & !3 | self.below(2)
    }
}

/// The place as an address of code.
fn place(machine: &Machine, set: Set) -> CodeAddr {
    CodeAddr::new(machine.code + PLACE + usize::from(set == Set::T32))
}

/// CPSR: the mode of processes.
const USER_MODE: u32 = 0x10;

fn start(machine: &Machine, vector: &Vector, random: &mut Random) -> State {
    let mut regs = PtRegs { cpsr: USER_MODE | random.next() & 0xf80f_0000, ..PtRegs::default() };
    let kind = random.below(4);
    for number in 0..15 {
        let in_data = (machine.data + LEN / 2) as u32 + random.below(0x1000);
        regs.set_r(
            number,
            match kind {
                0 => random.nowhere(),
                1 => in_data,
                // A base and small numbers.
                2 if matches!(number, 1..=3 | 8) => random.below(64),
                _ => in_data & !7,
            },
        );
    }
    regs.set_pc(place(machine, vector.set));
    let d = core::array::from_fn(|_| u64::from(random.next()) << 32 | u64::from(random.next()));
    // The flags; the rounding mode.
    let fpscr = random.next() & 0xf0c0_0000;
    State { regs, floats: Floats { d, fpscr }, signal: 0 }
}

/// Breakpoints of the set, and addresses that nothing is mapped at.
fn background(set: Set, random: &mut Random) -> Vec<u8> {
    let breakpoint = Arm::breakpoint(CodeAddr::new(usize::from(set == Set::T32)));
    let mut bytes = breakpoint.repeat(LEN / breakpoint.len());
    bytes.extend((0..LEN / 4).flat_map(|_| random.nowhere().to_le_bytes()));
    bytes
}

/// The breakpoint that ends what goes to `at`, if that is in the code and not the instruction itself.
fn end(machine: &Machine, memory: &mut [u8], at: CodeAddr, len: usize) {
    let breakpoint = Arm::breakpoint(at);
    let offset = Arm::first_byte(at).as_usize().wrapping_sub(machine.code);
    if offset < LEN - 4 && !(PLACE - 4..PLACE + len).contains(&offset) {
        memory[offset..offset + breakpoint.len()].copy_from_slice(breakpoint);
    }
}

/// What a probed run has left: its name, the state, whether the instruction has faulted, the memory.
type Outcome = (&'static str, State, bool, Vec<u8>);

/// The simulated run. Behind the instruction, `memory` gets a breakpoint.
fn simulated(machine: &Machine, vector: &Vector, begin: &State, memory: &mut [u8]) -> Outcome {
    let place = place(machine, vector.set);
    machine.set_memory(memory);
    let mut dry = begin.regs;
    if Arm::simulate(&vector.plan, place, &mut dry, machine).is_ok() {
        end(machine, memory, dry.pc(), vector.bytes.len());
    }
    machine.set_memory(memory);
    let mut after = *begin;
    let fault = Arm::simulate(&vector.plan, place, &mut after.regs, machine).is_err();
    ("simulated", after, fault, machine.memory())
}

/// The run in a slot with this tail, if there is one.
///
/// # Errors
/// Where the slot has ended, if not at its tail.
fn slotted(
    machine: &Machine,
    vector: &Vector,
    plan: &Plan,
    (begin, memory): (&State, &[u8]),
    kind: Tail,
) -> Result<Option<Outcome>, String> {
    let (place, len) = (place(machine, vector.set), vector.bytes.len());
    let slot = Arm::same_set(CodeAddr::new(machine.code + SLOT), place);
    if kind == Tail::Jump && Arm::tail(plan, len, place, slot, kind).is_none() {
        return Ok(None);
    }
    let mut image = [0; Arm::SLOT_LEN - 4];
    Arm::fill_slot(plan, &vector.bytes, place, slot, kind, &mut image).expect("in reach");
    let mut with_slot = memory.to_vec();
    with_slot[SLOT..SLOT + image.len()].copy_from_slice(&image);
    machine.set_memory(&with_slot);
    let mut before = *begin;
    let kept = Arm::before_step(plan, place, slot, &mut before.regs);
    let mut after = machine.run(&before);
    let tail = Arm::tail(plan, len, place, slot, Tail::Breakpoint).expect("always");
    let fault = after.signal != libc::SIGTRAP;
    if fault {
        Arm::abort_step(plan, place, &mut after.regs, &kept);
    } else if kind == Tail::Breakpoint {
        let want = slot.wrapping_add(usize::from(tail.offset));
        if after.regs.pc() != want {
            return Err(format!("the slot ended at {} instead of {want}", after.regs.pc()));
        }
        Arm::after_step(plan, len, place, slot, &mut after.regs, &kept);
    }
    let mut changed = machine.memory();
    changed[SLOT..SLOT + image.len()].copy_from_slice(&memory[SLOT..SLOT + image.len()]);
    Ok(Some((if kind == Tail::Jump { "boosted" } else { "stepped" }, after, fault, changed)))
}

/// One comparison.
///
/// # Errors
/// What differs.
fn compare(machine: &Machine, vector: &Vector, random: &mut Random, it_state: u8) -> Result<(), String> {
    let Vector { set, bytes, plan, method, .. } = vector;
    let mut begin = start(machine, vector, random);
    begin.regs.set_it_state(it_state);
    let mut memory = background(*set, random);
    memory[PLACE..PLACE + bytes.len()].copy_from_slice(bytes);
    let mut outcomes = Vec::new();
    if *method == Method::Simulate {
        outcomes.push(simulated(machine, vector, &begin, &mut memory));
    } else {
        let in_block = Plan::OutOfLine { may_be_in_it: true };
        let plan = if it_state != 0 && matches!(plan, Plan::OutOfLine { .. }) { &in_block } else { plan };
        for kind in [Tail::Breakpoint, Tail::Jump] {
            outcomes.extend(slotted(machine, vector, plan, (&begin, &memory), kind)?);
        }
    }
    machine.set_memory(&memory);
    let bare = machine.run(&begin);
    let bare_memory = machine.memory();
    // A fault that the instruction raises leaves it where it is; where it goes, another one may end the run.
    let bare_faults = bare.signal != libc::SIGTRAP && bare.regs.pc() == place(machine, *set);
    let shown = |state: &State| {
        let regs = PtRegs { cpsr: state.regs.cpsr & VISIBLE, ..state.regs };
        (regs, state.floats)
    };
    for (name, after, fault, changed) in outcomes {
        if fault != bare_faults || shown(&after) != shown(&bare) {
            let floats = if after.floats == bare.floats { "" } else { ", floating point differs" };
            return Err(format!(
                "{name}: {:x?} fault {fault}{floats}\n  bare: {:x?} signal {}\n  from: {:x?}",
                after.regs, bare.regs, bare.signal, begin.regs
            ));
        }
        if changed != bare_memory {
            return Err(format!("{name}: memory differs"));
        }
    }
    Ok(())
}

/// Whether it may stand in an IT block, as its last instruction.
fn may_be_in_it(vector: &Vector) -> bool {
    let conditional = ["beq", "bne", "bgt"];
    vector.set == Set::T32
        && !matches!(vector.plan, Plan::If { .. } | Plan::CompareBranch { .. })
        && !conditional.iter().any(|name| vector.asm.starts_with(name))
}

/// Runs every vector `count` times, in states of `it_states`.
fn run_all(seed: u64, count: usize, filter: fn(&Vector) -> bool, it_state: impl Fn(&mut Random) -> u8) {
    let machine = Machine::new();
    let mut random = Random(seed);
    let mut wrong = BTreeMap::new();
    let vectors: Vec<_> = vectors().into_iter().filter(filter).collect();
    assert!(vectors.len() > 150, "{}", vectors.len());
    for vector in &vectors {
        for _ in 0..count {
            let state = it_state(&mut random);
            if let Err(why) = compare(&machine, vector, &mut random, state) {
                wrong.entry(format!("{:?} {} (IT {state:02x})", vector.set, vector.asm)).or_insert(why);
            }
        }
    }
    let shown: Vec<_> = wrong.iter().take(12).map(|(name, why)| format!("{name}\n  {why}")).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), vectors.len(), shown.join("\n"));
}

/// The bits of an instruction that other operands have: registers and immediates, but not what a load or a
/// store adds to its base, or shifts: any address would come of it.
fn operands(set: Set, word: u32) -> u32 {
    match (set, word) {
        (Set::A32, _) => match word >> 25 & 0b111 {
            // Multiplication, extra loads and stores; these by a register.
            0b000 if word & 0x90 == 0x90 => 0x000f_f000,
            0b000 if word & 0x0190_0000 != 0x0100_0000 => 0x000f_ffef,
            0b001 | 0b010 => 0x000f_ffff,
            0b011 if word & 0x10 != 0 => 0x000f_ff0f,
            0b100 => 0x000f_ffff,
            0b101 => 0x00ff_fff0,
            0b111 if word >> 28 != 0xf => 0x000f_f00f,
            _ => 0x000f_f000,
        },
        (Set::T32, ..0x4800) => 0x00ff,
        (Set::T32, 0x5000..0x6000) => 0x003f,
        (Set::T32, 0x4800..0xa000 | 0xc000..0xd000 | 0xe000..0xe800) => 0x07ff,
        (Set::T32, ..0x1_0000) => 0x00ff,
        // Loads and stores by a register.
        (Set::T32, _) if word >> 25 == 0b111_1100 && word & 0x0fc0 == 0 => 0x000f_f000,
        (Set::T32, _) if word >> 25 == 0b111_1100 => 0x000f_f0ff,
        (Set::T32, _) if word >> 28 == 0xf && word & 0x8000 != 0 => 0x003f_07ff,
        (Set::T32, _) => 0x000f_7f0f,
    }
}

/// Whether the instruction ends where the machine sees it: not among its own bytes, nor in what else is
/// mapped.
fn is_contained(machine: &Machine, vector: &Vector, begin: &State) -> bool {
    let place = place(machine, vector.set);
    let mut after = begin.regs;
    if vector.method != Method::Simulate || Arm::simulate(&vector.plan, place, &mut after, machine).is_err() {
        return true;
    }
    let len = vector.bytes.len();
    let to = Arm::first_byte(after.pc()).as_usize();
    let from_code = to.wrapping_sub(machine.code);
    let is_near = to.abs_diff(machine.code) < 1 << 25;
    let is_within = (PLACE - 4..PLACE + len).contains(&from_code);
    !is_within && is_near && (from_code >= LEN || from_code + 4 <= LEN) || (0x1000..0x8000).contains(&to)
}

/// HIT_11: other registers and immediates than the vectors have; `PROBE_GENERATE` says how many.
#[test]
fn hit_11_generated_encodings_behave_as_on_hardware() {
    let wanted = std::env::var("PROBE_GENERATE").map_or(1000, |count| count.parse().expect("a number"));
    let (machine, mut random) = (Machine::new(), Random(0x0123_4567_89ab_cdef));
    let (vectors, mut wrong) = (vectors(), Vec::new());
    let (mut refused, mut executed) = (0, 0);
    for _ in 0..wanted {
        let row = &vectors[random.below(vectors.len() as u32) as usize];
        let fields = operands(row.set, row.word);
        let Some(vector) = Vector::of(row.set, row.word & !fields | random.next() & fields, row.asm) else {
            refused += 1;
            continue;
        };
        let state = if may_be_in_it(&vector) && random.below(4) == 0 { random.below(14) << 4 | 8 } else { 0 };
        let seed = random.0;
        let mut begin = start(&machine, &vector, &mut Random(seed));
        begin.regs.set_it_state(state as u8);
        if matches!(vector.plan, Plan::SystemCall { .. }) || !is_contained(&machine, &vector, &begin) {
            continue;
        }
        executed += 1;
        if let Err(why) = compare(&machine, &vector, &mut Random(seed), state as u8) {
            wrong.push(format!("{:?} {:#x}, from {}: {why}", vector.set, vector.word, vector.asm));
        }
        random.next();
    }
    println!("{executed} executed, {refused} refused, of {wanted}");
    let shown = wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {executed}:\n{shown}", wrong.len());
    assert!(executed * 2 > wanted, "{executed} of {wanted} were executed");
}

#[test]
fn hit_1_a_probed_instruction_leaves_what_the_bare_one_leaves() {
    run_all(0x2545_f491_4f6c_dd1d, 24, |_| true, |_| 0);
}

#[test]
fn hit_1_in_an_it_block_too() {
    let last = |random: &mut Random| (random.below(14) << 4 | 8) as u8;
    run_all(0x9e37_79b9_7f4a_7c15, 24, may_be_in_it, last);
}
