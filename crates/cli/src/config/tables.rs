//! What the config file says of tables, and of messages that are rows of them.

use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, IntoDeserializer as _, MapAccess, Visitor};
use serde_json::{Value as Json, json};

/// What is known about a table.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableConfig {
    /// Its key columns; wins over the record's key. An empty list: it has none, whatever the records say. With `format: json` a key is
    /// what tells rows apart: a second message with the same key is a duplicate.
    pub(crate) key: Option<Vec<String>>,
    /// A file with its columns: BigQuery's JSON schema (a list of `name`, `type`, `mode`). With `format: json`, and neither this nor `columns`, the
    /// columns are those of the table in BigQuery.
    pub(crate) schema: Option<PathBuf>,
    /// Its columns here, in place of `schema`: each has BigQuery's type (`STRING`, `NUMERIC(12,2)`), or `type` with `mode` (`NULLABLE`,
    /// `REQUIRED`, `REPEATED`), `unit` (what numbers in a time count: `s`, `ms`, `us`, `ns`), `precision`, `scale` and `fields` of a `RECORD`.
    pub(crate) columns: Option<Columns>,
    /// Its replica identity. With `full` the rows of deletes and the images before updates are complete.
    pub(crate) replica_identity: Option<ReplicaIdentity>,
    /// The column by whose times BigQuery partitions it, where it is made with `layout: rows`.
    pub(crate) partition_by: Option<String>,
    /// What a partition is. `day` by default.
    pub(crate) partition_unit: Option<PartitionUnit>,
    /// Up to four columns by which BigQuery clusters it, where it is made with `layout: rows`.
    pub(crate) cluster_by: Option<Vec<String>>,
    /// Leave its events out; they are counted.
    #[serde(default)]
    pub(crate) exclude: bool,
}

/// PostgreSQL's REPLICA IDENTITY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReplicaIdentity {
    /// The key only.
    Default,
    /// The whole row.
    Full,
}

/// What a partition of a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PartitionUnit {
    /// An hour.
    Hour,
    /// A day.
    #[default]
    Day,
    /// A month.
    Month,
    /// A year.
    Year,
}

/// Which table a plain message is for, and what may be in it; only with `format: json`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonConfig {
    /// The table (`schema.table`, or one word) of messages that tell none. The only one of `tables` by default.
    pub(crate) table: Option<String>,
    /// The member of the object that tells the table. It need be no column.
    pub(crate) table_field: Option<String>,
    /// The attribute (header) that tells the table.
    pub(crate) table_attribute: Option<String>,
    /// What becomes of members that the table does not declare. `dead-letter` by default.
    pub(crate) unknown_fields: Option<UnknownFields>,
}

/// What becomes of members of a message that its table does not declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UnknownFields {
    /// The message becomes a dead letter.
    DeadLetter,
    /// They are left out, counted.
    Ignore,
}

/// Columns by name, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Columns(Vec<(String, ColumnConfig)>);

/// A column with more than a type.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnConfig {
    /// BigQuery's type.
    r#type: String,
    /// `NULLABLE` (default), `REQUIRED` or `REPEATED`.
    mode: Option<String>,
    /// Digits of a `NUMERIC` or `BIGNUMERIC`.
    precision: Option<u32>,
    /// Those after the point.
    scale: Option<u32>,
    /// What numbers in a `TIME`, `DATETIME` or `TIMESTAMP` count: `s`, `ms`, `us` or `ns`. Without it only texts are times.
    unit: Option<String>,
    /// The members of a `RECORD`.
    fields: Option<Columns>,
}

impl Columns {
    /// The same as a BigQuery JSON schema.
    pub(crate) fn schema(&self) -> Json {
        let entry = |(name, column): &(String, ColumnConfig)| {
            let ColumnConfig { r#type, mode, precision, scale, unit, fields } = column;
            let mut entry = json!({ "name": name, "type": r#type });
            let optional = [
                ("mode", json!(mode)),
                ("precision", json!(precision)),
                ("scale", json!(scale)),
                ("unit", json!(unit)),
                ("fields", json!(fields.as_ref().map(Columns::schema))),
            ];
            for (key, value) in optional.into_iter().filter(|(_, value)| !value.is_null()) {
                entry[key] = value;
            }
            entry
        };
        Json::Array(self.0.iter().map(entry).collect())
    }
}

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Columns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of columns to their types")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Columns, A::Error> {
                let mut columns = Vec::new();
                while let Some(name) = map.next_key()? {
                    let Column(column) = map.next_value()?;
                    columns.push((name, column));
                }
                Ok(Columns(columns))
            }
        }
        deserializer.deserialize_map(Reading)
    }
}

/// A column as written: its type, or a mapping with more.
struct Column(ColumnConfig);

impl<'de> Deserialize<'de> for Column {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Column;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a type such as `STRING`, or a mapping with `type`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Column, E> {
                let entries = [("type", text)].into_iter();
                let map = serde::de::value::MapDeserializer::<_, E>::new(entries);
                ColumnConfig::deserialize(map.into_deserializer()).map(Column)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Column, A::Error> {
                ColumnConfig::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Column)
            }
        }
        deserializer.deserialize_any(Reading)
    }
}

impl JsonSchema for Columns {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Columns".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let column = generator.subschema_for::<ColumnConfig>();
        json_schema!({
            "type": "object",
            "description": "Columns by name, in their order.",
            "additionalProperties": { "anyOf": [{ "type": "string" }, column] },
        })
    }
}
