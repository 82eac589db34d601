//! What the probes rely on.

use super::Check;
use crate::arch::{Machine, Native};
use crate::memory::{self, ALIAS, Mapped, PAGE, PageTables, Protection};
use crate::{cpu, heap, symbols, task};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::Memory;
use probe_kernel_kit::extable::{self, FaultFree};
use probe_kernel_kit::pack::{Named, pack};
use probe_kernel_kit::packed::Packed;
use probe_kernel_kit::walk::Walked;

/// The checks of this file.
pub const CHECKS: &[Check] = &[
    ("a fault in nofault memory is an error", nofault_memory),
    ("memory by the page tables is memory by the exception table", memory_by_page_tables),
    ("text is never writable at its own address", text_is_read_only),
    ("executable memory is written through the alias only", executable_memory),
    ("SAFE_1 the page tables let no page be written and executed", page_tables),
    ("symbols are found by name and by address", kallsyms),
    ("a compressed table finds what the symbol table does", packed_symbols),
    ("every cpu takes part in a synchronisation", cpus_synchronise),
    ("tasks share the cpus", tasks_take_turns),
    ("a task that never yields is preempted", preemption),
    ("a killed task ends", killed_task_ends),
    ("nothing leaks", nothing_leaks),
];

/// An address that nothing is mapped at.
const HOLE: usize = 0x6000_0000;

fn nofault_memory() {
    assert!(FaultFree.read_usize(HOLE).is_err());
    assert!(FaultFree.write_usize(HOLE, 1).is_err());
    assert!(FaultFree.read_usize(0).is_err());
    assert_eq!(extable::read(memory::text_range().0, &mut [0; 16]), 16);
    // Up to the last byte before the hole, from any alignment.
    let end = Native::RAM.1;
    for len in [1, 7, 8, 20, 33] {
        assert_eq!(extable::read(end - len, &mut [0; 64]), len);
    }
    let mut word = 5_usize;
    let at = (&raw mut word).expose_provenance();
    assert_eq!(FaultFree.read_usize(at), Ok(5));
    assert_eq!(FaultFree.write_usize(at, 6), Ok(()));
    // SAFETY: it is this function's own variable.
    assert_eq!(unsafe { (&raw const word).read_volatile() }, 6);
}

fn memory_by_page_tables() {
    let walked = Walked(PageTables);
    let (text, end) = (memory::text_range().0, Native::RAM.1);
    // Where memory begins and ends, where a page does, nothing, and addresses that no table has.
    for at in [text - 3, text, text + PAGE - 3, end - 5, end, HOLE, 0, 8, ALIAS + end - 3] {
        let (mut one, mut other) = ([0xee; 8], [0xee; 8]);
        assert_eq!(walked.read_some(at, &mut one), extable::read(at, &mut other), "{at:#x}");
        assert_eq!(one, other, "{at:#x}");
    }
    for (at, is_written) in [(text, false), (ALIAS + text, true), (HOLE, false), (end - 8, true)] {
        let word = FaultFree.read_usize(at).unwrap_or_default();
        assert_eq!(walked.write_usize(at, word).is_ok(), is_written, "{at:#x}");
        assert_eq!(FaultFree.write_usize(at, word).is_ok(), is_written, "{at:#x}");
    }
}

fn text_is_read_only() {
    let text = memory::text_range().0;
    let before = FaultFree.read_usize(text).expect("text can be read");
    assert!(FaultFree.write_usize(text, before).is_err());
    assert_eq!(FaultFree.read_usize(text + ALIAS), Ok(before));
}

fn executable_memory() {
    let at = memory::alloc_exec(4096, None).expect("there is room");
    assert!(FaultFree.write_usize(at.as_usize(), 0).is_err());
    // SAFETY: it is ours.
    unsafe { memory::write_text(at, &[1, 2, 3, 4]) }.expect("it is mapped");
    let mut bytes = [0; 4];
    assert_eq!(extable::read(at.as_usize(), &mut bytes), 4);
    assert_eq!(bytes, [1, 2, 3, 4]);
    // SAFETY: nobody ever executed in it.
    unsafe { memory::free_exec(at, 4096) };
    assert_eq!(extable::read(at.as_usize(), &mut bytes), 0);
    // SAFETY: nothing is written, which is the point.
    assert!(unsafe { memory::write_text(CodeAddr::new(HOLE), &[0]) }.is_err());
}

