//! Dates and times as ISO 8601 text, for columns that keep them as text, and back, for texts that come for columns of a
//! known type. Proleptic Gregorian; years beyond four digits are written with a sign, as ISO 8601 has it.

const DAY_US: i64 = 86_400_000_000;

/// `2024-02-29`.
pub fn date_text(days: i64) -> String {
    let (year, month, day) = civil(days);
    if (0..=9999).contains(&year) {
        format!("{year:04}-{month:02}-{day:02}")
    } else {
        format!("{year:+05}-{month:02}-{day:02}")
    }
}

/// `23:59:59` with as many of six fraction digits as are needed.
pub fn time_text(us: i64) -> String {
    let (seconds, fraction) = (us.div_euclid(1_000_000), us.rem_euclid(1_000_000));
    let mut text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        text.push_str(format!(".{fraction:06}").trim_end_matches('0'));
    }
    text
}

/// `2024-02-29T23:59:59.5`.
pub fn date_time_text(us: i64) -> String {
    format!("{}T{}", date_text(us.div_euclid(DAY_US)), time_text(us.rem_euclid(DAY_US)))
}

/// Year, month and day of a count of days since 1970-01-01 (Howard Hinnant's `civil_from_days`).
#[inline]
pub fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days of an ISO date.
pub fn parse_date(text: &str) -> Option<i32> {
    let date: jiff::civil::Date = text.parse().ok()?;
    let epoch = jiff::civil::date(1970, 1, 1);
    Some(epoch.until(date).ok()?.get_days())
}

/// Microseconds of an ISO time of day without zone; `None` if it is finer than that.
pub fn parse_time(text: &str) -> Option<i64> {
    let time: jiff::civil::Time = text.parse().ok()?;
    let nanos = jiff::civil::Time::midnight().until(time).ok()?.total(jiff::Unit::Nanosecond).ok()? as i64;
    (nanos % 1000 == 0).then_some(nanos / 1000)
}

/// Microseconds of an ISO date and time without zone.
pub fn parse_date_time(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(['T', ' '])?;
    Some(i64::from(parse_date(date)?) * DAY_US + parse_time(time)?)
}

/// Microseconds of an RFC 3339 instant; `None` if it is finer than that.
pub fn parse_timestamp(text: &str) -> Option<i64> {
    let timestamp: jiff::Timestamp = text.parse().ok()?;
    let nanos = timestamp.as_nanosecond();
    (nanos % 1000 == 0).then(|| i64::try_from(nanos / 1000).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_known_days() {
        assert_eq!(date_text(0), "1970-01-01");
        assert_eq!(date_text(19_782), "2024-02-29");
        assert_eq!(date_text(-719_529), "-0001-12-31");
        assert_eq!(date_text(2_932_897), "+10000-01-01");
        assert_eq!(date_time_text(-1), "1969-12-31T23:59:59.999999");
        assert_eq!(time_text(DAY_US), "24:00:00");
        assert_eq!(time_text(1_500_000), "00:00:01.5");
    }

    #[test]
    fn texts_are_read_back() {
        for days in [0, 19_782, -719_000, 2_932_000] {
            assert_eq!(parse_date(&date_text(days)), Some(days as i32));
        }
        for us in [0, 1, 86_399_999_999] {
            assert_eq!(parse_time(&time_text(us)), Some(us));
        }
        assert_eq!(parse_date_time("2024-02-29T12:00:00.25"), Some(19_782 * DAY_US + 43_200_250_000));
        assert_eq!(parse_timestamp("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(parse_timestamp("1970-01-01T00:00:00.0000001Z"), None);
        assert_eq!(parse_timestamp("yesterday"), None);
    }
}
