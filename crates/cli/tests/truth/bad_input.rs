//! Bad input is data: among 10,000 good records every kind of malformed one becomes a dead letter with its cause and its
//! original bytes, and everything good lands.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value as Json, json};

use crate::corpus::{self, Variant};
use crate::feeder::{self, Random};
use crate::pipeline::Pipeline;

const GOOD: usize = 10_000;
/// Of each kind.
const BAD: usize = 10;
const LONG: usize = 10 << 20;
/// A debug build takes about 280 MiB, DuckDB and records of 10 MiB included.
const MEMORY_BYTES_MAX: u64 = 450 << 20;

/// Good envelopes, and one of them as a JSON value to spoil.
fn envelopes() -> (Vec<String>, Json) {
    let bench = Variant { scenario: "bench", name: "plain", decode: &[] };
    let mut good = Vec::new();
    let mut model = Json::Null;
    for line in bench.lines() {
        let record: Json = serde_json::from_str(&line).unwrap();
        let Some(value) = record["value"].as_str() else { continue };
        let envelope: Json = serde_json::from_str(value).unwrap();
        if !matches!(envelope["op"].as_str(), Some("r" | "c" | "u" | "d")) {
            continue;
        }
        if model.is_null() && envelope["op"] == "u" && envelope["source"]["table"] == "orders" {
            model = envelope;
        }
        good.push(value.to_owned());
        if good.len() == GOOD {
            break;
        }
    }
    (good, model)
}

/// The model with the value at `pointer` replaced, or removed if `value` is `None`.
fn spoiled(model: &Json, pointer: &str, value: Option<Json>) -> Vec<u8> {
    let mut model = model.clone();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let fields = model.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => drop(fields.insert(name.to_owned(), value)),
        None => drop(fields.remove(name)),
    }
    model.to_string().into_bytes()
}

/// A bad line with the stage and code of its dead letter.
type Bad = (Vec<u8>, &'static str, &'static str);