fn page_tables() {
    let (start, end) = memory::text_range();
    let before = Mapped::look();
    assert_eq!(before.both, None);
    assert!(before.executable >= (end - start).div_ceil(PAGE), "{before:?}");
    assert!(before.writable > (Native::RAM.1 - Native::RAM.0) / PAGE, "memory and its alias: {before:?}");
    // What it looks for is what it sees.
    let at = memory::alloc_exec(PAGE, None).expect("there is room");
    assert_eq!(Mapped::look(), Mapped { executable: before.executable + 1, ..before });
    memory::protect(at.as_usize(), Protection::ReadWrite);
    assert_eq!(Mapped::look(), Mapped { writable: before.writable + 1, ..before });
    // SAFETY: nobody ever executed in it.
    unsafe { memory::free_exec(at, PAGE) };
    assert_eq!(Mapped::look(), before);
}

fn kallsyms() {
    let main = symbols::named("kernel_main").next().expect("kernel_main is a symbol");
    let inside = symbols::covering(main.start + main.len_bytes / 2).expect("kernel_main covers it");
    assert_eq!(inside.name, "kernel_main");
    assert!(symbols::named("no_such_function").next().is_none());
    assert!(symbols::all().count() > 50);
}

fn packed_symbols() {
    let some: Vec<_> = symbols::all().step_by(7).take(200).collect();
    let named = some.iter().map(|function| Named {
        start: function.start as u64,
        len_bytes: function.len_bytes as u64,
        local_entry: function.local_entry,
        name: function.name,
    });
    let bytes = pack(&named.collect::<Vec<_>>()).expect("they fit");
    let table = Packed::new(&bytes).expect("it was packed just now");
    for function in &some {
        let mut found = 0;
        table.named(function.name, |other| found += usize::from(other == *function));
        // What has no length covers nothing; what begins where something longer does is not the first there.
        table.covering(function.start, |other| {
            assert!(other.start == function.start && other.len_bytes >= function.len_bytes, "{other:?}");
            found += 1;
        });
        assert_eq!(found, if function.len_bytes == 0 { 1 } else { 2 }, "{function:?}");
    }
}

fn cpus_synchronise() {
    (0..100).for_each(|_| cpu::RENDEZVOUS.synchronise());
}

fn tasks_take_turns() {
    let counter = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let counter = counter.clone();
            task::spawn("counter", move || {
                for _ in 0..100 {
                    counter.fetch_add(1, Ordering::Relaxed);
                    task::yield_now();
                }
            })
        })
        .collect();
    tasks.iter().for_each(|task| task.join());
    assert_eq!(counter.load(Ordering::Relaxed), 400);
}

fn preemption() {
    let seen = Arc::new(AtomicUsize::new(0));
    let spinners: Vec<_> = (0..cpu::online().count() + 1)
        .map(|_| {
            let seen = seen.clone();
            task::spawn("spinner", move || {
                let me = task::current();
                while me.preempted.load(Ordering::Relaxed) < 2 {
                    Native::relax();
                }
                seen.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    spinners.iter().for_each(|task| task.join());
    assert_eq!(seen.load(Ordering::Relaxed), spinners.len());
}

fn killed_task_ends() {
    let victim = task::spawn("victim", || {
        loop {
            Native::relax();
        }
    });
    victim.kill();
    victim.join();
}

fn nothing_leaks() {
    let round = || {
        (0..4).for_each(|_| task::spawn("short", || ()).join());
        task::settle();
        heap::used_bytes()
    };
    let before = round();
    assert_eq!(round(), before);
}
