//! CPUs that meet: every one synchronises, or waits while text changes.
//!
//! What [`Host::sync_cores`](probe_core::host::Host::sync_cores) owes is that every CPU has executed a
//! context-synchronising instruction and a full barrier since the call. An interrupt to every other CPU does
//! it, if three things are minded that have deadlocked kernels: the caller may have interrupts disabled, and
//! so may another caller, which is waiting for this one; a CPU comes online meanwhile; and whoever waits for
//! a CPU must answer it.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a kernel gives for [`Rendezvous`].
///
/// # Safety
/// Text changes and memory is freed on the strength of these functions; each says what it owes.
pub unsafe trait Cpus: Sync {
    /// The number of the running CPU. With interrupts disabled it stays the same.
    fn this(&self) -> usize;

    /// Interrupts CPU `number`: there [`Rendezvous::answer`] is called, with interrupts disabled. It may be
    /// late, and several requests may be one interrupt, but none is lost.
    fn interrupt(&self, number: usize);

    /// Disables interrupts on this CPU and tells whether they were enabled.
    fn disable_interrupts(&self) -> bool;

    /// Enables interrupts on this CPU.
    fn enable_interrupts(&self);

    /// Executes a context-synchronising instruction and a full memory barrier on this CPU (x86: CPUID or
    /// IRET; aarch64: ISB; ppc64: ISYNC; riscv64: FENCE.I), and forgets what else a kernel wants forgotten
    /// everywhere, such as translations.
    fn synchronise(&self);

    /// A hint that this CPU waits for another one.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}

/// One CPU's part.
struct Part {
    is_online: AtomicBool,
    /// The latest request that it has answered.
    answered: AtomicUsize,
}

/// The CPUs `0 .. MAX` of a kernel, and what they ask of each other.
pub struct Rendezvous<C, const MAX: usize> {
    cpus: C,
    parts: [Part; MAX],
    /// The latest request.
    asked: AtomicUsize,
    /// Whether those that answer wait until it is over.
    holds: AtomicBool,
    /// Whether somebody stops the others.
    is_taken: AtomicBool,
}

impl<C: Cpus, const MAX: usize> Rendezvous<C, MAX> {
    /// No CPU is online yet.
    pub const fn new(cpus: C) -> Self {
        Self {
            cpus,
            parts: [const { Part { is_online: AtomicBool::new(false), answered: AtomicUsize::new(0) } }; MAX],
            asked: AtomicUsize::new(0),
            holds: AtomicBool::new(false),
            is_taken: AtomicBool::new(false),
        }
    }

    /// This CPU takes part from now on: before it calls anything that may be probed, and before it enables
    /// interrupts.
    ///
    /// # Panics
    /// Its number is not below `MAX`.
    pub fn join(&self) {
        self.parts[self.cpus.this()].is_online.store(true, Ordering::SeqCst);
        // Who has not seen it online before it asked had changed text by then: this sees the new one.
        self.answer();
    }

    /// Whether CPU `number` takes part.
    pub fn is_online(&self, number: usize) -> bool {
        self.parts.get(number).is_some_and(|part| part.is_online.load(Ordering::SeqCst))
    }

    /// The CPUs that take part, by number.
    pub fn online(&self) -> impl Iterator<Item = usize> {
        (0..MAX).filter(|&number| self.is_online(number))
    }

    /// Returns after every CPU has synchronised since the call: [`Host::sync_cores`].
    ///
    /// Interrupts may be enabled or not. Answers meanwhile what others ask.
    ///
    /// [`Host::sync_cores`]: probe_core::host::Host::sync_cores
    pub fn synchronise(&self) {
        let enabled = self.cpus.disable_interrupts();
        self.answer();
        self.wait_for(self.ask(), || self.answer());
        self.restore(enabled);
    }

    /// Calls `work` while every other CPU waits with interrupts disabled, and synchronises all of them after
    /// it. For processors, emulators or code that must not see text change under them.
    ///
    /// `work` is short, and neither waits for another CPU nor calls this.
    pub fn stopped<T>(&self, work: impl FnOnce() -> T) -> T {
        let enabled = self.cpus.disable_interrupts();
        while self.is_taken.swap(true, Ordering::Acquire) {
            self.answer();
            self.cpus.relax();
        }
        self.holds.store(true, Ordering::SeqCst);
        // Answering here would wait for itself; who has asked before is answered below.
        self.wait_for(self.ask(), || ());
        let result = work();
        self.cpus.synchronise();
        self.holds.store(false, Ordering::SeqCst);
        self.is_taken.store(false, Ordering::Release);
        self.answer();
        self.restore(enabled);
        result
    }

    /// Does what this CPU has been asked for: in the interrupt's handler, and in every loop that waits for
    /// another CPU with interrupts disabled ([`Host::relax`](probe_core::host::Host::relax)).
    ///
    /// Interrupts are disabled.
    pub fn answer(&self) {
        let part = &self.parts[self.cpus.this()];
        let mut has_waited = false;
        loop {
            let asked = self.asked.load(Ordering::SeqCst);
            if !has_waited || part.answered.load(Ordering::Relaxed) != asked {
                self.cpus.synchronise();
                part.answered.store(asked, Ordering::SeqCst);
            }
            // Who holds may have asked since: answered in the next turn.
            if !self.holds.load(Ordering::SeqCst) {
                break;
            }
            has_waited = true;
            self.cpus.relax();
        }
        if has_waited {
            // What changed meanwhile.
            self.cpus.synchronise();
        }
    }

    /// Asks the other CPUs; returns the number of the request.
    fn ask(&self) -> usize {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let me = self.cpus.this();
        self.online().filter(|&number| number != me).for_each(|number| self.cpus.interrupt(number));
        asked
    }

    /// Waits until the other CPUs have answered, and does `meanwhile`; interrupts are disabled.
    fn wait_for(&self, asked: usize, meanwhile: impl Fn()) {
        let me = self.cpus.this();
        for number in self.online().filter(|&number| number != me) {
            while self.parts[number].answered.load(Ordering::SeqCst) < asked {
                meanwhile();
                self.cpus.relax();
            }
        }
    }

    fn restore(&self, enabled: bool) {
        if enabled {
            self.cpus.enable_interrupts();
        }
    }
}
