//! The form of a table's rows: which columns it has, in which order, and under which field numbers they are written.

use base64::Engine as _;
use millstream_core::{Error, Field as CoreField, Result, RowSchema, Type, Value};
use millstream_layout::object::Nested;
use millstream_layout::{Keyed, Shape, StoredTable, changelog, convert, history, replica, staging};

use crate::cells::Column;
use crate::column_type::ColumnType;
use crate::config::{BigqueryConfig, Layout};
use crate::descriptor::Descriptor;
use crate::dialect::field_of;
use crate::encode::RowEncoder;
use crate::field::{Field, Mode};
use crate::note;
use crate::table_resource::{PartitionUnit, Partitioning};

/// Columns by which a table is clustered.
const CLUSTERING_MAX: usize = 4;
/// Columns of a key by which a history is clustered, before `__op`.
const CLUSTERING_KEYS_MAX: usize = 3;
/// Columns of a primary key.
const PRIMARY_KEY_MAX: usize = 16;

/// The objects of a changelog.
pub(crate) struct Objects {
    pub(crate) source: Nested,
    pub(crate) transaction: Nested,
}

/// A table's columns as BigQuery has them.
pub(crate) fn fields(layout: Layout, table: &StoredTable, objects: Option<&Objects>) -> Vec<Field> {
    let physical = match (layout, objects) {
        (Layout::Changelog, Some(objects)) => {
            changelog::physical_columns(&table.shape, &objects.source.shape, &objects.transaction.shape)
        }
        (Layout::Replica { .. }, _) => replica::physical_columns(table),
        (Layout::Staging { .. }, _) => staging::physical_columns(table),
        (Layout::Rows, _) => table.physical_columns(Vec::new()),
        (Layout::Append | Layout::Changelog | Layout::Envelope, _) => history::physical_columns(table),
    };
    let field = |column: &CoreField| match (layout, objects, &*column.name) {
        (Layout::Changelog, Some(_), "before" | "after") => record(&column.name, &table.shape),
        (Layout::Changelog, Some(objects), "source") => record("source", &objects.source.shape),
        (Layout::Changelog, Some(objects), "transaction") => {
            record("transaction", &objects.transaction.shape)
        }
        _ => {
            let field = field_of(&column.name, &column.ty);
            Some(match table.shape.columns.iter().find(|c| *c.name == *column.name) {
                Some(of_source) => note::write(field, of_source),
                None => field,
            })
        }
    };
    physical.iter().filter_map(field).collect()
}

/// A struct whose fields are a shape's columns; `None` while there are none, as no struct is empty and no other column can become one.
fn record(name: &str, shape: &Shape) -> Option<Field> {
    let member =
        |column: &millstream_layout::TargetColumn| note::write(field_of(&column.name, &column.ty), column);
    let fields: Vec<_> = shape.columns.iter().map(member).collect();
    (!fields.is_empty()).then(|| Field { fields, ..Field::new(name, ColumnType::Record) })
}

/// How a table's rows are written.
pub(crate) struct Form {
    /// What describes them to the service.
    pub(crate) descriptor: Descriptor,
    /// The columns whose field numbers are their places.
    pub(crate) fields: Vec<Field>,
    /// The shape's columns, in its order.
    pub(crate) columns: Vec<Column>,
    /// Field numbers of Millstream's own columns, in their order; 0 for a struct that is not there yet.
    pub(crate) own: Vec<u32>,
    /// The fields of a changelog's `source` and `transaction`.
    pub(crate) objects: [Vec<Column>; 2],
}

impl Form {
    /// The form of rows for a table that has `actual` columns, among them all that are needed. Whatever order they have there, columns
    /// are found by their names.
    pub(crate) fn new(layout: Layout, table: &StoredTable, objects: Option<&Objects>) -> Result<Self> {
        let fields = fields(layout, table, objects);
        let number =
            |name: &str| {
                fields.iter().position(|f| f.name == name).map(|at| at as u32 + 1).ok_or_else(|| {
                    Error::fatal(format!("invariant: table {} has a column {name}", table.name))
                })
            };
        let numbers =
            |columns: &[CoreField]| columns.iter().map(|field| number(&field.name)).collect::<Result<_>>();
        let descriptor = match layout {
            Layout::Replica { .. } => Descriptor::with_changes(&fields),
            Layout::Append | Layout::Changelog | Layout::Staging { .. } | Layout::Envelope | Layout::Rows => {
                Descriptor::new(&fields)
            }
        };
        let descriptor = descriptor.map_err(|text| Error::fatal(format!("table {}: {text}", table.name)))?;
        let members = |shape: &Shape| {
            (1u32..).zip(&shape.columns).map(|(n, c)| Column::new(n, &c.ty)).collect::<Vec<_>>()
        };
        let columns = match layout {
            Layout::Changelog => members(&table.shape),
            Layout::Append
            | Layout::Replica { .. }
            | Layout::Staging { .. }
            | Layout::Envelope
            | Layout::Rows => table
                .shape
                .columns
                .iter()
                .map(|c| Ok(Column::new(number(&c.name)?, &c.ty)))
                .collect::<Result<_>>()?,
        };
        let own: Vec<u32> = match layout {
            Layout::Append | Layout::Envelope => numbers(&history::own_columns())?,
            Layout::Rows => Vec::new(),
            Layout::Replica { .. } => numbers(&replica::own_columns())?,
            Layout::Staging { .. } => numbers(&staging::own_columns())?,
            Layout::Changelog => {
                let none = Shape::default();
                let names = changelog::physical_columns(&none, &none, &none);
                names.iter().map(|field| number(&field.name).unwrap_or(0)).collect()
            }
        };
        let objects = objects.map_or_else(Default::default, |objects| {
            [members(&objects.source.shape), members(&objects.transaction.shape)]
        });
        Ok(Self { descriptor, fields, columns, own, objects })
    }
}

