//! `probe trace --pid`: puts the agent into a program that runs already, and takes it away again.
//!
//! All threads are stopped; one of them maps memory for the agent (system calls, made at an instruction of
//! the vDSO), the object is written there, relocated, and a thread runs its entry on a stack of ours. No
//! function of the program's is called but one that computes an address. Then the threads go on.
//!
//! In the order of reading: [`image`] the object · [`tracee`] stopped threads · [`memory`] their memory ·
//! [`program`] what is traced · [`failure`] why it cannot be. The other side is `agent/mapped`.

mod failure;
mod image;
mod memory;
mod program;
mod tracee;
mod wait;

use super::failure::Failure;
use super::status::Status;
use crate::wire::request::{Request, what};
use image::{Image, PAGE};
use libc::{c_long, pid_t};
use probe_host_linux::ledger;
use program::Program;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tracee::{Entry, Tracee};

/// The stack on which the agent's entry runs, the request at its end.
const STACK_LEN: usize = 1 << 20;

/// How often the threads go on for a moment when they are where they must not be.
const TRIES: u32 = 500;

/// What is left in a program that has been left.
pub(super) enum Left {
    /// Nothing.
    Nothing,
    /// The program has ended, or executed another one.
    Gone,
    /// The agent's memory, for this reason.
    Memory(&'static str),
}

/// A program with the agent in it.
pub(super) struct Attached {
    pid: pid_t,
    /// Readable when the process has ended.
    process: OwnedFd,
    signals: OwnedFd,
    program: Program,
    /// Where the agent lies.
    agent: Range<usize>,
    entry: usize,
    /// The stack; the request at its end.
    stack: Range<usize>,
    /// The agent's list of its mappings.
    ledger: usize,
    /// The first bytes of the agent, which tell it from what is there after an execution.
    head: [u8; 64],
    /// Whether calls are followed: their returns lead through the agent's memory.
    follows: bool,
}

/// What is put into the program.
pub(super) struct What<'a> {
    /// The agent's object.
    pub(super) agent: &'a [u8],
    /// The path of the shared memory.
    pub(super) region: &'a str,
    /// Whether there are return probes.
    pub(super) follows: bool,
}

/// A process that the agent can be put into.
pub(super) struct Door {
    pid: pid_t,
    program: Program,
    process: OwnedFd,
    signals: OwnedFd,
}

impl Door {
    /// Looks at process `pid`. Signals that end the trace are held back in this thread, and in those that it
    /// starts, from here on. `follows`: there are return probes.
    ///
    /// # Errors
    /// The process cannot be traced.
    pub(super) fn of(pid: pid_t, follows: bool) -> Result<Self, Failure> {
        let program = Program::look(pid, follows)?;
        let process = wait::process(pid)?;
        let signals = wait::signals().map_err(|error| failure::half_way(pid, "waiting", &error))?;
        Ok(Self { pid, program, process, signals })
    }
}

/// Puts the agent into a process. `Ok(None)`: it could not start there, and has told why through the
/// shared memory; the program goes on as before.
///
/// # Errors
/// The process cannot be traced; it goes on as before.
pub(super) fn attach(door: Door, what: &What<'_>) -> Result<Option<Attached>, Failure> {
    let Door { pid, program, process, signals } = door;
    let image = Image::parse(what.agent).map_err(|why| Failure::new(why).with(Status::Failed))?;
    let mut tracee = Tracee::stop(pid)?;
    let mut tries = TRIES;
    while program.is_loading() && tries > 0 {
        tracee.breathe()?;
        tries -= 1;
    }
    if tries == 0 {
        let sentence = format!("process {pid} does not finish loading a library; try again");
        return Err(failure::untraceable(sentence));
    }
    let mut attached = Attached {
        pid,
        process,
        signals,
        agent: 0..0,
        entry: 0,
        stack: 0..0,
        ledger: 0,
        head: [0; 64],
        follows: what.follows,
        program,
    };
    let done = attached.put(&mut tracee, &image).and_then(|()| attached.start(&mut tracee, what.region));
    match done {
        Ok(true) => Ok(Some(attached)),
        Ok(false) => {
            attached.take_away(&mut tracee)?;
            Ok(None)
        }
        Err(error) => {
            let failed = failure::half_way(pid, "starting the agent", &error);
            let _ = attached.take_away(&mut tracee);
            Err(failed)
        }
    }
}

