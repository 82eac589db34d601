//! The maps of rules: where they lie in the statistics, and what they look like there.

use super::plan::{MapKind, MapPlan};
use probe_bpf::Map;
use probe_bpf::map::{Counter, Hash, Histogram, Line as MapLine, NoMemory, Scale, Texts};

/// The bytes of the statistics.
pub(super) const STATS_LEN: usize = if cfg!(target_pointer_width = "64") { 256 << 20 } else { 16 << 20 };

/// Room for maps, from the beginning of the statistics on.
#[derive(Debug, Default)]
pub struct MapRoom {
    len: usize,
}

impl MapRoom {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A place for another map; `None` where half of the statistics is taken: the rest is for counters.
    pub fn place(&mut self, kind: MapKind) -> Option<MapPlan> {
        let len = map_lines(kind)?.checked_mul(size_of::<MapLine>())?;
        let offset = self.len;
        self.len = offset.checked_add(len).filter(|&len| len <= STATS_LEN / 2)?;
        Some(MapPlan { kind, offset: u32::try_from(offset).ok()? })
    }
}

/// The map of a kind that lies there.
///
/// # Errors
/// There are too few lines.
pub(super) fn over(kind: MapKind, lines: &'static [MapLine]) -> Result<Map, NoMemory> {
    Ok(match kind {
        MapKind::Sum => Map::Counter(Counter::over(lines, MAP_CONTEXTS)?),
        MapKind::Histogram => Map::Histogram(Histogram::over(lines, Scale::Steps, MAP_CONTEXTS)?),
        MapKind::Table => Map::Hash(Hash::over(lines, TABLE_KEYS, MAP_CONTEXTS)?),
        MapKind::Histograms => Map::Hash(Hash::over(lines, 2 * TABLE_KEYS, MAP_CONTEXTS)?),
        MapKind::Texts => Map::Texts(Texts::over(lines, TEXTS)?),
    })
}

/// How many threads count in memory of their own, before two share some.
const MAP_CONTEXTS: usize = if cfg!(target_pointer_width = "64") { 8 } else { 2 };
/// How many keys a table has room for in each of these.
const TABLE_KEYS: usize = if cfg!(target_pointer_width = "64") { 1 << 14 } else { 1 << 10 };
/// How many texts have room.
const TEXTS: usize = if cfg!(target_pointer_width = "64") { 1 << 13 } else { 1 << 10 };

/// How many lines it has.
pub(super) fn map_lines(kind: MapKind) -> Option<usize> {
    Some(match kind {
        MapKind::Sum => Counter::lines(MAP_CONTEXTS),
        MapKind::Histogram => Histogram::lines(Scale::Steps, MAP_CONTEXTS),
        MapKind::Table => return Hash::lines(TABLE_KEYS, MAP_CONTEXTS),
        MapKind::Histograms => return Hash::lines(2 * TABLE_KEYS, MAP_CONTEXTS),
        MapKind::Texts => return Texts::lines(TEXTS),
    })
}
