//! The same truth with histories that come by load jobs.

use serde_json::json;

use crate::bigquery::{BUCKET, EMULATOR, Emulator, killed, set, the_corpus};
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
    the_corpus(by_load_jobs);
    assert!(EMULATOR.server.objects(BUCKET).is_empty(), "files are left after a drain");
}

#[test]
fn killed_with_faults_by_load_jobs() {
    let emulator = killed(true, by_load_jobs);
    let left = emulator.server.objects(BUCKET);
    assert!(left.is_empty(), "files are left after a drain: {left:?}");
}
