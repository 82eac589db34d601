//! What is walked: algorithms compiled for this target, and how the C library prints floating-point numbers.
//!
//! Each gives the same output whenever it runs, calls nothing whose work depends on chance or on earlier
//! runs, and writes to memory that it is given.

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod strings;

use std::fmt::Write;
use std::hint::black_box;

/// One algorithm.
pub(crate) struct Workload {
    /// Its name in the test's lines.
    pub(crate) name: &'static str,
    /// Runs it.
    pub(crate) run: fn(&mut Output),
    /// What of it is walked.
    pub(crate) scope: Scope,
}

/// What of a workload is walked.
#[derive(Clone, Copy)]
pub(crate) enum Scope {
    /// These functions, whole.
    Functions(&'static [&'static str]),
    /// Every function of the C library that the independent count has seen run, whole; and where the library
    /// has no symbols, every instruction that was run.
    CLibrary,
}

/// All of them.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "sha256",
        run: sha256,
        scope: Scope::Functions(&["walk_sha256_block", "walk_sha256_digest"]),
    },
    Workload {
        name: "sort",
        run: sort,
        scope: Scope::Functions(&["walk_quick_sort", "walk_heap_sort", "walk_sift_down"]),
    },
    Workload {
        name: "regex",
        run: regex,
        scope: Scope::Functions(&["walk_regex_search", "walk_regex_here", "walk_regex_star"]),
    },
    Workload { name: "float", run: float, scope: Scope::Functions(&["walk_newton"]) },
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    Workload { name: "strings", run: strings::strings, scope: Scope::Functions(&["walk_strings"]) },
    Workload { name: "printf", run: printf, scope: Scope::CLibrary },
];

/// What a workload has computed; never allocates.
pub(crate) struct Output {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl Output {
    const CAPACITY: usize = 4096;

    /// An empty one.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], len: 0 }
    }

    /// What was written.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn push_word(&mut self, word: u32) {
        word.to_be_bytes().into_iter().for_each(|byte| self.push(byte));
    }
}

impl Write for Output {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}

// ---- SHA-256 (FIPS 180-4) ---------------------------------------------------------------------------------

/// The round constants, 4.2.2.
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// One block, 6.2.2.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_sha256_block(state: &mut [u32; 8], block: &[u8; 64]) {
    let mut w = [0_u32; 64];
    let mut t = 0;
    while t < 64 {
        w[t] = if t < 16 {
            u32::from_be_bytes([block[4 * t], block[4 * t + 1], block[4 * t + 2], block[4 * t + 3]])
        } else {
            let (a, b) = (w[t - 15], w[t - 2]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
            w[t - 16].wrapping_add(s0).wrapping_add(w[t - 7]).wrapping_add(s1)
        };
        t += 1;
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    t = 0;
    while t < 64 {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let t1 = h.wrapping_add(s1).wrapping_add((e & f) ^ (!e & g)).wrapping_add(K[t]).wrapping_add(w[t]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t2 = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
        t += 1;
    }
    let worked = [a, b, c, d, e, f, g, h];
    t = 0;
    while t < 8 {
        state[t] = state[t].wrapping_add(worked[t]);
        t += 1;
    }
}

/// The digest of fewer than 120 bytes.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_sha256_digest(message: *const u8, len: usize, digest: &mut [u32; 8]) {
    *digest =
        [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
    let mut padded = [[0_u8; 64]; 2];
    let mut i = 0;
    while i < len {
        // SAFETY: the caller gives `len` readable bytes.
        padded[i / 64][i % 64] = unsafe { *message.wrapping_add(i) };
        i += 1;
    }
    padded[len / 64][len % 64] = 0x80;
    let blocks = (len + 9).div_ceil(64);
    let bits = (len as u64 * 8).to_be_bytes();
    i = 0;
    while i < 8 {
        padded[blocks - 1][56 + i] = bits[i];
        i += 1;
    }
    i = 0;
    while i < blocks {
        walk_sha256_block(digest, &padded[i]);
        i += 1;
    }
}

fn sha256(output: &mut Output) {
    // Two blocks: FIPS 180-2, B.2.
    let message = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    let mut digest = [0; 8];
    walk_sha256_digest(black_box(message.as_ptr()), message.len(), &mut digest);
    digest.into_iter().for_each(|word| output.push_word(word));
}

// ---- sorting ----------------------------------------------------------------------------------------------

/// Hoare's quicksort of `len` words.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_quick_sort(words: *mut u32, len: usize) {
    if len < 2 {
        return;
    }
    // SAFETY: the caller gives `len` words, and all indices below are smaller.
    let words_here = unsafe { std::slice::from_raw_parts_mut(words, len) };
    let pivot = words_here[len / 2];
    let (mut low, mut high) = (0, len - 1);
    loop {
        while words_here[low] < pivot {
            low += 1;
        }
        while words_here[high] > pivot {
            high -= 1;
        }
        if low >= high {
            break;
        }
        words_here.swap(low, high);
        low += 1;
        high -= 1;
    }
    walk_quick_sort(words, low);
    walk_quick_sort(words.wrapping_add(low), len - low);
}

/// Restores the heap below `root`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_sift_down(words: &mut [u16; 32], mut root: usize, len: usize) {
    loop {
        let mut child = 2 * root + 1;
        if child >= len {
            return;
        }
        if child + 1 < len && words[child] < words[child + 1] {
            child += 1;
        }
        if words[root] >= words[child] {
            return;
        }
        words.swap(root, child);
        root = child;
    }
}

