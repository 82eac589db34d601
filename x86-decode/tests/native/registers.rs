//! Saved registers to and from a signal's context.

cfg_if::cfg_if! {
    if #[cfg(target_arch = "x86_64")] {
        pub(crate) use probe_arch_x86_64::{Regs as Native, X86_64 as Backend};

        /// Where each register is in the signal's context.
        macro_rules! each_register {
            ($do:ident) => {
                $do!(
                    r8 0,
                    r9 1,
                    r10 2,
                    r11 3,
                    r12 4,
                    r13 5,
                    r14 6,
                    r15 7,
                    rdi 8,
                    rsi 9,
                    rbp 10,
                    rbx 11,
                    rdx 12,
                    rax 13,
                    rcx 14,
                    rsp 15,
                    rip 16,
                    eflags 17,
                )
            };
        }
    } else {
        pub(crate) use probe_arch_i386::{I386 as Backend, Regs as Native};

        macro_rules! each_register {
            ($do:ident) => {
                $do!(
                    gs 0,
                    fs 1,
                    es 2,
                    ds 3,
                    edi 4,
                    esi 5,
                    ebp 6,
                    esp 7,
                    ebx 8,
                    edx 9,
                    ecx 10,
                    eax 11,
                    eip 14,
                    cs 15,
                    eflags 16,
                    ss 18,
                )
            };
        }
    }
}

/// The general registers in a signal's context, in the kernel's order.
pub(crate) type Context = [usize; CONTEXT_LEN];

#[cfg(target_arch = "x86_64")]
const CONTEXT_LEN: usize = 23;
#[cfg(target_arch = "x86")]
const CONTEXT_LEN: usize = 19;

/// Where they begin in `ucontext_t`: behind flags, link and the signal stack.
pub(crate) const CONTEXT_AT: usize = 5 * size_of::<usize>();

/// The registers in a signal's context.
pub(crate) fn regs_of(machine: &Context) -> Native {
    let mut regs = Native::default();
    macro_rules! take {
        ($($register:ident $index:literal,)*) => {
            $(regs.$register = Word::of(machine[$index]);)*
        };
    }
    each_register!(take);
    #[cfg(target_arch = "x86_64")]
    {
        regs.cs = machine[18] as u64 & 0xffff;
        regs.ss = machine[18] as u64 >> 48;
    }
    regs
}

/// A register as a word of a signal's context.
trait Word {
    fn of(word: usize) -> Self;
    fn word(self) -> usize;
}

/// A field of the registers that is as long as a word.
#[cfg(target_arch = "x86")]
type Long = u32;
#[cfg(target_arch = "x86_64")]
type Long = u64;

impl Word for Long {
    fn of(word: usize) -> Self {
        word as Self
    }

    fn word(self) -> usize {
        self as usize
    }
}

#[cfg(target_arch = "x86")]
impl Word for probe_arch_i386::regs::Segment {
    fn of(word: usize) -> Self {
        Self::new(word as u16)
    }

    fn word(self) -> usize {
        usize::from(self.selector)
    }
}

/// Puts registers into a signal's context; segments only where they are not 0.
pub(crate) fn gregs_of(regs: &Native, machine: &mut Context) {
    macro_rules! put {
        ($($register:ident $index:literal,)*) => {
            $(put_one(stringify!($register), regs.$register.word(), &mut machine[$index]);)*
        };
    }
    each_register!(put);
}

fn put_one(name: &str, value: usize, slot: &mut usize) {
    let is_segment = name.len() == 2 && name.ends_with('s');
    if !is_segment || value != 0 {
        *slot = value;
    }
}

/// What the tests want to do with registers of either size.
pub(crate) trait StepBack {
    /// Moves the program counter from behind a breakpoint onto it.
    fn step_back(&mut self);
}

impl StepBack for Native {
    fn step_back(&mut self) {
        use probe_core::arch::Regs;
        self.set_pc(self.pc().wrapping_offset(-1));
    }
}
