//! Tables and views, and the rows of tables.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Call, cells};
use crate::catalog;
use crate::engine;
use crate::evolution;
use crate::failure::Failure;
use crate::schema::{self, quoted};
use crate::sql::Session;
use crate::table::{Kind, Shared, TableId, TableState};

/// What the emulator says itself of a table.
const OWN: [&str; 16] = [
    "kind",
    "id",
    "etag",
    "selfLink",
    "tableReference",
    "schema",
    "view",
    "materializedView",
    "creationTime",
    "lastModifiedTime",
    "numRows",
    "numBytes",
    "numLongTermBytes",
    "type",
    "location",
    "streamingBuffer",
];

/// A table's name.
pub(crate) fn id(project: &str, dataset: &str, table: &str) -> TableId {
    TableId { project: project.to_owned(), dataset: dataset.to_owned(), table: table.to_owned() }
}

fn etag(state: &TableState) -> String {
    format!("\"{:x}.{}\"", state.created, state.version)
}

fn kind_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Table => "TABLE",
        Kind::View(_) => "VIEW",
        Kind::MaterializedView(_) => "MATERIALIZED_VIEW",
    }
}

fn resource(call: &Call<'_>, table: &Shared, rows: Option<u64>) -> Value {
    let id = &table.id;
    let location = call.warehouse.location(&id.project, &id.dataset).unwrap_or_default();
    let state = table.lock();
    let mut json = json!({
        "kind": "bigquery#table",
        "etag": etag(&state),
        "id": id.to_string(),
        "selfLink": format!("/bigquery/v2/{}", id.path()),
        "tableReference": id.reference(),
        "schema": schema::to_json(&state.schema),
        "creationTime": state.created.to_string(),
        "lastModifiedTime": state.modified.to_string(),
        "type": kind_name(&state.kind),
        "location": location,
        "numBytes": "0",
        "numLongTermBytes": "0",
    });
    match &state.kind {
        Kind::Table => {}
        Kind::View(query) => json["view"] = json!({"query": query, "useLegacySql": false}),
        Kind::MaterializedView(query) => {
            json["materializedView"] = json!({"query": query, "enableRefresh": true})
        }
    }
    for (field, value) in &state.resource {
        json[field] = value.clone();
    }
    if let Some(rows) = rows {
        json["numRows"] = json!(rows.to_string());
    }
    json
}

fn count(call: &Call<'_>, table: &Shared) -> Result<u64, Failure> {
    if table.lock().kind != Kind::Table {
        return Ok(0);
    }
    let connection = call.warehouse.engine.lock();
    call.warehouse.land(&connection, table)?;
    let sql = format!("SELECT count(*) FROM {}", table.id.quoted());
    Ok(connection.query_row(&sql, [], |row| row.get::<_, i64>(0))?.cast_unsigned())
}

/// What a body says beside what the emulator says itself.
fn given(body: &Value) -> Result<Map<String, Value>, Failure> {
    let body = body.as_object().ok_or_else(|| Failure::invalid("A table is needed"))?;
    if body.get("externalDataConfiguration").is_some_and(|v| !v.is_null()) {
        return Err(Failure::invalid("The emulator has no external tables"));
    }
    let own = |field: &String| OWN.contains(&field.as_str());
    Ok(body.iter().filter(|(field, _)| !own(field)).map(|(k, v)| (k.clone(), v.clone())).collect())
}

/// The query of a view, if the body is one.
fn kind(body: &Value) -> Kind {
    let query = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    match (query("/view/query"), query("/materializedView/query")) {
        (Some(query), _) => Kind::View(query),
        (None, Some(query)) => Kind::MaterializedView(query),
        (None, None) => Kind::Table,
    }
}

fn session<'a>(call: &'a Call<'_>, connection: &'a duckdb::Connection, id: &TableId) -> Session<'a> {
    Session::new(call.warehouse, connection, &id.project, None, None)
}

/// `tables.list`.
pub(crate) fn list(call: &Call<'_>, project: &str, dataset: &str) -> Result<Value, Failure> {
    call.begin("tables.list", &format!("projects/{project}/datasets/{dataset}"))?;
    let tables: Vec<_> = {
        let datasets = call.warehouse.datasets();
        let found = datasets.get(&(project.to_owned(), dataset.to_owned()));
        let missing = || Failure::not_found(format!("Not found: Dataset {project}:{dataset}"));
        found.ok_or_else(missing)?.tables.values().cloned().collect()
    };
    let items = tables.iter().map(|table| {
        let whole = resource(call, table, None);
        let fields =
            ["id", "tableReference", "type", "creationTime", "labels", "timePartitioning", "clustering"];
        let mut item = json!({"kind": "bigquery#table"});
        for field in fields {
            if let Some(value) = whole.get(field) {
                item[field] = value.clone();
            }
        }
        item
    });
    let items: Vec<_> = items.collect();
    let total = items.len();
    let (items, next) = call.page(items)?;
    let mut json = json!({"kind": "bigquery#tableList", "tables": items, "totalItems": total});
    if let Some(next) = next {
        json["nextPageToken"] = json!(next);
    }
    Ok(json)
}

