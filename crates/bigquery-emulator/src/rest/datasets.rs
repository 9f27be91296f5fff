//! Datasets.

use serde_json::{Map, Value, json};

use super::Call;
use crate::catalog;
use crate::failure::Failure;
use crate::warehouse::Dataset;

/// What the emulator says itself of a dataset.
const OWN: [&str; 9] = [
    "kind",
    "id",
    "etag",
    "selfLink",
    "datasetReference",
    "location",
    "creationTime",
    "lastModifiedTime",
    "type",
];

fn path(project: &str, dataset: &str) -> String {
    format!("projects/{project}/datasets/{dataset}")
}

fn etag(dataset: &Dataset) -> String {
    format!("\"{:x}.{}\"", dataset.created, dataset.version)
}

fn resource(project: &str, name: &str, dataset: &Dataset) -> Value {
    let mut json = json!({
        "kind": "bigquery#dataset",
        "etag": etag(dataset),
        "id": format!("{project}:{name}"),
        "selfLink": format!("/bigquery/v2/{}", path(project, name)),
        "datasetReference": {"projectId": project, "datasetId": name},
        "location": dataset.location,
        "creationTime": dataset.created.to_string(),
        "lastModifiedTime": dataset.modified.to_string(),
        "type": "DEFAULT",
    });
    for (field, value) in &dataset.resource {
        json[field] = value.clone();
    }
    json
}

fn missing(project: &str, name: &str) -> Failure {
    Failure::not_found(format!("Not found: Dataset {project}:{name}"))
}

/// What a body says beside what the emulator says itself.
fn given(body: &Value) -> Result<Map<String, Value>, Failure> {
    let body = body.as_object().ok_or_else(|| Failure::invalid("A dataset is needed"))?;
    let own = |field: &String| OWN.contains(&field.as_str());
    Ok(body.iter().filter(|(field, _)| !own(field)).map(|(k, v)| (k.clone(), v.clone())).collect())
}

/// `datasets.list`.
pub(crate) fn list(call: &Call<'_>, project: &str) -> Result<Value, Failure> {
    call.begin("datasets.list", &format!("projects/{project}"))?;
    let datasets = call.warehouse.datasets();
    let items = datasets.iter().filter(|((p, _), _)| p == project).map(|((_, name), dataset)| {
        let mut item = json!({
            "kind": "bigquery#dataset",
            "id": format!("{project}:{name}"),
            "datasetReference": {"projectId": project, "datasetId": name},
            "location": dataset.location,
        });
        for field in ["labels", "friendlyName"] {
            if let Some(value) = dataset.resource.get(field) {
                item[field] = value.clone();
            }
        }
        item
    });
    let (items, next) = call.page(items.collect())?;
    let mut json = json!({"kind": "bigquery#datasetList", "datasets": items});
    if let Some(next) = next {
        json["nextPageToken"] = json!(next);
    }
    Ok(json)
}

/// `datasets.insert`.
pub(crate) fn insert(call: &Call<'_>, project: &str) -> Result<Value, Failure> {
    let name = call.body.pointer("/datasetReference/datasetId").and_then(Value::as_str).unwrap_or_default();
    call.begin("datasets.insert", &path(project, name))?;
    let mut fields = given(&call.body)?;
    fields.retain(|_, value| !value.is_null());
    let location = call.body.get("location").and_then(Value::as_str);
    {
        let connection = call.warehouse.engine.lock();
        catalog::create_dataset(call.warehouse, &connection, project, name, location, fields)?;
    }
    found(call, project, name)
}

fn found(call: &Call<'_>, project: &str, name: &str) -> Result<Value, Failure> {
    let datasets = call.warehouse.datasets();
    let dataset = datasets.get(&(project.to_owned(), name.to_owned()));
    dataset.map(|dataset| resource(project, name, dataset)).ok_or_else(|| missing(project, name))
}

/// `datasets.get`.
pub(crate) fn get(call: &Call<'_>, project: &str, name: &str) -> Result<Value, Failure> {
    call.begin("datasets.get", &path(project, name))?;
    found(call, project, name)
}

/// `datasets.patch` and `datasets.update`.
pub(crate) fn change(call: &Call<'_>, project: &str, name: &str, patch: bool) -> Result<Value, Failure> {
    call.begin(if patch { "datasets.patch" } else { "datasets.update" }, &path(project, name))?;
    let fields = given(&call.body)?;
    let connection = call.warehouse.engine.lock();
    let id = (project.to_owned(), name.to_owned());
    let changed = {
        let mut datasets = call.warehouse.datasets();
        let dataset = datasets.get_mut(&id).ok_or_else(|| missing(project, name))?;
        call.check_etag(&etag(dataset))?;
        let location = call.body.get("location").and_then(Value::as_str);
        if location.is_some_and(|location| !location.eq_ignore_ascii_case(&dataset.location)) {
            return Err(Failure::invalid("A dataset's location cannot be changed"));
        }
        if !patch {
            dataset.resource.clear();
        }
        for (field, value) in fields {
            if value.is_null() {
                dataset.resource.remove(&field);
            } else {
                dataset.resource.insert(field, value);
            }
        }
        dataset.modified = call.warehouse.clock.millis();
        dataset.version += 1;
        dataset.clone()
    };
    catalog::save_dataset(call.warehouse, &connection, &id, &changed)?;
    found(call, project, name)
}

/// `datasets.delete`.
pub(crate) fn delete(call: &Call<'_>, project: &str, name: &str) -> Result<Value, Failure> {
    call.begin("datasets.delete", &path(project, name))?;
    let connection = call.warehouse.engine.lock();
    catalog::drop_dataset(call.warehouse, &connection, project, name, call.flag("deleteContents"))?;
    Ok(Value::Null)
}
