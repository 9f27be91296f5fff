//! Datasets, tables and jobs over REST.

use millstream_bigquery_emulator::Server;
use serde_json::{Value, json};

use crate::world::*;

fn schema(fields: Value) -> Value {
    json!({"tableReference": {"tableId": "x"}, "schema": {"fields": fields}})
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_grow_and_do_not_shrink() {
    let world = World::empty(Server::builder()).await;
    let fields = json!([
        {"name": "id", "type": "INTEGER", "mode": "REQUIRED", "description": "key"},
        {"name": "r", "type": "RECORD", "mode": "REPEATED", "fields": [{"name": "a", "type": "STRING"}]},
    ]);
    let (status, made) = world.call("POST", "/datasets/d/tables", schema(fields)).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(made["schema"]["fields"][0]["description"], "key");
    world.sql("INSERT INTO d.x (id, r) VALUES (1, [STRUCT('q' AS a)])").await;
    let wider = json!([
        {"name": "ID", "type": "INT64", "mode": "NULLABLE"},
        {"name": "r", "type": "STRUCT", "mode": "REPEATED",
         "fields": [{"name": "a", "type": "STRING"}, {"name": "b", "type": "FLOAT64"}]},
        {"name": "new", "type": "TIMESTAMP"},
    ]);
    let (status, body) =
        world.call("PATCH", "/datasets/d/tables/x", json!({"schema": {"fields": wider}})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["schema"]["fields"][0]["mode"], "NULLABLE");
    assert_ne!(body["etag"], made["etag"]);
    let cells = json!([{"v": {"f": [{"v": "q"}, {"v": null}]}}]);
    assert_eq!(world.sql("SELECT * FROM d.x").await, [[json!("1"), cells, Value::Null]]);
    let refused = [
        json!([{"name": "id", "type": "INTEGER"}]),
        json!([{"name": "id", "type": "STRING"}, {"name": "r", "type": "RECORD", "mode": "REPEATED",
                "fields": [{"name": "a", "type": "STRING"}, {"name": "b", "type": "FLOAT"}]}, {"name": "new", "type": "TIMESTAMP"}]),
    ];
    for fields in refused {
        let (status, body) =
            world.call("PATCH", "/datasets/d/tables/x", json!({"schema": {"fields": fields}})).await;
        assert_eq!(status, 400);
        assert!(
            body["error"]["message"].as_str().unwrap().contains("Provided Schema does not match"),
            "{body}"
        );
    }
    let bad = [
        json!([{"name": "_CHANGE_TYPE", "type": "STRING"}]),
        json!([{"name": "a", "type": "STRING"}, {"name": "A", "type": "STRING"}]),
        json!([{"name": "a.b", "type": "STRING"}]),
        json!([{"name": "a", "type": "NOPE"}]),
        json!([{"name": "a", "type": "RECORD"}]),
    ];
    for fields in bad {
        let mut body = schema(fields);
        body["tableReference"]["tableId"] = json!("y");
        assert_eq!(world.call("POST", "/datasets/d/tables", body).await.0, 400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_their_form() {
    let world = World::empty(Server::builder()).await;
    let (status, body) = world.call("GET", "/datasets/nope", Value::Null).await;
    assert_eq!(status, 404);
    assert_eq!(body["error"]["errors"][0]["reason"], "notFound");
    assert_eq!((&body["error"]["code"], &body["error"]["status"]), (&json!(404), &json!("NOT_FOUND")));
    let (status, body) = world.try_sql("SELECT 1 FRM x").await;
    assert_eq!((status, body["error"]["errors"][0]["reason"].as_str()), (400, Some("invalidQuery")));
    let dataset = json!({"datasetReference": {"datasetId": "d"}});
    assert_eq!(world.call("POST", "/datasets", dataset).await.0, 409);
    assert_eq!(world.call("POST", "/nothing", Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_known_by_their_ids() {
    let world = World::empty(Server::builder()).await;
    let job = |sql: &str, id: &str| {
        json!({"jobReference": {"projectId": "p", "jobId": id, "location": "US"},
               "configuration": {"query": {"query": sql, "useLegacySql": false}}})
    };
    let (status, body) =
        world.call("POST", "/jobs", job("SELECT 1 AS a UNION ALL SELECT 2 ORDER BY 1", "j1")).await;
    assert_eq!((status, &body["status"]["state"]), (200, &json!("DONE")));
    let (status, body) = world.call("POST", "/jobs", job("SELECT 2", "j1")).await;
    assert_eq!((status, body["error"]["errors"][0]["reason"].as_str()), (409, Some("duplicate")));
    let (_, first) = world.call("GET", "/queries/j1?location=US&maxResults=1", Value::Null).await;
    assert_eq!((&first["totalRows"], &first["rows"][0]["f"][0]["v"]), (&json!("2"), &json!("1")));
    let token = first["pageToken"].as_str().unwrap();
    let (_, second) = world.call("GET", &format!("/queries/j1?pageToken={token}"), Value::Null).await;
    assert_eq!(second["rows"], json!([{"f": [{"v": "2"}]}]));
    let (status, failed) = world.call("POST", "/jobs", job("SELECT * FROM d.nope", "j2")).await;
    assert_eq!((status, &failed["status"]["errorResult"]["reason"]), (200, &json!("notFound")));
    assert_eq!(world.call("GET", "/queries/j2", Value::Null).await.0, 404);
    assert_eq!(world.call("GET", "/jobs/j2?location=US", Value::Null).await.0, 200);
    assert_eq!(world.call("GET", "/jobs/j2?location=EU", Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_elsewhere_does_not_find_a_dataset() {
    let world = World::empty(Server::builder().dataset("p", "eu", "EU")).await;
    world.sql("CREATE TABLE eu.t (a INT64)").await;
    let query =
        |location: &str| json!({"query": "SELECT * FROM eu.t", "useLegacySql": false, "location": location});
    assert_eq!(world.call("POST", "/queries", query("EU")).await.0, 200);
    let (status, body) = world.call("POST", "/queries", query("US")).await;
    assert_eq!(status, 404);
    assert!(body["error"]["message"].as_str().unwrap().contains("was not found in location US"), "{body}");
    let (_, body) = world.try_sql("SELECT * FROM eu.t").await;
    assert_eq!(body["jobReference"]["location"], "EU");
}

#[tokio::test(flavor = "multi_thread")]
async fn timestamps_and_pages_of_table_data() {
    let world = World::empty(Server::builder()).await;
    world.sql("CREATE TABLE d.x (a INT64, t TIMESTAMP)").await;
    world.sql("INSERT INTO d.x VALUES (1, TIMESTAMP '2023-11-14 22:13:20.5+00'), (2, NULL)").await;
    let (_, page) = world.call("GET", "/datasets/d/tables/x/data?maxResults=1", Value::Null).await;
    assert_eq!(page["rows"][0]["f"][1]["v"], "1.7000000005E9");
    let path = "/datasets/d/tables/x/data?formatOptions.useInt64Timestamp=true&selectedFields=t";
    let (_, page) = world.call("GET", path, Value::Null).await;
    assert_eq!(page["rows"], json!([{"f": [{"v": "1700000000500000"}]}, {"f": [{"v": null}]}]));
}
