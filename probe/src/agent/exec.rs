//! Programs that are executed in the traced one's place through functions of libc that nobody can interpose.
//!
//! `execl`, `execle` and `execlp` take any number of arguments and call libc's own `execve`, by no name; so a probe where that begins
//! puts the agent into the environment that is handed over. What comes from our own `execve` ([`super::hooks`]) has it already.
//! `fexecve` and `execveat` are treated in the same way. A system call that the program makes by itself is not seen.

use super::environment::{self, Inherited};
use super::{plant, runner};
use probe_core::handler::Flow;
use probe_core::host::Host;
use probe_core::{AnyProbe, CodeAddr};
use probe_host_linux::{Hit, Kprobe, Native, probes, set_argument};
use std::ffi::c_char;

/// The functions, and which of their arguments is the environment.
const FUNCTIONS: [(&str, usize); 4] = [("execve", 2), ("__execve", 2), ("fexecve", 2), ("execveat", 3)];

/// The probes on them; none where an emulator runs the programs, which takes the environment as its own.
pub(super) fn probes_on_functions() -> Vec<AnyProbe<Native>> {
    if runner::is_needed() {
        return Vec::new();
    }
    let mut places: Vec<(CodeAddr, usize)> = Vec::new();
    for (name, argument) in FUNCTIONS {
        probes().host().find_symbols(name, &mut |symbol| {
            let at = symbol.start.wrapping_add(usize::from(symbol.local_entry));
            let is_known = places.iter().any(|&(known, _)| known == at);
            if symbol.module.is_some_and(|module| module.starts_with("libc.")) && !is_known {
                places.push((at, argument));
            }
        });
    }
    let explained = probes().explain_all(&places.iter().map(|&(at, _)| at.into()).collect::<Vec<_>>());
    let can_be_probed = places.into_iter().zip(explained).filter(|(_, explained)| explained.is_ok());
    let probe = |at: CodeAddr, argument| {
        let pre = move |hit: &mut Hit<'_>| {
            hand_over(hit, argument);
            Flow::Continue
        };
        Kprobe::at(at).pre(pre).into()
    };
    can_be_probed.map(|((at, argument), _)| probe(at, argument)).collect()
}

/// Puts the agent into the environment that is argument number `argument` of the function that begins here.
///
/// The only handler that allocates: what it makes has to outlive it, and the agent's allocator takes no lock. It is not given back
/// where nothing could be executed.
fn hand_over(hit: &mut Hit<'_>, argument: usize) {
    plant::publish_all();
    let Some(variables) = hit.argument(argument) else { return };
    let variables = std::ptr::with_exposed_provenance::<*const c_char>(variables);
    // SAFETY: what the program hands to one of exec's functions.
    if unsafe { environment::has_agent(variables) } {
        return;
    }
    // SAFETY: as above.
    if let Some(inherited) = unsafe { Inherited::new(variables) }
        && set_argument(hit.regs_mut(), argument, inherited.as_ptr().expose_provenance()).is_some()
    {
        std::mem::forget(inherited);
    }
}
