//! The local store against crashes, copies and damage.

// Helpers of tests are not tests in clippy's eyes.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use millstream_core::checkpoint::SinkMark;
use millstream_core::{Checkpoint, CommitToken, Epoch, PartitionId, Position, Space, StateDelta, Store};
use millstream_state::{LocalStore, Options};

fn checkpoint(epoch: u64, writes: &[(Space, &str, Option<&str>)]) -> Checkpoint {
    let bytes = |s: &str| s.as_bytes().to_vec();
    let writes = writes.iter().map(|(space, key, value)| (*space, bytes(key), value.map(bytes))).collect();
    Checkpoint {
        epoch: Epoch(epoch),
        positions: vec![(PartitionId::new("a"), Position(vec![epoch as u8]))],
        sinks: vec![SinkMark { sink: "s".into(), epoch: Epoch(epoch), token: CommitToken(vec![1]) }],
        state: StateDelta { writes },
        ..Checkpoint::default()
    }
}

fn open(directory: &Path) -> LocalStore {
    LocalStore::open(directory, Options::default()).unwrap()
}

#[tokio::test]
async fn a_commit_survives_reopening_and_a_second_opener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    assert!(store.latest().await.unwrap().is_none());
    store
        .commit(checkpoint(1, &[(Space::Keys, "k", Some("1")), (Space::Ids, "k", Some("x"))]))
        .await
        .unwrap();
    store.commit(checkpoint(2, &[(Space::Keys, "k", Some("2")), (Space::Ids, "k", None)])).await.unwrap();

    let refused = LocalStore::open(dir.path(), Options::default()).unwrap_err().to_string();
    assert!(refused.contains("in use by another process"), "{refused}");

    drop(store);
    let mut store = open(dir.path());
    let last = store.latest().await.unwrap().unwrap();
    assert_eq!((last.epoch, last.positions), (Epoch(2), vec![(PartitionId::new("a"), Position(vec![2]))]));
    let view = store.view();
    assert_eq!(view.get(Space::Keys, b"k").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(view.get(Space::Ids, b"k").unwrap(), None);
    assert!(store.disk_bytes() > 0);
}

#[tokio::test]
async fn a_savepoint_restores_elsewhere_and_only_whole() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = open(from.path());
    assert!(store.savepoint("none").await.unwrap_err().to_string().contains("no checkpoint yet"));
    let keys: Vec<String> = (0..25_000).map(|i| format!("key {i}")).collect();
    let writes: Vec<_> = keys.iter().map(|k| (Space::Keys, k.as_str(), Some("v"))).collect();
    store.commit(checkpoint(1, &writes)).await.unwrap();
    let path = store.savepoint("before-upgrade").await.unwrap();
    store.commit(checkpoint(2, &[(Space::Keys, "key 7", None)])).await.unwrap();
    assert!(store.savepoint("before-upgrade").await.unwrap_err().to_string().contains("exists already"));
    assert!(store.savepoint("../x").await.unwrap_err().to_string().contains("made of letters"));

    LocalStore::restore(to.path(), &path, Options::default()).unwrap();
    let mut restored = open(to.path());
    assert_eq!(restored.latest().await.unwrap().unwrap().epoch, Epoch(1));
    let mut seen = 0;
    let mut count = |_: &[u8], value: &[u8]| {
        assert_eq!(value, b"v");
        seen += 1;
        true
    };
    restored.view().scan(Space::Keys, b"key", &mut count).unwrap();
    assert_eq!(seen, keys.len());
    restored.commit(checkpoint(2, &[])).await.unwrap();
    drop(restored);
    let again = LocalStore::restore(to.path(), &path, Options::default()).unwrap_err().to_string();
    assert!(again.contains("already holds a checkpoint"), "{again}");

    let whole = std::fs::read(&path).unwrap();
    for (what, bytes) in [
        ("cut", whole[..whole.len() - 5].to_vec()),
        (
            "flipped",
            whole.iter().enumerate().map(|(i, b)| if i == whole.len() / 2 { b ^ 1 } else { *b }).collect(),
        ),
        ("longer", [&whole[..], &[0]].concat()),
    ] {
        let (bad, elsewhere) = (from.path().join("bad"), tempfile::tempdir().unwrap());
        std::fs::write(&bad, bytes).unwrap();
        let error =
            LocalStore::restore(elsewhere.path(), bad.to_str().unwrap(), Options::default()).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{what}: {error}");
        assert!(!LocalStore::exists(elsewhere.path()), "{what}: a damaged savepoint leaves no store");
    }
}

