//! The handlers: count, fetch, write into the thread's ring.
//!
//! They take no lock, allocate nothing, cannot fault and call no function of libc that could be probed. The
//! first hit of a thread takes a ring for it (and asks for its name, unless the program is confined). A
//! handler waits only with `--on-full wait`, only while the thread's ring is full, and only as long as
//! somebody reads.

use super::clock;
use super::fetch::{Plan, Scene};
use super::process::{self, Agent, Here};
use super::rule::{Rule, Verdict};
use crate::def::{End, MAX_ARGUMENT};
use crate::wire::{Count, Counters, Durations, EVENT_HEAD, Kind, Owner, Reservation, Ring, Share};
use probe_core::Misses;
use probe_core::arch::Memory;
use probe_core::handler::{Call, Hit, Return};
use probe_host_linux::Native;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};

/// One planted point, as its handlers see it. Lives for good.
pub(super) struct Point {
    pub(super) agent: &'static Agent,
    /// Its number in the image.
    pub(super) number: u32,
    pub(super) counters: &'static Counters,
    pub(super) durations: Option<&'static Durations>,
    pub(super) plans: Box<[Plan]>,
    /// What decides whether a hit counts.
    pub(super) rule: Option<&'static Rule>,
    /// Whether hits are counted in maps instead of being told.
    pub(super) is_aggregate: bool,
    /// Whether a time between two places begins or ends there.
    pub(super) is_end: bool,
    /// The most bytes of an event.
    pub(super) most: usize,
    /// Which arguments are kept from the entry to the return, one bit each.
    pub(super) entry_arguments: u32,
    /// What was already added to the shared counters.
    pub(super) published: Published,
    /// Where the command finds counters and durations.
    pub(super) offsets: (u32, u32),
}

/// Misses that this process has already added to the shared counters.
#[derive(Default)]
pub(super) struct Published {
    nested: AtomicU64,
    pool: AtomicU64,
}

/// What is kept from a call's entry to its return. Dropped where no handler sees the call return.
pub(super) struct Entered {
    point: &'static Point,
    process: u32,
    thread: u32,
    started_ns: u64,
    arguments: [usize; MAX_ARGUMENT],
}

impl Drop for Entered {
    #[cold]
    fn drop(&mut self) {
        self.point.left(self);
    }
}

/// What an event begins with.
struct Head {
    kind: Kind,
    now_ns: u64,
    duration_ns: u64,
    owner: Owner,
}

impl Point {
    /// The bytes that an event may take.
    pub(super) fn most_of(plans: &[Plan]) -> usize {
        EVENT_HEAD + plans.iter().map(Plan::most).sum::<usize>()
    }

    /// A hit of a `p` probe.
    pub(super) fn hit(&self, hit: &Hit<'_, Native>) {
        let Some(here) = process::here(self.agent).filter(|here| !here.is_muted) else { return };
        let counts = self.counters.share(here.counting);
        counts.rise(Count::Hits);
        self.publish(hit.misses());
        let scene = Scene { regs: hit.regs(), memory: &hit.memory(), entry: None, return_value: None };
        if !self.passes(&scene, &here, counts, 0) {
            return;
        }
        if let Some(open) = self.open(&here) {
            self.send(open, counts, clock::now_ns(), 0, &scene);
        }
    }

    /// A call of an `r` probe's function.
    pub(super) fn enter(&'static self, call: &Call<'_, Native>) -> Option<Entered> {
        let here = process::here(self.agent).filter(|here| !here.is_muted)?;
        self.counters.share(here.counting).rise(Count::Entered);
        let mut arguments = [0; MAX_ARGUMENT];
        let mut wanted = self.entry_arguments;
        while wanted != 0 {
            let index = wanted.trailing_zeros() as usize;
            wanted &= wanted - 1;
            if let Some(argument) = arguments.get_mut(index) {
                *argument = call.argument(index).unwrap_or(0);
            }
        }
        let (process, thread) = (here.process, here.thread());
        Some(Entered { point: self, process, thread, started_ns: clock::now_ns(), arguments })
    }

