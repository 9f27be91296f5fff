//! ISO 8601 dates and times as the connector writes them.

/// Microseconds of a day.
pub(crate) const DAY_US: i64 = 86_400_000_000;

/// A date as years may go beyond four digits, with an optional time and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    pub(crate) month: u8,
    pub(crate) day: u8,
}

impl Civil {
    /// Days since 1970-01-01, proleptic Gregorian.
    #[inline]
    pub(crate) fn days(self) -> i64 {
        // Years begin in March, so that the leap day is the last of its year.
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let month = (i64::from(self.month) + 9) % 12;
        let day_of_year = (153 * month + 2) / 5 + i64::from(self.day) - 1;
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
    }

    fn valid(self) -> bool {
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let last = match self.month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 if leap => 29,
            2 => 28,
            _ => return false,
        };
        (1..=last).contains(&self.day)
    }
}

/// Reads bytes from the front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Iso<'a>(pub(crate) &'a [u8]);

impl Iso<'_> {
    /// Whether everything was read.
    pub(crate) fn done(self) -> bool {
        self.0.is_empty()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.0.first() == Some(&byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    #[inline]
    fn two(&mut self) -> Option<u8> {
        let [a, b, rest @ ..] = self.0 else { return None };
        let (a, b) = (a.wrapping_sub(b'0'), b.wrapping_sub(b'0'));
        if a > 9 || b > 9 {
            return None;
        }
        self.0 = rest;
        Some(a * 10 + b)
    }

    /// `2024-02-29`, `-0043-03-15`, `+10000-01-01`.
    #[inline]
    pub(crate) fn date(&mut self) -> Option<Civil> {
        let negative = self.0.first() == Some(&b'-');
        if negative || self.0.first() == Some(&b'+') {
            self.0 = &self.0[1..];
        }
        let mut year = 0i64;
        let mut digits = 0;
        while let Some(digit @ b'0'..=b'9') = self.0.first() {
            year = year * 10 + i64::from(digit - b'0');
            digits += 1;
            if digits > 10 {
                return None;
            }
            self.0 = &self.0[1..];
        }
        if digits < 4 || !self.eat(b'-') {
            return None;
        }
        let month = self.two()?;
        if !self.eat(b'-') {
            return None;
        }
        let day = self.two()?;
        let civil = Civil { year: if negative { -year } else { year }, month, day };
        civil.valid().then_some(civil)
    }

    /// `13:14`, `13:14:15`, `13:14:15.678901`: microseconds since midnight, and whether finer digits were cut. `24:00:00`
    /// is the end of the day.
    #[inline]
    pub(crate) fn time(&mut self) -> Option<(i64, bool)> {
        let hours = self.two()?;
        if !self.eat(b':') {
            return None;
        }
        let minutes = self.two()?;
        let seconds = if self.eat(b':') { self.two()? } else { 0 };
        let (mut micros, mut cut) = (0, false);
        if self.eat(b'.') {
            let mut digits = 0;
            while let Some(digit @ b'0'..=b'9') = self.0.first() {
                if digits < 6 {
                    micros = micros * 10 + i64::from(digit - b'0');
                } else {
                    cut |= *digit != b'0';
                }
                digits += 1;
                self.0 = &self.0[1..];
            }
            if digits == 0 {
                return None;
            }
            for _ in digits..6 {
                micros *= 10;
            }
        }
        let total =
            (i64::from(hours) * 3600 + i64::from(minutes) * 60 + i64::from(seconds)) * 1_000_000 + micros;
        (minutes < 60 && seconds < 60 && total <= DAY_US).then_some((total, cut))
    }

    /// `Z`, `+02`, `+02:00`, `+0200`, or nothing: the offset from UTC in seconds.
    #[inline]
    pub(crate) fn offset(&mut self) -> Option<i64> {
        if self.eat(b'Z') || self.done() {
            return Some(0);
        }
        let negative = self.0.first() == Some(&b'-');
        if !negative && self.0.first() != Some(&b'+') {
            return None;
        }
        self.0 = &self.0[1..];
        let hours = i64::from(self.two()?);
        let mut seconds = hours * 3600;
        if !self.done() {
            self.eat(b':');
            seconds += i64::from(self.two()?) * 60;
        }
        if !self.done() {
            self.eat(b':');
            seconds += i64::from(self.two()?);
        }
        Some(if negative { -seconds } else { seconds })
    }

    /// `T` or a blank between date and time.
    pub(crate) fn separator(&mut self) -> bool {
        self.eat(b'T') || self.eat(b' ')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn days_agree_with_jiff(days in -719_162i32..2_932_896) {
            let date = jiff::civil::date(1970, 1, 1) + jiff::Span::new().days(days);
            let civil = Iso(date.to_string().as_bytes()).date().unwrap();
            prop_assert_eq!(civil.days(), i64::from(days));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[-+0-9:.TZ ]{0,40}") {
            let mut iso = Iso(text.as_bytes());
            let _ = iso.date().map(Civil::days);
            iso.separator();
            let _ = iso.time();
            let _ = iso.offset();
        }
    }

    #[test]
    fn odd_years_and_days() {
        let days = |text: &str| Iso(text.as_bytes()).date().map(Civil::days);
        assert_eq!(days("0001-01-01"), Some(-719_162));
        assert_eq!(days("9999-12-31"), Some(2_932_896));
        assert_eq!(days("-0043-03-15"), Some(-735_160));
        assert_eq!(days("2023-02-29"), None);
        assert_eq!(days("1900-02-29"), None);
        assert_eq!(days("2000-02-29"), Some(11_016));
        assert_eq!(days("2000-13-01"), None);
    }
}
