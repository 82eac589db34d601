//! Models of what contexts may do to one another at the same time: the core's own sources on loom's atomics,
//! which runs them in every order that differs (with a bounded number of preemptions), and lets every load
//! see every value that the memory model allows. What breaks a promise in any of these executions fails the
//! test.
//!
//! Rules: REG_13, HIT_5, HIT_7, RET_1, RET_2, RET_6, SAFE_2.

#![allow(unreachable_pub, reason = "the toy is also included by the documentation's example")]

mod jumps;
mod machine;
mod parts;
mod registry;
mod toy;
mod ways;

use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};
use machine::{Machine, PADDING, TEXT, be, be_with, blocks_in_use, call, enter, finish, machine};
use probe_core::host::Host;
use probe_core::{CodeAddr, Place};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use toy::backend::Toy;
use ways::{Way, goes, joins};

type K = probe_core::Kprobe<Toy>;
type R = probe_core::Kretprobe<Toy>;

unsafe extern "C-unwind" {
    safe fn probe_models_begin();
    safe fn probe_models_check();
    safe fn probe_models_end();
    safe fn probe_models_free(start: usize, len_bytes: usize) -> bool;
}

/// The allocator of the system, which asks of memory that the core frees whether somebody may still use it,
/// and keeps it until the end of the test.
struct Watchful;

#[global_allocator]
static ALLOCATOR: Watchful = Watchful;

// SAFETY: the system's, but for memory that is never freed.
unsafe impl GlobalAlloc for Watchful {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !probe_models_free(memory.addr(), layout.size()) {
            // SAFETY: as the caller says.
            unsafe { System.dealloc(memory, layout) };
        }
    }
}

/// Checks every execution of `body`, of a machine, in which a thread is preempted at most so many times.
fn model(preemptions: usize, body: impl Fn(&'static Machine) + Sync + Send + 'static) {
    explore(preemptions, move || body(machine()));
}

/// The same without a machine.
fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let body = std::sync::Arc::new(body);
    builder.check(move || {
        probe_models_begin();
        let body = body.clone();
        // loom's own first thread has a stack of 32 KiB.
        context(0, move || body()).join().unwrap();
        probe_models_check();
    });
    probe_models_end();
}

/// Runs `body` as a context of its own.
fn context<T: Send + 'static>(cpu: usize, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    const STACK_WORDS: usize = 1 << 16;
    let thread = thread::Builder::new().stack_size(STACK_WORDS);
    let body = move || {
        be(cpu);
        body()
    };
    thread.spawn(body).unwrap()
}

/// What only one context at a time may change.
struct Alone(UnsafeCell<u32>);

// SAFETY: loom ends the test where two threads touch it without an order between them.
unsafe impl Sync for Alone {}
// SAFETY: a number.
unsafe impl Send for Alone {}

impl Alone {
    fn new() -> &'static Self {
        Box::leak(Box::new(Self(UnsafeCell::new(0))))
    }
    fn change(&self) {
        // SAFETY: loom's cell gives the pointer to one thread at a time, or ends the test.
        self.0.with_mut(|at| unsafe { *at += 1 });
    }
    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|at| unsafe { *at })
    }
}

