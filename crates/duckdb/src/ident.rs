//! Quoting of identifiers and literals. Every name in SQL goes through here.

/// `"name"`, whatever the name holds.
pub fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `"schema"."name"`.
pub fn qualify(schema: &str, name: &str) -> String {
    format!("{}.{}", quote(schema), quote(name))
}

/// `'text'`. A statement's text ends at a NUL, so these are put in by a function.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\0') {
        format!("('{}')", quoted.replace('\0', "' || chr(0) || '"))
    } else {
        format!("'{quoted}'")
    }
}
