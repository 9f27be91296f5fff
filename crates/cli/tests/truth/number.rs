//! Exact decimals: a number's text in one normal form, so that equal values are equal texts.

/// `digits e exponent` without leading or trailing zeros, e.g. `-12345e-2`; `0` for every zero. `None` if `text` is no
/// plain decimal number.
pub(crate) fn normal(text: &str) -> Option<String> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], unsigned[at + 1..].trim_start_matches('+').parse::<i64>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty()
        || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    let short = digits.trim_end_matches('0');
    if short.is_empty() {
        return Some("0".to_owned());
    }
    let exponent = exponent - fraction.len() as i64 + (digits.len() - short.len()) as i64;
    Some(format!("{}{short}e{exponent}", if negative { "-" } else { "" }))
}

/// The normal form of a double's shortest text; `NaN`, `Infinity`, `-Infinity` as such.
pub(crate) fn of_double(v: f64) -> String {
    if v.is_nan() {
        "NaN".to_owned()
    } else if v.is_infinite() {
        if v > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        normal(&format!("{v:e}")).expect("invariant: a finite double has a decimal text")
    }
}

#[test]
fn equal_numbers_have_one_text() {
    for (a, b) in [("1.50", "15e-1"), ("-0.00", "0"), ("1e3", "1000"), ("007", "7"), ("12300", "1.23E+4")] {
        assert_eq!(normal(a), normal(b));
    }
    assert_ne!(normal("9007199254740993"), normal("9007199254740992"));
    assert_eq!(normal("1.2.3"), None);
    assert_eq!(normal(""), None);
    assert_eq!(of_double(0.1), "1e-1");
}