/// Heapsort.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_heap_sort(words: &mut [u16; 32]) {
    let mut root = words.len() / 2;
    while root > 0 {
        root -= 1;
        walk_sift_down(words, root, 32);
    }
    let mut len = words.len();
    while len > 1 {
        len -= 1;
        words.swap(0, len);
        walk_sift_down(words, 0, len);
    }
}

fn sort(output: &mut Output) {
    let mut state = black_box(2_463_534_242_u32);
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut words: [u32; 40] = std::array::from_fn(|_| random());
    let mut halves: [u16; 32] = std::array::from_fn(|_| random() as u16);
    walk_quick_sort(words.as_mut_ptr(), words.len());
    walk_heap_sort(&mut halves);
    words.into_iter().for_each(|word| output.push_word(word));
    halves.into_iter().for_each(|half| output.push_word(half.into()));
}

// ---- regular expressions ----------------------------------------------------------------------------------

/// Whether `regex` (literals, `.`, `*`, `^`, `$`; ends with a zero byte) matches somewhere in `text` (the
/// same).
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn walk_regex_search(regex: *const u8, mut text: *const u8) -> bool {
    // SAFETY: ends with a zero byte.
    if unsafe { *regex } == b'^' {
        // SAFETY: both end with a zero byte.
        return unsafe { walk_regex_here(regex.wrapping_add(1), text) };
    }
    loop {
        // SAFETY: both end with a zero byte.
        if unsafe { walk_regex_here(regex, text) } {
            return true;
        }
        // SAFETY: not beyond the zero byte.
        if unsafe { *text } == 0 {
            return false;
        }
        text = text.wrapping_add(1);
    }
}

/// Whether it matches at the start of `text`.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn walk_regex_here(regex: *const u8, text: *const u8) -> bool {
    // SAFETY: ends with a zero byte.
    let first = unsafe { *regex };
    if first == 0 {
        return true;
    }
    // SAFETY: `first` was not the zero byte.
    let second = unsafe { *regex.wrapping_add(1) };
    if second == b'*' {
        // SAFETY: both end with a zero byte.
        return unsafe { walk_regex_star(first, regex.wrapping_add(2), text) };
    }
    // SAFETY: ends with a zero byte.
    let byte = unsafe { *text };
    if first == b'$' && second == 0 {
        return byte == 0;
    }
    // SAFETY: both end with a zero byte, which `text` has not reached.
    byte != 0
        && (first == b'.' || first == byte)
        && unsafe { walk_regex_here(regex.wrapping_add(1), text.wrapping_add(1)) }
}

/// Whether any number of `repeated` and then `regex` match at the start of `text`.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn walk_regex_star(repeated: u8, regex: *const u8, mut text: *const u8) -> bool {
    loop {
        // SAFETY: both end with a zero byte.
        if unsafe { walk_regex_here(regex, text) } {
            return true;
        }
        // SAFETY: not beyond the zero byte.
        let byte = unsafe { *text };
        if byte == 0 || repeated != b'.' && repeated != byte {
            return false;
        }
        text = text.wrapping_add(1);
    }
}

fn regex(output: &mut Output) {
    let texts = [c"", c"abbbbc", c"at do_open+0x4", c"aaaaab", c"the end."];
    let regexes = [c"^ab*c$", c"b*b*c", c"do_.*\x2b0x.", c"a*a*a*b$", c"^$", c"d.$", c"zz*"];
    for text in texts {
        for regex in regexes {
            let (regex, text) = (black_box(regex.as_ptr().cast()), black_box(text.as_ptr().cast()));
            // SAFETY: C strings.
            output.push(b'0' + u8::from(unsafe { walk_regex_search(regex, text) }));
        }
    }
}

// ---- floating point ---------------------------------------------------------------------------------------

/// The cube root of `x` by Newton's method, in both widths: moves between the register files, compares and
/// converts.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_newton(x: f64, rounds: u32) -> f64 {
    let mut root = x;
    let mut coarse = x as f32;
    let mut round = 0;
    while round < rounds {
        root -= (root * root * root - x) / (3.0 * root * root);
        coarse -= (coarse * coarse * coarse - x as f32) / (3.0 * coarse * coarse);
        if (root - f64::from(coarse)).abs() > 0.5 {
            coarse = root as f32;
        }
        round += 1;
    }
    root + f64::from((coarse * 8.0) as i32)
}

fn float(output: &mut Output) {
    for x in [2.0, 27.0, 1e6, -5.5, 0.001] {
        let root = walk_newton(black_box(x), 12).to_bits();
        output.push_word((root >> 32) as u32);
        output.push_word(root as u32);
    }
}

// ---- the C library ----------------------------------------------------------------------------------------

fn printf(output: &mut Output) {
    let values = [0.1, -1234.5678, 6.02214076e23, 1e-60, f64::INFINITY];
    for value in values {
        for format in [c"%.3f|", c"%+.17g|", c"%-14e|", c"%a|"] {
            let left = &mut output.bytes[output.len..];
            // SAFETY: writes into `left` only, and each format takes one double.
            let len = unsafe {
                libc::snprintf(left.as_mut_ptr().cast(), left.len(), format.as_ptr(), black_box(value))
            };
            output.len += len as usize;
        }
    }
    let left = &mut output.bytes[output.len..];
    // SAFETY: writes into `left` only, and the arguments are the format's.
    let len = unsafe {
        libc::snprintf(
            left.as_mut_ptr().cast(),
            left.len(),
            c"%08x %-5d|%*s|%c|%lld".as_ptr(),
            black_box(0xbeef_u32),
            black_box(-42),
            black_box(9),
            c"right".as_ptr(),
            i32::from(b'c'),
            black_box(i64::MIN),
        )
    };
    output.len += len as usize;
}
