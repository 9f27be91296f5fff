//! Jobs: queries and loads, with ids that the caller chooses, so that a job whose answer was lost is found and not run again.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use millstream_core::{Error, Result};
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep};

use crate::backoff::random;
use crate::failure::{Call, is_passing, shown};
use crate::field::Field;
use crate::resource::{DatasetId, TableId};
use crate::rest::{Ask, Rest, segment};
use crate::table_resource::integer;

/// Between two looks at a running job.
const LOOK_FIRST: Duration = Duration::from_millis(50);
const LOOK_LAST: Duration = Duration::from_secs(2);
/// Characters of a job's id.
const ID_MAX: usize = 1024;

/// A job's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobId {
    /// The project that pays.
    pub project: String,
    /// Where it runs; needed to find it again outside of `US` and `EU`.
    pub location: Option<String>,
    /// Its id, unique in project and location.
    pub id: String,
}

impl JobId {
    /// A job of this id. Other characters than letters, digits, `_` and `-` become `-`.
    pub fn new(project: impl Into<String>, location: Option<String>, id: &str) -> Self {
        let fine = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' };
        Self { project: project.into(), location, id: id.chars().map(fine).take(ID_MAX).collect() }
    }

    /// A job of an id that no other has.
    pub fn random(project: impl Into<String>, location: Option<String>) -> Self {
        Self::new(project, location, &format!("millstream-{:016x}{:016x}", random(), random()))
    }

    fn path(&self) -> String {
        format!("{}/jobs/{}", segment(&self.project), segment(&self.id))
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        self.location.iter().map(|location| ("location", location.clone())).collect()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}.{}", self.project, self.location.as_deref().unwrap_or("-"), self.id)
    }
}

/// A query, in GoogleSQL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// The statement, or several.
    pub sql: String,
    /// Where tables without a dataset are looked for.
    pub dataset: Option<DatasetId>,
    /// Named parameters: name, type (`STRING`, `INT64`, …), value as text; `None` for NULL.
    pub parameters: Vec<(String, String, Option<String>)>,
    /// The job's labels.
    pub labels: BTreeMap<String, String>,
    /// It is looked at and not run: the job says what it is.
    pub dry_run: bool,
}

impl Query {
    /// A query without parameters.
    pub fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), ..Self::default() }
    }

    fn to_json(&self) -> Json {
        let mut query = json!({ "query": self.sql, "useLegacySql": false });
        if let Some(DatasetId { project, dataset }) = &self.dataset {
            query["defaultDataset"] = json!({ "projectId": project, "datasetId": dataset });
        }
        if !self.parameters.is_empty() {
            query["parameterMode"] = json!("NAMED");
            let parameter = |(name, ty, value): &(String, String, Option<String>)| json!({ "name": name, "parameterType": { "type": ty }, "parameterValue": { "value": value } });
            query["queryParameters"] = self.parameters.iter().map(parameter).collect();
        }
        let mut configuration = json!({ "query": query, "labels": self.labels });
        if self.dry_run {
            configuration["dryRun"] = json!(true);
        }
        configuration
    }
}

/// What files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadFormat {
    /// Parquet, its lists as arrays.
    Parquet,
    /// Avro, its logical types as BigQuery's.
    Avro,
    /// JSON lines.
    Json,
}

/// What becomes of rows that are in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadMode {
    /// They stay.
    #[default]
    Append,
    /// They are replaced.
    Truncate,
    /// There must be none.
    Empty,
}

/// A load of files in Cloud Storage.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// `gs://…`, at most 10,000.
    pub uris: Vec<String>,
    /// Where to; `table$20240229` for one partition.
    pub table: TableId,
    /// What the files are.
    pub format: LoadFormat,
    /// What becomes of the rows that are there.
    pub mode: LoadMode,
    /// The columns; those of the table, or of the files, if none are given.
    pub fields: Vec<Field>,
    /// New columns of the files become columns of the table.
    pub adds_columns: bool,
    /// The job's labels.
    pub labels: BTreeMap<String, String>,
}

impl Load {
    /// A load of no files yet into a table that is there.
    pub fn new(table: TableId, format: LoadFormat, mode: LoadMode) -> Self {
        let (uris, fields) = (Vec::new(), Vec::new());
        Self { uris, table, format, mode, fields, adds_columns: false, labels: BTreeMap::new() }
    }

