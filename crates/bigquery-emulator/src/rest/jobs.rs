//! Jobs: queries and loads. They run before they are answered, so that every job is DONE.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Call, cells, loads};
use crate::catalog;
use crate::engine;
use crate::failure::{Failure, Reason};
use crate::job::{Job, Rows};
use crate::landing::align_batch;
use crate::schema;
use crate::sql::{Outcome, Session};
use crate::table::{Kind, TableId};

/// A page of results, if nobody says.
const PAGE: usize = 10_000;

/// What a query is to do.
struct Task<'a> {
    sql: &'a str,
    /// It is looked at and not run.
    dry: bool,
    dataset: Option<(String, String)>,
    location: Option<String>,
    destination: Option<TableId>,
    write: &'a str,
    create: &'a str,
}

pub(super) fn reference(value: Option<&Value>, project: &str) -> Option<TableId> {
    let value = value?;
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let table = text("tableId")?;
    Some(TableId {
        project: text("projectId").unwrap_or_else(|| project.to_owned()),
        dataset: text("datasetId")?,
        table,
    })
}

/// Reads what a query's configuration, or a request of `jobs.query`, asks for.
fn task<'a>(config: &'a Value, project: &str, location: Option<&str>) -> Result<Task<'a>, Failure> {
    let text = |name: &str| config.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let sql = text("query").ok_or_else(|| Failure::invalid("Required parameter is missing: query"))?;
    if config.get("useLegacySql").and_then(Value::as_bool) == Some(true) {
        return Err(Failure::invalid("The emulator knows GoogleSQL only: set useLegacySql to false"));
    }
    if config.get("queryParameters").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
        return Err(Failure::invalid("The emulator knows no query parameters"));
    }
    let dataset = config.get("defaultDataset").and_then(|dataset| {
        let of = dataset.get("projectId").and_then(Value::as_str).unwrap_or(project);
        Some((of.to_owned(), dataset.get("datasetId")?.as_str()?.to_owned()))
    });
    Ok(Task {
        sql,
        dry: false,
        dataset,
        location: location.map(str::to_owned),
        destination: reference(config.get("destinationTable"), project),
        write: text("writeDisposition").unwrap_or("WRITE_EMPTY"),
        create: text("createDisposition").unwrap_or("CREATE_IF_NEEDED"),
    })
}

/// Runs a query; answers what it did and where.
fn run(call: &Call<'_>, project: &str, task: &Task<'_>) -> (Result<Outcome, Failure>, String) {
    let connection = call.warehouse.engine.lock();
    let session =
        Session::new(call.warehouse, &connection, project, task.dataset.clone(), task.location.clone());
    let outcome = if task.dry { session.look(task.sql) } else { session.run(task.sql) };
    let outcome = outcome.and_then(|outcome| {
        if let Some(destination) = task.destination.as_ref().filter(|_| outcome.kind == "SELECT" && !task.dry)
        {
            write(&session, &outcome, destination, task)?;
        }
        Ok(outcome)
    });
    let location = task.location.clone().or_else(|| session.seen());
    let of_dataset = || task.dataset.as_ref().and_then(|(p, d)| call.warehouse.location(p, d));
    (outcome, location.or_else(of_dataset).unwrap_or_else(|| catalog::LOCATION.to_owned()))
}

