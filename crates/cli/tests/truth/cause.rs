//! Causes of residuals, and the check of each against the raw event: an entry of the list is believed only if the value
//! really is not in the event, or no column of a warehouse can hold it.

use serde_json::Value as Json;

use crate::canonical;
use crate::cell::Cell;
use crate::civil::{self, Interval};
use crate::comparison::Difference;
use crate::corpus::Variant;
use crate::declared::Table;
use crate::number;

/// A month of `interval.handling.mode=numeric`: 30.4375 days.
const MONTH_US: i128 = 2_629_800_000_000;

/// Whether `code` explains the difference; the reason if it does not.
pub(crate) fn verify(code: &str, d: &Difference, declared: &Table, variant: &Variant) -> Result<(), String> {
    let column = declared.columns.iter().find(|c| c.name == d.column);
    let raw_is_null = d.raw.as_ref().is_some_and(Json::is_null);
    let got_null = matches!(d.got, None | Some(Cell::Null));
    let ok = match code {
        // The connector sends the column's DEFAULT where the row has NULL.
        "default" => {
            d.expected.is_null() && d.raw.is_some() && !raw_is_null && column.is_some_and(|c| c.has_default)
        }
        // The last event has null where the row has a value.
        "null" => !d.expected.is_null() && raw_is_null && got_null,
        // The last event does not have the column.
        "absent" => d.raw.is_none() && d.column != "*",
        // A generated column is computed by the database and not streamed.
        "generated" => column.is_some_and(|c| c.generated) && (d.raw.is_none() || raw_is_null),
        "rounded" => rounded(d),
        "millis" => to_millis(d),
        "offset" => offset(d),
        "month-length" => month_length(d),
        "bit-length" => bit_length(d),
        // A date or timestamp that no warehouse column holds; policy `out_of_range: null`.
        "range" => unheld(d),
        // NaN or infinity for a decimal column; policy `not_a_number: null`.
        "not-finite" => got_null && not_finite(&d.expected),
        "wrapped" => wrapped(d),
        // The very text of the connector's placeholder for an unchanged value.
        "placeholder" => {
            matches!((&d.expected, &d.raw), (Json::String(a), Some(Json::String(b))) if a == b)
                && d.expected
                    .as_str()
                    .is_some_and(|t| t.contains("debezium_unavailable") || t.contains("@@gone@@"))
        }
        // The connector's text for the value is not the value; what it sent is what we hold.
        "garbled" => d.raw.is_some() && !raw_is_null && garbled(d),
        // The schema says no more than "string": bytes in base64 or hexadecimal, a decimal's NaN in the connector's words.
        "as-text" => variant.is_wrapped() && as_text(d),
        // A text that the connector writes in another form than the database: `(1,1),(0,0)` as `(1.0,1.0),(0.0,0.0)`.
        "form" => {
            matches!((&d.got, &d.raw), (Some(Cell::Bytes(b)), Some(Json::String(raw))) if *raw == base64(b))
                || matches!((&d.got, &d.raw), (Some(Cell::List(cells)), Some(Json::Array(items))) if cells.iter().zip(items).all(|(c, i)| matches!((c, i), (Cell::Bytes(b), Json::String(raw)) if *raw == base64(b))))
        }
        // The row's delete, truncate or key change is not in the events, or comes under another key.
        "never-sent" => d.column == "*" && d.raw.is_none() && d.got.is_none(),
        "delete-not-sent" => d.column == "*" && d.got.is_some() && d.raw.as_ref().is_some_and(|op| op != "d"),
        "truncate-not-sent" => {
            let deleted = d.raw.as_ref().is_none_or(|op| op == "d");
            d.column == "*" && d.got.is_some() && variant.is_flat() && !deleted
        }
        "wrong-key" => d.column == "*",
        // The table was dropped or renamed, and its key changed: schema changes are no events of rows.
        "dropped" => d.column == "*" && d.got.is_some() && variant.is_mysql(),
        "key-changed" => d.column == "*",
        // A known fault of ours, to be mended: then the entry fails the test and goes.
        "BUG" => true,
        "unscaled" => unscaled(d) && !variant.is_wrapped(),
        "not-unique" => d.column == "*" && d.got.is_none(),
        _ => return Err(format!("{code} is no known cause")),
    };
    if ok { Ok(()) } else { Err(format!("the cause {code} does not hold")) }
}

