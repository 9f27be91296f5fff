//! BigQuery: types, rows as the Storage Write API takes them, appending, and the REST API for everything else.

mod append;
mod backoff;
mod civil;
mod column_type;
mod connection;
mod dataset;
mod descriptor;
mod encode;
mod failure;
mod field;
mod job;
pub mod names;
mod numeric;
mod resource;
mod rest;
mod rows;
pub mod sql;
mod stream;
mod table_resource;
mod unfit;
mod write_error;

pub use append::{Acked, AppendOptions, Appender, Batch, Handle, REQUEST_BYTES_MAX, RowError, UpdatedSchema};
pub use column_type::{BIGNUMERIC_DIGITS, ColumnType, NUMERIC_DIGITS};
pub use connection::Connection;
pub use dataset::Dataset;
pub use descriptor::{CHANGE_SEQUENCE_NUMBER, CHANGE_TYPE, Descriptor};
pub use encode::{Change, Mark, RowEncoder, RowWriter};
pub use field::{Field, Mode};
pub use job::{Job, JobError, JobId, Load, LoadFormat, LoadMode, Query, ResultPage, ResultValue};
pub use resource::{DatasetId, TableId};
pub use rest::Rest;
pub use rows::Rows;
pub use stream::{Storage, StreamKind, WriteStream};
pub use table_resource::{PartitionUnit, Partitioning, Table, TablePatch};
pub use unfit::Unfit;
pub use write_error::{WriteError, WriteErrorKind};