impl Form {
    /// A column of a key, from the text that a query's result has of it.
    pub(crate) fn put_key(
        &self,
        row: &mut RowEncoder<'_>,
        table: &StoredTable,
        name: &str,
        text: Option<&str>,
    ) -> Result<()> {
        let unread =
            || Error::fatal(format!("table {}: a value of its key column {name} cannot be read", table.name));
        let at = table.shape.columns.iter().position(|c| c.name == name).ok_or_else(unread)?;
        let Some(text) = text else { return Ok(()) };
        let ty = &table.shape.columns[at].ty;
        let bytes;
        let (value, from) = match ty {
            // In microseconds.
            Type::Timestamp => (Value::Timestamp(text.parse().map_err(|_| unread())?), Type::Timestamp),
            Type::Float64 => (Value::Float(text.parse().map_err(|_| unread())?), Type::Float64),
            Type::Json => (Value::Json(text), Type::Json),
            Type::Bytes => {
                bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| unread())?;
                (Value::Bytes(&bytes), Type::Bytes)
            }
            _ => (Value::Text(text), Type::Text),
        };
        let cell = convert(value, &from, ty).map_err(|_| unread())?;
        self.columns[at].put(row, cell, &from).map_err(|_| unread())
    }
}

/// The columns by which a table is clustered: those of its key that can be, and the operation; of plain rows the chosen ones.
pub(crate) fn clustering(config: &BigqueryConfig, table: &StoredTable, fields: &[Field]) -> Vec<String> {
    let is_fit = |name: &&String| {
        fields.iter().any(|f| f.name == **name && f.mode != Mode::Repeated && f.ty.may_cluster())
    };
    let key = key_names(table);
    match config.layout {
        Layout::Append => {
            let keys = key.iter().filter(is_fit).take(CLUSTERING_KEYS_MAX).cloned();
            keys.chain(["__op".to_owned()]).collect()
        }
        Layout::Changelog => vec!["_metadata_source".to_owned()],
        Layout::Envelope => Vec::new(),
        Layout::Rows => {
            let chosen =
                config.designs.get(&table.source.qualified()).into_iter().flat_map(|d| &d.cluster_by);
            chosen.filter_map(|source| column_of(table, source)).collect()
        }
        Layout::Replica { .. } => key.iter().filter(is_fit).take(CLUSTERING_MAX).cloned().collect(),
        // The memory of deletes is read by it.
        Layout::Staging { .. } => vec!["__op".to_owned()],
    }
}

/// The columns of the table's key.
pub(crate) fn key_names(table: &StoredTable) -> Vec<String> {
    Keyed::now(table).columns.iter().map(|&i| table.shape.columns[i].name.clone()).collect()
}

/// Why the table cannot have its key as primary key, if it cannot.
pub(crate) fn key_problem(table: &StoredTable, fields: &[Field]) -> Option<String> {
    let key = key_names(table);
    if key.len() > PRIMARY_KEY_MAX {
        return Some(format!(
            "its key has {} columns, and a primary key at most {PRIMARY_KEY_MAX}",
            key.len()
        ));
    }
    let unfit = |name: &&String| {
        !fields.iter().any(|f| f.name == **name && f.mode != Mode::Repeated && f.ty.may_be_key())
    };
    key.iter().find(unfit).map(|name| format!("column {name} of its key has a type that no primary key has"))
}

/// The columns of plain rows that must have a value, as their declaration says; others' tables have no such columns, as deletes carry no
/// more than their key.
pub(crate) fn required(layout: Layout, table: &StoredTable, schema: &RowSchema) -> Vec<String> {
    let declared = schema.columns.iter().filter(|column| layout == Layout::Rows && !column.nullable);
    declared.filter_map(|column| column_of(table, &column.name)).collect()
}

/// The column of a source's column.
fn column_of(table: &StoredTable, source: &str) -> Option<String> {
    table.shape.candidates(source).next().map(|at| table.shape.columns[at].name.clone())
}

/// A table's partitions: the days of its mark; of plain rows what was chosen.
pub(crate) fn partitioning(config: &BigqueryConfig, table: &StoredTable) -> Option<Partitioning> {
    let days = |column: &str| (column.to_owned(), PartitionUnit::Day);
    let (column, unit) = match config.layout {
        Layout::Append => days(history::MARK_COLUMN),
        Layout::Changelog => days(changelog::MARK_COLUMN),
        Layout::Replica { .. } => return None,
        Layout::Staging { .. } => days(staging::MARK_COLUMN),
        Layout::Envelope => days(crate::envelope::MARK_COLUMN),
        Layout::Rows => {
            let (source, unit) = config.designs.get(&table.source.qualified())?.partition_by.as_ref()?;
            (column_of(table, source)?, *unit)
        }
    };
    Some(Partitioning { unit, column: Some(column), expiration: config.partition_expiration })
}
