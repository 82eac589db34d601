//! A Linux process as a host of probe-core: probes in any code of the process that this crate is linked into.
//!
//! ```no_run
//! use probe_host_linux::{Kprobe, Kretprobe, probes};
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//!
//! static CALLS: AtomicU64 = AtomicU64::new(0);
//!
//! let opened = probes().register(Kprobe::at("opendir").pre(|_hit| {
//!     CALLS.fetch_add(1, Relaxed);
//! }))?;
//! let sizes = probes().register(
//!     Kretprobe::at("malloc").entry(|call| call.argument(0)).exit(|ret, size| drop((ret.value(), size))),
//! )?;
//! drop((opened, sizes)); // unregisters
//! # Ok::<(), probe_core::error::RegisterError>(())
//! ```
//!
//! In the order of reading: `host` the host itself · [`process`] how it starts · [`signals`] the traps and
//! the program's own handlers · [`threads`] what every thread has · [`text`] writing code · `exec` memory for
//! code · `memory` access that cannot fault · `sync` core synchronisation · `symbols` names both ways ·
//! `blacklist` what must not be probed · `unwind` exceptions and backtraces through return probes · `clock`
//! the time where the counter is forbidden · `watch` watchpoints · `arch` what differs between architectures
//! · [`sys`] the kernel's interface.
//!
//! # Where it may be called
//! Registering and removing: anywhere but in a handler, as a lock is taken, memory is allocated and the
//! loader is asked. Handlers run in a signal handler (kprobes, entry handlers) or right after a return
//! (return handlers): they should neither allocate nor take locks that the probed code may hold.
//!
//! # What it does not see to
//! A breakpoint that is hit while SIGTRAP is blocked kills the process. A [`guard::guard`] keeps SIGTRAP from
//! being blocked by libc, and by the program through it. Without one, the program itself must not block
//! SIGTRAP, and code that libc runs with all signals blocked (parts of `posix_spawn` and `pthread_create`)
//! must not be probed. The guard also tells a child that shares the memory and thread-local storage of a
//! running thread (`clone` with `CLONE_VM` only) from that thread, if libc makes it; without the guard, or
//! made in another way, the child is taken for that thread.

mod abi;
mod arch;
mod atomics;
mod blacklist;
mod clock;
mod exec;
pub mod guard;
mod host;
mod leave;
#[doc(hidden)]
pub mod ledger;
mod lock;
mod maps;
mod memory;
#[cfg(any(feature = "private-mem", test))]
mod private_mem;
pub mod process;
pub mod signals;
mod symbols;
mod sync;
pub mod sys;
pub mod text;
pub mod threads;
mod watch;

cfg_if::cfg_if! {
    if #[cfg(target_arch = "arm")] {
        mod exidx;
        use exidx as unwind;
    } else {
        mod unwind;
    }
}

pub use arch::{FRAMES, Native};
#[doc(hidden)]
pub use leave::lead_to;
pub use leave::{leave, leave_actions, leave_text, leave_thread};
pub use memory::ProcessMemory;
#[doc(hidden)]
pub use memory::set_argument;
pub use probe_core;
pub use probe_elf_symbols::file::NAMELESS;
pub use process::{
    Indirect, LinuxProcess, StartError, close_descriptor, is_in_valgrind, objects_changed, probes, set_log,
    spare_system_calls, start,
};
pub use text::TextAccess;
pub use threads::{is_guest, thread_started};

pub use guard::{Guard, guard as guard_signals};

/// A kprobe in this process.
pub type Kprobe = probe_core::Kprobe<Native>;
/// A jprobe in this process.
pub type Jprobe = probe_core::Jprobe<Native>;
/// A return probe in this process, with private data of type `D`.
pub type Kretprobe<D = (), S = probe_core::handler::Fresh> = probe_core::Kretprobe<Native, D, S>;
/// A registered probe in this process; unregisters when dropped.
pub type Probe = probe_core::Probe<LinuxProcess>;
/// One hit, as a handler sees it.
pub type Hit<'a> = probe_core::handler::Hit<'a, Native>;
/// The saved registers.
pub type Regs = <Native as probe_core::arch::Arch>::Regs;