/// `tables.insert`.
pub(crate) fn insert(call: &Call<'_>, project: &str, dataset: &str) -> Result<Value, Failure> {
    let name = call.body.pointer("/tableReference/tableId").and_then(Value::as_str).unwrap_or_default();
    let id = id(project, dataset, name);
    call.begin("tables.insert", &id.path())?;
    let mut fields = given(&call.body)?;
    fields.retain(|_, value| !value.is_null());
    let kind = kind(&call.body);
    let connection = call.warehouse.engine.lock();
    let columns = match &kind {
        Kind::Table => schema::from_json(call.body.get("schema").unwrap_or(&Value::Null))?,
        Kind::View(query) | Kind::MaterializedView(query) => {
            session(call, &connection, &id).view_columns(query)?
        }
    };
    let table = catalog::create_table(call.warehouse, &connection, &id, kind, columns, fields)?;
    Ok(resource(call, &table, Some(0)))
}

/// `tables.get`.
pub(crate) fn get(call: &Call<'_>, id: &TableId) -> Result<Value, Failure> {
    call.begin("tables.get", &id.path())?;
    let table = call.warehouse.table(id)?;
    let rows = count(call, &table)?;
    Ok(resource(call, &table, Some(rows)))
}

/// `tables.patch` and `tables.update`.
pub(crate) fn change(call: &Call<'_>, id: &TableId, patch: bool) -> Result<Value, Failure> {
    call.begin(if patch { "tables.patch" } else { "tables.update" }, &id.path())?;
    let fields = given(&call.body)?;
    let connection = call.warehouse.engine.lock();
    let table = call.warehouse.table(id)?;
    let (present, mut rest, old) = {
        let state = table.lock();
        call.check_etag(&etag(&state))?;
        (state.schema.clone(), state.resource.clone(), state.kind.clone())
    };
    if !patch {
        rest.clear();
    }
    for (field, value) in fields {
        if value.is_null() {
            rest.remove(&field);
        } else {
            rest.insert(field, value);
        }
    }
    let new = kind(&call.body);
    let columns = match (&old, &new) {
        (Kind::Table, Kind::Table) => match call.body.get("schema").filter(|schema| !schema.is_null()) {
            Some(schema) => evolution::patched(id, &present, &schema::from_json(schema)?)?,
            None => present.to_vec(),
        },
        (Kind::View(_) | Kind::MaterializedView(_), Kind::View(query) | Kind::MaterializedView(query)) => {
            session(call, &connection, id).view_columns(query)?
        }
        (_, Kind::Table) => present.to_vec(),
        (Kind::Table, _) => return Err(Failure::invalid(format!("Cannot convert table {id} to a view"))),
    };
    catalog::change_table(call.warehouse, &connection, &table, columns, rest)?;
    if new != Kind::Table && new != old {
        table.lock().kind = new;
        catalog::save_table(call.warehouse, &connection, &table)?;
    }
    drop(connection);
    let rows = count(call, &table)?;
    Ok(resource(call, &table, Some(rows)))
}

/// `tables.delete`.
pub(crate) fn delete(call: &Call<'_>, id: &TableId) -> Result<Value, Failure> {
    call.begin("tables.delete", &id.path())?;
    let connection = call.warehouse.engine.lock();
    let table = call.warehouse.table(id)?;
    catalog::drop_table(call.warehouse, &connection, &table)?;
    Ok(Value::Null)
}

/// `tabledata.list`.
pub(crate) fn data(call: &Call<'_>, id: &TableId) -> Result<Value, Failure> {
    call.begin("tabledata.list", &id.path())?;
    let table = call.warehouse.table(id)?;
    if table.lock().kind != Kind::Table {
        return Err(Failure::invalid(format!(
            "Cannot list a table of type {}.",
            kind_name(&table.lock().kind)
        )));
    }
    let total = count(call, &table)?;
    let columns = Arc::clone(&table.lock().schema);
    let wanted =
        call.parameter("selectedFields").map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>());
    let columns: Vec<_> = columns
        .iter()
        .filter(|c| wanted.as_ref().is_none_or(|w| w.iter().any(|name| name.eq_ignore_ascii_case(&c.name))))
        .cloned()
        .collect();
    let start = match call.number("pageToken")? {
        Some(start) => start,
        None => call.number("startIndex")?.unwrap_or(0),
    };
    let most = call.number("maxResults")?.unwrap_or(10_000).min(100_000);
    let mut json = json!({"kind": "bigquery#tableDataList", "totalRows": total.to_string()});
    if columns.is_empty() || most == 0 {
        return Ok(json);
    }
    let names: Vec<_> = columns.iter().map(|c| quoted(&c.name)).collect();
    let (names, table) = (names.join(", "), table.id.quoted());
    let batches = {
        let connection = call.warehouse.engine.lock();
        engine::query(&connection, &format!("SELECT {names} FROM {table} LIMIT {most} OFFSET {start}"))?
    };
    let int64 = call.flag("formatOptions.useInt64Timestamp");
    let rows = cells::rows(&batches, &columns, 0, most, int64);
    if start + rows.len() < total as usize && !rows.is_empty() {
        json["pageToken"] = json!((start + rows.len()).to_string());
    }
    json["rows"] = json!(rows);
    Ok(json)
}
