//! A record says what was written, as far as it goes, whatever was done to it.

use super::block::MOST_KNOWN;
use super::*;
use crate::def::{Argument, Definition, MAX_STACK};
use crate::wire::{EXACT, FAULT, Histogram, TRUNCATED, Values};
use std::ops::ControlFlow;

const DEFINITION: &str = "r:all f a=$arg1:u8 b=$arg2:s16 c=$arg3:x64[3] d=$arg4:char e=$arg5:string[2] g=$arg6:symbol h=$arg7:b3@4/32 i=$arg8:s64";

fn args() -> Vec<Argument> {
    Definition::parse(DEFINITION, &[]).unwrap().args
}

fn probes() -> [Fact; 2] {
    let probe = |text: &str, is_return, args| {
        Fact::Probe(Probe { text: text.into(), label: "all".into(), is_return, args })
    };
    [probe(DEFINITION, true, args()), probe("p g", false, Vec::new())]
}

fn place(probe: u32, name: &str) -> Fact {
    let (symbol, object) = (name.into(), "x.so".into());
    Fact::Place { image: 7, probe, addr: u64::MAX - 1, offset: 4, name: name.into(), symbol, object }
}

/// A value as it stands in a ring.
fn value(word: u32, bytes: &[u8]) -> Vec<u8> {
    [&word.to_ne_bytes(), bytes].concat()
}

fn number(bytes: &[u8]) -> Vec<u8> {
    value(bytes.len() as u32, bytes)
}

/// The values of [`DEFINITION`]; `bad`: the one that could not be read.
fn values(bad: Option<usize>) -> Vec<u8> {
    let mut all = [
        number(&[200]),
        number(&(-2_i16).to_ne_bytes()),
        number(&[1_u64, u64::MAX, 0].map(u64::to_ne_bytes).concat()),
        number(&[0xff]),
        value(3 | TRUNCATED, b"a\xffb"),
        value(0, b""),
        number(&0x1234_5678_9abc_u64.to_ne_bytes()),
        number(&u32::MAX.to_ne_bytes()),
        number(&i64::MIN.to_ne_bytes()),
    ];
    if let Some(bad) = bad {
        all[bad] = value(FAULT, b"");
    }
    all.concat()
}

fn end() -> End {
    let mut times = Histogram { count: 2, sum_ns: 30, min_ns: 10, max_ns: 20, ..Histogram::default() };
    (times.buckets[10], times.buckets[20]) = (3, 1);
    let row =
        Row { name: "all".into(), from_pattern: true, counts: [1, 2, 3, 4, u64::MAX], ..Row::default() };
    let timed = Row { judged: Some((5, 6)), times: Some(times), ..row.clone() };
    End {
        rows: vec![row, timed],
        refused: vec![Refused { definition: "p *".into(), reason: "no".into(), symbol: "f".into() }],
        not_followed: vec![NotFollowed { program: "/bin/x".into(), reason: "it is".into(), times: 300 }],
        never_planted: vec!["p nowhere".into()],
        lost_by: vec![Loss { pid: 1, tid: 2, comm: *b"0123456789abcdef", events: 9 }],
        lost: 3,
        garbled: 4,
        ran_ns: 5,
        ended: "exited with 0".into(),
        program: "/bin/x".into(),
    }
}

/// A record in two blocks of events, and how long it was after each.
fn record() -> (Vec<u8>, Vec<usize>) {
    let mut writer = Writer::new(Vec::new(), Head::here(77)).unwrap();
    let mut lens = vec![writer.get().len()];
    probes().iter().chain(&[place(0, "all"), place(1, "g")]).for_each(|fact| writer.fact(fact).unwrap());
    let all = values(None);
    let hit = |time_ns, place, tid, values| Hit {
        time_ns,
        place,
        pid: 1,
        tid,
        comm: *b"name\0\0\0\0\0\0\0\0\0\0\0\0",
        duration_ns: 12,
        is_left: false,
        values: Values(values),
    };
    let name = |addr: u64, _| Some(format!("f+{addr:#x}"));
    writer.event(&hit(100, 0, 1, &all), name).unwrap();
    writer.event(&hit(90, 1, 2, b""), name).unwrap();
    writer.flush().unwrap();
    lens.push(writer.get().len());
    let bad: Vec<Vec<u8>> = (0..9).map(|bad| values(Some(bad))).collect();
    bad.iter().for_each(|values| writer.event(&hit(u64::MAX, 0, 1, values), |_, _| None).unwrap());
    writer.set_lost(3);
    writer.finish(&end()).unwrap();
    lens.push(writer.get().len());
    (writer.get().clone(), lens)
}

