//! What Millstream knows of columns and tables beyond what BigQuery does, in their descriptions, so that it survives restarts and lies
//! where the table is.
//!
//! A description's last line may be `millstream: {…}`; what people write above it is theirs. Only what cannot be told from the column
//! itself is noted: another name at the source, a type that shares its column type with others, a type that was only guessed, a
//! large value that once came without its value.

use millstream_core::{Order, TableName};
use millstream_layout::{Shape, StoredKey, TargetColumn, type_text};
use serde_json::{Map, Value as Json, json};

use crate::dialect::{field_of, type_of};
use crate::field::Field;

const MARK: &str = "millstream: ";
/// A description has 1,024 characters. A longer type is what its column says, with wider numbers.
const TYPE_BYTES_MAX: usize = 400;

/// The description's part that people wrote, wherever the note stands in it, and the note.
fn split(description: &str) -> (String, Option<Map<String, Json>>) {
    let lines: Vec<&str> = description.split('\n').collect();
    let noted = lines.iter().enumerate().rev().find_map(|(at, line)| {
        match serde_json::from_str::<Json>(line.strip_prefix(MARK)?) {
            Ok(Json::Object(note)) => Some((at, note)),
            _ => None,
        }
    });
    match noted {
        None => (description.to_owned(), None),
        Some((at, note)) => {
            let theirs = lines.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, line)| *line);
            (theirs.collect::<Vec<_>>().join("\n"), Some(note))
        }
    }
}

fn join(above: &str, note: &Map<String, Json>) -> Option<String> {
    match (above, note.is_empty()) {
        ("", true) => None,
        (above, true) => Some(above.to_owned()),
        ("", false) => Some(format!("{MARK}{}", Json::Object(note.clone()))),
        (above, false) => Some(format!("{above}\n{MARK}{}", Json::Object(note.clone()))),
    }
}

/// A description with the note of another one, and what people wrote in its own.
pub(crate) fn renoted(theirs: Option<&str>, ours: Option<&str>) -> Option<String> {
    let above = theirs.map(|text| split(text).0).unwrap_or_default();
    let note = ours.and_then(|text| split(text).1).unwrap_or_default();
    join(&above, &note)
}

/// The field with what is to be noted of its column.
pub(crate) fn write(field: Field, column: &TargetColumn) -> Field {
    let mut note = Map::new();
    if *column.name != *column.source {
        note.insert("source".to_owned(), json!(column.source));
    }
    // Numbers of one column type are exact in each other's.
    let is_decimal = matches!(column.ty, millstream_core::Type::Decimal { .. });
    if !is_decimal && type_of(&field_of("c", &column.ty)).as_ref() != Some(&column.ty) {
        let ty = type_text::encode(&column.ty);
        if ty.len() <= TYPE_BYTES_MAX {
            note.insert("type".to_owned(), json!(ty));
        }
    }
    for (name, is) in [("guessed", column.guessed), ("unchanged", column.unchanged)] {
        if is {
            note.insert(name.to_owned(), json!(true));
        }
    }
    let above = field.description.as_deref().map(|text| split(text).0).unwrap_or_default();
    let description = join(&above, &note);
    Field { description, ..field }
}

/// The column that a field is; `None` if Millstream does not write such.
pub(crate) fn read(field: &Field) -> Option<TargetColumn> {
    let note = field.description.as_deref().and_then(|text| split(text).1).unwrap_or_default();
    let noted = note.get("type").and_then(Json::as_str).and_then(type_text::decode);
    // A type that was altered since is no longer the noted one.
    let noted = noted.filter(|ty| field_of("c", ty).ty == field.ty);
    Some(TargetColumn {
        source: note.get("source").and_then(Json::as_str).unwrap_or(&field.name).into(),
        name: field.name.clone(),
        ty: noted.or_else(|| type_of(field))?,
        guessed: note.get("guessed") == Some(&Json::Bool(true)),
        unchanged: note.get("unchanged") == Some(&Json::Bool(true)),
    })
}

/// The columns of a struct.
pub(crate) fn read_record(field: &Field) -> Shape {
    Shape { columns: field.fields.iter().filter_map(read).collect() }
}

/// What is known of a table: whose it is, and its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableNote {
    pub(crate) pipeline: String,
    pub(crate) sink: String,
    pub(crate) source: TableName,
    pub(crate) keys: Vec<StoredKey>,
    /// The order of its last truncate.
    pub(crate) truncated: Option<Order>,
    /// Whether the history may hold a row twice: once written so, it does for good.
    pub(crate) repeats: bool,
    /// Whether it is a replica that is merged: one is written in this way or by native upserts, for good.
    pub(crate) merged: bool,
    /// Whether rows were staged whose key has a NULL, which takes another comparison.
    pub(crate) null_in_key: bool,
    /// Whether rows of a replica that is merged may be marked as deleted.
    pub(crate) keeps_deleted: bool,
}

