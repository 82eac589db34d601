//! From checked expressions to instructions.
//!
//! What can be had without an access to memory lies in the context when the program begins; everything else
//! is asked for by a call, when it is needed. A value that cannot be read ends the program.

use super::check::{Key, Number, Operation, Relation, Scope, Sign, Test};
use crate::def::DefError;
use crate::wire::{COUNT_COMM, FETCH, MATCH, MOST_WORDS, NUMBER_TEXT};
use probe_bpf::asm::{
    alu64_k, alu64_x, call, exit, jump_k, jump_x, load, load_imm64, load_map, store, with_offset,
};
use probe_bpf::insn::{alu, jmp, size};
use probe_bpf::{COUNT, COUNT_KEY, Insn, RECORD, RECORD_KEY};

/// A program, and the values that have to lie in its context, in that order.
pub(crate) struct Compiled {
    /// The instructions: 1 where the condition holds, else 0.
    pub(crate) program: Vec<Insn>,
    /// Indices of values, one for each word of the context.
    pub(crate) words: Vec<u32>,
}

/// Where a jump leads, before it is known.
#[derive(Clone, Copy)]
struct Label(usize);

/// The register that holds the result of a call, and is free between them.
const RESULT: u8 = 0;
/// Where the context's address is at the start, until arguments of the first call take its place.
const CONTEXT: u8 = 1;
/// Where it is kept for what comes behind a call: calls leave this register alone, and [`REGISTERS`].
const CONTEXT_KEPT: u8 = 6;
/// Where numbers are computed, from the outermost on; what is deeper goes through the stack.
const REGISTERS: [u8; 3] = [7, 8, 9];
/// The stack's end.
const FRAME: u8 = 10;

/// At work on one program.
struct Compiler<'s, 'a> {
    scope: &'s Scope<'a>,
    program: Vec<Insn>,
    /// For each label the instruction that it stands for, once that is known.
    labels: Vec<Option<usize>>,
    /// The jumps to labels.
    jumps: Vec<(usize, Label)>,
    words: Vec<u32>,
    /// The register that leads to the context from here on.
    context: u8,
    /// Whether anything reads [`CONTEXT_KEPT`].
    keeps_context: bool,
    /// Words of the stack in use.
    spilled: i16,
}

/// What is counted of the hits that pass, with the index of its map.
pub(super) enum Count {
    Histogram(Number, usize),
    Sum(Number, usize),
    /// An amount by the keys; 1 if it is not said.
    Table(Option<Number>, usize),
    /// The sizes of a number by the one key.
    Histograms(Number, usize),
}

/// What hits are told apart by.
#[derive(Default)]
pub(super) struct Keys {
    pub(super) keys: Vec<Key>,
    /// The map that has the numbers of texts.
    pub(super) texts: usize,
}

/// Compiles conditions, all of which have to hold, and what is counted where they do.
///
/// # Errors
/// One of the conditions is wrong, or all are too long together.
pub(super) fn compile(
    scope: &mut Scope<'_>,
    conditions: &[&str],
    keys: &Keys,
    counts: &[Count],
) -> Result<Compiled, DefError> {
    let tests = conditions.iter().map(|text| scope.condition(text)).collect::<Result<Vec<_>, _>>()?;
    let mut compiler = Compiler {
        scope,
        program: Vec::new(),
        context: CONTEXT,
        keeps_context: false,
        labels: Vec::new(),
        jumps: Vec::new(),
        words: Vec::new(),
        spilled: 0,
    };
    let rejected = compiler.label();
    tests.iter().for_each(|test| compiler.branch(test, rejected, false));
    compiler.keys(keys);
    counts.iter().for_each(|count| compiler.count(count, keys));
    compiler.program.extend([alu64_k(alu::MOV, RESULT, 1), exit()]);
    compiler.bind(rejected);
    compiler.program.extend([alu64_k(alu::MOV, RESULT, 0), exit()]);
    compiler.finish().ok_or_else(|| {
        let text = conditions.last().copied().unwrap_or_default();
        DefError::new(text, (0, text.len()), "the condition is too long")
    })
}