/// Puts a query's rows into its destination.
fn write(session: &Session<'_>, outcome: &Outcome, id: &TableId, task: &Task<'_>) -> Result<(), Failure> {
    let Session { warehouse, connection, .. } = session;
    let present = match warehouse.table(id) {
        Ok(table) => Some(table),
        Err(failure) if failure.reason == Reason::NotFound && task.create != "CREATE_NEVER" => None,
        Err(failure) => return Err(failure),
    };
    let table = match (present, task.write) {
        (Some(table), "WRITE_TRUNCATE") => {
            catalog::drop_table(warehouse, connection, &table)?;
            None
        }
        (Some(table), "WRITE_EMPTY") => {
            warehouse.land(connection, &table)?;
            let sql = format!("SELECT count(*) FROM {}", id.quoted());
            if connection.query_row(&sql, [], |row| row.get::<_, i64>(0))? > 0 {
                return Err(Failure::duplicate(format!("Already Exists: Table {id}")));
            }
            Some(table)
        }
        (table, _) => table,
    };
    let table = match table {
        Some(table) => table,
        None => {
            let columns = outcome.columns.clone();
            catalog::create_table(warehouse, connection, id, Kind::Table, columns, Map::new())?
        }
    };
    warehouse.land(connection, &table)?;
    let columns = table.lock().schema.clone();
    let batches =
        outcome.batches.iter().map(|batch| align_batch(batch, &columns)).collect::<Result<Vec<_>, _>>()?;
    engine::append(connection, &id.schema(), &id.name(), batches)
}

fn statistics(call: &Call<'_>, outcome: Option<&Outcome>, started: i64) -> Value {
    let ended = call.warehouse.clock.millis();
    let mut json = json!({
        "creationTime": started.to_string(),
        "startTime": started.to_string(),
        "endTime": ended.to_string(),
        "totalBytesProcessed": "0",
    });
    if let Some(outcome) = outcome {
        let mut query = json!({
            "statementType": outcome.kind,
            "cacheHit": false,
            "totalBytesProcessed": "0",
            "totalBytesBilled": "0",
        });
        if outcome.kind == "SELECT" {
            query["schema"] = schema::to_json(&outcome.columns);
        }
        if let Some((count, affected)) = outcome.affected {
            query["numDmlAffectedRows"] = json!(count.to_string());
            query["dmlStats"] = json!({
                "insertedRowCount": affected.inserted.to_string(),
                "updatedRowCount": affected.updated.to_string(),
                "deletedRowCount": affected.deleted.to_string(),
            });
        }
        if let Some(did) = outcome.ddl {
            query["ddlOperationPerformed"] = json!(did);
            if let Some(target) = &outcome.target {
                query["ddlTargetTable"] = target.reference();
            }
        }
        json["query"] = query;
    }
    json
}

/// A client's job id, or a new one.
fn job_id(call: &Call<'_>, reference: Option<&Value>) -> Result<String, Failure> {
    let id = reference.and_then(|r| r.get("jobId")).and_then(Value::as_str).filter(|id| !id.is_empty());
    match id {
        None => Ok(format!("job_{:x}", call.warehouse.serial())),
        Some(id) if id.len() > 1024 || !id.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) => {
            Err(Failure::invalid(format!("Invalid job ID \"{id}\"")))
        }
        Some(id) => Ok(id.to_owned()),
    }
}

/// Refuses an id that is taken already.
fn free(call: &Call<'_>, project: &str, location: Option<&str>, id: &str) -> Result<(), Failure> {
    match find(call, project, location, id) {
        Ok(job) => Err(Failure::duplicate(format!("Already Exists: Job {project}:{}.{id}", job.location))),
        Err(_) => Ok(()),
    }
}

pub(super) fn find(
    call: &Call<'_>,
    project: &str,
    location: Option<&str>,
    id: &str,
) -> Result<Arc<Job>, Failure> {
    let jobs = call.warehouse.jobs();
    let fits = |job: &&Arc<Job>| {
        job.project == project
            && job.id == id
            && location.is_none_or(|location| location.eq_ignore_ascii_case(&job.location))
    };
    let found = match location {
        Some(location) => jobs.by_id.get(&(project.to_owned(), location.to_ascii_lowercase(), id.to_owned())),
        None => jobs.by_id.values().find(fits),
    };
    found.cloned().ok_or_else(|| Failure::not_found(format!("Not found: Job {project}:{id}")))
}

fn keep(call: &Call<'_>, job: Job) -> Result<Arc<Job>, Failure> {
    let job = Arc::new(job);
    if call.warehouse.engine.durable {
        job.save(&call.warehouse.engine.lock(), &call.warehouse.engine)?;
    }
    call.warehouse.jobs().add(job.clone())?;
    Ok(job)
}

