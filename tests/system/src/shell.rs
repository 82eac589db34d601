//! A small shell on the serial console, with the files of the probes in `/debug/kprobes`.
//!
//! `ls`, `cat FILE`, `echo TEXT > FILE`, `echo TEXT >> FILE`, `probe SYMBOL[+OFFSET]`, `unprobe`, `open`,
//! `fork`, `exit`.

use crate::arch::{Machine, Native, Outcome};
use crate::host::{Kernel, PROBES};
use crate::syscalls::{do_fork, do_sys_open};
use crate::{print, println, task};
use alloc::string::String;
use alloc::vec::Vec;
use probe_core::files::Viewer;
use probe_core::{Kprobe, Place, Probe};
use probe_kernel_kit::events::{Events, Stamps};
use probe_kernel_kit::files::{FILES, FileError};

/// This kernel's time and tasks, as hits are stamped with them.
pub struct Machines;

impl Stamps for Machines {
    fn now_ns(&self) -> u64 {
        Native::now_ns()
    }

    fn cpu(&self) -> u32 {
        Native::this_cpu().number as u32
    }

    fn comm(&self) -> [u8; 16] {
        let mut name = [0; 16];
        let task = task::current().name.as_bytes();
        name.iter_mut().zip(task).for_each(|(to, from)| *to = *from);
        name
    }
}

/// The events that `kprobe_events` defines.
pub static EVENTS: Events<Kernel, Machines, 128> = Events::new(&PROBES, Machines);

/// The file's name below `/debug/kprobes`.
fn name(file: &str) -> &str {
    file.strip_prefix("/debug/kprobes/").unwrap_or(file)
}

/// All that a file of `/debug/kprobes` reads.
pub fn read(file: &str) -> Result<String, FileError> {
    let (mut bytes, mut page) = (Vec::new(), [0; 512]);
    loop {
        let len = EVENTS.read_at(name(file), Viewer::Privileged, bytes.len(), &mut page)?;
        bytes.extend_from_slice(&page[..len]);
        if len == 0 {
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// Writes to a file of `/debug/kprobes`.
pub fn write(file: &str, text: &str) -> Result<(), FileError> {
    EVENTS.write_to(name(file), text.as_bytes())
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
            ("ls", _) => FILES.iter().for_each(|file| println!("/debug/kprobes/{file}")),
            ("cat", [file]) => match read(file) {
                Ok(text) => print!("{text}"),
                Err(error) => println!("cat: {file}: {error}"),
            },
            ("echo", [text @ .., how @ (">" | ">>"), file]) => {
                let emptied = if *how == ">" { EVENTS.truncate(name(file)) } else { Ok(()) };
                if let Err(error) = emptied.and_then(|()| write(file, &text.join(" "))) {
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
