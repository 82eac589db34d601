//! Private `memcpy`, `memmove`, `memset`, `memcmp`, `bcmp`: hidden symbols, so that this object's compiled
//! code does not call libc's, and libc's can be probed like all other code.
//!
//! They are plain string instructions or byte loops: the hit path copies a few dozen words. On x86-64, where
//! a string instruction takes some thirty cycles to begin, short copies are moves.

/// The functions, whose labels are among the lines, each a symbol of this object alone.
macro_rules! string_functions {
    ($($line:expr),* $(,)?) => {
        core::arch::global_asm!(
            ".pushsection .text.probe_host_linux_mem,\"ax\",%progbits",
            ".balign 4",
            ".irp name, memcpy, memmove, memset, memcmp, bcmp",
            ".hidden \\name",
            ".globl \\name",
            ".type \\name, %function",
            ".endr",
            $($line,)*
            ".popsection",
        );
    };
}

probe_arch_native::native_module!(mod functions);

#[cfg(test)]
mod tests {
    use core::hint::black_box;

    /// Bytes that all differ from their neighbours.
    fn pattern() -> [u8; 256] {
        core::array::from_fn(|i| (i * 7 + i / 16) as u8)
    }

    #[test]
    fn copies_of_every_length_and_distance_are_exact() {
        for len in 0..100 {
            for (from, to) in (0..70).step_by(5).flat_map(|from| (0..70).map(move |to| (from, to))) {
                let before = pattern();
                let mut expected = before;
                for i in 0..len {
                    expected[to + i] = black_box(before[from + i]);
                }
                let mut moved = black_box(before);
                moved.copy_within(black_box(from..from + len), black_box(to));
                assert_eq!(moved, expected, "{len} bytes from {from} to {to}");
                let mut copied = black_box(before);
                copied[black_box(to..to + len)].copy_from_slice(&before[black_box(from..from + len)]);
                assert_eq!(copied, expected, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn what_is_set_and_compared_ends_where_it_should() {
        for len in 0..100 {
            let mut set = black_box(pattern());
            set[black_box(20..20 + len)].fill(black_box(0x5a));
            let inside = |i: usize| (20..20 + len).contains(&i);
            assert!(
                set.iter()
                    .zip(pattern())
                    .enumerate()
                    .all(|(i, (&now, was))| now == if inside(i) { 0x5a } else { was })
            );
            for other in 0..len {
                let mut changed = black_box(set);
                changed[20 + other] ^= 0x80;
                let (set, changed) = (&set[black_box(20..20 + len)], &changed[black_box(20..20 + len)]);
                assert_eq!(set.cmp(changed), 0x5au8.cmp(&0xda), "at {other} of {len}");
                assert_ne!(set, changed, "at {other} of {len}");
            }
        }
    }
}