impl Compiler<'_, '_> {
    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands for the next instruction.
    fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.program.len());
    }

    fn jump(&mut self, insn: Insn, to: Label) {
        self.jumps.push((self.program.len(), to));
        self.program.push(insn);
    }

    /// Writes the distances into the jumps; `None` where one is too far.
    fn finish(mut self) -> Option<Compiled> {
        for (at, label) in self.jumps {
            let distance = self.labels[label.0]?.checked_sub(at + 1)?;
            self.program[at].offset = i16::try_from(distance).ok()?;
        }
        if self.keeps_context {
            self.program.insert(0, alu64_x(alu::MOV, CONTEXT_KEPT, CONTEXT));
        }
        Some(Compiled { program: self.program, words: self.words })
    }

    /// The arguments of a call come next.
    fn begin_call(&mut self) {
        self.context = CONTEXT_KEPT;
    }

    /// Computes the keys, once for all tables: calls leave them where they are.
    fn keys(&mut self, keys: &Keys) {
        for (depth, key) in keys.keys.iter().enumerate() {
            match key {
                Key::Number(number) => self.number(number, depth),
                Key::Text(value) | Key::Stack(value) => {
                    self.begin_call();
                    self.program.extend(load_map(1, keys.texts as i32));
                    self.program.extend([
                        alu64_k(alu::MOV, 2, *value as i32),
                        call(NUMBER_TEXT),
                        alu64_x(alu::MOV, REGISTERS[depth], RESULT),
                    ]);
                }
                Key::Caller(value) => self.value(*value, REGISTERS[depth]),
                Key::Comm => {}
            }
        }
    }

    fn count(&mut self, count: &Count, keys: &Keys) {
        let [first, second, ..] = REGISTERS;
        let one = Number::Constant(1, Sign::Either);
        let (number, map) = match count {
            Count::Histogram(number, map) | Count::Sum(number, map) | Count::Histograms(number, map) => {
                (number, map)
            }
            Count::Table(amount, map) => (amount.as_ref().unwrap_or(&one), map),
        };
        // The registers before are the keys'.
        let depth = keys.keys.len().min(REGISTERS.len() - 1);
        self.number(number, depth);
        self.begin_call();
        self.program.extend(load_map(1, *map as i32));
        let amount = |register| alu64_x(alu::MOV, register, REGISTERS[depth]);
        match count {
            Count::Histogram(..) => self.program.extend([amount(2), call(RECORD)]),
            Count::Sum(..) => self.program.extend([amount(2), call(COUNT)]),
            Count::Histograms(..) => {
                self.program.extend([alu64_x(alu::MOV, 2, first), amount(3), call(RECORD_KEY)]);
            }
            Count::Table(..) if matches!(keys.keys.as_slice(), [Key::Comm]) => {
                self.program.extend([amount(2), call(COUNT_COMM)]);
            }
            Count::Table(..) => {
                let has_two = keys.keys.len() > 1;
                let high = if has_two { alu64_x(alu::MOV, 3, second) } else { alu64_k(alu::MOV, 3, 0) };
                self.program.extend([alu64_x(alu::MOV, 2, first), high, amount(4), call(COUNT_KEY)]);
            }
        }
    }

    /// Goes to `target` if the test is as `wanted`, else falls through.
    fn branch(&mut self, test: &Test, target: Label, wanted: bool) {
        match test {
            Test::Not(inner) => self.branch(inner, target, !wanted),
            Test::And(a, b) if wanted => self.both(a, b, target, true),
            Test::Or(a, b) if !wanted => self.both(a, b, target, false),
            Test::And(a, b) | Test::Or(a, b) => {
                self.branch(a, target, wanted);
                self.branch(b, target, wanted);
            }
            Test::Compare(relation, a, b) => self.compare(*relation, a, b, target, wanted),
            Test::Matches(value, pattern) => {
                self.begin_call();
                self.program
                    .extend([alu64_k(alu::MOV, 1, *value as i32), alu64_k(alu::MOV, 2, *pattern as i32)]);
                self.program.push(call(MATCH));
                self.jump(jump_k(if wanted { jmp::JNE } else { jmp::JEQ }, RESULT, 0, 0), target);
            }
        }
    }

    /// Goes to `target` if both tests are as `wanted`.
    fn both(&mut self, a: &Test, b: &Test, target: Label, wanted: bool) {
        let otherwise = self.label();
        self.branch(a, otherwise, !wanted);
        self.branch(b, target, wanted);
        self.bind(otherwise);
    }

    fn compare(&mut self, relation: Relation, a: &Number, b: &Number, target: Label, wanted: bool) {
        // A number that was typed stands on the right, and so does one without a sign beside one with.
        let is_swapped = matches!(a, Number::Constant(..)) && !matches!(b, Number::Constant(..))
            || a.sign() == Sign::Unsigned && b.sign() == Sign::Signed && !matches!(b, Number::Constant(..));
        let (a, b, relation) = if is_swapped { (b, a, relation.mirrored()) } else { (a, b, relation) };
        let left = REGISTERS[0];
        self.number(a, 0);
        let right = immediate(b);
        if right.is_none() {
            self.number(b, 1);
        }
        let is_signed = match (a.sign(), b.sign()) {
            (Sign::Signed, Sign::Unsigned) => return self.compare_mixed(relation, right, target, wanted),
            (Sign::Unsigned, _) | (_, Sign::Unsigned) => false,
            _ => true,
        };
        let code = code(if wanted { relation } else { relation.negated() }, is_signed);
        let insn = match right {
            Some(number) => jump_k(code, left, number, 0),
            None => jump_x(code, left, REGISTERS[1], 0),
        };
        self.jump(insn, target);
    }

    /// A number with a sign is compared with one without, which is above all negative ones.
    fn compare_mixed(&mut self, relation: Relation, right: Option<i32>, target: Label, wanted: bool) {
        let (left, below) = (REGISTERS[0], self.label());
        let holds_below = matches!(relation, Relation::NotEqual | Relation::Less | Relation::LessOrEqual);
        let on_negative = if holds_below == wanted { target } else { below };
        self.jump(jump_k(jmp::JSLT, left, 0, 0), on_negative);
        let code = code(if wanted { relation } else { relation.negated() }, false);
        let insn = match right {
            Some(number) => jump_k(code, left, number, 0),
            None => jump_x(code, left, REGISTERS[1], 0),
        };
        self.jump(insn, target);
        self.bind(below);
    }

    /// Computes a number into the register for that depth.
    fn number(&mut self, number: &Number, depth: usize) {
        let to = REGISTERS[depth];
        match number {
            Number::Constant(..) => match immediate(number) {
                Some(number) => self.program.push(alu64_k(alu::MOV, to, number)),
                None => {
                    let Number::Constant(number, _) = number else { return };
                    self.program.extend(load_imm64(to, *number));
                }
            },
            Number::Value(value, _) => self.value(*value, to),
            Number::Negate(inner) => {
                self.number(inner, depth);
                self.program.push(alu64_k(alu::NEG, to, 0));
            }
            Number::Binary(operation, a, b) => {
                let is_signed = number.sign() != Sign::Unsigned;
                self.number(a, depth);
                if let Some(number) = immediate(b) {
                    let (code, offset) = operation_code(*operation, is_signed);
                    self.program.push(with_offset(alu64_k(code, to, number), offset));
                } else if depth + 1 < REGISTERS.len() {
                    self.number(b, depth + 1);
                    self.operate(*operation, is_signed, to, REGISTERS[depth + 1]);
                } else {
                    self.through_stack(*operation, is_signed, b, depth);
                }
            }
        }
    }

    /// As all registers are in use, the left side waits on the stack.
    fn through_stack(&mut self, operation: Operation, is_signed: bool, b: &Number, depth: usize) {
        let to = REGISTERS[depth];
        self.spilled += 1;
        let offset = -8 * self.spilled;
        self.program.push(store(size::DW, FRAME, offset, to));
        self.number(b, depth);
        self.program.push(load(size::DW, RESULT, FRAME, offset));
        self.operate(operation, is_signed, RESULT, to);
        self.program.push(alu64_x(alu::MOV, to, RESULT));
        self.spilled -= 1;
    }

    fn operate(&mut self, operation: Operation, is_signed: bool, to: u8, from: u8) {
        let (code, offset) = operation_code(operation, is_signed);
        self.program.push(with_offset(alu64_x(code, to, from), offset));
    }

    fn value(&mut self, value: usize, to: u8) {
        let known = self.words.iter().position(|word| *word as usize == value);
        if known.is_none() && (!self.scope.is_direct(value) || self.words.len() == MOST_WORDS) {
            self.begin_call();
            self.program.extend([
                alu64_k(alu::MOV, 1, value as i32),
                call(FETCH),
                alu64_x(alu::MOV, to, RESULT),
            ]);
            return;
        }
        let word = known.unwrap_or_else(|| {
            self.words.push(value as u32);
            self.words.len() - 1
        });
        self.keeps_context |= self.context == CONTEXT_KEPT;
        self.program.push(load(size::DW, to, self.context, 8 * word as i16));
    }
}

