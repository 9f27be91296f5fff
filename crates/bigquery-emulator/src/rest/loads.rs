//! Load jobs. One runs at a time, so that of two with one id the second finds the first.

use serde_json::{Value, json};

use super::Call;
use super::jobs::{find, reference};
use crate::engine;
use crate::failure::Failure;
use crate::job::Job;
use crate::load::{Load, Loaded};

/// `jobs.insert` of a load.
pub(super) fn insert(
    call: &Call<'_>,
    (project, id): (&str, String),
    location: Option<&str>,
    configuration: &Value,
) -> Result<Value, Failure> {
    let one = call.warehouse.loads();
    if let Ok(job) = find(call, project, location, &id) {
        return Err(Failure::duplicate(format!("Already Exists: Job {project}:{}.{id}", job.location)));
    }
    let config = &configuration["load"];
    let load = Load::read(config, reference(config.get("destinationTable"), project))?;
    let of_dataset = call.warehouse.location(&load.table.project, &load.table.dataset);
    let location = location.map(str::to_owned).or(of_dataset).unwrap_or_else(|| "US".to_owned());
    let started = call.warehouse.clock.millis();
    let mut configuration = configuration.clone();
    configuration["jobType"] = json!("LOAD");
    let job = |loaded: Option<&Loaded>, failure: Option<Failure>| {
        let mut status = json!({"state": "DONE"});
        if let Some(failure) = &failure {
            status["errorResult"] = failure.proto();
            status["errors"] = json!([failure.proto()]);
        }
        let mut statistics = json!({
            "creationTime": started.to_string(),
            "startTime": started.to_string(),
            "endTime": call.warehouse.clock.millis().to_string(),
        });
        if let Some(loaded) = loaded {
            statistics["load"] = loaded.statistics();
        }
        let resource = json!({
            "kind": "bigquery#job",
            "id": format!("{project}:{location}.{id}"),
            "selfLink": format!("/bigquery/v2/projects/{project}/jobs/{id}?location={location}"),
            "jobReference": {"projectId": project, "jobId": id, "location": location},
            "configuration": configuration,
            "status": status,
            "statistics": statistics,
            "user_email": "emulator@example.com",
        });
        Job::new((project.to_owned(), location.clone(), id.clone()), resource, None, failure)
    };
    let connection = call.warehouse.engine.lock();
    // What the table accepted before goes into the database first, in a transaction of its own.
    if let Ok(table) = call.warehouse.table(&load.table) {
        call.warehouse.land(&connection, &table)?;
    }
    let done = load.run(call.warehouse, &connection, |loaded| {
        job(Some(loaded), None).save(&connection, &call.warehouse.engine)
    });
    let job = match done {
        Ok(loaded) => job(Some(&loaded), None),
        Err(failure) => {
            let job = job(None, Some(failure));
            engine::atomically(&connection, || job.save(&connection, &call.warehouse.engine))?;
            job
        }
    };
    let resource = job.resource.clone();
    call.warehouse.jobs().add(job.into())?;
    drop(one);
    Ok(resource)
}
