//! How rows get into DuckDB: a table function hands them over, and `INSERT … SELECT` reads it.
//!
//! DuckDB's appender collects rows before it inserts them, which copies them once more.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duckdb::Connection;
use duckdb::core::{DataChunkHandle, LogicalTypeHandle, LogicalTypeId};
use duckdb::vtab::{BindInfo, InitInfo, TableFunctionInfo, VTab};
use millstream_core::{Field, Result};

use crate::batch::Chunk;
use crate::column_data::ColumnData;
use crate::column_type::logical_type;
use crate::error::Explain;
use crate::vectors;

/// Chunks of rows of one table.
pub(crate) struct Offer {
    fields: Arc<[Field]>,
    chunks: Vec<Chunk>,
}

/// Offers that a statement is about to read, by number.
static OFFERS: Mutex<Option<HashMap<i64, Arc<Offer>>>> = Mutex::new(None);

static NEXT: AtomicI64 = AtomicI64::new(1);

const FUNCTION: &str = "millstream_rows";

fn offers() -> MutexGuard<'static, Option<HashMap<i64, Arc<Offer>>>> {
    // A panic elsewhere leaves the map whole.
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the table function known to a DuckDB instance.
pub(crate) fn register(connection: &Connection) -> Result<()> {
    connection.register_table_function::<Handover>(FUNCTION).explain(|| format!("registering {FUNCTION}"))
}

/// Rows that a statement can read while this lives.
pub(crate) struct Offered(i64);

impl Offered {
    /// Offers chunks whose columns are of the fields' types.
    pub(crate) fn new(fields: Arc<[Field]>, mut chunks: Vec<Chunk>) -> Self {
        // To DuckDB an empty chunk is the end.
        chunks.retain(|chunk| chunk.rows() > 0);
        let is_of = |(column, field): (&ColumnData, &Field)| column.is_of(&field.ty);
        assert!(
            chunks.iter().all(|chunk| chunk.columns.iter().zip(&*fields).all(is_of)),
            "invariant: a chunk's columns are made for the fields' types"
        );
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        offers().get_or_insert_default().insert(number, Arc::new(Offer { fields, chunks }));
        Self(number)
    }

    /// The chunks, once no statement reads them; none if one still does.
    pub(crate) fn take_back(self) -> Vec<Chunk> {
        let offer = offers().as_mut().and_then(|offers| offers.remove(&self.0));
        offer.and_then(Arc::into_inner).map_or(Vec::new(), |offer| offer.chunks)
    }

    /// What a statement says after `FROM` to read them.
    pub(crate) fn sql(&self) -> String {
        format!("{FUNCTION}({})", self.0)
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if let Some(offers) = &mut *offers() {
            offers.remove(&self.0);
        }
    }
}

struct Handover;

impl VTab for Handover {
    type InitData = AtomicUsize;
    type BindData = Arc<Offer>;

    fn bind(bind: &BindInfo) -> std::result::Result<Self::BindData, Box<dyn StdError>> {
        let number = bind.get_parameter(0).to_int64();
        let offer = offers().as_ref().and_then(|offers| offers.get(&number).cloned());
        let offer = offer.ok_or("the pipeline hands over no such rows")?;
        for (i, field) in offer.fields.iter().enumerate() {
            bind.add_result_column(&format!("c{i}"), logical_type(&field.ty));
        }
        let rows: usize = offer.chunks.iter().map(Chunk::rows).sum();
        bind.set_cardinality(rows as u64, true);
        Ok(offer)
    }

    fn init(_: &InitInfo) -> std::result::Result<Self::InitData, Box<dyn StdError>> {
        Ok(AtomicUsize::new(0))
    }

    #[allow(unsafe_code)]
    fn func(
        function: &TableFunctionInfo<Self>,
        output: &mut DataChunkHandle,
    ) -> std::result::Result<(), Box<dyn StdError>> {
        let next = function.get_init_data().fetch_add(1, Ordering::Relaxed);
        match function.get_bind_data().chunks.get(next) {
            // SAFETY: `bind` made the output's types of those of the fields, and `Offered::new` saw that the columns are
            // made for these. The plan of the query keeps the offer, which nobody can change.
            Some(chunk) => unsafe {
                vectors::fill(output, &chunk.columns, chunk.all_rows(), chunk.kept.as_deref())
            },
            None => output.set_len(0),
        }
        Ok(())
    }

