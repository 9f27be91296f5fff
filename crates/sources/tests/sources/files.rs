//! Bounded runs, following, positions, renames, truncation, replacement.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use millstream_core::{Budget, Kind, Next, PartitionId, Position, Source};
use millstream_sources::files::{FileSource, FilesConfig};

use super::harness::{BUDGET, World, block_on, bounded, following, records, write};

#[test]
fn a_bounded_run_reads_every_file_and_ends() {
    let files: &[(&str, &[u8])] =
        &[("a.jsonl", b"1\n2\r\n\n3"), ("sub/b.jsonl", b"4\n"), ("empty.jsonl", b"")];
    let mut world = World::new(|d| bounded(d, "**/*.jsonl"), files);
    let mut lines = world.lines();
    lines.sort();
    assert_eq!(lines, ["", "1", "2", "3", "4"]);
    assert!(matches!(block_on(world.source.next(BUDGET)).unwrap(), Next::End));
    world.restart();
    assert_eq!(world.lines(), [""; 0]);
}

#[test]
fn what_is_not_read_yet_is_told() {
    let files: &[(&str, &[u8])] = &[("a.jsonl", b"12\n34\n"), ("b.jsonl", b"5\n")];
    let mut world = World::new(|d| following(d, "*.jsonl"), files);
    let tell = world.source.figures().unwrap();
    let left = || (tell().unread_files, tell().unread_bytes);
    assert_eq!(left(), (Some(2), Some(8)));
    let one = Budget { records: 1, bytes: 1 };
    assert!(matches!(block_on(world.source.next(one)).unwrap(), Next::Batch(_)));
    assert_eq!(left(), (Some(2), Some(5)));
    world.drain();
    assert_eq!(left(), (Some(0), Some(0)));
    world.append("b.jsonl", b"6\nhalf");
    world.drain();
    assert_eq!(left(), (Some(0), Some(0)), "half a line is nothing to read yet");
}

#[test]
fn offsets_are_where_lines_start() {
    let mut world = World::new(|d| bounded(d, "a.jsonl"), &[("a.jsonl", b"ab\r\n\ncd\n")]);
    let offsets: Vec<_> = world.drain().iter().map(|got| got.offset).collect();
    assert_eq!(offsets, [0, 4, 5]);
}

#[test]
fn following_waits_for_the_line_end_and_for_files() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[]);
    assert_eq!(world.lines(), [""; 0]);
    world.append("a.jsonl", b"1\n2");
    assert_eq!(world.lines(), ["1"]);
    world.append("a.jsonl", b"2");
    assert_eq!(world.lines(), [""; 0]);
    world.restart();
    assert_eq!(world.lines(), [""; 0]);
    world.append("a.jsonl", b"\n");
    world.append("b.jsonl", b"3\n");
    assert_eq!(world.lines(), ["22", "3"]);
    assert_eq!(world.codes(), [""; 0]);
}

#[test]
fn a_rename_keeps_the_position_also_across_a_restart() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[("a.jsonl", b"1\n")]);
    let first = world.drain();
    fs::rename(world.path("a.jsonl"), world.path("b.jsonl")).unwrap();
    world.append("b.jsonl", b"2\n");
    let second = world.drain();
    assert_eq!(first[0].partition, second[0].partition);
    fs::rename(world.path("b.jsonl"), world.path("c.jsonl")).unwrap();
    world.append("c.jsonl", b"3\n");
    world.restart();
    let third = world.drain();
    assert_eq!((third.len(), &third[0].partition), (1, &first[0].partition));
    assert_eq!(world.codes(), [""; 0]);
}

#[test]
fn a_rotated_file_is_read_to_its_end_before_its_successor() {
    for pattern in ["a.jsonl", "*"] {
        let mut world = World::new(|d| following(d, pattern), &[("a.jsonl", b"1\n")]);
        assert_eq!(world.lines(), ["1"]);
        world.append("a.jsonl", b"2\n");
        fs::rename(world.path("a.jsonl"), world.path("a.jsonl.1")).unwrap();
        write(&world.path("a.jsonl"), b"4\n");
        // The writer still holds the old file.
        world.append("a.jsonl.1", b"3\n");
        assert_eq!(world.lines(), ["2", "3", "4"], "{pattern}");
        world.restart();
        assert_eq!(world.lines(), [""; 0], "{pattern}");
    }
}

