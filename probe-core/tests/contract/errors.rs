//! One taxonomy (REG_9): every error has its number, its code and its sentence, and names its cause.

use probe_core::CodeAddr;
use probe_core::error::{
    BatchError, EnableError, Errno, GrowError, JumpError, Refusal, RegisterError, RemoveError, SelfTestError,
    SwitchError, TextError, WatchError,
};
use rstest::rstest;
use std::error::Error;

const AT: CodeAddr = CodeAddr::new(0x1000);
const START: CodeAddr = CodeAddr::new(0xff0);
const REFUSAL: Refusal = Refusal::unsupported("toy.forbidden", "this instruction is forbidden");
const DENIED: TextError = TextError::Denied(AT, 13);

#[rstest]
#[case(RegisterError::NoSymbol("f".into()), Errno::ENOENT, "place.no_symbol", "there is no symbol f")]
#[case(
    RegisterError::Ambiguous { name: "f".into(), candidates: vec![START, AT] },
    Errno::EADDRNOTAVAIL, "place.ambiguous", "2 symbols are called f: 0xff0 0x1000"
)]
#[case(RegisterError::NoSymbolCovers(AT), Errno::ENOENT, "place.no_symbol_covers", "no symbol covers 0x1000")]
#[case(
    RegisterError::OutsideSymbol { name: "f".into(), offset: -1, len_bytes: 7 },
    Errno::EINVAL, "place.outside_symbol", "offset -1 is outside f, which is 7 bytes long"
)]
#[case(RegisterError::NotText(AT), Errno::EINVAL, "place.not_text", "0x1000 is not text that can be probed")]
#[case(RegisterError::Blacklisted(AT), Errno::EINVAL, "place.blacklisted", "probes are forbidden at 0x1000")]
#[case(
    RegisterError::Misaligned(AT),
    Errno::EILSEQ,
    "place.misaligned",
    "0x1000 is not aligned to an instruction"
)]
#[case(
    RegisterError::InsideInstruction { at: AT, start: START },
    Errno::EILSEQ, "place.inside_instruction", "0x1000 is inside the instruction that starts at 0xff0"
)]
#[case(
    RegisterError::Undecodable { at: AT, stuck: START },
    Errno::EILSEQ, "place.undecodable", "the way to 0x1000 cannot be decoded: there is no instruction at 0xff0"
)]
#[case(
    RegisterError::ForeignBreakpoint(AT),
    Errno::EILSEQ,
    "place.foreign_breakpoint",
    "somebody else's breakpoint stands at 0x1000"
)]
#[case(
    RegisterError::Refused { at: AT, refusal: REFUSAL },
    Errno::EOPNOTSUPP, "toy.forbidden",
    "the instruction at 0x1000 cannot be probed: this instruction is forbidden (toy.forbidden)"
)]
#[case(
    RegisterError::NotEntry(AT),
    Errno::EINVAL,
    "place.not_entry",
    "0x1000 is not the entry of a function"
)]
#[case(
    RegisterError::NotCalled { at: AT, refusal: REFUSAL },
    Errno::EOPNOTSUPP, "toy.forbidden",
    "no return probe or jprobe can stand at 0x1000: this instruction is forbidden (toy.forbidden)"
)]
#[case(
    RegisterError::SecondJprobe(AT),
    Errno::EEXIST,
    "jprobe.second",
    "the function at 0x1000 has a jprobe already"
)]
#[case(
    RegisterError::DataTooBig(4097),
    Errno::E2BIG,
    "kretprobe.data_too_big",
    "private data of 4097 bytes is too big"
)]
#[case(
    RegisterError::NoSlot(AT),
    Errno::ENOMEM,
    "memory.no_slot",
    "no executable memory is left within reach of 0x1000"
)]
#[case(RegisterError::NoMemory, Errno::ENOMEM, "memory.none", "no memory is left")]
#[case(
    RegisterError::from(DENIED),
    Errno::EFAULT,
    "text.access",
    "text at 0x1000 cannot be written (os error 13)"
)]
#[case(
    RegisterError::Text(TextError::Unmapped(AT)),
    Errno::EFAULT,
    "text.access",
    "no text is mapped at 0x1000"
)]
#[case(
    RegisterError::InHandler,
    Errno::EBUSY,
    "context.in_handler",
    "probes cannot be registered from a handler"
)]
#[case(
    RegisterError::NoStubs,
    Errno::ENOMEM,
    "memory.no_stubs",
    "no executable memory is left for return stubs"
)]
fn reg_9_a_registration_fails_with_number_code_and_sentence(
    #[case] error: RegisterError,
    #[case] errno: Errno,
    #[case] code: &str,
    #[case] sentence: &str,
) {
    assert_eq!((error.errno(), error.code(), error.to_string().as_str()), (errno, code, sentence));
    // The cause is the backend's or the host's own error, where there is one.
    let cause = error.source().map(|cause| sentence.ends_with(&cause.to_string()));
    let has_cause = code == "toy.forbidden" || code == "text.access";
    assert_eq!(cause, has_cause.then_some(true));
    let batch = BatchError { index: 3, error };
    assert_eq!(batch.to_string(), format!("probe 3 of the batch: {sentence}"));
    assert_eq!(batch.source().unwrap().to_string(), sentence);
}

