//! The commit token: files that are in the bucket and not in their tables.
//!
//! ```text
//! 3                      format number
//! u64 little-endian      epoch
//! i64 little-endian      its rows' time of ingestion, µs
//! u32                    kinds of files, for each:
//!   u8                     1: JSON lines, 0: Parquet
//!   text                   table
//!   text                   columns, the JSON of a `TableSchema`
//! then for each batch, the oldest first, of files that are loaded together:
//!   u32                    files, for each:
//!     u32                    kind
//!     u64 i64 u32            epoch, time of ingestion, number
//!     u64 u64                rows, bytes
//! ```
//! Numbers are little-endian; a text has its length as u32 before it. The files' names follow from these.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_core::{CommitToken, Error, Result};

use super::file::{Kind, LoadFile};
use crate::session::Mark;
use crate::token::{FILES as FORMAT, take, text};

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadToken {
    pub(crate) mark: Mark,
    /// Files that are loaded together, the oldest first.
    pub(crate) batches: Vec<Vec<LoadFile>>,
}

pub(crate) fn encode(token: &LoadToken) -> CommitToken {
    let mut kinds = BTreeMap::new();
    for file in token.batches.iter().flatten() {
        let next = kinds.len() as u32;
        kinds.entry(&*file.kind).or_insert(next);
    }
    let mut bytes = vec![FORMAT];
    bytes.extend(token.mark.epoch.to_le_bytes());
    bytes.extend(token.mark.ingested_at_us.to_le_bytes());
    bytes.extend((kinds.len() as u32).to_le_bytes());
    let mut by_number: Vec<_> = kinds.iter().map(|(kind, number)| (*number, *kind)).collect();
    by_number.sort_by_key(|(number, _)| *number);
    for (_, kind) in by_number {
        bytes.push(kind.is_json.into());
        for text in [&kind.table, &kind.columns] {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
    }
    for batch in &token.batches {
        bytes.extend((batch.len() as u32).to_le_bytes());
        for file in batch {
            bytes.extend(kinds.get(&*file.kind).copied().unwrap_or_default().to_le_bytes());
            bytes.extend(file.epoch.to_le_bytes());
            bytes.extend(file.ingested_at_us.to_le_bytes());
            bytes.extend(file.number.to_le_bytes());
            bytes.extend(file.rows.to_le_bytes());
            bytes.extend(file.bytes.to_le_bytes());
        }
    }
    CommitToken(bytes)
}

pub(crate) fn decode(token: &CommitToken) -> Result<LoadToken> {
    read(&token.0).ok_or_else(|| {
        Error::fatal(format!(
            "the BigQuery sink's token in the checkpoint (format {}, {} bytes) is not readable by this version, which writes \
             format {FORMAT} with `delivery: load`; run the version that wrote it",
            token.0.first().copied().unwrap_or(0),
            token.0.len()
        ))
    })
}

fn read(bytes: &[u8]) -> Option<LoadToken> {
    let (&FORMAT, mut rest) = bytes.split_first()? else { return None };
    let rest = &mut rest;
    let mark = Mark { epoch: number(rest)?, ingested_at_us: number(rest)?.cast_signed() };
    let mut kinds = Vec::new();
    for _ in 0..u32::from_le_bytes(*take(rest)?) {
        let [is_json] = *take(rest)?;
        kinds.push(Arc::new(Kind { is_json: is_json != 0, table: text(rest)?, columns: text(rest)? }));
    }
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let mut batch = Vec::new();
        for _ in 0..u32::from_le_bytes(*take(rest)?) {
            batch.push(LoadFile {
                kind: kinds.get(u32::from_le_bytes(*take(rest)?) as usize)?.clone(),
                epoch: number(rest)?,
                ingested_at_us: number(rest)?.cast_signed(),
                number: u32::from_le_bytes(*take(rest)?),
                rows: number(rest)?,
                bytes: number(rest)?,
            });
        }
        batches.push(batch);
    }
    Some(LoadToken { mark, batches })
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*take(rest)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file() -> impl Strategy<Value = LoadFile> {
        let kind = (".{0,5}", any::<bool>(), "[ab]{0,2}")
            .prop_map(|(table, is_json, columns)| Arc::new(Kind { table, is_json, columns }));
        (kind, any::<u64>(), any::<i64>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
            |(kind, epoch, ingested_at_us, number, rows, bytes)| LoadFile {
                kind,
                epoch,
                ingested_at_us,
                number,
                rows,
                bytes,
            },
        )
    }

    proptest! {
        #[test]
        fn tokens_come_back(epoch in any::<u64>(), at in any::<i64>(), batches in prop::collection::vec(prop::collection::vec(file(), 0..4), 0..3)) {
            let token = LoadToken { mark: Mark { epoch, ingested_at_us: at }, batches };
            let encoded = encode(&token);
            prop_assert_eq!(decode(&encoded).unwrap(), token);
            for cut in 0..21 {
                prop_assert!(decode(&CommitToken(encoded.0[..cut].to_vec())).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&CommitToken(bytes.clone()));
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            let _ = decode(&CommitToken(bytes));
        }
    }
}
