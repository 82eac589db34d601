//! Every row of the vector files gets the plan that it names. Under Miri, which takes an hour for all of
//! them, every 40th.

mod common;

#[cfg(not(miri))]
use probe_x86_decode::{Insn, Mode, insn::Map, refusal};
use probe_x86_decode::{LongMode, MAX_INSN_LEN, ProtectedMode, insn_len};
use rstest::rstest;
#[cfg(not(miri))]
use std::collections::BTreeMap;

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
#[cfg(not(miri))]
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
        refusal::REPEATED_LOOP,
        refusal::APX,
        refusal::TOO_LONG,
        refusal::SEGMENT_IP_RELATIVE,
    ];
    for refusal in codes {
        assert!(named.contains(&refusal.code), "{}", refusal.code);
        assert!(!refusal.sentence.ends_with('.'), "{}", refusal.code);
    }
}

/// What the decoder decided, and from which opcode where that made the difference: a row of its tables.
#[cfg(not(miri))]
fn row<M: Mode>(bytes: &[u8]) -> Option<(bool, u8, String)> {
    let insn = Insn::parse::<M>(bytes)?;
    let is_escaped = match insn.map {
        Map::Primary => false,
        Map::Escape0F => true,
        _ => return None,
    };
    let plan = common::spelt::<M>(bytes);
    // What runs in a slot is what no row names.
    let is_row = !plan.starts_with("boost ") && plan != "refuse x86.undecodable";
    is_row.then_some((is_escaped, insn.opcode, plan))
}

/// Without Miri, which would take hours: every opcode of the two maps that have rows, under every prefix,
/// with every ModRM byte: what is decided about one of them is decided by a vector, too.
#[cfg(not(miri))]
fn rows_without_a_vector<M: Mode>(file: &'static str) -> BTreeMap<(bool, u8, String), Vec<u8>> {
    let mut rows = BTreeMap::new();
    let prefixes: &[&[u8]] = &[&[], &[0x66], &[0x67], &[0x64], &[0xf2], &[0xf3], &[0x48], &[0x66, 0x48]];
    for (prefix, is_escaped) in prefixes.iter().flat_map(|prefix| [(prefix, false), (prefix, true)]) {
        for opcode in 0..=u8::MAX {
            for modrm in 0..=u8::MAX {
                let mut bytes = prefix.to_vec();
                bytes.extend(is_escaped.then_some(0x0f));
                bytes.extend([opcode, modrm]);
                bytes.resize(MAX_INSN_LEN, 0x05);
                if let Some(row) = row::<M>(&bytes) {
                    let len = insn_len::<M>(&bytes).unwrap_or(MAX_INSN_LEN);
                    rows.entry(row).or_insert(bytes[..len].to_vec());
                }
            }
        }
    }
    common::vectors(file).iter().filter_map(|vector| row::<M>(&vector.bytes)).for_each(|row| {
        rows.remove(&row);
    });
    rows
}

#[cfg(not(miri))]
#[rstest]
#[case::x86_64(rows_without_a_vector::<LongMode>(common::X86_64))]
#[case::i386(rows_without_a_vector::<ProtectedMode>(common::I386))]
fn every_row_of_the_decoder_has_a_vector(#[case] missing: BTreeMap<(bool, u8, String), Vec<u8>>) {
    assert!(missing.is_empty(), "{}: {missing:02x?}", missing.len());
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
    for _ in 0..if cfg!(miri) { 100 } else { 200_000 } {
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
