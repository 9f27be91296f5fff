//! `delivery: load`, against the emulator in this process.

use millstream_bigquery_emulator::Server;
use serde_json::json;

use crate::bigquery::{Warehouse, append, change, written};
use crate::workplace::{Workplace, wait};

const LOAD: &str = "delivery: load, load: { bucket: loads, triggering_frequency: 15m }";

fn config(warehouse: &Warehouse, more: &str) -> String {
    let gcs = format!(", gcs: \"http://{}\" }}, {LOAD}", warehouse.server.gcs());
    // The endpoints get a third one.
    warehouse.config("layout: append", more).replacen("\" }, layout", &format!("\"{gcs}, layout"), 1)
}

/// A pipeline with a row in a file that waits for its load, killed.
fn killed_with_a_file(warehouse: &Warehouse) -> Workplace {
    let place = Workplace::new(&config(warehouse, ", follow: true"));
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1, "v": "a" }))]);
    let running = place.start(&["run", "p.yaml"], || place.path("in.jsonl").exists());
    wait(|| warehouse.server.objects("loads").len() == 1);
    wait(|| {
        let status = place.run(&["status", "p.yaml", "--json"]);
        status.code == 0 && status.json()["counters"]["sinks"]["bigquery"]["written"] == 1
    });
    wait(|| warehouse.query("SELECT sink FROM d._millstream_epochs") == ["bigquery (files)"]);
    running.signal("KILL");
    drop(running);
    assert_eq!(warehouse.query("SELECT COUNT(*) FROM d.t_raw"), ["0"]);
    place.write("p.yaml", config(warehouse, ""));
    place
}

#[test]
fn a_checkpoints_files_are_loaded_by_the_next_start_and_others_deleted() {
    let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
    let place = killed_with_a_file(&warehouse);
    let named = warehouse.server.objects("loads").remove(0);
    let (folder, _) = named.split_once("/00").unwrap();
    for stray in [format!("{folder}/000000000009-1/t_raw/00000.parquet"), "others".to_owned()] {
        let url = format!("http://{}/upload/storage/v1/b/loads/o", warehouse.server.gcs());
        warehouse.runtime.block_on(async {
            let query = [("uploadType", "media"), ("name", &stray)];
            let made = warehouse.http.post(url).query(&query).body("stray").send().await.unwrap();
            assert!(made.status().is_success());
        });
    }
    assert_eq!(written(&place)["written"], 1);
    assert_eq!(warehouse.query("SELECT id, v FROM d.t_latest"), ["1|a"]);
    assert_eq!(warehouse.server.objects("loads"), ["others"], "another's file stays");
}

/// A job that failed keeps its id, and another start has to take the next one: with the id of the files alone a table that was dropped and
/// mended could never have been loaded.
#[test]
fn a_load_that_failed_is_made_good_by_a_later_start() {
    let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
    let place = killed_with_a_file(&warehouse);
    let table = warehouse.table("t_raw");
    warehouse.query("DROP TABLE d.t_raw");
    let failed = place.run(&["run", "p.yaml"]);
    assert_eq!(failed.code, 1);
    let told = "the load of 1 files into p.d.t_raw failed: the table is not there any more";
    assert!(failed.err.contains(told) && failed.err.contains("_1` tells"), "{}", failed.err);
    assert_eq!(warehouse.server.objects("loads").len(), 1, "the file is kept");
    let mut again = table;
    again.as_object_mut().unwrap().retain(|key, _| {
        ["tableReference", "schema", "description", "timePartitioning", "clustering", "labels"]
            .contains(&key.as_str())
    });
    warehouse.call("datasets/d/tables", Some(&again));
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v FROM d.t_raw"), ["1|a"]);
    assert!(warehouse.server.objects("loads").is_empty());
}

/// A pipeline without a checkpoint, as its folder was lost or another of the same name ran elsewhere, took the files of a checkpoint for
/// leftovers and deleted them, as long as none was loaded: rows whose records a subscription does not give again.
#[test]
fn files_of_a_later_checkpoint_are_not_deleted_by_a_run_without_it() {
    let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
    let place = killed_with_a_file(&warehouse);
    let other = Workplace::new(&config(&warehouse, ""));
    append(&other, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1, "v": "a" }))]);
    let refused = other.run(&["run", "p.yaml"]);
    assert_eq!(refused.code, 1);
    let told = "there is no checkpoint, but rows in p.d, or on their way in gs://loads/p/bigquery/p/d/";
    assert!(refused.err.contains(told), "{}", refused.err);
    assert_eq!(warehouse.server.objects("loads").len(), 1, "the file is kept");
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v FROM d.t_raw"), ["1|a"]);
}

