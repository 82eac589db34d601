//! The compressed table: what was packed is found, by name and by address, and nothing else is.
#![cfg(feature = "pack")]

use probe_kernel_kit::pack::{Named, PackError, assembly, pack};
use probe_kernel_kit::packed::{MAX_NAME, Packed};
use probe_kernel_kit::symbols::Function;

fn named(start: u64, len_bytes: u64, name: &str) -> Named<'_> {
    Named { start, len_bytes, local_entry: 0, name }
}

fn covering(table: &Packed<'_>, addr: usize) -> Option<(usize, usize, String)> {
    let mut found = None;
    table.covering(addr, |function| {
        found = Some((function.start, function.len_bytes, function.name.to_owned()));
    });
    found
}

fn starts(table: &Packed<'_>, name: &str) -> Vec<usize> {
    let mut found = Vec::new();
    table.named(name, |function: Function<'_>| {
        assert_eq!(function.name, name);
        found.push(function.start);
    });
    found
}

#[test]
fn functions_are_found_by_name_and_by_address() {
    let functions = [
        named(0x3000, 8, "do_exit"),
        named(0x1000, 16, "do_fork"),
        named(0x1000, 4, "do_fork_alias"),
        named(0x2000, 8, "static_one"),
        named(0x2100, 8, "static_one"),
        Named { local_entry: 8, ..named(0x2200, 32, "größe::<[u8; 4]>") },
    ];
    let table = pack(&functions).unwrap();
    let table = Packed::new(&table).unwrap();
    assert_eq!((table.len(), table.is_empty()), (6, false));
    assert_eq!(starts(&table, "do_fork"), [0x1000]);
    assert_eq!(starts(&table, "static_one"), [0x2000, 0x2100]);
    assert!(["do_for", "do_forks", "", "zzz"].iter().all(|name| starts(&table, name).is_empty()));
    assert_eq!(covering(&table, 0x1003), Some((0x1000, 16, "do_fork".into())), "the longest");
    assert_eq!(covering(&table, 0x221f), Some((0x2200, 32, "größe::<[u8; 4]>".into())));
    for addr in [0, 0xfff, 0x1010, 0x2220, 0x3008, usize::MAX] {
        assert_eq!(covering(&table, addr), None, "{addr:#x}");
    }
    let mut all = Vec::new();
    table.for_each(|function| all.push((function.start, function.local_entry)));
    assert_eq!(all, [(0x1000, 0), (0x1000, 0), (0x2000, 0), (0x2100, 0), (0x2200, 8), (0x3000, 0)]);
}

#[test]
fn many_functions_are_all_found_and_take_less_room_than_their_names() {
    let names: Vec<String> = (0..2000)
        .map(|n| format!("<kernel::fs::inode_{n} as core::fmt::Display>::fmt::h{:08x}", n * 0x9e37 % 0x10001))
        .collect();
    let functions: Vec<_> =
        names.iter().zip(0..).map(|(name, n)| named(0xffff_0000 + n * 32, 20, name)).collect();
    let bytes = pack(&functions).unwrap();
    let table = Packed::new(&bytes).unwrap();
    for function in &functions {
        let start = function.start as usize;
        assert_eq!(starts(&table, function.name), [start]);
        assert_eq!(covering(&table, start + 19), Some((start, 20, function.name.to_owned())));
        assert_eq!(covering(&table, start + 20), None);
    }
    let plain: usize = names.iter().map(String::len).sum();
    assert!(bytes.len() - 12 * names.len() < plain / 2, "{} bytes for {plain}", bytes.len());
}

#[test]
fn what_has_no_place_is_refused() {
    let long = "x".repeat(MAX_NAME + 1);
    assert_eq!(pack(&[named(0, 1, &long)]), Err(PackError::TooLong(long.clone())));
    assert!(pack(&[named(0, 1, &long[1..])]).is_ok());
    assert_eq!(pack(&[named(0, 1, "a"), named(1 << 32, 1, "b")]), Err(PackError::TooFar("b".into())));
    assert_eq!(pack(&[named(0, 1 << 24, "a")]), Err(PackError::TooFar("a".into())));
    assert!(Packed::new(&pack(&[]).unwrap()).unwrap().is_empty());
}

#[test]
fn no_bytes_make_it_panic_or_go_on_for_ever() {
    let functions =
        [named(0x1000, 16, "do_fork"), named(0x2000, 16, "do_work"), named(0x3000, 16, "do_wait")];
    let good = pack(&functions).unwrap();
    let look = |bytes: &[u8]| {
        if let Some(table) = Packed::new(bytes) {
            let _ = (starts_of(&table, "do_work"), covering(&table, 0x2001));
        }
    };
    (0..good.len()).for_each(|len| look(&good[..len]));
    for at in 0..good.len() {
        for value in [0, 1, b'o', 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            // Not more functions than there is room for: each would be looked at.
            look(&bytes);
        }
    }
}

fn starts_of(table: &Packed<'_>, name: &str) -> usize {
    let mut count = 0;
    table.named(name, |_| count += 1);
    count
}

#[test]
fn assembly_has_every_byte() {
    let table = pack(&[named(0x1000, 16, "do_fork")]).unwrap();
    let text = assembly(&table, "symbols");
    let bytes = text.lines().filter_map(|line| line.strip_prefix(".byte "));
    let bytes: Vec<u8> = bytes.flat_map(|line| line.split(',')).map(|byte| byte.parse().unwrap()).collect();
    assert_eq!(bytes, table);
    assert!(text.contains("\nsymbols:\n") && text.contains("\nsymbols_end:\n"));
}
