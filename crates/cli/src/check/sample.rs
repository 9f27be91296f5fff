//! The first records of a source, decoded, and what they tell about tables.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use millstream_core::decoder::ControlKind;
use millstream_core::{Body, Budget, Decoded, Event, Key, Next, Op, RecordBatch, Result, Type, Value};
use serde::Serialize;

use crate::plan::Plan;
use crate::registry;

const BATCH_BYTES_MAX: usize = 8 << 20;

/// What the first records showed.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Sample {
    pub(crate) records: u64,
    pub(crate) events: u64,
    pub(crate) control: BTreeMap<&'static str, u64>,
    /// Dead letters by cause code: how many, and where the first was.
    pub(crate) dead: BTreeMap<&'static str, Refused>,
    /// By `schema.table`.
    pub(crate) tables: BTreeMap<String, TableSample>,
    /// Values that policies replaced, as `code table.column`.
    pub(crate) notices: BTreeMap<String, u64>,
    /// Some value came with its schema.
    pub(crate) embedded_schemas: bool,
    /// Semantic types and facts of embedded schemas that lose something.
    #[serde(skip)]
    pub(crate) marks: BTreeSet<&'static str>,
    /// Whether the end of the source was reached.
    pub(crate) complete: bool,
}

/// Dead letters of one cause.
#[derive(Debug, Serialize)]
pub(crate) struct Refused {
    pub(crate) records: u64,
    pub(crate) first: String,
    pub(crate) text: String,
}

/// What the sample showed of one table.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TableSample {
    pub(crate) events: u64,
    /// Events by op.
    pub(crate) ops: BTreeMap<&'static str, u64>,
    /// Key columns; empty without key.
    pub(crate) key: Vec<String>,
    /// Events without key, truncates aside.
    pub(crate) keyless: u64,
    pub(crate) columns: BTreeMap<String, ColumnSample>,
    /// Updates that came with, and without, their row before.
    pub(crate) updates_with_before: u64,
    pub(crate) updates_without_before: u64,
    /// Deletes under a key of zeros and empty texts that no other event has.
    pub(crate) invented_keys: u64,
    /// Keys of rows, and of deletes that may be invented.
    #[serde(skip)]
    seen: HashSet<Key>,
    #[serde(skip)]
    doubtful: Vec<Key>,
    /// The source is MySQL or MariaDB.
    #[serde(skip)]
    pub(crate) mysql: bool,
    #[serde(skip)]
    pub(crate) names: [String; 3],
}

/// What the sample showed of one column.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ColumnSample {
    #[serde(rename = "type")]
    pub(crate) ty: String,
    /// The type was inferred from values.
    pub(crate) guessed: bool,
    /// How often it came unchanged, without its value.
    pub(crate) unchanged: u64,
    #[serde(skip)]
    pub(crate) decimal: bool,
}

impl Sample {
    /// Decodes up to `records` records of the plan's source.
    pub(crate) async fn take(plan: &Plan, records: usize) -> Result<Self> {
        let mut options = registry::decoder_options(plan).await?;
        options.keep_before = true;
        let mut decoder = registry::decoder(plan.decode.format, Arc::new(options))?;
        let mut source = registry::source(&plan.source)?;
        source.open(&[]).await?;
        let mut sample = Self::default();
        let mut decoded = Vec::new();
        while (sample.records as usize) < records {
            let budget = Budget { records: records - sample.records as usize, bytes: BATCH_BYTES_MAX };
            let mut batch = match source.next(budget).await? {
                Next::Batch(batch) => batch,
                Next::Idle | Next::Held | Next::Waiting => break,
                Next::End => {
                    sample.complete = true;
                    break;
                }
            };
            batch.slots.truncate(budget.records);
            let mut next = 0;
            while let Some(record) = batch.record(next) {
                sample.records += 1;
                if let Body::Value(value) = record.body() {
                    sample.look_at(value);
                }
                decoded.clear();
                decoder.decode(&record, &mut decoded);
                sample.count(&decoded, &batch, record.offset());
                if let [Decoded::Several(parts)] = &decoded[..] {
                    batch.split(next, parts);
                }
                next += 1;
            }
        }
        for table in sample.tables.values_mut() {
            table.invented_keys =
                table.doubtful.iter().filter(|key| !table.seen.contains(key)).count() as u64;
        }
        for notice in decoder.notices() {
            let name = format!("{} {}.{}", notice.code, notice.table, notice.column);
            *sample.notices.entry(name).or_default() += notice.count;
        }
        for notice in source.notices() {
            *sample.notices.entry(notice.code.to_owned()).or_default() += 1;
        }
        Ok(sample)
    }