/// The cause that a report proposes.
pub(crate) fn guess(d: &Difference) -> String {
    let variant = Variant { scenario: "", name: "", decode: &[] };
    let codes = [
        "null",
        "absent",
        "rounded",
        "millis",
        "offset",
        "month-length",
        "bit-length",
        "range",
        "not-finite",
        "wrapped",
        "placeholder",
    ];
    let found = codes.iter().find(|code| verify(code, d, &Table::default(), &variant).is_ok());
    found.map_or_else(|| "?".to_owned(), |code| (*code).to_owned())
}

fn number_of(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Double(v) => Some(*v),
        Cell::Number(text) | Cell::Text(text) => text.parse().ok(),
        _ => None,
    }
}

/// The event has a double; it is the nearest one to the exact number.
fn rounded(d: &Difference) -> bool {
    let exact = match &d.expected {
        Json::Number(n) => n.to_string(),
        Json::String(text) => text.replace(['$', ','], ""),
        _ => return false,
    };
    let raw = d.raw.as_ref().and_then(|raw| raw.as_number().map(ToString::to_string));
    let (Some(raw), Some(got), Ok(nearest)) = (raw, d.got.as_ref().and_then(number_of), exact.parse::<f64>())
    else {
        return false;
    };
    raw.parse() == Ok(nearest) && got == nearest && number::normal(&raw) != number::normal(&exact)
}

/// Everything below milliseconds was cut off.
fn to_millis(d: &Difference) -> bool {
    let cut = |expected: &Json, got: &Cell| -> bool {
        let Some(text) = expected.as_str() else { return expected.is_null() && *got == Cell::Null };
        let floor = |us: i128| us.div_euclid(1000) * 1000;
        match got {
            Cell::Time(us) => civil::time(text).is_some_and(|t| floor(t.into()) == i128::from(*us)),
            Cell::DateTime(us) => civil::timestamp(text).is_some_and(|t| floor(t) == i128::from(*us)),
            _ => false,
        }
    };
    match (&d.expected, &d.got) {
        (Json::Array(items), Some(Cell::List(cells))) => {
            items.len() == cells.len() && items.iter().zip(cells).all(|(item, cell)| cut(item, cell))
        }
        (expected, Some(got)) => cut(expected, got),
        _ => false,
    }
}

/// A time with zone comes in UTC: the same instant, without its offset.
fn offset(d: &Difference) -> bool {
    let zone = |text: &str| civil::time_with_zone(text).map(|(us, offset)| us - offset * 1_000_000);
    let (Some(expected), Some(Json::String(raw)), Some(Cell::Text(got))) =
        (d.expected.as_str(), &d.raw, &d.got)
    else {
        return false;
    };
    let day = 86_400_000_000;
    let same = |a: Option<i64>, b: Option<i64>| matches!((a, b), (Some(a), Some(b)) if a.rem_euclid(day) == b.rem_euclid(day));
    raw.ends_with('Z')
        && d.ty.starts_with("timetz")
        && same(zone(expected), zone(raw))
        && same(zone(raw), zone(got))
}

/// An interval in microseconds counts a month as 30.4375 days, and ends at the ends of 64 bits.
fn month_length(d: &Difference) -> bool {
    let Some(interval) = d.expected.as_str().and_then(Interval::postgres) else { return false };
    let total = interval.total_us(MONTH_US).clamp(i64::MIN.into(), i64::MAX.into());
    let raw = d.raw.as_ref().and_then(Json::as_i64).map(i128::from);
    let got = d.got.as_ref().and_then(|cell| if let Cell::Number(n) = cell { n.parse().ok() } else { None });
    raw.is_some() && raw == got && raw == Some(total)
}

/// A bit string of varying length comes without its length; its bits are right.
fn bit_length(d: &Difference) -> bool {
    let (Some(expected), Some(Cell::Bytes(got))) = (d.expected.as_str(), &d.got) else { return false };
    let bits: String = got.iter().map(|b| format!("{b:08b}")).collect();
    d.ty.starts_with("varbit") && bits.trim_start_matches('0') == expected.trim_start_matches('0')
}

/// What is infinite or outside the years 1 to 9999 is NULL here, and everything else in an array is right.
fn unheld(d: &Difference) -> bool {
    let temporal = d.ty.starts_with("date") || d.ty.starts_with("timestamp");
    let one = |expected: &Json, got: &Cell| out_of_range(expected) && *got == Cell::Null;
    temporal
        && match (&d.expected, &d.got) {
            (Json::Array(items), Some(Cell::List(cells))) => {
                let element = d.ty.strip_suffix("[]").unwrap_or(&d.ty);
                let right = |(item, cell): (&Json, &Cell)| {
                    one(item, cell)
                        || canonical::expected(element, false, item) == canonical::got(element, false, cell)
                };
                items.len() == cells.len() && items.iter().zip(cells).all(right)
            }
            (expected, got) => one(expected, got.as_ref().unwrap_or(&Cell::Null)),
        }
}

