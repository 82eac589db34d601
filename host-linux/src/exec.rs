//! Executable memory for slots and return stubs: mapped readable and executable, never writable.

use crate::maps::{self, Mapping};
use crate::symbols::objects;
use crate::sys;
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_core::CodeAddr;

/// The lowest address for blocks: programs, allocators and guard pages assume nothing is mapped below.
const LOWEST: usize = if cfg!(target_pointer_width = "64") { 0x1_0000 } else { 0x10_0000 };

/// How much room is left free below a stack, so that it can go on growing, and above the heap.
const KEEP_CLEAR: usize = if cfg!(target_pointer_width = "64") { 64 << 20 } else { 1 << 20 };

/// Maps `len_bytes`, a power of two, aligned to itself, within `reach` bytes of `near` if the two are given.
pub(crate) fn alloc(len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let Some((near, reach)) = near else {
        return alloc_anywhere(len_bytes, protection);
    };
    let near = near.as_usize();
    if reach <= len_bytes {
        // There is one block that lies so near: no need to look for holes.
        let at = near & !(len_bytes - 1);
        let is_free = distance(at, len_bytes, near) <= reach && is_nobodys(at, len_bytes);
        return is_free.then(|| sys::map(at, len_bytes, protection).ok().map(CodeAddr::new)).flatten();
    }
    let mut candidates = gaps(len_bytes, near);
    // Nothing can be written where an object has gone until that is reported.
    let gone = objects::gone_ranges();
    candidates.retain(|&at| !gone.iter().any(|&(start, end)| start < at + len_bytes && at < end));
    candidates.sort_unstable_by_key(|&at| distance(at, len_bytes, near));
    candidates
        .into_iter()
        .take_while(|&at| distance(at, len_bytes, near) <= reach)
        .find_map(|at| sys::map(at, len_bytes, protection).ok())
        .map(CodeAddr::new)
}

/// Whether nothing can grow into a block at `at`, and no object that has been unloaded was there.
fn is_nobodys(at: usize, len_bytes: usize) -> bool {
    /// Where the main stack may lie, which stays; 0 before it is known.
    static STACK_START: AtomicUsize = AtomicUsize::new(0);
    static STACK_END: AtomicUsize = AtomicUsize::new(0);
    let mut stack = (STACK_START.load(Ordering::Relaxed), STACK_END.load(Ordering::Relaxed));
    if stack.0 == 0 || stack.1 == 0 {
        stack = stack_room(&maps::read().unwrap_or_default());
        STACK_START.store(stack.0, Ordering::Relaxed);
        STACK_END.store(stack.1, Ordering::Relaxed);
    }
    let end = at + len_bytes;
    let meets = |start: usize, stop: usize| start < end && at < stop;
    let heap_end = sys::program_break();
    at >= LOWEST
        && !meets(heap_end, heap_end.saturating_add(KEEP_CLEAR))
        && !meets(stack.0, stack.1)
        && !objects::gone_ranges().iter().any(|&(start, stop)| meets(start, stop))
}

/// Where the main stack lies and may grow to: not through what is mapped below it, under an emulator a guard.
fn stack_room(maps: &[Mapping]) -> (usize, usize) {
    let Some(index) = maps.iter().position(|mapping| mapping.name == "[stack]") else {
        return (usize::MAX, usize::MAX);
    };
    let below = index.checked_sub(1).map_or(LOWEST, |below| maps[below].end);
    (maps[index].start.saturating_sub(KEEP_CLEAR).max(below), maps[index].end)
}

/// Maps with room to align, then gives the rest back.
fn alloc_anywhere(len_bytes: usize, protection: i32) -> Option<CodeAddr> {
    let page = sys::page_len();
    if len_bytes <= page {
        return sys::map(0, page, protection).ok().map(CodeAddr::new);
    }
    let mapped = sys::map(0, 2 * len_bytes, protection).ok()?;
    let at = mapped.next_multiple_of(len_bytes);
    if at > mapped {
        // SAFETY: the range was just mapped here and nobody knows it.
        unsafe { sys::unmap(mapped, at - mapped) };
    }
    let end = at + len_bytes;
    if end < mapped + 2 * len_bytes {
        // SAFETY: as above.
        unsafe { sys::unmap(end, mapped + 2 * len_bytes - end) };
    }
    Some(CodeAddr::new(at))
}

/// The largest distance between a byte of the block at `at` and `near`.
fn distance(at: usize, len_bytes: usize, near: usize) -> usize {
    at.abs_diff(near).max((at + len_bytes).abs_diff(near))
}

