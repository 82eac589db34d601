//! `kprobe_events` and its family, on a toy machine whose functions are really called.
#![cfg(feature = "files")]

#[allow(dead_code, unreachable_pub, unused_imports, reason = "the core's own tests use the rest")]
#[path = "../../probe-core/tests/contract/toy/mod.rs"]
mod toy;

use probe_core::error::Errno;
use probe_core::files::Viewer;
use probe_kernel_kit::events::{Events, Stamps};
use probe_kernel_kit::files::FILES;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use toy::{ADD, DATA, JUMP, NOP, RETURN, ToyHost, World};

/// A clock that goes on by 1.5 ms at each question.
struct Clock(AtomicU64);

impl Stamps for Clock {
    fn now_ns(&self) -> u64 {
        2_000_000_000 + self.0.fetch_add(1_500_000, SeqCst)
    }

    fn cpu(&self) -> u32 {
        3
    }

    fn task(&self) -> u32 {
        42
    }

    fn comm(&self) -> [u8; 16] {
        *b"init\0\0\0\0\0\0\0\0\0\0\0\0"
    }
}

type Toys = Events<ToyHost, Clock, 8>;

/// A world with `next`, which adds one to its argument.
fn world() -> (&'static World, &'static Toys, usize) {
    let world = World::new();
    let next = world.function("next", &[NOP, ADD, 0, 1, RETURN]);
    let events = Box::leak(Box::new(Events::new(&world.probes, Clock(AtomicU64::new(0)))));
    (world, events, next)
}

fn read(events: &Toys, file: &str) -> String {
    // In pieces of an odd size, as a program with a small buffer does.
    let (mut text, mut piece) = (Vec::new(), [0; 7]);
    loop {
        let len = events.read_at(file, Viewer::Privileged, text.len(), &mut piece).unwrap();
        if len == 0 {
            return String::from_utf8(text).unwrap();
        }
        text.extend_from_slice(&piece[..len]);
    }
}

