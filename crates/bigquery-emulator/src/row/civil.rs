//! Dates and times: as text, and packed into integers as the Storage Write API has them.

use jiff::civil::Date;

/// Days since 1970 of 0001-01-01 and 9999-12-31.
pub(crate) const DAYS: std::ops::RangeInclusive<i64> = -719_162..=2_932_896;
/// Microseconds since 1970 of the first and last moment of these years.
pub(crate) const MICROS: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

/// Days since 1970.
fn days(date: Date) -> i64 {
    (date - jiff::civil::date(1970, 1, 1)).get_days().into()
}

/// `YYYY-MM-DD` as days since 1970.
pub(crate) fn date(text: &str) -> Result<i64, String> {
    let wrong = || format!("Invalid date: '{text}'");
    let mut parts = text.trim().splitn(3, '-');
    let mut next = |most: usize| {
        let part = parts.next().filter(|p| !p.is_empty() && p.len() <= most)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse::<i16>().ok()).flatten()
    };
    let (year, month, day) = (next(4), next(2), next(2));
    let (Some(year), Some(month), Some(day)) = (year, month, day) else { return Err(wrong()) };
    if year == 0 {
        return Err(wrong());
    }
    Date::new(year, month as i8, day as i8).map(days).map_err(|_| wrong())
}

