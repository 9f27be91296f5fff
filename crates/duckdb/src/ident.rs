//! Quoting of identifiers and literals. Every name in SQL goes through here.

/// `"name"`, whatever the name holds.
pub fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `"schema"."name"`.
pub fn qualify(schema: &str, name: &str) -> String {
    format!("{}.{}", quote(schema), quote(name))
}

/// `'text'`.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
