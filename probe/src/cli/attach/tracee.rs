//! A process whose threads are all stopped (`ptrace`), and what can be done in it meanwhile.
//!
//! The threads are seized, which sends them nothing that they could see, and go on as they were when this is
//! dropped, or when this process dies.

use super::failure;
use super::interrupted::{RAISED, begin_again, has_raised, leave_sequence};
use super::request::{GET_MASK, SET_MASK, address_of, ptrace};
use super::stop::{MOMENT, Stop, has_ended, threads_of, wait};
use crate::cli::failure::Failure;
use libc::{c_int, c_long, pid_t};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// How long all threads together may take to stop.
const PATIENCE: Duration = Duration::from_secs(3);

/// For how long threads go on that are where they must not be.
const BREATH: Duration = Duration::from_millis(1);

/// `NT_X86_XSTATE`: the floating-point and vector registers.
const EXTENDED: usize = 0x202;

/// Room for them, with AMX.
const EXTENDED_LEN: usize = 16 << 10;

/// One stopped thread.
struct Thread {
    /// Its registers, with which it goes on.
    regs: libc::user_regs_struct,
    /// Its signal mask, with which it goes on.
    mask: u64,
    /// Signals that came while something else ran in it.
    held: Vec<libc::siginfo_t>,
}

/// The process, stopped.
pub(super) struct Tracee {
    pub(super) pid: pid_t,
    threads: BTreeMap<pid_t, Thread>,
    /// What a fault in what runs here does.
    faults: Faults,
    /// The thread that was made last.
    made: pid_t,
}

/// What a fault does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faults {
    /// The agent's handlers have it, once they are there.
    AreHandled,
    /// It ends what runs: the process has no handler of ours yet.
    End,
}

/// Where a thread is to run, and on what.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) pc: usize,
    pub(super) sp: usize,
    pub(super) argument: usize,
}

impl Tracee {
    /// Stops all threads of `pid`.
    ///
    /// # Errors
    /// It cannot be debugged, or does not stop; it goes on.
    pub(super) fn stop(pid: pid_t) -> Result<Self, Failure> {
        let mut this = Self::nothing_of(pid);
        let until = Instant::now() + PATIENCE;
        loop {
            let mut is_new = false;
            for thread in threads_of(pid).map_err(|_| failure::ended(pid))? {
                if !this.threads.contains_key(&thread) && this.seize(thread)? {
                    is_new = true;
                }
            }
            if !is_new {
                break;
            }
            this.wait_for_all(until)?;
        }
        if this.threads.is_empty() {
            return Err(failure::ended(pid));
        }
        Ok(this)
    }

    /// Stops one thread of `pid`; the others go on.
    ///
    /// # Errors
    /// As [`Tracee::stop`].
    pub(super) fn stop_one(pid: pid_t) -> Result<Self, Failure> {
        let mut this = Self::nothing_of(pid);
        for thread in threads_of(pid).map_err(|_| failure::ended(pid))? {
            if this.seize(thread)? {
                this.wait_for_all(Instant::now() + PATIENCE)?;
            }
            if !this.threads.is_empty() {
                return Ok(this);
            }
        }
        Err(failure::ended(pid))
    }

    fn nothing_of(pid: pid_t) -> Self {
        Self { pid, threads: BTreeMap::new(), faults: Faults::AreHandled, made: 0 }
    }

