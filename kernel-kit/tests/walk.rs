//! Memory by page tables that are an array: reads stop where pages end, and writes change all or nothing.
#![cfg(feature = "walk")]

use probe_core::arch::{Access, MemFault, Memory};
use probe_kernel_kit::walk::{Walk, Walked};

const PAGE: usize = 64;

/// Four small pages: writable, readable, readable, absent.
#[repr(C, align(64))]
struct Pages([u8; 4 * PAGE]);

struct Tables {
    start: usize,
}

// SAFETY: the first three pages are a variable of the test's.
unsafe impl Walk for Tables {
    const PAGE: usize = PAGE;

    fn allows(&self, addr: usize, access: Access) -> bool {
        let last = if access == Access::Write { 1 } else { 3 };
        addr.checked_sub(self.start).is_some_and(|offset| offset < last * PAGE)
    }
}

#[test]
fn reads_end_where_pages_end() {
    let pages = Pages(std::array::from_fn(|index| index as u8));
    let start = (&raw const pages).expose_provenance();
    let memory = Walked(Tables { start });
    for (offset, len, readable) in
        [(0, 8, 8), (60, 8, 8), (3 * PAGE - 5, 8, 5), (3 * PAGE, 8, 0), (1, 4 * PAGE, 3 * PAGE - 1)]
    {
        let mut out = vec![0xee; len];
        assert_eq!(memory.read_some(start + offset, &mut out), readable, "{offset}");
        let expected: Vec<u8> = (0..readable).map(|index| (offset + index) as u8).collect();
        assert_eq!(out[..readable], expected[..], "{offset}");
        assert!(out[readable..].iter().all(|byte| *byte == 0xee), "{offset}");
    }
    let fault = MemFault { addr: start + 3 * PAGE - 4, access: Access::Read };
    assert_eq!(memory.read_usize(start + 3 * PAGE - 4), Err(fault));
    assert_eq!(memory.read_some(start - 1, &mut [0; 4]), 0);
    assert_eq!(memory.read_some(usize::MAX - 2, &mut [0; 8]), 0);
}

#[test]
fn writes_change_all_or_nothing() {
    let mut pages = Pages([7; 4 * PAGE]);
    let start = (&raw mut pages).expose_provenance();
    let memory = Walked(Tables { start });
    assert_eq!(memory.write(start + 2, &[1, 2, 3]), Ok(()));
    let fault = MemFault { addr: start + PAGE - 2, access: Access::Write };
    assert_eq!(memory.write(start + PAGE - 2, &[1, 2, 3]), Err(fault));
    assert_eq!(pages.0[..6], [7, 7, 1, 2, 3, 7]);
    assert_eq!(pages.0[PAGE - 2..PAGE + 2], [7; 4]);
}