impl Relation {
    /// What holds of `b` and `a` when this holds of `a` and `b`.
    pub(super) const fn mirrored(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }

    /// What holds when this does not.
    pub(super) const fn negated(self) -> Self {
        match self {
            Self::Equal => Self::NotEqual,
            Self::NotEqual => Self::Equal,
            Self::Less => Self::GreaterOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Greater => Self::LessOrEqual,
            Self::GreaterOrEqual => Self::Less,
        }
    }
}

/// A number that fits into an instruction, which extends its sign.
fn immediate(number: &Number) -> Option<i32> {
    let Number::Constant(number, _) = number else { return None };
    i32::try_from(*number as i64).ok()
}

fn operation_code(operation: Operation, is_signed: bool) -> (u8, i16) {
    match operation {
        Operation::Add => (alu::ADD, 0),
        Operation::Subtract => (alu::SUB, 0),
        Operation::Multiply => (alu::MUL, 0),
        Operation::Divide => (alu::DIV, is_signed.into()),
        Operation::Remainder => (alu::MOD, is_signed.into()),
        Operation::And => (alu::AND, 0),
        Operation::Or => (alu::OR, 0),
        Operation::Xor => (alu::XOR, 0),
        Operation::Left => (alu::LSH, 0),
        Operation::Right if is_signed => (alu::ARSH, 0),
        Operation::Right => (alu::RSH, 0),
    }
}

fn code(relation: Relation, is_signed: bool) -> u8 {
    match (relation, is_signed) {
        (Relation::Equal, _) => jmp::JEQ,
        (Relation::NotEqual, _) => jmp::JNE,
        (Relation::Less, false) => jmp::JLT,
        (Relation::LessOrEqual, false) => jmp::JLE,
        (Relation::Greater, false) => jmp::JGT,
        (Relation::GreaterOrEqual, false) => jmp::JGE,
        (Relation::Less, true) => jmp::JSLT,
        (Relation::LessOrEqual, true) => jmp::JSLE,
        (Relation::Greater, true) => jmp::JSGT,
        (Relation::GreaterOrEqual, true) => jmp::JSGE,
    }
}