fn write(events: &'static Toys, file: &str, text: &str) {
    events.write_to(file, text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
}

fn refused(events: &'static Toys, file: &str, text: &str) -> Errno {
    events.write_to(file, text.as_bytes()).unwrap_err().errno()
}

#[test]
fn a_line_becomes_an_event_and_its_hits_become_lines() {
    let (world, events, next) = world();
    write(events, "kprobe_events", "p:mine/seen next n=$arg1:u32 %r1 c=\\0x41:char who=$comm\n");
    assert_eq!(
        read(events, "kprobe_events"),
        "p:mine/seen next n=$arg1:u32 r1=%r1 c=\\0x41:char who=$comm\n"
    );
    assert_eq!(world.value(next, &[4]), 5);
    assert_eq!(read(events, "trace_pipe"), "", "an event is disabled at first");
    write(events, "events/mine/seen/enable", "1\n");
    assert_eq!(world.value(next, &[5, 6]), 6);
    assert_eq!(
        read(events, "trace_pipe"),
        "            init-42      [003]     2.000000: seen: (next+0x0) n=5 r1=0x6 c='A' who=\"init\"\n"
    );
    assert_eq!(read(events, "trace_pipe"), "", "each line once");
    write(events, "events/mine/seen/enable", "0");
    assert_eq!(world.value(next, &[5]), 6);
    assert_eq!(read(events, "trace_pipe"), "");
    assert_eq!(read(events, "kprobe_profile"), format!("  {:<44} {:>15} {:>15}\n", "seen", 1, 0));
}

#[test]
fn a_return_has_its_value_and_the_arguments_of_its_entry() {
    let (world, events, next) = world();
    write(events, "kprobe_events", "r:out next $retval:s8 was=$arg1:u16\nr8 next%return now=$arg2");
    assert_eq!(
        read(events, "kprobe_events"),
        "r:kprobes/out next retval=$retval:s8 was=$arg1:u16\nr8:kprobes/r_next_0 next now=$arg2\n"
    );
    write(events, "events/kprobes/out/enable", "1");
    assert_eq!(world.value(next, &[0xfffe]), 0xffff);
    let line = read(events, "trace_pipe");
    assert!(line.contains(" out: (") && line.ends_with(" <- next+0x0) retval=-1 was=65534\n"), "{line}");
}

#[test]
fn memory_is_read_and_what_is_not_there_is_a_fault() {
    let (world, events, next) = world();
    let at = world.arena() + DATA;
    world.put(at, b"\x01\x02\x03\x04hello\0");
    world.put(at + 64, &(at + 4).to_ne_bytes());
    write(
        events,
        "kprobe_events",
        "p:e next +0($arg1):x8[3] +4($arg1):string far=+0(+64($arg1)):string gone=+0($arg2):u32 \
         gs=+0($arg2):string bits=+0($arg1):b4@8/32 s=$arg3:symbol f=@next:x8",
    );
    write(events, "events/enable", "1");
    world.value(next, &[at, 8, next + 1]);
    let line = read(events, "trace_pipe");
    let bits = if cfg!(target_endian = "little") { 2 } else { 3 };
    assert!(
        line.ends_with(&format!(
            ": e: (next+0x0) value1={{0x1,0x2,0x3}} value2=\"hello\" far=\"hello\" gone=(fault) gs=(fault) \
             bits={bits} s=next+0x1 f=0xcc\n"
        )),
        "{line}"
    );
}

#[test]
fn a_long_string_leaves_room_for_what_stands_behind_it() {
    let (world, events, next) = world();
    let at = world.arena() + DATA;
    world.put(at, &[b'x'; 400]);
    write(events, "kprobe_events", "p:e next s=+0($arg1):string n=$arg2:u64");
    write(events, "events/enable", "1");
    world.value(next, &[at, 77]);
    let line = read(events, "trace_pipe");
    assert!(line.contains(&"x".repeat(100)) && line.ends_with("x\" n=77\n"), "{line}");
}

#[test]
fn a_long_string_of_an_array_leaves_room_for_those_behind_it() {
    let (world, events, next) = world();
    let at = world.arena() + DATA;
    let long = at + 64;
    let pointers = [long, long + 398, long + 399].map(usize::to_ne_bytes).concat();
    world.put(at, &pointers);
    world.put(long, &[b'x'; 400]);
    world.put(long + 400, b"\0");
    write(events, "kprobe_events", "p:e next s=+0($arg1):string[3] n=$arg2:u64");
    write(events, "events/enable", "1");
    world.value(next, &[at, 77]);
    let line = read(events, "trace_pipe");
    assert!(line.contains(&"x".repeat(100)) && line.ends_with("x\",\"\",\"\"} n=77\n"), "{line}");
}

#[test]
fn records_outlive_their_event() {
    let (world, events, next) = world();
    write(events, "kprobe_events", "p:e next $arg1");
    write(events, "events/enable", "1");
    world.value(next, &[1]);
    write(events, "kprobe_events", "-:kprobes/e\np:e next other=$arg2");
    write(events, "events/enable", "1");
    world.value(next, &[1, 2]);
    let text = read(events, "trace_pipe");
    let ends: Vec<_> = text.lines().map(|line| line.split(") ").nth(1).unwrap()).collect();
    assert_eq!(ends, ["arg1=0x1", "other=0x2"]);
    events.truncate("kprobe_events").unwrap();
    assert_eq!((read(events, "kprobe_events"), read(events, "list")), (String::new(), String::new()));
}

#[test]
fn lost_records_are_said() {
    let (world, events, next) = world();
    write(events, "kprobe_events", "p:e next $arg1:u8");
    write(events, "events/enable", "1");
    (0..11).for_each(|n| assert_eq!(world.value(next, &[n]), n + 1));
    let text = read(events, "trace_pipe");
    assert!(text.starts_with("[LOST 3 EVENTS]\n"), "{text}");
    assert_eq!(text.lines().skip(1).filter(|line| line.contains(" arg1=")).count(), 8);
    assert!(text.ends_with(" arg1=7\n"), "{text}");
}

#[test]
fn names_are_as_in_linux() {
    let (world, events, next) = world();
    let at = format!("{next:#x}");
    world.function_in("other", Some("module"), &[NOP, RETURN]);
    let text = format!("# a comment\n\np next+1\np {at}+1 # another\np module:other\np:g/e next\n");
    write(events, "kprobe_events", &text);
    let mut names = Vec::new();
    events.for_each(|group, name| names.push(format!("{group}/{name}"))).unwrap();
    assert_eq!(names, ["kprobes/p_next_1", &format!("kprobes/p_{at}"), "kprobes/p_other_0", "g/e"]);
    assert_eq!(read(events, "events/g/enable"), "0\n");
    write(events, "events/g/e/enable", "1");
    assert_eq!(read(events, "events/enable"), "X\n");
    assert_eq!(read(events, "events/g/enable"), "1\n");
    write(events, "events/enable", "1");
    assert_eq!(read(events, "events/enable"), "1\n");
    write(events, "kprobe_events", "-:p_next_1\n-:g/\n");
    assert_eq!(read(events, "kprobe_events").lines().count(), 2);
}

#[test]
fn what_is_refused_changes_nothing_and_says_where() {
    let (world, events, _) = world();
    world.function("far", &[JUMP, 0, 0, 0, 0]);
    write(events, "kprobe_events", "p:e next");
    for (line, errno, part) in [
        ("p:e next", Errno::EEXIST, "an event `kprobes/e` already"),
        ("p nowhere", Errno::ENOENT, "nowhere"),
        ("p far+2", Errno::EILSEQ, ""),
        ("-:f", Errno::ENOENT, "no event `f`"),
        ("-:", Errno::EINVAL, "name is missing"),
        ("x next", Errno::EINVAL, "    ^"),
        ("p doub*", Errno::EINVAL, "may have many"),
        ("p a.ko:0x10", Errno::EINVAL, "no offsets"),
        ("p next %rax", Errno::EINVAL, "\n           ^^^^"),
        ("p next @nowhere", Errno::EINVAL, "`nowhere` is not among"),
        ("p next +0($arg1):x64[64]", Errno::EINVAL, "take 576 bytes"),
    ] {
        assert_eq!(refused(events, "kprobe_events", line), errno, "{line}");
        let said = read(events, "error_log");
        assert!(said.contains(part), "{line}: {said}");
        assert_eq!(read(events, "kprobe_events"), "p:kprobes/e next\n");
    }
    assert_eq!(refused(events, "events/e/enable", "1"), Errno::ENOENT, "a group `e/`");
    assert_eq!(refused(events, "events/kprobes/e/enable", "2"), Errno::EINVAL);
    assert_eq!(refused(events, "list", "1"), Errno::ENOENT);
    assert_eq!(events.write_to("enabled", &[0xff]).unwrap_err().errno(), Errno::EINVAL);
    assert!(events.read_at("nothing", Viewer::Privileged, 0, &mut []).is_err());
}

#[test]
fn the_files_are_there_and_read_from_any_offset() {
    let (world, events, next) = world();
    write(events, "kprobe_events", "p:e next");
    for file in FILES {
        let mut whole = [0; 4096];
        let len = events.read_at(file, Viewer::Privileged, 0, &mut whole).unwrap();
        assert_eq!(read(events, file).as_bytes(), &whole[..len], "{file}");
        assert_eq!(events.read_at(file, Viewer::Privileged, len, &mut whole).unwrap(), 0, "{file}");
    }
    assert!(read(events, "list").ends_with("  k  next+0x0    [DISABLED]\n"));
    assert_eq!(read(events, "enabled"), "1\n");
    write(events, "enabled", "0\n");
    write(events, "events/enable", "1");
    assert_eq!(world.value(next, &[1]), 2);
    assert_eq!(read(events, "trace_pipe"), "");
}

#[test]
fn a_handler_gets_no_file() {
    let (world, events, next) = world();
    let probe = probe_core::Kprobe::at("next").pre(move |_| {
        let error = events.read_at("trace_pipe", Viewer::Privileged, 0, &mut [0]).unwrap_err();
        assert_eq!(error.errno(), Errno::EBUSY);
        assert_eq!(events.write_to("kprobe_events", b"p:e next").unwrap_err().errno(), Errno::EBUSY);
    });
    let probe = world.probes.register(probe).unwrap();
    assert_eq!(world.value(next, &[1]), 2);
    assert_eq!(probe.counters().hits, 1);
}
