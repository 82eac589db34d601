//! The same state before, the same state after, with and without a probe (HIT_11): for every row of an
//! architecture's vectors that is not refused, and for encodings made from them.

use super::machine::{Machine, OutcomeOf, Own, RegsOf, Run};
use super::states::{Random, Values, Vector, runs_of, to_generate, vectors};
use crate::coverage::{Coverage, LEAST_STATES};
use probe_core::arch::{Arch, Method};
use std::collections::BTreeMap;

pub(crate) type PlanOf<O> = <<O as Own>::Backend as Arch>::Plan;

/// What the comparison is told of the architecture.
pub(crate) trait Rows: Own {
    /// Its vectors.
    const VECTORS: &'static str;
    /// Words in the notes of rows that are not executed: what two executions differ in by themselves, or what
    /// would end the test.
    const LEFT_OUT: &'static [&'static str];
    /// From how many states each row is executed at the least: simulated ones, which have more to get wrong
    /// than what is executed as it is, and others.
    const LEAST: (usize, usize);
    /// All classes of plans, and their methods.
    const CLASSES: &'static [(&'static str, Method)];

    fn class(plan: &PlanOf<Self>) -> &'static str;

    /// General registers to begin with.
    fn state(machine: &Machine<Self>, random: &mut Random, values: Values) -> RegsOf<Self>;

    fn start(random: &mut Random) -> Self::Start;

    /// Changes what would end the test or lead the instruction back to itself.
    fn adjust(
        machine: &Machine<Self>,
        vector: &Vector,
        plan: &PlanOf<Self>,
        regs: &mut RegsOf<Self>,
        random: &mut Random,
    );

    /// Whether the core does not have the instruction, which without a probe has ended so.
    fn is_absent(machine: &Machine<Self>, vector: &Vector, method: Method, bare: &[OutcomeOf<Self>]) -> bool;

    /// Takes out what is documented to differ.
    fn forgive(
        _machine: &Machine<Self>,
        _plan: &PlanOf<Self>,
        _run: Run,
        _start: &RegsOf<Self>,
        _bare: &mut OutcomeOf<Self>,
        _probed: &mut OutcomeOf<Self>,
    ) {
    }

    /// The registers by name.
    fn named(regs: &RegsOf<Self>) -> Vec<(String, u64)>;

    /// `word` with other operands: what tells a class from the next one stays, most often.
    fn generated(word: u32, random: &mut Random) -> u32;

    /// Whether a generated encoding may be executed.
    fn is_harmless(word: u32, plan: &PlanOf<Self>) -> bool;
}

fn compare<O: Rows>(
    vector: &Vector,
    start: &RegsOf<O>,
    run: Run,
    bare: &OutcomeOf<O>,
    probed: &OutcomeOf<O>,
) {
    if bare == probed {
        return;
    }
    let mut differences = Vec::new();
    if bare.signal != probed.signal {
        differences.push(format!("signal {} {}", bare.signal, probed.signal));
    }
    let pairs = O::named(&bare.regs).into_iter().zip(O::named(&probed.regs));
    for ((name, a), (_, b)) in pairs.filter(|((_, a), (_, b))| a != b) {
        differences.push(format!("{name} {a:#x} {b:#x}"));
    }
    let bytes = bare.data.iter().zip(&probed.data).enumerate();
    for (at, (a, b)) in bytes.filter(|(_, (a, b))| a != b).take(8) {
        differences.push(format!("data+{at:#x} {a:#x} {b:#x}"));
    }
    if bare.frame != probed.frame {
        differences.push(format!("{:x?} {:x?}", bare.frame, probed.frame));
    }
    if bare.after != probed.after {
        differences.push("what is found behind the trap".into());
    }
    let Vector { word, asm, .. } = vector;
    panic!("{asm} ({word:#010x}) {run:?} from {start:#x?}:\nunprobed, probed: {differences:#?}");
}

