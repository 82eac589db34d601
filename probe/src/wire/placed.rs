//! Where the command has put an agent into a running program: written down in the shared memory, so that
//! another command can take the agent away when the first one was killed.

use super::futex;
use super::region::{Header, MAGIC, MOST_PLACED, PLACED_WORDS, Region};
use probe_host_linux::sys;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Where an agent lies, all in the program's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The object.
    pub agent: Range<usize>,
    /// Where it is entered.
    pub entry: usize,
    /// The stack on which it is entered.
    pub stack: Range<usize>,
    /// Its list of what it has mapped.
    pub ledger: usize,
}

impl Placed {
    fn to_words(&self) -> [u64; PLACED_WORDS - 1] {
        [self.agent.start, self.agent.end, self.entry, self.stack.start, self.stack.end, self.ledger]
            .map(|word| word as u64)
    }

    /// From words that a program may have written; `None` if they are no agent's.
    fn of_words(words: [u64; PLACED_WORDS - 1]) -> Option<Self> {
        let [start, end, entry, stack, stack_end, ledger] = words.map(|word| word as usize);
        let this = Self { agent: start..end, entry, stack: stack..stack_end, ledger };
        let is_sound = this.agent.contains(&entry) && this.agent.contains(&ledger) && !this.stack.is_empty();
        is_sound.then_some(this)
    }
}

impl Region {
    /// Writes down where the agent has been put into process `pid`, in whose earlier program's place that is;
    /// for [`MOST_PLACED`] living processes at the most. For the command.
    pub fn note_placed(&self, pid: u32, placed: &Placed) {
        static WRITING: Mutex<()> = Mutex::new(());
        let _writing = WRITING.lock();
        let places = &self.header().placed;
        let of = |is_wanted: &dyn Fn(u64) -> bool| {
            places.iter().find(|place| is_wanted(place[0].load(Ordering::Relaxed)))
        };
        let has_gone = |owner: u64| {
            // SAFETY: signal 0 sends nothing.
            unsafe { sys::call(libc::SYS_kill, [owner as usize, 0]) == Err(libc::ESRCH) }
        };
        let place = of(&|owner| owner == u64::from(pid))
            .or_else(|| of(&|owner| owner == 0))
            .or_else(|| of(&has_gone));
        let Some([owner, words @ ..]) = place else { return };
        owner.store(0, Ordering::Release);
        for (place, word) in words.iter().zip(placed.to_words()) {
            place.store(word, Ordering::Relaxed);
        }
        owner.store(pid.into(), Ordering::Release);
    }
}

/// What another process's memory says of a region that is mapped there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The command's process.
    pub reader_process: u32,
    /// Whether the command has ended.
    pub is_orphaned: bool,
    /// The agent, if the command has put one there.
    pub placed: Option<Placed>,
    /// Those that it has put into other processes, from which this one may have been forked.
    pub others: Vec<Placed>,
}

impl Found {
    /// How many bytes of a region tell it.
    pub const LEN: usize = size_of::<Header>();

    /// From a region's first bytes in process `pid`; `None` if it is none, or of another version.
    pub fn of_bytes(bytes: &[u8; Self::LEN], pid: u32) -> Option<Self> {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let places = (0..MOST_PLACED).map(|place| offset_of!(Header, placed) + 8 * PLACED_WORDS * place);
        let placed = |at: usize| Placed::of_words(std::array::from_fn(|i| word(at + 8 + 8 * i)));
        let own = places.clone().find(|&place| word(place) == u64::from(pid));
        let others = places.filter(|&place| word(place) != 0 && Some(place) != own);
        (word(offset_of!(Header, magic)) == MAGIC).then(|| Self {
            reader_process: half(offset_of!(Header, reader_process)),
            is_orphaned: futex::says_ended(half(offset_of!(Header, reader))),
            placed: own.and_then(placed),
            others: others.filter_map(placed).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, Layout};
    use super::*;

    fn region() -> Region {
        let layout =
            Layout { config_len: 10, stats_len: 1 << 16, maps_len: 0, ring_count: 1, ring_len: 4096 };
        Region::create(layout, b"p f", Flags::default()).unwrap().0
    }

    fn look(region: &Region) -> Option<Found> {
        look_in(region, 7)
    }

    fn look_in(region: &Region, pid: u32) -> Option<Found> {
        let words = region.words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bytes: Vec<u8> = words.take(Found::LEN).collect();
        Found::of_bytes(&bytes.try_into().unwrap(), pid)
    }

    #[test]
    fn where_the_agent_is_and_who_reads_is_found_in_the_bytes() {
        let region = region();
        let reader_process = std::process::id();
        assert_eq!(
            look(&region),
            Some(Found { reader_process, is_orphaned: false, placed: None, others: vec![] })
        );
        let placed = Placed { agent: 0x1000..0x9000, entry: 0x2000, stack: 0x10000..0x20000, ledger: 0x8000 };
        let other = Placed { ledger: 0x7000, ..placed.clone() };
        region.note_placed(6, &other);
        region.note_placed(7, &placed);
        assert_eq!(look_in(&region, 6).unwrap().placed, Some(other.clone()));
        let child = look_in(&region, 5).unwrap();
        assert_eq!((child.placed, child.others), (None, vec![other.clone(), placed.clone()]));
        std::thread::spawn(move || region.read_here()).join().unwrap();
        while look(&region).is_some_and(|found| !found.is_orphaned) {
            std::thread::yield_now();
        }
        assert_eq!(
            look(&region),
            Some(Found { reader_process, is_orphaned: true, placed: Some(placed), others: vec![other] })
        );
        region.words()[0].store(0, Ordering::Relaxed);
        assert_eq!(look(&region), None);
    }

    #[test]
    fn evt_2_words_that_are_no_agents_are_none() {
        let sound = [0x1000, 0x9000, 0x2000, 0x10000, 0x20000, 0x8000];
        assert!(Placed::of_words(sound).is_some());
        for (at, wrong) in [(2, 0x9000), (5, 0), (4, 0x10000), (1, 0)] {
            let mut words = sound;
            words[at] = wrong;
            assert_eq!(Placed::of_words(words), None, "{at}");
        }
    }
}
