//! bqemulator as a process.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use millstream_bigquery::Connection;
use serde_json::Value as Json;

/// Installed once, since two at a time would be in each other's way. `None` where it cannot be; CI has to be able to.
static COMMAND: LazyLock<Option<String>> = LazyLock::new(|| {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/bqemulator-venv");
    let made = Command::new("sh").arg(script).output().unwrap();
    if made.status.success() {
        return Some(String::from_utf8(made.stdout).unwrap().trim().to_owned());
    }
    let why = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(std::env::var_os("CI").is_none(), "bqemulator (PyPI) is needed here: {why}");
    println!("left out: bqemulator cannot be installed: {why}");
    None
});

/// A server on ports of its own choice.
pub(crate) struct Server {
    process: Child,
    pub(crate) connection: Connection,
    _directory: tempfile::TempDir,
}

impl Server {
    /// `None` where there is none to be had.
    pub(crate) fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let file = File::create(&log).unwrap();
        let process = Command::new(COMMAND.as_ref()?)
            .args(["start", "--ephemeral", "--rest-port", "0", "--grpc-port", "0", "--log-format", "json"])
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut server = Self { process, connection: Connection::default(), _directory: directory };
        let began = Instant::now();
        while server.connection.rest.is_none() || server.connection.grpc.is_none() {
            assert!(began.elapsed() < Duration::from_secs(90), "bqemulator does not start");
            assert!(server.process.try_wait().unwrap().is_none(), "bqemulator has ended");
            std::thread::sleep(Duration::from_millis(100));
            server.connection.rest = address(&log, "rest.listen");
            server.connection.grpc = address(&log, "grpc.listen");
        }
        Some(server)
    }
}

/// Its log tells what it listens on.
fn address(log: &Path, event: &str) -> Option<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let entries = text.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
    let entry = entries.into_iter().find(|entry| entry["event"] == event)?;
    Some(format!("http://{}:{}", entry["host"].as_str()?, entry["port"]))
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
