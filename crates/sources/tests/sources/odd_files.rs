//! Huge lines, odd bytes, odd names, missing permission, many files.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use millstream_core::{Kind, Source};
use millstream_sources::files::{FileSource, FilesConfig, Lines};

use super::harness::{World, block_on, bounded, following, text};

#[test]
fn a_line_that_is_too_long_is_one_dead_letter() {
    let long = b"x".repeat(200_000);
    let content =
        [b"1\n", &long[..], b"\r\n2\n", &long[..100_000], b"\r\n", &long[..100_001], b"\n3\n", &long]
            .concat();
    for chunk_bytes in [4096, 512 << 10] {
        let mut world = World::new(|d| bounded(d, "a"), &[("a", &content)]);
        world.config.max_record_bytes = 100_000;
        world.config.chunk_bytes = chunk_bytes;
        world.restart();
        let shape: Vec<_> =
            world.drain().iter().map(|g| (g.value.as_ref().unwrap().len(), g.broken)).collect();
        let cut = (65_536, Some("too_large"));
        assert_eq!(shape, [(1, None), cut, (1, None), (100_000, None), cut, (1, None), cut]);
    }
}

#[test]
fn a_long_line_that_is_still_being_written_is_waited_for() {
    let mut world = World::new(|d| following(d, "a"), &[("a", b"1\n")]);
    world.config.max_record_bytes = 50_000;
    world.config.chunk_bytes = 4096;
    world.restart();
    assert_eq!(world.lines(), ["1"]);
    for pieces in [2, 30] {
        for _ in 0..pieces {
            world.append("a", &b"y".repeat(3000));
            assert_eq!(world.lines(), [""; 0]);
        }
        world.append("a", b"\nend\n");
        let got = world.drain();
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].broken, (pieces == 30).then_some("too_large"));
        assert_eq!(got[0].value.as_ref().unwrap().len(), (pieces * 3000).min(50_000));
    }
}

#[test]
fn bytes_pass_through_in_value_mode() {
    let content = "\u{feff}\u{feff}a\u{2028}b\u{85}c\n".as_bytes().iter().copied();
    let content: Vec<u8> = content.chain(*b"\xff\xfe\0\n\r\n\r\r\n").collect();
    let mut world = World::new(|d| bounded(d, "a"), &[("a", &content)]);
    let values: Vec<_> = world.drain().into_iter().map(|g| g.value.unwrap()).collect();
    let want: [&[u8]; 4] = ["\u{feff}a\u{2028}b\u{85}c".as_bytes(), b"\xff\xfe\0", b"", b"\r"];
    assert_eq!(values, want);
}

#[test]
fn names_may_be_of_any_bytes() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let mut world = World::new(|d| following(d, "**/*.jsonl"), &[("注文 [1]/Größe*.jsonl", b"1\n")]);
    let raw = world.dir.path().join(OsStr::from_bytes(b"raw\xff.jsonl"));
    if fs::write(&raw, b"2\n").is_err() {
        return; // This file system takes UTF-8 names only.
    }
    let mut lines = world.lines();
    lines.sort();
    assert_eq!(lines, ["1", "2"]);
    world.restart();
    assert_eq!(world.lines(), [""; 0]);
    // A name that looks like a glob is taken literally if it exists.
    let literal = bounded(world.dir.path(), "注文 [1]/Größe*.jsonl");
    let mut source = FileSource::new(literal).unwrap();
    block_on(source.open(&[])).unwrap();
}

#[test]
fn directories_and_hidden_files_may_match_a_glob() {
    let files: &[(&str, &[u8])] = &[("d.jsonl/x", b"no\n"), ("a.jsonl", b"1\n"), (".b.jsonl", b"no\n")];
    let mut world = World::new(|d| bounded(d, "*.jsonl"), files);
    assert_eq!(world.lines(), ["1"]);
    assert_eq!(world.codes(), [""; 0]);
}

#[test]
fn a_loop_of_links_ends() {
    let mut world = World::new(|d| following(d, "**/*.jsonl"), &[("a/b/c.jsonl", b"1\n")]);
    std::os::unix::fs::symlink(world.path("a"), world.path("a/b/loop")).unwrap();
    assert_eq!(world.lines(), ["1"]);
}