/// What a record says, in words.
fn said(bytes: &[u8]) -> (Vec<String>, String) {
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(stop) => return (Vec::new(), format!("{stop:?}")),
    };
    let mut all = Vec::new();
    let stop = reader.read(|item| {
        all.push(match item {
            Item::Fact(fact) => format!("{fact:?}"),
            Item::End(end) => format!("{end:?}"),
            Item::Event(event) => {
                let values: Vec<_> = event.values.collect();
                let name = event.names.get(0x1234_5678_9abc);
                let task = (event.pid, event.tid, event.comm);
                format!(
                    "{} {:?} {task:?} {} {values:?} {name:?}",
                    event.time_ns, event.duration_ns, event.place.name
                )
            }
        });
        ControlFlow::Continue(())
    });
    (all, format!("{stop:?}"))
}

/// A stack is told once, with its frames' names, and stands in each event as in a ring.
#[test]
fn stacks_are_told_once_and_read_as_they_were() {
    let mut writer = Writer::new(Vec::new(), Head::here(0)).unwrap();
    let definition = Definition::parse("p f", &[]).unwrap().with_stack(8);
    let probe =
        Probe { text: "p f".into(), label: "f".into(), is_return: false, args: definition.args.clone() };
    [Fact::Probe(probe), place(0, "f")].iter().for_each(|fact| writer.fact(fact).unwrap());
    let value = |words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        [&(bytes.len() as u32).to_ne_bytes()[..], &bytes].concat()
    };
    let short = value(&[0, EXACT | 0x7f00_0000_1000, 0x40_1000, EXACT | 0x7f00_0000_2000, 1]);
    let long = value(&[1; 2 + MAX_STACK]);
    let all = [&short, &value(&[2]), &long, &value(&[1, u64::MAX >> 1, EXACT]), &short];
    let mut named = Vec::new();
    for (time_ns, values) in (0..).zip(all) {
        let values = Values(values);
        let hit =
            Hit { time_ns, place: 0, pid: 1, tid: 1, comm: [0; 16], duration_ns: 0, is_left: false, values };
        let name = |addr, naming| {
            named.push((addr, naming));
            Some("g\ta.c:1\nf\ta.c:2".into())
        };
        writer.event(&hit, name).unwrap();
    }
    // Where a call returns to is named by the call.
    let places = [0x7f00_0000_1000, 0x40_0fff, 0x7f00_0000_2000, 0, u64::MAX / 2 - 1];
    assert_eq!(named, places.map(|place| (place, Naming::Frame)));
    writer.flush().unwrap();
    let bytes = writer.get().clone();
    let mut read = Vec::new();
    let _ = Reader::new(&*bytes).unwrap().read(|item| {
        if let Item::Event(event) = item {
            assert_eq!(event.names.get(0x40_0fff), Some("g\ta.c:1\nf\ta.c:2"));
            read.push(event.values.0.to_vec());
        }
        ControlFlow::Continue(())
    });
    let fault = FAULT.to_ne_bytes().to_vec();
    let want = all.map(|value| if *value == long { fault.clone() } else { value.clone() });
    assert_eq!(read, want, "one that nobody walks is none");
}

