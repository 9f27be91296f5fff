//! What the API answers and what it does.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use millstream_engine::{Clock, Phase, SystemClock};
use millstream_server::Bound;

use crate::client::{ask, get, post, raw};
use crate::world::{Running, Spring, run, wait};

fn event(table: &str, key: u32, lsn: u32) -> String {
    let now_ms = SystemClock.now().as_millis();
    format!("{table}|{key}|{lsn}|{}|{}", now_ms - 3000, now_ms - 1000)
}

fn ready(running: &Running) {
    wait("the pipeline", || get(running.address, "/readyz").status == 200);
}

const JSON: &str = "Content-Type: application/json";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pipeline_is_shown_while_it_runs() {
    let running = run(Spring::default(), None).await;
    let at = running.address;
    ready(&running);
    running.spring.pour(&[event("orders", 1, 10), event("orders", 1, 11), event("orders", 1, 11)]);
    running.spring.pour(&[event("customers", 1, 12), "heartbeat".to_owned(), "?".to_owned()]);
    wait("a checkpoint", || get(at, "/api/pipeline").json()["counters"]["records"] == 6);

    let pipeline = get(at, "/api/pipeline").json();
    assert_eq!(pipeline["pipeline"], "spring");
    assert_eq!(pipeline["phase"], "running");
    assert_eq!(pipeline["http"], at.to_string());
    assert_eq!(pipeline["counters"]["dead"]["invalid_line"], 1);
    assert_eq!(pipeline["source"]["outstanding_messages"], 7);
    assert!(pipeline["bytes_in"].as_u64().unwrap() > 0);
    let lag = pipeline["lag_seconds"].as_f64().unwrap();
    assert!((4.0..120.0).contains(&lag), "three seconds and the watermark's delay of one: {lag}");
    let latency = &pipeline["latency_seconds"]["source_to_warehouse"];
    assert_eq!(latency["events"], 4);
    assert!(latency["p95"].as_f64().unwrap() >= 2.5, "{latency}");
    let broker = pipeline["latency_seconds"]["source_to_broker"]["p50"].as_f64().unwrap();
    assert!((2.0..=2.125).contains(&broker), "two seconds, at most 6 % too long: {broker}");
    assert!(pipeline["rates"]["events_per_second"].is_f64());

    let tables = get(at, "/api/tables").json();
    let orders = &tables["tables"][1];
    assert_eq!((orders["table"].as_str(), orders["events"].as_u64()), (Some("public.orders"), Some(3)));
    assert_eq!(orders["duplicates"], 1);
    assert_eq!(tables["sinks"]["history"]["written"], 3);

    let checkpoints = get(at, "/api/checkpoints").json();
    let newest = &checkpoints["checkpoints"][0];
    assert_eq!(newest["epoch"], checkpoints["epoch"]);
    let records: u64 =
        checkpoints["checkpoints"].as_array().unwrap().iter().map(|c| c["records"].as_u64().unwrap()).sum();
    assert_eq!(records, 6);
    assert_eq!(get(at, "/healthz").json()["ok"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pipeline_does_what_it_is_told() {
    let running = run(Spring::default(), None).await;
    let at = running.address;
    ready(&running);
    assert_eq!(post(at, "/api/pause").status, 202);
    wait("the pause", || get(at, "/api/pipeline").json()["phase"] == "paused");
    assert_eq!(get(at, "/readyz").json()["phase"], "paused");
    running.spring.pour(&[event("orders", 1, 10)]);
    let asked = post(at, "/api/resume");
    assert_eq!((asked.status, asked.json()["asked"].as_str()), (202, Some("going on")));
    wait("the event", || get(at, "/api/pipeline").json()["counters"]["events"] == 1);

    let made = ask(at, "POST", "/api/savepoint", &[JSON], r#"{"name":"before"}"#);
    assert_eq!((made.status, made.json()["savepoint"].as_str()), (200, Some("/shelf/before")));
    let taken = ask(
        at,
        "POST",
        "/api/savepoint",
        &["Content-Type: application/json; charset=utf-8"],
        r#"{"name":"taken"}"#,
    );
    assert_eq!(taken.status, 409);
    assert!(taken.error().contains("choose another name"), "{taken:?}");

    assert_eq!(post(at, "/api/drain").status, 202);
    running.handle.wait().await.unwrap();
    let ended = get(at, "/readyz");
    assert_eq!((ended.status, ended.json()["phase"].as_str()), (503, Some("finished")));
    assert_eq!(get(at, "/healthz").status, 200, "the process lives");
    for path in ["drain", "cancel", "pause", "resume"] {
        assert_eq!(post(at, &format!("/api/{path}")).status, 409, "{path}");
    }
    assert_eq!(ask(at, "POST", "/api/savepoint", &[JSON], r#"{"name":"late"}"#).status, 409);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pipeline_that_does_not_flow_is_not_ready_and_says_why() {
    let spring = Spring::default();
    spring.held.store(true, Ordering::SeqCst);
    let running = run(spring, None).await;
    let at = running.address;
    let starting = get(at, "/readyz");
    assert_eq!((starting.status, starting.json()["phase"].as_str()), (503, Some("starting")));
    assert_eq!(starting.error(), "spring is starting");
    let early = ask(at, "POST", "/api/savepoint", &[JSON], r#"{"name":"early"}"#);
    assert_eq!(early.status, 503, "{early:?}");
    running.spring.held.store(false, Ordering::SeqCst);
    ready(&running);

    running.spring.broken.store(true, Ordering::SeqCst);
    wait("the failure", || running.handle.status().phase == Phase::Restarting);
    assert_eq!(get(at, "/readyz").status, 503);
    let pipeline = get(at, "/api/pipeline").json();
    assert_eq!(
        (pipeline["restarts"].as_u64(), pipeline["failure"].as_str()),
        (Some(1), Some("the spring dried up"))
    );
    let late = ask(at, "POST", "/api/savepoint", &[JSON], r#"{"name":"late"}"#);
    assert_eq!(late.status, 503, "{late:?}");
    assert_eq!(post(at, "/api/cancel").status, 202);
    running.handle.wait().await.unwrap();
    assert!(running.handle.is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_makes_no_sense_is_answered_and_changes_nothing() {
    let running = run(Spring::default(), None).await;
    let at = running.address;
    ready(&running);
    for path in
        ["/", "/api", "/api/pipeline/", "/api/nothing", "//", "/api/%2e%2e/metrics", "/api/pipeline%00"]
    {
        let answer = get(at, path);
        assert_eq!((answer.status, answer.error().as_str()), (404, "nothing is here"), "{path}");
    }
    assert_eq!(get(at, "/api/drain").status, 405);
    assert_eq!(get(at, "/api/drain").error(), "this path takes another method");
    assert_eq!(post(at, "/api/pipeline").status, 405);
    assert_eq!(ask(at, "DELETE", "/api/pipeline", &[], "").status, 405);

    let savepoint = |headers: &[&str], body: &str| ask(at, "POST", "/api/savepoint", headers, body);
    assert_eq!(savepoint(&[], r#"{"name":"a"}"#).status, 415);
    assert_eq!(savepoint(&["Content-Type: text/plain"], r#"{"name":"a"}"#).status, 415);
    for body in ["", "{", "[]", "null", "{}", r#"{"name":1}"#, r#"{"name":"a","x":1}"#, "\u{0}"] {
        assert_eq!(savepoint(&[JSON], body).status, 400, "{body}");
    }
    let large = format!(r#"{{"name":"{}"}}"#, "a".repeat(100_000));
    let large = savepoint(&[JSON], &large);
    assert_eq!(large.status, 413, "{large:?}");
    let head = raw(
        at,
        format!("GET /healthz HTTP/1.1\r\nHost: {at}\r\nX: {}\r\n\r\n", "a".repeat(100_000)).as_bytes(),
    );
    assert_eq!(head.status, 431);
    assert_eq!(raw(at, b"not HTTP at all\r\n\r\n").status, 400);

    assert_eq!(ask(at, "POST", "/api/cancel", &["Origin: http://evil.example"], "").status, 403);
    assert_eq!(ask(at, "POST", "/api/cancel", &["Sec-Fetch-Site: cross-site"], "").status, 403);
    assert_eq!(ask(at, "GET", "/api/pipeline", &["Host: evil.example"], "").status, 403);
    assert_eq!(running.handle.status().phase, Phase::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_token_is_needed_to_change_anything_where_there_is_one() {
    let running = run(Spring::default(), Some("a-token-that-nobody-guesses")).await;
    let at = running.address;
    ready(&running);
    assert_eq!(ask(at, "GET", "/api/pipeline", &["Host: pipelines.internal"], "").status, 200);
    let refused = post(at, "/api/cancel");
    assert_eq!(refused.status, 401);
    assert!(refused.head.to_lowercase().contains("www-authenticate: bearer"), "{refused:?}");
    assert!(!refused.error().contains("a-token"));
    let with =
        |token: &str| ask(at, "POST", "/api/pause", &[&format!("Authorization: Bearer {token}")], "").status;
    assert_eq!(with("a-token-that-nobody-guesse"), 401);
    assert_eq!(with("a-token-that-nobody-guesses"), 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_port_that_is_taken_is_told_and_a_closed_one_is_free() {
    let running = run(Spring::default(), None).await;
    let at: SocketAddr = running.address;
    let error = Bound::bind(at, "http.listen").await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("cannot listen on {at} (`http.listen`): another program has the port")),
        "{text}"
    );
    assert_eq!(error.kind(), millstream_core::Kind::Fatal);
    running.server.close().await;
    Bound::bind(at, "http.listen").await.unwrap();
}
