//! What can be wrong with subscriptions, credentials and messages, and what becomes of it: the README's table, row by row.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use serde_json::json;

use crate::service::{Service, key_of, message, note};
use crate::workplace::{Ended, Workplace, wait};

fn config(service: &Service, project: &str, subscription: &str) -> String {
    format!(
        "pipeline: p
source: {{ type: pubsub, project: {project}, subscriptions: {subscription}, endpoint: '{0}' }}
dead_letters: {{ type: pubsub, project: p, topic: dead, subscription: dead-sub, endpoint: '{0}' }}
checkpoint: {{ directory: state, interval: 100ms }}
restart: {{ attempts: 0 }}
sinks: [{{ type: duckdb, path: o.duckdb, layout: append }}]
",
        service.endpoint()
    )
}

/// A run that must fail.
fn failure(config: &str) -> Ended {
    let ended = Workplace::new(config).run(&["run", "p.yaml"]);
    assert_eq!(ended.code, 1, "{}\n{}", ended.out, ended.err);
    ended
}

#[test]
fn a_subscription_or_project_that_does_not_exist_is_named() {
    let service = Service::with(&["notes", "dead"]);
    for (project, subscription) in [("p", "missing"), ("wrong", "notes-sub")] {
        let ended = failure(&config(&service, project, subscription));
        let name = format!("projects/{project}/subscriptions/{subscription}");
        assert!(ended.err.contains(&format!("cannot pull from {name}: it does not exist")), "{}", ended.err);
    }
}

#[test]
fn missing_permissions_and_expired_credentials_are_named() {
    let service = Service::with(&["notes", "dead"]);
    let name = "projects/p/subscriptions/notes-sub";
    for (code, says) in [
        ("PERMISSION_DENIED", "permission denied; grant roles/pubsub.subscriber"),
        ("UNAUTHENTICATED", "the credentials were refused or have expired; renew them"),
    ] {
        service.set_faults(&format!("deny={name}:{code}"));
        let ended = failure(&config(&service, "p", "notes-sub"));
        assert!(ended.err.contains(&format!("cannot pull from {name}: {says}")), "{}", ended.err);
    }
}

