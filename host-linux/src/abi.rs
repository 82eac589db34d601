//! The kernel's structures of signal delivery, as they lie in memory.
//!
//! Source: `include/uapi/asm-generic/signal.h`, `arch/*/include/uapi/asm/{signal,ucontext,siginfo}.h`, Linux
//! 6.12.

use core::ffi::c_int;

/// A kernel signal set: signal `n` is bit `n - 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SignalSet {
    // Two words, because the kernel's `sigset_t` is `unsigned long[]` and big-endian machines care.
    words: [usize; 8 / size_of::<usize>()],
}

impl SignalSet {
    /// No signal.
    pub const EMPTY: Self = Self { words: [0; 8 / size_of::<usize>()] };
    /// Every signal.
    pub const ALL: Self = Self { words: [usize::MAX; 8 / size_of::<usize>()] };

    /// The set as one number, bit `n - 1` for signal `n`.
    pub const fn bits(self) -> u64 {
        let mut bits = 0;
        let mut i = 0;
        while i < self.words.len() {
            bits |= (self.words[i] as u64) << (i * usize::BITS as usize);
            i += 1;
        }
        bits
    }

    /// The set that [`Self::bits`] describes.
    pub const fn from_bits(bits: u64) -> Self {
        let mut words = [0; 8 / size_of::<usize>()];
        let mut i = 0;
        while i < words.len() {
            words[i] = (bits >> (i * usize::BITS as usize)) as usize;
            i += 1;
        }
        Self { words }
    }

    /// The set with `signal`, too.
    #[must_use]
    pub const fn with(self, signal: c_int) -> Self {
        Self::from_bits(self.bits() | 1 << (signal - 1))
    }

    /// The set without `signal`.
    #[must_use]
    pub const fn without(self, signal: c_int) -> Self {
        Self::from_bits(self.bits() & !(1 << (signal - 1)))
    }

    /// The signals in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self::from_bits(self.bits() | other.bits())
    }

    /// The set as the kernel writes it into memory.
    pub(crate) const fn to_memory(self) -> [u8; 8] {
        // SAFETY: plain words of eight bytes altogether.
        unsafe { core::mem::transmute::<Self, [u8; 8]>(self) }
    }

    /// The set that the kernel would read from memory.
    pub(crate) const fn from_memory(bytes: [u8; 8]) -> Self {
        // SAFETY: plain words of eight bytes altogether; every value is one.
        unsafe { core::mem::transmute::<[u8; 8], Self>(bytes) }
    }

    /// Whether `signal` is in the set.
    pub const fn has(self, signal: c_int) -> bool {
        self.bits() >> (signal - 1) & 1 != 0
    }
}

/// An action for a signal: the argument of the system call `rt_sigaction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Action {
    /// `SIG_DFL`, `SIG_IGN` or the address of the handler (on ppc64 ELFv1 of its descriptor).
    pub handler: usize,
    /// `SA_*`.
    pub flags: usize,
    /// Where the handler returns to, with `SA_RESTORER`.
    pub restorer: Restorer,
    /// The signals to be blocked while the handler runs.
    pub mask: SignalSet,
}

impl Action {
    /// The default action.
    pub const DEFAULT: Self =
        Self { handler: libc::SIG_DFL, flags: 0, restorer: Restorer::NONE, mask: SignalSet::EMPTY };
}

/// How many words the kernel's `struct sigaction` has for a restorer: of our architectures, only riscv64 does
/// not define `SA_RESTORER`.
const RESTORER_WORDS: usize = if cfg!(target_arch = "riscv64") { 0 } else { 1 };

/// The address of a restorer; nothing where the kernel's structure has no such word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Restorer([usize; RESTORER_WORDS]);

impl Restorer {
    /// None.
    pub const NONE: Self = Self::new(0);

    pub(crate) const fn new(at: usize) -> Self {
        Self([at; RESTORER_WORDS])
    }

    /// The address, 0 for none.
    pub(crate) fn address(self) -> usize {
        self.0.first().copied().unwrap_or(0)
    }
}

impl Action {
    /// The action that the kernel leaves in force when it calls the handler of one with `SA_RESETHAND`.
    pub(crate) const fn used_up(self) -> Self {
        Self { handler: libc::SIG_DFL, ..self }
    }

    /// The action as the kernel writes it into memory.
    pub(crate) const fn to_memory(self) -> [u8; size_of::<Self>()] {
        // SAFETY: plain words, without padding.
        unsafe { core::mem::transmute::<Self, [u8; size_of::<Self>()]>(self) }
    }

    /// The action that the kernel would read from memory.
    pub(crate) const fn from_memory(bytes: [u8; size_of::<Self>()]) -> Self {
        // SAFETY: plain words, without padding; every value is one.
        unsafe { core::mem::transmute::<[u8; size_of::<Self>()], Self>(bytes) }
    }
}

/// Where the address is in `siginfo_t`.
const SI_ADDR: usize = (3 * size_of::<c_int>()).next_multiple_of(size_of::<usize>());

/// The head of the kernel's `siginfo_t`, as far as faults and traps use it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SigInfo {
    /// The signal's number.
    pub signal: c_int,
    /// An errno, mostly 0.
    pub errno: c_int,
    /// Who sent it and why: above 0 the kernel, else a program.
    pub code: c_int,
    #[cfg(target_pointer_width = "64")]
    _pad: c_int,
    /// The faulting address, for faults and traps.
    pub addr: usize,
    rest: [usize; (128 - SI_ADDR) / size_of::<usize>() - 1],
}

impl SigInfo {
    /// The word that an event has been given (`si_perf_data`).
    pub(crate) const fn data(&self) -> usize {
        self.rest[0]
    }