/// The rows that a job's outcome leaves behind.
fn rows(outcome: Outcome) -> Rows {
    let total = outcome.batches.iter().map(duckdb::arrow::array::RecordBatch::num_rows).sum();
    Rows {
        columns: outcome.columns,
        batches: outcome.batches,
        total,
        affected: outcome.affected.map(|(n, _)| n),
    }
}

/// `jobs.insert`.
pub(crate) fn insert(call: &Call<'_>, project: &str) -> Result<Value, Failure> {
    call.begin("jobs.insert", &format!("projects/{project}"))?;
    let reference = call.body.get("jobReference");
    let location =
        reference.and_then(|r| r.get("location")).and_then(Value::as_str).filter(|l| !l.is_empty());
    let id = job_id(call, reference)?;
    free(call, project, location, &id)?;
    let configuration = call.body.get("configuration").cloned().unwrap_or_default();
    let started = call.warehouse.clock.millis();
    if configuration.get("load").is_some() {
        return loads::insert(call, (project, id), location, &configuration);
    }
    let Some(config) = configuration.get("query") else {
        return Err(Failure::new(Reason::NotImplemented, "The emulator runs queries and loads only"));
    };
    let mut task = task(config, project, location)?;
    task.dry = is_dry(&configuration);
    let (outcome, location) = run(call, project, &task);
    let mut configuration = configuration.clone();
    configuration["jobType"] = json!("QUERY");
    let (outcome, failure) = match outcome {
        Ok(outcome) => (Some(outcome), None),
        Err(failure) => (None, Some(failure)),
    };
    let mut status = json!({"state": "DONE"});
    if let Some(failure) = &failure {
        status["errorResult"] = failure.proto();
        status["errors"] = json!([failure.proto()]);
    }
    let place = json!({"projectId": project, "jobId": id, "location": location});
    let resource = json!({
        "kind": "bigquery#job",
        "id": format!("{project}:{location}.{id}"),
        "selfLink": format!("/bigquery/v2/projects/{project}/jobs/{id}?location={location}"),
        "jobReference": place,
        "configuration": configuration,
        "status": status,
        "statistics": statistics(call, outcome.as_ref(), started),
        "user_email": "emulator@example.com",
    });
    if task.dry {
        // No job comes of it, and an error is the answer.
        return failure.map_or(Ok(resource), Err);
    }
    let job = Job::new((project.to_owned(), location, id), resource, outcome.map(rows), failure);
    Ok(keep(call, job)?.resource.clone())
}

fn is_dry(configuration: &Value) -> bool {
    configuration.get("dryRun").and_then(Value::as_bool) == Some(true)
}

/// `jobs.query`.
pub(crate) fn query(call: &Call<'_>, project: &str) -> Result<Value, Failure> {
    call.begin("jobs.query", &format!("projects/{project}"))?;
    let body = &call.body;
    let location = body.get("location").and_then(Value::as_str).filter(|l| !l.is_empty());
    let started = call.warehouse.clock.millis();
    let mut task = task(body, project, location)?;
    task.dry = is_dry(body);
    let (outcome, location) = run(call, project, &task);
    let outcome = outcome?;
    if task.dry {
        let kind = outcome.kind;
        return Ok(
            json!({ "kind": "bigquery#queryResponse", "jobComplete": true, "totalBytesProcessed": "0", "cacheHit": false,
            "schema": schema::to_json(&outcome.columns), "statementType": kind }),
        );
    }
    let id = job_id(call, None)?;
    let most = body.get("maxResults").and_then(Value::as_u64).map_or(PAGE, |n| n as usize);
    let int64 = body.pointer("/formatOptions/useInt64Timestamp").and_then(Value::as_bool).unwrap_or(false);
    let resource = json!({
        "kind": "bigquery#job",
        "id": format!("{project}:{location}.{id}"),
        "jobReference": {"projectId": project, "jobId": id, "location": location},
        "configuration": {"jobType": "QUERY", "query": {"query": task.sql, "useLegacySql": false}},
        "status": {"state": "DONE"},
        "statistics": statistics(call, Some(&outcome), started),
    });
    let statement = outcome.kind;
    let job = Job::new((project.to_owned(), location, id), resource, Some(rows(outcome)), None);
    let job = keep(call, job)?;
    let mut json = page(&job, 0, most, int64, "bigquery#queryResponse")?;
    json["statementType"] = json!(statement);
    Ok(json)
}

