//! `/proc/self/maps`: which ranges are taken, and how they are protected.

use std::io;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First byte.
    pub(crate) start: usize,
    /// One past the last byte.
    pub(crate) end: usize,
    /// `PROT_*`.
    pub(crate) protection: i32,
    /// The file, or a name in brackets, or empty.
    pub(crate) name: String,
}

/// Reads all mappings, lowest first.
///
/// # Errors
/// There is no /proc here.
pub(crate) fn read() -> io::Result<Vec<Mapping>> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().filter_map(parse_line).collect())
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let flags = fields.next()?.as_bytes();
    let name = fields.nth(3).unwrap_or("").trim_start();
    let protection = [(0, b'r', libc::PROT_READ), (1, b'w', libc::PROT_WRITE), (2, b'x', libc::PROT_EXEC)]
        .iter()
        .filter(|(at, flag, _)| flags.get(*at) == Some(flag))
        .fold(0, |all, (_, _, bit)| all | bit);
    Some(Mapping {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        protection,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = "2a000000-2a021000 r-xp 00000000 fe:01 1234   /usr/lib/a b.so (deleted)";
        let mapping = parse_line(line).unwrap();
        assert_eq!(mapping.start, 0x2a00_0000);
        assert_eq!(mapping.protection, libc::PROT_READ | libc::PROT_EXEC);
        assert_eq!(mapping.name, "/usr/lib/a b.so (deleted)");
        let anonymous = parse_line("1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.end, anonymous.name.as_str()), (0x2000, ""));
    }

    #[test]
    fn this_function_is_mapped_executable() {
        let here = this_function_is_mapped_executable as *const () as usize;
        let maps = read().unwrap();
        let mapping = maps.iter().find(|m| (m.start..m.end).contains(&here));
        assert!(cfg!(target_abi = "elfv1") || mapping.unwrap().protection & libc::PROT_EXEC != 0);
    }
}
