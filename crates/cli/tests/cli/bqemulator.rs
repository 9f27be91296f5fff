//! The pipeline against bqemulator, an emulator of BigQuery that others have written.
//!
//! It reads no NUMERICs as bytes, knows no structs and shows one row less at a flush, so that histories of plain columns, at least once, are
//! what it can judge.

// It says why it is left out where it is.
#[allow(clippy::print_stdout)]
#[path = "../../../bigquery/tests/bqemulator/server.rs"]
mod server;

use serde_json::json;

use crate::workplace::{Workplace, corpus};

#[test]
fn a_history_and_its_view_in_an_independent_emulator() {
    let Some(server) = server::Server::start() else { return };
    let (rest, grpc) = (server.connection.rest.clone().unwrap(), server.connection.grpc.clone().unwrap());
    let place = Workplace::new(&format!(
        "source: {{ type: files, path: in.jsonl, lines: record }}
sinks:
  - {{ type: bigquery, project: p, dataset: d, layout: append, delivery: at-least-once, endpoints: {{ rest: \"{rest}\", grpc: \"{grpc}\" }} }}
"
    ));
    place.write("in.jsonl", std::fs::read(corpus("shop.plain.jsonl")).unwrap());
    let summary = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(summary["counters"]["sinks"]["bigquery"]["written"], 116);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let query = |sql: &str| -> Vec<String> {
        let body = json!({ "query": sql, "useLegacySql": false });
        let request =
            reqwest::Client::new().post(format!("{rest}/bigquery/v2/projects/p/queries")).json(&body);
        let answer: serde_json::Value =
            runtime.block_on(async { request.send().await.unwrap().json().await.unwrap() });
        let cell = |cell: &serde_json::Value| cell["v"].as_str().unwrap_or("NULL").to_owned();
        let row = |row: &serde_json::Value| {
            row["f"].as_array().unwrap().iter().map(cell).collect::<Vec<_>>().join("|")
        };
        answer["rows"].as_array().unwrap_or_else(|| panic!("{sql}: {answer}")).iter().map(row).collect()
    };
    assert_eq!(query("SELECT COUNT(*) FROM `p.d.orders_raw`"), ["96"]);
    assert_eq!(query("SELECT COUNT(*) FROM `p.d.customers_raw` WHERE __op = 'd'"), ["2"]);
    assert_eq!(
        query("SELECT order_id, status FROM `p.d.orders_latest` ORDER BY order_id"),
        ["1101|paid", "1103|new", "1104|new", "1105|new", "1106|new"]
    );
}