/// An error with its number, code and sentence.
macro_rules! told {
    ($error:expr) => {{
        let error = $error;
        assert!(error.source().is_none_or(|cause| error.to_string().ends_with(&cause.to_string())));
        (error.errno(), error.code(), error.to_string())
    }};
}

const IN_HANDLER: (Errno, &str, &str) = (Errno::EBUSY, "context.in_handler", "not possible from a handler");
const NOT_WRITTEN: (Errno, &str, &str) =
    (Errno::EFAULT, "text.access", "text at 0x1000 cannot be written (os error 13)");
const NOT_WATCHED: (Errno, &str, &str) = (
    Errno::EOPNOTSUPP,
    "toy.forbidden",
    "memory at 0x1000 cannot be watched: this instruction is forbidden (toy.forbidden)",
);

#[rstest]
#[case(told!(EnableError::Gone(AT)), (Errno::EINVAL, "probe.gone", "what was at 0x1000 has gone"))]
#[case(told!(EnableError::Text(DENIED)), NOT_WRITTEN)]
#[case(told!(EnableError::CannotWatch { at: 0x1000, refusal: REFUSAL }), NOT_WATCHED)]
#[case(told!(RemoveError::InHandler), IN_HANDLER)]
#[case(told!(RemoveError::Text(DENIED)), NOT_WRITTEN)]
#[case(told!(SwitchError::InHandler), IN_HANDLER)]
#[case(told!(SwitchError::NotABoolean), (Errno::EINVAL, "switch.not_a_boolean", "neither on nor off"))]
#[case(told!(SwitchError::Text(DENIED)), NOT_WRITTEN)]
#[case(told!(SwitchError::CannotWatch { at: 0x1000, refusal: REFUSAL }), NOT_WATCHED)]
#[case(told!(JumpError::InHandler), IN_HANDLER)]
#[case(told!(JumpError::Text(DENIED)), NOT_WRITTEN)]
#[case(told!(GrowError::InHandler), IN_HANDLER)]
#[case(told!(GrowError::NoMemory), (Errno::ENOMEM, "memory.none", "no memory is left"))]
#[case(
    told!(GrowError::NoStubs),
    (Errno::ENOMEM, "memory.no_stubs", "no executable memory is left for return stubs")
)]
#[case(told!(GrowError::Text(DENIED)), NOT_WRITTEN)]
#[case(
    told!(WatchError::InHandler),
    (Errno::EBUSY, "context.in_handler", "watchpoints cannot be registered from a handler")
)]
#[case(told!(WatchError::NoMemory), (Errno::ENOMEM, "memory.none", "no memory is left"))]
#[case(
    told!(WatchError::NoRegister(4)),
    (Errno::ENOSPC, "watch.no_register", "all 4 debug registers are in use")
)]
#[case(told!(WatchError::CannotWatch { at: 0x1000, refusal: REFUSAL }), NOT_WATCHED)]
fn reg_9_a_change_fails_with_number_code_and_sentence(
    #[case] told: (Errno, &str, String),
    #[case] wanted: (Errno, &str, &str),
) {
    assert_eq!((told.0, told.1, told.2.as_str()), wanted);
}

/// Linux's numbers, which C programs compare with.
#[test]
#[cfg(target_os = "linux")]
fn reg_9_numbers_are_linuxes() {
    let numbers =
        [Errno::E2BIG, Errno::ENOENT, Errno::ENOMEM, Errno::EILSEQ, Errno::EOPNOTSUPP].map(Errno::as_i32);
    assert_eq!(numbers, [libc::E2BIG, libc::ENOENT, libc::ENOMEM, libc::EILSEQ, libc::EOPNOTSUPP]);
}

#[rstest]
#[case(SelfTestError::Context, "the host does not keep to one context")]
#[case(SelfTestError::Task, "the host does not keep to one task")]
#[case(SelfTestError::NoExec, "the host has no executable memory")]
#[case(SelfTestError::Unaligned(AT), "executable memory at 0x1000 is not aligned to its size")]
#[case(
    SelfTestError::Text(DENIED),
    "executable memory cannot be written: text at 0x1000 cannot be written (os error 13)"
)]
#[case(SelfTestError::WriteNotSeen(AT), "what is written at 0x1000 is not read there")]
#[case(
    SelfTestError::Register(RegisterError::NoMemory),
    "the function for the test cannot be probed: no memory is left"
)]
#[case(
    SelfTestError::Gap { found: 8, owed: 128 },
    "the trap frame leaves 8 bytes below the interrupted stack pointer instead of 128"
)]
#[case(SelfTestError::Nested, "a hit in a handler does not arrive, or overwrites the outer hit's frame")]
#[case(SelfTestError::NoBreakpoint, "a breakpoint in text did not lead to its handler")]
#[case(SelfTestError::NoStep, "no post handler ran after the instruction in the slot")]
#[case(SelfTestError::NoReturn, "a followed call did not return through its stub")]
#[case(SelfTestError::TextNotRestored(AT), "the text at 0x1000 is not what it was before")]
fn a_failed_self_test_says_which_promise_is_not_kept(#[case] error: SelfTestError, #[case] sentence: &str) {
    assert_eq!(error.to_string(), sentence);
}