    /// The return of a call.
    pub(super) fn leave(&self, ret: &Return<'_, Native>, entered: Entered) {
        let entered = ManuallyDrop::new(entered);
        let Some(here) = process::here(self.agent) else { return };
        // An event is open before its time is taken; one that is still to be judged takes its own time then.
        let open = if self.rule.is_none() { self.open(&here) } else { None };
        let now_ns = clock::now_ns();
        let duration_ns = now_ns.saturating_sub(entered.started_ns);
        let counts = self.counters.share(here.counting);
        if here.process != entered.process {
            // A forked child returns from what its parent has called: two calls, from there on.
            counts.rise(Count::Entered);
        }
        counts.rise(Count::Hits);
        self.publish(ret.misses());
        let scene = Scene {
            regs: ret.regs(),
            memory: &ret.memory(),
            entry: Some(&entered.arguments),
            return_value: Some(ret.value()),
        };
        if !self.passes(&scene, &here, counts, duration_ns) {
            return;
        }
        if let Some(durations) = self.durations {
            durations.record(duration_ns);
        }
        let open = match (open, self.rule) {
            (None, Some(_)) => self.open(&here).map(|open| (open, clock::now_ns())),
            (open, _) => open.map(|open| (open, now_ns)),
        };
        if let Some((open, now_ns)) = open {
            self.send(open, counts, now_ns, duration_ns, &scene);
        }
    }

    /// A hit where a time between two places begins or ends.
    pub(super) fn hit_end(&self, hit: &Hit<'_, Native>, end: End) {
        let Some(here) = process::here(self.agent).filter(|here| !here.is_muted) else { return };
        let counts = self.counters.share(here.counting);
        counts.rise(Count::Hits);
        self.publish(hit.misses());
        let scene = Scene { regs: hit.regs(), memory: &hit.memory(), entry: None, return_value: None };
        self.end(&scene, &here, counts, end);
    }

    /// A return where a time between two places begins or ends.
    pub(super) fn leave_end(&self, ret: &Return<'_, Native>, entered: Entered, end: End) {
        let entered = ManuallyDrop::new(entered);
        let Some(here) = process::here(self.agent) else { return };
        let counts = self.counters.share(here.counting);
        counts.rise(Count::Hits);
        self.publish(ret.misses());
        let scene = Scene {
            regs: ret.regs(),
            memory: &ret.memory(),
            entry: Some(&entered.arguments),
            return_value: Some(ret.value()),
        };
        self.end(&scene, &here, counts, end);
    }

    fn end<M: Memory>(&self, scene: &Scene<'_, M>, here: &Here, counts: Share<'_>, end: End) {
        if end == End::From {
            if self.passes(scene, here, counts, 0) {
                process::begin_time(clock::now_ns());
            }
            return;
        }
        let Some(began_ns) = process::end_time() else { return };
        let duration_ns = clock::now_ns().saturating_sub(began_ns);
        if !self.passes(scene, here, counts, duration_ns) {
            return;
        }
        if let Some(durations) = self.durations {
            durations.record(duration_ns);
        }
        if let Some(open) = self.open(here) {
            self.send(open, counts, began_ns.saturating_add(duration_ns), duration_ns, scene);
        }
    }

    /// A call that an exception has left, or longjmp, or the end of its thread or process, has been found:
    /// in a later hit of its thread, or where threads and processes end. What it would have returned is not
    /// known, so that it passes no rule.
    fn left(&self, entered: &Entered) {
        let Some(here) = process::here(self.agent) else { return };
        if self.rule.is_some() || self.is_end || self.agent.no_events || self.agent.region.is_orphaned() {
            return;
        }
        let is_own = here.process == entered.process;
        // A fork's child has its parent's calls, too. Those that it ends in are its own.
        if !is_own && !process::is_ending() {
            return;
        }
        let thread = if is_own { entered.thread } else { here.thread() };
        let owner = Owner { pid: here.process, tid: thread };
        let Some((ring, _)) = process::thread_ring(self.agent, here.process, here.child) else {
            return self.agent.region.count_lost();
        };
        let counts = self.counters.share(here.counting);
        if ring.is_open() {
            // In the midst of another event.
            counts.rise(Count::Dropped);
            return ring.count_drop();
        }
        // A signal's handler must not begin an event in the midst of this one.
        let _alone = process::Alone::new();
        ring.open();
        let now_ns = clock::now_ns();
        let head =
            Head { kind: Kind::Left, now_ns, duration_ns: now_ns.saturating_sub(entered.started_ns), owner };
        self.write(&ring, counts, &head, |plan, room| plan.put_left(&entered.arguments, room));
    }

