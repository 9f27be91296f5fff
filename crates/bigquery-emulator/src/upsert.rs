//! Native change data capture: upserts and deletes by primary key, the largest sequence number wins.

use std::sync::Arc;

use duckdb::Connection;
use duckdb::arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use duckdb::arrow::datatypes::{DataType, Field, Schema as ArrowSchema};

use crate::engine::{self, KEYS, OWN};
use crate::failure::Failure;
use crate::landing::align_batch;
use crate::row::{Changes, Kind};
use crate::schema::{self, Schema, quoted};
use crate::table::TableId;

/// How long a delete is remembered, in microseconds: two days.
const REMEMBERED: i64 = 2 * 86_400_000_000;

/// The table of what is known of a table's keys, unquoted.
pub(crate) fn keys_table(id: &TableId) -> String {
    format!("{}.{}", id.schema(), id.name())
}

/// Forgets what is known of a table's keys.
pub(crate) fn forget(connection: &Connection, id: &TableId) -> Result<(), Failure> {
    let table = quoted(&keys_table(id));
    Ok(connection.execute_batch(&format!("DROP TABLE IF EXISTS {KEYS}.{table}"))?)
}

/// Applies changes in the order in which they came.
pub(crate) fn apply<'a>(
    connection: &Connection,
    id: &TableId,
    schema: &Schema,
    keys: &[String],
    changes: impl Iterator<Item = &'a Changes>,
    now: i64,
) -> Result<(), Failure> {
    let table = id.quoted();
    let known = format!("{KEYS}.{}", quoted(&keys_table(id)));
    let key_list = keys.iter().map(|key| quoted(key)).collect::<Vec<_>>().join(", ");
    let same = |left: &str, right: &str| {
        let pairs = keys.iter().map(|key| {
            let key = quoted(key);
            format!("{left}.{key} IS NOT DISTINCT FROM {right}.{key}")
        });
        pairs.collect::<Vec<_>>().join(" AND ")
    };
    let columns = schema.iter().map(|c| quoted(&c.name)).collect::<Vec<_>>().join(", ");
    connection.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {known} AS
           SELECT {key_list}, ''::VARCHAR AS \"__sequence\", 0::BIGINT AS \"__deleted\" FROM {table} LIMIT 0;
         DELETE FROM {known} WHERE \"__deleted\" < {now} - {REMEMBERED};
         CREATE OR REPLACE TABLE {OWN}.changes AS
           SELECT {columns}, false AS \"__delete\", ''::VARCHAR AS \"__sequence\", 0::BIGINT AS \"__nth\"
           FROM {table} LIMIT 0;"
    ))?;
    let mut nth = 0;
    let batches =
        changes.map(|changes| with_order(changes, schema, &mut nth)).collect::<Result<Vec<_>, _>>()?;
    engine::append(connection, OWN, "changes", batches)?;
    connection.execute_batch(&format!(
        "CREATE OR REPLACE TABLE {OWN}.winners AS
           SELECT c.* FROM (
             SELECT * FROM {OWN}.changes
             QUALIFY row_number() OVER (PARTITION BY {key_list} ORDER BY \"__sequence\" DESC, \"__nth\" DESC) = 1
           ) c LEFT JOIN {known} k ON {join}
           WHERE k.\"__sequence\" IS NULL OR c.\"__sequence\" >= k.\"__sequence\";
         DELETE FROM {table} t USING {OWN}.winners w WHERE {in_table};
         INSERT INTO {table} ({columns}) SELECT {columns} FROM {OWN}.winners WHERE NOT \"__delete\";
         DELETE FROM {known} k USING {OWN}.winners w WHERE {in_known};
         INSERT INTO {known} SELECT {key_list}, \"__sequence\", CASE WHEN \"__delete\" THEN {now} END FROM {OWN}.winners;
         DROP TABLE {OWN}.winners; DROP TABLE {OWN}.changes;",
        join = same("c", "k"),
        in_table = same("t", "w"),
        in_known = same("k", "w"),
    ))?;
    Ok(())
}

fn with_order(changes: &Changes, schema: &Schema, nth: &mut i64) -> Result<RecordBatch, Failure> {
    let rows = align_batch(&changes.rows, schema)?;
    let count = rows.num_rows() as i64;
    let deletes: BooleanArray = changes.kinds.iter().map(|kind| Some(*kind == Kind::Delete)).collect();
    let order = Int64Array::from_iter_values(*nth..*nth + count);
    *nth += count;
    let sequences = StringArray::from_iter_values(&changes.sequences);
    let mut arrays: Vec<ArrayRef> = rows.columns().to_vec();
    arrays.extend([Arc::new(deletes) as ArrayRef, Arc::new(sequences), Arc::new(order)]);
    let own = [("__delete", DataType::Boolean), ("__sequence", DataType::Utf8), ("__nth", DataType::Int64)];
    let fields = schema::fields(schema).iter().cloned().collect::<Vec<_>>();
    let own = own.into_iter().map(|(name, ty)| Arc::new(Field::new(name, ty, true)));
    let fields: Vec<_> = fields.into_iter().chain(own).collect();
    Ok(RecordBatch::try_new(Arc::new(ArrowSchema::new(fields)), arrays)?)
}
