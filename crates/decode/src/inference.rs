//! Types from JSON values alone, for events without any type facts.
//!
//! | value | kind |
//! |---|---|
//! | null, a placeholder | none |
//! | `true`, `false` | bool |
//! | integer within i64 | int64 |
//! | integer beyond, or a fraction whose digits a double cannot give back | numeric |
//! | other number with fraction or exponent | float64 |
//! | string | text |
//! | object, array | json |
//!
//! Kinds only widen, so a column's type never depends on what came long ago except by being wide enough for it. Numbers
//! are never rounded: a float64 column that meets digits which a double cannot hold becomes text, and a numeric
//! column takes fractions as they are.

use millstream_core::Type;

use crate::placeholder::Placeholder;
use crate::scan::{Cursor, Number, ScanError, leading_digits};

/// The inferred kind of a column or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Null,
    Bool,
    Int64,
    Numeric,
    Float64,
    Text,
    Json,
}

impl Kind {
    /// The type of a column of this kind.
    pub(crate) fn ty(self) -> Type {
        match self {
            Kind::Null => Type::Null,
            Kind::Bool => Type::Bool,
            Kind::Int64 => Type::Int64,
            Kind::Numeric => Type::Numeric,
            Kind::Float64 => Type::Float64,
            Kind::Text => Type::Text,
            Kind::Json => Type::Json,
        }
    }

    /// The narrowest kind that holds both.
    pub(crate) fn join(self, other: Kind) -> Kind {
        use Kind::{Float64, Int64, Json, Null, Numeric, Text};
        match (self, other) {
            (a, b) if a == b => a,
            (Null, kind) | (kind, Null) => kind,
            (Json, _) => Json,
            (Int64, Numeric) | (Numeric, Int64 | Float64) => Numeric,
            (Int64, Float64) | (Float64, Int64) => Float64,
            _ => Text,
        }
    }

    /// The kind of the value at the cursor, which is passed.
    pub(crate) fn of(cur: &mut Cursor<'_>, placeholder: Option<&Placeholder>) -> Result<Kind, ScanError> {
        Ok(match cur.byte() {
            b'"' => {
                let string = cur.string()?;
                if placeholder.is_some_and(|p| p.is_any_text(string)) { Kind::Null } else { Kind::Text }
            }
            b'-' | b'0'..=b'9' => match cur.number()? {
                Number::Int(_) => Kind::Int64,
                Number::Text(text) if exact_double(text).is_some() => Kind::Float64,
                Number::Text(_) => Kind::Numeric,
            },
            b'{' | b'[' => {
                let raw = cur.raw()?;
                if placeholder.is_some_and(|p| p.is_nested(raw)) { Kind::Null } else { Kind::Json }
            }
            b't' | b'f' => cur.skip().map(|()| Kind::Bool)?,
            _ => cur.skip().map(|()| Kind::Null)?,
        })
    }
}

/// The double of a number with fraction or exponent, if it gives the same digits back. Integer literals beyond i64 are
/// never doubles here.
pub(crate) fn exact_double(text: &str) -> Option<f64> {
    if let Some(value) = short_fraction(text) {
        return Some(value);
    }
    if !text.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: usize = mantissa.bytes().filter(u8::is_ascii_digit).count();
    // Fifteen digits always survive within the range of normal doubles.
    if digits <= 15 && (1e-290..1e290).contains(&value.abs()) {
        return Some(value);
    }
    if value == 0.0 {
        return mantissa.bytes().all(|b| !matches!(b, b'1'..=b'9')).then_some(value);
    }
    if !value.is_finite() || digits > 40 {
        return None;
    }
    let significant = digits_of(mantissa);
    let significant = significant.trim_matches('0');
    let rounded = format!("{value:.*e}", significant.len().max(1) - 1);
    // Where the double lies in the middle of two such texts, its shortest text may be the other one.
    let comes_back = |text: &str| digits_of(text.split('e').next().unwrap_or_default()) == significant;
    (comes_back(&rounded) || comes_back(&format!("{value:e}"))).then_some(value)
}

fn digits_of(mantissa: &str) -> String {
    mantissa.bytes().filter(u8::is_ascii_digit).map(char::from).collect()
}

/// The double of a plain fraction of at most 15 digits: those always come back, and both the digits and the power of
/// ten are doubles themselves, so that one division rounds correctly.
#[inline]
fn short_fraction(text: &str) -> Option<f64> {
    const POWERS: [u64; 16] = {
        let mut powers = [1; 16];
        let mut i = 1;
        while i < 16 {
            powers[i] = powers[i - 1] * 10;
            i += 1;
        }
        powers
    };
    let (negative, digits) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        all => (false, all),
    };
    let (whole, places) = leading_digits(digits);
    let [b'.', fraction @ ..] = digits.get(places..)? else { return None };
    let (parts, len) = leading_digits(fraction);
    if len != fraction.len() || places + len > 15 {
        return None;
    }
    let value = (whole * POWERS[len] + parts) as f64 / POWERS[len] as f64;
    Some(if negative { -value } else { value })
}

/// The double of an integer, if it is exactly that.
pub(crate) fn exact_integer_double(v: i64) -> Option<f64> {
    (v.unsigned_abs() <= 1 << 53).then_some(v as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doubles_are_taken_only_if_their_digits_come_back() {
        for text in
            ["26.18", "1.0", "0.0", "-0.0", "1.0E28", "3.4028235E38", "0.30000000000000004", "4.9E-324"]
        {
            assert!(exact_double(text).is_some(), "{text}");
        }
        for text in
            ["0.1234567890123456789", "1e400", "99999999999999999.9", "1E-400", "18446744073709551616"]
        {
            assert!(exact_double(text).is_none(), "{text}");
        }
    }

    fn kind() -> impl Strategy<Value = Kind> {
        use Kind::*;
        prop::sample::select(vec![Null, Bool, Int64, Numeric, Float64, Text, Json])
    }

    /// The middle of two texts of 16 digits: the one that it rounds to is not the one that is printed for it, and a column of doubles
    /// became one of texts for such a number.
    #[test]
    fn a_double_between_two_texts_is_both() {
        for text in ["-648351273993773.3", "-648351273993773.2", "6.483512739937733e14"] {
            assert_eq!(exact_double(text).map(f64::abs), Some(648_351_273_993_773.0 + 0.25), "{text}");
        }
    }

    proptest! {
        #[test]
        fn widening_never_narrows(a in kind(), b in kind()) {
            let joined = a.join(b);
            prop_assert_eq!(joined.join(b), joined, "{:?} {:?}", a, b);
            prop_assert_eq!(joined.join(a), joined, "{:?} {:?}", a, b);
        }

        #[test]
        fn short_fractions_are_what_the_standard_library_reads(whole in 0u64..1_000_000_000, fraction in "[0-9]{1,6}", negative in any::<bool>()) {
            let text = format!("{}{whole}.{fraction}", if negative { "-" } else { "" });
            prop_assert_eq!(short_fraction(&text).map(f64::to_bits), text.parse::<f64>().ok().map(f64::to_bits));
        }

        #[test]
        fn every_double_survives_its_own_text(value in any::<f64>()) {
            prop_assume!(value.is_finite());
            let text = format!("{value:e}");
            prop_assert_eq!(exact_double(&text), Some(value));
        }
    }
}
