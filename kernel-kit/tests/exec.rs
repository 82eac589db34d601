//! Windows of addresses that nothing lies at: who gets which, and who gets none.
#![cfg(feature = "exec")]

use probe_core::CodeAddr;
use probe_kernel_kit::exec::{ExecMemory, Pages};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const PAGE: usize = 4096;

/// What is mapped.
#[derive(Default)]
struct Tables {
    windows: Vec<Range<usize>>,
    mapped: Mutex<BTreeSet<usize>>,
    is_out_of_memory: AtomicBool,
}

// SAFETY: the windows are this test's.
unsafe impl Pages for &Tables {
    fn windows(&self) -> &[Range<usize>] {
        &self.windows
    }

    fn map(&self, at: usize, len_bytes: usize) -> bool {
        let has_memory = !self.is_out_of_memory.load(SeqCst);
        for page in (at..at + len_bytes).step_by(PAGE).filter(|_| has_memory) {
            assert!(self.mapped.lock().unwrap().insert(page), "{page:#x} twice");
        }
        has_memory
    }

    fn unmap(&self, at: usize, len_bytes: usize) {
        for page in (at..at + len_bytes).step_by(PAGE) {
            assert!(self.mapped.lock().unwrap().remove(&page), "{page:#x} is not mapped");
        }
    }
}

/// A window that begins in the middle of an aligned 64 pages, and a far one.
fn windows() -> Tables {
    Tables { windows: vec![0x10_3000..0x18_0000, 0x4000_0000..0x4000_8000], ..Tables::default() }
}

fn at(memory: Option<CodeAddr>) -> Option<usize> {
    memory.map(CodeAddr::as_usize)
}

#[test]
fn memory_is_aligned_to_its_length_and_comes_back() {
    let tables = windows();
    let memory = ExecMemory::<_, 5>::new(&tables);
    assert_eq!(at(memory.alloc(1, None)), Some(0x10_3000));
    assert_eq!(at(memory.alloc(4 * PAGE, None)), Some(0x10_4000));
    assert_eq!(at(memory.alloc(3 * PAGE, None)), Some(0x10_8000));
    // Across words of bits.
    assert_eq!(at(memory.alloc(64 * PAGE, None)), Some(0x14_0000));
    assert_eq!(at(memory.alloc(64 * PAGE, None)), None);
    assert_eq!(tables.mapped.lock().unwrap().len(), 1 + 4 + 4 + 64);
    // SAFETY: nobody executes anywhere.
    unsafe { memory.free(CodeAddr::new(0x10_4000), 4 * PAGE) };
    assert_eq!(at(memory.alloc(2 * PAGE, None)), Some(0x10_4000));
    // SAFETY: as above.
    unsafe { memory.free(CodeAddr::new(0x14_0000), 64 * PAGE) };
    // What is free before a page in use is free after it was found to be too little.
    let between = CodeAddr::new(0x16_0000);
    assert_eq!(at(memory.alloc(PAGE, Some((between, PAGE)))), Some(0x15_f000));
    assert_eq!(at(memory.alloc(64 * PAGE, None)), None);
    assert_eq!(at(memory.alloc(16 * PAGE, Some((CodeAddr::new(0x14_8000), 8 * PAGE)))), Some(0x14_0000));
    for (at, pages) in [(0x14_0000, 16), (0x15_f000, 1)] {
        // SAFETY: as above.
        unsafe { memory.free(CodeAddr::new(at), pages * PAGE) };
    }
    assert_eq!(at(memory.alloc(64 * PAGE, None)), Some(0x14_0000));
    assert!(memory.contains(0x10_3000, 8) && !memory.contains(0x17_ffff, 2) && !memory.contains(0, 1));
}

#[test]
fn memory_is_near_or_there_is_none() {
    let tables = windows();
    let memory = ExecMemory::<_, 5>::new(&tables);
    let near = |place: usize, reach| at(memory.alloc(PAGE, Some((CodeAddr::new(place), reach))));
    assert_eq!(near(0x4000_3800, 0x1000), Some(0x4000_3000));
    assert_eq!(near(0x4000_3800, 0x1000), None);
    assert_eq!(near(0x17_f000, 0x1000), Some(0x17_e000));
    assert_eq!(near(0x17_f000, 0x1000), Some(0x17_f000));
    assert_eq!(near(0x17_f000, 0x1000), None);
    assert_eq!(near(usize::MAX, 0x1000), None);
    assert_eq!(near(0x20_0000, usize::MAX), Some(0x10_3000));
}

#[test]
fn without_memory_nothing_is_taken() {
    let tables = windows();
    let memory = ExecMemory::<_, 5>::new(&tables);
    tables.is_out_of_memory.store(true, SeqCst);
    assert_eq!(at(memory.alloc(PAGE, None)), None);
    tables.is_out_of_memory.store(false, SeqCst);
    assert_eq!(at(memory.alloc(PAGE, None)), Some(0x10_3000));
    // Too few words for the second window: it is as if it were full.
    let few = ExecMemory::<_, 4>::new(&tables);
    assert_eq!(at(few.alloc(PAGE, Some((CodeAddr::new(0x4000_0000), 0x10000)))), None);
}

#[test]
fn no_page_is_given_twice() {
    let tables = windows();
    let memory = ExecMemory::<_, 5>::new(&tables);
    std::thread::scope(|scope| {
        for number in 0..4_usize {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..200_usize {
                    // 128 pages straddle words; others are a part of one.
                    let len = PAGE << ((number + round) % 6);
                    if let Some(got) = memory.alloc(len, None) {
                        // SAFETY: nobody executes anywhere.
                        unsafe { memory.free(got, len) };
                    }
                }
            });
        }
    });
    assert!(tables.mapped.lock().unwrap().is_empty());
    assert_eq!(at(memory.alloc(64 * PAGE, None)), Some(0x14_0000));
}
