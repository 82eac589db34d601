//! The same state before, the same state after, with and without a probe: for every vector that is not
//! refused.

use crate::classes;
use crate::coverage::{Coverage, LEAST_STATES};
use crate::machine::{Core, Floats, Machine, Outcome};
use crate::shared::machine::{Own, Run};
use crate::shared::states::{self, Random, Values, Vector, runs_of};
use probe_arch_riscv64::{Condition, Plan, PtRegs, Riscv64};
use probe_core::arch::Method;
use std::collections::BTreeMap;

classes! { Plan:
    Plan::Nop { .. } => "nop" Simulate,
    Plan::Address { .. } => "auipc" Simulate,
    Plan::Jump { rd: 0, .. } => "j" Simulate,
    Plan::Jump { .. } => "jal" Simulate,
    Plan::JumpRegister { rd: 0, .. } => "jr" Simulate,
    Plan::JumpRegister { .. } => "jalr" Simulate,
    Plan::Branch { condition: Condition::Equal, .. } => "beq" Simulate,
    Plan::Branch { condition: Condition::NotEqual, .. } => "bne" Simulate,
    Plan::Branch { condition: Condition::Less, .. } => "blt" Simulate,
    Plan::Branch { condition: Condition::GreaterOrEqual, .. } => "bge" Simulate,
    Plan::Branch { condition: Condition::Below, .. } => "bltu" Simulate,
    Plan::Branch { condition: Condition::AboveOrEqual, .. } => "bgeu" Simulate,
    Plan::OutOfLine => "out of line" Boost,
    Plan::SystemCall => "ecall" Boost,
}

/// The rows of the vectors that may be probed.
fn vectors() -> Vec<Vector> {
    states::vectors(include_str!("../../../tests/vectors/riscv64.txt"))
}

/// `value`, unless this test's own text or data may lie there: a jump to it would go on there.
fn elsewhere(value: u64) -> u64 {
    if (1 << 16..1 << 40).contains(&value) { value | 1 << 45 } else { value }
}

/// An offset of 12 bits, and eight vector registers.
const FURTHEST_LOAD: usize = 4096;
const ARENA: usize = Core::ARENA;
const DATA: usize = Core::DATA;

fn state(machine: &Machine, random: &mut Random, values: Values) -> PtRegs {
    let mut regs = PtRegs::default();
    for x in &mut regs.x1_to_x31 {
        *x = match values {
            Values::Anything => elsewhere(random.value()),
            Values::Data => {
                (machine.data() + DATA / 4 + random.below(DATA / 2)) as u64 & !(random.next() & 15)
            }
            // Not so near that a load reads the place, where a breakpoint stands.
            Values::Code => {
                let at = machine.arena() + ARENA / 4 + random.below(ARENA / 2);
                let is_near = at.abs_diff(machine.place()) < FURTHEST_LOAD;
                (if is_near { at + 2 * FURTHEST_LOAD } else { at }) as u64
            }
        };
    }
    regs
}

fn floats(random: &mut Random) -> Floats {
    // A narrower value is boxed in ones; else it is a NaN.
    let boxed = [0, !0 << 16, !0 << 32];
    let values = core::array::from_fn(|_| random.value() | boxed[random.below(3)]);
    // Rounding modes 0 to 4.
    (values, (random.below(5) << 5 | random.below(32)) as u32)
}

/// What two executions differ in by themselves, or what would end the test.
fn is_left_out(vector: &Vector) -> bool {
    let out = ["varies", "not executed"];
    out.iter().any(|reason| vector.note.contains(reason))
}

/// Which system call; and no jump into the instruction itself.
fn adjust(machine: &Machine, plan: &Plan, regs: &mut PtRegs, random: &mut Random) {
    match *plan {
        // getpid, and a number that does not exist.
        Plan::SystemCall => regs.set_x(17, if random.next() & 1 == 0 { 172 } else { 5000 }),
        Plan::JumpRegister { rs1, offset, .. } => {
            let place = machine.place() as u64;
            let target = regs.x(rs1).wrapping_add_signed(i64::from(offset));
            if (place - 4..place + 6).contains(&target) {
                regs.set_x(rs1, regs.x(rs1).wrapping_add(16));
            }
        }
        _ => {}
    }
}