#[test]
fn a_truncated_file_is_reported_and_read_from_its_start() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[("a.jsonl", b"1\n2\n")]);
    let first = world.drain();
    write(&world.path("a.jsonl"), b"3\n");
    let second = world.drain();
    assert_eq!(second.len(), 1);
    assert_ne!(first[0].partition, second[0].partition);
    assert_eq!(world.codes(), ["file_truncated"]);
    // Longer than what was read, but other content.
    write(&world.path("a.jsonl"), b"4\n5\n6\n");
    assert_eq!(world.lines(), ["4", "5", "6"]);
    assert_eq!(world.codes(), ["file_truncated"]);
    // The same while nobody looks, and of the same length.
    write(&world.path("a.jsonl"), b"7\n8\n9\n");
    world.restart();
    assert_eq!(world.lines(), ["7", "8", "9"]);
    assert_eq!(world.codes(), ["file_truncated"]);
    world.restart();
    assert_eq!(world.lines(), [""; 0]);
}

#[test]
fn a_replaced_file_is_reported_and_read_from_its_start() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[("a.jsonl", b"1\n2\n")]);
    world.drain();
    for (content, restart) in [(b"3\n", false), (b"4\n", true)] {
        write(&world.path("new"), content);
        fs::rename(world.path("new"), world.path("a.jsonl")).unwrap();
        if restart {
            world.restart();
        }
        assert_eq!(world.lines(), [String::from_utf8_lossy(&content[..1])]);
        assert_eq!(world.codes(), ["file_replaced"]);
    }
}

#[test]
fn a_file_restored_under_another_inode_goes_on() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[("a.jsonl", b"1\n2\n")]);
    let first = world.drain();
    for restart in [true, false] {
        fs::copy(world.path("a.jsonl"), world.path("copy")).unwrap();
        fs::rename(world.path("copy"), world.path("a.jsonl")).unwrap();
        if restart {
            world.restart();
        }
        world.append("a.jsonl", b"3\n");
        let then = world.drain();
        assert_eq!((then.len(), &then[0].partition), (1, &first[0].partition));
    }
    assert_eq!(world.codes(), [""; 0]);
}

#[test]
fn events_that_share_their_first_bytes_are_told_by_their_ends() {
    // Embedded schemas make the first KiB of every event alike.
    let line = |n: u32| format!("{}{n:04}\n", "s".repeat(5000)).into_bytes();
    let mut world = World::new(|d| following(d, "a.jsonl"), &[("a.jsonl", &line(1))]);
    assert_eq!(world.drain().len(), 1);
    write(&world.path("a.jsonl"), &[line(2), line(3)].concat());
    assert_eq!(world.drain().len(), 2);
    assert_eq!(world.codes(), ["file_truncated"]);
}

#[test]
fn links_to_one_file_are_read_once_and_copies_twice() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[("b.jsonl", b"1\n"), ("real/c", b"2\n")]);
    fs::hard_link(world.path("b.jsonl"), world.path("a.jsonl")).unwrap();
    symlink(world.path("real/c"), world.path("c.jsonl")).unwrap();
    symlink(world.path("nowhere"), world.path("d.jsonl")).unwrap();
    fs::copy(world.path("b.jsonl"), world.path("e.jsonl")).unwrap();
    let mut lines = world.lines();
    lines.sort();
    assert_eq!(lines, ["1", "1", "2"]);
    assert_eq!(world.codes(), [""; 0]);
}

#[test]
fn a_last_line_that_was_delivered_unfinished_is_not_cut_in_two() {
    let files: &[(&str, &[u8])] = &[("a", b"1\n2"), ("b", b"1\n2"), ("c", b"1\n2"), ("d", b"1\n2")];
    let mut world = World::new(|d| bounded(d, "*"), files);
    assert_eq!(world.drain().len(), 8);
    world.append("a", b"\n3\n");
    world.append("b", b"\r\n3\n");
    world.append("c", b"2\n3\n");
    for follow in [false, true] {
        world.config.follow = follow;
        world.restart();
        let mut lines = world.lines();
        lines.sort();
        let (expected, codes): (&[&str], &[&str]) =
            if follow { (&[], &[]) } else { (&["22", "3", "3", "3"], &["line_continued"]) };
        assert_eq!(lines, expected);
        assert_eq!(world.codes(), codes);
    }
    world.append("d", b"\n");
    assert_eq!(world.lines(), [""; 0]);
}

