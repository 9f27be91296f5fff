//! Names and texts in SQL.

/// An identifier in double quotes.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table in a dataset.
pub(crate) fn qualify(dataset: &str, name: &str) -> String {
    format!("{}.{}", quote(dataset), quote(name))
}

/// A text in single quotes.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
