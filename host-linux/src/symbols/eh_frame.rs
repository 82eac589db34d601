//! Function bounds from `.eh_frame`: for code that no symbol covers.
//!
//! Looks up one FDE by the sorted table of `.eh_frame_hdr` (version 1, table encoding DW_EH_PE_datarel |
//! sdata4, which is what every linker writes), reading live memory without faulting. Source: LSB 5.0 core,
//! 10.6.

use crate::memory::read_some;

/// Finds the function that covers `at`: its first byte and its length in bytes. `header` is the address of
/// the object's `.eh_frame_hdr`.
pub(crate) fn find(header: usize, at: usize) -> Option<(usize, usize)> {
    let [version, frame_encoding, count_encoding, table_encoding] = read::<4>(header)?;
    // udata4 count, datarel sdata4 table.
    if version != 1 || count_encoding != 0x03 || table_encoding != 0x3b {
        return None;
    }
    let frame_len = match frame_encoding & 0x0f {
        0x03 | 0x0b => 4,
        0x04 | 0x0c => 8,
        0x00 => size_of::<usize>(),
        _ => return None,
    };
    let count = u32::from_ne_bytes(read(header + 4 + frame_len)?) as usize;
    let table = header + 8 + frame_len;
    let entry = |i: usize, second: usize| -> Option<usize> {
        let word = i32::from_ne_bytes(read(table + 8 * i + 4 * second)?);
        Some(header.wrapping_add_signed(word as isize))
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if entry(middle, 0)? <= at { low = middle + 1 } else { high = middle }
    }
    let (start, len) = fde(entry(low.checked_sub(1)?, 1)?)?;
    (start..start.checked_add(len)?).contains(&at).then_some((start, len))
}

/// The code that the FDE at `fde` is about.
fn fde(fde: usize) -> Option<(usize, usize)> {
    let cie_distance = i32::from_ne_bytes(read(fde + 4)?);
    let encoding = cie_encoding((fde + 4).wrapping_add_signed(-(cie_distance as isize)))?;
    let start = fde + 8;
    let (delta, len_bytes) = value(start, encoding)?;
    let base = match encoding & 0x70 {
        0x00 => 0,
        0x10 => start,
        _ => return None,
    };
    let (len, _) = value(start + len_bytes, encoding & 0x0f & !0x08)?;
    Some((base.wrapping_add_signed(delta), len as usize))
}

/// The pointer encoding that a CIE gives its FDEs.
fn cie_encoding(cie: usize) -> Option<u8> {
    let mut bytes = [0; 64];
    let len = read_some(cie, &mut bytes);
    let bytes = bytes[..len].get(8..)?;
    let mut rest = bytes.get(1..)?;
    let augmentation_len = rest.iter().position(|&byte| byte == 0)?;
    let (augmentation, after) = rest.split_at(augmentation_len);
    rest = &after[1..];
    if augmentation.first() != Some(&b'z') {
        return Some(0);
    }
    // Code alignment, data alignment, return address register, length of the augmentation data: all LEB128.
    for _ in 0..4 {
        let len = rest.iter().position(|byte| byte & 0x80 == 0)? + 1;
        rest = rest.get(len..)?;
    }
    for letter in &augmentation[1..] {
        match letter {
            b'R' => return rest.first().copied(),
            b'L' => rest = rest.get(1..)?,
            b'P' => {
                let len = match rest.first()? & 0x0f {
                    0x00 => size_of::<usize>(),
                    0x02 | 0x0a => 2,
                    0x03 | 0x0b => 4,
                    0x04 | 0x0c => 8,
                    _ => return None,
                };
                rest = rest.get(1 + len..)?;
            }
            b'S' | b'B' => {}
            _ => return None,
        }
    }
    Some(0)
}

/// One encoded value and its length in bytes.
fn value(at: usize, encoding: u8) -> Option<(isize, usize)> {
    Some(match encoding & 0x0f {
        0x00 => (isize::from_ne_bytes(read(at)?), size_of::<usize>()),
        0x03 => (u32::from_ne_bytes(read(at)?) as isize, 4),
        0x0b => (i32::from_ne_bytes(read(at)?) as isize, 4),
        0x04 | 0x0c => (i64::from_ne_bytes(read(at)?) as isize, 8),
        _ => return None,
    })
}

fn read<const LEN: usize>(at: usize) -> Option<[u8; LEN]> {
    let mut bytes = [0; LEN];
    (read_some(at, &mut bytes) == LEN).then_some(bytes)
}
