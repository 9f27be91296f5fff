//! Dates, times and timestamps: integers in the connector's unit, or ISO 8601 text.
//!
//! PostgreSQL's infinities arrive as odd integers, which the snapshot and the stream choose differently (dates) or
//! derive from an overflow (timestamps); they are known here by value. Whatever no warehouse holds (years outside
//! 0001–9999) follows [`RangePolicy`].

use millstream_core::{RowBuilder, Type, Value};

use super::iso::{DAY_US, Iso};
use super::{Ctx, Fail, INVALID_VALUE, Learned, OUT_OF_RANGE, WRONG_TYPE};
use crate::options::RangePolicy;
use crate::scan::{Cursor, Number};

/// 0001-01-01 and 9999-12-31 in days.
const DAYS: (i64, i64) = (-719_162, 2_932_896);
/// 0001-01-01T00:00:00 and 9999-12-31T23:59:59.999999 in microseconds.
pub(crate) const MICROS: (i64, i64) = (-62_135_596_800_000_000, 253_402_300_799_999_999);
/// `date 'infinity'` in snapshots and in the stream.
const DATE_INFINITY: [i64; 2] = [-622_191_234, -2_147_472_692];
/// `timestamp 'infinity'` and `'-infinity'`, µs; a thousandth of it in ms.
const TIMESTAMP_INFINITY: i64 = 9_223_372_036_825_200_000;
const TIMESTAMP_MINUS_INFINITY: i64 = -9_223_372_036_832_400_000;
/// `timestamptz '-infinity'` within an array.
const ARRAY_MINUS_INFINITY: &str = "+292269055-12-02T";

const UNDECLARED: Fail = Fail::Bad(WRONG_TYPE, "an ISO 8601 text: the column declares no `unit` for numbers");

/// How a temporal column is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Temporal {
    pub(crate) target: Target,
    pub(crate) unit: Unit,
    /// A time outside a day widens the column to text (MySQL); otherwise the policy decides.
    pub(crate) widens: bool,
}

/// What a temporal column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Date,
    Time,
    DateTime,
    Timestamp,
}

impl Target {
    pub(crate) fn ty(self) -> Type {
        match self {
            Target::Date => Type::Date,
            Target::Time => Type::Time,
            Target::DateTime => Type::DateTime,
            Target::Timestamp => Type::Timestamp,
        }
    }
}

/// What an integer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Days,
    Seconds,
    Millis,
    Micros,
    Nanos,
    /// Milliseconds or microseconds, told by magnitude.
    Guess,
    /// Nobody told: only texts are times.
    Undeclared,
}

impl Temporal {
    pub(crate) fn new(target: Target, unit: Unit) -> Self {
        Self { target, unit, widens: false }
    }

    #[inline]
    pub(crate) fn decode(
        self,
        cur: &mut Cursor<'_>,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<(), Fail> {
        match cur.byte() {
            b'"' => {
                let string = cur.string()?;
                if ctx.detect && ctx.placeholder.is_text(string) {
                    out.push(Value::Unchanged);
                    return Ok(());
                }
                match self.target {
                    _ if string.escaped => Err(Fail::Bad(INVALID_VALUE, "an ISO 8601 text")),
                    Target::Date => self.date_text(string.raw, ctx, out),
                    Target::Time => self.time_of_day(string.raw, ctx, out),
                    Target::DateTime | Target::Timestamp => self.instant_text(string.raw, ctx, out),
                }
            }
            b'-' | b'0'..=b'9' => match cur.number()? {
                _ if self.unit == Unit::Undeclared => Err(UNDECLARED),
                Number::Int(n) => self.count(n, ctx, out),
                Number::Text(_) => Err(Fail::Bad(WRONG_TYPE, "an integer of 64 bits")),
            },
            _ if self.unit == Unit::Undeclared => Err(UNDECLARED),
            _ => Err(Fail::Bad(WRONG_TYPE, "an integer or an ISO 8601 text")),
        }
    }

