//! The `source` and `transaction` objects of an event as structs: their fields are whatever the connector sends, with
//! types guessed from the values, and grow like a table's columns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use millstream_core::evolution::Rules;
use millstream_core::{Column, Event, Result, Row, RowBuilder, RowSchema, TableName, Type, Value};
use serde_json::{Map, Value as Json};

use crate::dialect::Dialect;
use crate::shape::{Binding, Change, Shape, TargetColumn};

/// An object column of a changelog.
pub struct Nested {
    /// The struct's fields.
    pub shape: Shape,
    bindings: HashMap<Vec<(String, Type)>, Binding>,
}

/// Fields that an event's `source` has in every connector, so that most tables never have to be altered for them.
pub fn source_shape() -> Shape {
    shape(&[
        ("version", Type::Text),
        ("connector", Type::Text),
        ("name", Type::Text),
        ("ts_ms", Type::Int64),
        ("snapshot", Type::Text),
        ("db", Type::Text),
        ("sequence", Type::Text),
        ("ts_us", Type::Int64),
        ("ts_ns", Type::Int64),
        ("table", Type::Text),
    ])
}

/// The fields of Debezium's transaction block.
pub fn transaction_shape() -> Shape {
    shape(&[("id", Type::Text), ("total_order", Type::Int64), ("data_collection_order", Type::Int64)])
}

fn shape(fields: &[(&str, Type)]) -> Shape {
    let column = |(name, ty): &(&str, Type)| TargetColumn {
        source: (*name).into(),
        name: (*name).to_owned(),
        ty: ty.clone(),
        guessed: true,
        unchanged: false,
    };
    Shape { columns: fields.iter().map(column).collect() }
}

/// An object of an event, ready to be pushed.
pub struct Object {
    fields: Vec<(String, Type)>,
    /// Its values.
    pub row: Row,
}

impl Nested {
    /// An object column whose struct has this shape.
    pub fn new(shape: Shape) -> Self {
        Self { shape, bindings: HashMap::new() }
    }

    /// Looks whether the object fits the struct as it is; the changes that it needs otherwise, already made in the shape.
    pub fn fit(&mut self, object: &Object, dialect: &dyn Dialect, rules: Rules) -> Result<Vec<Change>> {
        if self.bindings.contains_key(&object.fields) {
            return Ok(Vec::new());
        }
        let column = |(name, ty): &(String, Type)| Column {
            name: name.as_str().into(),
            ty: ty.clone(),
            nullable: true,
            guessed: true,
        };
        let schema = Arc::new(RowSchema {
            table: Arc::new(TableName::new("", "", "source")),
            columns: object.fields.iter().map(column).collect(),
            key: Vec::new(),
        });
        let (binding, changes) = self.shape.bind(&schema, dialect, rules, &HashSet::new())?;
        if changes.is_empty() {
            self.bindings.insert(object.fields.clone(), binding);
        } else {
            self.bindings.clear();
        }
        Ok(changes)
    }

    /// How an object that fits maps to the struct.
    pub fn binding(&self, object: &Object) -> Option<&Binding> {
        self.bindings.get(&object.fields)
    }
}

/// The event's `source` object; where the decoder kept none, what the event's facts tell of it.
pub fn source_object(event: &Event) -> Object {
    if let Some(object) = event.facts.source_json.as_deref().and_then(parse) {
        return object;
    }
    let table = &event.schema.table;
    let snapshot = if event.facts.snapshot == millstream_core::Snapshot::No { "false" } else { "true" };
    let mut map = Map::new();
    map.insert("ts_ms".to_owned(), event.facts.ts_ms.into());
    map.insert("ts_us".to_owned(), event.facts.ts_us.into());
    map.insert("snapshot".to_owned(), snapshot.into());
    map.insert("db".to_owned(), (*table.db).into());
    map.insert("schema".to_owned(), (*table.schema).into());
    map.insert("table".to_owned(), (*table.table).into());
    map.insert("lsn".to_owned(), event.facts.lsn.into());
    object(&map)
}

/// The event's `transaction` object, where the decoder kept one.
pub fn transaction_object(event: &Event) -> Option<Object> {
    event.facts.transaction_json.as_deref().and_then(parse)
}

fn parse(text: &str) -> Option<Object> {
    match serde_json::from_str(text) {
        Ok(Json::Object(map)) => Some(object(&map)),
        _ => None,
    }
}

fn object(map: &Map<String, Json>) -> Object {
    let mut fields = Vec::with_capacity(map.len());
    let mut row = RowBuilder::new();
    for (name, value) in map {
        let text;
        let value = match value {
            Json::Null => Value::Null,
            Json::Bool(v) => Value::Bool(*v),
            Json::String(v) => Value::Text(v),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(int), _) => Value::Int(int),
                // Other numbers stay as written.
                _ => {
                    text = number.to_string();
                    Value::Text(&text)
                }
            },
            composite => {
                text = composite.to_string();
                Value::Json(&text)
            }
        };
        fields.push((name.clone(), value.inferred_type()));
        row.push(value);
    }
    Object { fields, row: row.finish() }
}
