//! The agent in a stopped program: put there, asked, taken away.

use super::failure;
use super::helper;
use super::image::{Image, PAGE};
use super::masks;
use super::memory;
use super::program::{Program, is_loading};
use super::stacks::{self, Code};
use super::tracee::{Entry, Tracee};
use crate::cli::errno::ErrnoAt;
use crate::cli::failure::Failure;
use crate::wire::request::{PATH_LEN, Request, told, what};
use crate::wire::{Placed, Region};
use libc::{c_long, pid_t};
use probe_host_linux::ledger;
use std::cell::OnceCell;
use std::io;
use std::ops::Range;

/// The stack on which the agent's entry runs, the request at its end.
const STACK_LEN: usize = 1 << 20;

/// How often the threads go on for a moment when they are where they must not be.
pub(super) const TRIES: u32 = 500;

/// How often for calls to return.
const RETURNS: u32 = 100;

/// Why memory stays.
const WAITS: &str = "a thread waits in code of the agent's";

/// What is put into the program.
pub(crate) struct What<'a> {
    /// The agent's object.
    pub(crate) agent: &'a [u8],
    /// The shared memory.
    pub(crate) region: Region,
    /// Its path.
    pub(crate) path: &'a str,
    /// Whether there are return probes.
    pub(crate) follows: bool,
    /// The path of the agent that dynamic linkers load, if children are followed.
    pub(crate) loaded: Option<&'a str>,
}