    /// Has `thread` make a thread with these flags, at the system call instruction `at`, and returns that
    /// one, stopped behind the instruction, with all signals blocked but those that faults raise, which end
    /// what is run in it.
    ///
    /// # Errors
    /// The call's, or the thread has ended.
    pub(super) fn clone_thread(&mut self, thread: pid_t, at: usize, flags: usize) -> io::Result<Self> {
        let options = |options: c_int| ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options as usize);
        options(libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACECLONE)?;
        let made = self.system_call(thread, at, libc::SYS_clone, [flags, 0, 0, 0, 0, 0]);
        options(libc::PTRACE_O_TRACEEXIT)?;
        made?;
        let mut this = Self::nothing_of(self.pid);
        this.faults = Faults::End;
        // SAFETY: registers are plain numbers.
        let regs = unsafe { std::mem::zeroed() };
        this.threads.insert(self.made, Thread { regs, mask: 0, held: Vec::new() });
        this.wait_for_all(Instant::now() + PATIENCE)
            .map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        Ok(this)
    }

    /// Lets the threads, which end by themselves, go on, and waits for that.
    pub(super) fn end(mut self) {
        let until = Instant::now() + PATIENCE;
        for (thread, known) in std::mem::take(&mut self.threads) {
            for info in known.held {
                // SAFETY: has no preconditions; somebody has sent it to the process.
                unsafe { libc::kill(self.pid, info.si_signo) };
            }
            let mut goes_on = ptrace(libc::PTRACE_CONT, thread, 0, 0).is_ok();
            while goes_on {
                goes_on = match wait(thread, until) {
                    None | Some(Stop::Gone) => false,
                    Some(_) => ptrace(libc::PTRACE_CONT, thread, 0, 0).is_ok(),
                };
            }
        }
    }

    /// The only thread of a child that is stopped already.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn of_stopped(pid: pid_t) -> Result<Self, Failure> {
        // SAFETY: registers are plain numbers.
        let regs = unsafe { std::mem::zeroed() };
        let mut this = Self::nothing_of(pid);
        this.threads.insert(pid, Thread { regs, mask: 0, held: Vec::new() });
        this.read(pid);
        if this.threads.is_empty() { Err(failure::ended(pid)) } else { Ok(this) }
    }

    /// Takes one thread; `false` if it has ended.
    fn seize(&mut self, thread: pid_t) -> Result<bool, Failure> {
        let options = libc::PTRACE_O_TRACEEXIT as usize;
        if let Err(error) = ptrace(libc::PTRACE_SEIZE, thread, 0, options) {
            // A thread that has ended stays on the list until the process has.
            if error.raw_os_error() == Some(libc::ESRCH) || has_ended(self.pid, thread) {
                return Ok(false);
            }
            return Err(failure::refused(self.pid, &error));
        }
        // SAFETY: registers are plain numbers.
        let regs = unsafe { std::mem::zeroed() };
        self.threads.insert(thread, Thread { regs, mask: 0, held: Vec::new() });
        let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
        Ok(true)
    }

    /// Waits until all threads are stopped, and reads what they go on with.
    fn wait_for_all(&mut self, until: Instant) -> Result<(), Failure> {
        let all: Vec<pid_t> = self.threads.keys().copied().collect();
        for thread in all {
            if self.threads.get(&thread).is_some_and(|known| known.regs.rip != 0) {
                continue;
            }
            loop {
                match wait(thread, until) {
                    None => return Err(failure::does_not_stop(self.pid, thread)),
                    // It comes with the next look, and its handler has begun at the stop after that.
                    Some(Stop::Interrupted | Stop::WithGroup) if has_raised(thread) => {
                        _ = ptrace(libc::PTRACE_CONT, thread, 0, 0);
                    }
                    Some(Stop::Cloned | Stop::Executed) => _ = ptrace(libc::PTRACE_CONT, thread, 0, 0),
                    Some(Stop::Interrupted | Stop::WithGroup) => {
                        self.read(thread);
                        break;
                    }
                    Some(Stop::Signal(signal)) => {
                        _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
                        _ = ptrace(libc::PTRACE_CONT, thread, 0, signal as usize);
                    }
                    Some(Stop::Ending) => {
                        _ = ptrace(libc::PTRACE_DETACH, thread, 0, 0);
                        self.threads.remove(&thread);
                        break;
                    }
                    Some(Stop::Gone) => {
                        self.threads.remove(&thread);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads registers and mask of a thread that has just stopped.
    fn read(&mut self, thread: pid_t) {
        let Some(known) = self.threads.get_mut(&thread) else { return };
        let is_read = ptrace(libc::PTRACE_GETREGS, thread, 0, address_of(&mut known.regs)).is_ok()
            && ptrace(GET_MASK, thread, size_of::<u64>(), address_of(&mut known.mask)).is_ok();
        if !is_read {
            self.threads.remove(&thread);
            return;
        }
        leave_sequence(self.pid, thread, &mut known.regs);
        begin_again(self.pid, thread, &mut known.regs, known.mask);
        let _ = ptrace(libc::PTRACE_SETREGS, thread, 0, address_of(&mut known.regs));
    }

    /// Lets all threads go on for a moment, and stops them again.
    ///
    /// # Errors
    /// As [`Tracee::stop`].
    pub(super) fn breathe(&mut self) -> Result<(), Failure> {
        self.send_held();
        for (&thread, known) in &mut self.threads {
            known.regs.rip = 0;
            let _ = ptrace(libc::PTRACE_CONT, thread, 0, 0);
        }
        let end = Instant::now() + BREATH;
        while Instant::now() < end {
            std::thread::sleep(MOMENT);
            // A thread to which a signal has come waits for us.
            self.threads.retain(|&thread, _| match wait(thread, Instant::now()) {
                None => true,
                Some(Stop::Interrupted | Stop::WithGroup | Stop::Cloned | Stop::Executed) => {
                    ptrace(libc::PTRACE_CONT, thread, 0, 0).is_ok()
                }
                Some(Stop::Signal(signal)) => ptrace(libc::PTRACE_CONT, thread, 0, signal as usize).is_ok(),
                Some(Stop::Ending) => ptrace(libc::PTRACE_DETACH, thread, 0, 0).is_err(),
                Some(Stop::Gone) => false,
            });
        }
        for &thread in self.threads.keys() {
            let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0);
        }
        let until = Instant::now() + PATIENCE;
        self.wait_for_all(until)?;
        loop {
            let mut is_new = false;
            for thread in threads_of(self.pid).map_err(|_| failure::ended(self.pid))? {
                is_new |= !self.threads.contains_key(&thread) && self.seize(thread)?;
            }
            if !is_new {
                return Ok(());
            }
            self.wait_for_all(until)?;
        }
    }

    /// Sends what came while something else ran in a thread.
    fn send_held(&mut self) {
        for (&thread, known) in &mut self.threads {
            for info in known.held.drain(..) {
                let (signal, info) = (info.si_signo, &raw const info);
                // SAFETY: a signal that was on its way to that thread, once more.
                let sent =
                    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, self.pid, thread, signal, info) };
                if sent != 0 {
                    // The kernel lets nobody say of a signal that somebody else has sent it by `kill`.
                    // SAFETY: as above.
                    unsafe { libc::syscall(libc::SYS_tgkill, self.pid, thread, signal) };
                }
            }
        }
    }

    /// The threads.
    pub(super) fn threads(&self) -> Vec<pid_t> {
        self.threads.keys().copied().collect()
    }

    /// The stack pointer with which a thread goes on.
    pub(super) fn sp(&self, thread: pid_t) -> usize {
        self.threads.get(&thread).map_or(0, |known| known.regs.rsp as usize)
    }

    /// Where each thread goes on.
    pub(super) fn pcs(&self) -> impl Iterator<Item = (pid_t, usize)> {
        self.threads.iter().map(|(&thread, known)| (thread, known.regs.rip as usize))
    }

    /// Changes the registers that a thread goes on with, if `change` does.
    ///
    /// # Errors
    /// What `change` says.
    pub(super) fn change(
        &mut self,
        thread: pid_t,
        change: impl FnOnce(&mut libc::user_regs_struct) -> io::Result<bool>,
    ) -> io::Result<()> {
        if let Some(known) = self.threads.get_mut(&thread)
            && change(&mut known.regs)?
        {
            ptrace(libc::PTRACE_SETREGS, thread, 0, address_of(&mut known.regs))?;
        }
        Ok(())
    }

    /// The signal mask that a thread goes on with.
    pub(super) fn mask(&self, thread: pid_t) -> u64 {
        self.threads.get(&thread).map_or(0, |known| known.mask)
    }

    /// Changes it.
    pub(super) fn set_mask(&mut self, thread: pid_t, mask: u64) {
        if let Some(known) = self.threads.get_mut(&thread) {
            known.mask = mask;
            let _ = ptrace(SET_MASK, thread, size_of::<u64>(), address_of(&mut known.mask));
        }
    }

    /// Makes a system call in a thread, at the instruction `at`.
    ///
    /// # Errors
    /// The call's, or the thread has ended.
    pub(super) fn system_call(
        &mut self,
        thread: pid_t,
        at: usize,
        number: c_long,
        arguments: [usize; 6],
    ) -> io::Result<usize> {
        let result = self.elsewhere(
            thread,
            |regs| {
                let [first, second, third, fourth, fifth, sixth] = arguments.map(|argument| argument as u64);
                regs.rax = number as u64;
                (regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9) =
                    (first, second, third, fourth, fifth, sixth);
                regs.rip = at as u64;
            },
            libc::PTRACE_SINGLESTEP,
            |regs| regs.rip != at as u64,
        )?;
        let result = result.rax as i64;
        if (-4095..0).contains(&result) {
            Err(io::Error::from_raw_os_error(-result as i32))
        } else {
            Ok(result as usize)
        }
    }

    /// Lets a thread run from `entry` to the trap that follows, with its signals blocked.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn run(&mut self, thread: pid_t, entry: Entry) -> io::Result<()> {
        // The entry is a few instructions long, and ends in the trap.
        let ends = entry.pc..entry.pc + 64;
        self.elsewhere(
            thread,
            |regs| {
                regs.rip = entry.pc as u64;
                regs.rsp = entry.sp as u64;
                regs.rdi = entry.argument as u64;
            },
            libc::PTRACE_CONT,
            |regs| ends.contains(&(regs.rip as usize)),
        )
        .map(drop)
    }

    /// Lets a thread run elsewhere until a trap at which `is_over`; returns its registers there. Then it has
    /// all its own back.
    fn elsewhere(
        &mut self,
        thread: pid_t,
        change: impl FnOnce(&mut libc::user_regs_struct),
        how: libc::c_uint,
        is_over: impl Fn(&libc::user_regs_struct) -> bool,
    ) -> io::Result<libc::user_regs_struct> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let known = self.threads.get_mut(&thread).ok_or_else(gone)?;
        let mut regs = known.regs;
        // Nothing is to begin again that was interrupted.
        regs.orig_rax = u64::MAX;
        // Neither steps nor runs backwards.
        regs.eflags &= !0x500;
        change(&mut regs);
        let mut extended = vec![0_u8; EXTENDED_LEN];
        let mut room = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
        ptrace(libc::PTRACE_GETREGSET, thread, EXTENDED, address_of(&mut room))?;
        let mut blocked = RAISED.iter().fold(u64::MAX, |all, signal| all & !(1 << (signal - 1)));
        ptrace(SET_MASK, thread, size_of::<u64>(), address_of(&mut blocked))?;
        ptrace(libc::PTRACE_SETREGS, thread, 0, address_of(&mut regs))?;
        let mut pass = 0;
        let mut done = Ok(());
        loop {
            ptrace(how, thread, 0, pass)?;
            pass = 0;
            match wait(thread, Instant::now() + 10 * PATIENCE) {
                Some(Stop::Interrupted | Stop::WithGroup | Stop::Executed) => {}
                Some(Stop::Cloned) => {
                    let mut made: c_long = 0;
                    ptrace(libc::PTRACE_GETEVENTMSG, thread, 0, address_of(&mut made))?;
                    self.made = made as pid_t;
                }
                Some(Stop::Signal(signal)) => {
                    // SAFETY: plain data that the call fills.
                    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
                    ptrace(libc::PTRACE_GETSIGINFO, thread, 0, address_of(&mut info))?;
                    ptrace(libc::PTRACE_GETREGS, thread, 0, address_of(&mut regs))?;
                    if info.si_code <= 0 || !RAISED.contains(&signal) {
                        known.held.push(info);
                    } else if signal == libc::SIGTRAP && is_over(&regs) {
                        break;
                    } else if self.faults == Faults::End {
                        done = Err(io::Error::from_raw_os_error(libc::EFAULT));
                        break;
                    } else {
                        pass = signal as usize;
                    }
                }
                Some(Stop::Ending | Stop::Gone) | None => return Err(gone()),
            }
        }
        ptrace(libc::PTRACE_SETREGSET, thread, EXTENDED, address_of(&mut room))?;
        ptrace(libc::PTRACE_SETREGS, thread, 0, address_of(&mut known.regs))?;
        ptrace(SET_MASK, thread, size_of::<u64>(), address_of(&mut known.mask))?;
        done.map(|()| regs)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.send_held();
        for &thread in self.threads.keys() {
            let _ = ptrace(libc::PTRACE_DETACH, thread, 0, 0);
        }
    }
}