#[test]
fn budgets_are_kept() {
    let content: Vec<u8> = (0..1000).flat_map(|n| format!("{n:09}\n").into_bytes()).collect();
    let mut world = World::new(|d| bounded(d, "a"), &[("a", &content)]);
    let batches = world.batches(Budget { records: 7, bytes: 1 << 20 });
    assert!(batches.iter().all(|b| b.slots.len() <= 7));
    assert_eq!(batches.iter().map(|b| b.slots.len()).sum::<usize>(), 1000);
    world.positions.clear();
    world.restart();
    let batches = world.batches(Budget { records: 1000, bytes: 25 });
    assert!(batches.iter().all(|b| b.slots.len() == 3 || b.slots.len() == 1));
    let again: Vec<u8> =
        batches.iter().flat_map(records).flat_map(|g| [g.value.unwrap(), vec![b'\n']].concat()).collect();
    assert_eq!(again, content);
}

#[test]
fn a_dropped_future_loses_nothing() {
    let mut config = None;
    let mut world = World::new(
        |d| {
            config = Some(FilesConfig { poll_interval: Duration::from_secs(3600), ..following(d, "a") });
            config.clone().unwrap()
        },
        &[("a", b"1\n")],
    );
    block_on(async {
        assert!(matches!(world.source.next(BUDGET).await.unwrap(), Next::Batch(_)));
        let waiting = tokio::time::timeout(Duration::from_millis(5), world.source.next(BUDGET)).await;
        assert!(waiting.is_err(), "nothing to read, so it waits");
    });
    world.append("a", b"2\n");
    world.config.poll_interval = Duration::ZERO;
    world.positions.clear();
    world.restart();
    assert_eq!(world.lines(), ["1", "2"]);
}

#[test]
fn a_busy_file_does_not_starve_the_others() {
    let big: Vec<u8> = b"x\n".repeat(200_000);
    let mut world = World::new(|d| following(d, "*"), &[("a", &big), ("b", b"b\n")]);
    let mut partitions = Vec::new();
    for _ in 0..2 {
        let Next::Batch(batch) = block_on(world.source.next(BUDGET)).unwrap() else { panic!("no batch") };
        partitions.push(batch.partition);
    }
    assert_ne!(partitions[0], partitions[1]);
    // A file that appears meanwhile has its turn before the busy one is at its end.
    world.append("c", b"c\n");
    for _ in 0..3 {
        let Next::Batch(batch) = block_on(world.source.next(BUDGET)).unwrap() else { panic!("no batch") };
        partitions.push(batch.partition);
    }
    assert!(partitions.iter().any(|p| p.0.contains("/c#")), "{partitions:?}");
}

#[test]
fn nothing_to_read_is_fatal_in_a_bounded_run_only() {
    let dir = tempfile::tempdir().unwrap();
    let config = bounded(dir.path(), "*.jsonl");
    let error = block_on(FileSource::new(config.clone()).unwrap().open(&[])).unwrap_err();
    assert_eq!(error.kind(), Kind::Fatal);
    assert!(error.to_string().contains("*.jsonl"), "{error}");
    // Also if another path has files.
    write(&dir.path().join("b"), b"1\n");
    let two =
        FilesConfig { more_paths: vec![dir.path().join("b").to_str().unwrap().to_owned()], ..config.clone() };
    let error = block_on(FileSource::new(two.clone()).unwrap().open(&[])).unwrap_err();
    assert!(error.to_string().contains("*.jsonl"), "{error}");
    let mut source = FileSource::new(FilesConfig { follow: true, ..two }).unwrap();
    block_on(source.open(&[])).unwrap();
    assert!(matches!(block_on(source.next(BUDGET)).unwrap(), Next::Batch(_)));
    let mut source = FileSource::new(FilesConfig { follow: true, ..config }).unwrap();
    block_on(source.open(&[])).unwrap();
    assert!(matches!(block_on(source.next(BUDGET)).unwrap(), Next::Idle));
}

#[test]
fn a_directory_means_its_json_lines() {
    let files: &[(&str, &[u8])] = &[
        ("in/a.jsonl", b"1\n"),
        ("in/deep/er/b.ndjson", b"2\n"),
        ("in/c.json", b"3\n"),
        ("in/.hidden.jsonl", b"no\n"),
        ("in/readme.md", b"no\n"),
    ];
    let mut world = World::new(|d| bounded(d, "in"), files);
    let mut lines = world.lines();
    lines.sort();
    assert_eq!(lines, ["1", "2", "3"]);
}

