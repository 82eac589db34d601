//! The reader of files of `probe record`, on any bytes.

use probe_trace::file::{BLOCKS, Item, Reader, Stop, seal};
use std::ops::ControlFlow;

/// Reads the bytes as a file; then as what a file with right checksums says, block by block.
pub fn read(data: &[u8]) {
    look(data);
    // Nothing behind a checksum is reached by chance.
    let mut sealed = Vec::new();
    for (index, piece) in data.split(|byte| *byte == 0xa5).enumerate() {
        let (kind, payload) = piece.split_first().unwrap_or((&0, &[]));
        // Facts first: events need them.
        let kind = if index == 0 { 0 } else { usize::from(*kind) % BLOCKS.len() };
        seal(&mut sealed, BLOCKS[kind], payload);
    }
    look(&sealed);
    look(&sealed[..sealed.len() - data.len().min(7)]);
}

/// Reads to the end: what is there takes no more memory than the bytes do, but for a factor.
fn look(bytes: &[u8]) {
    let Ok(mut reader) = Reader::new(bytes) else { return };
    let mut room = 0;
    let stop = reader.read(|item| {
        if let Item::Event(event) = item {
            let values = event.values.fold(0, |len, value| len + value.bytes.map_or(0, <[u8]>::len));
            room = room.max(values);
            let _ = event.names.get(0);
        }
        ControlFlow::Continue(())
    });
    assert!(room <= 8 * bytes.len(), "{room} bytes of values from {} bytes", bytes.len());
    assert!(!matches!(stop, Stop::Left | Stop::Failed(_)), "{stop:?}");
    assert!(reader.at() <= bytes.len() as u64);
}
