//! Topics that a run publishes to: looked for by `check`, and at the start.

use crate::service::Service;
use crate::workplace::Workplace;

fn config(service: &Service, sink: &str, letters: &str) -> String {
    let endpoint = service.endpoint();
    format!(
        "pipeline: p
source: {{ type: files, path: in.jsonl }}
checkpoint: {{ directory: state }}
dead_letters: {{ type: pubsub, project: p, {letters}, endpoint: '{endpoint}' }}
sinks: [{{ type: pubsub, project: p, {sink}, endpoint: '{endpoint}' }}]
"
    )
}

fn place(config: &str) -> Workplace {
    let place = Workplace::new(config);
    place.write("in.jsonl", "");
    place
}

/// What `check` finds of topics, as `level code`, and its exit code.
fn findings(config: &str) -> (Vec<String>, i32, String) {
    let ended = place(config).run(&["check", "p.yaml", "--json"]);
    let report = ended.json();
    let of = |finding: &serde_json::Value| {
        format!("{} {}", finding["level"].as_str().unwrap(), finding["code"].as_str().unwrap())
    };
    let found =
        report["findings"].as_array().unwrap().iter().map(of).filter(|found| found != "warning no_records");
    (found.collect(), ended.code, ended.out)
}

#[test]
fn check_looks_for_topics_and_the_subscription_of_dead_letters() {
    let service = Service::with(&["out", "dead"]);
    service.make_topic("alone");
    let good = config(&service, "topic: out", "topic: dead, subscription: dead-sub");
    assert_eq!(findings(&good).0, Vec::<String>::new());

    let (found, code, out) =
        findings(&config(&service, "topic: away", "topic: gone, subscription: gone-sub"));
    assert_eq!((found, code), (vec!["error missing_resource".to_owned(); 3], 2));
    for says in [
        "sink pubsub: projects/p/topics/away does not exist: a run would end at its start",
        "dead letters: projects/p/topics/gone does not exist",
        "dead letters: projects/p/subscriptions/gone-sub does not exist",
    ] {
        assert!(out.contains(says), "{out}");
    }
    let made =
        config(&service, "topic: away, create: true", "topic: gone, subscription: gone-sub, create: true");
    let (found, code, _) = findings(&made);
    assert_eq!((found, code), (vec!["note to_be_made".to_owned(); 3], 0));
    let (found, code, out) = findings(&config(&service, "topic: out", "topic: alone"));
    assert_eq!((found, code), (vec!["warning topic_without_subscription".to_owned()], 0));
    assert!(out.contains("dead letters: projects/p/topics/alone has no subscription"), "{out}");

    // A replay would have taken the events of another subscription for letters.
    let (found, code, out) = findings(&config(&service, "topic: out", "topic: dead, subscription: out-sub"));
    assert_eq!((found, code), (vec!["error wrong_topic".to_owned()], 2));
    assert!(out.contains("projects/p/subscriptions/out-sub is to projects/p/topics/out"), "{out}");

    // Whoever may publish need not look.
    service.set_faults("script=GetTopic@1*9:PERMISSION_DENIED");
    assert_eq!(findings(&good).0, Vec::<String>::new());
    // Most emulators know no permissions.
    service.set_faults("script=GetTopic@1*9:PERMISSION_DENIED,script=TestIamPermissions@1*9:UNIMPLEMENTED");
    let (found, code, out) = findings(&good);
    assert_eq!((found, code), (vec!["warning hidden_resource".to_owned(); 2], 0));
    assert!(
        out.contains("may not look at projects/p/topics/out") && out.contains("roles/pubsub.viewer"),
        "{out}"
    );
    service.set_faults("script=TestIamPermissions@1*9:PERMISSION_DENIED");
    let (found, code, out) = findings(&good);
    assert_eq!((found, code), (vec!["error not_permitted".to_owned(); 3], 2));
    for says in [
        "sink pubsub: the account lacks roles/pubsub.publisher on projects/p/topics/out",
        "dead letters: the account lacks roles/pubsub.publisher on projects/p/topics/dead",
        "dead letters: the account lacks roles/pubsub.subscriber on projects/p/subscriptions/dead-sub",
    ] {
        assert!(out.contains(says), "{out}");
    }
    service.set_faults("deny=projects/p/topics/*:UNAUTHENTICATED");
    let (found, code, out) = findings(&good);
    assert_eq!((found, code), (vec!["error unreachable_resource".to_owned(); 2], 2));
    assert!(out.contains("the credentials were refused or have expired"), "{out}");
}

/// A topic of dead letters that did not exist ended the pipeline with the first bad record, perhaps after months.
#[test]
fn a_topic_that_does_not_exist_ends_a_run_at_its_start() {
    let service = Service::with(&["out", "dead"]);
    for (sink, letters, says) in [
        ("out", "gone", "dead letters: cannot publish to projects/p/topics/gone: it does not exist"),
        ("away", "dead", "pubsub: cannot publish to projects/p/topics/away: it does not exist"),
    ] {
        let config = config(&service, &format!("topic: {sink}"), &format!("topic: {letters}"));
        let ended = place(&config).run(&["run", "p.yaml"]);
        assert_eq!(ended.code, 1, "{}\n{}", ended.out, ended.err);
        assert!(ended.err.contains(says) && ended.err.contains("let `create` make it"), "{}", ended.err);
    }
    let made =
        config(&service, "topic: away, create: true", "topic: gone, subscription: gone-sub, create: true");
    let place = place(&made);
    place.write("in.jsonl", "no json\n");
    place.run(&["run", "p.yaml"]).ok();
    assert_eq!(service.backlog("gone"), 1);
}

/// A subscription that may be looked at and not pulled from was found good.
#[test]
fn check_asks_whether_a_source_may_be_pulled_from() {
    let service = Service::with(&["notes"]);
    let config = format!(
        "source: {{ type: pubsub, project: p, subscriptions: notes-sub, endpoint: '{}' }}
sinks: [{{ type: discard }}]
",
        service.endpoint()
    );
    assert_eq!(findings(&config).0, Vec::<String>::new());
    service.set_faults("script=TestIamPermissions@1*9:PERMISSION_DENIED");
    let (found, code, out) = findings(&config);
    assert_eq!((found, code), (vec!["error not_permitted".to_owned()], 2));
    assert!(out.contains("lacks roles/pubsub.subscriber on projects/p/subscriptions/notes-sub"), "{out}");
}