/// The checkpoint names a file that somebody deleted: the error was a bare `notFound`, which did not tell whether the table or a file was
/// gone, nor what helps.
#[test]
fn a_file_that_somebody_deleted_is_told_of() {
    let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
    let place = killed_with_a_file(&warehouse);
    let gcs = format!("http://{}", warehouse.server.gcs());
    let file = warehouse.server.objects("loads").remove(0).replace('/', "%2F");
    let bytes = warehouse.runtime.block_on(async {
        let url = format!("{gcs}/storage/v1/b/loads/o/{file}");
        let got = warehouse.http.get(&url).query(&[("alt", "media")]).send().await.unwrap();
        let bytes = got.error_for_status().unwrap().bytes().await.unwrap();
        warehouse.http.delete(&url).send().await.unwrap().error_for_status().unwrap();
        bytes
    });
    let failed = place.run(&["run", "p.yaml"]);
    assert_eq!(failed.code, 1);
    let told = "files of the last checkpoint are not in gs://loads/p/bigquery/p/d/ any more: restore";
    assert!(failed.err.contains(told), "{}", failed.err);
    warehouse.runtime.block_on(async {
        let url = format!("{gcs}/upload/storage/v1/b/loads/o?uploadType=media&name={file}");
        warehouse.http.post(url).body(bytes).send().await.unwrap().error_for_status().unwrap();
    });
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v FROM d.t_raw"), ["1|a"]);
}

/// Loads run beside the flow, and the engine only asked for their error when an epoch ended, which none does while no rows come: a pipeline
/// whose load had failed in a quiet hour stood as running, and loaded nothing until the next row.
#[test]
fn a_load_that_fails_while_no_rows_come_ends_the_run() {
    let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
    let often = config(&warehouse, ", follow: true").replace("15m", "2s");
    let place = Workplace::new(&often);
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1, "v": "a" }))]);
    warehouse.server.set_faults("script=jobs.insert@1*9:PERMISSION_DENIED".parse().unwrap());
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut running = place.command(&["run", "p.yaml"]).stderr(log).spawn().unwrap();
    let mut ended = None;
    wait(|| {
        ended = running.try_wait().unwrap();
        ended.is_some()
    });
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(1), "{log}");
    assert!(log.contains("grant a role with bigquery.jobs.create"), "{log}");
    assert_eq!(warehouse.server.objects("loads").len(), 1, "the file is kept");
}

/// Without the permission to delete objects a start ended before its first row. Files that are left are no harm.
#[test]
fn files_that_may_not_be_deleted_stay() {
    let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
    let place = killed_with_a_file(&warehouse);
    warehouse.server.set_faults("script=objects.delete@1*1000:PERMISSION_DENIED".parse().unwrap());
    append(&place, &[change("u", 11, json!({ "id": 1 }), json!({ "id": 1, "v": "b" }))]);
    let ended = place.run(&["run", "p.yaml"]).ok();
    let told = "stay in gs://loads/p/bigquery/p/d/: ";
    assert!(ended.err.contains(told) && ended.err.contains("storage.objects.delete"), "{}", ended.err);
    assert_eq!(warehouse.query("SELECT v FROM d.t_raw ORDER BY v"), ["a", "b"]);
    assert_eq!(warehouse.server.objects("loads").len(), 2);
}

#[test]
fn check_looks_at_the_bucket() {
    let warehouse = Warehouse::of(Server::builder().dataset("p", "d", "EU"));
    let place = Workplace::new(&config(&warehouse, ""));
    append(&place, &[]);
    let missing = place.run(&["check", "p.yaml"]);
    assert!(missing.out.contains("the bucket loads does not exist"), "{}", missing.out);
    let warehouse = Warehouse::of(Server::builder().dataset("p", "d", "EU").bucket("loads", "US"));
    place.write("p.yaml", config(&warehouse, ""));
    let elsewhere = place.run(&["check", "p.yaml"]);
    assert!(elsewhere.out.contains("the bucket loads is in US and the dataset in EU"), "{}", elsewhere.out);
    let denied = "deny=buckets/loads*:PERMISSION_DENIED".parse().unwrap();
    warehouse.server.set_faults(denied);
    let denied = place.run(&["check", "p.yaml"]);
    assert!(denied.out.contains("permission denied"), "{}", denied.out);
    // roles/storage.objectUser, which is all that a run needs, does not let one look where the bucket is: that was an error.
    let unseen = "script=buckets.get@1*9:PERMISSION_DENIED".parse().unwrap();
    warehouse.server.set_faults(unseen);
    let unseen = place.run(&["check", "p.yaml"]);
    assert!(unseen.out.contains("where the dataset is, in EU, cannot be seen"), "{}", unseen.out);
    assert_eq!(unseen.code, 0, "{}", unseen.out);
}

/// A drained run's last token still names its files, which are in their tables: another delivery may go on from it, and back.
#[test]
fn the_delivery_may_change_once_files_are_loaded() {
    let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
    let place = killed_with_a_file(&warehouse);
    place.write("p.yaml", warehouse.config("layout: append", ""));
    let refused = place.run(&["run", "p.yaml"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("names files that are not loaded"), "{}", refused.err);
    for (lsn, config) in [
        (11, config(&warehouse, "")),
        (12, warehouse.config("layout: append", "")),
        (13, config(&warehouse, "")),
    ] {
        place.write("p.yaml", config);
        append(&place, &[change("c", lsn, json!({ "id": lsn }), json!({ "id": lsn, "v": "b" }))]);
        written(&place);
    }
    assert_eq!(warehouse.query("SELECT id FROM d.t_raw ORDER BY id"), ["1", "11", "12", "13"]);
}
