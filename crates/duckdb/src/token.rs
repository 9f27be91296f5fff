//! The commit token: which epoch of the file a checkpoint stands for.
//!
//! ```text
//! 1                      format number
//! u64 little-endian      epoch
//! i64 little-endian      its __ingested_at, µs
//! ```

use millstream_core::{CommitToken, Error, Result};

use crate::catalog::Mark;

const FORMAT: u8 = 1;

pub(crate) fn encode(mark: Mark) -> CommitToken {
    let mut bytes = vec![FORMAT];
    bytes.extend(mark.epoch.to_le_bytes());
    bytes.extend(mark.ingested_at_us.to_le_bytes());
    CommitToken(bytes)
}

pub(crate) fn decode(token: &CommitToken) -> Result<Mark> {
    let read = || {
        let (&format, rest) = token.0.split_first()?;
        let (epoch, ingested) = rest.split_first_chunk::<8>()?;
        let ingested: [u8; 8] = ingested.try_into().ok()?;
        let mark = Mark { epoch: u64::from_le_bytes(*epoch), ingested_at_us: i64::from_le_bytes(ingested) };
        (format == FORMAT).then_some(mark)
    };
    read().ok_or_else(|| {
        let format = token.0.first().copied().unwrap_or(0);
        Error::fatal(format!(
            "the DuckDB sink's token in the checkpoint (format {format}, {} bytes) is not readable by this version, which \
             writes format {FORMAT}; run the version that wrote it",
            token.0.len()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_others_are_refused() {
        let mark = Mark { epoch: 7, ingested_at_us: -5 };
        assert_eq!(decode(&encode(mark)).unwrap(), mark);
        for bytes in [vec![], vec![2; 17], vec![1; 16], vec![1; 18]] {
            assert!(decode(&CommitToken(bytes)).is_err());
        }
    }
}
