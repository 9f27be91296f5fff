//! Positions: which instance of the source handed a batch out, and as which.

use millstream_core::{Error, Position, Result};

/// The position's format number.
const FORMAT: u8 = 1;

/// Format, instance, mark; little-endian.
pub(super) fn encode(instance: u64, mark: u64) -> Position {
    let mut bytes = vec![FORMAT];
    bytes.extend(instance.to_le_bytes());
    bytes.extend(mark.to_le_bytes());
    Position(bytes)
}

/// The mark, if it is one of `instance`.
pub(super) fn mark_of(position: &Position, instance: u64) -> Result<Option<u64>> {
    let parsed = || {
        let rest = position.0.strip_prefix(&[FORMAT])?;
        let (of, rest) = rest.split_first_chunk()?;
        let mark: &[u8; 8] = rest.try_into().ok()?;
        Some((u64::from_le_bytes(*of), u64::from_le_bytes(*mark)))
    };
    let (of, mark) = parsed().ok_or_else(|| {
        Error::fatal("the checkpoint's position of a subscription has an unknown format: it was written by a newer version, or by another kind of source")
    })?;
    Ok((of == instance).then_some(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_of_another_instance_marks_nothing() {
        let position = encode(7, 300);
        assert_eq!(mark_of(&position, 7).unwrap(), Some(300));
        assert_eq!(mark_of(&position, 8).unwrap(), None);
        for cut in 0..position.0.len() {
            assert!(mark_of(&Position(position.0[..cut].to_vec()), 7).is_err());
        }
    }
}
