//! Quoting of identifiers and literals. Every name in SQL goes through here.

/// `"name"`, whatever the name holds.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `"schema"."name"`.
pub(crate) fn qualify(schema: &str, name: &str) -> String {
    format!("{}.{}", quote(schema), quote(name))
}

/// `'text'`.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
