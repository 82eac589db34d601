//! Programs that are executed in the traced one's place through functions of libc that cannot be interposed.
//!
//! `execl`, `execle` and `execlp` take any number of arguments and call libc's own `execve`, which binds to
//! no symbol, as does `posix_spawn`. So a probe at its start puts the agent into the environment, or takes it
//! out. An environment that comes from our own `execve` ([`super::hooks`]) has it already. `fexecve` and
//! `execveat` are treated in the same way. A system call that the program makes without libc is not seen.

use super::environment::Changed;
use super::executed::File;
use super::{debuggers, places, plant, runner};
use probe_core::{AnyProbe, CodeAddr};
use probe_host_linux::{Hit, Kprobe, Native, probes, set_argument};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

/// The functions.
const FUNCTIONS: [(&str, Function); 4] = [
    ("execve", Function::Path),
    ("__execve", Function::Path),
    ("fexecve", Function::Descriptor),
    ("execveat", Function::At),
];

/// What one of them takes.
#[derive(Clone, Copy)]
enum Function {
    /// A path, arguments, an environment.
    Path,
    /// A descriptor, arguments, an environment.
    Descriptor,
    /// A folder, a path, arguments, an environment, flags.
    At,
}

impl Function {
    /// Which argument is the environment.
    fn environment(self) -> usize {
        match self {
            Self::Path | Self::Descriptor => 2,
            Self::At => 3,
        }
    }

    /// What it executes.
    fn file(self, hit: &Hit<'_>) -> Option<File> {
        Some(match self {
            Self::Path => File::path(hit.argument(0)?),
            Self::Descriptor => File::Opened(hit.argument(0)? as c_int),
            Self::At => File::at(hit.argument(0)? as c_int, hit.argument(1)?, hit.argument(4)? as c_int),
        })
    }

    /// What takes its place in a child that asks to be debugged.
    fn debugged(self) -> *const () {
        match self {
            Self::Path => debuggers::execve as *const (),
            Self::Descriptor => debuggers::fexecve as *const (),
            Self::At => debuggers::execveat as *const (),
        }
    }
}

/// Whether there are probes on them.
static IS_SEEN: AtomicBool = AtomicBool::new(false);

/// Whether executions are seen here.
#[cfg(not(feature = "mapped"))]
pub(super) fn is_seen() -> bool {
    IS_SEEN.load(Ordering::Relaxed)
}

/// The probes on them; none where an emulator runs the programs, which takes the environment as its own.
pub(super) fn probes_on_functions() -> Vec<AnyProbe<Native>> {
    if runner::is_needed() {
        return Vec::new();
    }
    let mut places: Vec<(CodeAddr, Function)> = Vec::new();
    for (name, function) in FUNCTIONS {
        places::find_in_libc(name, &mut |at| {
            if !places.iter().any(|&(known, _)| known == at) {
                places.push((at, function));
            }
        });
    }
    let checked = probes().check_all(&places.iter().map(|&(at, _)| (at.into(), false)).collect::<Vec<_>>());
    let can_be_probed = places.into_iter().zip(checked).filter(|(_, checked)| checked.is_ok());
    let probe = |at: CodeAddr, function: Function| {
        let pre = move |hit: &mut Hit<'_>| {
            hand_over(hit, function);
            debuggers::lead_execution(hit, function.debugged())
        };
        Kprobe::at(at).pre(pre).into()
    };
    let probes: Vec<_> = can_be_probed.map(|((at, function), _)| probe(at, function)).collect();
    IS_SEEN.store(!probes.is_empty(), Ordering::Relaxed);
    probes
}

/// Changes the environment with which the function that begins here executes a program.
///
/// The only handler that allocates: the environment has to outlive it, and the agent's allocator takes no
/// lock. The memory is not given back if nothing could be executed.
fn hand_over(hit: &mut Hit<'_>, function: Function) {
    plant::publish_all();
    let argument = function.environment();
    let Some(variables) = hit.argument(argument) else { return };
    let variables = std::ptr::with_exposed_provenance::<*const c_char>(variables);
    // SAFETY: what the program hands to one of exec's functions.
    if let Some(changed) = unsafe { Changed::new(function.file(hit), variables) }
        && set_argument(hit.regs_mut(), argument, changed.as_ptr().expose_provenance()).is_some()
    {
        std::mem::forget(changed);
    }
}
