//! Agents of commands that were killed.

use super::agent::{Agent, Left};
use super::failure;
use super::memory;
use super::program::Program;
use super::tracee::Tracee;
use crate::cli::failure::Failure;
use crate::wire::{Found, Placed};
use libc::pid_t;

/// Takes away the agents of commands that were killed, or that could not take everything with them.
///
/// # Errors
/// It cannot be done now, or the process is traced.
pub(super) fn take_away(program: &Program, tracee: &mut Tracee) -> Result<(), Failure> {
    let pid = tracee.pid;
    for region in program.regions().map_err(|error| failure::refused(pid, &error))? {
        let mut bytes = [0; Found::LEN];
        let found = memory::read(pid, region, &mut bytes)
            .ok()
            .and_then(|()| Found::of_bytes(&bytes, pid.cast_unsigned()));
        let Some(found) = found else {
            return Err(failure::untraceable(format!(
                "process {pid} has the agent of another `probe` in it"
            )));
        };
        let reader = found.reader_process;
        if reader == std::process::id() && !found.is_orphaned {
            // What this command is about to start.
            continue;
        }
        if !found.is_orphaned {
            let sentence =
                format!("process {pid} is traced by `probe` already (process {reader}): end that first");
            return Err(failure::untraceable(sentence));
        }
        let Some(placed) = found.placed.or_else(|| inherited(pid, found.others)) else {
            return Err(failure::untraceable(format!(
                "process {pid} was started by `probe`, and still has its agent: start it again"
            )));
        };
        if let Left::Probes(why) = Agent::new(pid, program, placed, true).take_away(tracee)? {
            return Err(failure::untraceable(format!(
                "probes of an earlier trace cannot be taken out of process {pid}: {why}"
            )));
        }
    }
    Ok(())
}

/// The agent that a fork's child has from one of these processes.
pub(super) fn inherited(pid: pid_t, others: Vec<Placed>) -> Option<Placed> {
    let maps = memory::maps(pid).ok()?;
    let is_mapped =
        |at: usize| maps.iter().any(|map| map.name.is_empty() && (map.start..map.end).contains(&at));
    let is_there = |placed: &Placed| {
        let mut head = [0; 4];
        is_mapped(placed.agent.start)
            && is_mapped(placed.stack.start)
            && memory::read(pid, placed.agent.start, &mut head).is_ok()
            && head == *b"\x7fELF"
    };
    others.into_iter().find(is_there)
}
