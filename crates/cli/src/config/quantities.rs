//! Durations, sizes and lists as people write them: `100ms`, `1s`, `5m`, `64MiB`; one text or several.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

const SPAN: &str = "a duration such as `100ms`, `1s`, `5m`, `1h` or `7d`";
const BYTES: &str = "a size such as `512KiB`, `64MiB` or `1GiB`";

/// Number and unit of a quantity: digits, at most one point, then letters.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number = text[..unit_at].parse::<f64>().ok().filter(|n| n.is_finite())?;
    Some((number, text[unit_at..].trim_start()))
}

impl Span {
    /// Reads `1s`; `None` if it is not one, or longer than 100 years.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let seconds = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let total = number * seconds;
        (total <= 3.2e9).then(|| Self(Duration::from_secs_f64(total)))
    }
}

impl Bytes {
    /// Reads `64MiB`; `None` if it is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split(text)?;
        let factor = match unit {
            "" | "B" => 1.0,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            "kB" | "KB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            _ => return None,
        };
        let total = number * factor;
        (total <= 1e15).then_some(Self(total as u64))
    }
}

struct Reading<T>(&'static str, fn(&str) -> Option<T>);

impl<T> Visitor<'_> for Reading<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        self.1(text).ok_or_else(|| E::custom(format!("expected {}", self.0)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Reading(SPAN, Span::parse))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Reading(BYTES, Bytes::parse))
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A number with a unit: us, ms, s, m, h or d.",
            "pattern": r"^[0-9.]+ *(us|µs|ms|s|m|min|h|d)$|\$\{",
        })
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "description": "Bytes, or a number with a unit: KiB, MiB, GiB, kB, MB or GB.",
            "pattern": r"^[0-9.]+ *(B|KiB|MiB|GiB|kB|KB|MB|GB)?$|\$\{",
        })
    }
}

/// Shows the largest unit that gives a whole number.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
        match units.iter().find(|(size, _)| ms > 0 && ms.is_multiple_of(*size)) {
            Some((size, unit)) => write!(f, "{}{unit}", ms / size),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// One text, or a list of them.
#[derive(Debug, Clone)]
pub(crate) struct OneOrMany(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = OneOrMany;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![text.to_owned()]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<OneOrMany, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    all.push(item);
                }
                Ok(OneOrMany(all))
            }
        }
        deserializer.deserialize_any(Reading)
    }
}

impl JsonSchema for OneOrMany {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OneOrMany".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "array"], "items": { "type": "string" } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_shown() {
        assert_eq!(Span::parse("1.5s"), Some(Span(Duration::from_millis(1500))));
        assert_eq!(Span::parse("5m").map(|s| s.to_string()).as_deref(), Some("5m"));
        assert_eq!(Span::parse("90s").map(|s| s.to_string()).as_deref(), Some("90s"));
        assert_eq!(Bytes::parse("64MiB"), Some(Bytes(64 << 20)));
        for wrong in ["", "s", "5", "1 week", "-1s", "1.2.3s", "99999999999d", "1e9s", "é"] {
            assert_eq!(Span::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Bytes::parse("1TiB"), None);
    }
}