fn compare(vector: &Vector, start: &PtRegs, run: Run, bare: &Outcome, probed: &Outcome) {
    let Vector { word, asm, .. } = vector;
    if bare == probed {
        return;
    }
    let mut differences = Vec::new();
    let pairs = (1..32).map(|number| (number, bare.regs.x(number), probed.regs.x(number)));
    for (number, a, b) in pairs.filter(|(_, a, b)| a != b) {
        differences.push(format!("x{number} {a:#x} {b:#x}"));
    }
    for (number, (a, b)) in bare.frame.0.iter().zip(probed.frame.0).enumerate().filter(|(_, (a, b))| *a != b)
    {
        differences.push(format!("f{number} {a:#x} {b:#x}"));
    }
    let named = [
        ("signal", bare.signal as u64, probed.signal as u64),
        ("pc", bare.regs.pc, probed.regs.pc),
        ("fcsr", bare.frame.1.into(), probed.frame.1.into()),
    ];
    for (name, a, b) in named.into_iter().filter(|(_, a, b)| a != b) {
        differences.push(format!("{name} {a:#x} {b:#x}"));
    }
    if bare.after != probed.after {
        differences.push("vectors".into());
    }
    let bytes = bare.data.iter().zip(&probed.data).enumerate();
    for (at, (a, b)) in bytes.filter(|(_, (a, b))| a != b).take(8) {
        differences.push(format!("data+{at:#x} {a:#x} {b:#x}"));
    }
    panic!("{asm} ({word:#010x}) {run:?} from {start:#x?}:\nunprobed, probed: {differences:#?}");
}

/// Runs `vector` from `count` states in each way, and compares; returns whether the core has the instruction.
fn check(machine: &Machine, vector: &Vector, count: usize, coverage: &mut Coverage) -> bool {
    let (plan, method) = Riscv64::classify(vector.word).expect("not refused");
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(vector.word));
    let data: Vec<u8> = (0..DATA).map(|_| random.next() as u8).collect();
    let mut starts = Vec::new();
    machine.prepare(vector.word, Run::Bare);
    for _ in 0..count {
        let values = [Values::Anything, Values::Data, Values::Code][random.below(3)];
        let mut start = state(machine, &mut random, values);
        adjust(machine, &plan, &mut start, &mut random);
        let floats = floats(&mut random);
        let bare = machine.run(&start, &floats, &data);
        // Whether it exists does not depend on the registers, but for a rounding mode or a vector type.
        if bare.signal == libc::SIGILL && bare.regs.pc == machine.place() as u64 {
            return false;
        }
        starts.push((start, floats, bare));
    }
    for (run, way) in runs_of(method) {
        machine.prepare(vector.word, *run);
        for (start, floats, bare) in &starts {
            compare(vector, start, *run, bare, &machine.run(start, floats, &data));
        }
        coverage.add(class(&plan), *way, starts.len());
    }
    true
}

/// The class of a row, and its method.
fn class_of(vector: &Vector) -> (&'static str, Method) {
    let (plan, method) = Riscv64::classify(vector.word).expect("not refused");
    (class(&plan), method)
}

#[test]
fn hit_11_every_class_behaves_as_on_hardware() {
    let machine = Machine::new(0);
    let vectors = vectors();
    let (out, run): (Vec<_>, Vec<_>) = vectors.iter().partition(|vector| is_left_out(vector));
    let mut rows = BTreeMap::new();
    for vector in &run {
        *rows.entry(class_of(vector).0).or_insert(0_usize) += 1;
    }
    let (mut coverage, mut executed) = (Coverage::new(CLASSES), 0);
    for vector in &run {
        let (class, method) = class_of(vector);
        // What is simulated has more to get wrong than what is executed as it is.
        let least = if method == Method::Simulate { 400 } else { 60 };
        if check(&machine, vector, LEAST_STATES.div_ceil(rows[class]).max(least), &mut coverage) {
            executed += 1;
        } else {
            println!("not on this core: {} ({})", vector.asm, vector.note);
        }
    }
    for vector in out {
        println!("not executed: {} ({})", vector.asm, vector.note);
    }
    assert!(executed * 4 > run.len() * 3, "only {executed} of {} rows", run.len());
    coverage.finish(&[]);
}