impl Attached {
    /// The thread that does what any thread can do: one that is in the kernel rather than in the middle of
    /// something.
    fn any(&self, tracee: &Tracee) -> io::Result<pid_t> {
        tracee.threads().first().copied().ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }

    fn system_call(&self, tracee: &mut Tracee, number: c_long, arguments: [usize; 6]) -> io::Result<usize> {
        let thread = self.any(tracee)?;
        tracee.system_call(thread, self.program.system_call, number, arguments)
    }

    fn map(&self, tracee: &mut Tracee, len: usize) -> io::Result<Range<usize>> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        let at = self.system_call(tracee, libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0])?;
        Ok(at..at + len)
    }

    /// Maps and writes the agent, and maps a stack.
    fn put(&mut self, tracee: &mut Tracee, image: &Image<'_>) -> io::Result<()> {
        self.agent = self.map(tracee, image.len)?;
        self.stack = self.map(tracee, STACK_LEN)?;
        self.entry = self.agent.start + image.entry;
        for part in image.at(self.agent.start).map_err(io::Error::other)? {
            memory::write(self.pid, part.at, &part.bytes)?;
            let (at, len) = (part.pages.start, part.pages.end - part.pages.start);
            self.system_call(tracee, libc::SYS_mprotect, [at, len, part.protection as usize, 0, 0, 0])?;
        }
        memory::read(self.pid, self.agent.start, &mut self.head)
    }

    /// Lets a thread run the agent's entry.
    fn ask(&self, tracee: &mut Tracee, thread: pid_t, request: &Request) -> io::Result<Request> {
        let argument = self.stack.end - PAGE;
        memory::write(self.pid, argument, &request.to_bytes())?;
        tracee.run(thread, Entry { pc: self.entry, sp: argument, argument })?;
        let mut bytes = [0; size_of::<Request>()];
        memory::read(self.pid, argument, &mut bytes)?;
        Ok(Request::from_bytes(&bytes))
    }

    fn request(&self, what: u64, mask: u64) -> Request {
        Request {
            what,
            answer: 0,
            mask,
            errno_location: self.program.errno_location as u64,
            ledger: 0,
            region: [0; 64],
        }
    }

    /// Starts the agent, and has it know of each thread; `false` if it has told why it cannot.
    fn start(&mut self, tracee: &mut Tracee, region: &str) -> io::Result<bool> {
        let mut request = self.request(what::START, 0);
        let path =
            request.region.get_mut(..region.len()).ok_or_else(|| io::Error::other("a path is too long"))?;
        path.copy_from_slice(region.as_bytes());
        let thread = self.any(tracee)?;
        let told = self.ask(tracee, thread, &request)?;
        self.ledger = told.ledger as usize;
        if told.answer != 1 {
            return Ok(false);
        }
        for thread in tracee.threads() {
            let adopted = self.ask(tracee, thread, &self.request(what::ADOPT, tracee.mask(thread)))?;
            tracee.set_mask(thread, adopted.answer);
        }
        Ok(true)
    }

    /// Whether the agent is still there: the process runs, and has executed no other program.
    fn is_there(&self) -> bool {
        let mut head = [0; 64];
        memory::read(self.pid, self.agent.start, &mut head).is_ok() && head == self.head
    }

    /// Waits for the end of the process, of `limit`, or for a signal.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        wait::until_over(&self.process, &self.signals, limit);
    }

    /// Leaves the program as it was.
    ///
    /// # Errors
    /// It does not stop: the agent stays in it.
    pub(super) fn detach(mut self) -> Result<Left, Failure> {
        if wait::has_ended(&self.process) || !self.is_there() {
            return Ok(Left::Gone);
        }
        let mut tracee = match Tracee::stop(self.pid) {
            Ok(tracee) => tracee,
            Err(_) if wait::has_ended(&self.process) => return Ok(Left::Gone),
            Err(failure) => return Err(failure),
        };
        self.take_away(&mut tracee)
    }

    /// With all threads stopped, takes away what is there.
    fn take_away(&mut self, tracee: &mut Tracee) -> Result<Left, Failure> {
        let pid = self.pid;
        let done = if self.ledger == 0 {
            self.unmap(tracee, Vec::new()).map(|()| Left::Nothing)
        } else {
            match self.leave(tracee) {
                Ok(left) => Ok(left),
                Err(Trouble::Failure(failure)) => return Err(failure),
                Err(Trouble::Error(error)) => Err(error),
            }
        };
        match done {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(Left::Gone),
            done => done.map_err(|error| failure::half_way(pid, "leaving", &error)),
        }
    }

    fn leave(&mut self, tracee: &mut Tracee) -> Result<Left, Trouble> {
        let mut tries = TRIES;
        // One that is in a hit, or that plants probes in a library that it has just loaded, has to end that.
        loop {
            if let Some(thread) = self.outside(tracee)? {
                match self.ask(tracee, thread, &self.request(what::DISARM, 0))?.answer {
                    1 => break,
                    0 => return Ok(Left::Memory("text could not be written, and traps stay in it")),
                    _ => {}
                }
            }
            if !self.try_again(tracee, &mut tries)? {
                return Ok(Left::Memory(
                    "no thread could be found outside of a hit, so that probes stay in its text",
                ));
            }
        }
        while self.anybody_inside(tracee)? {
            if !self.try_again(tracee, &mut tries)? {
                return Ok(Left::Memory("a thread waits in code of the agent's"));
            }
        }
        let mut follows = self.follows;
        while follows {
            let thread = self.any(tracee)?;
            follows = self.ask(tracee, thread, &self.request(what::FOLLOWS, 0))?.answer != 0;
            if !follows || !self.try_again(tracee, &mut tries)? {
                break;
            }
            while self.anybody_inside(tracee)? && self.try_again(tracee, &mut tries)? {}
        }
        for thread in tracee.threads() {
            let left = self.ask(tracee, thread, &self.request(what::LEAVE_THREAD, 0))?.answer;
            tracee.set_mask(thread, tracee.mask(thread) | left);
        }
        let thread = self.any(tracee)?;
        self.ask(tracee, thread, &self.request(what::LEAVE, 0))?;
        if follows {
            return Ok(Left::Memory("calls that were followed may still return through it"));
        }
        let own = self.own_ranges()?;
        self.unmap(tracee, own)?;
        Ok(Left::Nothing)
    }

    /// What the agent has mapped itself.
    fn own_ranges(&self) -> io::Result<Vec<Range<usize>>> {
        let mut bytes = vec![0; ledger::LEN];
        memory::read(self.pid, self.ledger, &mut bytes)?;
        Ok(ledger::of_bytes(&bytes))
    }

    /// Lets the threads go on for a moment; `false` if that has been tried often enough.
    fn try_again(&self, tracee: &mut Tracee, tries: &mut u32) -> Result<bool, Failure> {
        *tries = tries.saturating_sub(1);
        if *tries == 0 {
            return Ok(false);
        }
        tracee.breathe().map(|()| true)
    }

    /// Whether a thread whose program counter is `pc` executes what the agent has mapped.
    fn executes(&self, own: &[Range<usize>], pc: usize) -> bool {
        self.agent.contains(&pc) || own.iter().any(|range| range.contains(&pc))
    }

    /// Whether a thread is in a hit, which it may be in code that it has interrupted.
    fn is_in_hit(&self, tracee: &mut Tracee, thread: pid_t) -> io::Result<bool> {
        Ok(self.ask(tracee, thread, &self.request(what::IS_IN_HIT, 0))?.answer != 0)
    }

    /// A thread that is neither in the agent's code nor in a hit.
    fn outside(&self, tracee: &mut Tracee) -> io::Result<Option<pid_t>> {
        let own = self.own_ranges()?;
        let threads: Vec<_> = tracee.pcs().filter(|&(_, pc)| !self.executes(&own, pc)).collect();
        for (thread, _) in threads {
            if !self.is_in_hit(tracee, thread)? {
                return Ok(Some(thread));
            }
        }
        Ok(None)
    }

    /// Whether any thread is in the agent's code, or in a hit.
    fn anybody_inside(&self, tracee: &mut Tracee) -> io::Result<bool> {
        let own = self.own_ranges()?;
        if tracee.pcs().any(|(_, pc)| self.executes(&own, pc)) {
            return Ok(true);
        }
        for thread in tracee.threads() {
            if self.is_in_hit(tracee, thread)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn unmap(&self, tracee: &mut Tracee, own: Vec<Range<usize>>) -> io::Result<()> {
        let all = own.into_iter().chain([self.agent.clone(), self.stack.clone()]);
        for range in all.filter(|range| !range.is_empty()) {
            self.system_call(tracee, libc::SYS_munmap, [range.start, range.end - range.start, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}

/// What may go wrong while leaving.
enum Trouble {
    Failure(Failure),
    Error(io::Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Error(error)
    }
}
