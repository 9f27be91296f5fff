//! Files on their way to Cloud Storage, and what is known of those that are there.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use millstream_core::{Error, Result};

use super::gcs::{Gcs, PART_UNIT, Upload};
use super::jsonl::JsonFile;
use super::parquet::ParquetFile;
use crate::column_type::ColumnType;
use crate::config::LoadOptions;
use crate::field::Field;
use crate::job::LoadFormat;
use crate::resource::DatasetId;
use crate::rows::Rows;

/// Bytes are sent in multiples of this while more of the file is to come. Each open file keeps no more, and there may be one for each table
/// and shard; a request carries all that a row group gave.
const PART_BYTES: usize = 4 * PART_UNIT;

/// Files that are deleted at a time.
const DELETES_TOGETHER: usize = 16;

/// What the files of a load job have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    /// The table's name.
    pub(crate) table: String,
    /// Whether they are JSON lines; else Parquet.
    pub(crate) is_json: bool,
    /// Their columns, as the JSON of a `TableSchema`.
    pub(crate) columns: String,
}

impl Kind {
    pub(super) fn new(table: &str, fields: &[Field]) -> Self {
        let fields: Vec<_> = fields.iter().map(bare).collect();
        Self {
            table: table.to_owned(),
            is_json: fields.iter().any(has_json),
            columns: Field::schema_to_json(&fields).to_string(),
        }
    }

    pub(super) fn format(&self) -> LoadFormat {
        if self.is_json { LoadFormat::Json } else { LoadFormat::Parquet }
    }
}

/// Without what people read: a load needs none of it.
fn bare(field: &Field) -> Field {
    let fields = field.fields.iter().map(bare).collect();
    Field { fields, ..Field::new(field.name.clone(), field.ty.clone()).with_mode(field.mode) }
}

/// BigQuery does not load JSON columns from Parquet.
fn has_json(field: &Field) -> bool {
    field.ty == ColumnType::Json || field.fields.iter().any(has_json)
}

/// A file in the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadFile {
    pub(crate) kind: Arc<Kind>,
    /// The epoch of its rows, and their time of ingestion, which no other try at that epoch has.
    pub(crate) epoch: u64,
    pub(crate) ingested_at_us: i64,
    /// Its number among the table's of the epoch.
    pub(crate) number: u32,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Where a sink's files are.
#[derive(Debug, Clone)]
pub(crate) struct Yard {
    pub(super) gcs: Gcs,
    pub(super) bucket: String,
    /// What the names of its files begin with.
    pub(super) prefix: String,
}

impl Yard {
    /// Names hold the dataset, too, as pipelines of one name may write into several, and each deletes files that it does not know.
    pub(crate) fn new(
        gcs: Gcs,
        options: &LoadOptions,
        (pipeline, sink): (&str, &str),
        dataset: &DatasetId,
    ) -> Self {
        let prefix = match options.prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let of = [pipeline, sink, &dataset.project, &dataset.dataset].map(plain).join("/");
        let prefix = format!("{prefix}{of}/");
        Self { gcs, bucket: options.bucket.clone(), prefix }
    }

    /// A file's name in the bucket.
    pub(super) fn object(&self, file: &LoadFile) -> String {
        let LoadFile { kind, epoch, ingested_at_us, number, .. } = file;
        let ending = if kind.is_json { "jsonl.gz" } else { "parquet" };
        format!("{}{epoch:012}-{ingested_at_us:x}/{}/{number:05}.{ending}", self.prefix, plain(&kind.table))
    }

    /// Deletes all files of the sink; how many there were.
    pub(super) async fn clear(&self) -> Result<usize> {
        let objects = self.gcs.list(&self.bucket, &self.prefix).await?;
        let count = objects.len();
        self.delete(objects).await?;
        Ok(count)
    }

    /// Deletes objects, where they are there.
    pub(super) async fn delete(&self, objects: Vec<String>) -> Result<()> {
        let delete = |object: String| async move { self.gcs.delete(&self.bucket, &object).await };
        let mut work = Vec::new();
        for object in objects {
            work.push(delete(object));
        }
        stream::iter(work).buffer_unordered(DELETES_TOGETHER).try_collect().await
    }

    /// Where all files of the sink are.
    pub(crate) fn folder(&self) -> String {
        format!("gs://{}/{}", self.bucket, self.prefix)
    }

    pub(super) fn uri(&self, file: &LoadFile) -> String {
        format!("gs://{}/{}", self.bucket, self.object(file))
    }
}

/// A name of letters, digits, `_` and `-`, which means nothing else in a URI of a load job; what is none of these by its bytes.
fn plain(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'-' => out.push(byte.into()),
            _ => drop(write!(out, "={byte:02X}")),
        }
    }
    out
}

enum Writer {
    Parquet(Box<ParquetFile>),
    Json(Box<JsonFile>),
}

/// A file that is being written.
pub(super) struct OpenFile {
    yard: Arc<Yard>,
    object: String,
    file: LoadFile,
    writer: Writer,
    /// Bytes that are not sent yet.
    ready: Vec<u8>,
    upload: Option<Upload>,
}

