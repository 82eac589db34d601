//! What the comparison of `tests/native` is told of ppc32, and faults.

use crate::classes;
use crate::machine::{Core, Floats, Machine, Outcome};
use crate::shared::machine::{Own, Run};
use crate::shared::states::{Random, Values, Vector};
use crate::shared::transparency::{Rows, check_every_class, check_generated};
use probe_arch_ppc32::{Plan, PtRegs};
use probe_core::arch::Method;

classes! { Plan:
    Plan::Copy => "copy" Boost,
    Plan::Sc => "sc" Boost,
    Plan::Nop => "nop" Simulate,
    Plan::B(_) => "b" Simulate,
    Plan::Bc(_) => "bc" Simulate,
    Plan::Bclr(_) => "bclr" Simulate,
    Plan::Bcctr(_) => "bcctr" Simulate,
    Plan::Mfspr(_) => "mfspr" Simulate,
    Plan::Mtspr(_) => "mtspr" Simulate,
    Plan::Mfmsr(_) | Plan::Relocate | Plan::Scv | Plan::Bctar(_) | Plan::Addpcis(_) => "of 64 bits" Simulate,
}

const ARENA: usize = Core::ARENA;
const DATA: usize = Core::DATA;

/// How far a load reaches from its register: half of a displacement of 16 bits.
const FURTHEST_LOAD: usize = 1 << 15;

impl Rows for Core {
    const VECTORS: &'static str = include_str!("../../../tests/vectors/ppc32.txt");
    const LEFT_OUT: &'static [&'static str] = &["varies", "not executed"];
    const LEAST: (usize, usize) = (400, 60);
    const CLASSES: &'static [(&'static str, Method)] = CLASSES.split_at(CLASSES.len() - 1).0;

    fn class(plan: &Plan) -> &'static str {
        class(plan)
    }

    fn state(machine: &Machine, random: &mut Random, values: Values) -> PtRegs {
        let mut regs = PtRegs::default();
        let one = |random: &mut Random| match values {
            Values::Anything => elsewhere(machine, random.value() as u32),
            Values::Data => {
                (machine.data() + DATA / 4 + random.below(DATA / 2)) as u32 & !(random.next() as u32 & 15)
            }
            // Not so near that a load reads the place, where a breakpoint stands.
            Values::Code => {
                let at = machine.arena() + random.below(ARENA);
                let is_near = at.abs_diff(machine.place()) < FURTHEST_LOAD + 128;
                (if is_near { machine.arena() + random.below(ARENA / 8) } else { at }) as u32
            }
        };
        regs.gpr = core::array::from_fn(|_| one(random));
        regs.ctr = if random.below(3) == 0 { random.below(3) as u32 } else { one(random) };
        regs.link = one(random);
        // SO OV CA and the byte count of the string instructions.
        regs.xer = random.next() as u32 & 0xe000_007f;
        regs.ccr = random.next() as u32;
        regs
    }

    fn start(random: &mut Random) -> Floats {
        let mut floats = core::array::from_fn(|_| match random.below(3) {
            0 => (random.below(1000) as f64 / 8.0).to_bits(),
            _ => random.value(),
        });
        // The rounding mode; exceptions stay disabled.
        floats[32] = random.below(4) as u64;
        floats
    }

    /// Which system call.
    fn adjust(_: &Machine, _vector: &Vector, plan: &Plan, regs: &mut PtRegs, random: &mut Random) {
        if *plan == Plan::Sc {
            // getpid, and a number that does not exist.
            regs.gpr[0] = if random.next() & 1 == 0 { 20 } else { 5000 };
        }
    }

    /// Never: what does not exist has to end as it does in place.
    fn is_absent(_: &Machine, _: &Vector, _: Method, _: &[Outcome]) -> bool {
        false
    }

    fn named(regs: &PtRegs) -> Vec<(String, u64)> {
        let general = regs.gpr.iter().enumerate().map(|(number, value)| (format!("r{number}"), *value));
        let others =
            [("nip", regs.nip), ("ctr", regs.ctr), ("lr", regs.link), ("xer", regs.xer), ("cr", regs.ccr)];
        let others = others.map(|(name, value)| (name.to_owned(), value));
        general.chain(others).map(|(name, value)| (name, value.into())).collect()
    }

    /// With other registers and immediates.
    fn generated(word: u32, random: &mut Random) -> u32 {
        let fields = match (word >> 26, random.below(3)) {
            (16 | 18, _) => 0x03ff_ffff,
            // BO, BI and BH; registers; the extended opcode, too.
            (19 | 31 | 59 | 63, 0..2) => 0x03ff_f801,
            (4 | 19 | 31 | 59 | 63, _) => 0x03ff_ffff,
            (_, 0) => 0x03ff_0000,
            _ => 0x03ff_ffff,
        };
        word & !fields | random.next() as u32 & fields
    }

    fn is_harmless(word: u32, plan: &Plan) -> bool {
        let xo = word >> 1 & 0x3ff;
        match *plan {
            // Which one would be anything.
            Plan::Sc => false,
            // To itself; absolute ones to where the program may have something.
            Plan::B(_) | Plan::Bc(_) => word & 2 == 0 && word & 0xfffc != 0,
            // QEMU 7.2 dies of VSX on a processor without it. Vectors are not in the state.
            Plan::Copy if matches!(word >> 26, 4 | 6 | 57 | 60 | 61) => false,
            // Time and random numbers; and mfspr of them.
            Plan::Copy if word >> 26 == 31 => ![371, 755, 339, 467].contains(&xo),
            _ => true,
        }
    }
}

/// `value`, unless this test's own text or data may lie there: a jump to it would go on there.
fn elsewhere(machine: &Machine, value: u32) -> u32 {
    // The first page of what nobody can access.
    let nowhere = (machine.arena() - Core::FORBIDDEN_BEFORE) as u32;
    if (0x1_0000..0xff00_0000).contains(&value) { nowhere | value & 0xff_ffff } else { value }
}

#[test]
fn hit_11_every_class_behaves_as_on_hardware() {
    check_every_class::<Core>();
}

#[test]
fn hit_11_generated_encodings_behave_as_on_hardware() {
    check_generated::<Core>(1000);
}

/// What faults in a slot is reported at the place, with the registers as they were.
#[test]
fn hit_9_a_fault_in_a_slot_is_one_at_the_place() {
    let machine = Machine::new(0);
    // lwz 3,0(3); stw 4,8(3); lwzu 9,16(3); lfdx 0,3,4; stmw 29,0(3); dcbz 0,3
    for word in [0x8063_0000, 0x9083_0008, 0x8523_0010, 0x7c03_24ae, 0xbfa3_0000, 0x7c00_1fec] {
        let start = PtRegs { gpr: [0x10; 32], ..PtRegs::default() };
        let outcome = |run| {
            machine.prepare(word, run);
            machine.run(&start, &[0; 33], &[0; DATA])
        };
        let bare = outcome(Run::Bare);
        assert_eq!((bare.signal, bare.regs.nip), (libc::SIGSEGV, machine.place() as u32));
        for run in [Run::Probed, Run::ProbedWithPost] {
            assert_eq!(outcome(run), bare, "{word:#x} {run:?}");
        }
    }
}
