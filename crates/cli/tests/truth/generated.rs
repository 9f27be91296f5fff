//! The generator of the benches says what a correct pipeline must find; the counts of a run are those.

use serde_json::{Value as Json, json};

use crate::feeder;
use crate::pipeline::Pipeline;

/// `gen_events.py tests/data/generated -n 20000 --keys 1500 --parts 1 --bad 0.005`, packed.
const EVENTS: &[u8] = include_bytes!("../data/generated.jsonl.gz");
const TRUTH: &str = include_str!("../data/generated.truth.json");

#[test]
fn counts_are_the_generators() {
    let pipeline = Pipeline::with(json!({
        "pipeline": "generated",
        "source": { "type": "files", "path": "in.jsonl.gz" },
        "tables": {
            "public.orders": { "key": ["order_id"] },
            "public.customers": { "key": ["customer_id"] },
        },
        "checkpoint": { "directory": "state" },
        "sinks": [
            { "type": "duckdb", "name": "history", "path": "out.duckdb", "dataset": "history" },
            { "type": "duckdb", "name": "hard", "path": "out.duckdb", "dataset": "hard", "layout": "replica", "delete": "hard" },
        ],
    }));
    feeder::append(&pipeline.path("in.jsonl.gz"), EVENTS);
    let summary = pipeline.run().unwrap();
    let truth: Json = serde_json::from_str(TRUTH).unwrap();
    let expected = |name: &str| truth[name].as_u64().unwrap_or_else(|| panic!("the truth has no {name}"));
    let counters = &summary.0["counters"];
    let of_tables = |name: &str| -> u64 {
        counters["tables"].as_object().unwrap().values().filter_map(|table| table[name].as_u64()).sum()
    };
    let dead: u64 = counters["dead"].as_object().unwrap().values().filter_map(Json::as_u64).sum();
    assert_eq!(counters["records"].as_u64(), Some(expected("events")));
    assert_eq!(dead, expected("malformed"));
    assert_eq!(of_tables("distinct"), expected("accepted"));
    let rows = |sql: &str| pipeline.open().query_row(sql, [], |row| row.get::<_, u64>(0)).unwrap();
    let history =
        "SELECT (SELECT count(*) FROM history.orders_raw) + (SELECT count(*) FROM history.customers_raw)";
    assert_eq!(rows(history), expected("accepted"));
    let live = "SELECT (SELECT count(*) FROM hard.orders) + (SELECT count(*) FROM hard.customers)";
    assert_eq!(rows(live), expected("live_keys"));
    let latest = "SELECT (SELECT count(*) FROM history.orders_latest) + (SELECT count(*) FROM history.customers_latest)";
    assert_eq!(rows(latest), expected("live_keys"));
    // The generator's checksum is over the last LSN and op of every key, in order of table and key.
    let last = |table: &str, key: &str| {
        format!(
            "SELECT '{table}' AS t, {key} AS k, max(__lsn) AS lsn, arg_max(__op, __lsn) AS op \
             FROM history.{table}_raw GROUP BY ALL"
        )
    };
    let sum = format!(
        "SELECT sha256(string_agg(t || ',' || k || ',' || lsn || ',' || op || chr(10), '' ORDER BY t, k)) FROM ({} UNION ALL {})",
        last("orders", "order_id"),
        last("customers", "customer_id")
    );
    let sum = pipeline.open().query_row(&sum, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(sum, truth["final_state_sha256"]);
    assert_eq!(summary.0["residues"], json!([]));
}