    fn to_json(&self) -> Json {
        let TableId { project, dataset, table } = &self.table;
        let format = match self.format {
            LoadFormat::Parquet => "PARQUET",
            LoadFormat::Avro => "AVRO",
            LoadFormat::Json => "NEWLINE_DELIMITED_JSON",
        };
        let mode = match self.mode {
            LoadMode::Append => "WRITE_APPEND",
            LoadMode::Truncate => "WRITE_TRUNCATE",
            LoadMode::Empty => "WRITE_EMPTY",
        };
        let mut load = json!({
            "sourceUris": self.uris,
            "destinationTable": { "projectId": project, "datasetId": dataset, "tableId": table },
            "sourceFormat": format,
            "writeDisposition": mode,
            "createDisposition": "CREATE_NEVER",
        });
        match self.format {
            LoadFormat::Parquet => {
                load["parquetOptions"] = json!({ "enableListInference": true });
                if self.fields.iter().any(has_flexible_name) {
                    load["columnNameCharacterMap"] = json!("V2");
                }
            }
            LoadFormat::Avro => load["useAvroLogicalTypes"] = json!(true),
            LoadFormat::Json => {}
        }
        if !self.fields.is_empty() {
            load["schema"] = Field::schema_to_json(&self.fields);
        }
        if self.adds_columns {
            load["schemaUpdateOptions"] = json!(["ALLOW_FIELD_ADDITION", "ALLOW_FIELD_RELAXATION"]);
        }
        json!({ "load": load, "labels": self.labels })
    }
}

/// Whether a column's name has other characters than those that names have always had.
fn has_flexible_name(field: &Field) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_plain = field.name.chars().all(plain) && !field.name.starts_with(|c: char| c.is_ascii_digit());
    !is_plain || field.fields.iter().any(has_flexible_name)
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobError {
    /// BigQuery's reason, e.g. `invalidQuery`.
    pub reason: String,
    /// BigQuery's words. Those of a load may quote values of rows.
    pub message: String,
}

/// A job as it was last seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its name, with the location in which it runs.
    pub id: JobId,
    /// Whether it has ended, well or not.
    pub is_done: bool,
    /// Why it failed.
    pub error: Option<JobError>,
    /// Rows that a statement changed, or a load wrote.
    pub rows: Option<u64>,
    /// Bytes that a query was billed for, or that a load read.
    pub bytes: Option<u64>,
    /// The kind of a query's statement, e.g. `SELECT`; `SCRIPT` where there are several.
    pub statement: Option<String>,
}

impl Job {
    fn from_json(asked: &JobId, json: &Json) -> Self {
        let place = &json["jobReference"]["location"];
        let location = place.as_str().map(str::to_owned).or_else(|| asked.location.clone());
        let error = json["status"].get("errorResult").filter(|e| e.is_object()).map(|error| JobError {
            reason: error["reason"].as_str().unwrap_or_default().to_owned(),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
        });
        let statistics = &json["statistics"];
        Self {
            id: JobId { location, ..asked.clone() },
            is_done: json["status"]["state"] == "DONE",
            error,
            rows: integer(&statistics["query"]["numDmlAffectedRows"])
                .or_else(|| integer(&statistics["load"]["outputRows"])),
            bytes: integer(&statistics["query"]["totalBytesBilled"])
                .or_else(|| integer(&statistics["load"]["inputFileBytes"])),
            statement: statistics["query"]["statementType"].as_str().map(str::to_owned),
        }
    }

    /// The error of a job that failed, with BigQuery's words where `may_quote` says that they hold no values of rows.
    pub(crate) fn failed(&self, what: &str, may_quote: bool) -> Result<()> {
        let Some(JobError { reason, message }) = &self.error else { return Ok(()) };
        let text = match shown(message) {
            words if may_quote && !words.is_empty() => {
                format!("{what} failed: {reason} (BigQuery says: {words})")
            }
            _ => format!("{what} failed: {reason}; `bq show -j {}` tells more", self.id),
        };
        Err(if is_passing(reason) { Error::transient(text) } else { Error::fatal(text) })
    }
}

/// A value of a query's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultValue {
    /// NULL.
    Null,
    /// Any scalar, as the API writes it: TIMESTAMPs as microseconds since 1970, BYTES as base64.
    Text(String),
    /// An array.
    List(Vec<ResultValue>),
    /// A struct's fields in order.
    Struct(Vec<ResultValue>),
}

impl ResultValue {
    fn from_json(json: &Json, depth: u32) -> Self {
        if depth > 64 {
            return Self::Null;
        }
        match json {
            Json::Null => Self::Null,
            Json::String(text) => Self::Text(text.clone()),
            Json::Array(values) => {
                Self::List(values.iter().map(|v| Self::from_json(&v["v"], depth + 1)).collect())
            }
            Json::Object(row) => {
                let cells = row.get("f").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
                Self::Struct(cells.iter().map(|cell| Self::from_json(&cell["v"], depth + 1)).collect())
            }
            other => Self::Text(other.to_string()),
        }
    }

