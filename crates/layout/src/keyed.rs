//! A table's keys: the one that it has, and those that it had before.
//!
//! A key change of a table (`ALTER TABLE … ADD PRIMARY KEY`) sends no event. Rows that are not written again stay known by
//! their old key, and events of the old key may still come while the change passes; they may even be the later ones to
//! arrive, on their way through other shards. So a key's place among the others goes by the order of its events.
//!
//! A change of a key column's type sends no event either, and rows of both types stand in columns of their own from then on
//! (`id`, `id__string`). What makes them one row again is the text that the database's own `ALTER TABLE … TYPE text` makes of
//! the old value, hence such a [`Part`] of a key is compared as text.

use millstream_core::{Order, RowSchema};
use serde_json::{Value, json};

use crate::dialect::Dialect;
use crate::shape::Shape;
use crate::table::StoredTable;

/// One of the keys that a table had, in the order in which it had them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// Its source columns.
    pub columns: Vec<String>,
    /// The order of some event that came under it.
    pub order: Order,
    /// Whether the table was created for it: its rows in a history say nothing of their key.
    pub first: bool,
}

impl StoredKey {
    /// Its form in the metadata.
    pub fn encode(&self) -> Value {
        json!({ "columns": self.columns, "order": self.order.to_string(), "first": self.first })
    }

    /// Reads what [`encode`](Self::encode) made; `None` for anything else.
    pub fn decode(value: &Value) -> Option<Self> {
        let columns = value.get("columns")?.as_array()?.iter().map(|c| c.as_str().map(str::to_owned));
        Some(Self {
            columns: columns.collect::<Option<_>>()?,
            order: Order::parse_hex(value.get("order")?.as_str()?)?,
            first: value.get("first")?.as_bool()?,
        })
    }
}

/// What a table's rows have for one source column of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The source column's place in the key.
    pub place: usize,
    /// The columns of its values: one, or one more for each type that it had. A row has its value in one of them.
    pub columns: Vec<usize>,
}

impl Part {
    /// Whether the source column's type changed.
    pub fn is_several(&self) -> bool {
        self.columns.len() > 1
    }

    /// The value by which rows are known, of a row called `row`: the only column's own, or the text of whichever has one.
    pub fn value(&self, dialect: &dyn Dialect, shape: &Shape, row: &str) -> String {
        let names = self.columns.iter().map(|&i| format!("{row}{}", dialect.quote(&shape.columns[i].name)));
        if self.is_several() {
            let texts: Vec<_> = names.map(|name| dialect.text_of(&name)).collect();
            format!("COALESCE({})", texts.join(", "))
        } else {
            names.collect()
        }
    }
}

/// A key as the table's rows have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyed {
    /// Its place among the table's keys.
    pub place: usize,
    /// Whether the table has a newer one.
    pub past: bool,
    /// Its columns in the table. All columns that a type change made for one source column belong to it.
    pub columns: Vec<usize>,
    /// The same, by source column.
    pub parts: Vec<Part>,
    /// What a history's rows say of it: its source columns as a JSON list, nothing for the table's first key.
    pub told: Option<Box<str>>,
}

impl Keyed {
    /// The key at a place.
    pub fn new(table: &StoredTable, place: usize) -> Self {
        let key = &table.keys[place];
        let parts = key.columns.iter().enumerate();
        let parts: Vec<_> = parts
            .map(|(place, name)| Part { place, columns: table.shape.candidates(name).collect() })
            .filter(|part| !part.columns.is_empty())
            .collect();
        Self {
            place,
            past: place + 1 < table.keys.len(),
            columns: parts.iter().flat_map(|part| part.columns.iter().copied()).collect(),
            parts,
            told: (!key.first).then(|| json!(key.columns).to_string().into()),
        }
    }

    /// The key that the table has.
    pub fn now(table: &StoredTable) -> Self {
        Self::new(table, table.keys.len() - 1)
    }

    /// The keys that the table had before, the oldest one first.
    pub fn past(table: &StoredTable) -> impl Iterator<Item = Self> {
        (0..table.keys.len() - 1).map(|place| Self::new(table, place))
    }

    /// The key of rows of a schema; `None` if the table never had it. Rows without a key count as of the table's.
    pub fn of(table: &StoredTable, schema: &RowSchema) -> Option<Self> {
        if schema.key.is_empty() {
            return Some(Self::now(table));
        }
        let is = |key: &StoredKey| schema.key_names().eq(key.columns.iter().map(|k| &**k));
        table.keys.iter().rposition(is).map(|place| Self::new(table, place))
    }
}
