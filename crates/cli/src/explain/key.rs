//! The key that a person names.

use millstream_core::{Error, Result};
use serde_json::Value;

/// Column → text of the value, in the order of `columns`.
pub(super) fn parse(text: &str, columns: &[String]) -> Result<Vec<(String, String)>> {
    let shape = || {
        let example: Vec<String> = columns.iter().map(|c| format!("\"{c}\": …")).collect();
        format!("give the key as {{{}}}", example.join(", "))
    };
    if let Ok(Value::Object(object)) = serde_json::from_str::<Value>(text) {
        if let Some(other) = object.keys().find(|name| !columns.contains(name)) {
            return Err(Error::fatal(format!("`{other}` is no key column: {}", shape())));
        }
        return columns
            .iter()
            .map(|column| match object.get(column).and_then(plain) {
                Some(value) => Ok((column.clone(), value)),
                None => Err(Error::fatal(format!("`{column}` is missing: {}", shape()))),
            })
            .collect();
    }
    match columns {
        [column] => {
            let bare = serde_json::from_str::<Value>(text).ok().and_then(|value| plain(&value));
            Ok(vec![(column.clone(), bare.unwrap_or_else(|| text.to_owned()))])
        }
        _ => Err(Error::fatal(format!("the key has {} columns: {}", columns.len(), shape()))),
    }
}

/// A JSON value as the text that a database would take for it; `None` for null.
pub(super) fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_objects_or_bare() {
        let one = ["id".to_owned()];
        let two = ["b".to_owned(), "a".to_owned()];
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(parse("7", &one).unwrap(), [pair("id", "7")]);
        assert_eq!(parse("\"x y\"", &one).unwrap(), [pair("id", "x y")]);
        assert_eq!(parse("x y", &one).unwrap(), [pair("id", "x y")]);
        assert_eq!(parse("12345678901234567890.50", &one).unwrap(), [pair("id", "12345678901234567890.50")]);
        assert_eq!(parse(r#"{"a":1,"b":"x"}"#, &two).unwrap(), [pair("b", "x"), pair("a", "1")]);
        assert!(parse("7", &two).unwrap_err().to_string().contains("2 columns"));
        assert!(parse(r#"{"a":1}"#, &two).unwrap_err().to_string().contains("`b` is missing"));
        assert!(parse(r#"{"c":1}"#, &one).unwrap_err().to_string().contains("`c` is no key column"));
    }
}