impl OpenFile {
    /// A file for rows of these columns. Nothing is sent yet.
    pub(super) fn new(yard: &Arc<Yard>, file: LoadFile, fields: &[Field]) -> Result<Self> {
        let writer = if file.kind.is_json {
            Writer::Json(Box::new(JsonFile::new(fields)))
        } else {
            Writer::Parquet(Box::new(ParquetFile::new(fields).map_err(|e| unwritten(&file, e))?))
        };
        let object = yard.object(&file);
        Ok(Self { yard: yard.clone(), object, file, writer, ready: Vec::new(), upload: None })
    }

    /// Adds rows; answers the file, and the places of rows that no such file holds.
    pub(super) async fn add(mut self, rows: Rows) -> Result<(Self, Vec<usize>)> {
        let work = tokio::task::spawn_blocking(move || {
            let (refused, bytes) = match &mut self.writer {
                Writer::Parquet(file) => (file.add(&rows).map(|()| Vec::new()).map_err(boxed), file.take()),
                Writer::Json(file) => (file.add(&rows).map_err(boxed), file.take()),
            };
            let refused = refused.map_err(|e| unwritten(&self.file, e))?;
            self.file.rows += (rows.len() - refused.len()) as u64;
            self.take(bytes);
            Ok::<_, Error>((self, refused))
        });
        let (mut file, refused) = work.await.map_err(broken_off)??;
        let parts = file.ready.len() / PART_BYTES * PART_BYTES;
        if parts > 0 {
            let rest = file.ready.split_off(parts);
            let part = Bytes::from(std::mem::replace(&mut file.ready, rest));
            file.send(part).await?;
        }
        Ok((file, refused))
    }

    fn take(&mut self, bytes: Vec<u8>) {
        self.file.bytes += bytes.len() as u64;
        if self.ready.is_empty() {
            self.ready = bytes;
        } else {
            self.ready.extend(bytes);
        }
    }

    async fn send(&mut self, part: Bytes) -> Result<()> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(self.yard.gcs.begin(&self.yard.bucket, &self.object).await?),
        };
        upload.send(&part, false).await
    }

    /// Ends the file; it is in the bucket then, whole. `None` if it has no rows.
    pub(super) async fn finish(mut self) -> Result<Option<LoadFile>> {
        if self.file.rows == 0 && self.upload.is_none() {
            return Ok(None);
        }
        let bytes = match &mut self.writer {
            Writer::Parquet(file) => file.finish().map_err(boxed).map(|()| file.take()),
            Writer::Json(file) => file.finish().map_err(boxed).map(|()| file.take()),
        };
        let bytes = bytes.map_err(|e| unwritten(&self.file, e))?;
        self.take(bytes);
        let ready = Bytes::from(std::mem::take(&mut self.ready));
        match &mut self.upload {
            Some(upload) => upload.send(&ready, true).await?,
            None => self.yard.gcs.put(&self.yard.bucket, &self.object, ready).await?,
        }
        Ok(Some(self.file))
    }
}

fn boxed(error: impl std::error::Error + Send + Sync + 'static) -> Box<dyn std::error::Error + Send + Sync> {
    Box::new(error)
}

fn unwritten(file: &LoadFile, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let table = &file.kind.table;
    Error::fatal(format!("rows of {table} cannot be put into a file: please report this as a bug"))
        .with_source(error)
}

/// The task that writes a file has ended early.
pub(super) fn broken_off(error: tokio::task::JoinError) -> Error {
    Error::transient("the writing of a file was broken off").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Connection;

    #[test]
    fn names_are_the_same_each_time_and_differ_between_tries() {
        let connection = Connection { gcs: Some("http://localhost:1".to_owned()), ..Connection::default() };
        let options =
            LoadOptions { bucket: "b".to_owned(), prefix: "/in/".to_owned(), ..LoadOptions::default() };
        let yard = Yard::new(
            Gcs::new(&connection).unwrap(),
            &options,
            ("shop", "big query"),
            &DatasetId::new("p", "d"),
        );
        let kind = Kind::new("größe*", &[Field::new("a", ColumnType::Int64)]);
        let mut file =
            LoadFile { kind: kind.into(), epoch: 7, ingested_at_us: 255, number: 1, rows: 0, bytes: 0 };
        assert_eq!(
            yard.uri(&file),
            "gs://b/in/shop/big=20query/p/d/000000000007-ff/gr=C3=B6=C3=9Fe=2A/00001.parquet"
        );
        let first = yard.object(&file);
        file.ingested_at_us += 1;
        assert_ne!(yard.object(&file), first);
    }

    #[test]
    fn tables_with_json_take_another_format() {
        let json =
            Field { fields: vec![Field::new("j", ColumnType::Json)], ..Field::new("s", ColumnType::Record) };
        assert!(Kind::new("t", &[json]).is_json);
        let plain = Field::new("a", ColumnType::String).with_description("long");
        let kind = Kind::new("t", &[plain]);
        assert!(!kind.is_json);
        assert_eq!(kind.columns, r#"{"fields":[{"name":"a","type":"STRING","mode":"NULLABLE"}]}"#);
    }
}
