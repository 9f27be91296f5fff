//! Load jobs: files of Cloud Storage into a table, all or nothing.

mod lines;
mod parquet;

use duckdb::Connection;
use duckdb::arrow::array::RecordBatch;
use serde_json::{Map, Value, json};

use crate::catalog;
use crate::engine;
use crate::failure::{Failure, Reason};
use crate::landing::align_batch;
use crate::schema::{self, Column, Mode, Type};
use crate::table::{Kind, Shared, TableId};
use crate::warehouse::Warehouse;

/// Files of a job.
const FILES_MAX: usize = 10_000;

/// What a load is to do.
pub(crate) struct Load {
    pub(crate) table: TableId,
    uris: Vec<String>,
    format: Format,
    write: String,
    may_create: bool,
    columns: Option<Vec<Column>>,
    /// Whether a Parquet list is an array.
    lists: bool,
    flexible_names: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Parquet,
    Lines,
}

/// What a load did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Loaded {
    files: usize,
    file_bytes: usize,
    rows: usize,
    bytes: usize,
}

impl Load {
    /// Reads a job's configuration.
    pub(crate) fn read(config: &Value, table: Option<TableId>) -> Result<Self, Failure> {
        let text = |name: &str| config.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let table =
            table.ok_or_else(|| Failure::invalid("Required parameter is missing: destinationTable"))?;
        let uris = config.get("sourceUris").and_then(Value::as_array).into_iter().flatten();
        let uris: Vec<_> = uris.filter_map(|uri| uri.as_str().map(str::to_owned)).collect();
        if uris.is_empty() || uris.len() > FILES_MAX {
            return Err(Failure::invalid(format!("A load job takes 1 to {FILES_MAX} source URIs")));
        }
        let format = match text("sourceFormat").unwrap_or("CSV") {
            "PARQUET" => Format::Parquet,
            "NEWLINE_DELIMITED_JSON" => Format::Lines,
            other => {
                let message = format!("The emulator loads PARQUET and NEWLINE_DELIMITED_JSON, not {other}");
                return Err(Failure::new(Reason::NotImplemented, message));
            }
        };
        let changes = config.get("schemaUpdateOptions").and_then(Value::as_array);
        if changes.is_some_and(|list| !list.is_empty()) {
            return Err(Failure::new(
                Reason::NotImplemented,
                "The emulator does not change schemas by loads",
            ));
        }
        let names = text("columnNameCharacterMap");
        if names.is_some() && format == Format::Lines {
            return Err(Failure::invalid("columnNameCharacterMap is not supported for this format"));
        }
        Ok(Self {
            table,
            uris,
            format,
            write: text("writeDisposition").unwrap_or("WRITE_APPEND").to_owned(),
            may_create: text("createDisposition") != Some("CREATE_NEVER"),
            columns: config.get("schema").map(schema::from_json).transpose()?,
            lists: config.pointer("/parquetOptions/enableListInference") == Some(&Value::Bool(true)),
            flexible_names: names == Some("V2"),
        })
    }

    /// Runs it, and `note`s it in the same transaction.
    pub(crate) fn run(
        &self,
        warehouse: &Warehouse,
        connection: &Connection,
        note: impl FnOnce(&Loaded) -> Result<(), Failure>,
    ) -> Result<Loaded, Failure> {
        let location = warehouse.location(&self.table.project, &self.table.dataset);
        let location = location
            .ok_or_else(|| Failure::not_found(format!("Not found: Dataset {}", self.table.dataset)))?;
        let mut files = Vec::new();
        for uri in &self.uris {
            let (objects, bucket) = warehouse.buckets.matching(uri)?;
            if !may_read(&bucket, &location) {
                return Err(Failure::invalid(format!(
                    "Cannot read and write in different locations: source: {bucket}, destination: {location}"
                )));
            }
            files.extend(objects.into_iter().map(|object| object.bytes));
        }
        if warehouse.dice().load_fails() {
            return Err(Failure::new(
                Reason::BackendError,
                "Error encountered during execution. Retrying may solve the problem.",
            ));
        }
        let present = match warehouse.table(&self.table) {
            Ok(table) => Some(table),
            Err(failure) if failure.reason == Reason::NotFound && self.may_create => None,
            Err(failure) => return Err(failure),
        };
        let of_table = present.as_ref().map(|table| table.lock().schema.to_vec());
        let columns = match (&self.columns, of_table) {
            (Some(given), Some(present)) if self.write != "WRITE_TRUNCATE" => {
                check_schema(&self.table, given, &present)?;
                given.clone()
            }
            (Some(given), _) => given.clone(),
            (None, Some(present)) => present,
            (None, None) => match (self.format, files.first()) {
                (Format::Parquet, Some(file)) => parquet::columns(file, self.lists)?,
                _ => return Err(Failure::invalid("Schema has no fields.")),
            },
        };
        let mut batches = Vec::new();
        for file in &files {
            batches.extend(match self.format {
                Format::Parquet => parquet::read(file, &columns, self.lists, self.flexible_names)?,
                Format::Lines => vec![lines::read(file, &columns)?],
            });
        }
        let loaded = Loaded {
            files: files.len(),
            file_bytes: files.iter().map(bytes::Bytes::len).sum(),
            rows: batches.iter().map(RecordBatch::num_rows).sum(),
            bytes: batches.iter().map(RecordBatch::get_array_memory_size).sum(),
        };
        engine::atomically(connection, || {
            let table = self.prepare(warehouse, connection, present, &columns)?;
            let all = table.lock().schema.clone();
            let batches = batches.iter().map(|batch| align_batch(batch, &all));
            let batches = batches.collect::<Result<Vec<_>, _>>()?;
            engine::append(connection, &table.id.schema(), &table.id.name(), batches)?;
            note(&loaded)
        })?;
        Ok(loaded)
    }

