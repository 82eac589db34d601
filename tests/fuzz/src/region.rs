//! The command's reader over a live region, into which the traced program may write anything at any time.
//!
//! Ten bytes are one store: where (the header, a ring's indices, its bytes, the maps), and a word. First a
//! look follows every store, then a second thread makes all of them over and over while the reader looks.

use probe_bpf::Map;
use probe_bpf::map::Scale;
use probe_trace::wire::{
    Flags, Histogram, Layout, MapKind, MapPlan, MapRoom, Reader, Record, Region, decode,
};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const RINGS: usize = 3;
const RING_LEN: usize = 4096;
const PAGE: usize = 4096 / 8;

/// A region and its maps.
struct Shared {
    region: Region,
    maps: [MapPlan; 3],
    _file: OwnedFd,
}

/// The region, mapped once: it stays mapped for good. One input at a time.
fn shared() -> (&'static Shared, MutexGuard<'static, ()>) {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let create = || {
        let mut room = MapRoom::default();
        let maps = [MapKind::Sum, MapKind::Histogram, MapKind::Table]
            .map(|kind| room.place(kind).expect("room for three"));
        let layout = Layout { ring_count: RINGS, ..Layout::new(0, &room, RING_LEN) };
        let (region, _file) = Region::create(layout, b"", Flags::default()).expect("memory");
        Shared { region, maps, _file }
    };
    (SHARED.get_or_init(create), one)
}

/// A store that the traced program makes.
#[derive(Clone, Copy)]
struct Store {
    word: &'static AtomicU64,
    value: u64,
}

fn stores(Shared { region, maps, .. }: &Shared, data: &[u8]) -> Vec<Store> {
    let words = region.words();
    let store = |chunk: &[u8; 10]| {
        let [place, at, value @ ..] = *chunk;
        let ring = region.words_of_ring(usize::from(place >> 2) % RINGS);
        let index = match place & 3 {
            0 => usize::from(at) % PAGE,
            1 => ring + usize::from(at) % 24,
            2 => {
                let map = maps[usize::from(place >> 2) % maps.len()];
                // No plans: the statistics begin at the second page.
                PAGE + map.offset as usize / 8 + usize::from(at)
            }
            _ => ring + PAGE + usize::from(at) % 16,
        };
        Store { word: &words[index], value: u64::from_ne_bytes(value) }
    };
    data.as_chunks().0.iter().map(store).collect()
}

/// Looks at everything once. What a look costs is bounded by the rings, and what it gives by their length.
fn look(reader: &mut Reader, now_ns: u64) {
    assert!(reader.rings_used() <= RINGS);
    for index in 0..reader.rings_used() {
        let _ = reader.horizon_ns(index, now_ns);
        let _ = (reader.owner(index), reader.comm(index), reader.new_drops(index));
        let mut seen = 0;
        let progress = reader.read(index, usize::MAX, |record| {
            assert!(record.len() + 4 <= RING_LEN);
            seen += record.len();
            match decode(record) {
                Some(Record::Event(event)) => assert!(event.values.count() <= RING_LEN / 4),
                Some(Record::Meta(meta)) => assert!(!format!("{meta:?}").is_empty()),
                None => {}
            }
        });
        assert!(progress.bytes <= RING_LEN && seen <= progress.bytes && !progress.is_partial);
        reader.free_if_drained(index, now_ns.is_multiple_of(2));
    }
    let mut histogram = Histogram::default();
    for offset in [0, 64, 1 << 12, u32::MAX] {
        let _ = reader.counts(offset);
        reader.add_durations(offset, &mut histogram);
    }
    let _ = (histogram.quantile(0.5), reader.lost(), reader.spoilt());
}

/// Reads the maps: no more keys than there is room for, each once.
fn look_at_maps(reader: &Reader, maps: &[MapPlan]) {
    for map in maps.iter().filter_map(|plan| reader.map(*plan)) {
        match map {
            Map::Counter(counter) => drop(counter.sum()),
            Map::Histogram(histogram) => assert_eq!(histogram.counts().len(), Scale::Steps.len()),
            Map::Hash(hash) => assert!(hash.sums().is_sorted_by(|(a, _), (b, _)| a < b)),
            _ => unreachable!("the command places no others"),
        }
    }
}

/// Makes the stores, looks in between, and looks while another thread makes them.
pub fn hostile(data: &[u8]) {
    let (shared, _one) = shared();
    let stores = stores(shared, data);
    let mut reader = Reader::new(shared.region);
    for (now_ns, store) in (0..).zip(&stores) {
        store.word.store(store.value, Ordering::Relaxed);
        look(&mut reader, now_ns);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                stores.iter().for_each(|store| store.word.store(store.value, Ordering::Relaxed));
            }
        });
        (0..16).for_each(|now_ns| look(&mut reader, now_ns));
        // They are large; of some inputs.
        if data.len() % 8 == 2 {
            look_at_maps(&reader, &shared.maps);
        }
        done.store(true, Ordering::Relaxed);
    });
}