/// Small epochs are batches and large ones tables of their own. Whatever the mixture, the last write wins, at once, after
/// reopening, and after a crash that leaves only the journal.
#[tokio::test]
async fn batches_and_tables_mix() {
    let dir = tempfile::tempdir().unwrap();
    let many: Vec<String> = (0..120_000).map(|i| format!("k{i:06}")).collect();
    let mut store = open(dir.path());
    for epoch in 1..=6u64 {
        let value = epoch.to_string();
        let rows = if epoch % 2 == 0 { &many[..] } else { &many[..50] };
        let mut writes: Vec<_> =
            rows.iter().map(|k| (Space::Keys, k.as_str(), Some(value.as_str()))).collect();
        writes.push((Space::Values, "twice", Some("first")));
        writes.push((Space::Values, "twice", Some(value.as_str())));
        writes.push((Space::Ids, "gone", (epoch % 3 != 0).then_some("here")));
        store.commit(checkpoint(epoch, &writes)).await.unwrap();
        if epoch == 4 {
            drop(store);
            store = open(dir.path());
        }
        let get = |space, key: &str| store.view().get(space, key.as_bytes()).unwrap();
        assert_eq!(get(Space::Keys, &many[0]), Some(value.clone().into_bytes()));
        let large = (epoch - epoch % 2).to_string().into_bytes();
        assert_eq!(get(Space::Keys, &many[119_999]), (epoch > 1).then_some(large));
        assert_eq!(get(Space::Values, "twice"), Some(value.into_bytes()));
        assert_eq!(get(Space::Ids, "gone").is_some(), epoch % 3 != 0);
        assert_eq!(store.latest().await.unwrap().unwrap().epoch, Epoch(epoch));
    }
    // What a crash leaves: the files as they are, without a close.
    let copy = tempfile::tempdir().unwrap();
    copy_tree(dir.path(), copy.path());
    let mut crashed = open(copy.path());
    assert_eq!(crashed.latest().await.unwrap().unwrap().epoch, Epoch(6));
    let mut seen = 0;
    let mut count = |_: &[u8], value: &[u8]| {
        assert_eq!(value, b"6");
        seen += 1;
        true
    };
    crashed.view().scan(Space::Keys, b"k", &mut count).unwrap();
    assert_eq!(seen, many.len());
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A reopened store reads its keys over once enough lookups found nothing, and then tells absent keys from memory. At no
/// moment may that hide a key, whether it was there before or is committed meanwhile.
#[tokio::test]
async fn a_key_that_is_there_is_found_while_absent_ones_are_learnt() {
    let dir = tempfile::tempdir().unwrap();
    let keys = |epoch: u64| -> Vec<String> { (0..30_000).map(|i| format!("{epoch} {i}")).collect() };
    let commit = async |store: &mut LocalStore, epoch: u64| {
        let keys = keys(epoch);
        let writes: Vec<_> = keys.iter().map(|k| (Space::Keys, k.as_str(), Some("v"))).collect();
        store.commit(checkpoint(epoch, &writes)).await.unwrap();
    };
    let mut store = open(dir.path());
    commit(&mut store, 1).await;
    drop(store);

    let mut store = open(dir.path());
    let view = store.view();
    for epoch in 2..12 {
        // The threshold is passed in the midst of these.
        for i in 0..20_000 {
            assert_eq!(view.get(Space::Keys, format!("none {epoch} {i}").as_bytes()).unwrap(), None);
        }
        commit(&mut store, epoch).await;
        for key in (1..=epoch).flat_map(keys).step_by(7) {
            assert!(view.get(Space::Keys, key.as_bytes()).unwrap().is_some(), "{key}");
        }
    }
    // The thread that reads ends with the store, or this would be refused.
    drop((store, view));
    open(dir.path());
}

/// Every checkpoint wrote the positions of all files over, also of those that rest: with thousands of files and a checkpoint a
/// second, megabytes a second for nothing. It names those that moved now, and the store keeps the others, in savepoints too.
#[tokio::test]
async fn a_checkpoint_writes_the_partitions_that_moved() {
    let at = |p: &str, n: u8| (PartitionId::new(p), Position(vec![n]));
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = open(from.path());
    let first = Checkpoint {
        positions: vec![at("a", 1), at("b", 1), at("c", 1)],
        watermarks: vec![(PartitionId::new("a"), 10), (PartitionId::new("b"), -20)],
        watermark_ms: Some(-20),
        ..checkpoint(1, &[])
    };
    store.commit(first).await.unwrap();
    let second = Checkpoint {
        positions: vec![at("b", 2)],
        watermarks: vec![(PartitionId::new("b"), 30)],
        watermark_ms: Some(10),
        ..checkpoint(2, &[])
    };
    store.commit(second).await.unwrap();
    let path = store.savepoint("s").await.unwrap();
    LocalStore::restore(to.path(), &path, Options::default()).unwrap();
    for mut store in [store, open(to.path())] {
        let last = store.latest().await.unwrap().unwrap();
        assert_eq!(last.positions, [at("a", 1), at("b", 2), at("c", 1)]);
        assert_eq!(last.watermarks, [(PartitionId::new("a"), 10), (PartitionId::new("b"), 30)]);
        assert_eq!(last.watermark_ms, Some(10));
    }
}

/// A run from a savepoint that failed before its first checkpoint, since a sink could not go back so far, left the restored
/// state behind, and every further try was refused for it.
#[tokio::test]
async fn a_restore_that_nothing_followed_can_be_tried_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = open(from.path());
    let mut paths = Vec::new();
    for epoch in 1..=2 {
        store.commit(checkpoint(epoch, &[(Space::Keys, "k", Some(&epoch.to_string()))])).await.unwrap();
        paths.push(store.savepoint(&format!("s{epoch}")).await.unwrap());
    }
    let restore = |path: &str| LocalStore::restore(to.path(), path, Options::default());
    restore(&paths[1]).unwrap();
    restore(&paths[1]).unwrap();
    assert!(restore("nowhere").is_err(), "a savepoint that is not there takes nothing away");
    restore(&paths[0]).unwrap();
    let mut restored = open(to.path());
    assert!(restore(&paths[0]).unwrap_err().to_string().contains("in use"), "a pipeline runs on it");
    assert_eq!(restored.latest().await.unwrap().unwrap().epoch, Epoch(1));
    let copy = restored.savepoint("copy").await.unwrap();
    restored.commit(checkpoint(2, &[])).await.unwrap();
    drop(restored);
    assert!(restore(&paths[0]).unwrap_err().to_string().contains("already holds a checkpoint"));
    let whole = |path: &str| std::fs::read(path).unwrap();
    assert_eq!(whole(&copy), whole(&paths[0]), "the mark of a restore is no part of a savepoint");
}

/// `status` opens the store of a pipeline that does not answer yet. In the moment of its start it made that fail, and a pipeline
/// without restarts ended there.
#[test]
fn a_lock_that_is_held_for_a_moment_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let held = open(dir.path());
    let (opened, wait) = std::sync::mpsc::channel();
    let path = dir.path().to_owned();
    let second = std::thread::spawn(move || {
        opened.send(()).unwrap();
        LocalStore::open(&path, Options::default()).map(drop)
    });
    wait.recv().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(held);
    second.join().unwrap().unwrap();
}
