//! A column of a table, or a field of a struct: as the REST API has it, and as SQL has it.

use std::fmt::Write as _;

use millstream_core::Type;
use serde_json::{Map, Value as Json, json};

use crate::column_type::ColumnType;
use crate::sql::{quote, quote_text};

/// Deeper ones are no table's: BigQuery has 15 levels.
const DEPTH_MAX: u32 = 16;
/// Characters of a description.
const DESCRIPTION_MAX: usize = 1024;

/// Whether a field has to have a value, or has many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// NULL is a value.
    #[default]
    Nullable,
    /// There is no NULL.
    Required,
    /// An array, which is never NULL and holds no NULL.
    Repeated,
}

/// A column, or a field of a struct.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Field {
    /// Its name, as the table spells it; unique in a table whatever its case.
    pub name: String,
    /// Its type, or that of its elements.
    pub ty: ColumnType,
    /// Whether it may be NULL, or is an array.
    pub mode: Mode,
    /// The fields of a [`ColumnType::Record`]; else empty.
    pub fields: Vec<Field>,
    /// What people read about it.
    pub description: Option<String>,
    /// What else the service told of it (policy tags, a default, a length, …), kept so that a patch of the schema takes none of it
    /// away.
    pub rest: Map<String, Json>,
}

impl Field {
    /// A nullable field of a scalar type.
    pub fn new(name: impl Into<String>, ty: ColumnType) -> Self {
        Self { name: name.into(), ty, ..Self::default() }
    }

    /// The field that holds values of a storable type (`millstream_core::evolution::storable`): an array for a list, a struct for a
    /// struct, nullable otherwise. What has no form here (arrays of arrays, empty structs) is JSON. Names of a struct's fields are
    /// taken through `name_of`.
    pub fn of(name: impl Into<String>, ty: &Type, name_of: &impl Fn(&str) -> String) -> Self {
        Self::of_nested(name.into(), ty, name_of, 0)
    }

    fn of_nested(name: String, ty: &Type, name_of: &impl Fn(&str) -> String, depth: u32) -> Self {
        match ty {
            Type::List(element) if !matches!(**element, Type::List(_)) => {
                let element = Self::of_nested(name, element, name_of, depth);
                Self { mode: Mode::Repeated, ..element }
            }
            // A column is level 1.
            Type::Struct(fields) if !fields.is_empty() && depth + 2 < DEPTH_MAX => {
                let nested =
                    fields.iter().map(|f| Self::of_nested(name_of(&f.name), &f.ty, name_of, depth + 1));
                Self { fields: nested.collect(), ..Self::new(name, ColumnType::Record) }
            }
            scalar => Self::new(name, ColumnType::of_scalar(scalar)),
        }
    }

    /// The same with this mode.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The same with a description, cut to what BigQuery takes.
    #[must_use]
    pub fn with_description(self, text: &str) -> Self {
        Self { description: Some(text.chars().take(DESCRIPTION_MAX).collect()), ..self }
    }

    /// The REST API's `TableFieldSchema`.
    pub fn to_json(&self) -> Json {
        let mut json = self.rest.clone();
        json.insert("name".to_owned(), json!(self.name));
        json.insert("type".to_owned(), json!(self.ty.rest()));
        let mode = match self.mode {
            Mode::Nullable => "NULLABLE",
            Mode::Required => "REQUIRED",
            Mode::Repeated => "REPEATED",
        };
        json.insert("mode".to_owned(), json!(mode));
        if let Some(description) = &self.description {
            json.insert("description".to_owned(), json!(description));
        }
        if !self.fields.is_empty() {
            json.insert("fields".to_owned(), self.fields.iter().map(Self::to_json).collect());
        }
        Json::Object(json)
    }

    /// Reads a `TableFieldSchema`; `None` if it is none.
    pub fn from_json(json: &Json) -> Option<Self> {
        Self::from_json_at(json, 0)
    }

