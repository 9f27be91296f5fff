//! The script that asks BigQuery itself is tried against the emulator, so that it is right on the day when somebody has credentials.

use std::path::Path;
use std::process::Command;

use millstream_bigquery_emulator::Server;

use crate::bigquery::Warehouse;

#[test]
fn the_live_script_finds_everything_right() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
    let python = Command::new("sh").arg(scripts.join("python-bigquery-venv")).output().unwrap();
    if !python.status.success() {
        let why = String::from_utf8_lossy(&python.stderr).into_owned();
        assert!(std::env::var_os("CI").is_none(), "CI has to have Google's clients: {why}");
        eprintln!("skipped, Google's clients cannot be had: {why}");
        return;
    }
    let warehouse = Warehouse::of(Server::builder().bucket("live", "US"));
    let server = &warehouse.server;
    let ran = Command::new("sh")
        .arg(scripts.join("bigquery-live"))
        .env("MILLSTREAM", env!("CARGO_BIN_EXE_millstream"))
        .envs([("PROJECT", "p"), ("BUCKET", "live"), ("LOCATION", "US")])
        .env("EMULATOR_REST", server.rest().to_string())
        .env("EMULATOR_GRPC", server.grpc().to_string())
        .env("EMULATOR_GCS", server.gcs().to_string())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{err}");
    assert_eq!(out.matches("right: ").count(), 10, "{out}");
    assert!(!out.contains("WRONG"), "{out}");
    assert_eq!(
        warehouse.call("datasets", None)["datasets"].as_array().map_or(0, Vec::len),
        0,
        "they are removed"
    );
}