    fn count(self, n: i64, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        match self.target {
            Target::Date => {
                let above = DATE_INFINITY.contains(&n) || n > DAYS.1;
                self.push_days(if DATE_INFINITY.contains(&n) { i64::MIN } else { n }, above, ctx, out)
            }
            Target::Time => self.push_time(micros_of(n, self.unit, 86_400_000, ctx), ctx, out),
            Target::DateTime | Target::Timestamp => {
                let above = match self.unit {
                    Unit::Micros | Unit::Guess if n == TIMESTAMP_INFINITY => Some(true),
                    Unit::Micros | Unit::Guess if n == TIMESTAMP_MINUS_INFINITY => Some(false),
                    // Below minus infinity lies only what overflowed: the last years of PostgreSQL's range.
                    Unit::Micros if n < TIMESTAMP_MINUS_INFINITY => Some(true),
                    Unit::Millis | Unit::Guess if n == TIMESTAMP_INFINITY / 1000 => Some(true),
                    Unit::Millis | Unit::Guess if n == TIMESTAMP_MINUS_INFINITY / 1000 => Some(false),
                    _ => None,
                };
                if let Some(above) = above {
                    return self.beyond(above, ctx, out);
                }
                self.push_micros(micros_of(n, self.unit, 100_000_000_000_000, ctx), ctx, out)
            }
        }
    }

    fn date_text(self, text: &str, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        if let Some(above) = infinity(text) {
            return self.beyond(above, ctx, out);
        }
        let mut iso = Iso(text.as_bytes());
        match (iso.date(), iso.offset()) {
            (Some(civil), Some(_)) if iso.done() => {
                let days = civil.days();
                self.push_days(days, days > 0, ctx, out)
            }
            _ => Err(Fail::Bad(INVALID_VALUE, "an ISO 8601 date")),
        }
    }

    fn time_of_day(self, text: &str, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        let mut iso = Iso(text.as_bytes());
        match (iso.time(), iso.offset()) {
            (Some((micros, cut)), Some(offset)) if iso.done() => {
                if cut {
                    ctx.note("fraction_cut");
                }
                // The end of the day stays what it is; other times are brought to UTC.
                let utc = if offset == 0 { micros } else { (micros - offset * 1_000_000).rem_euclid(DAY_US) };
                self.push_time(utc, ctx, out)
            }
            _ => Err(Fail::Bad(INVALID_VALUE, "an ISO 8601 time")),
        }
    }

    #[inline]
    fn instant_text(self, text: &str, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        const WHAT: Fail = Fail::Bad(INVALID_VALUE, "an ISO 8601 timestamp");
        let mut iso = Iso(text.as_bytes());
        let Some(civil) = iso.date() else {
            return match infinity(text) {
                Some(above) => self.beyond(above, ctx, out),
                None => Err(WHAT),
            };
        };
        let (mut micros, mut offset) = (0, 0);
        if iso.separator() {
            let (time, cut) = iso.time().ok_or(WHAT)?;
            if cut {
                ctx.note("fraction_cut");
            }
            micros = time;
        }
        if !iso.done() {
            offset = iso.offset().ok_or(WHAT)?;
        }
        if !iso.done() {
            return Err(WHAT);
        }
        // Far years would overflow, and a year on either side leaves room for the offset.
        if !(0..=10_000).contains(&civil.year) {
            return self.beyond(civil.year > 0 && !text.starts_with(ARRAY_MINUS_INFINITY), ctx, out);
        }
        self.push_micros(civil.days() * DAY_US + micros - offset * 1_000_000, ctx, out)
    }

    fn push_days(self, days: i64, above: bool, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        match i32::try_from(days) {
            Ok(fit) if (DAYS.0..=DAYS.1).contains(&days) => {
                out.push(Value::Date(fit));
                Ok(())
            }
            _ => self.beyond(above, ctx, out),
        }
    }