    /// Facts of the text that the events do not tell.
    fn look_at(&mut self, value: &[u8]) {
        let has = |text: &str| value.windows(text.len()).any(|w| w == text.as_bytes());
        if !value.starts_with(b"{\"schema\":{") {
            return;
        }
        self.embedded_schemas = true;
        for mark in ["NanoTimestamp", "NanoTime", "org.apache.kafka.connect.data.Timestamp", "\"default\":"] {
            if !self.marks.contains(mark) && has(mark) {
                self.marks.insert(mark);
            }
        }
    }

    fn count(&mut self, decoded: &[Decoded], batch: &RecordBatch, offset: u64) {
        for item in decoded {
            match item {
                Decoded::Event(event) => self.event(event),
                Decoded::Several(_) => *self.control.entry(ControlKind::Array.name()).or_default() += 1,
                Decoded::Control(control) => *self.control.entry(control.kind.name()).or_default() += 1,
                Decoded::Dead(refusal) => {
                    let refused = self.dead.entry(refusal.cause.code).or_insert_with(|| Refused {
                        records: 0,
                        // Behind the path stands what tells the file from others that had it.
                        first: format!(
                            "{} at byte {offset}",
                            batch.partition.0.split('#').next().unwrap_or_default()
                        ),
                        text: refusal.cause.text.clone(),
                    });
                    refused.records += 1;
                }
            }
        }
    }

    fn event(&mut self, event: &Event) {
        self.events += 1;
        let name = &event.schema.table;
        let table = self.tables.entry(name.qualified()).or_default();
        table.names = [name.db.to_string(), name.schema.to_string(), name.table.to_string()];
        table.events += 1;
        *table.ops.entry(event.op.code()).or_default() += 1;
        table.mysql = event.order.sections().len() == 4;
        if event.op == Op::Truncate {
            return;
        }
        table.keyless += u64::from(event.key.is_none());
        if event.key.is_some() {
            table.key = event.schema.key_names().map(str::to_owned).collect();
        }
        match (&event.key, event.op) {
            (Some(key), Op::Delete) if is_blank(key) => table.doubtful.push(key.clone()),
            (Some(key), _) if event.op != Op::Delete => drop(table.seen.insert(key.clone())),
            _ => {}
        }
        if event.op == Op::Update {
            match event.before {
                Some(_) => table.updates_with_before += 1,
                None => table.updates_without_before += 1,
            }
        }
        for (column, value) in event.schema.columns.iter().zip(event.row.iter()) {
            let seen = table.columns.entry(column.name.to_string()).or_default();
            seen.unchanged += u64::from(value == Value::Unchanged);
            if column.ty != Type::Null || seen.ty.is_empty() {
                seen.ty = type_name(&column.ty);
                seen.guessed = column.guessed;
                seen.decimal = matches!(column.ty, Type::Decimal { .. } | Type::Numeric);
            }
        }
    }
}

/// Whether a key is made of what Debezium invents: zeros and empty texts.
fn is_blank(key: &Key) -> bool {
    let blank = |value: Value<'_>| matches!(value, Value::Int(0) | Value::Text("") | Value::Bool(false));
    key.values().is_some_and(|values| !values.is_empty() && values.iter().all(blank))
}

/// A type's name for people.
fn type_name(ty: &Type) -> String {
    match ty {
        Type::Null => "unknown".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Decimal { precision, scale } => format!("decimal({precision},{scale})"),
        Type::Numeric => "numeric".to_owned(),
        Type::Float64 => "float64".to_owned(),
        Type::Text => "text".to_owned(),
        Type::Bytes => "bytes".to_owned(),
        Type::Json => "json".to_owned(),
        Type::Date => "date".to_owned(),
        Type::Time => "time".to_owned(),
        Type::DateTime => "datetime".to_owned(),
        Type::Timestamp => "timestamp".to_owned(),
        Type::List(element) => format!("list of {}", type_name(element)),
        Type::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|f| format!("{} {}", f.name, type_name(&f.ty))).collect();
            format!("struct({})", fields.join(", "))
        }
    }
}
