//! `probe trace --pid`: puts the agent into a program that runs already, and takes it away again.
//!
//! A thread of the program's maps memory for the agent (system calls, made at an instruction of the vDSO),
//! and makes a thread for us, in which the agent reads symbols while the program runs on. Then all threads
//! are stopped, and one runs the agent's entry on a stack of ours, which plants. No function of the program's
//! is called but one that computes an address. Then the threads go on.
//!
//! In the order of reading: [`image`] the object · [`request`], [`stop`], [`tracee`], [`interrupted`] stopped
//! threads · [`helper`] a thread of ours ·
//! [`memory`] their memory · [`masks`] waits with a mask · [`stacks`] what lies on stacks · [`agent`] what is
//! done with the agent · [`program`] what is traced · [`start`] one that the command
//! starts · [`executed`] one that a followed one executes · [`earlier`],
//! [`keeper`] what killed commands have left · [`failure`] why it cannot be. The other side is
//! `agent/mapped`.

mod agent;
mod earlier;
mod executed;
mod failure;
mod helper;
mod image;
mod interrupted;
mod keeper;
mod masks;
mod memory;
mod program;
mod request;
mod stacks;
mod start;
mod stop;
mod tracee;
mod wait;

pub(super) use agent::{Left, What};
pub(super) use executed::{Waits, while_answering};
pub(super) use keeper::Keeper;
pub(super) use start::{Begun, begin, to_be_stopped};

use super::failure::Failure;
use super::processes;
use super::status::Status;
use crate::wire::request::what::START;
use crate::wire::{Found, Placed};
use agent::{Agent, TRIES};
use image::Image;
use libc::pid_t;
use program::{Program, Since};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tracee::Tracee;

/// A program with the agent in it.
pub(super) struct Attached {
    pid: pid_t,
    /// Readable when the process has ended.
    process: OwnedFd,
    agent: Agent,
    /// The first bytes of the agent, which tell it from what is there after an execution.
    head: [u8; HEAD_LEN],
}

const HEAD_LEN: usize = 64;

fn head_of(agent: &Agent) -> io::Result<[u8; HEAD_LEN]> {
    let mut head = [0; HEAD_LEN];
    memory::read(agent.pid, agent.placed.agent.start, &mut head).map(|()| head)
}

/// Lets the threads go on until no library is being loaded.
fn loaded(program: &Program, tracee: &mut Tracee) -> Result<(), Failure> {
    for _ in 0..TRIES {
        if !program.is_loading() {
            return Ok(());
        }
        tracee.breathe()?;
    }
    let sentence = format!("process {} does not finish loading a library; try again", tracee.pid);
    Err(failure::untraceable(sentence))
}

/// A process that the agent can be put into.
pub(super) struct Door {
    pid: pid_t,
    program: Program,
    process: OwnedFd,
}

impl Door {
    /// Looks at process `pid`. `follows`: there are return probes.
    ///
    /// # Errors
    /// The process cannot be traced.
    pub(super) fn of(pid: pid_t, follows: bool) -> Result<Self, Failure> {
        let program = Program::look(pid, follows, Since::Earlier)?;
        let process = wait::process(pid)?;
        Ok(Self { pid, program, process })
    }

    /// The process.
    pub(super) fn pid(&self) -> pid_t {
        self.pid
    }
}

/// Puts the agent into a process. `Ok(None)`: it could not start there, and has told why through the
/// shared memory; the program goes on as before.
///
/// # Errors
/// The process cannot be traced; it goes on as before.
pub(super) fn attach(door: Door, what: &What<'_>) -> Result<Option<Attached>, Failure> {
    let Door { pid, program, process } = door;
    let image = Image::parse(what.agent).map_err(|why| Failure::new(why).with(Status::Failed))?;
    if !program.regions().unwrap_or_default().is_empty() {
        earlier::take_away(&program, &mut Tracee::stop(pid)?)?;
    }
    let nowhere = Placed { agent: 0..0, entry: 0, stack: 0..0, ledger: 0 };
    let mut agent = Agent::new(pid, &program, nowhere, what.follows);
    agent.prepare(&image, what)?;
    let half_way = |error: &io::Error| failure::half_way(pid, "starting the agent", error);
    let mut head =
        agent.is_placed().then(|| head_of(&agent)).transpose().map_err(|error| half_way(&error))?;
    if head.is_some() {
        what.region.note_placed(pid.cast_unsigned(), &agent.placed);
    }
    let mut tracee = Tracee::stop(pid)?;
    if let Err(failure) =
        earlier::take_away(&program, &mut tracee).and_then(|()| loaded(&program, &mut tracee))
    {
        let _ = agent.forget(&mut tracee);
        return Err(failure);
    }
    if head.is_some_and(|head| head_of(&agent).ok() != Some(head)) {
        let sentence = format!("process {pid} has executed another program; try again");
        return Err(failure::untraceable(sentence));
    }
    let put = if head.is_some() { Ok(()) } else { agent.put(&mut tracee, &image) };
    match put.and_then(|()| agent.start(&mut tracee, START, what)) {
        Ok(true) => {
            if head.is_none() {
                what.region.note_placed(pid.cast_unsigned(), &agent.placed);
                head = Some(head_of(&agent).map_err(|error| half_way(&error))?);
            }
            Ok(Some(Attached { pid, process, agent, head: head.unwrap_or([0; HEAD_LEN]) }))
        }
        Ok(false) => {
            agent.take_away(&mut tracee)?;
            Ok(None)
        }
        Err(error) => {
            let failed = half_way(&error);
            let _ = agent.take_away(&mut tracee);
            Err(failed)
        }
    }
}

