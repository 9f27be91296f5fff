//! A running pipeline over HTTP, from outside.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use crate::workplace::{Running, Workplace, corpus, wait};

fn shop(http: &str) -> Workplace {
    let place = Workplace::new(&format!(
        "source: {{ type: files, path: in.jsonl, lines: record, follow: true, poll_interval: 50ms }}
checkpoint: {{ interval: 100ms }}
sinks:
  - {{ type: duckdb, name: history, path: o.duckdb, layout: append }}
{http}
"
    ));
    place.write("in.jsonl", std::fs::read(corpus("shop.plain.jsonl")).unwrap());
    place
}

fn status(place: &Workplace) -> Value {
    place.run(&["status", "p.yaml", "--json"]).json()
}

/// Runs it until everything is read; the run, and the ports of its API and its metrics.
fn run(place: &Workplace) -> (Running, [u16; 2]) {
    let running = place.start(&["run", "p.yaml", "--json"], || {
        place.path(".millstream/p/control.sock").exists() && status(place)["counters"]["records"] == 137
    });
    let shown = status(place);
    let port = |key: &str| shown[key].as_str().map_or(0, |a| a.rsplit(':').next().unwrap().parse().unwrap());
    (running, [port("http"), port("metrics")])
}

/// The answer's status and body.
fn ask(port: u16, request: &str, headers: &[&str], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn get(port: u16, path: &str) -> Value {
    let (status, body) = ask(port, &format!("GET {path}"), &[], "");
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn a_running_pipeline_answers_over_http_and_does_what_it_is_told() {
    let place = shop("http: { listen: 127.0.0.1:0 }\nmetrics: { listen: 127.0.0.1:0 }");
    let (running, [http, metrics]) = run(&place);
    assert_eq!(get(http, "/healthz")["ok"], true);
    assert_eq!(get(http, "/readyz")["phase"], "running");
    let shown = get(http, "/api/pipeline");
    assert_eq!((shown["pipeline"].as_str(), shown["counters"]["events"].as_u64()), (Some("p"), Some(116)));
    assert_eq!(shown["http"], format!("127.0.0.1:{http}"));
    assert_eq!(get(http, "/api/tables")["tables"][1]["table"], "public.orders");
    assert_eq!(get(http, "/api/checkpoints")["checkpoints"][0]["epoch"], shown["epoch"]);
    assert_eq!(ask(http, "GET /api/nothing", &[], "").0, 404);
    assert_eq!(ask(http, "POST /api/cancel", &["Origin: http://evil.example"], "").0, 403);
    for port in [http, metrics] {
        let (status, text) = ask(port, "GET /metrics", &[], "");
        assert_eq!(status, 200);
        for line in [
            "millstream_up{pipeline=\"p\"} 1",
            "millstream_events_total{pipeline=\"p\",table=\"public.orders\"} 96",
            "millstream_sink_written_rows_total{pipeline=\"p\",sink=\"history\"} 116",
            "millstream_conservation_residues{pipeline=\"p\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
    assert_eq!(ask(metrics, "POST /api/cancel", &[], "").0, 404, "metrics can only be read");

    assert_eq!(ask(http, "POST /api/pause", &[], "").0, 202);
    wait(|| get(http, "/readyz")["phase"] == "paused");
    assert_eq!(ask(http, "POST /api/resume", &[], "").0, 202);
    wait(|| status(&place)["phase"] == "running");
    let (code, made) =
        ask(http, "POST /api/savepoint", &["Content-Type: application/json"], r#"{"name":"one"}"#);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(code, 200, "{made}");
    assert!(place.path(made["savepoint"].as_str().unwrap()).exists(), "{made}");
    let again = ask(http, "POST /api/savepoint", &["Content-Type: application/json"], r#"{"name":"one"}"#);
    assert_eq!(again.0, 409, "{}", again.1);

    // What is answered over HTTP can be read to its end although the process ends.
    let (code, asked) = ask(http, "POST /api/drain", &[], "");
    assert_eq!(
        (code, serde_json::from_str::<Value>(&asked).unwrap()["asked"].as_str()),
        (202, Some("finishing what is in flight"))
    );
    assert_eq!(running.end().ok().json()["phase"], "finished");
}

#[test]
fn the_commands_reach_a_pipeline_by_its_url() {
    let place = shop("http: { listen: 0.0.0.0:0, token: a-token-that-nobody-guesses }");
    let (running, [http, metrics]) = run(&place);
    assert_eq!(metrics, 0, "nobody asked for any");
    let url = format!("http://localhost:{http}");
    // Another folder: there is no config.
    let elsewhere = Workplace::new("");
    let told = |words: &[&str]| {
        elsewhere.run(&[words, &["--url", &url, "--token", "a-token-that-nobody-guesses"]].concat())
    };
    let shown = elsewhere.run(&["status", "--url", &url, "--json"]).ok().json();
    assert_eq!(shown["counters"]["records"], 137);
    let text = elsewhere.run(&["status", "--url", &url]).ok().out;
    assert!(
        text.starts_with("p: running\n") && text.contains(&format!("HTTP API: 0.0.0.0:{http}\n")),
        "{text}"
    );

    let refused = elsewhere.run(&["cancel", "--url", &url]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("Authorization: Bearer") && refused.err.contains("401"), "{}", refused.err);
    assert_eq!(elsewhere.run(&["cancel", "--url", &url, "--token", "a-guess"]).code, 1);

    assert_eq!(told(&["pause"]).ok().out, "p: pausing\n");
    wait(|| status(&place)["phase"] == "paused");
    assert_eq!(told(&["resume", "--json"]).ok().json()["asked"], "going on");
    let made = told(&["savepoint", "far"]).ok().out;
    assert!(place.path(made.trim()).exists(), "{made}");
    let again = told(&["savepoint", "far"]);
    assert!(again.code == 1 && again.err.contains("409"), "{}", again.err);
    told(&["drain"]).ok();
    running.end().ok();
    let gone = told(&["status"]);
    assert!(gone.code == 1 && gone.err.contains(&format!("cannot reach {url}")), "{}", gone.err);
}

#[test]
fn what_cannot_be_reached_or_had_is_told() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let place = shop(&format!("metrics: {{ listen: '{taken}' }}"));
    let refused = place.run(&["run", "p.yaml"]);
    assert_eq!(refused.code, 1);
    let says = format!("cannot listen on {taken} (`metrics.listen`): another program has the port");
    assert!(refused.err.contains(&says), "{}", refused.err);
    assert!(!place.path("o.duckdb").exists(), "nothing was begun");
    place.write("p.yaml", "source: { type: files, path: in.jsonl }\nsinks: [{ type: discard }]\nhttp: { listen: 0.0.0.0:8080 }\n");
    let open = place.run(&["check", "p.yaml"]);
    assert!(open.code == 2 && open.err.contains("it needs a `token`"), "{}", open.err);
    for words in [
        &["status"][..],
        &["savepoint"],
        &["savepoint", "name"],
        &["status", "p.yaml", "--url", "http://localhost:1"],
        &["status", "p.yaml", "--token", "t"],
        &["status", "--url", "localhost:8080"],
        &["status", "--url", "https://localhost"],
    ] {
        assert_eq!(place.run(words).code, 2, "{words:?}");
    }
}