/// Runs `vector` from `count` states in each way, and compares; returns whether the core has the instruction.
fn check<O: Rows>(machine: &Machine<O>, vector: &Vector, count: usize, coverage: &mut Coverage) -> bool {
    let (plan, method) = O::classify(vector.word).expect("not refused");
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(vector.word));
    let data: Vec<u8> = (0..O::DATA).map(|_| random.next() as u8).collect();
    let mut starts = Vec::new();
    for index in 0..count {
        let values = [Values::Data, Values::Code, Values::Anything][index % 3];
        let mut regs = O::state(machine, &mut random, values);
        O::adjust(machine, vector, &plan, &mut regs, &mut random);
        starts.push((regs, O::start(&mut random)));
    }
    machine.prepare(vector.word, Run::Bare);
    let bare: Vec<_> = starts.iter().map(|(regs, start)| machine.run(regs, start, &data)).collect();
    if O::is_absent(machine, vector, method, &bare) {
        return false;
    }
    for (run, way) in runs_of(method) {
        machine.prepare(vector.word, *run);
        for ((regs, start), bare) in starts.iter().zip(&bare) {
            let (mut bare, mut probed) = (bare.clone(), machine.run(regs, start, &data));
            O::forgive(machine, &plan, *run, regs, &mut bare, &mut probed);
            compare::<O>(vector, regs, *run, &bare, &probed);
        }
        if *run != Run::WithoutFrame {
            coverage.add(O::class(&plan), *way, starts.len());
        }
    }
    true
}

fn is_left_out<O: Rows>(vector: &Vector) -> bool {
    O::LEFT_OUT.iter().any(|reason| vector.note.contains(reason))
}

/// The class of a row, and its method.
fn class_of<O: Rows>(vector: &Vector) -> (&'static str, Method) {
    let (plan, method) = O::classify(vector.word).expect("not refused");
    (O::class(&plan), method)
}

/// Every class behaves probed as bare, from so many states as [`Coverage`] asks for.
pub(crate) fn check_every_class<O: Rows>() {
    let machine = Machine::<O>::new(0);
    let vectors = vectors(O::VECTORS);
    let (out, run): (Vec<_>, Vec<_>) = vectors.iter().partition(|vector| is_left_out::<O>(vector));
    let mut rows = BTreeMap::new();
    for vector in &run {
        *rows.entry(class_of::<O>(vector).0).or_insert(0_usize) += 1;
    }
    let (mut coverage, mut executed) = (Coverage::new(O::CLASSES), 0);
    for vector in &run {
        let (class, method) = class_of::<O>(vector);
        let least = if method == Method::Simulate { O::LEAST.0 } else { O::LEAST.1 };
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

/// `count` generated encodings: those that are not refused behave probed as bare, also those that do not
/// exist. `PROBE_GENERATE=100000` runs more, `PROBE_GENERATE_SEED` others.
pub(crate) fn check_generated<O: Rows>(count: u64) {
    let (count, seed) = to_generate(count);
    let machine = Machine::<O>::new(0);
    let rows: Vec<_> = vectors(O::VECTORS).into_iter().filter(|vector| !is_left_out::<O>(vector)).collect();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut coverage, mut refused, mut executed) = (Coverage::new(O::CLASSES), BTreeMap::new(), 0);
    for _ in 0..count {
        let row = &rows[random.below(rows.len())];
        let word = O::generated(row.word, &mut random);
        match O::classify(word) {
            Ok((plan, _)) if !O::is_harmless(word, &plan) => {}
            Ok(_) => {
                let vector = Vector { word, asm: row.asm, note: "FEAT_: generated" };
                executed += u64::from(check(&machine, &vector, 6, &mut coverage));
            }
            Err(refusal) => *refused.entry(refusal.code).or_insert(0_u64) += 1,
        }
    }
    println!("{count} encodings from seed {seed}: {executed} executed, refused: {refused:?}");
    assert!(executed > count / 2, "only {executed} of {count}");
}
