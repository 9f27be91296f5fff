//! Dates, times, timestamps and intervals in the texts of PostgreSQL, MySQL and ISO 8601.

const DAY_US: i128 = 86_400_000_000;

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar; year 0 is 1 BC.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let of_era = y.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// A date such as `2024-02-29`, `0044-03-15 BC`, `10000-01-01`; days since 1970-01-01.
pub(crate) fn date(text: &str) -> Option<i64> {
    let (text, bc) = match text.strip_suffix(" BC") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let mut parts = text.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let valid = (1..=12).contains(&month) && (1..=31).contains(&day);
    valid.then(|| days(if bc { 1 - year } else { year }, month, day))
}

/// A time such as `13:14:15.678901`, `24:00:00`, `-838:59:59`; microseconds.
pub(crate) fn time(text: &str) -> Option<i64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (clock, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = clock.split(':').map(str::parse::<i64>);
    let (hours, minutes, seconds) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    if fraction.len() > 6 || parts.next().is_some() {
        return None;
    }
    let micros = if fraction.is_empty() { 0 } else { format!("{fraction:0<6}").parse::<i64>().ok()? };
    Some(sign * (((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros))
}

/// The zone offset at the end of a text (`Z`, `+02`, `-05:30`), and what stands before it.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(rest) = text.strip_suffix('Z') {
        return Some((rest, 0));
    }
    let at = text.rfind(['+', '-'])?;
    let (sign, offset) = (if text.as_bytes()[at] == b'-' { -1 } else { 1 }, &text[at + 1..]);
    let (hours, minutes) = offset.split_once(':').unwrap_or((offset, "0"));
    let seconds = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
    Some((&text[..at], sign * seconds))
}

/// A time with zone: microseconds of the day there, and the zone's offset in seconds.
pub(crate) fn time_with_zone(text: &str) -> Option<(i64, i64)> {
    let (clock, offset) = split_offset(text)?;
    Some((time(clock)?, offset))
}

/// A timestamp without zone; microseconds since 1970-01-01T00:00:00.
pub(crate) fn timestamp(text: &str) -> Option<i128> {
    let (text, bc) = match text.strip_suffix(" BC") {
        Some(rest) => (rest, " BC"),
        None => (text, ""),
    };
    let (day, clock) = text.split_once(['T', ' '])?;
    Some(i128::from(date(&format!("{day}{bc}"))?) * DAY_US + i128::from(time(clock)?))
}

/// An instant: a timestamp with its offset, or without one in UTC.
pub(crate) fn instant(text: &str) -> Option<i128> {
    let (text, bc) = match text.strip_suffix(" BC") {
        Some(rest) => (rest, " BC"),
        None => (text, ""),
    };
    let clock = text.find(['T', ' '])?;
    match split_offset(&text[clock..]) {
        Some((rest, offset)) => {
            Some(timestamp(&format!("{}{rest}{bc}", &text[..clock]))? - i128::from(offset) * 1_000_000)
        }
        None => timestamp(&format!("{text}{bc}")),
    }
}

/// Months, days and microseconds of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Interval {
    pub(crate) months: i64,
    pub(crate) days: i64,
    pub(crate) micros: i64,
}

impl Interval {
    /// PostgreSQL's text: `1 year 2 mons 3 days 04:05:06.789012`.
    pub(crate) fn postgres(text: &str) -> Option<Self> {
        let mut all = Self::default();
        let mut words = text.split(' ').filter(|w| !w.is_empty());
        while let Some(word) = words.next() {
            if word.contains(':') {
                all.micros += time(word.trim_start_matches('+'))?;
                continue;
            }
            let number: i64 = word.parse().ok()?;
            match words.next()?.trim_end_matches('s') {
                "year" => all.months += number * 12,
                "mon" => all.months += number,
                "day" => all.days += number,
                _ => return None,
            }
        }
        Some(all)
    }

    /// ISO 8601: `P1Y2M3DT4H5M6.789012S`.
    pub(crate) fn iso(text: &str) -> Option<Self> {
        let mut all = Self::default();
        let (mut in_time, mut number) = (false, String::new());
        for c in text.strip_prefix('P')?.chars() {
            let mut whole = || std::mem::take(&mut number).parse::<i64>().ok();
            match c {
                'T' => in_time = true,
                'Y' => all.months += whole()? * 12,
                'M' if !in_time => all.months += whole()?,
                'D' => all.days += whole()?,
                'H' => all.micros += whole()? * 3_600_000_000,
                'M' => all.micros += whole()? * 60_000_000,
                'S' => {
                    let text = std::mem::take(&mut number);
                    let (sign, digits) = text.strip_prefix('-').map_or((1, &*text), |rest| (-1, rest));
                    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
                    let micros: i64 = format!("{fraction:0<6}").parse().ok()?;
                    all.micros += sign * (whole.parse::<i64>().ok()? * 1_000_000 + micros);
                }
                c => number.push(c),
            }
        }
        number.is_empty().then_some(all)
    }

    /// Its length where a day is 24 hours and `month_us` tells a month's microseconds.
    pub(crate) fn total_us(self, month_us: i128) -> i128 {
        i128::from(self.months) * month_us + i128::from(self.days) * DAY_US + i128::from(self.micros)
    }
}

#[test]
fn texts_of_all_origins_agree() {
    assert_eq!(date("1970-01-02"), Some(1));
    assert_eq!(date("0044-03-15 BC"), Some(-735_160));
    assert_eq!(date("9999-12-31"), Some(2_932_896));
    assert_eq!(time("24:00:00"), Some(86_400_000_000));
    assert_eq!(time("-838:59:58.999"), Some(-3_020_398_999_000));
    assert_eq!(timestamp("2024-02-29T13:14:15.678901"), Some(1_709_212_455_678_901));
    assert_eq!(instant("2024-02-29T13:14:15.678901+02:00"), instant("2024-02-29 11:14:15.678901Z"));
    assert_eq!(time_with_zone("13:14:15-05:30"), Some((47_655_000_000, -19_800)));
    let interval = Interval::postgres("1 year 2 mons 3 days 04:05:06.789012");
    assert_eq!(interval, Interval::iso("P1Y2M3DT4H5M6.789012S"));
    assert_eq!(Interval::postgres("-11 mons +2 days -03:00:00"), Interval::iso("P-11M2DT-3H"));
    assert_eq!(Interval::iso("P1"), None);
}