    /// Whether a hit counts; without a rule each does.
    #[inline]
    fn passes<M: Memory>(&self, scene: &Scene<'_, M>, here: &Here, counts: Share<'_>, took_ns: u64) -> bool {
        let Some(rule) = self.rule else { return true };
        match rule.judge(&self.plans, scene, here, took_ns) {
            Verdict::Passed => {
                counts.rise(Count::Passed);
                true
            }
            Verdict::Unjudged => {
                counts.rise(Count::Unjudged);
                false
            }
            Verdict::Failed => false,
        }
    }

    /// Begins an event, before its time is taken; `None` where no event is wanted or there is no ring.
    #[inline]
    fn open(&self, here: &Here) -> Option<(Ring<'static>, Owner)> {
        // Nobody would read the event.
        if self.agent.no_events || self.is_aggregate || self.agent.region.is_orphaned() {
            return None;
        }
        match process::thread_ring(self.agent, here.process, here.child) {
            Some((ring, owner)) => {
                ring.open();
                Some((ring, owner))
            }
            None => {
                self.agent.region.count_lost();
                None
            }
        }
    }

    fn send<M: Memory>(
        &self,
        (ring, owner): (Ring<'static>, Owner),
        counts: Share<'_>,
        now_ns: u64,
        duration_ns: u64,
        scene: &Scene<'_, M>,
    ) {
        let head = Head { kind: Kind::Event, now_ns, duration_ns, owner };
        self.write(&ring, counts, &head, |plan, room| plan.put(scene, room));
    }

    /// Writes an event, which is open, with what `put` puts for each value, and closes it.
    #[inline(always)]
    fn write(
        &self,
        ring: &Ring<'static>,
        counts: Share<'_>,
        head: &Head,
        put: impl Fn(&Plan, &mut Reservation<'static>),
    ) {
        ring.stamp(head.now_ns);
        let Some(mut room) = self.reserve(ring) else {
            counts.rise(Count::Dropped);
            ring.count_drop();
            ring.close();
            return;
        };
        room.put_u32(head.kind as u32);
        room.put_u64(head.now_ns);
        room.put_u64(head.duration_ns);
        room.put_u32(self.agent.image);
        room.put_u32(self.number);
        room.put_u32(head.owner.pid);
        room.put_u32(head.owner.tid);
        for plan in &self.plans {
            put(plan, &mut room);
        }
        room.commit();
        ring.close();
        if ring.is_half_full() {
            self.agent.region.wake();
        }
    }

    /// Makes room for an event in this thread's ring; waits for it if that is wanted. Waiting ends with
    /// whoever reads.
    #[inline]
    fn reserve(&self, ring: &Ring<'static>) -> Option<Reservation<'static>> {
        // SAFETY: the ring is this thread's own; handlers do not nest, so no other reservation is open.
        let room = unsafe { ring.reserve(self.most) };
        if room.is_some() || !self.agent.waits || !ring.can_hold(self.most) {
            return room;
        }
        loop {
            let region = &self.agent.region;
            region.wake();
            ring.wait(self.most, process::WAIT_MS);
            // SAFETY: as above.
            let room = unsafe { ring.reserve(self.most) };
            if room.is_some() || region.is_orphaned_for_sure() {
                return room;
            }
        }
    }

    /// Adds what was missed since the last time to the shared counters.
    #[inline]
    pub(super) fn publish(&self, now: Misses) {
        let add = |published: &AtomicU64, count: Count, now: u64| {
            if now > published.load(Ordering::Relaxed) {
                let before = published.fetch_max(now, Ordering::Relaxed);
                self.counters.share(None).add(count, now.saturating_sub(before));
            }
        };
        add(&self.published.nested, Count::MissedNested, now.nested);
        add(&self.published.pool, Count::MissedPool, now.pool);
    }
}