    fn parameters() -> Option<Vec<LogicalTypeHandle>> {
        Some(vec![LogicalTypeHandle::from(LogicalTypeId::Bigint)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::{RowBuilder, Type, Value};

    const LONG: &str = "longer than an entry of a vector holds: Łódź";

    fn fields() -> Arc<[Field]> {
        let field = |name: &str, ty| Field { name: name.into(), ty };
        let decimal = |precision| Type::Decimal { precision, scale: 2 };
        let inner = Type::Struct(Box::new([field("x", Type::Int64), field("y", Type::Text)]));
        let types = [
            Type::Bool,
            Type::Int64,
            Type::Float64,
            decimal(4),
            decimal(9),
            decimal(18),
            decimal(38),
            Type::Text,
            Type::Json,
            Type::Bytes,
            Type::Date,
            Type::Time,
            Type::DateTime,
            Type::Timestamp,
            Type::List(Box::new(Type::Text)),
            inner.clone(),
            Type::List(Box::new(inner)),
        ];
        types.into_iter().enumerate().map(|(i, ty)| field(&format!("v{i}"), ty)).collect()
    }

    /// A row of values that differ by `n`; each third value is NULL, at another place in each row.
    fn push(columns: &mut [ColumnData], fields: &[Field], n: i64) {
        let of = |values: &[Value<'_>]| {
            let mut row = RowBuilder::new();
            values.iter().for_each(|value| row.push(*value));
            row.finish()
        };
        let (text, decimal) = (format!("{LONG} {n}"), Value::Decimal { unscaled: n, scale: 2 });
        let texts = of(&[Value::Text("a"), Value::Null, Value::Text(&text)][..n as usize % 4]);
        let object = of(&[Value::Int(n), Value::Text(&text)]);
        let objects = of(&[Value::Struct(&object), Value::Null]);
        let json = format!("{{\"n\":{n}}}");
        let values = [
            Value::Bool(n % 2 == 0),
            Value::Int(-n),
            Value::Float(n as f64 / 4.0),
            decimal,
            decimal,
            decimal,
            decimal,
            Value::Text(if n % 2 == 0 { &text } else { "twelve bytes" }),
            Value::Json(&json),
            Value::Bytes(&[0, 255]),
            Value::Date(n as i32),
            Value::Time(n),
            Value::DateTime(n),
            Value::Timestamp(n),
            Value::List(&texts),
            Value::Struct(&object),
            Value::List(&objects),
        ];
        for (i, ((column, field), value)) in columns.iter_mut().zip(fields).zip(values).enumerate() {
            if (i as i64 + n) % 3 == 0 {
                column.push_null()
            } else {
                column.push(value, &field.ty, &field.ty)
            }
        }
    }

    fn columns(fields: &[Field], rows: std::ops::Range<i64>) -> Vec<ColumnData> {
        let mut columns: Vec<_> = fields.iter().map(|f| ColumnData::new(&f.ty)).collect();
        rows.for_each(|n| push(&mut columns, fields, n));
        columns
    }

    fn read(offered: &Offered) -> Vec<String> {
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        connection.execute_batch("SET TimeZone = 'UTC'").unwrap_or_default();
        let sql = format!("SELECT r::VARCHAR FROM (FROM {}) AS r", offered.sql());
        let mut statement = connection.prepare(&sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn values_of_every_type_arrive_whole() {
        let fields = fields();
        let row = |n| {
            let chunk = Chunk { columns: columns(&fields, n..n + 1), kept: None };
            read(&Offered::new(fields.clone(), vec![chunk]))
        };
        let text = format!("'{LONG} 4'");
        let seen = row(4).concat();
        for part in ["true", "-4", "0.04", &text, "1970-01-05", "00:00:00.000004"] {
            assert!(seen.contains(part), "{part} is not in {seen}");
        }
        // Many rows are as each alone.
        let chunk = Chunk { columns: columns(&fields, 0..2048), kept: None };
        let all = read(&Offered::new(fields.clone(), vec![chunk]));
        assert_eq!(all.len(), 2048);
        for n in [0, 1, 2, 63, 64, 65, 2047] {
            assert_eq!(all[n as usize..][..1], row(n));
        }
    }

    /// A chunk of which no row was left ended the query: to DuckDB an empty chunk is the last one.
    #[test]
    fn rows_that_are_left_out_end_nothing() {
        let fields = fields();
        let all = read(&Offered::new(
            fields.clone(),
            vec![Chunk { columns: columns(&fields, 0..100), kept: None }],
        ));
        let chunk = |kept| Chunk { columns: columns(&fields, 0..100), kept: Some(kept) };
        let some =
            read(&Offered::new(fields.clone(), vec![chunk(vec![]), chunk(vec![3, 64, 99]), chunk(vec![0])]));
        assert_eq!(some, [3, 64, 99, 0].map(|i| all[i].clone()));
    }

    /// Rows that are taken back leave nothing behind, and neither does what the memory held before.
    #[test]
    fn rows_are_taken_back() {
        let fields = fields();
        let chunk = |columns| Offered::new(fields.clone(), vec![Chunk { columns, kept: None }]);
        let expected = read(&chunk(columns(&fields, 10..80)));
        let mut spare = columns(&fields, 0..200).into_iter();
        let mut again = columns(&fields, 0..5);
        let _ = again.iter_mut().map(|column| column.take_for(spare.next())).collect::<Vec<_>>();
        for n in 10..80 {
            push(&mut again, &fields, n + 1000);
            again.iter_mut().for_each(|column| column.truncate(n as usize - 10));
            push(&mut again, &fields, n);
        }
        assert_eq!(read(&chunk(again)), expected);
    }
}