/// `word` with other registers and immediates: what tells a class from the next one stays, most often.
fn generated(word: u32, random: &mut Random) -> u32 {
    let fields = match (word & 3 == 3, random.below(3)) {
        // rd, rs1, rs2; a compressed one's registers and immediates.
        (true, 0) => 0x01ff_8f80,
        // And the immediate of I and U.
        (true, 1) => 0xfff0_0f80,
        (true, _) => 0x000f_8f80,
        (false, 0) => 0x1ffc,
        (false, _) => 0x0ffc,
    };
    word & !fields | random.next() as u32 & fields
}

/// Generated encodings: those that are not refused behave probed as bare, also those that do not exist.
///
/// `PROBE_GENERATE=100000` runs more, `PROBE_GENERATE_SEED` others.
#[test]
fn hit_11_generated_encodings_behave_as_on_hardware() {
    let (count, seed) = states::to_generate(1000);
    let machine = Machine::new(0);
    let rows: Vec<_> = vectors().into_iter().filter(|vector| !is_left_out(vector)).collect();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut coverage, mut refused, mut executed) = (Coverage::new(CLASSES), BTreeMap::new(), 0);
    for _ in 0..count {
        let row = &rows[random.below(rows.len())];
        let word = generated(row.word, &mut random);
        match Riscv64::classify(word) {
            // System calls: which one would be anything.
            Ok((Plan::SystemCall, _)) => {}
            // What counts, counts on.
            Ok(_) if is_counter(word) => {}
            // A jump to itself, or into its own second half.
            Ok((Plan::Jump { offset: -2..4, .. } | Plan::Branch { offset: -2..4, .. }, _)) => {}
            Ok(_) => {
                let vector = Vector { word, asm: row.asm, note: "generated" };
                executed += u64::from(check(&machine, &vector, 6, &mut coverage));
            }
            Err(refusal) => *refused.entry(refusal.code).or_insert(0_u64) += 1,
        }
    }
    println!("{count} encodings from seed {seed}: {executed} executed, refused: {refused:?}");
    assert!(executed > count / 2, "only {executed} of {count}");
}

/// Whether it reads `cycle` to `hpmcounter31`, or entropy.
fn is_counter(word: u32) -> bool {
    word & 0x7f == 0x73 && (matches!(word >> 20, 0xc00..0xc20) || word >> 20 == 0x015)
}

/// What faults in a slot is reported at the place, with the registers as they were.
#[test]
fn hit_9_a_fault_in_a_slot_is_one_at_the_place() {
    let machine = Machine::new(0);
    // c.lw a0, 0(a0); ld a0, 8(a0); sd a1, 8(a0); amoadd.d a0, a2, (a0); fld fa0, 8(a0)
    for word in [0x4108, 0x0085_3503, 0x00b5_3423, 0x00c5_352f, 0x0085_3507] {
        let start = PtRegs { x1_to_x31: [0x10; 31], ..PtRegs::default() };
        let outcome = |run| {
            machine.prepare(word, run);
            machine.run(&start, &([0; 32], 0), &[0; DATA])
        };
        let bare = outcome(Run::Bare);
        assert_eq!((bare.signal, bare.regs.pc), (libc::SIGSEGV, machine.place() as u64));
        for run in [Run::Probed, Run::ProbedWithPost] {
            assert_eq!(outcome(run), bare, "{word:#x} {run:?}");
        }
    }
}