/// `HH:MM:SS[.ffffff]` as microseconds since midnight.
pub(crate) fn time(text: &str) -> Result<i64, String> {
    let wrong = || format!("Invalid time: '{text}'");
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let mut parts = whole.split(':');
    let mut next = || {
        let part = parts.next().filter(|p| (1..=2).contains(&p.len()))?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse::<i64>().ok()).flatten()
    };
    let (hour, minute, second) = (next(), next(), next());
    let (Some(hour), Some(minute), Some(second)) = (hour, minute, second) else { return Err(wrong()) };
    let digits = fraction.bytes().all(|b| b.is_ascii_digit()) && fraction.len() <= 6;
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 59 || !digits {
        return Err(wrong());
    }
    let fraction: i64 = format!("{fraction:0<6}").parse().map_err(|_| wrong())?;
    Ok(((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction)
}

/// `YYYY-MM-DD[ T]HH:MM:SS[.ffffff]` as microseconds since 1970.
pub(crate) fn datetime(text: &str) -> Result<i64, String> {
    let trimmed = text.trim();
    let (day, rest) = trimmed.split_once(['T', 't', ' ']).unwrap_or((trimmed, "0:0:0"));
    let wrong = |_| format!("Invalid datetime: '{text}'");
    Ok(date(day).map_err(wrong)? * 86_400_000_000 + time(rest).map_err(wrong)?)
}

/// A timestamp's text, in UTC where it names no offset, as microseconds since 1970.
pub(crate) fn timestamp(text: &str) -> Result<i64, String> {
    let trimmed = text.trim();
    let wrong = || format!("Invalid timestamp: '{text}'");
    let from = trimmed.find([' ', 'T', 't']).map_or(trimmed.len(), |at| at + 1);
    let (clock, zone) = match trimmed[from..].find(['+', '-', 'Z', 'z', ' ']) {
        Some(at) => trimmed.split_at(from + at),
        None => (trimmed, ""),
    };
    let local = datetime(clock).map_err(|_| wrong())?;
    let zone = zone.trim();
    let offset = match zone.bytes().next() {
        None | Some(b'Z' | b'z') => 0,
        Some(sign @ (b'+' | b'-')) => {
            let (hours, minutes) = zone[1..].split_once(':').unwrap_or((&zone[1..], "0"));
            let part =
                |text: &str| text.parse::<i64>().ok().filter(|n| (0..60).contains(n)).ok_or_else(wrong);
            let minutes = part(hours)? * 60 + part(minutes)?;
            if sign == b'-' { -minutes } else { minutes }
        }
        Some(_) if zone.eq_ignore_ascii_case("UTC") => 0,
        Some(_) => return Err(wrong()),
    };
    let micros = local - offset * 60_000_000;
    if MICROS.contains(&micros) { Ok(micros) } else { Err(wrong()) }
}

/// A packed time as microseconds since midnight.
pub(crate) fn packed_time(packed: i64) -> Result<i64, String> {
    let part = |shift: u32, bits: u32| (packed >> shift) & ((1 << bits) - 1);
    let (hour, minute, second, fraction) = (part(32, 5), part(26, 6), part(20, 6), part(0, 20));
    if packed >> 37 != 0 || hour > 23 || minute > 59 || second > 59 || fraction > 999_999 {
        return Err(format!("Invalid packed time: {packed}"));
    }
    Ok(((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction)
}

/// A packed datetime as microseconds since 1970.
pub(crate) fn packed_datetime(packed: i64) -> Result<i64, String> {
    let wrong = || format!("Invalid packed datetime: {packed}");
    let (year, month, day) = (packed >> 46, (packed >> 42) & 15, (packed >> 37) & 31);
    if !(1..=9999).contains(&year) {
        return Err(wrong());
    }
    let date = Date::new(year as i16, month as i8, day as i8).map_err(|_| wrong())?;
    let time = packed_time(packed & ((1 << 37) - 1)).map_err(|_| wrong())?;
    Ok(days(date) * 86_400_000_000 + time)
}

/// Microseconds since 1970 as `YYYY-MM-DDTHH:MM:SS[.ffffff]`; none beyond the years that have such texts.
pub(crate) fn datetime_text(micros_since: i64) -> Option<String> {
    let (day, of_day) = (micros_since.div_euclid(86_400_000_000), micros_since.rem_euclid(86_400_000_000));
    Some(format!("{}T{}", date_text(day)?, time_text(of_day)))
}

/// Days since 1970 as `YYYY-MM-DD`.
pub(crate) fn date_text(day: i64) -> Option<String> {
    let span = jiff::Span::new().try_days(day).ok()?;
    Some(jiff::civil::date(1970, 1, 1).checked_add(span).ok()?.to_string())
}

/// Microseconds since midnight as `HH:MM:SS[.ffffff]`.
pub(crate) fn time_text(of_day: i64) -> String {
    let (seconds, fraction) = (of_day / 1_000_000, of_day % 1_000_000);
    let text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction == 0 { text } else { format!("{text}.{fraction:06}") }
}

/// A datetime as clients pack it.
#[cfg(test)]
pub(crate) fn pack(at: jiff::civil::DateTime) -> i64 {
    let parts = [(at.hour(), 32), (at.minute(), 26), (at.second(), 20), (at.month(), 42), (at.day(), 37)];
    let fields: i64 = parts.into_iter().map(|(part, shift)| i64::from(part) << shift).sum();
    (i64::from(at.year()) << 46) + fields + i64::from(at.subsec_nanosecond()) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_packed_values_agree() {
        let at = jiff::civil::date(2024, 2, 29).at(23, 59, 58, 123_456_000);
        let micros_since = packed_datetime(pack(at)).unwrap();
        assert_eq!(datetime("2024-02-29 23:59:58.123456").unwrap(), micros_since);
        assert_eq!(datetime_text(micros_since).unwrap(), "2024-02-29T23:59:58.123456");
        assert_eq!(timestamp("2024-03-01T01:59:58.123456+02:00").unwrap(), micros_since);
        assert_eq!(timestamp("2024-02-29 23:59:58.123456 UTC").unwrap(), micros_since);
        assert_eq!((date("0001-01-01").unwrap(), date("9999-12-31").unwrap()), (*DAYS.start(), *DAYS.end()));
        assert_eq!(time("1:2:3.5").unwrap(), 3_723_500_000);
    }

    #[test]
    fn wrong_ones_are_refused() {
        for text in ["", "2024-13-01", "0000-01-01", "2024-02-30", "2024", "-1-1-1", "20240-1-1"] {
            assert!(date(text).is_err(), "{text}");
        }
        for text in ["24:00:00", "1:60:0", "1:2", "1:2:3.1234567", "1:2:3:4", "23:59:60"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["2024-01-01 00:00:00 Mars", "2024-01-01T00:00:00+9x", "9999-12-31 23:59:59-01:00", "é"]
        {
            assert!(timestamp(text).is_err(), "{text}");
        }
        assert!(packed_time(24 << 32).is_err() && packed_time(-1).is_err() && packed_datetime(0).is_err());
    }
}