/// What is left in a program that has been left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// The program has ended, or executed another one.
    Gone,
    /// The agent's memory, for this reason.
    Memory(&'static str),
    /// Probes in its text, for this reason.
    Probes(&'static str),
}

/// An agent.
pub(super) struct Agent {
    pub(super) pid: pid_t,
    system_call: usize,
    errno: ErrnoAt,
    /// See [`Program::loading`].
    loading: Option<usize>,
    /// See [`Program::restorers`].
    restorers: Vec<usize>,
    /// Where it lies.
    pub(super) placed: Placed,
    /// Whether calls are followed: their returns lead through the agent's memory.
    pub(super) follows: bool,
    /// What its handlers return to, once it has been looked for.
    own_restorers: OnceCell<Vec<usize>>,
}

impl Agent {
    /// The one that lies in process `pid` there; nowhere, if it is not there yet.
    pub(super) fn new(pid: pid_t, program: &Program, placed: Placed, follows: bool) -> Self {
        let &Program { system_call, errno, loading, .. } = program;
        let restorers = program.restorers.clone();
        let own_restorers = OnceCell::new();
        Self { pid, system_call, errno, loading, restorers, placed, follows, own_restorers }
    }

    /// Whether it lies anywhere.
    pub(super) fn is_placed(&self) -> bool {
        !self.placed.agent.is_empty()
    }

    /// A thread to do what any thread can do.
    fn any(&self, tracee: &Tracee) -> io::Result<pid_t> {
        tracee.threads().first().copied().ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }

    fn system_call(&self, tracee: &mut Tracee, number: c_long, arguments: [usize; 6]) -> io::Result<usize> {
        let thread = self.any(tracee)?;
        tracee.system_call(thread, self.system_call, number, arguments)
    }

    fn map(&self, tracee: &mut Tracee, len: usize) -> io::Result<Range<usize>> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        let at = self.system_call(tracee, libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0])?;
        Ok(at..at + len)
    }

    /// Maps and writes the agent, and maps a stack.
    pub(super) fn put(&mut self, tracee: &mut Tracee, image: &Image<'_>) -> io::Result<()> {
        self.make_room(tracee, image, 0)?;
        self.write(tracee, image)
    }

    /// Maps memory for the agent, `behind` bytes behind it, and a stack.
    fn make_room(&mut self, tracee: &mut Tracee, image: &Image<'_>, behind: usize) -> io::Result<()> {
        let len = image.len + behind;
        let all = self.map(tracee, len + STACK_LEN)?;
        self.placed.agent = all.start..all.start + len;
        self.placed.stack = all.start + len..all.end;
        self.placed.entry = self.placed.agent.start + image.entry;
        Ok(())
    }

    fn write(&self, tracee: &mut Tracee, image: &Image<'_>) -> io::Result<()> {
        for part in image.at(self.placed.agent.start).map_err(io::Error::other)? {
            memory::write(self.pid, part.at, &part.bytes)?;
            let (at, len) = (part.pages.start, part.pages.end - part.pages.start);
            self.system_call(tracee, libc::SYS_mprotect, [at, len, part.protection as usize, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Puts the agent into the running program, and has it read there what it needs: see [`helper`]. Where
    /// that cannot be done, nothing is left, and the agent is nowhere.
    ///
    /// # Errors
    /// The process cannot be traced.
    pub(super) fn prepare(&mut self, image: &Image<'_>, what: &What<'_>) -> Result<(), Failure> {
        if !helper::is_possible(self.pid) {
            return Ok(());
        }
        let mut stopped = Tracee::stop_one(self.pid)?;
        let made = self.make_helper(&mut stopped, image);
        // The program's thread goes on.
        drop(stopped);
        let done = made.and_then(|mut helper| {
            let done = self.write(&mut helper, image).and_then(|()| self.read_ahead(&mut helper, what));
            helper.end();
            done
        });
        if done.is_err() {
            let gone = self.forget(&mut Tracee::stop_one(self.pid)?);
            gone.map_err(|error| failure::half_way(self.pid, "leaving", &error))?;
        }
        Ok(())
    }

    /// Has a stopped thread map memory, and make a thread there.
    fn make_helper(&mut self, stopped: &mut Tracee, image: &Image<'_>) -> io::Result<Tracee> {
        self.make_room(stopped, image, PAGE)?;
        let door = self.placed.agent.end - PAGE;
        memory::write(self.pid, door, &helper::DOOR)?;
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        self.system_call(stopped, libc::SYS_mprotect, [door, PAGE, protection, 0, 0, 0])?;
        helper::start(stopped, door)
    }

    fn read_ahead(&mut self, helper: &mut Tracee, what: &What<'_>) -> io::Result<()> {
        let request = self.request_with(what::PREPARE, what)?;
        let done = self.ask(helper, self.any(helper)?, &request).map(drop);
        // What it has mapped before it failed is known, too.
        self.placed.ledger = self.answered()?.ledger as usize;
        done
    }

    /// Takes an agent away that has not started.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn forget(&mut self, stopped: &mut Tracee) -> io::Result<()> {
        let own = if self.placed.ledger == 0 { Vec::new() } else { self.own_ranges()? };
        self.unmap(stopped, own)?;
        self.placed = Placed { agent: 0..0, entry: 0, stack: 0..0, ledger: 0 };
        Ok(())
    }

    /// The places for masks of waits, at the stack's far end.
    fn places(&self) -> Range<usize> {
        self.placed.stack.start..self.placed.stack.start + STACK_LEN / 4
    }

    /// As many threads have places.
    const MOST_THREADS: usize = STACK_LEN / 4 / masks::PLACE_LEN;

    /// Lets a thread run the agent's entry.
    fn ask(&self, tracee: &mut Tracee, thread: pid_t, request: &Request) -> io::Result<Request> {
        let argument = self.placed.stack.end - PAGE;
        memory::write(self.pid, argument, &request.to_bytes())?;
        tracee.run(thread, Entry { pc: self.placed.entry, sp: argument, argument })?;
        self.answered()
    }

    /// The request that was made last, with what the agent has written there.
    fn answered(&self) -> io::Result<Request> {
        let mut bytes = [0; size_of::<Request>()];
        memory::read(self.pid, self.placed.stack.end - PAGE, &mut bytes)?;
        Ok(Request::from_bytes(&bytes))
    }

    /// A request that names the shared memory.
    fn request_with(&self, what: u64, all: &What<'_>) -> io::Result<Request> {
        let told = |path: &str| told(path).ok_or_else(|| io::Error::other("a path is too long"));
        let loaded = all.loaded.unwrap_or_default();
        let (region, loaded) = (told(all.path)?, told(loaded)?);
        Ok(Request { region, loaded, ..self.request(what, 0) })
    }

    fn request(&self, what: u64, mask: u64) -> Request {
        let (errno_location, errno_behind) = match self.errno {
            ErrnoAt::Told(at) => (at as u64, 0),
            ErrnoAt::Behind(distance) => (0, i64::from(distance)),
        };
        let [region, loaded] = [[0; PATH_LEN]; 2];
        Request { what, answer: 0, mask, errno_location, errno_behind, ledger: 0, region, loaded }
    }

    /// Starts the agent (`how`: START or FOLLOW), and has it know of each thread; `false` if it has told why
    /// it cannot.
    pub(super) fn start(&mut self, tracee: &mut Tracee, how: u64, what: &What<'_>) -> io::Result<bool> {
        if tracee.threads().len() > Self::MOST_THREADS {
            return Err(io::Error::other(format!("it has more than {} threads", Self::MOST_THREADS)));
        }
        let request = self.request_with(how, what)?;
        let thread = self.any(tracee)?;
        let told = self.ask(tracee, thread, &request)?;
        self.placed.ledger = told.ledger as usize;
        if told.answer != 1 {
            return Ok(false);
        }
        let (pid, maps) = (self.pid, memory::maps(self.pid)?);
        for (thread, place) in tracee.threads().into_iter().zip(self.places().step_by(masks::PLACE_LEN)) {
            stacks::clean(pid, tracee.sp(thread), &maps, &self.restorers)?;
            tracee.change(thread, |regs| masks::clean(pid, regs, place))?;
            let adopted = self.ask(tracee, thread, &self.request(what::ADOPT, tracee.mask(thread)))?;
            tracee.set_mask(thread, adopted.answer);
        }
        Ok(true)
    }

    /// With all threads stopped, takes away what is there.
    pub(super) fn take_away(&self, tracee: &mut Tracee) -> Result<Left, Failure> {
        let pid = self.pid;
        let done = if self.placed.ledger == 0 {
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

    fn leave(&self, tracee: &mut Tracee) -> Result<Left, Trouble> {
        let mut tries = TRIES;
        // One that is in a hit, or that plants probes in a library that it has just loaded, has to end that.
        loop {
            // The agent looks at the loader's list.
            let thread = if is_loading(self.pid, self.loading) { None } else { self.outside(tracee)? };
            if let Some(thread) = thread {
                match self.ask(tracee, thread, &self.request(what::DISARM, 0))?.answer {
                    1 => break,
                    0 => return Ok(Left::Probes("text could not be written")),
                    _ => {}
                }
            }
            if !self.try_again(tracee, &mut tries)? {
                return Ok(Left::Probes("no thread came out of a hit"));
            }
        }
        let code = self.code()?;
        while self.anybody_inside(tracee, &code)? {
            if !self.try_again(tracee, &mut tries)? {
                return Ok(Left::Memory(WAITS));
            }
        }
        let mut follows = self.follows;
        let mut returns = RETURNS.min(tries);
        while follows {
            let thread = self.any(tracee)?;
            let answer = self.ask(tracee, thread, &self.request(what::FOLLOWS, 0))?.answer;
            follows = answer != 0;
            if answer != 1 || !self.try_again(tracee, &mut returns)? {
                break;
            }
            while self.anybody_inside(tracee, &code)? {
                if !self.try_again(tracee, &mut tries)? {
                    return Ok(Left::Memory(WAITS));
                }
            }
        }
        let own = self.own_ranges()?;
        let is_ours = |at: usize| self.places().contains(&at) || own.iter().any(|range| range.contains(&at));
        for thread in tracee.threads() {
            let pid = self.pid;
            tracee.change(thread, |regs| masks::give_back(pid, regs, is_ours))?;
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
        memory::read(self.pid, self.placed.ledger, &mut bytes)?;
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

    /// What the agent's handlers return to. Its code stays as it is: this may be asked while threads run, so
    /// that they need not stop for it.
    pub(super) fn own_restorers(&self) -> &[usize] {
        self.own_restorers.get_or_init(|| {
            let maps = memory::maps(self.pid).unwrap_or_default();
            let own = maps.iter().filter(|map| map.is_executable && self.placed.agent.contains(&map.start));
            let look = |map: &memory::Mapping| {
                let mut bytes = vec![0; map.end - map.start];
                memory::read(self.pid, map.start, &mut bytes).ok()?;
                Some(stacks::restorers(map.start, &bytes))
            };
            own.filter_map(look).flatten().collect()
        })
    }

    /// The agent's code as it is now.
    fn code(&self) -> io::Result<Code> {
        let own = self.own_ranges()?;
        let is_own =
            |at: usize| self.placed.agent.contains(&at) || own.iter().any(|range| range.contains(&at));
        let maps = memory::maps(self.pid)?;
        let ranges = maps.iter().filter(|map| map.is_executable && is_own(map.start));
        let ranges: Vec<_> = ranges.map(|map| map.start..map.end).collect();
        let restorers = self.restorers.iter().chain(self.own_restorers()).copied().collect();
        Ok(Code { ranges, restorers })
    }

    /// Whether a thread is in a hit, which it may be in code that it has interrupted.
    fn is_in_hit(&self, tracee: &mut Tracee, thread: pid_t) -> io::Result<bool> {
        Ok(self.ask(tracee, thread, &self.request(what::IS_IN_HIT, 0))?.answer != 0)
    }

    /// A thread that is neither in the agent's code nor in a hit.
    fn outside(&self, tracee: &mut Tracee) -> io::Result<Option<pid_t>> {
        let code = self.code()?;
        let threads: Vec<_> = tracee.pcs().filter(|&(_, pc)| !code.holds(pc)).collect();
        for (thread, _) in threads {
            if !self.is_in_hit(tracee, thread)? {
                return Ok(Some(thread));
            }
        }
        Ok(None)
    }

    /// Whether any thread is in the agent's code, below it, or in a hit.
    fn anybody_inside(&self, tracee: &mut Tracee, code: &Code) -> io::Result<bool> {
        if tracee.pcs().any(|(_, pc)| code.holds(pc)) {
            return Ok(true);
        }
        let maps = memory::maps(self.pid)?;
        for thread in tracee.threads() {
            if code.is_below(self.pid, tracee.sp(thread), &maps) || self.is_in_hit(tracee, thread)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn unmap(&self, tracee: &mut Tracee, own: Vec<Range<usize>>) -> io::Result<()> {
        let all = own.into_iter().chain([self.placed.agent.clone(), self.placed.stack.clone()]);
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
