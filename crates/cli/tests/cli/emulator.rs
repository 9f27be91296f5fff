//! The emulator as a process: that it says where it is, keeps its data, and ends when it is told to.

use crate::workplace::Workplace;

#[test]
fn the_emulator_says_where_it_is_and_ends_cleanly() {
    let place = Workplace::new("");
    let words = [
        "emulator",
        "pubsub",
        "--listen",
        "127.0.0.1:0",
        "--port-file",
        "port",
        "--data",
        "data",
        "--topic",
        "orders",
        "--subscription",
        "reader:orders",
        "--faults",
        "duplicate=0.5",
    ];
    let running = place.start(&words, || place.path("port").exists());
    let port: u16 = std::fs::read_to_string(place.path("port")).unwrap().trim().parse().unwrap();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    running.signal("TERM");
    let ended = running.end().ok();
    assert!(ended.out.contains(&format!("PUBSUB_EMULATOR_HOST=127.0.0.1:{port}\n")), "{}", ended.out);
    assert!(place.path("data/00000001.journal").exists());
}

#[test]
fn what_makes_no_sense_is_told() {
    let place = Workplace::new("");
    let faults = place.run(&["emulator", "pubsub", "--listen", "127.0.0.1:0", "--faults", "duplicat=0.5"]);
    assert_eq!(faults.code, 2);
    assert!(faults.err.contains("there is no fault `duplicat`"), "{}", faults.err);
    let pair = place.run(&["emulator", "pubsub", "--listen", "127.0.0.1:0", "--subscription", "alone"]);
    assert_eq!(pair.code, 2);
    let name = place.run(&["emulator", "pubsub", "--listen", "127.0.0.1:0", "--topic", "1"]);
    assert_eq!(name.code, 1);
    assert!(name.err.contains("Invalid [topics] name"), "{}", name.err);
}

#[test]
fn the_bigquery_emulator_says_where_it_is_and_ends_cleanly() {
    let place = Workplace::new("");
    let words = [
        "emulator",
        "bigquery",
        "--rest",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--gcs",
        "127.0.0.1:0",
        "--bucket",
        "files@EU",
        "--port-file",
        "ports",
        "--data",
        "data",
        "--dataset",
        "shop@EU",
        "--faults",
        "cut=0.5",
    ];
    let running = place.start(&words, || place.path("ports").exists());
    let ports = std::fs::read_to_string(place.path("ports")).unwrap();
    let ports: Vec<u16> = ports.lines().map(|port| port.parse().unwrap()).collect();
    assert_eq!(ports.len(), 3);
    for port in &ports {
        std::net::TcpStream::connect(("127.0.0.1", *port)).unwrap();
    }
    running.signal("TERM");
    let ended = running.end().ok();
    assert!(
        ended.out.contains(&format!("BIGQUERY_EMULATOR_HOST=http://127.0.0.1:{}\n", ports[0])),
        "{}",
        ended.out
    );
    assert!(place.path("data/warehouse.duckdb").exists());
    let wrong = place.run(&["emulator", "bigquery", "--rest", "127.0.0.1:0", "--faults", "cuts=0.5"]);
    assert!(wrong.code == 2 && wrong.err.contains("there is no fault `cuts`"), "{}", wrong.err);
}

/// Cloud Storage listened on 9070 wherever the rest was told to listen, so that a second emulator did not start.
#[test]
fn two_emulators_of_bigquery_do_not_clash() {
    let place = Workplace::new("");
    let start = |file: &str| {
        let words =
            ["emulator", "bigquery", "--rest", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--port-file", file];
        place.start(&words, || place.path(file).exists())
    };
    let (first, second) = (start("first"), start("second"));
    for running in [first, second] {
        running.signal("TERM");
        running.end().ok();
    }
}
