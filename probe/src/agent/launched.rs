//! The constructor: everything that happens before the first instruction of the program's own objects.
//!
//! The agent is linked with `-z initfirst` (DF_1_INITFIRST), so the dynamic linker calls its constructor
//! before those of all other objects, libc's included, and before the program's DT_PREINIT_ARRAY. By then
//! everything has been relocated, and libc can make system calls, has thread-local storage and its loader's
//! services; only the variables that its own constructor sets (`environ`) are missing. Code that runs earlier
//! is not seen: the dynamic linker itself with the functions that it calls (its `malloc`), and the resolvers
//! of indirect functions. Only one object can be first: where another one asks to be (libpthread before glibc
//! 2.34), that one is.

use super::plant::{self, Unusable};
use super::process::{self, Agent, Reporter};
use super::start::{Missing, report, start};
use super::{clock, confined, debuggers, environment, hooks, quiet, runner};
use crate::wire::{Meta, Region};
use std::ffi::{c_char, c_int};

/// The linker's list of constructors: run by the dynamic linker before `main`, and by it alone.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = constructor;

/// The list of destructors: run by `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

/// The destructor that runs last: the object's own clean-up (`__cxa_finalize`) lies between the two.
#[used]
#[unsafe(link_section = ".fini_array.00001")]
static LAST_DESTRUCTOR: extern "C" fn() = last_destructor;

/// The exit status of a process that is ended before its `main`.
const FAILED: c_int = 2;

unsafe extern "C" fn constructor(_argc: c_int, _argv: *mut *mut c_char, variables: *mut *mut c_char) {
    let _errno = process::Errno::keep();
    // SAFETY: the dynamic linker passes the program's environment.
    let Some(path) = (unsafe { environment::region(variables) }) else { return };
    let Ok(region) = Region::open(path) else { return };
    // SAFETY: what libc's own constructor will do a moment later, with the same pointer; no other thread
    // exists.
    unsafe { environment::publish(variables) };
    if region.flags().follow {
        // SAFETY: as above.
        unsafe { environment::leave(variables) };
    } else {
        // SAFETY: as above; the program has not started, so nobody else reads it.
        unsafe { environment::take_out(variables) };
    }
    let image = region.new_image();
    let is_first = image == 1;
    if debuggers::is_left_alone(&region, image) {
        return;
    }
    let Ok(agent) = process::start(Agent::new(region, image)) else { return };
    clock::start();
    confined::start();
    hooks::start();
    quiet::start();
    runner::start();
    let reporter = Reporter::new(region);
    match start(agent, &reporter, if is_first { Missing::Error } else { Missing::LeftOut }) {
        Ok(()) => reporter.send(&Meta::Ready(image)),
        Err(unusable) if is_first => fail(agent, &reporter, unusable),
        // An executed child that does not have what the definitions want runs untraced.
        Err(_) => {}
    }
    drop(reporter);
    process::unmute();
}

extern "C" fn destructor() {
    process::end_calls();
    plant::publish_all();
    process::mute();
}

extern "C" fn last_destructor() {
    process::unmute();
}

/// Tells the command why, and ends the process before its `main`.
fn fail(agent: &Agent, reporter: &Reporter, unusable: Unusable) -> ! {
    report(agent, reporter, unusable);
    // SAFETY: ends the process; nothing of the program's has run that wants to be tidied up.
    unsafe { libc::_exit(FAILED) }
}