    fn from_json_at(json: &Json, depth: u32) -> Option<Self> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut rest = json.as_object()?.clone();
        let mut take = |key: &str| rest.shift_remove(key);
        let name = take("name")?.as_str()?.to_owned();
        let ty = ColumnType::from_name(take("type")?.as_str()?);
        let mode = match take("mode").as_ref().and_then(Json::as_str).unwrap_or_default() {
            mode if mode.eq_ignore_ascii_case("REQUIRED") => Mode::Required,
            mode if mode.eq_ignore_ascii_case("REPEATED") => Mode::Repeated,
            _ => Mode::Nullable,
        };
        let description = take("description").and_then(|d| d.as_str().map(str::to_owned));
        let nested = take("fields");
        let nested = nested.as_ref().and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        let fields = nested.iter().map(|f| Self::from_json_at(f, depth + 1)).collect::<Option<_>>()?;
        Some(Self { name, ty, mode, fields, description, rest })
    }

    /// The REST API's `TableSchema`.
    pub fn schema_to_json(fields: &[Self]) -> Json {
        json!({ "fields": fields.iter().map(Self::to_json).collect::<Vec<_>>() })
    }

    /// Reads a `TableSchema`; one without fields is a table without columns.
    pub fn schema_from_json(json: &Json) -> Option<Vec<Self>> {
        match json.get("fields") {
            None => Some(Vec::new()),
            Some(fields) => fields.as_array()?.iter().map(Self::from_json).collect(),
        }
    }

    /// The type as SQL writes it: ``ARRAY<STRUCT<`a` INT64>>``.
    pub fn sql_type(&self) -> String {
        let mut out = String::new();
        self.write_sql_type(&mut out);
        out
    }

    fn write_sql_type(&self, out: &mut String) {
        if self.mode == Mode::Repeated {
            out.push_str("ARRAY<");
        }
        out.push_str(self.ty.sql());
        if self.ty == ColumnType::Record {
            out.push('<');
            for (i, field) in self.fields.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                out.push_str(&field.ddl());
            }
            out.push('>');
        }
        if self.mode == Mode::Repeated {
            out.push('>');
        }
    }

    /// The column as CREATE TABLE and ADD COLUMN take it.
    pub fn ddl(&self) -> String {
        let mut out = quote(&self.name);
        out.push(' ');
        self.write_sql_type(&mut out);
        if self.mode == Mode::Required {
            out.push_str(" NOT NULL");
        }
        if let Some(description) = &self.description {
            let _ = write!(out, " OPTIONS(description={})", quote_text(description));
        }
        out
    }

    /// Whether the column can become one of type `to` where it is.
    pub fn widens_to(&self, to: &ColumnType) -> bool {
        self.mode != Mode::Repeated && self.ty.widens_to(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::Field as CoreField;

    fn nested() -> Type {
        let field = |name: &str, ty| CoreField { name: name.into(), ty };
        Type::Struct(Box::new([
            field("a b", Type::Decimal { precision: 40, scale: 20 }),
            field("tags", Type::List(Box::new(Type::Text))),
            field("inner", Type::Struct(Box::new([field("x", Type::DateTime)]))),
        ]))
    }

    #[test]
    fn types_become_columns() {
        let of = |ty: &Type| Field::of("c", ty, &str::to_owned).ddl();
        let cases = [
            (Type::Bool, "BOOL"),
            (Type::Int64, "INT64"),
            (Type::Float64, "FLOAT64"),
            (Type::Decimal { precision: 38, scale: 9 }, "NUMERIC"),
            (Type::Numeric, "STRING"),
            (Type::Null, "STRING"),
            (Type::Bytes, "BYTES"),
            (Type::Json, "JSON"),
            (Type::Date, "DATE"),
            (Type::Time, "TIME"),
            (Type::DateTime, "DATETIME"),
            (Type::Timestamp, "TIMESTAMP"),
            (Type::List(Box::new(Type::Int64)), "ARRAY<INT64>"),
            (Type::List(Box::new(Type::List(Box::new(Type::Int64)))), "JSON"),
            (Type::Struct(Box::new([])), "JSON"),
            (nested(), "STRUCT<`a b` BIGNUMERIC, `tags` ARRAY<STRING>, `inner` STRUCT<`x` DATETIME>>"),
            (
                Type::List(Box::new(Type::Struct(Box::new([CoreField {
                    name: "x".into(),
                    ty: Type::Date,
                }])))),
                "ARRAY<STRUCT<`x` DATE>>",
            ),
        ];
        for (ty, expected) in cases {
            assert_eq!(of(&ty), format!("`c` {expected}"));
        }
    }

    #[test]
    fn nesting_has_an_end() {
        let mut ty = Type::Int64;
        for _ in 0..40 {
            ty = Type::Struct(Box::new([CoreField { name: "f".into(), ty }]));
        }
        let mut field = &Field::of("c", &ty, &str::to_owned);
        let mut levels = 1;
        while let Some(inner) = field.fields.first() {
            (field, levels) = (inner, levels + 1);
        }
        assert_eq!((levels, &field.ty), (15, &ColumnType::Json));
    }

    #[test]
    fn options_are_quoted() {
        let field = Field::new("a", ColumnType::Int64).with_mode(Mode::Required).with_description("it's\n\\");
        assert_eq!(field.ddl(), r"`a` INT64 NOT NULL OPTIONS(description='it\'s\n\\')");
        let long = Field::new("a", ColumnType::Int64).with_description(&"ü".repeat(2000));
        assert_eq!(long.description.map(|d| d.chars().count()), Some(1024));
    }

    #[test]
    fn a_schema_keeps_what_it_does_not_know() {
        let text = r#"{"fields":[{"name":"n","type":"NUMERIC","precision":"10","scale":"2","policyTags":{"names":["t"]}},
            {"name":"g","type":"geography","mode":"repeated"},
            {"name":"r","type":"STRUCT","description":"d","fields":[{"name":"x","type":"INT64","mode":"REQUIRED"}]}]}"#;
        let json: Json = serde_json::from_str(text).unwrap();
        let fields = Field::schema_from_json(&json).unwrap();
        assert_eq!(fields[0].rest["precision"], json!("10"));
        assert_eq!((fields[1].mode, fields[1].ty.rest()), (Mode::Repeated, "GEOGRAPHY"));
        let written = Field::schema_to_json(&fields);
        assert_eq!(written["fields"][0]["policyTags"], json["fields"][0]["policyTags"]);
        assert_eq!(written["fields"][2]["fields"][0]["type"], "INTEGER");
        assert_eq!(Field::schema_from_json(&written).unwrap(), fields);
        assert_eq!(Field::schema_from_json(&json!({})), Some(Vec::new()));
        assert_eq!(Field::schema_from_json(&json!({ "fields": [{ "name": 1 }] })), None);
    }

    #[test]
    fn columns_come_back_from_rest() {
        let field = Field::of("c", &nested(), &str::to_owned).with_description("d").with_mode(Mode::Repeated);
        assert_eq!(Field::from_json(&field.to_json()), Some(field));
    }

    #[test]
    fn arrays_do_not_widen() {
        let ints = Field::new("c", ColumnType::Int64);
        assert!(ints.widens_to(&ColumnType::Numeric));
        assert!(!ints.with_mode(Mode::Repeated).widens_to(&ColumnType::Numeric));
    }
}
