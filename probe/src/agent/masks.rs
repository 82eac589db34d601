//! Keeps libc from blocking SIGTRAP behind our back.
//!
//! libc blocks all signals in several places by a system call of its own that no interposition sees: while it starts
//! and ends threads, in `posix_spawn`, in `abort`. A breakpoint that is hit there would end the process. So those
//! system calls get a probe of their own, which takes the signals that probes live on out of the set that is about to
//! be blocked. They are found by their code: the system call's number as a constant, the call a few
//! instructions later.
//!
//! On architectures for which this is not written, functions that libc is known to call in such places are refused.

use super::objects::Loaded;
use probe_core::host::Host;
use probe_core::{AnyProbe, CodeAddr};
use probe_host_linux::Native;
use std::collections::HashMap;

/// Functions that libc calls while it has blocked all signals, where those calls are not probed.
const CALLED_WITH_SIGNALS_BLOCKED: [&str; 10] = [
    "clone",
    "__clone",
    "__clone2",
    "clone3",
    "__clone3",
    "__clone_internal",
    "__ctype_init",
    "_setjmp",
    "madvise",
    "__madvise",
];

/// Functions that return more than once: a second return would come to a call that is over.
const RETURNS_TWICE: [&str; 15] = [
    "setjmp",
    "_setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "vfork",
    "__vfork",
    "__libc_vfork",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "getcontext",
    "swapcontext",
    "__clone_internal",
    "savectx",
];

/// Functions that tell by their return address who calls them.
const LOOKS_AT_CALLER: [&str; 6] =
    ["dlopen", "dlmopen", "dlsym", "dlvsym", "__libc_dlopen_mode", "__libc_dlsym"];

/// The functions that must not be probed, whatever their instructions are, by address: they have many names.
pub(super) struct Refusals {
    at_return: HashMap<CodeAddr, &'static str>,
    always: HashMap<CodeAddr, &'static str>,
}

impl Refusals {
    /// Looks the functions up.
    pub(super) fn new() -> Self {
        let mut at_return = HashMap::new();
        add(&mut at_return, &RETURNS_TWICE, "it returns more than once");
        add(&mut at_return, &LOOKS_AT_CALLER, "it tells by its return address who calls it");
        let mut always = HashMap::new();
        if !cfg!(target_arch = "x86_64") {
            let why = "libc calls it with all signals blocked, where a breakpoint would end the program";
            add(&mut always, &CALLED_WITH_SIGNALS_BLOCKED, why);
        }
        Self { at_return, always }
    }

    /// Why the function at `at` must not be probed.
    pub(super) fn get(&self, at: CodeAddr, is_return: bool) -> Option<&'static str> {
        self.always.get(&at).or_else(|| self.at_return.get(&at).filter(|_| is_return)).copied()
    }
}

fn add(refused: &mut HashMap<CodeAddr, &'static str>, names: &[&str], why: &'static str) {
    for name in names {
        probe_host_linux::probes().host().find_symbols(name, &mut |symbol| {
            refused.insert(symbol.start.wrapping_add(usize::from(symbol.local_entry)), why);
        });
    }
}

/// The probes on libc's own calls of `rt_sigprocmask`.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn probes(_objects: &[Loaded]) -> Vec<AnyProbe<Native>> {
    Vec::new()
}

/// The probes on libc's own calls of `rt_sigprocmask`.
#[cfg(target_arch = "x86_64")]
pub(super) fn probes(objects: &[Loaded]) -> Vec<AnyProbe<Native>> {
    let is_libc =
        |object: &&Loaded| object.name.starts_with("libc.so") || object.name.starts_with("libpthread.so");
    let calls = objects.iter().filter(is_libc).flat_map(|object| object.text()).flat_map(|(start, len)| {
        // SAFETY: a loaded segment of code, readable, that nobody writes to: nothing is planted yet.
        let text = unsafe { std::slice::from_raw_parts(start as *const u8, len) };
        x86_64::calls(text).map(move |offset| start + offset)
    });
    calls.map(x86_64::probe).collect()
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use probe_core::arch::{Arch, Memory};
    use probe_core::{AnyProbe, CodeAddr, Hit, Place};
    use probe_host_linux::signals::OWNED_SET;
    use probe_host_linux::{Kprobe, Native, threads};
    use std::sync::atomic::Ordering;

    /// `mov $14,%eax`: the number of `rt_sigprocmask`.
    const NUMBER: [u8; 5] = [0xb8, 14, 0, 0, 0];
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// How many instructions may lie between the two.
    const BETWEEN: usize = 3;

    /// The offsets of the `syscall` instructions that call `rt_sigprocmask`.
    pub(super) fn calls(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
        let starts = text.windows(NUMBER.len()).enumerate().filter(|(_, bytes)| **bytes == NUMBER);
        starts.filter_map(|(start, _)| {
            let mut at = start + NUMBER.len();
            for _ in 0..=BETWEEN {
                let rest = text.get(at..)?;
                if rest.starts_with(&SYSCALL) {
                    return Some(at);
                }
                // Nothing that jumps, calls or returns may come between.
                if matches!(rest.first()?, 0x70..=0x7f | 0xc2 | 0xc3 | 0xcc | 0xe0..=0xe3 | 0xe8..=0xeb | 0xff) {
                    return None;
                }
                at += Native::insn_len(&rest[..rest.len().min(Native::MAX_INSN_LEN)])?;
            }
            None
        })
    }

    pub(super) fn probe(call: usize) -> AnyProbe<Native> {
        // SAFETY: decoding from an instruction that loads the call's number leads here.
        let place = unsafe { Place::unchecked(CodeAddr::new(call)) };
        Kprobe::at(place).pre(clean).into()
    }

    /// Replaces the set by one without our signals.
    fn clean(hit: &mut Hit<'_, Native>) {
        let (how, set) = (hit.regs().rdi as i32, hit.regs().rsi as usize);
        if hit.regs().rax != libc::SYS_rt_sigprocmask as u64 || how == libc::SIG_UNBLOCK || set == 0 {
            return;
        }
        let mut bytes = [0; 8];
        let (Ok(()), Some(words)) = (hit.memory().read(set, &mut bytes), threads::words()) else { return };
        let wanted = u64::from_ne_bytes(bytes);
        let cleaned = wanted & !OWNED_SET.bits();
        if cleaned != wanted {
            words[2].store(cleaned as usize, Ordering::Relaxed);
            hit.regs_mut().rsi = words[2].as_ptr() as u64;
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn calls_are_found_by_their_code() {
            let mut text = vec![0x90; 16];
            text.extend(NUMBER);
            text.extend([0x48, 0x89, 0xe2]); // mov %rsp,%rdx
            text.extend([0x0f, 0x05, 0xc3]);
            text.extend(NUMBER);
            text.extend([0xc3, 0x0f, 0x05]); // a return comes between
            assert_eq!(calls(&text).collect::<Vec<_>>(), [24]);
        }
    }
}
