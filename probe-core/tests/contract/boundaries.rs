//! REG_4 where probes stand close by.

use super::*;
use probe_core::CodeAddr;
use std::sync::Arc;

#[test]
fn reg_4_a_probe_close_by_shows_where_instructions_start() {
    let world = World::new();
    let code: Vec<u8> = std::iter::repeat_n(NOP, 4000).chain([RETURN]).collect();
    let big = world.function("big", &code);
    let reads = |offset| {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let note = move |moment| {
            seen.fetch_add(usize::from(matches!(moment, Moment::BeforeRead)), SeqCst);
        };
        *world.host().text_hook.lock().unwrap() = Some(Box::new(note));
        let probe = world.probes.register(K::at(at(big, offset))).unwrap();
        *world.host().text_hook.lock().unwrap() = None;
        (count.load(SeqCst), probe)
    };
    let (far, first) = reads(3990);
    let (close, second) = reads(3999);
    assert!(close < far && close < 8, "{far} reads, then {close}");
    drop((first, second));
    let (again, _probe) = reads(3999);
    assert!(again >= far, "{far} reads, then {again}");
}

#[test]
fn reg_4_an_unchecked_probe_close_by_shows_nothing() {
    let world = World::new();
    // Four bytes, the last of which looks like an instruction of three.
    let f = world.function("f", &[SET, 0, NOP, ADD, NOP, NOP, NOP, RETURN]);
    // SAFETY: nothing runs there.
    let place = unsafe { Place::unchecked(CodeAddr::new(f + 3)) };
    let _unchecked = world.probes.register(K::at(place)).unwrap();
    for offset in 0..8 {
        let taken = world.probes.register(K::at(at(f, offset)));
        assert_eq!(taken.is_ok(), [0, 4, 5, 6, 7].contains(&offset), "offset {offset}");
    }
}
