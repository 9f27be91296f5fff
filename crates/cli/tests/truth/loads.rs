//! The same truth with histories that come by load jobs.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::json;

use crate::bigquery::{BUCKET, EMULATOR, Emulator, Replica, killed, set, the_corpus};
use crate::pipeline::Pipeline;

/// Files of a project are of its own prefix. Loads are due again and again while a pipeline runs, as an emulator has no quota.
fn by_load_jobs(pipeline: &mut Pipeline, emulator: &Emulator, project: &str) {
    set(pipeline, "delivery", &json!("load"));
    let load = json!({ "bucket": BUCKET, "prefix": project, "triggering_frequency": "300ms", "shards": 2 });
    set(pipeline, "load", &load);
    set(pipeline, "endpoints/gcs", &json!(format!("http://{}", emulator.server.gcs())));
}

#[test]
fn the_corpus_by_load_jobs() {
    let projects = Mutex::new(Vec::new());
    the_corpus(Replica::Upserted, |pipeline, emulator, project| {
        by_load_jobs(pipeline, emulator, project);
        projects.lock().unwrap().push(project.to_owned());
    });
    let mut formats = BTreeSet::new();
    for project in projects.into_inner().unwrap() {
        let jobs = EMULATOR.call(&format!("{project}/jobs?maxResults=1000"), None);
        let jobs = jobs["jobs"].as_array().unwrap();
        let loads: Vec<_> =
            jobs.iter().filter_map(|job| job["configuration"]["load"]["sourceFormat"].as_str()).collect();
        assert!(!loads.is_empty(), "{project} had no load job");
        formats.extend(loads.into_iter().map(str::to_owned));
    }
    assert_eq!(Vec::from_iter(formats), ["NEWLINE_DELIMITED_JSON", "PARQUET"]);
    assert!(EMULATOR.server.objects(BUCKET).is_empty(), "files are left after a drain");
}

#[test]
fn killed_with_faults_by_load_jobs() {
    let emulator = killed(true, Replica::Upserted, by_load_jobs);
    let left = emulator.server.objects(BUCKET);
    assert!(left.is_empty(), "files are left after a drain: {left:?}");
}