/// A page of a job's rows.
fn page(job: &Job, start: usize, most: usize, int64: bool, kind: &str) -> Result<Value, Failure> {
    if let Some(failure) = &job.failure {
        return Err(failure.clone());
    }
    let result = job.rows();
    let result = result.ok_or_else(|| Failure::not_found(format!("Not found: results of job {}", job.id)))?;
    let mut json = json!({
        "kind": kind,
        "jobReference": job.reference(),
        "jobComplete": true,
        "totalBytesProcessed": "0",
        "cacheHit": false,
    });
    if let Some(affected) = result.affected {
        json["numDmlAffectedRows"] = json!(affected.to_string());
    }
    if result.columns.is_empty() {
        json["totalRows"] = json!("0");
        return Ok(json);
    }
    json["schema"] = schema::to_json(&result.columns);
    json["totalRows"] = json!(result.total.to_string());
    let rows = cells::rows(&result.batches, &result.columns, start, most.min(100_000), int64);
    let end = start + rows.len();
    if end < result.total {
        json["pageToken"] = json!(end.to_string());
    }
    json["rows"] = json!(rows);
    Ok(json)
}

/// `jobs.getQueryResults`.
pub(crate) fn results(call: &Call<'_>, project: &str, id: &str) -> Result<Value, Failure> {
    call.begin("jobs.getQueryResults", &format!("projects/{project}"))?;
    let job = find(call, project, call.parameter("location"), id)?;
    let start = match call.number("pageToken")? {
        Some(start) => start,
        None => call.number("startIndex")?.unwrap_or(0),
    };
    let most = call.number("maxResults")?.unwrap_or(PAGE);
    let int64 = call.flag("formatOptions.useInt64Timestamp");
    page(&job, start, most, int64, "bigquery#getQueryResultsResponse")
}

/// `jobs.get`.
pub(crate) fn get(call: &Call<'_>, project: &str, id: &str) -> Result<Value, Failure> {
    call.begin("jobs.get", &format!("projects/{project}"))?;
    Ok(find(call, project, call.parameter("location"), id)?.resource.clone())
}

/// `jobs.cancel`: it is done already.
pub(crate) fn cancel(call: &Call<'_>, project: &str, id: &str) -> Result<Value, Failure> {
    call.begin("jobs.cancel", &format!("projects/{project}"))?;
    let job = find(call, project, call.parameter("location"), id)?;
    Ok(json!({"kind": "bigquery#jobCancelResponse", "job": job.resource}))
}

/// `jobs.list`.
pub(crate) fn list(call: &Call<'_>, project: &str) -> Result<Value, Failure> {
    call.begin("jobs.list", &format!("projects/{project}"))?;
    let mut jobs: Vec<_> =
        call.warehouse.jobs().by_id.values().filter(|job| job.project == project).cloned().collect();
    jobs.sort_by_key(|job| {
        job.resource.pointer("/statistics/creationTime").and_then(Value::as_str).map(str::to_owned)
    });
    let items = jobs.iter().rev().map(|job| {
        let mut item = job.resource.clone();
        item["state"] = json!("DONE");
        item
    });
    let (items, next) = call.page(items.collect())?;
    let mut json = json!({"kind": "bigquery#jobList", "jobs": items});
    if let Some(next) = next {
        json["nextPageToken"] = json!(next);
    }
    Ok(json)
}
