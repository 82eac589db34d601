//! What the comparison of `tests/native` is told of riscv64, and faults.

use crate::classes;
use crate::machine::{Core, Floats, Machine, Outcome};
use crate::shared::machine::{Own, Run};
use crate::shared::states::{Random, Values, Vector};
use crate::shared::transparency::{Rows, check_every_class, check_generated};
use probe_arch_riscv64::{Condition, Plan, PtRegs};
use probe_core::arch::Method;

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

/// `value`, unless this test's own text or data may lie there: a jump to it would go on there.
fn elsewhere(value: u64) -> u64 {
    if (1 << 16..1 << 40).contains(&value) { value | 1 << 45 } else { value }
}

/// An offset of 12 bits, and eight vector registers.
const FURTHEST_LOAD: usize = 4096;
const ARENA: usize = Core::ARENA;
const DATA: usize = Core::DATA;

impl Rows for Core {
    const VECTORS: &'static str = include_str!("../../../tests/vectors/riscv64.txt");
    const LEFT_OUT: &'static [&'static str] = &["varies", "not executed"];
    const LEAST: (usize, usize) = (400, 60);
    const CLASSES: &'static [(&'static str, Method)] = CLASSES;

    fn class(plan: &Plan) -> &'static str {
        class(plan)
    }

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

    fn start(random: &mut Random) -> Floats {
        // A narrower value is boxed in ones; else it is a NaN.
        let boxed = [0, !0 << 16, !0 << 32];
        let values = core::array::from_fn(|_| random.value() | boxed[random.below(3)]);
        // Rounding modes 0 to 4.
        (values, (random.below(5) << 5 | random.below(32)) as u32)
    }

    /// Which system call; and no jump into the instruction itself.
    fn adjust(machine: &Machine, _vector: &Vector, plan: &Plan, regs: &mut PtRegs, random: &mut Random) {
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

    /// Whether it exists does not depend on the registers, but for a rounding mode or a vector type.
    fn is_absent(machine: &Machine, _vector: &Vector, _method: Method, bare: &[Outcome]) -> bool {
        let place = machine.place() as u64;
        bare.iter().any(|outcome| outcome.signal == libc::SIGILL && outcome.regs.pc == place)
    }

    fn named(regs: &PtRegs) -> Vec<(String, u64)> {
        let general = (1..32).map(|number| (format!("x{number}"), regs.x(number)));
        general.chain([("pc".into(), regs.pc)]).collect()
    }

    /// With other registers and immediates.
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

    fn is_harmless(word: u32, plan: &Plan) -> bool {
        match *plan {
            // Which one would be anything.
            Plan::SystemCall => false,
            // A jump to itself, or into its own second half.
            Plan::Jump { offset: -2..4, .. } | Plan::Branch { offset: -2..4, .. } => false,
            // What counts, counts on.
            _ => !is_counter(word),
        }
    }
}

#[test]
fn hit_11_every_class_behaves_as_on_hardware() {
    check_every_class::<Core>();
}

#[test]
fn hit_11_generated_encodings_behave_as_on_hardware() {
    check_generated::<Core>(1000);
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