#[test]
fn broken_positions_and_globs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = FileSource::new(following(dir.path(), "a[.jsonl")).unwrap_err();
    assert!(error.to_string().contains("a[.jsonl"), "{error}");
    let mut source = FileSource::new(following(dir.path(), "*")).unwrap();
    let positions = [(PartitionId::new("a#1:1:0"), Position(vec![7]))];
    assert_eq!(block_on(source.open(&positions)).unwrap_err().kind(), Kind::Fatal);
}

/// A followed file that was shortened and renamed between two looks was taken for a new file at its new name, while the
/// open handle of the old one saw the shortening too: its lines came from both.
#[test]
fn a_file_that_was_truncated_and_renamed_comes_once_more_only() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[("a.jsonl", b"1\n2\n")]);
    assert_eq!(world.drain().len(), 2);
    let file = fs::OpenOptions::new().write(true).open(world.path("a.jsonl")).unwrap();
    file.set_len(2).unwrap();
    fs::rename(world.path("a.jsonl"), world.path("b.jsonl")).unwrap();
    assert_eq!(world.lines(), ["1"]);
    assert_eq!(world.codes(), ["file_truncated"]);
    assert_eq!(world.lines(), [""; 0]);
}

/// An unfinished line that was shortened and finished within one tick of the file system's clock left the file with the
/// length and time that it had: the finished line was never read.
#[test]
fn an_unfinished_line_may_be_finished_without_a_longer_file() {
    for round in 0..50 {
        let mut world = World::new(|d| following(d, "a"), &[("a", b"1\nab")]);
        assert_eq!(world.lines(), ["1"]);
        let file = fs::OpenOptions::new().write(true).open(world.path("a")).unwrap();
        file.set_len(3).unwrap();
        world.append("a", b"\n");
        assert_eq!(world.lines(), ["a"], "round {round}");
    }
}

/// A file of which a part was read, and that was rotated away before the next start, was passed over in silence.
#[test]
fn the_unread_rest_of_a_file_that_went_between_runs_is_reported() {
    let mut world =
        World::new(|dir| following(dir, "*.jsonl"), &[("a.jsonl", b"1\n2\n3\n"), ("b.jsonl", b"4\n")]);
    let first = block_on(world.source.next(Budget { records: 1, bytes: 1 << 20 })).unwrap();
    let Next::Batch(batch) = first else { unreachable!("there is a line") };
    world.positions.insert(batch.partition.clone(), batch.position.clone());
    assert_eq!(batch.slots.len(), 1);
    std::fs::remove_file(world.path("a.jsonl")).unwrap();
    world.restart();
    assert_eq!(world.lines(), ["4"]);
    let notices = std::mem::take(&mut world.notices);
    assert_eq!(notices.iter().map(|n| n.code).collect::<Vec<_>>(), ["file_missing"]);
    assert!(notices[0].text.contains("4 bytes of it were not read"), "{}", notices[0].text);
    // Of a file that had been read to its end there is nothing to say.
    std::fs::remove_file(world.path("b.jsonl")).unwrap();
    world.restart();
    assert!(world.lines().is_empty());
    assert!(world.codes().iter().all(|code| *code == "file_missing"));
}

/// Nothing told the engine that a file was read to its end, so that its watermark counted for good.
#[test]
fn a_file_that_was_read_to_its_end_rests_until_it_grows() {
    let mut world = World::new(|dir| following(dir, "*.jsonl"), &[("a.jsonl", b"1\n"), ("b.jsonl", b"2\n")]);
    let partitions = |world: &mut World| world.drain().into_iter().map(|g| g.partition).collect::<Vec<_>>();
    let resting = |world: &mut World| {
        let mut names: Vec<_> = world.source.resting().iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    let mut both = partitions(&mut world);
    both.sort();
    assert_eq!(resting(&mut world), both);
    assert_eq!(resting(&mut world), Vec::<String>::new(), "each once");
    world.append("b.jsonl", b"3\n");
    let grown = partitions(&mut world);
    assert_eq!(grown.len(), 1);
    assert_eq!(resting(&mut world), grown);
}
