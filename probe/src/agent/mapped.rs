//! The agent in a program that is running already: what the command runs in its stopped threads.
//!
//! The command maps this object into the program, relocates it, and lets a stopped thread run [`ENTRY`]
//! on a stack of its own, with all signals blocked but those that a fault raises. While one thread runs,
//! all others are stopped, anywhere: so nothing here may call the program's functions, but for those that
//! only compute an address ([`super::bare`]).

use super::process::{self, Agent, Reporter};
use super::start::{self, Missing};
use super::{bare, clock, confined, environment};
use crate::wire::request::{Request, what};
use crate::wire::{Meta, Region};
use probe_host_linux::signals::NEVER_BLOCKED;
use probe_host_linux::sys::SignalSet;
use std::ffi::CStr;
use std::sync::OnceLock;

// The entry: rdi is the address of a `Request`, rsp is free below it. It ends in a trap that the command
// waits for.
std::arch::global_asm!(
    ".pushsection .text.probe_mapped_entry,\"ax\",@progbits",
    ".globl probe_mapped_entry",
    ".hidden probe_mapped_entry",
    ".type probe_mapped_entry, @function",
    "probe_mapped_entry:",
    "cld",
    "and rsp, -16",
    "xor ebp, ebp",
    "call {run}",
    "int3",
    "ud2",
    ".size probe_mapped_entry, . - probe_mapped_entry",
    ".popsection",
    run = sym run,
);

/// Does what is asked.
extern "C" fn run(request: *mut Request) {
    // SAFETY: the command's structure, which nobody else uses meanwhile.
    let request = unsafe { &mut *request };
    request.answer = match request.what {
        what::PREPARE => {
            bare::start();
            // The command reads it also where this comes to no end.
            // SAFETY: a field of the command's structure.
            unsafe { (&raw mut request.ledger).write_volatile(ledger()) };
            u64::from(prepare(&request.region))
        }
        what::START | what::FOLLOW => {
            bare::start();
            bare::learn_errno(request.errno_location as usize, request.errno_behind as isize);
            request.ledger = ledger();
            u64::from(begin(request))
        }
        what::ADOPT => adopt(request.mask),
        what::DISARM if super::later::is_planting() => 2,
        what::DISARM => u64::from(disarm()),
        what::IS_IN_HIT => u64::from(probe_host_linux::threads::is_in_hit()),
        what::FOLLOWS if super::plant::abandoned() != 0 => 2,
        what::FOLLOWS => u64::from(probe_host_linux::threads::follow_calls()),
        what::LEAVE_THREAD => probe_host_linux::leave_thread().bits(),
        what::LEAVE => {
            probe_host_linux::leave_actions();
            1
        }
        _ => 0,
    };
}

fn ledger() -> u64 {
    std::ptr::from_ref(probe_host_linux::ledger::all()).expose_provenance() as u64
}

/// The shared memory, at that path.
fn region(path: &[u8]) -> Option<Region> {
    static OPENED: OnceLock<Region> = OnceLock::new();
    if let Some(region) = OPENED.get() {
        return Some(*region);
    }
    let path = CStr::from_bytes_until_nul(path).ok()?;
    let region = Region::open(path).ok()?;
    Some(*OPENED.get_or_init(|| region))
}

/// Reads the objects that definitions name. The thread that runs this is the command's own: it has no
/// thread pointer, so nothing of the program's is called, and no thread is made known.
fn prepare(path: &[u8]) -> bool {
    region(path).is_some_and(|region| start::read_ahead(&region))
}

/// Starts and plants everything; `false` if the command has been told why not, or cannot be told.
fn begin(request: &Request) -> bool {
    let (path, loaded) = (&request.region, &request.loaded);
    let _errno = process::Errno::keep();
    let Some(region) = region(path) else { return false };
    if let [Ok(path), Ok(loaded)] = [path, loaded].map(|told| CStr::from_bytes_until_nul(told))
        && !loaded.is_empty()
    {
        environment::hand_on(loaded, path);
    }
    if !probe_host_linux::threads::learn_by_pointer() {
        return false;
    }
    let Ok(agent) = process::start(Agent::new(region, region.new_image())) else { return false };
    clock::start();
    confined::start();
    let reporter = Reporter::new(region);
    let started = start::start(agent, &reporter, Missing::Error);
    let is_started = started.is_ok();
    match started {
        Ok(()) => reporter.send(&Meta::Ready(agent.image)),
        Err(unusable) if request.what == what::FOLLOW => {
            let program = std::fs::read_link("/proc/self/exe").unwrap_or_default().display().to_string();
            reporter.send(&Meta::NotFollowed { image: agent.image, program, reason: unusable.sentence });
        }
        Err(unusable) => start::report(agent, &reporter, unusable),
    }
    drop(reporter);
    process::unmute();
    is_started
}

/// From here on the guard writes down what this thread blocks of the signals that hits raise.
fn adopt(mask: u64) -> u64 {
    let mask = SignalSet::from_bits(mask);
    if !probe_host_linux::signals::adopt(mask) {
        return mask.bits();
    }
    mask.bits() & !NEVER_BLOCKED.bits()
}

/// Takes every breakpoint and jump out of the text.
fn disarm() -> bool {
    super::plant::publish_all();
    let _errno = process::Errno::keep();
    process::give_up();
    probe_host_linux::leave_text().is_ok()
}