/// A credentials file that is none. Nothing of it is shown.
#[test]
fn a_credentials_file_that_cannot_be_used_is_named() {
    let config = "source: { type: pubsub, project: p, subscriptions: notes-sub, endpoint: 'https://localhost:1', credentials: key.json }
sinks: [{ type: discard }]
";
    let place = Workplace::new(config);
    let run = || place.run(&["run", "p.yaml"]);
    let says = |ended: Ended, text: &str| {
        assert_eq!(ended.code, 1);
        assert!(ended.err.contains(text) && ended.err.contains("key.json"), "{}", ended.err);
        assert!(!ended.err.contains("hunter2"), "{}", ended.err);
    };
    says(run(), "cannot read the credentials file");
    place.write("key.json", "hunter2");
    says(run(), "is no JSON");
    place.write("key.json", r#"{"type":"hunter2"}"#);
    says(run(), "is of no known type");
}

/// Every kind of message that Pub/Sub takes: keys as long as can be, messages as large as can be, without data, without JSON, without
/// an event.
#[test]
fn every_kind_of_message_becomes_a_row_a_tombstone_or_a_dead_letter() {
    let service = Service::with(&["notes", "dead"]);
    let (key, code) = key_of(1024);
    let with_key = |key: &str, data: String| full(key, &[], data.into_bytes());
    let large = "x".repeat(9_900_000);
    let messages = [
        with_key(&key, note(&code, "a long key")),
        with_key(r#"{"code":"large"}"#, note("large", &large)),
        // Debezium's key of rows without one.
        with_key("default", note("keyless", "")),
        full(r#"{"code":"gone"}"#, &[("op", "d")], Vec::new()),
        full("", &[("only", "attributes")], Vec::new()),
        message("no json"),
        message(&b"\xff\xfe"[..]),
        message("[1]"),
        message("{\"a\":1}"),
        message(large.clone()),
    ];
    for message in messages {
        service.publish("notes", message).unwrap();
    }
    let refused = service.publish("notes", message("")).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "neither data nor attributes never gets in");

    let place = Workplace::new(&config(&service, "p", "notes-sub"));
    let running = place.start(&["run", "p.yaml", "--json"], || service.backlog("notes") == 0);
    running.signal("TERM");
    let summary = running.end().ok().json();
    let counters = &summary["counters"];
    assert_eq!((&counters["records"], &summary["residues"]), (&json!(10), &json!([])), "{summary}");
    assert_eq!(counters["control"], json!({ "tombstone": 2 }));
    assert_eq!(
        counters["dead"],
        json!({ "invalid_json": 2, "invalid_utf8": 1, "missing_field": 1, "not_an_object": 1 })
    );
    let rows = place.run(&[
        "query",
        "p.yaml",
        "--csv",
        "SELECT length(code), length(text) FROM notes_raw ORDER BY ALL",
    ]);
    assert_eq!(rows.ok().out.lines().skip(1).collect::<Vec<_>>(), ["5,9900000", "7,0", "1013,10"]);

    // The topic takes what a message can hold beside the cause; the folder takes the rest.
    let mut letters: Vec<(String, usize)> = service
        .pull("dead")
        .into_iter()
        .map(|m| (m.attributes["millstream-code"].clone(), m.data.len()))
        .collect();
    letters.sort();
    let expected = [("invalid_json", 7), ("invalid_utf8", 2), ("missing_field", 7), ("not_an_object", 3)];
    assert_eq!(letters, expected.map(|(code, bytes)| (code.to_owned(), bytes)));
    let kept = place.run(&["dead-letters", "list", "p.yaml", "--json"]).ok().json();
    assert_eq!((&kept[0]["code"], &kept[0]["letters"]), (&json!("invalid_json"), &json!(1)), "{kept}");
    assert_eq!(kept.as_array().unwrap().len(), 1, "{kept}");
}

/// A message with an ordering key and attributes.
fn full(ordering_key: &str, attributes: &[(&str, &str)], data: Vec<u8>) -> PubsubMessage {
    let attributes =
        attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    PubsubMessage { ordering_key: ordering_key.to_owned(), attributes, ..message(data) }
}

/// What Pub/Sub does not take stays here as a dead letter, and the rest is published.
#[test]
fn what_cannot_be_published_is_a_dead_letter() {
    let service = Service::with(&["out"]);
    let config = format!(
        "pipeline: p
source: {{ type: files, path: in.jsonl, lines: record }}
checkpoint: {{ directory: state }}
sinks: [{{ type: pubsub, project: p, topic: out, endpoint: '{}' }}]
",
        service.endpoint()
    );
    let place = Workplace::new(&config);
    let line = |bytes: usize, text: &str, header: &str| {
        let (key, code) = key_of(bytes);
        let headers = json!([{ "key": header, "value": "v" }]);
        json!({ "topic": "t", "key": key, "value": note(&code, text), "headers": headers }).to_string() + "\n"
    };
    let lines = [
        line(1024, "", "h"),
        line(1025, "", "h"),
        line(20, &"x".repeat(10_000_000), "h"),
        line(21, "", "googclient"),
    ];
    place.write("in.jsonl", lines.concat());
    let summary = place.run(&["run", "p.yaml", "--json"]).ok().json();
    let sink = &summary["counters"]["sinks"]["pubsub"];
    assert_eq!((&sink["written"], &sink["rejected"]), (&json!(1), &json!(3)), "{summary}");
    let kept = place.run(&["dead-letters", "list", "p.yaml", "--json"]).ok().json();
    let codes: Vec<_> =
        kept.as_array().unwrap().iter().map(|group| group["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["attribute_refused", "ordering_key_too_long", "too_large"]);
    let published = service.pull("out");
    assert_eq!(published.iter().map(|m| m.ordering_key.len()).collect::<Vec<_>>(), [1024]);
}

/// A drain is finished only when its dead letters are published.
#[test]
fn a_drain_whose_dead_letters_cannot_be_published_fails() {
    let service = Service::with(&["notes", "dead"]);
    // No epoch ends before the drain.
    let place = Workplace::new(&config(&service, "p", "notes-sub").replace("100ms", "1h, timeout: 2h"));
    let has_taken_one = || {
        let status = place.run(&["status", "p.yaml", "--json"]);
        status.code == 0 && status.json()["records_in"] == 1
    };
    let running = place.start(&["run", "p.yaml"], || place.path("state/control.sock").exists());
    service.set_faults("deny=projects/p/topics/dead:PERMISSION_DENIED");
    service.publish("notes", message("no json")).unwrap();
    wait(has_taken_one);
    running.signal("TERM");
    let ended = running.end();
    assert_eq!(ended.code, 1, "{}\n{}", ended.out, ended.err);
    let says = "cannot publish to projects/p/topics/dead: permission denied; grant roles/pubsub.publisher";
    assert!(ended.err.contains(says) && !ended.out.contains("finished"), "{}\n{}", ended.out, ended.err);
    assert_eq!(service.backlog("notes"), 1, "the record is not acknowledged: it comes again");

    // With the permission the same record becomes a letter in the next run, once its lease is over.
    service.set_faults("");
    service.advance(Duration::from_secs(31));
    let running = place.start(&["run", "p.yaml"], has_taken_one);
    running.signal("TERM");
    running.end().ok();
    assert_eq!((service.backlog("notes"), service.backlog("dead")), (0, 1));
}