impl Attached {
    /// Whether the agent is still there: the process runs, and has executed no other program.
    fn is_there(&self) -> bool {
        head_of(&self.agent).is_ok_and(|head| head == self.head)
    }

    /// Its process.
    pub(super) fn pid(&self) -> pid_t {
        self.pid
    }

    /// What its children have inherited that it has forked since.
    pub(super) fn heritage(&self) -> Heritage {
        Heritage { placed: self.agent.placed.clone(), head: self.head, follows: self.agent.follows }
    }

    /// Leaves the program as it was.
    ///
    /// # Errors
    /// It does not stop: the agent stays in it.
    pub(super) fn detach(self) -> Result<Left, Failure> {
        if wait::has_ended(&self.process) || !self.is_there() {
            return Ok(Left::Gone);
        }
        // The longest look is over before the threads stop.
        self.agent.own_restorers();
        let mut tracee = match Tracee::stop(self.pid) {
            Ok(tracee) => tracee,
            Err(_) if wait::has_ended(&self.process) => return Ok(Left::Gone),
            Err(failure) => return Err(failure),
        };
        self.agent.take_away(&mut tracee)
    }
}

/// An agent as a fork's child has it.
pub(super) struct Heritage {
    placed: Placed,
    head: [u8; HEAD_LEN],
    follows: bool,
}

impl Heritage {
    /// Whether it lies in process `pid`.
    fn is_in(&self, pid: pid_t) -> bool {
        let mut head = [0; HEAD_LEN];
        memory::read(pid, self.placed.agent.start, &mut head).is_ok() && head == self.head
    }
}

/// Leaves all children as they would be without the agents that they have from a fork, also those that come
/// meanwhile. Those that have executed a program have none of these. What is left in one that is not as it
/// was is said.
pub(super) fn leave_children(all: &[Heritage]) -> Vec<(pid_t, Result<Left, Failure>)> {
    let mut left: Vec<(pid_t, Result<Left, Failure>)> = Vec::new();
    loop {
        let mut is_new = false;
        for pid in processes::all() {
            if left.iter().any(|&(known, _)| known == pid) {
                continue;
            }
            let Some(heritage) = all.iter().find(|heritage| heritage.is_in(pid)) else { continue };
            is_new = true;
            let done = match leave_child(pid, heritage) {
                // It has ended, or executed a program, meanwhile.
                Err(_) if !heritage.is_in(pid) => Ok(Left::Gone),
                done => done,
            };
            left.push((pid, done));
        }
        if !is_new {
            return left;
        }
    }
}

fn leave_child(pid: pid_t, heritage: &Heritage) -> Result<Left, Failure> {
    let program = Program::look(pid, false, Since::Earlier)?;
    let is_ours = |region: usize| {
        let mut bytes = [0; Found::LEN];
        let read = memory::read(pid, region, &mut bytes).ok();
        let found = read.and_then(|()| Found::of_bytes(&bytes, pid.cast_unsigned()));
        found.is_some_and(|found| found.reader_process == std::process::id())
    };
    if !program.regions().unwrap_or_default().into_iter().any(is_ours) {
        // Another command's process has its agent at the same place.
        return Ok(Left::Gone);
    }
    let agent = Agent::new(pid, &program, heritage.placed.clone(), heritage.follows);
    agent.own_restorers();
    let mut tracee = Tracee::stop(pid)?;
    agent.take_away(&mut tracee)
}

/// Signals that end a trace, held back in this thread, and in those that it starts, from here on.
pub(super) struct Signals(OwnedFd);

impl Signals {
    /// Holds them back.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn hold() -> io::Result<Self> {
        wait::signals().map(Self)
    }

    /// Waits for the end of all these processes, of `limit`, or for a signal.
    pub(super) fn wait(&self, all: &[Attached], limit: Option<Duration>) {
        let processes: Vec<&OwnedFd> = all.iter().map(|attached| &attached.process).collect();
        wait::until_over(&processes, &self.0, limit);
    }
}
