//! Every row of the vector files gets the plan that it names.

mod common;

use probe_x86_decode::{LongMode, MAX_INSN_LEN, ProtectedMode, insn_len, refusal};
use rstest::rstest;

#[rstest]
#[case::x86_64(common::X86_64, common::spelt::<LongMode>)]
#[case::i386(common::I386, common::spelt::<ProtectedMode>)]
fn every_vector_has_its_plan(#[case] file: &'static str, #[case] spelt: fn(&[u8]) -> String) {
    let wrong: Vec<String> = common::vectors(file)
        .iter()
        .filter(|vector| spelt(&vector.bytes) != vector.plan)
        .map(|vector| {
            let (asm, note) = (vector.asm, vector.note);
            format!("{:02x?} {asm} ({note}): {}, not {}", vector.bytes, spelt(&vector.bytes), vector.plan)
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[rstest]
#[case::x86_64(common::X86_64, insn_len::<LongMode>)]
#[case::i386(common::I386, insn_len::<ProtectedMode>)]
fn what_follows_does_not_change_a_length(
    #[case] file: &'static str,
    #[case] len: fn(&[u8]) -> Option<usize>,
) {
    for vector in common::vectors(file) {
        let alone = len(&vector.bytes);
        for filler in [0x00, 0x90, 0xcc, 0xff] {
            let mut text = vector.bytes.clone();
            text.resize(vector.bytes.len() + MAX_INSN_LEN, filler);
            assert_eq!(len(&text[..MAX_INSN_LEN.max(vector.bytes.len())]), alone, "{}", vector.asm);
        }
        // One that is cut off by the end of readable text has no length.
        if let Some(alone) = alone {
            assert_eq!(len(&vector.bytes[..alone - 1]), None, "{}", vector.asm);
        }
    }
}

/// The codes are an interface: each refusal of the decoder is named by a vector.
#[test]
fn every_refusal_code_is_covered() {
    let named: Vec<&str> = [common::X86_64, common::I386]
        .into_iter()
        .flat_map(common::vectors)
        .filter_map(|vector| vector.plan.strip_prefix("refuse "))
        .collect();
    let codes = [
        refusal::UNDECODABLE,
        refusal::BREAKPOINT,
        refusal::UNDEFINED,
        refusal::INTERRUPT,
        refusal::INT1,
        refusal::IRET,
        refusal::FAR_TRANSFER,
        refusal::PRIVILEGED_RETURN,
        refusal::SYSENTER,
        refusal::HLT,
        refusal::STI_SHADOW,
        refusal::STACK_SEGMENT,
        refusal::SWAPGS,
        refusal::XBEGIN,
        refusal::WORLD_SWITCH,
        refusal::NARROW_BRANCH,
        refusal::APX,
        refusal::TOO_LONG,
        refusal::SEGMENT_IP_RELATIVE,
    ];
    for refusal in codes {
        assert!(named.contains(&refusal.code), "{}", refusal.code);
        assert!(!refusal.sentence.ends_with('.'), "{}", refusal.code);
    }
}

/// No input makes the decoder panic, and no length is longer than what was read.
#[rstest]
#[case::x86_64(insn_len::<LongMode>, common::spelt::<LongMode>)]
#[case::i386(insn_len::<ProtectedMode>, common::spelt::<ProtectedMode>)]
fn random_bytes_are_decoded_or_refused(
    #[case] len: fn(&[u8]) -> Option<usize>,
    #[case] spelt: fn(&[u8]) -> String,
) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..200_000 {
        let mut bytes = [0; 16];
        for chunk in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes());
        }
        let readable = &bytes[..(state % 17) as usize];
        if let Some(len) = len(readable) {
            assert!((1..=readable.len().min(MAX_INSN_LEN)).contains(&len));
        }
        assert!(!spelt(readable).is_empty());
    }
}

/// An instruction never gets shorter or longer than the mode's rules allow, whoever asks.
#[test]
fn modes_differ_where_they_must() {
    fn both(bytes: &[u8]) -> (Option<usize>, Option<usize>) {
        (insn_len::<LongMode>(bytes), insn_len::<ProtectedMode>(bytes))
    }
    let padded = |start: &[u8]| {
        let mut bytes = start.to_vec();
        bytes.resize(MAX_INSN_LEN, 0);
        bytes
    };
    // REX against INC; a 16-bit displacement; a displacement whose size the vendor decides.
    assert_eq!(both(&padded(&[0x48, 0x89, 0xe5])), (Some(3), Some(1)));
    assert_eq!(both(&padded(&[0x67, 0x8b, 0x06])), (Some(3), Some(5)));
    assert_eq!(both(&padded(&[0x66, 0xe8])), (None, Some(4)));
}
