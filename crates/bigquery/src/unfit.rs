//! Values that a column cannot hold.

use std::fmt;

/// Why a value is not for a column. Never holds the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// A date before the year 1 or after the year 9999.
    Date,
    /// A time of day below 0 or from 24 hours on.
    Time,
    /// A date and time before the year 1 or after the year 9999.
    DateTime,
    /// An instant before the year 1 or after the year 9999.
    Timestamp,
    /// More than 29 digits before the point.
    NumericWhole,
    /// More than 9 digits after the point.
    NumericFraction,
    /// More than a BIGNUMERIC has before the point.
    BigNumericWhole,
    /// More than 38 digits after the point.
    BigNumericFraction,
    /// Text that is no plain decimal number: NaN, an infinity, an exponent.
    NoNumber,
    /// Text that is no change sequence number.
    Sequence,
}

impl Unfit {
    /// What is wrong.
    pub fn text(self) -> &'static str {
        match self {
            Self::Date => "the date is outside the years 1 to 9999, which DATE holds",
            Self::Time => "the time of day is below 0 or not below 24 hours, which TIME holds",
            Self::DateTime => "the date and time is outside the years 1 to 9999, which DATETIME holds",
            Self::Timestamp => "the instant is outside the years 1 to 9999, which TIMESTAMP holds",
            Self::NumericWhole => {
                "the number has more than the 29 digits before the point that NUMERIC holds"
            }
            Self::NumericFraction => {
                "the number has more than the 9 digits after the point that NUMERIC holds"
            }
            Self::BigNumericWhole => "the number has more digits before the point than BIGNUMERIC holds",
            Self::BigNumericFraction => {
                "the number has more than the 38 digits after the point that BIGNUMERIC holds"
            }
            Self::NoNumber => "the text is no plain decimal number",
            Self::Sequence => "the order is no change sequence number: 1 to 4 sections of 1 to 16 hex digits",
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Unfit {}
