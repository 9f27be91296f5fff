//! Logical types as text, for the metadata that sinks keep of their columns.

use std::fmt::Write as _;

use millstream_core::{Field, Type};

/// The text form of a type in metadata, e.g. `decimal(12,2)`, `list(text)`, `struct("a" int64,"b" text)`.
pub fn encode(ty: &Type) -> String {
    let mut out = String::new();
    write_type(&mut out, ty);
    out
}

fn write_type(out: &mut String, ty: &Type) {
    match ty {
        Type::Decimal { precision, scale } => {
            let _ = write!(out, "decimal({precision},{scale})");
        }
        Type::List(element) => {
            out.push_str("list(");
            write_type(out, element);
            out.push(')');
        }
        Type::Struct(fields) => {
            out.push_str("struct(");
            for (i, field) in fields.iter().enumerate() {
                let comma = if i == 0 { "" } else { "," };
                let _ = write!(out, "{comma}{} ", quote(&field.name));
                write_type(out, &field.ty);
            }
            out.push(')');
        }
        plain => out.push_str(PLAIN.iter().find(|(_, t)| t == plain).map_or("null", |(name, _)| name)),
    }
}

const PLAIN: [(&str, Type); 12] = [
    ("null", Type::Null),
    ("bool", Type::Bool),
    ("int64", Type::Int64),
    ("numeric", Type::Numeric),
    ("float64", Type::Float64),
    ("text", Type::Text),
    ("bytes", Type::Bytes),
    ("json", Type::Json),
    ("datetime", Type::DateTime),
    ("date", Type::Date),
    ("timestamp", Type::Timestamp),
    ("time", Type::Time),
];

/// Reads what [`encode`] wrote; `None` for anything else.
pub fn decode(text: &str) -> Option<Type> {
    let mut rest = text;
    let ty = read_type(&mut rest, 0)?;
    rest.is_empty().then_some(ty)
}

fn read_type(rest: &mut &str, depth: u32) -> Option<Type> {
    if depth > 128 {
        return None;
    }
    if eat(rest, "decimal(") {
        let (numbers, tail) = rest.split_once(')')?;
        *rest = tail;
        let (precision, scale) = numbers.split_once(',')?;
        return Some(Type::Decimal { precision: precision.parse().ok()?, scale: scale.parse().ok()? });
    }
    if eat(rest, "list(") {
        let element = read_type(rest, depth + 1)?;
        return eat(rest, ")").then(|| Type::List(Box::new(element)));
    }
    if eat(rest, "struct(") {
        let mut fields = Vec::new();
        while !eat(rest, ")") {
            let name = read_name(rest)?;
            let ty = eat(rest, " ").then(|| read_type(rest, depth + 1))??;
            fields.push(Field { name: name.into(), ty });
            eat(rest, ",");
        }
        return Some(Type::Struct(fields.into()));
    }
    PLAIN.iter().find(|(name, _)| eat(rest, name)).map(|(_, ty)| ty.clone())
}

fn eat(rest: &mut &str, prefix: &str) -> bool {
    match rest.strip_prefix(prefix) {
        Some(tail) => {
            *rest = tail;
            true
        }
        None => false,
    }
}

fn read_name(rest: &mut &str) -> Option<String> {
    if !eat(rest, "\"") {
        return None;
    }
    let mut name = String::new();
    loop {
        let (part, tail) = rest.split_once('"')?;
        name.push_str(part);
        *rest = tail;
        if !eat(rest, "\"") {
            return Some(name);
        }
        name.push('"');
    }
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_come_back_from_their_text() {
        let field = |name: &str, ty| Field { name: name.into(), ty };
        let inner = Type::Struct(Box::new([field("x \"y\", z", Type::Time), field("", Type::Timestamp)]));
        let nested = Type::Struct(Box::new([
            field("a", Type::Decimal { precision: 12, scale: 2 }),
            field("b", Type::List(Box::new(Type::Text))),
            field("c", inner),
        ]));
        for ty in PLAIN.map(|(_, ty)| ty).into_iter().chain([nested]) {
            assert_eq!(decode(&encode(&ty)), Some(ty));
        }
        assert_eq!(decode("list(text"), None);
        assert_eq!(decode("decimal(1)"), None);
        assert_eq!(decode("nope"), None);
    }
}