/// Word by word what a ring of this machine holds, but for what could not be read: that has no bytes.
#[test]
fn evt_1_a_record_says_what_was_written() {
    let (bytes, _) = record();
    let mut reader = Reader::new(&*bytes).unwrap();
    assert_eq!(reader.head(), Head::here(77));
    let (mut facts, mut events, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let stop = reader.read(|item| {
        match item {
            Item::Fact(fact) => facts.push(fact.clone()),
            Item::End(end) => ends.push(*end),
            Item::Event(event) => {
                assert_eq!((event.pid, &event.comm[..5]), (1, &b"name\0"[..]));
                assert_eq!(event.duration_ns, event.probe.is_return.then_some(12));
                events.push((event.time_ns, event.tid, event.place_number, event.values.0.to_vec()));
                assert!(event.place.point.addr == u64::MAX - 1 && event.place.point.offset == 4);
            }
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(stop, Stop::End), "{stop:?}");
    assert_eq!((ends, reader.lost()), (vec![end()], 3));
    let mut want = vec![(100, 1, 0, values(None)), (90, 2, 1, Vec::new())];
    want.extend((0..9).map(|bad| (u64::MAX, 1, 0, values(Some(bad)))));
    assert_eq!(events, want);
    // What names its arguments came from is not told; all else of the probes is.
    let told = |args: &[Argument]| args.iter().map(|arg| (arg.name.clone(), arg.ty)).collect::<Vec<_>>();
    let Fact::Probe(probe) = &facts[0] else { panic!("{facts:?}") };
    assert_eq!((&*probe.text, told(&probe.args)), (DEFINITION, told(&args())));
    assert_eq!(facts[1..4], [probes()[1].clone(), place(0, "all"), place(1, "g")]);
}

#[test]
fn a_call_that_was_left_is_told_from_one_that_returned() {
    let mut writer = Writer::new(Vec::new(), Head::here(0)).unwrap();
    let args = Definition::parse("r f n=$arg1:u8", &[]).unwrap().args;
    let probe = Probe { text: "r f".into(), label: String::new(), is_return: true, args };
    [Fact::Probe(probe), place(0, "f")].iter().for_each(|fact| writer.fact(fact).unwrap());
    let fault = FAULT.to_ne_bytes();
    let known = number(&[7]);
    let all =
        [(false, 1, &known[..]), (true, 2, &known), (true, 2, &fault), (false, 2, &fault), (true, 1, &known)];
    for (time_ns, (is_left, tid, values)) in (10..).zip(all) {
        let (duration_ns, comm, values) = (time_ns - 5, [0; 16], Values(values));
        let hit = Hit { time_ns, place: 0, pid: 1, tid, comm, duration_ns, is_left, values };
        writer.event(&hit, |_, _| None).unwrap();
    }
    writer.flush().unwrap();
    let bytes = writer.get().clone();
    let mut read = Vec::new();
    let _ = Reader::new(&*bytes).unwrap().read(|item| {
        if let Item::Event(event) = item {
            assert_eq!(event.span_ns(), Some(event.time_ns - 5));
            assert_eq!(event.duration_ns.is_none(), event.left_ns.is_some());
            read.push((event.left_ns.is_some(), event.tid, event.values.0.to_vec()));
        }
        ControlFlow::Continue(())
    });
    assert_eq!(read, all.map(|(is_left, tid, values)| (is_left, tid, values.to_vec())));
}

/// A record of an earlier version is read: it has no calls that were left.
#[test]
fn evt_2_earlier_versions_are_read_and_later_ones_refused() {
    let (bytes, _) = record();
    let of_version = |version: u16| {
        let mut bytes = bytes.clone();
        bytes[12..14].copy_from_slice(&version.to_le_bytes());
        let sum = super::bytes::checksum(&bytes[..28]);
        bytes[28..32].copy_from_slice(&sum.to_le_bytes());
        said(&bytes)
    };
    assert_eq!(of_version(1), said(&bytes));
    for version in [0, VERSION + 1, u16::MAX] {
        assert_eq!(
            of_version(version),
            (Vec::new(), format!("Damaged {{ at: 0, damage: Version({version}) }}"))
        );
    }
}

#[test]
fn an_address_has_the_name_that_it_had_then() {
    let (bytes, _) = record();
    let (said, _) = said(&bytes);
    let named = |text: &&String| text.contains("f+0x123456789abc");
    let events: Vec<&String> = said.iter().filter(|text| text.starts_with(['1', '9'])).collect();
    assert!(events.len() > 9 && events[..2].iter().all(named), "{events:#?}");
    assert!(!events[2..].iter().any(named), "{events:#?}");
}

/// EVT_2: a record ends where it was cut, and what stands before that is all there.
#[test]
fn evt_2_a_record_is_readable_up_to_where_it_was_cut() {
    let (bytes, lens) = record();
    let (whole, _) = said(&bytes);
    for len in 0..bytes.len() {
        let (some, stop) = said(&bytes[..len]);
        assert_eq!(some, whole[..some.len()], "{len} bytes");
        assert!(stop.starts_with("Cut") || len == 0 && stop.contains("NoRecord"), "{len} bytes: {stop}");
        assert!(len < lens[1] || some.len() >= 8, "{len} bytes: what had been written is there");
    }
}

/// EVT_2: no byte can be changed so that another record comes out.
#[test]
fn evt_2_a_changed_byte_is_noticed() {
    let (bytes, _) = record();
    let (whole, _) = said(&bytes);
    for at in 0..bytes.len() {
        for bit in [1, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= bit;
            let (some, stop) = said(&changed);
            assert_eq!(some, whole[..some.len()], "byte {at}");
            assert!(!stop.starts_with("End"), "byte {at}");
        }
    }
}

#[test]
fn more_tasks_and_names_than_are_remembered_are_forgotten_on_both_sides() {
    let mut writer = Writer::new(Vec::new(), Head::here(0)).unwrap();
    let args = Definition::parse("p f $arg1:symbol", &[]).unwrap().args;
    let probe = Probe { text: "p f".into(), label: String::new(), is_return: false, args };
    writer.fact(&Fact::Probe(probe)).unwrap();
    writer.fact(&place(0, "f")).unwrap();
    const EVENTS: u32 = 2 * MOST_KNOWN as u32 + 5;
    for tid in 0..EVENTS {
        let address = number(&u64::from(tid).to_ne_bytes());
        let values = Values(&address);
        let hit =
            Hit { time_ns: 1, place: 0, pid: 1, tid, comm: [0; 16], duration_ns: 0, is_left: false, values };
        writer.event(&hit, |addr, _| Some(addr.to_string())).unwrap();
    }
    writer.flush().unwrap();
    let mut next = 0;
    let stop = Reader::new(&**writer.get()).unwrap().read(|item| {
        if let Item::Event(event) = item {
            assert_eq!((event.tid, event.names.get(next.into())), (next, Some(&*next.to_string())));
            next += 1;
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(stop, Stop::Cut { .. }) && next == EVENTS, "{stop:?} after {next}");
}

#[test]
fn what_comes_before_a_time_is_left_out() {
    let (bytes, _) = record();
    let mut reader = Reader::new(&*bytes).unwrap();
    reader.skip_until(95);
    let mut times = Vec::new();
    reader.read(|item| {
        if let Item::Event(event) = item {
            times.push(event.time_ns);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(times, [vec![100], vec![u64::MAX; 9]].concat());
}

/// The same bytes as another machine writes: docs/record-format.md's example.
#[test]
fn a_record_has_no_byte_order_of_its_machine() {
    let mut writer =
        Writer::new(Vec::new(), Head { word_bytes: 8, is_big_endian: false, began_ns: 1 }).unwrap();
    let args = Definition::parse("p f n=$arg1:s32", &[]).unwrap().args;
    let (text, label) = ("p f n=$arg1:s32".into(), "f".into());
    writer.fact(&Fact::Probe(Probe { text, label, is_return: false, args })).unwrap();
    let place = |name: &str| (name.to_owned(), name.to_owned());
    let (name, symbol) = place("f");
    writer
        .fact(&Fact::Place { image: 1, probe: 0, addr: 0x1000, offset: 0, name, symbol, object: "x".into() })
        .unwrap();
    let values = number(&(-300_i32).to_ne_bytes());
    let values = Values(&values);
    let hit = Hit {
        time_ns: 1000,
        place: 0,
        pid: 5,
        tid: 6,
        comm: *b"x\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        duration_ns: 0,
        is_left: false,
        values,
    };
    writer.event(&hit, |_, _| None).unwrap();
    writer.flush().unwrap();
    let hex: String = writer.get().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, EXAMPLE.concat());
}

/// The checksums are Python's (`zlib.crc32`).
const EXAMPLE: [&str; 14] = [
    // The head: name, version, word, order, begin, reserved, checksum.
    "8950524f42455245430d0a1a",
    "02000801",
    "010000000000000000000000",
    "e63196b5",
    // A block with facts.
    "505242462e000000",
    "00000000000000000000000000000000000000000000000000000000",
    "211c0cc7d507e580",
    "01190f702066206e3d24617267313a73333201660001016e010200",
    "040b0100802000016601660178",
    "050405060178",
    // A block with an event.
    "5052424506000000",
    "e803000000000000e803000000000000010000000000000000000000",
    "07516ac03f851c29",
    "00000100d704",
];