    /// The text of a scalar.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// Some rows of a query's result.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResultPage {
    /// The columns.
    pub fields: Vec<Field>,
    /// The rows.
    pub rows: Vec<Vec<ResultValue>>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<String>,
}

impl ResultPage {
    fn from_json(json: &Json) -> Option<Self> {
        let rows = json["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let row = |row: &Json| match ResultValue::from_json(row, 0) {
            ResultValue::Struct(values) => values,
            _ => Vec::new(),
        };
        let token = json["pageToken"].as_str().filter(|token| !token.is_empty());
        Some(Self {
            fields: json.get("schema").map_or(Some(Vec::new()), Field::schema_from_json)?,
            rows: rows.iter().map(row).collect(),
            next: token.map(str::to_owned),
        })
    }
}

impl Rest {
    /// Starts a query. If there is a job of this id already, that is the one, whatever its query was.
    ///
    /// # Errors
    /// If it cannot be started; syntax errors are the job's.
    pub async fn start_query(&self, id: &JobId, query: &Query) -> Result<Job> {
        self.start(id, "start the query", query.to_json()).await
    }

    /// Starts a load. If there is a job of this id already, that is the one: a load that failed needs another id.
    ///
    /// # Errors
    /// If it cannot be started.
    pub async fn start_load(&self, id: &JobId, load: &Load) -> Result<Job> {
        self.start(id, "start the load job", load.to_json()).await
    }

    async fn start(&self, id: &JobId, what: &'static str, configuration: Json) -> Result<Job> {
        let call = Call { what, resource: &id.to_string(), permission: "bigquery.jobs.create" };
        let mut reference = json!({ "projectId": id.project, "jobId": id.id });
        if let Some(location) = &id.location {
            reference["location"] = json!(location);
        }
        let body = json!({ "jobReference": reference, "configuration": configuration });
        match self.ask(&Ask::post(format!("{}/jobs", segment(&id.project)), body)).await {
            Ok(json) => Ok(Job::from_json(id, &json)),
            Err(failure) if failure.is_duplicate() => self.job(id).await?.ok_or_else(|| failure.error(&call)),
            Err(failure) => Err(failure.error(&call)),
        }
    }

