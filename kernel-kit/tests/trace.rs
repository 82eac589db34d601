//! The buffer of records: nothing is lost unless it is counted, and nothing is read twice or half.
#![cfg(feature = "files")]

use probe_kernel_kit::trace::{RECORD_LEN, Taken, Trace};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

fn write<const CELLS: usize>(trace: &Trace<CELLS>, text: &str) -> bool {
    trace.begin().map(|mut record| record.put(text.as_bytes())).is_some()
}

fn read<const CELLS: usize>(trace: &Trace<CELLS>, most: usize) -> Vec<String> {
    let mut found = Vec::new();
    trace.drain(|record| {
        if found.len() == most {
            return Taken::No;
        }
        found.push(String::from_utf8(record.to_vec()).unwrap());
        Taken::Yes
    });
    found
}

#[test]
fn records_are_read_once_and_in_order() {
    let trace = Trace::<4>::new();
    assert!(read(&trace, 9).is_empty());
    // More often than there are cells, so that each is used again.
    for round in 0..10 {
        let texts: Vec<_> = (0..3).map(|index| format!("{round}.{index}")).collect();
        assert!(texts.iter().all(|text| write(&trace, text)));
        assert_eq!(read(&trace, 2), texts[..2], "a reader without room comes back for the rest");
        assert_eq!(read(&trace, 9), texts[2..]);
    }
    assert_eq!((trace.dropped(), trace.written()), (0, 30));
}

#[test]
fn what_finds_no_room_is_counted_and_overwrites_nothing() {
    let trace = Trace::<4>::new();
    let written = (0..6).filter(|index| write(&trace, &index.to_string())).count();
    assert_eq!((written, trace.dropped()), (4, 2));
    assert_eq!(read(&trace, 9), ["0", "1", "2", "3"]);
    assert!(write(&trace, "6"));
    assert_eq!(read(&trace, 9), ["6"]);
}

#[test]
fn a_record_has_an_end() {
    let trace = Trace::<1>::new();
    let mut record = trace.begin().unwrap();
    record.put(&[b'a'; RECORD_LEN - 1]);
    record.put(b"bcd");
    assert!(record.spare().is_empty());
    drop(record);
    assert_eq!(read(&trace, 1), ["a".repeat(RECORD_LEN - 1) + "b"]);
}

#[test]
fn a_hit_in_a_hit_writes_while_the_outer_one_does() {
    let trace = Trace::<4>::new();
    let mut outer = trace.begin().unwrap();
    outer.put(b"out");
    assert!(write(&trace, "inner"));
    assert!(read(&trace, 9).is_empty(), "the outer one came first, and is not written yet");
    outer.put(b"er");
    drop(outer);
    assert_eq!(read(&trace, 9), ["outer", "inner"]);
}

#[test]
fn one_reader_at_a_time() {
    let trace = Trace::<4>::new();
    write(&trace, "a");
    let inner = |_: &[u8]| {
        assert_eq!(trace.drain(|_| Taken::Yes), None);
        Taken::Yes
    };
    assert_eq!(trace.drain(inner), Some(1));
    assert_eq!(trace.drain(|_| Taken::Yes), Some(0));
}

#[test]
fn many_write_and_one_reads_and_nothing_is_lost() {
    const WRITERS: usize = 4;
    const EACH: usize = if cfg!(miri) { 50 } else { 20_000 };
    static TRACE: Trace<8> = Trace::new();
    static DONE: AtomicUsize = AtomicUsize::new(0);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for index in 0..EACH {
                    // All bytes are the same: half a record would show.
                    let words = [writer * EACH + index; 4].map(usize::to_ne_bytes);
                    while TRACE.begin().map(|mut record| record.put(words.as_flattened())).is_none() {
                        thread::yield_now();
                    }
                }
                DONE.fetch_add(1, SeqCst);
            });
        }
        let mut next = [0; WRITERS];
        loop {
            let is_last = DONE.load(SeqCst) == WRITERS;
            TRACE.drain(|record| {
                let words: Vec<_> =
                    record.chunks(8).map(|word| usize::from_ne_bytes(word.try_into().unwrap())).collect();
                assert!(words.len() == 4 && words.iter().all(|word| *word == words[0]), "{words:?}");
                let writer = words[0] / EACH;
                assert_eq!(words[0] % EACH, next[writer], "each writer's records in order");
                next[writer] += 1;
                Taken::Yes
            });
            if is_last {
                break;
            }
            thread::yield_now();
        }
        assert_eq!(next, [EACH; WRITERS]);
    });
}
