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