/// Whether a date's text says infinity, or a year outside 1 to 9999.
fn out_of_range(value: &Json) -> bool {
    let Some(text) = value.as_str() else { return false };
    let year = text.trim_start_matches('+').split('-').next().and_then(|y| y.parse::<i64>().ok());
    text.ends_with("infinity") || text.ends_with(" BC") || year.is_some_and(|y| !(1..=9999).contains(&y))
}

fn not_finite(value: &Json) -> bool {
    matches!(value.as_str(), Some("NaN" | "Infinity" | "-Infinity"))
}

/// A decimal comes as its digits alone; the scale that a schema file tells is not the one that the row had.
fn unscaled(d: &Difference) -> bool {
    let digits = |text: &str| number::normal(text).and_then(|n| n.split('e').next().map(str::to_owned));
    let expected = d.expected.as_str().map_or_else(|| d.expected.to_string(), str::to_owned);
    let same = matches!(&d.got, Some(Cell::Number(got)) if digits(got).is_some() && digits(got) == digits(&expected));
    same && d.raw.as_ref().is_some_and(Json::is_string)
}

/// An unsigned 64-bit number comes as a signed one.
fn wrapped(d: &Difference) -> bool {
    let expected = d.expected.to_string().parse::<u64>();
    let raw = d.raw.as_ref().and_then(Json::as_i64);
    matches!((expected, raw), (Ok(e), Some(r)) if r < 0 && e == r as u64)
        && d.got.as_ref().and_then(|c| if let Cell::Number(n) = c { n.parse().ok() } else { None }) == raw
}

/// Whether days, milliseconds or microseconds are outside the years 1 to 9999.
fn beyond(ty: &str, n: i64) -> bool {
    let day = if ty.starts_with("date") { 1 } else { 86_400_000 };
    let micros = !ty.starts_with("date") && !(-62_135_596_800_000_000..=253_402_300_799_999_999).contains(&n);
    micros || !(-719_162 * day..=2_932_897 * day).contains(&n)
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// What we hold is the text of the event, element by element.
fn as_text(d: &Difference) -> bool {
    match (&d.got, &d.raw) {
        (Some(Cell::Text(text)), Some(Json::String(raw))) => text == raw,
        (Some(Cell::List(cells)), Some(Json::Array(items))) => {
            let same = |(cell, item): (&Cell, &Json)| matches!((cell, item), (Cell::Text(a), Json::String(b)) if a == b);
            cells.len() == items.len() && cells.iter().zip(items).all(same)
        }
        _ => false,
    }
}

/// What we hold is what the event says, read as the connector's own form of the type says, or NULL where it is beyond
/// what a column can hold.
fn garbled(d: &Difference) -> bool {
    let (Some(raw), Some(got)) = (&d.raw, &d.got) else { return false };
    match (got, raw) {
        (Cell::Null, raw) => {
            raw.is_null()
                || out_of_range(&d.expected)
                || out_of_range(raw)
                || raw.as_i64().is_some_and(|n| beyond(&d.ty, n))
        }
        (Cell::Text(text), Json::String(raw)) => text == raw,
        (Cell::Time(us), Json::String(raw)) => civil::time_with_zone(raw) == Some((*us, 0)),
        (Cell::Number(n), Json::Number(raw)) => number::normal(n) == number::normal(&raw.to_string()),
        (Cell::Date(days), Json::String(raw)) => civil::date(raw.trim_end_matches('Z')) == Some(*days),
        (Cell::DateTime(us), Json::String(raw)) => civil::instant(raw) == Some(i128::from(*us)),
        (Cell::Date(days), Json::Number(raw)) => raw.as_i64() == Some(*days),
        (Cell::DateTime(us), Json::Number(raw)) => {
            raw.as_i64().is_some_and(|raw| raw == *us || raw.checked_mul(1000) == Some(*us))
        }
        (Cell::Timestamp(us), Json::String(raw)) => civil::instant(raw) == Some(i128::from(*us)),
        (Cell::List(cells), Json::Array(items)) => {
            let element = d.ty.strip_suffix("[]").unwrap_or(&d.ty);
            let same = |(cell, item): (&Cell, &Json)| {
                let as_is = canonical::got(element, false, cell) == canonical::expected(element, false, item);
                let part = Difference {
                    got: Some(cell.clone()),
                    raw: Some(item.clone()),
                    ty: element.to_owned(),
                    ..d.clone()
                };
                as_is || garbled(&part)
            };
            cells.len() == items.len() && cells.iter().zip(items).all(same)
        }
        _ => false,
    }
}
