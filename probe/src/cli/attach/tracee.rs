//! A process whose threads are all stopped (`ptrace`), and what can be done in it meanwhile.
//!
//! The threads are seized, which sends them nothing that they could see, and go on as they were when this is
//! dropped, or when this process dies.

use super::failure;
use super::interrupted::{RAISED, begin_again, has_raised, leave_sequence};
use super::request::{GET_MASK, SET_MASK, address_of, ptrace};
use crate::cli::failure::Failure;
use libc::{c_int, c_long, pid_t};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

/// How long all threads together may take to stop.
const PATIENCE: Duration = Duration::from_secs(3);

/// For how long threads go on that are where they must not be.
const BREATH: Duration = Duration::from_millis(1);

/// What is waited between two looks.
const MOMENT: Duration = Duration::from_micros(50);

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
}

/// Where a thread is to run, and on what.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) pc: usize,
    pub(super) sp: usize,
    pub(super) argument: usize,
}

/// Why a stop was reported.
enum Stop {
    /// By our interruption, or with the whole group.
    Interrupted,
    /// The thread is about to end.
    Ending,
    /// A signal has come, and is not delivered yet.
    Signal(c_int),
    /// The thread is no more.
    Gone,
}

impl Tracee {
    /// Stops all threads of `pid`.
    ///
    /// # Errors
    /// It cannot be debugged, or does not stop; it goes on.
    pub(super) fn stop(pid: pid_t) -> Result<Self, Failure> {
        let mut this = Self { pid, threads: BTreeMap::new() };
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

    /// The only thread of a child that is stopped already.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn of_stopped(pid: pid_t) -> Result<Self, Failure> {
        // SAFETY: registers are plain numbers.
        let regs = unsafe { std::mem::zeroed() };
        let mut this =
            Self { pid, threads: BTreeMap::from([(pid, Thread { regs, mask: 0, held: Vec::new() })]) };
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
                    Some(Stop::Interrupted) if has_raised(thread) => {
                        _ = ptrace(libc::PTRACE_CONT, thread, 0, 0);
                    }
                    Some(Stop::Interrupted) => {
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
                Some(Stop::Interrupted) => ptrace(libc::PTRACE_CONT, thread, 0, 0).is_ok(),
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
                unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, self.pid, thread, signal, info) };
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
        loop {
            ptrace(how, thread, 0, pass)?;
            pass = 0;
            match wait(thread, Instant::now() + 10 * PATIENCE) {
                Some(Stop::Interrupted) => {}
                Some(Stop::Signal(signal)) => {
                    // SAFETY: plain data that the call fills.
                    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
                    ptrace(libc::PTRACE_GETSIGINFO, thread, 0, address_of(&mut info))?;
                    ptrace(libc::PTRACE_GETREGS, thread, 0, address_of(&mut regs))?;
                    if info.si_code <= 0 || !RAISED.contains(&signal) {
                        known.held.push(info);
                    } else if signal == libc::SIGTRAP && is_over(&regs) {
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
        Ok(regs)
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

/// What has become of a thread, by `until`; `None`: nothing.
fn wait(thread: pid_t, until: Instant) -> Option<Stop> {
    /// How often to look before sleeping.
    const EAGERLY: u32 = 200;
    for look in 0.. {
        let mut status = 0;
        // SAFETY: a place for the status.
        let done = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if done == thread {
            if !libc::WIFSTOPPED(status) {
                return Some(Stop::Gone);
            }
            return Some(match status >> 16 {
                libc::PTRACE_EVENT_STOP => Stop::Interrupted,
                libc::PTRACE_EVENT_EXIT => Stop::Ending,
                _ => Stop::Signal(libc::WSTOPSIG(status)),
            });
        }
        if done < 0 {
            return Some(Stop::Gone);
        }
        if Instant::now() >= until {
            return None;
        }
        if look < EAGERLY {
            std::thread::yield_now();
        } else {
            std::thread::sleep(MOMENT);
        }
    }
    None
}

/// The threads of a process.
fn threads_of(pid: pid_t) -> io::Result<Vec<pid_t>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Whether a thread has ended, and is only listed still.
fn has_ended(pid: pid_t, thread: pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X', 'x']))
}
