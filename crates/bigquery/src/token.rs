//! The commit token: what of each stream a checkpoint makes visible.
//!
//! ```text
//! 1 or 2                 format number
//! u64 little-endian      epoch
//! i64 little-endian      its rows' time of ingestion, µs
//! then for each stream that the epoch wrote to:
//!   text                 the stream's full name, with its length as u32 little-endian before it
//!   i64 little-endian    offset of its last row
//!   u64 little-endian    how many rows of the epoch it has
//! ```
//! Format 2, of a replica that is merged, has a count of staging tables (u32 little-endian) before the streams, and of each one its name,
//! as above, and the mark behind which its rows may not be merged yet (i64 little-endian, µs).

use std::collections::BTreeMap;

use millstream_core::{CommitToken, Error, Result};

use crate::session::Mark;

const FORMAT: u8 = 1;
/// With staging tables.
const STAGING: u8 = 2;
/// Of files, see [`crate::load`]. One list for all: a changed `delivery` meets the tokens of the one before.
pub(crate) const FILES: u8 = 3;

/// Whether a token names files that are to be loaded.
pub(crate) fn names_files(token: &CommitToken) -> bool {
    token.0.first() == Some(&FILES)
}

/// Rows of a stream, up to and including one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flush {
    /// The stream's full name, which begins with its table's.
    pub(crate) stream: String,
    /// The last row's offset.
    pub(crate) offset: i64,
    /// Rows of the epoch in it.
    pub(crate) rows: u64,
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) mark: Mark,
    pub(crate) flushes: Vec<Flush>,
    /// Staging tables with rows that may not be merged yet, and the mark that these are behind. `None` where nothing is merged.
    pub(crate) staged: Option<BTreeMap<String, i64>>,
}

pub(crate) fn encode(token: &Token) -> CommitToken {
    let mut bytes = vec![if token.staged.is_some() { STAGING } else { FORMAT }];
    bytes.extend(token.mark.epoch.to_le_bytes());
    bytes.extend(token.mark.ingested_at_us.to_le_bytes());
    if let Some(staged) = &token.staged {
        bytes.extend((staged.len() as u32).to_le_bytes());
        for (table, since) in staged {
            put_text(&mut bytes, table);
            bytes.extend(since.to_le_bytes());
        }
    }
    for flush in &token.flushes {
        put_text(&mut bytes, &flush.stream);
        bytes.extend(flush.offset.to_le_bytes());
        bytes.extend(flush.rows.to_le_bytes());
    }
    CommitToken(bytes)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

pub(crate) fn decode(token: &CommitToken) -> Result<Token> {
    read(&token.0).ok_or_else(|| {
        Error::fatal(format!(
            "the BigQuery sink's token in the checkpoint (format {}, {} bytes) is not readable by this version, which writes \
             formats {FORMAT} and {STAGING}; run the version that wrote it",
            token.0.first().copied().unwrap_or(0),
            token.0.len()
        ))
    })
}

fn read(bytes: &[u8]) -> Option<Token> {
    let (&format @ (FORMAT | STAGING), mut rest) = bytes.split_first()? else { return None };
    let epoch = u64::from_le_bytes(*take(&mut rest)?);
    let ingested_at_us = i64::from_le_bytes(*take(&mut rest)?);
    let staged = if format == STAGING { Some(read_staged(&mut rest)?) } else { None };
    let mut flushes = Vec::new();
    while !rest.is_empty() {
        let stream = text(&mut rest)?;
        let offset = i64::from_le_bytes(*take(&mut rest)?);
        flushes.push(Flush { stream, offset, rows: u64::from_le_bytes(*take(&mut rest)?) });
    }
    Some(Token { mark: Mark { epoch, ingested_at_us }, flushes, staged })
}

fn read_staged(rest: &mut &[u8]) -> Option<BTreeMap<String, i64>> {
    let count = u32::from_le_bytes(*take(rest)?);
    let mut staged = BTreeMap::new();
    for _ in 0..count {
        let table = text(rest)?;
        staged.insert(table, i64::from_le_bytes(*take(rest)?));
    }
    Some(staged)
}

pub(crate) fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(head)
}

pub(crate) fn text(rest: &mut &[u8]) -> Option<String> {
    let len = u32::from_le_bytes(*take(rest)?) as usize;
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    std::str::from_utf8(head).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_come_back(
            epoch in any::<u64>(),
            at in any::<i64>(),
            streams in prop::collection::vec((".{0,9}", any::<i64>(), any::<u64>()), 0..4),
            staged in prop::option::of(prop::collection::btree_map(".{0,9}", any::<i64>(), 0..4)),
        ) {
            let flushes = streams.into_iter().map(|(stream, offset, rows)| Flush { stream, offset, rows }).collect();
            let token = Token { mark: Mark { epoch, ingested_at_us: at }, flushes, staged };
            let encoded = encode(&token);
            prop_assert_eq!(decode(&encoded).unwrap(), token);
            for cut in 0..17 {
                prop_assert!(decode(&CommitToken(encoded.0[..cut].to_vec())).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = decode(&CommitToken(bytes.clone()));
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            let _ = decode(&CommitToken(bytes.clone()));
            if let Some(first) = bytes.first_mut() {
                *first = STAGING;
            }
            let _ = decode(&CommitToken(bytes));
        }
    }
}