    fn push_time(self, micros: i64, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        if (0..=DAY_US).contains(&micros) {
            out.push(Value::Time(micros));
            return Ok(());
        }
        if self.widens {
            return Err(Fail::Widen(Learned::TimeText));
        }
        self.beyond(micros > 0, ctx, out)
    }

    #[inline]
    fn push_micros(self, micros: i64, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        if (MICROS.0..=MICROS.1).contains(&micros) {
            out.push(if self.target == Target::Timestamp {
                Value::Timestamp(micros)
            } else {
                Value::DateTime(micros)
            });
            return Ok(());
        }
        self.beyond(micros > 0, ctx, out)
    }

    #[cold]
    fn beyond(self, above: bool, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        if ctx.options.out_of_range == RangePolicy::DeadLetter {
            return Err(Fail::Bad(
                OUT_OF_RANGE,
                "a date or time within the years 0001 to 9999, or within a day",
            ));
        }
        ctx.note(match self.target {
            Target::Date => "date_out_of_range",
            Target::Time => "time_out_of_range",
            Target::DateTime | Target::Timestamp => "timestamp_out_of_range",
        });
        let pick = |(low, high): (i64, i64)| if above { high } else { low };
        out.push(match (ctx.options.out_of_range, self.target) {
            (RangePolicy::Clamp, Target::Date) => Value::Date(pick(DAYS) as i32),
            (RangePolicy::Clamp, Target::Time) => Value::Time(pick((0, DAY_US))),
            (RangePolicy::Clamp, Target::DateTime) => Value::DateTime(pick(MICROS)),
            (RangePolicy::Clamp, Target::Timestamp) => Value::Timestamp(pick(MICROS)),
            _ => Value::Null,
        });
        Ok(())
    }
}

fn infinity(text: &str) -> Option<bool> {
    match text {
        "infinity" => Some(true),
        "-infinity" => Some(false),
        _ => None,
    }
}

/// Microseconds, saturating; below `guess` a number of unknown unit is taken for milliseconds, below a thousand times
/// that for microseconds.
fn micros_of(n: i64, unit: Unit, guess: i64, ctx: &mut Ctx) -> i64 {
    match unit {
        Unit::Days => n.saturating_mul(DAY_US),
        Unit::Seconds => n.saturating_mul(1_000_000),
        Unit::Millis => n.saturating_mul(1_000),
        Unit::Micros | Unit::Undeclared => n,
        Unit::Nanos => {
            if n % 1_000 != 0 {
                ctx.note("fraction_cut");
            }
            n.div_euclid(1_000)
        }
        Unit::Guess if n.unsigned_abs() <= guess.unsigned_abs() => n.saturating_mul(1_000),
        Unit::Guess if n.unsigned_abs() <= guess.unsigned_abs() * 1_000 => n,
        Unit::Guess => n.div_euclid(1_000),
    }
}

/// A time of day, however large or negative, as `[-]HH:MM:SS[.ffffff]`.
pub(crate) fn time_text(unit: Unit, cur: &mut Cursor<'_>, out: &mut RowBuilder) -> Result<(), Fail> {
    let n = match cur.byte() {
        b'"' => {
            let string = cur.string()?;
            out.push_text_with(|heap| string.append_to(heap));
            return Ok(());
        }
        b'-' | b'0'..=b'9' => match cur.number()? {
            Number::Int(n) => i128::from(n),
            Number::Text(_) => return Err(Fail::Bad(WRONG_TYPE, "an integer of 64 bits")),
        },
        _ => return Err(Fail::Bad(WRONG_TYPE, "an integer")),
    };
    let micros = match unit {
        Unit::Millis => n * 1_000,
        Unit::Nanos => n.div_euclid(1_000),
        _ => n,
    };
    let sign = if micros < 0 { "-" } else { "" };
    let micros = micros.unsigned_abs();
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let text = match fraction {
        0 => format!("{sign}{hours:02}:{minutes:02}:{seconds:02}"),
        _ => format!("{sign}{hours:02}:{minutes:02}:{seconds:02}.{fraction:06}"),
    };
    out.push(Value::Text(&text));
    Ok(())
}