    /// The table as rows are to be added to it.
    fn prepare(
        &self,
        warehouse: &Warehouse,
        connection: &Connection,
        present: Option<Shared>,
        columns: &[Column],
    ) -> Result<Shared, Failure> {
        let Some(table) = present else {
            let columns = columns.to_vec();
            return catalog::create_table(
                warehouse,
                connection,
                &self.table,
                Kind::Table,
                columns,
                Map::new(),
            );
        };
        match self.write.as_str() {
            "WRITE_TRUNCATE" => {
                connection.execute_batch(&format!("DELETE FROM {}", table.id.quoted()))?;
            }
            "WRITE_EMPTY" => {
                let sql = format!("SELECT count(*) FROM {}", table.id.quoted());
                if connection.query_row(&sql, [], |row| row.get::<_, i64>(0))? > 0 {
                    return Err(Failure::duplicate(format!("Already Exists: Table {}", table.id)));
                }
            }
            _ => {}
        }
        Ok(table)
    }
}

impl Loaded {
    /// As a job's statistics show it.
    pub(crate) fn statistics(&self) -> Value {
        json!({
            "inputFiles": self.files.to_string(),
            "inputFileBytes": self.file_bytes.to_string(),
            "outputRows": self.rows.to_string(),
            "outputBytes": self.bytes.to_string(),
            "badRecords": "0",
        })
    }
}

/// Whether a dataset may be loaded from a bucket: from anywhere into US, else from the same region, or the multi-region around it.
fn may_read(bucket: &str, dataset: &str) -> bool {
    let around = |inner: &str, outer: &str| match outer {
        "EU" => inner.starts_with("EUROPE-"),
        "ASIA" => inner.starts_with("ASIA-"),
        _ => false,
    };
    let (bucket, dataset) = (bucket.to_uppercase(), dataset.to_uppercase());
    dataset == "US" || bucket == dataset || around(&bucket, &dataset) || around(&dataset, &bucket)
}

/// Refuses a schema that says something else than the table's; it may say less.
fn check_schema(table: &TableId, given: &[Column], present: &[Column]) -> Result<(), Failure> {
    let wrong =
        |what: String| Err(Failure::invalid(format!("Provided Schema does not match Table {table}. {what}")));
    for column in given {
        let name = &column.name;
        let Some((_, found)) = schema::find(present, name) else {
            return wrong(format!("Cannot add fields (field: {name})"));
        };
        if column.mode != found.mode {
            return wrong(format!(
                "Field {name} has changed mode from {:?} to {:?}",
                found.mode, column.mode
            ));
        }
        match (column.columns(), found.columns()) {
            (Some(given), Some(present)) => check_schema(table, given, present)?,
            _ if column.ty == found.ty => {}
            _ => {
                let (was, is) = (found.ty.rest_name(), column.ty.rest_name());
                return wrong(format!("Field {name} has changed type from {was} to {is}"));
            }
        }
    }
    match present.iter().find(|c| c.mode == Mode::Required && schema::find(given, &c.name).is_none()) {
        Some(missing) => wrong(format!("Required field {} is missing", missing.name)),
        None => Ok(()),
    }
}

/// What a file says of a column that has another type.
fn misfit(name: &str, found: impl std::fmt::Debug, wanted: &Type) -> Failure {
    let wanted = wanted.rest_name();
    Failure::invalid(format!(
        "Error while reading data, error message: column '{name}' of the file has type {found:?} which does not match the target type {wanted}"
    ))
}
