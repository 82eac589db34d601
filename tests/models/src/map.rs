//! Models of the maps of `probe-bpf` whose slots are fought for, from their own sources.

#![allow(
    unreachable_pub,
    dead_code,
    reason = "they are a library's, and memory that others see needs no model"
)]

#[path = "../../../probe-bpf/src/map/hash.rs"]
mod hash;
#[path = "../../../probe-bpf/src/map/lines.rs"]
mod lines;
#[path = "../../../probe-bpf/src/map/texts.rs"]
mod texts;

extern crate std;

use super::{context, leaked};
use std::{assert_eq, vec};

const KEY: [u64; 2] = [1, 2];

/// Two hits of contexts with one number insert the same key: each is counted once.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_insertions() {
    let hash = leaked(hash::Hash::new(2, 1).expect("memory"));
    let other = context(move || {
        assert!(hash.add(0, KEY, 1));
        assert!(hash.add(0, KEY, 2));
    });
    assert!(hash.add(0, KEY, 10));
    other.join().unwrap();
    assert_eq!((hash.sums(), hash.lost()), (vec![(KEY, 13)], 0));
}

/// Who reads while others insert sees no key but theirs, and no sum that never was.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_reading() {
    let hash = leaked(hash::Hash::new(2, 1).expect("memory"));
    let other = context(move || hash.sums());
    assert!(hash.add(0, KEY, 1));
    assert!(hash.add(0, KEY, 2));
    let sums = other.join().unwrap();
    assert!([vec![], vec![(KEY, 1)], vec![(KEY, 3)]].contains(&sums), "{sums:?}");
}

/// Two hits of contexts give the same text a number: each finds the whole text under its own.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_texts() {
    let texts = leaked(texts::Texts::new(1).expect("memory"));
    let number = || texts.number(b"two words").expect("room");
    let read = |number| assert_eq!(texts.text(number), Some((b"two words".to_vec(), false)));
    let other = context(number);
    let own = number();
    read(own);
    read(number());
    read(other.join().unwrap());
}

/// Who reads while another context gives a text its number finds nothing, or the whole of it.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_reading_texts() {
    let texts = leaked(texts::Texts::new(1).expect("memory"));
    let other = context(move || [1, 2].map(|number| texts.text(number)));
    let own = texts.number(b"two words").expect("room");
    let whole = Some((b"two words".to_vec(), false));
    assert_eq!(texts.text(own), whole);
    let read = other.join().unwrap();
    assert!(read.iter().all(|text| text.is_none() || *text == whole), "{read:?}");
}
