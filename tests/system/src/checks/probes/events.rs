//! The files by which a kernel's user defines probes and reads what they have seen.

use super::Counter;
use crate::{cpu, shell, syscalls, targets, task};
use alloc::string::String;
use alloc::vec::Vec;
use probe_core::error::Errno;

fn write(file: &str, text: &str) {
    shell::write(file, text).unwrap_or_else(|error| panic!("{text}: {error}"));
}

fn read(file: &str) -> String {
    shell::read(file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

pub(super) fn lines() {
    let defined = "p:opens do_sys_open path=$arg1:string flags=$arg2:s32\n\
                   r4:calls/opened do_sys_open fd=$retval:s32 path=$arg1:string\n";
    write("kprobe_events", defined);
    assert_eq!(
        read("/debug/kprobes/kprobe_events"),
        "p:kprobes/opens do_sys_open path=$arg1:string flags=$arg2:s32\n\
         r4:calls/opened do_sys_open fd=$retval:s32 path=$arg1:string\n"
    );
    syscalls::do_sys_open(c"/nowhere".as_ptr(), -3, 0);
    assert_eq!(read("trace_pipe"), "", "events are disabled at first");
    write("events/enable", "1");
    syscalls::do_sys_open(c"/nowhere".as_ptr(), -3, 0);
    let text = read("trace_pipe");
    let found: Vec<_> = text.lines().collect();
    let [hit, ret] = found[..] else { panic!("not two lines: {text}") };
    let me = task::current().name;
    assert!(hit.trim_start().starts_with(&alloc::format!("{me}-0 ")), "{hit}");
    assert!(hit.contains(": opens: (do_sys_open+0x"), "{hit}");
    assert!(hit.ends_with(") path=\"/nowhere\" flags=-3"), "{hit}");
    assert!(ret.contains(": opened: (") && ret.contains(" <- do_sys_open+0x"), "{ret}");
    assert!(ret.ends_with(") fd=-2 path=\"/nowhere\""), "{ret}");
    let error = shell::write("kprobe_events", "p do_sys_opem").expect_err("there is no such function");
    assert_eq!(error.errno(), Errno::ENOENT);
    assert!(read("error_log").contains("do_sys_opem"));
    write("kprobe_events", "-:opens\n-:calls/opened");
    assert_eq!((read("kprobe_events"), read("list")), (String::new(), String::new()));
}

/// Tasks on all CPUs and the timer's interrupts record, more than there is room for, while this task reads:
/// what was read and what is said to be lost are all hits.
pub(super) fn storm() {
    const EACH: usize = 300;
    write("kprobe_events", "p:storm target_plain n=$arg1:u64\np:tick on_timer_tick cpu=$arg1:u32");
    write("events/enable", "1");
    let done = Counter::default();
    let cpus = cpu::online().count();
    let tasks: Vec<_> = (0..cpus + 1)
        .map(|number| {
            let done = done.clone();
            task::spawn("writer", move || {
                (0..EACH).for_each(|index| {
                    assert_eq!(targets::plain(number * EACH + index), number * EACH + index + 1)
                });
                done.rise();
            })
        })
        .collect();
    let mut text = String::new();
    while done.get() < tasks.len() {
        text.push_str(&read("trace_pipe"));
        task::yield_now();
    }
    tasks.iter().for_each(|task| task.join());
    write("events/enable", "0");
    text.push_str(&read("trace_pipe"));
    let lost: usize = text
        .lines()
        .filter_map(|line| line.strip_prefix("[LOST ")?.strip_suffix(" EVENTS]")?.parse::<usize>().ok())
        .sum();
    let mut storm: Vec<usize> = text
        .lines()
        .filter_map(|line| line.split_once("storm: (target_plain+0x")?.1.split_once(" n=")?.1.parse().ok())
        .collect();
    let ticks = text.lines().filter(|line| line.contains(": tick: (on_timer_tick+0x")).count();
    let hits = |name: &str| {
        let profile = read("kprobe_profile");
        let line =
            profile.lines().find(|line| line.split_whitespace().next() == Some(name)).expect("it is defined");
        line.split_whitespace().nth(1).and_then(|hits| hits.parse::<usize>().ok()).expect("a number")
    };
    assert_eq!(hits("storm"), EACH * tasks.len());
    assert_eq!(storm.len() + ticks + lost, hits("storm") + hits("tick"), "{lost} lost, {ticks} ticks");
    assert!(!storm.is_empty());
    storm.sort_unstable();
    let read = storm.len();
    storm.dedup();
    assert!(storm.len() == read && storm.iter().all(|n| *n < EACH * tasks.len()), "a record twice");
    write("kprobe_events", "-:storm\n-:tick");
}
