//! The hit path allocates nothing (HIT_4): an allocator that aborts inside a hit.

mod common;

use common::in_thread;
use probe_host_linux::{Jprobe, Kprobe, Kretprobe, probes};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

struct Guarded;

/// Set while only hits happen.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

fn check() {
    if FORBIDDEN.load(Relaxed) {
        std::process::abort();
    }
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        check();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn alloc_step(x: usize) -> usize {
    black_box(x) + 1
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn alloc_boost(x: usize) -> usize {
    black_box(x) + 2
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn alloc_return(x: usize) -> usize {
    if x == 0 { 0 } else { black_box(alloc_return(x - 1)) + 1 }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn alloc_jump(x: usize) -> usize {
    black_box(x) + 3
}

extern "C" fn work(_: *mut libc::c_void) -> *mut libc::c_void {
    for i in 0..100 {
        assert!(alloc_step(i) == i + 1 && alloc_boost(i) == i + 2);
        assert!(alloc_return(4) == 4 && alloc_jump(i) == i + 3);
    }
    core::ptr::null_mut()
}

#[test]
fn hit_4_a_hit_allocates_nothing() {
    extern "C" fn nothing() {}
    let all = (
        probes().register(Kprobe::at("alloc_step").pre(|_| ()).post(|_| ())).unwrap(),
        probes().register(Kprobe::at("alloc_boost").pre(|_| ())).unwrap(),
        probes()
            .register(Kretprobe::at("alloc_return").max_active(3).entry(|_| Some(7_u64)).exit(|_, _| ()))
            .unwrap(),
        // SAFETY: a handler without arguments fits every function.
        probes().register(unsafe { Jprobe::at("alloc_jump", nothing as extern "C" fn()) }).unwrap(),
    );
    // A new thread's very first hit, too. (glibc allocates a thread's structures with its own allocator.)
    FORBIDDEN.store(true, Relaxed);
    in_thread(work);
    work(core::ptr::null_mut());
    FORBIDDEN.store(false, Relaxed);
    assert_eq!(all.0.counters().hits, 200);
    assert_eq!(all.1.counters().hits, 200);
    assert_eq!(all.2.counters().hits + all.2.counters().missed_pool, 1000);
    assert_eq!(all.3.counters().hits, 200);
    drop(all);
}