#[test]
fn what_is_no_file_is_named() {
    let mut world = World::new(|d| following(d, "*"), &[("a", b"1\n")]);
    world.lines();
    let socket = world.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(world.lines(), [""; 0]);
    let mut source = FileSource::new(bounded(world.dir.path(), "socket")).unwrap();
    let error = block_on(source.open(&[])).unwrap_err();
    assert_eq!(error.kind(), Kind::Fatal);
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn a_file_without_permission_stops_a_bounded_run_and_is_retried_when_followed() {
    let mut world = World::new(|d| following(d, "*"), &[("a", b"1\n"), ("b", b"2\n")]);
    fs::set_permissions(world.path("a"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(world.path("a")).is_ok() {
        return; // The superuser may read everything.
    }
    world.restart();
    assert_eq!(world.lines(), ["2"]);
    assert_eq!(world.codes(), ["file_unreadable"]);
    let mut source = FileSource::new(bounded(world.dir.path(), "*")).unwrap();
    block_on(source.open(&[])).unwrap();
    let error = block_on(source.next(super::harness::BUDGET)).unwrap_err();
    assert_eq!(error.kind(), Kind::Fatal);
    assert!(error.to_string().contains("/a cannot be read"), "{error}");
    fs::set_permissions(world.path("a"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(world.lines(), ["1"]);
}

#[test]
fn thousands_of_files_need_few_handles() {
    let mut world = World::new(|d| following(d, "**/*.jsonl"), &[]);
    for n in 0..2000 {
        super::harness::write(&world.path(&format!("{}/{n}.jsonl", n % 7)), format!("{n}\n").as_bytes());
    }
    // One discovery at each start is enough.
    world.config.discovery_interval = std::time::Duration::from_secs(3600);
    world.restart();
    let mut lines = world.lines();
    let handles = fs::read_dir("/proc/self/fd").map_or(0, |open| {
        let dir = world.dir.path();
        open.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok()).filter(|p| p.starts_with(dir)).count()
    });
    assert!(handles <= 64, "{handles} open files");
    lines.sort_by_key(|line| line.parse::<u32>().unwrap());
    assert!(lines.iter().map(|l| l.parse::<usize>().unwrap()).eq(0..2000));
    world.append("3/1235.jsonl", b"more\n");
    world.restart();
    assert_eq!(world.lines(), ["more"]);
    world.restart();
    assert_eq!(world.lines(), [""; 0]);
}

/// A byte order mark, which editors of another system put before a file's first line, made that line a dead letter.
#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let files: &[(&str, &[u8])] = &[
        ("a.jsonl", b"\xef\xbb\xbf1\n\xef\xbb\xbf2\n"),
        ("b.jsonl", b"\xef\xbb\xbf3"),
        ("c.jsonl", b"\xef\xbb\xbf"),
        ("d.jsonl", b"\xef\xbb\xbf\r\n4\n"),
    ];
    let mut world = World::new(|d| bounded(d, "*.jsonl"), files);
    let got = world.drain();
    let mut lines: Vec<_> = got.iter().map(text).collect();
    lines.sort();
    assert_eq!(lines, ["", "1", "3", "4", "\u{feff}2"]);
    assert!(got.iter().filter(|g| ["1", "3"].contains(&&*text(g))).all(|g| g.offset == 0));
    world.append("a.jsonl", b"\xef\xbb\xbf5\n");
    world.restart();
    assert_eq!(world.lines(), ["\u{feff}5"]);
    let framed = |d: &std::path::Path| FilesConfig { lines: Lines::Record, ..bounded(d, "*.jsonl") };
    let mut world = World::new(framed, &[("a.jsonl", b"\xef\xbb\xbf{\"value\":\"x\"}\n")]);
    assert_eq!(world.lines(), ["x"]);
}

/// A file got the inode of one that was deleted while the pipeline was down, and later its name too. The next start knew two files of
/// that inode; it looked at the one that had the name before, took it for truncated, and read everything again.
#[test]
fn of_several_files_that_had_an_inode_the_one_that_is_there_goes_on() {
    let mut world = World::new(|d| following(d, "*.jsonl"), &[("b.jsonl", b"old\n")]);
    assert_eq!(world.lines(), ["old"]);
    // Written over and renamed: what a new file with the old one's inode looks like.
    fs::rename(world.path("b.jsonl"), world.path("c.jsonl")).unwrap();
    fs::write(world.path("c.jsonl"), b"new line\n").unwrap();
    world.restart();
    assert_eq!(world.lines(), ["new line"]);
    fs::rename(world.path("c.jsonl"), world.path("b.jsonl")).unwrap();
    assert_eq!(world.lines(), [""; 0]);
    world.restart();
    assert_eq!(world.lines(), [""; 0]);
    world.append("b.jsonl", b"more\n");
    assert_eq!(world.lines(), ["more"]);
}
