//! Google's own client for Python: what it makes of the emulator is what users would see. Skipped only where there is no
//! Python to be had, and never in CI.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use millstream_emulator::pubsub::{Faults, Server};

/// Made once, since two at a time would be in each other's way.
static PYTHON: LazyLock<Option<PathBuf>> = LazyLock::new(python);

fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new("sh").arg(root.join("scripts/python-pubsub-venv")).output().unwrap();
    if made.status.success() {
        return Some(PathBuf::from(String::from_utf8(made.stdout).unwrap().trim()));
    }
    let why = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(std::env::var_os("CI").is_none(), "CI has to have Google's client: {why}");
    eprintln!("skipped, Google's client cannot be had: {why}");
    None
}

async fn run(faults: &str, steps: &[&str]) {
    let Some(python) = PYTHON.clone() else { return };
    let server = Server::builder().faults(faults.parse::<Faults>().unwrap()).start().await.unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulator/client.py");
    let (address, steps) =
        (server.address().to_string(), steps.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
    let output = tokio::task::spawn_blocking(move || {
        Command::new(python).arg(script).args(steps).env("PUBSUB_EMULATOR_HOST", address).output().unwrap()
    });
    let output = output.await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{:?}", server.counts());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn googles_client_works() {
    run("", &["ordering", "dead_letters", "exactly_once"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn googles_client_gets_over_cut_streams_and_failing_calls() {
    run("seed=3,cut=0.2,script=Publish@2:UNAVAILABLE,script=StreamingPull@2:ABORTED", &["ordering"]).await;
}
