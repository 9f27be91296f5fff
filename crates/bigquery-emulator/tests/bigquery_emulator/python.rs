//! Google's own clients for Python: what they make of the emulator is what users would see. Skipped only where there is no
//! Python to be had, and never in CI.

use std::path::{Path, PathBuf};
use std::process::Command;

use millstream_bigquery_emulator::Server;

fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new("sh").arg(root.join("scripts/python-bigquery-venv")).output().unwrap();
    if made.status.success() {
        return Some(PathBuf::from(String::from_utf8(made.stdout).unwrap().trim()));
    }
    let why = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(std::env::var_os("CI").is_none(), "CI has to have Google's clients: {why}");
    eprintln!("skipped, Google's clients cannot be had: {why}");
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn googles_clients_work() {
    let Some(python) = tokio::task::spawn_blocking(python).await.unwrap() else { return };
    let server = Server::builder().start().await.unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bigquery_emulator/client.py");
    let (rest, grpc) = (server.rest().to_string(), server.grpc().to_string());
    let gcs = format!("http://{}", server.gcs());
    let output = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(python);
        command.arg(script).args(["resources", "streams", "statements", "objects", "loads"]);
        command
            .env("BIGQUERY_REST", rest)
            .env("BIGQUERY_GRPC", grpc)
            .env("STORAGE_EMULATOR_HOST", gcs)
            .output()
            .unwrap()
    });
    let output = output.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.stop().await;
}
