//! Dates and times of day in the packed form that the write API has for TIME and DATETIME.

use millstream_layout::civil::civil;

use crate::unfit::Unfit;

pub(crate) const DAY_US: i64 = 86_400_000_000;
/// 0001-01-01 and 9999-12-31 as days since 1970-01-01.
const DAYS: std::ops::RangeInclusive<i32> = -719_162..=2_932_896;

pub(crate) fn date(days: i32) -> Result<i32, Unfit> {
    if DAYS.contains(&days) { Ok(days) } else { Err(Unfit::Date) }
}

/// A TIME: `hour << 32 | minute << 26 | second << 20 | microsecond`.
#[inline]
pub(crate) fn time(us: i64) -> Result<i64, Unfit> {
    if (0..DAY_US).contains(&us) { Ok(packed_time(us)) } else { Err(Unfit::Time) }
}

/// A DATETIME: a time with `year << 46 | month << 42 | day << 37`.
#[inline]
pub(crate) fn date_time(us: i64) -> Result<i64, Unfit> {
    let days = us.div_euclid(DAY_US);
    match i32::try_from(days) {
        Ok(day) if DAYS.contains(&day) => {}
        _ => return Err(Unfit::DateTime),
    }
    let (year, month, day) = civil(days);
    Ok(year << 46 | month << 42 | day << 37 | packed_time(us.rem_euclid(DAY_US)))
}

pub(crate) fn timestamp(us: i64) -> Result<i64, Unfit> {
    const FIRST: i64 = -719_162 * DAY_US;
    const END: i64 = 2_932_897 * DAY_US;
    if (FIRST..END).contains(&us) { Ok(us) } else { Err(Unfit::Timestamp) }
}

fn packed_time(us: i64) -> i64 {
    let (seconds, fraction) = (us / 1_000_000, us % 1_000_000);
    (seconds / 3600) << 32 | (seconds / 60 % 60) << 26 | (seconds % 60) << 20 | fraction
}

/// The microseconds since midnight of a packed TIME.
pub(crate) fn time_micros(packed: i64) -> i64 {
    let part = |shift: u32, bits: u32| packed >> shift & ((1 << bits) - 1);
    ((part(32, 5) * 60 + part(26, 6)) * 60 + part(20, 6)) * 1_000_000 + part(0, 20)
}

/// The microseconds since 1970-01-01T00:00:00 of a packed DATETIME.
pub(crate) fn date_time_micros(packed: i64) -> i64 {
    let days = days(packed >> 46, packed >> 42 & 15, packed >> 37 & 31);
    days * DAY_US + time_micros(packed)
}

/// The count of days since 1970-01-01 of a date (Howard Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(v: i64) -> (i64, i64, i64, i64, i64, i64, i64) {
        (v >> 46, v >> 42 & 15, v >> 37 & 31, v >> 32 & 31, v >> 26 & 63, v >> 20 & 63, v & 0xf_ffff)
    }

    #[test]
    fn date_times_are_packed() {
        assert_eq!(unpacked(date_time(0).unwrap()), (1970, 1, 1, 0, 0, 0, 0));
        assert_eq!(unpacked(date_time(-1).unwrap()), (1969, 12, 31, 23, 59, 59, 999_999));
        let leap = (19_782 * 86_400 + 86_399) * 1_000_000 + 5;
        assert_eq!(unpacked(date_time(leap).unwrap()), (2024, 2, 29, 23, 59, 59, 5));
    }

    #[test]
    fn the_years_are_1_to_9999() {
        let (first, last) = (-719_162 * DAY_US, 2_932_897 * DAY_US - 1);
        assert_eq!(unpacked(date_time(first).unwrap()), (1, 1, 1, 0, 0, 0, 0));
        assert_eq!(unpacked(date_time(last).unwrap()), (9999, 12, 31, 23, 59, 59, 999_999));
        assert_eq!((timestamp(first), timestamp(last)), (Ok(first), Ok(last)));
        for us in [first - 1, last + 1, i64::MIN, i64::MAX] {
            assert_eq!((date_time(us), timestamp(us)), (Err(Unfit::DateTime), Err(Unfit::Timestamp)));
        }
        assert_eq!((date(-719_162), date(2_932_896)), (Ok(-719_162), Ok(2_932_896)));
        assert_eq!((date(-719_163), date(2_932_897)), (Err(Unfit::Date), Err(Unfit::Date)));
    }

    #[test]
    fn what_is_packed_comes_back() {
        for us in [0, -1, 1, -719_162 * DAY_US, 2_932_897 * DAY_US - 1, 19_782 * DAY_US + 86_399_000_005] {
            assert_eq!(date_time_micros(date_time(us).unwrap()), us);
            assert_eq!(time_micros(time(us.rem_euclid(DAY_US)).unwrap()), us.rem_euclid(DAY_US));
        }
    }

    #[test]
    fn a_day_has_no_24th_hour() {
        assert_eq!(unpacked(time(DAY_US - 1).unwrap()), (0, 0, 0, 23, 59, 59, 999_999));
        assert_eq!((time(DAY_US), time(-1)), (Err(Unfit::Time), Err(Unfit::Time)));
    }
}
