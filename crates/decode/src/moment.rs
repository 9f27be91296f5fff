//! The times of an event itself, as opposed to those in its row: within the years 0001 to 9999 too, by the same policy.
//!
//! A warehouse takes the largest 64-bit numbers for infinities, and the watermark would follow one of them for good.

use crate::codec::OUT_OF_RANGE;
use crate::codec::temporal::MICROS;
use crate::envelope::Flaw;
use crate::options::RangePolicy;
use crate::table::Table;

/// A time as a connector tells it, in milliseconds and in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) ms: Option<i64>,
    pub(crate) us: Option<i64>,
}

impl Moment {
    /// What of the field `name` is in range, the microseconds from the milliseconds where they are missing; what is not
    /// follows the policy, and is counted for `table`.
    #[inline]
    pub(crate) fn new(
        name: &'static str,
        (ms, us): (Option<i64>, Option<i64>),
        policy: RangePolicy,
        table: &mut Table,
    ) -> Result<Self, Flaw> {
        let us = us.or(ms.map(|ms| ms.saturating_mul(1_000)));
        if us.is_none_or(in_range) && ms.is_none_or(|ms| in_range(ms.saturating_mul(1_000))) {
            return Ok(Self { ms, us });
        }
        Self::beyond(name, (ms, us), policy, table)
    }

    #[cold]
    fn beyond(
        name: &'static str,
        (ms, us): (Option<i64>, Option<i64>),
        policy: RangePolicy,
        table: &mut Table,
    ) -> Result<Self, Flaw> {
        if policy == RangePolicy::DeadLetter {
            let text = format!("{name} is outside of the years 0001 to 9999");
            return Err(Flaw::new(OUT_OF_RANGE, text));
        }
        table.note("timestamp_out_of_range", name);
        if policy == RangePolicy::Null {
            return Ok(Self::default());
        }
        let (low, high) = MICROS;
        let ms = ms.map(|ms| ms.clamp(low.div_euclid(1_000), high.div_euclid(1_000)));
        Ok(Self { ms, us: us.map(|us| us.clamp(low, high)) })
    }
}

/// The time of a record that is no event, in ms, if it is in range.
pub(crate) fn control_ms(ms: Option<i64>) -> Option<i64> {
    ms.filter(|ms| in_range(ms.saturating_mul(1_000)))
}

fn in_range(us: i64) -> bool {
    (MICROS.0..=MICROS.1).contains(&us)
}