/// Every kind of bad line, `number` making each one different.
fn bad_lines(model: &Json, number: usize) -> Vec<Bad> {
    let mut model = model.clone();
    model["source"]["txId"] = number.into();
    let text = model.to_string();
    let marked = |mark: &str| text.replace("\"status\":\"", &format!("\"status\":\"{mark}"));
    let mut not_utf8 = marked("@@").into_bytes();
    let at = not_utf8.windows(2).position(|w| w == b"@@").unwrap();
    not_utf8[at] = 0xff;
    let number_at = |pointer: &str, digits: &str| {
        let text = String::from_utf8(spoiled(&model, pointer, Some("@@".into()))).unwrap();
        text.replace("\"@@\"", digits).into_bytes()
    };
    let with = |pointer: &str, value: Json| spoiled(&model, pointer, Some(value));
    let without = |pointer: &str| spoiled(&model, pointer, None);
    let deep = format!("{{\"n\":{number},\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
    vec![
        (text.as_bytes()[..text.len() / 2].to_vec(), "parse", "invalid_json"),
        (format!("no JSON at all, {number}").into_bytes(), "parse", "invalid_json"),
        (not_utf8, "parse", "invalid_utf8"),
        (marked("\u{0}").into_bytes(), "parse", "invalid_json"),
        (format!("\u{0}\u{0}{number}").into_bytes(), "parse", "invalid_json"),
        (marked("\\ud800").into_bytes(), "parse", "invalid_json"),
        (deep.into_bytes(), "parse", "too_deep"),
        (format!("{text} {text}").into_bytes(), "parse", "trailing_data"),
        (format!("{text}{{").into_bytes(), "parse", "trailing_data"),
        (without("/op"), "validate", "missing_field"),
        (without("/source"), "validate", "missing_field"),
        (without("/after"), "validate", "missing_field"),
        (without("/source/table"), "validate", "missing_field"),
        (without("/after/order_id"), "validate", "missing_key"),
        (with("/op", "x".into()), "validate", "unknown_op"),
        (with("/op", 5.into()), "validate", "wrong_type"),
        (with("/source/lsn", "many".into()), "validate", "wrong_type"),
        (with("/after", json!([1, 2])), "validate", "wrong_type"),
        (with("/after/order_date", json!({ "year": 2024 })), "validate", "wrong_type"),
        (with("/after/total_amount", "§".into()), "validate", "invalid_value"),
        (number_at("/source/lsn", "123456789012345678901234567890"), "validate", "wrong_type"),
        (number_at("/after/order_id", "1e400"), "validate", "wrong_type"),
        (format!("[{number}]").into_bytes(), "validate", "not_an_object"),
        (format!("\"{number}\"").into_bytes(), "validate", "not_an_object"),
        (text.replacen("\"op\":", "\"op\":\"u\",\"op\":", 1).into_bytes(), "validate", "duplicate_field"),
        (
            format!("{{\"schema\":{{\"type\":\"struct\"}},\"n\":{number}}}").into_bytes(),
            "validate",
            "missing_field",
        ),
    ]
}

/// The file's bytes, and each bad line by its offset.
fn mixed() -> (Vec<u8>, BTreeMap<u64, Bad>) {
    let (good, model) = envelopes();
    let mut lines: Vec<(u64, Vec<u8>, Option<(&str, &str)>)> = Vec::new();
    let mut random = Random::new(5);
    for (i, line) in good.into_iter().enumerate() {
        lines.push(((i as u64) << 20, line.into_bytes(), None));
    }
    let mut anywhere = || random.below((GOOD as u64) << 20);
    for number in 0..BAD {
        for (line, stage, code) in bad_lines(&model, number) {
            lines.push((anywhere(), line, Some((stage, code))));
        }
        lines.push((anywhere(), Vec::new(), None));
        lines.push((anywhere(), b"  \t".to_vec(), None));
    }
    for _ in 0..3 {
        let open = [b"{\"op\":\"".to_vec(), vec![b'x'; LONG]].concat();
        lines.push((anywhere(), open, Some(("parse", "invalid_json"))));
    }
    // Of another table, whose key the first config gets wrong.
    for number in 0..BAD {
        let mut other = model.clone();
        other["source"]["table"] = "other".into();
        other["after"]["order_id"] = number.into();
        lines.push((anywhere(), other.to_string().into_bytes(), Some(("validate", "missing_key"))));
    }
    // Long, and as good as any other.
    let mut long = model.clone();
    long["source"]["table"] = "long".into();
    long["after"]["shipping_address"] = "y".repeat(LONG).into();
    lines.push((anywhere(), long.to_string().into_bytes(), None));
    lines.sort_by_key(|(place, ..)| *place);
    let mut text = Vec::new();
    let mut bad = BTreeMap::new();
    for (_, line, fate) in lines {
        if let Some((stage, code)) = fate {
            bad.insert(text.len() as u64, (line.clone(), stage, code));
        }
        text.extend(line);
        text.push(b'\n');
    }
    (text, bad)
}

fn config() -> Json {
    let schema = |table: &str| corpus::folder().join(format!("schemas/bench/public.{table}.json"));
    json!({
        "pipeline": "bad",
        "source": { "type": "files", "path": "in.jsonl" },
        "tables": {
            "public.orders": { "key": ["order_id"], "schema": schema("orders") },
            "public.customers": { "key": ["customer_id"], "schema": schema("customers") },
            "public.long": { "key": ["order_id"] },
            "public.other": { "key": ["nothing_like_it"] },
        },
        "checkpoint": { "directory": "state", "interval": "200ms" },
        "sinks": [{ "type": "duckdb", "name": "history", "path": "out.duckdb", "dataset": "history" }],
    })
}

#[test]
fn bad_records_become_dead_letters_and_good_ones_land() {
    let (text, bad) = mixed();
    let mut pipeline = Pipeline::with(config());
    feeder::append(&pipeline.path("in.jsonl"), &text);

    let memory = run_and_measure(&pipeline);
    println!("{} MiB at most for a file of {} MiB", memory >> 20, text.len() >> 20);
    assert!(memory < MEMORY_BYTES_MAX, "the process took {} MiB", memory >> 20);

    let rows = |pipeline: &Pipeline, table: &str| {
        let sql = format!("SELECT count(*) FROM history.{table}");
        pipeline.open().query_row(&sql, [], |row| row.get::<_, u64>(0)).unwrap_or(0)
    };
    assert_eq!(rows(&pipeline, "orders_raw") + rows(&pipeline, "customers_raw"), GOOD as u64);
    assert_eq!(rows(&pipeline, "long_raw"), 1);

    let letters = letters(&pipeline);
    let wrong = compare(&bad, &letters);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // With the key mended, the other table's letters are good records.
    assert_eq!(rows(&pipeline, "other_raw"), 0);
    pipeline.set("/tables/public.other/key", json!(["order_id"]));
    pipeline.execute(&["dead-letters", "replay", "CONFIG", "--table", "public.other"]);
    assert_eq!(rows(&pipeline, "other_raw"), BAD as u64);
    let listed = list(&pipeline);
    let replayed: u64 = listed.iter().filter_map(|group| group["replayed"].as_u64()).sum();
    assert_eq!(replayed, BAD as u64);
    // Once is enough.
    pipeline.execute(&["dead-letters", "replay", "CONFIG", "--table", "public.other"]);
    assert_eq!(rows(&pipeline, "other_raw"), BAD as u64);
}

/// Runs the pipeline; the most memory that it had, bytes.
fn run_and_measure(pipeline: &Pipeline) -> u64 {
    let log = std::fs::File::create(pipeline.path("log.txt")).unwrap();
    let mut command = pipeline.command(&["run", "CONFIG", "--until-idle"]);
    let mut process = command.stdout(std::process::Stdio::null()).stderr(log).spawn().unwrap();
    let status_file = format!("/proc/{}/status", process.id());
    let mut most = 0;
    loop {
        let status = std::fs::read_to_string(&status_file).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0);
        most = most.max(kib * 1024);
        if let Some(status) = process.try_wait().unwrap() {
            assert!(status.success(), "{}", std::fs::read_to_string(pipeline.path("log.txt")).unwrap());
            return most;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What `dead-letters list` counts.
fn list(pipeline: &Pipeline) -> Vec<Json> {
    let output = pipeline.execute(&["dead-letters", "list", "CONFIG", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every letter whole, as `dead-letters show` prints it.
fn letters(pipeline: &Pipeline) -> Vec<Json> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for group in list(pipeline) {
        *counts.entry(group["stage"].as_str().unwrap().to_owned()).or_default() +=
            group["letters"].as_u64().unwrap();
    }
    let ids: Vec<String> = counts
        .iter()
        .flat_map(|(stage, n)| (1..=*n).map(move |number| format!("{stage}-{number}")))
        .collect();
    let words =
        ["dead-letters", "show", "CONFIG", "--json"].into_iter().chain(ids.iter().map(String::as_str));
    let output = pipeline.execute(&words.collect::<Vec<_>>());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn compare(bad: &BTreeMap<u64, Bad>, letters: &[Json]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for letter in letters {
        let offset = letter["offset"].as_u64().unwrap();
        let shown = format!("{} {} at {offset}: {}", letter["stage"], letter["code"], letter["cause"]);
        let Some((line, stage, code)) = bad.get(&offset) else {
            wrong.push(format!("{shown}: no bad line is there"));
            continue;
        };
        if !seen.insert(offset) {
            wrong.push(format!("{shown}: a second letter"));
        }
        if letter["stage"] != *stage || letter["code"] != *code {
            let head = String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
            wrong.push(format!("{shown}: expected {stage} {code} for {head}"));
        }
        let value = match &letter["value"] {
            Json::String(text) => text.as_bytes().to_vec(),
            other => {
                base64::engine::general_purpose::STANDARD.decode(other["base64"].as_str().unwrap()).unwrap()
            }
        };
        if value != *line {
            wrong.push(format!("{shown}: {} bytes are kept of {}", value.len(), line.len()));
        }
        if !letter["partition"].as_str().unwrap().contains("in.jsonl") {
            wrong.push(format!("{shown}: the file is not named"));
        }
    }
    let missing = bad.iter().filter(|(offset, _)| !seen.contains(offset));
    wrong.extend(
        missing
            .map(|(offset, (_, stage, code))| format!("no letter {stage} {code} for the line at {offset}")),
    );
    wrong
}
