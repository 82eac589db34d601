//! A small shell on the serial console, with the kernel's own files in `/debug/kprobes`.
//!
//! `ls`, `cat FILE`, `echo TEXT > FILE`, `probe SYMBOL[+OFFSET]`, `unprobe`, `open`, `fork`, `exit`.

use crate::arch::{Machine, Native, Outcome};
use crate::host::{Kernel, PROBES};
use crate::syscalls::{do_fork, do_sys_open};
use crate::{print, println, task};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use probe_core::files::Viewer;
use probe_core::{Kprobe, Place, Probe};

/// Prints through the console: what the listings are written to.
struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        print!("{text}");
        Ok(())
    }
}

/// Writes a file of `/debug/kprobes`, or `None` where there is no such file.
pub fn read(file: &str, out: &mut dyn Write) -> Option<fmt::Result> {
    match file.trim_start_matches("/debug/kprobes/") {
        "list" => Some(PROBES.files().list(out, Viewer::Privileged)),
        "enabled" => Some(PROBES.files().enabled(out)),
        "blacklist" => Some(PROBES.files().blacklist(out, Viewer::Privileged)),
        _ => None,
    }
}

/// Reads commands until `exit` or the end of the input.
pub fn run() -> Outcome {
    let mut probes = Vec::new();
    loop {
        print!("# ");
        let line = line();
        let mut words = line.split_ascii_whitespace();
        let command = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        match (command, &*rest) {
            ("", _) => {}
            ("exit", _) => return Outcome::Passed,
            ("ls", _) => println!("/debug/kprobes/blacklist\n/debug/kprobes/enabled\n/debug/kprobes/list"),
            ("cat", [file]) => match read(file, &mut Console) {
                Some(Ok(())) => {}
                Some(Err(error)) => println!("cat: {file}: {error}"),
                None => println!("cat: {file}: no such file"),
            },
            ("echo", [text, ">", "enabled" | "/debug/kprobes/enabled"]) => {
                if let Err(error) = PROBES.files().write_enabled(text) {
                    println!("echo: {error}");
                }
            }
            ("probe", [place]) => plant(place, &mut probes),
            ("unprobe", _) => probes.clear(),
            ("open", _) => println!("{}", do_sys_open(c"/etc/motd".as_ptr(), 0, 0)),
            ("fork", _) => println!("{}", do_fork(0, 0, 0, 0)),
            _ => println!("{command}: what?"),
        }
    }
}

fn plant(place: &str, probes: &mut Vec<Probe<Kernel>>) {
    let (symbol, offset) = place.split_once('+').unwrap_or((place, "0"));
    let Ok(offset) = usize::from_str_radix(offset.trim_start_matches("0x"), 16) else {
        return println!("probe: {offset} is not a hexadecimal number");
    };
    let probe =
        Kprobe::at(Place::symbol(symbol).offset(offset as isize)).pre(|hit| println!("hit {}", hit.pc()));
    match PROBES.register(probe) {
        Ok(probe) => probes.push(probe),
        Err(error) => println!("probe: {error}"),
    }
}

/// Reads a line, with echo.
fn line() -> String {
    let mut line = String::new();
    loop {
        let Some(byte) = Native::take_byte() else {
            task::yield_now();
            continue;
        };
        match byte {
            b'\r' | b'\n' => {
                print!("\n");
                return line;
            }
            8 | 0x7f if line.pop().is_some() => print!("\u{8} \u{8}"),
            b' '..=b'~' => {
                line.push(byte.into());
                print!("{}", char::from(byte));
            }
            _ => {}
        }
    }
}
