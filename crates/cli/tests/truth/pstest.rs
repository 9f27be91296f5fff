//! The same truth over a Pub/Sub server that is none of ours: Google's own fake, `pstest`.
//!
//! It delivers each message alone and in an order of chance, whatever its key, and answers a stream only with its first message.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use crate::chaos::{on_two_threads, records, verdict_of};
use crate::corpus::{self, Variant};
use crate::publisher::{Publisher, topics};
use crate::pubsub::{drain, pipeline, until};

/// Built once, since two at a time would be in each other's way. `None` where it cannot be built; CI has to be able to.
static BINARY: LazyLock<Option<String>> = LazyLock::new(|| {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/pubsub-pstest");
    let built = Command::new("sh").arg(script).output().unwrap();
    if built.status.success() {
        return Some(String::from_utf8(built.stdout).unwrap().trim().to_owned());
    }
    let why = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(
        std::env::var_os("CI").is_none(),
        "pstest (Debian: golang-google-cloud-dev) is needed here: {why}"
    );
    println!("left out: pstest cannot be built: {why}");
    None
});

/// A server as a process, on a port of its own choice.
struct Pstest {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    address: String,
}

impl Pstest {
    /// `None` where there is none to be had.
    fn start() -> Option<Self> {
        let mut process =
            Command::new(BINARY.as_ref()?).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (questions, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut server =
            Self { process, questions, answers: BufReader::new(answers), address: String::new() };
        server.address = server.answer();
        Some(server)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// How many messages nobody has acknowledged.
    fn backlog(&mut self) -> u64 {
        self.questions.write_all(b"\n").unwrap();
        self.answer().parse().unwrap()
    }
}

impl Drop for Pstest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One variant of each scenario, and every flattened one.
fn variants() -> Vec<Variant> {
    let mut variants: Vec<Variant> = Vec::new();
    for variant in corpus::variants().into_iter().filter(|v| v.scenario != "bench") {
        if variant.is_flat() || variants.iter().all(|v| v.scenario != variant.scenario || v.is_flat()) {
            variants.push(variant);
        }
    }
    variants
}

/// How many records are published at a time. A change under an older key that comes an epoch after its row's delete under the newer one
/// brings the row back into a replica that deletes rows (ARCHITECTURE.md, "A table's key"): where a key changes, one by one.
fn piece_of(variant: &Variant, lines: &[String]) -> usize {
    if variant.scenario == "schema_evolution" { 1 } else { lines.len().div_ceil(2) }
}

/// This test once made its subscriptions without an acknowledgement deadline: ten seconds for the service, `UNKNOWN: bad
/// ack_deadline_seconds: 0` for the fake. Its publisher tried that again for five minutes.
#[test]
fn over_googles_own_fake() {
    let found = on_two_threads(&variants(), |index, variant| {
        let Some(server) = Pstest::start() else { return String::new() };
        let lines = records(variant);
        let publisher = Publisher::new(server.address.clone());
        topics(&lines).iter().for_each(|topic| publisher.make(topic, false));
        let pipeline = pipeline(variant, &lines, &server.address, [1, 2, 7][index % 3]);
        let server = RefCell::new(server);
        let mut process = None;
        let mut ended = Ok(());
        // The first piece waits for the pipeline, the others come while it runs.
        for piece in lines.chunks(piece_of(variant, &lines)) {
            publisher.publish(piece);
            let process = process.get_or_insert_with(|| pipeline.start_for_summary());
            ended = ended.and_then(|()| until(process, &pipeline, || server.borrow_mut().backlog() == 0));
        }
        let process = process.expect("every variant has records");
        let summary = ended.and_then(|()| drain(process, &pipeline));
        verdict_of(variant, &pipeline, &lines, summary)
    });
    assert!(found.is_empty(), "{found}");
}

/// A stream without messages stays without an answer here. It was up only after twelve seconds, by the clock alone; now the server is
/// asked. A stream that is not up keeps a run from its end.
#[test]
fn a_silent_subscription_is_no_outage() {
    let Some(server) = Pstest::start() else { return };
    Publisher::new(server.address.clone()).make("silent", false);
    let variant = corpus::variants().remove(0);
    let mut pipeline = pipeline(&variant, &[], &server.address, 1);
    pipeline.set("/source/subscriptions", "silent-sub".into());
    let summary = pipeline.run_with(&["--idle", "1s"]).unwrap();
    assert_eq!(summary.0["counters"]["records"], 0);
}