/// For every hole between mappings, and behind them, the aligned block in it nearest to `near`. The hole
/// above the heap keeps room for the heap to grow, even if there is no heap yet: [`KEEP_CLEAR`], but half of
/// the hole at most (under an emulator).
fn gaps(len_bytes: usize, near: usize) -> Vec<usize> {
    let Ok(maps) = maps::read() else { return Vec::new() };
    let heap_end = sys::program_break();
    let mut found = Vec::new();
    let mut from = LOWEST;
    let ends = maps.iter().map(|mapping| {
        let below = if mapping.name == "[stack]" { KEEP_CLEAR } else { 0 };
        (mapping.start.saturating_sub(below), mapping.end)
    });
    for (to, next) in ends.chain([(usize::MAX, usize::MAX)]) {
        let grows = (from..to).contains(&heap_end);
        let clear = if grows { heap_end..heap_end + KEEP_CLEAR.min((to - heap_end) / 2) } else { to..to };
        let parts = [(from, clear.start), (clear.end, to)];
        found.extend(parts.iter().filter_map(|&(from, to)| nearest(from, to, len_bytes, near)));
        from = from.max(next);
    }
    found
}

/// The aligned block within `from..to` that lies nearest to `near`.
fn nearest(from: usize, to: usize, len_bytes: usize, near: usize) -> Option<usize> {
    let first = from.checked_next_multiple_of(len_bytes)?;
    let last = to.checked_sub(len_bytes)? & !(len_bytes - 1);
    (first <= last).then(|| (near & !(len_bytes - 1)).clamp(first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_block_of_a_hole_is_taken() {
        assert_eq!(nearest(0x1000, 0x9000, 0x1000, 0x20_0000), Some(0x8000));
        assert_eq!(nearest(0x1000, 0x9000, 0x1000, 0), Some(0x1000));
        assert_eq!(nearest(0x1000, 0x9000, 0x1000, 0x4321), Some(0x4000));
        assert_eq!(nearest(0x1001, 0x2fff, 0x1000, 0), None);
        assert_eq!(nearest(0x9000, 0x1000, 0x1000, 0), None);
    }

    #[test]
    fn a_stack_grows_as_far_as_to_what_lies_below_it() {
        let mapping = |start, end, name: &str| Mapping { start, end, protection: 0, name: name.into() };
        let stack = mapping(1 << 30, (1 << 30) + 0x1000, "[stack]");
        let alone = stack_room(std::slice::from_ref(&stack));
        assert_eq!(alone, ((1 << 30) - KEEP_CLEAR, (1 << 30) + 0x1000));
        // As QEMU lays it out: a program, a guard, the stack.
        let guard = mapping((1 << 30) - 0x1000, 1 << 30, "");
        assert_eq!(stack_room(&[guard, stack]), (1 << 30, (1 << 30) + 0x1000));
        assert_eq!(stack_room(&[]), (usize::MAX, usize::MAX));
    }

    #[test]
    fn memory_near_text_is_within_reach_and_aligned() {
        let near = CodeAddr::new(maps::read as *const () as usize);
        for len in [0x1000, 0x10000, 0x10_0000] {
            let at = alloc(len, Some((near, 1 << 30))).unwrap();
            assert_eq!(at.as_usize() % len, 0);
            assert!(at.abs_diff(near) <= 1 << 30);
            // SAFETY: just mapped, and nobody else's.
            unsafe { sys::unmap(at.as_usize(), len) };
        }
    }

    #[test]
    fn a_heap_may_go_on_growing_that_slots_are_near() {
        let heap_end = sys::program_break();
        let next = maps::read().unwrap().iter().map(|map| map.start).filter(|start| *start > heap_end).min();
        let clear_to = heap_end + KEEP_CLEAR.min((next.unwrap_or(usize::MAX) - heap_end) / 2);
        for distance in [0, KEEP_CLEAR / 2, KEEP_CLEAR] {
            let near = CodeAddr::new(heap_end + distance);
            let at = alloc(0x1000, Some((near, 1 << 30))).unwrap().as_usize();
            assert!(at + 0x1000 <= heap_end || clear_to <= at, "{at:#x} for {heap_end:#x}");
            // SAFETY: just mapped, and nobody else's.
            unsafe { sys::unmap(at, 0x1000) };
        }
    }

    #[test]
    fn memory_anywhere_is_aligned_and_executable_and_not_writable() {
        let at = alloc(0x10000, None).unwrap().as_usize();
        assert_eq!(at % 0x10000, 0);
        let maps = maps::read().unwrap();
        let mapping = maps.iter().find(|m| (m.start..m.end).contains(&at)).unwrap();
        assert_eq!(mapping.protection, libc::PROT_READ | libc::PROT_EXEC);
        // SAFETY: just mapped, and nobody else's.
        unsafe { sys::unmap(at, 0x10000) };
    }
}
