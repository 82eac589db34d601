//! Numbers as bytes: seven bits each, the lowest first, the eighth saying that more follow (LEB128). CRC-32.

/// Appends a number.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A number with a sign as one without: 0, -1, 1, -2, …
#[inline]
pub(super) const fn folded(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

/// The reverse.
#[inline]
pub(super) const fn unfolded(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Appends bytes behind their number.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes that are read from their beginning. `None` where there are none left, or where they make no sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct From<'a>(pub(super) &'a [u8]);

impl<'a> From<'a> {
    /// The next number; one of more than 64 bits makes no sense.
    #[inline]
    pub(super) fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 63 {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }

    /// The next number, if it has 32 bits.
    pub(super) fn number32(&mut self) -> Option<u32> {
        self.number().and_then(|number| u32::try_from(number).ok())
    }

    /// As many bytes as the number before them says.
    #[inline]
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len)
    }

    /// `len` bytes.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// A text; what is no UTF-8 in it is replaced.
    pub(super) fn text(&mut self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}

/// The number of 32 bits at a place that is there.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The number of 64 bits at a place that is there.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// What a byte, and a byte before up to seven zeros, does to the checksum.
const TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u32, 0);
        while bit < 8 {
            sum = if sum & 1 != 0 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        byte = 0;
        while byte < 256 {
            let sum = tables[table - 1][byte];
            tables[table][byte] = sum >> 8 ^ tables[0][(sum & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
};

/// CRC-32 as of zlib, PNG and Ethernet, eight bytes at a time.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let at = |table: usize, word: u64, byte: u32| TABLES[table][(word >> (8 * byte) & 0xff) as usize];
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = u32::MAX;
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(sum);
        sum = (0..8).fold(0, |sum, byte| sum ^ at(7 - byte as usize, word, byte));
    }
    for &byte in rest {
        sum = sum >> 8 ^ TABLES[0][((sum ^ u32::from(byte)) & 0xff) as usize];
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_longer_ones_make_no_sense() {
        for shift in 0..64 {
            for number in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put(&mut out, number);
                assert_eq!(From(&out).number(), Some(number));
                assert_eq!(From(&out[..out.len() - 1]).number(), None, "cut");
                let signed = number.cast_signed();
                assert_eq!(unfolded(folded(signed)), signed);
            }
        }
        assert_eq!([0, -1, 1, i64::MIN].map(folded), [0, 1, 2, u64::MAX]);
        assert_eq!(From(&[0xff; 10]).number(), None);
        assert_eq!(From(&[&[0xff; 9][..], &[2]].concat()).number(), None, "65 bits");
    }

    /// The values are those of zlib's crc32.
    #[test]
    fn the_checksum_is_the_one_that_everybody_has() {
        assert_eq!(checksum(b""), 0);
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(checksum(&all), 0x2905_8c73);
    }
}
