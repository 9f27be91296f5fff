//! A fuzz input as records: parts split by the byte 0xfe are value, key, header value, and further values.

use millstream_core::record::{Range, Slot};
use millstream_core::{Decoded, Decoder, PartitionId, Position, RecordBatch};
use millstream_decode::{Options, TableHints};

/// Options under which a table of a well-known name has a configured key.
pub fn options() -> Options {
    let hints = TableHints { key: Some(vec!["id".to_owned()]), ..TableHints::default() };
    Options { tables: [("s.t".to_owned(), hints)].into(), ..Options::default() }
}

/// Decodes the input with a fresh decoder and again with the same, now warm, one; both must agree on what each record
/// is. `check` sees every item, and whether its value is JSON.
pub fn run(data: &[u8], make: impl Fn(bool) -> Box<dyn Decoder>, check: impl Fn(&Decoded, bool)) {
    let mut parts = data.split(|&b| b == 0xfe);
    let (Some(value), key, header) = (parts.next(), parts.next(), parts.next()) else { return };
    for keep in [false, true] {
        let mut decoder = make(keep);
        for _ in 0..2 {
            for value in std::iter::once(value).chain(parts.clone()) {
                let batch = batch(value, key, header);
                let mut out = Vec::new();
                for record in batch.records() {
                    decoder.decode(&record, &mut out);
                }
                assert_eq!(out.len(), 1);
                let json = serde_json::from_slice::<&serde_json::value::RawValue>(value).is_ok();
                // A tombstone's headers alone can tell a delete.
                check(&out[0], json || value.is_empty());
            }
        }
        decoder.notices();
    }
}

fn batch(value: &[u8], key: Option<&[u8]>, header: Option<&[u8]>) -> RecordBatch {
    let mut buffer = Vec::new();
    let mut put = |bytes: &[u8]| {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(bytes);
        Range { start, len: bytes.len() as u32 }
    };
    let slot = Slot {
        value: Some(put(value)),
        key: key.map(&mut put),
        headers: header.map(|h| (put(b"__debezium.oldkey"), put(h))).into_iter().collect(),
        topic: Some(put(b"p.s.t")),
        ..Slot::default()
    };
    RecordBatch {
        partition: PartitionId::new("fuzz"),
        buffer,
        slots: vec![slot],
        position: Position::default(),
    }
}