    /// A job; `None` if there is none of this id in its location.
    ///
    /// # Errors
    /// If it cannot be looked up.
    pub async fn job(&self, id: &JobId) -> Result<Option<Job>> {
        let call =
            Call { what: "look up the job", resource: &id.to_string(), permission: "bigquery.jobs.get" };
        let ask = Ask { query: id.query(), ..Ask::get(id.path()) };
        match self.ask(&ask).await {
            Ok(json) => Ok(Some(Job::from_json(id, &json))),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure.error(&call)),
        }
    }

    /// Waits until a job has ended, well or not.
    ///
    /// # Errors
    /// If it cannot be looked up, is gone, or runs for longer than `patience`; it goes on then.
    pub async fn ended(&self, job: Job, patience: Duration) -> Result<Job> {
        let began = Instant::now();
        let (mut job, mut wait) = (job, LOOK_FIRST);
        while !job.is_done {
            if began.elapsed() > patience {
                return Err(Error::transient(format!(
                    "the job {} still runs after {} s",
                    job.id,
                    patience.as_secs()
                )));
            }
            sleep(wait).await;
            wait = (wait * 3 / 2).min(LOOK_LAST);
            let Some(seen) = self.job(&job.id).await? else {
                return Err(Error::transient(format!(
                    "the job {} is gone: nobody knows how it ended",
                    job.id
                )));
            };
            job = seen;
        }
        Ok(job)
    }

    /// Runs a query to its end.
    ///
    /// # Errors
    /// If it fails, or takes longer than `patience`. `what` is what it does, for the error.
    pub async fn run_query(&self, id: &JobId, query: &Query, what: &str, patience: Duration) -> Result<Job> {
        let job = self.ended(self.start_query(id, query).await?, patience).await?;
        job.failed(what, true)?;
        Ok(job)
    }

    /// Runs a load to its end.
    ///
    /// # Errors
    /// If it fails, or takes longer than `patience`.
    pub async fn run_load(&self, id: &JobId, load: &Load, patience: Duration) -> Result<Job> {
        let job = self.ended(self.start_load(id, load).await?, patience).await?;
        job.failed(&format!("the load into {}", load.table), false)?;
        Ok(job)
    }

    /// A page of the result of a query that has ended: the first one, or the one that another page names as the next.
    ///
    /// # Errors
    /// If it cannot be read, which is so for queries that failed.
    pub async fn results(&self, id: &JobId, page: Option<&str>, rows_max: u32) -> Result<ResultPage> {
        let call =
            Call { what: "read the result of", resource: &id.to_string(), permission: "bigquery.jobs.get" };
        let path = format!("{}/queries/{}", segment(&id.project), segment(&id.id));
        let mut query = id.query();
        query.push(("maxResults", rows_max.to_string()));
        query.push(("formatOptions.useInt64Timestamp", "true".to_owned()));
        query.extend(page.map(|token| ("pageToken", token.to_owned())));
        let json = self.answer(&call, &Ask { query, ..Ask::get(path) }).await?;
        ResultPage::from_json(&json).ok_or_else(|| {
            Error::fatal(format!(
                "the result of {id} has a schema that cannot be read: please report this as a bug"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::Kind;

    #[test]
    fn ids_have_only_what_ids_may_have() {
        assert_eq!(JobId::new("p", None, "load public.orders/7").id, "load-public-orders-7");
        assert_ne!(JobId::random("p", None), JobId::random("p", None));
        assert_eq!(JobId::new("p", Some("EU".into()), "a").to_string(), "p:EU.a");
    }

    #[test]
    fn configurations_are_as_the_api_has_them() {
        let query = Query {
            dataset: Some(DatasetId::new("p", "d")),
            parameters: vec![("k".to_owned(), "STRING".to_owned(), None)],
            ..Query::new("SELECT @k")
        };
        let json = query.to_json();
        assert_eq!(json["query"]["defaultDataset"]["datasetId"], "d");
        assert_eq!(json["query"]["queryParameters"][0]["parameterValue"], json!({ "value": null }));
        let load = Load {
            uris: vec!["gs://b/o.parquet".to_owned()],
            table: DatasetId::new("p", "d").table("t"),
            format: LoadFormat::Parquet,
            mode: LoadMode::Append,
            fields: Vec::new(),
            adds_columns: true,
            labels: BTreeMap::new(),
        };
        let json = load.to_json();
        assert_eq!(json["load"]["createDisposition"], "CREATE_NEVER");
        assert_eq!(json["load"]["schemaUpdateOptions"][0], "ALLOW_FIELD_ADDITION");
        assert!(json["load"].get("schema").is_none());
    }

    #[test]
    fn a_failed_job_says_why_but_quotes_no_rows() {
        let id = JobId::new("p", None, "j");
        let json = json!({ "jobReference": { "location": "EU" }, "status": { "state": "DONE", "errorResult": { "reason": "invalid", "message": "Bad value: secret" } } });
        let job = Job::from_json(&id, &json);
        assert_eq!((job.is_done, job.id.location.as_deref()), (true, Some("EU")));
        let error = job.failed("the load into t", false).unwrap_err();
        assert_eq!(error.to_string(), "the load into t failed: invalid; `bq show -j p:EU.j` tells more");
        assert_eq!(error.kind(), Kind::Fatal);
        let json = json!({ "status": { "state": "DONE", "errorResult": { "reason": "backendError" } } });
        assert_eq!(Job::from_json(&id, &json).failed("x", true).unwrap_err().kind(), Kind::Transient);
        let json = json!({ "status": { "state": "RUNNING" }, "statistics": { "query": { "numDmlAffectedRows": "3" } } });
        let job = Job::from_json(&id, &json);
        assert_eq!((job.is_done, job.rows, job.failed("x", true).is_ok()), (false, Some(3), true));
    }

    #[test]
    fn results_are_read_whatever_their_shape() {
        let json = json!({
            "schema": { "fields": [{ "name": "a", "type": "INTEGER" }] },
            "rows": [{ "f": [{ "v": "1" }, { "v": null }, { "v": [{ "v": "x" }] }, { "v": { "f": [{ "v": "y" }] } }] }, 7],
            "pageToken": "",
        });
        let page = ResultPage::from_json(&json).unwrap();
        let text = |t: &str| ResultValue::Text(t.to_owned());
        let expected = vec![
            text("1"),
            ResultValue::Null,
            ResultValue::List(vec![text("x")]),
            ResultValue::Struct(vec![text("y")]),
        ];
        assert_eq!(page.rows, [expected, Vec::new()]);
        assert_eq!((page.next, page.fields.len()), (None, 1));
    }
}