/// What a handler owns: nobody may run it after it has been dropped, and what it has done comes before that.
struct Owned(&'static Alone);

impl Owned {
    fn new() -> Self {
        Self(Alone::new())
    }
    fn check(&self) {
        assert_eq!(self.0.read(), 0, "a handler runs after it has been freed");
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.change();
    }
}

fn place(offset: usize) -> Place {
    Place::addr(CodeAddr::new(TEXT + offset))
}

fn owned_probe(offset: usize) -> K {
    let owned = Owned::new();
    K::at(place(offset)).pre(move |_| owned.check())
}

#[test]
fn safe_2_a_probe_comes_while_another_context_calls() {
    model(2, |machine| {
        let other = context(1, move || assert_eq!(call(machine), 5));
        machine.register(owned_probe(0)).unwrap().leak();
        assert_eq!(call(machine), 5);
        other.join().unwrap();
    });
}

#[test]
fn reg_13_a_probe_goes_while_another_context_calls() {
    model(2, |machine| goes(machine, Way::Traps, owned_probe(0)));
}

/// The ninth probe makes the table grow from 16 entries.
#[test]
fn hit_5_the_table_grows_while_another_context_calls() {
    model(2, |machine| {
        for offset in PADDING {
            machine.register(K::at(place(offset)).pre(|_| ())).unwrap().leak();
        }
        let first = machine.register(owned_probe(0)).unwrap();
        let other = context(1, move || assert_eq!(call(machine), 5));
        machine.register(owned_probe(1)).unwrap().leak();
        other.join().unwrap();
        assert_eq!((first.counters().hits, first.counters().missed_nested), (1, 0));
        first.leak();
    });
}

/// One instance for two contexts: whoever has it has it alone, from the entry handler to the exit handler.
#[test]
fn ret_2_two_contexts_share_one_instance() {
    model(2, |machine| {
        let alone = Alone::new();
        let exits: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        let probe = R::at("f").max_active(1);
        let probe = probe.entry(move |_| {
            alone.change();
            Some(())
        });
        let probe = probe.exit(move |_, ()| {
            alone.change();
            exits.fetch_add(1, Relaxed);
        });
        let probe = machine.register(probe).unwrap();
        let other = context(1, move || assert_eq!(call(machine), 5));
        assert_eq!(call(machine), 5);
        other.join().unwrap();
        let counters = probe.counters();
        assert_eq!((counters.hits + counters.missed_pool, counters.pool_high_water), (2, 1));
        assert_eq!(counters.hits as usize, exits.load(Relaxed));
        probe.leak();
    });
}

/// There is an instance for each context, whichever it had before: no call is missed.
#[test]
fn ret_2_two_contexts_have_an_instance_each() {
    model(2, |machine| {
        let probe = machine.register(R::at("f").max_active(2).exit(|_, ()| ())).unwrap();
        let other = context(1, move || [call(machine), call(machine)]);
        assert_eq!(call(machine), 5);
        assert_eq!(other.join().unwrap(), [5; 2]);
        let counters = probe.counters();
        assert_eq!((counters.hits, counters.missed_pool), (3, 0));
        assert!((1..=2).contains(&counters.pool_high_water));
        probe.leak();
    });
}

/// One call after the other, each with another instance, leaves one for somebody else at any time.
#[test]
fn ret_2_an_instance_is_free_while_two_take_turns() {
    model(4, |machine| {
        let probe = machine.register(R::at("f").max_active(2).exit(|_, ()| ())).unwrap();
        // Processor 1 takes number 0 first, as it did last, and 2 number 1, which it has had since it had
        // followed a call.
        be(1);
        let held = enter(machine);
        be(2);
        assert_eq!([call(machine), call(machine)], [5; 2]);
        be(1);
        assert_eq!(finish(machine, held), 5);
        let others = context(1, move || {
            let first = call(machine);
            be(2);
            [first, call(machine)]
        });
        be(0);
        assert_eq!(call(machine), 5);
        assert_eq!(others.join().unwrap(), [5; 2]);
        let counters = probe.counters();
        assert_eq!((counters.hits, counters.missed_pool), (6, 0));
        probe.leak();
    });
}

/// Two instances, of which processor 0 owns one more than there are numbers: never are three calls followed.
#[test]
fn ret_2_the_owners_instance_is_one_of_those_that_there_are() {
    let counts = |machine: &'static Machine, owner_first: bool| {
        let probe = machine.register(R::at("f").max_active(2).exit(|_, ()| ())).unwrap();
        let counts = || {
            let counters = probe.counters();
            (counters.hits, counters.missed_pool, counters.pool_high_water)
        };
        be(0);
        assert_eq!(call(machine), 5);
        assert_eq!(counts(), (1, 0, 1));
        let (first, second) = if owner_first { (0, 1) } else { (1, 0) };
        be(first);
        let held = enter(machine);
        be(second);
        let also_held = enter(machine);
        assert_eq!(counts(), (3, 0, 2));
        for cpu in [0, 1] {
            be_with(cpu, 2);
            assert_eq!(call(machine), 5);
        }
        assert_eq!(counts(), (3, 2, 2));
        be(first);
        assert_eq!(finish(machine, held), 5);
        be_with(second, 2);
        assert_eq!(call(machine), 5);
        be(second);
        assert_eq!(finish(machine, also_held), 5);
        assert_eq!(counts(), (4, 2, 2));
        probe.leak();
    };
    model(0, move |machine| counts(machine, true));
    model(0, move |machine| counts(machine, false));
}

/// A task returns on processor 1 from the call that it has entered on processor 0, which takes its own
/// instance again.
#[test]
fn ret_2_the_owner_takes_again_what_came_back_elsewhere() {
    model(2, |machine| {
        let alone = Alone::new();
        let probe = R::at("f").max_active(2);
        let probe = probe.entry(move |_| {
            alone.change();
            Some(())
        });
        let probe = probe.exit(move |_, ()| alone.change());
        let probe = machine.register(probe).unwrap();
        let held = enter(machine);
        // The other instance, so that the next call is followed only where the first has come back.
        be_with(0, 1);
        let also_held = enter(machine);
        let other = context(0, move || {
            be_with(0, 2);
            assert_eq!(call(machine), 5);
        });
        be_with(1, 0);
        assert_eq!(finish(machine, held), 5);
        other.join().unwrap();
        be_with(0, 1);
        assert_eq!(finish(machine, also_held), 5);
        let counters = probe.counters();
        assert_eq!((counters.hits + counters.missed_pool, counters.pool_high_water), (3, 2));
        probe.leak();
    });
}

/// The return probe goes while a call is followed: the call returns, its handler runs before or not at all.
#[test]
fn ret_6_a_return_probe_goes_while_a_call_is_followed() {
    model(2, |machine| {
        let owned = Owned::new();
        let probe = R::at("f").max_active(1).entry(|_| Some(())).exit(move |_, ()| owned.check());
        goes(machine, Way::Traps, probe);
    });
}

/// The return probe goes while a call that was given up returns: by way of its instance, or of the stub that
/// was left.
#[test]
fn ret_6_a_return_probe_goes_while_a_call_that_was_given_up_returns() {
    model(2, |machine| {
        let probe = machine.register(R::at("f").max_active(1).exit(|_, ()| ())).unwrap();
        let thread = machine.host().task().expect("a task runs");
        // SAFETY: no other task runs on its stack.
        unsafe { thread.own_every_stack() };
        let coroutine = enter(machine);
        machine.events().task_exit(thread);
        let other = context(1, move || assert_eq!(finish(machine, coroutine), 5));
        drop(probe);
        other.join().unwrap();
        machine.settle();
        assert_eq!(blocks_in_use(), 1, "the slots'");
    });
}

#[test]
fn reg_11_a_second_probe_comes_and_goes_while_another_context_calls() {
    model(2, |machine| joins(machine, Way::Traps));
}

/// A breakpoint goes and comes again between two looks of whoever has run into it.
#[test]
fn hit_5_a_probe_goes_and_comes_again_while_another_context_calls() {
    model(3, |machine| {
        let probe = machine.register(owned_probe(0)).unwrap();
        let other = context(1, move || assert_eq!(call(machine), 5));
        drop(probe);
        machine.register(owned_probe(0)).unwrap().leak();
        other.join().unwrap();
    });
}