    /// The structure as the kernel writes it into memory.
    pub(crate) fn to_memory(self) -> [u8; size_of::<Self>()] {
        // SAFETY: 128 bytes of words, the padding a field of its own.
        unsafe { core::mem::transmute::<Self, [u8; size_of::<Self>()]>(self) }
    }

    /// A fault raised by the kernel.
    pub const fn fault(signal: c_int, code: c_int, addr: usize) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            #[cfg(target_pointer_width = "64")]
            _pad: 0,
            addr,
            rest: [0; (128 - SI_ADDR) / size_of::<usize>() - 1],
        }
    }
}

/// The alternate signal stack as `sigaltstack` and `ucontext_t` describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AltStack {
    /// The lowest address.
    pub base: usize,
    /// `SS_ONSTACK`, `SS_DISABLE`.
    pub flags: c_int,
    /// The size in bytes.
    pub len_bytes: usize,
}

impl AltStack {
    /// The structure as the kernel writes it into memory.
    pub(crate) fn to_memory(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(core::mem::offset_of!(Self, base), &self.base.to_ne_bytes());
        put(core::mem::offset_of!(Self, flags), &self.flags.to_ne_bytes());
        put(core::mem::offset_of!(Self, len_bytes), &self.len_bytes.to_ne_bytes());
        bytes
    }

    /// The structure that the kernel would read from memory.
    pub(crate) const fn from_memory(bytes: [u8; size_of::<Self>()]) -> Self {
        // SAFETY: words and padding; every value is one.
        unsafe { core::mem::transmute::<[u8; size_of::<Self>()], Self>(bytes) }
    }

    /// Whether `sp` lies on it.
    pub fn holds(&self, sp: usize) -> bool {
        self.flags & libc::SS_DISABLE == 0 && sp.wrapping_sub(self.base) <= self.len_bytes && sp != self.base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_sets_number_signals_from_one() {
        let set = SignalSet::EMPTY.with(1).with(64).with(33);
        assert_eq!(set.bits(), 1 | 1 << 63 | 1 << 32);
        assert!(set.has(33) && !set.has(34));
        assert_eq!(set.without(64).bits(), 1 | 1 << 32);
        assert_eq!(SignalSet::ALL.bits(), u64::MAX);
    }

    #[test]
    fn siginfo_has_the_kernels_shape() {
        assert_eq!(size_of::<SigInfo>(), 128);
        let at = core::mem::offset_of!(SigInfo, addr);
        assert_eq!(at, if cfg!(target_pointer_width = "64") { 16 } else { 12 });
    }

    /// What is blocked while [`remember_mask`] runs.
    static BLOCKED: std::sync::Mutex<u64> = std::sync::Mutex::new(0);

    extern "C" fn remember_mask(_: c_int) {
        let blocked = crate::sys::sigprocmask(libc::SIG_BLOCK, None);
        *BLOCKED.lock().unwrap() = blocked.bits();
    }

    /// Where the kernel's structure, or libc's, has another shape than ours, a mask is lost.
    #[test]
    fn the_kernel_and_libc_take_an_action_for_what_it_is() {
        let [usr1, usr2] = [libc::SIGUSR1, libc::SIGUSR2].map(|signal| SignalSet::EMPTY.with(signal));
        let handler = remember_mask as *const () as usize;
        let restorer = Restorer::new(crate::arch::restorer());
        let ours = Action { handler, flags: crate::arch::RESTORER_FLAG, restorer, mask: usr2 };
        // SAFETY: the handler makes one system call; nobody else here uses this signal.
        let old = unsafe { crate::sys::sigaction(libc::SIGURG, Some(&ours)) };
        assert_eq!(old.map(|old| old.mask), Ok(SignalSet::EMPTY));
        // SAFETY: to this thread, whose handler is installed.
        unsafe { libc::raise(libc::SIGURG) };
        let blocked = SignalSet::from_bits(*BLOCKED.lock().unwrap());
        assert_eq!(blocked, usr2.with(libc::SIGURG));
        // SAFETY: all zero is a valid `sigaction`.
        let mut theirs: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: nothing is installed.
        assert_eq!(unsafe { libc::sigaction(libc::SIGURG, core::ptr::null(), &mut theirs) }, 0);
        // SAFETY: a set of this function's.
        let has = |signal| unsafe { libc::sigismember(&raw const theirs.sa_mask, signal) };
        assert_eq!((theirs.sa_sigaction, has(libc::SIGUSR1), has(libc::SIGUSR2)), (handler, 0, 1));
        // SAFETY: as above.
        unsafe { libc::sigemptyset(&raw mut theirs.sa_mask) };
        // SAFETY: as above.
        unsafe { libc::sigaddset(&raw mut theirs.sa_mask, libc::SIGUSR1) };
        // SAFETY: the handler is the same.
        assert_eq!(unsafe { libc::sigaction(libc::SIGURG, &theirs, core::ptr::null_mut()) }, 0);
        // SAFETY: the default.
        let old = unsafe { crate::sys::sigaction(libc::SIGURG, Some(&Action::DEFAULT)) }.unwrap();
        assert_eq!((old.handler, old.mask), (handler, usr1));
        assert_eq!(Action::from_memory(old.to_memory()), old);
    }

    #[test]
    fn an_alternate_stack_holds_its_addresses() {
        let stack = AltStack { base: 0x1000, flags: 0, len_bytes: 0x1000 };
        assert!(stack.holds(0x1800) && stack.holds(0x2000));
        assert!(!stack.holds(0x1000) && !stack.holds(0x2001) && !stack.holds(0x800));
        assert!(!AltStack { flags: libc::SS_DISABLE, ..stack }.holds(0x1800));
    }
}