impl TableNote {
    /// The table's description, which keeps what people wrote.
    pub(crate) fn describe(&self, before: Option<&str>, what: &str) -> String {
        let above = before.map_or_else(|| format!("{what} of {}", self.source), |text| split(text).0);
        let mut note = Map::new();
        note.insert("pipeline".to_owned(), json!(self.pipeline));
        note.insert("sink".to_owned(), json!(self.sink));
        note.insert("db".to_owned(), json!(self.source.db));
        note.insert("schema".to_owned(), json!(self.source.schema));
        note.insert("table".to_owned(), json!(self.source.table));
        note.insert("keys".to_owned(), self.keys.iter().map(StoredKey::encode).collect());
        if let Some(order) = &self.truncated {
            note.insert("truncated".to_owned(), json!(order.to_string()));
        }
        for (name, is) in [
            ("repeats", self.repeats),
            ("merged", self.merged),
            ("null_in_key", self.null_in_key),
            ("keeps_deleted", self.keeps_deleted),
        ] {
            if is {
                note.insert(name.to_owned(), json!(true));
            }
        }
        join(&above, &note).unwrap_or_default()
    }

    /// Reads a description; `None` if there is no note in it.
    pub(crate) fn read(description: &str) -> Option<Self> {
        let note = split(description).1?;
        let text = |key: &str| note.get(key)?.as_str();
        let keys = note.get("keys")?.as_array()?.iter().map(StoredKey::decode).collect::<Option<_>>()?;
        Some(Self {
            pipeline: text("pipeline")?.to_owned(),
            sink: text("sink")?.to_owned(),
            source: TableName::new(text("db")?, text("schema")?, text("table")?),
            keys,
            truncated: text("truncated").and_then(Order::parse_hex),
            repeats: note.get("repeats") == Some(&Json::Bool(true)),
            merged: note.get("merged") == Some(&Json::Bool(true)),
            null_in_key: note.get("null_in_key") == Some(&Json::Bool(true)),
            keeps_deleted: note.get("keeps_deleted") == Some(&Json::Bool(true)),
        })
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::{Incarnation, Type};

    use super::*;

    fn column(source: &str, name: &str, ty: Type, guessed: bool) -> TargetColumn {
        TargetColumn { source: source.into(), name: name.to_owned(), ty, guessed, unchanged: false }
    }

    #[test]
    fn only_what_cannot_be_told_is_noted() {
        let written = |column: &TargetColumn| write(field_of(&column.name, &column.ty), column);
        let plain = column("a", "a", Type::Int64, false);
        assert_eq!(written(&plain).description, None);
        let money = column("m", "m", Type::Decimal { precision: 12, scale: 2 }, false);
        assert_eq!(written(&money).description, None);
        let cases = [
            column("größe €", "größe _x20ac_", Type::Text, false),
            column("n", "n", Type::Numeric, false),
            column("j", "j", Type::List(Box::new(Type::List(Box::new(Type::Int64)))), true),
            TargetColumn { unchanged: true, ..column("t", "t", Type::Text, false) },
        ];
        for case in cases {
            let field = written(&case);
            assert!(field.description.as_deref().is_some_and(|d| d.starts_with(MARK)), "{case:?}");
            assert_eq!(read(&field), Some(case));
        }
    }

    #[test]
    fn what_people_wrote_stays() {
        let field = field_of("n", &Type::Numeric).with_description("Net price.\nIn cents.");
        let noted = write(field, &column("n", "n", Type::Numeric, true));
        assert_eq!(
            noted.description.as_deref(),
            Some("Net price.\nIn cents.\nmillstream: {\"type\":\"numeric\",\"guessed\":true}")
        );
        let known = write(noted, &column("n", "n", Type::Text, false));
        assert_eq!(known.description.as_deref(), Some("Net price.\nIn cents."));
        let theirs = Some("Net price.\nmillstream: {\"guessed\":true}");
        assert_eq!(renoted(theirs, None).as_deref(), Some("Net price."));
        let ours = Some("millstream: {\"unchanged\":true}");
        assert_eq!(renoted(theirs, ours).as_deref(), Some("Net price.\nmillstream: {\"unchanged\":true}"));
        let altered = Field { ty: crate::column_type::ColumnType::Float64, ..field_of("n", &Type::Numeric) }
            .with_description("millstream: {\"type\":\"numeric\"}");
        assert_eq!(read(&altered).unwrap().ty, Type::Float64);
    }

    #[test]
    fn tables_come_back() {
        let key = StoredKey {
            columns: vec!["id".to_owned()],
            order: Order::postgres(Incarnation(1), 2, 3),
            first: true,
        };
        let note = TableNote {
            pipeline: "shop".to_owned(),
            sink: "bigquery".to_owned(),
            source: TableName::new("shop", "public", "o'rders"),
            keys: vec![key],
            truncated: Some(Order::postgres(Incarnation(1), 5, 5)),
            repeats: true,
            merged: true,
            null_in_key: true,
            keeps_deleted: true,
        };
        let text = note.describe(None, "Full history");
        assert!(text.starts_with("Full history of public.o'rders\nmillstream: {"), "{text}");
        assert_eq!(TableNote::read(&text), Some(note.clone()));
        let again = note.describe(Some(&format!("Ours.\n{}", text.split('\n').nth(1).unwrap())), "x");
        assert!(again.starts_with("Ours.\nmillstream: {"), "{again}");
        assert_eq!(TableNote::read(&format!("{text}\nA line that somebody added.")), Some(note));
        assert_eq!(TableNote::read("Ours."), None);
    }
}
