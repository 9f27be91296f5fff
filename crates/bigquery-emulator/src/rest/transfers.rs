//! Scheduled queries of the Data Transfer Service, kept and shown, and never run.

use serde_json::{Value, json};

use super::Call;
use crate::failure::Failure;

fn parent(project: &str, location: &str) -> String {
    format!("projects/{project}/locations/{location}/transferConfigs/")
}

/// `transferConfigs.list`.
pub(crate) fn list(call: &Call<'_>, project: &str, location: &str) -> Result<Value, Failure> {
    call.begin("transferConfigs.list", project)?;
    let parent = parent(project, location);
    let all = call.warehouse.transfers();
    let here = all.iter().filter(|(name, _)| name.starts_with(&parent)).map(|(_, config)| config.clone());
    let (configs, next) = call.page(here.collect())?;
    Ok(json!({ "transferConfigs": configs, "nextPageToken": next.unwrap_or_default() }))
}

/// `transferConfigs.create`.
pub(crate) fn create(call: &Call<'_>, project: &str, location: &str) -> Result<Value, Failure> {
    call.begin("transferConfigs.create", project)?;
    check(&call.body)?;
    let mut all = call.warehouse.transfers();
    let name = format!("{}{:08x}", parent(project, location), all.len() + 1);
    let mut config = call.body.clone();
    config["name"] = json!(name);
    config["state"] = json!("PENDING");
    all.insert(name, config.clone());
    Ok(config)
}

/// `transferConfigs.patch`: the members that `updateMask` names.
pub(crate) fn patch(call: &Call<'_>, project: &str, location: &str, id: &str) -> Result<Value, Failure> {
    call.begin("transferConfigs.patch", project)?;
    let name = format!("{}{id}", parent(project, location));
    let mask = call.parameter("updateMask").ok_or_else(|| Failure::invalid("update_mask is required"))?;
    let mut all = call.warehouse.transfers();
    let config = all
        .get_mut(&name)
        .ok_or_else(|| Failure::not_found(format!("Requested entity was not found: {name}")))?;
    let mut changed = config.clone();
    for member in mask.split(',') {
        changed[member] = call.body[member].clone();
    }
    check(&changed)?;
    *config = changed.clone();
    Ok(changed)
}

/// What a scheduled query needs.
fn check(config: &Value) -> Result<(), Failure> {
    if config["dataSourceId"] != "scheduled_query" {
        return Err(Failure::unsupported(format!("the data source {}", config["dataSourceId"])));
    }
    match config["params"]["query"].as_str() {
        Some(sql) => crate::sql::parse_query(sql).map(drop),
        None => Err(Failure::invalid("params.query is required")),
    }
}
