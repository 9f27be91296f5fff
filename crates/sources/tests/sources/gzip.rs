//! Compressed files.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::harness::{BUDGET, World, bounded, following};

fn gz(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Lines that do not compress to nothing.
fn numbers(range: std::ops::Range<u64>) -> Vec<u8> {
    range.flat_map(|n| format!("{:x}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()).collect()
}

#[test]
fn members_are_one_content_and_names_do_not_matter() {
    let files: &[(&str, &[u8])] =
        &[("a.jsonl.gz", &[gz(b"1\n2"), gz(b"2\n"), gz(b""), gz(b"3\n")].concat()), ("b", &gz(b"4\n"))];
    let mut world = World::new(|d| bounded(d, "*"), files);
    let mut lines = world.lines();
    lines.sort();
    assert_eq!(lines, ["1", "22", "3", "4"]);
    assert_eq!(world.codes(), [""; 0]);
    world.restart();
    assert_eq!(world.lines(), [""; 0]);
}

#[test]
fn reading_goes_on_within_a_compressed_file() {
    let content = numbers(0..100_000);
    let mut world = World::new(|d| bounded(d, "a.gz"), &[("a.gz", &gz(&content))]);
    let want: Vec<_> = content.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect();
    let mut got = Vec::new();
    for round in 0..200 {
        let mut small = BUDGET;
        small.records = 1 + round * 37;
        // One batch, then a new process.
        let next = super::harness::block_on(millstream_core::Source::next(&mut world.source, small)).unwrap();
        let millstream_core::Next::Batch(batch) = next else { break };
        world.positions.insert(batch.partition.clone(), batch.position.clone());
        got.extend(super::harness::records(&batch).into_iter().map(|g| g.value.unwrap()));
        if round % 3 == 0 {
            world.restart();
        }
    }
    assert_eq!(got.len(), want.len());
    assert!(got == want);
}

#[test]
fn a_cut_file_is_waited_for_when_followed() {
    let content = numbers(0..50_000);
    let whole = gz(&content);
    let mut world = World::new(|d| following(d, "*.gz"), &[]);
    let mut got = Vec::new();
    let pieces =
        [0, 1, 2, 9, 10, whole.len() / 3, whole.len() / 2, whole.len() - 9, whole.len() - 1, whole.len()];
    for (round, piece) in pieces.windows(2).enumerate() {
        world.append("a.gz", &whole[piece[0]..piece[1]]);
        got.extend(world.lines());
        if round % 4 == 3 {
            world.restart();
            got.extend(world.lines());
        }
    }
    let second = numbers(50_000..50_010);
    world.append("a.gz", &gz(&second));
    got.extend(world.lines());
    let want = [content, second].concat();
    let want = String::from_utf8(want).unwrap();
    assert!(got.iter().map(String::as_str).eq(want.lines()), "{} lines", got.len());
    assert_eq!(world.codes(), [""; 0]);
}

#[test]
fn a_cut_file_in_a_bounded_run_gives_all_it_can_and_one_dead_letter() {
    let content = numbers(0..50_000);
    let whole = gz(&content);
    let mut world = World::new(|d| bounded(d, "*.gz"), &[("a.gz", &whole[..whole.len() / 2])]);
    let got = world.drain();
    let good = got.iter().filter(|g| g.broken.is_none()).count();
    assert!(good > 20_000, "{good} lines");
    assert_eq!(got.iter().filter_map(|g| g.broken).collect::<Vec<_>>(), ["gzip_broken"]);
    assert_eq!(world.codes(), ["gzip_broken"]);
    world.restart();
    assert_eq!(world.drain(), []);
    // The rest arrives: the cut line comes whole, and then what follows.
    world.append("a.gz", &whole[whole.len() / 2..]);
    world.restart();
    let rest = world.drain();
    assert_eq!(good + rest.len(), 50_000);
    assert!(rest.iter().all(|g| g.broken.is_none()));
}

#[test]
fn a_corrupt_file_gives_what_comes_before_also_when_followed() {
    let content = numbers(0..50_000);
    for follow in [false, true] {
        let mut bad = gz(&content);
        let at = bad.len() - 20_000;
        for byte in &mut bad[at..at + 5000] {
            *byte = 0xff;
        }
        let mut world = World::new(|d| following(d, "*.gz"), &[]);
        world.config.follow = follow;
        super::harness::write(&world.path("a.gz"), &bad);
        world.restart();
        let got = world.drain();
        assert!(got.len() > 10_000, "{} lines", got.len());
        assert_eq!(got.iter().filter(|g| g.broken.is_some()).count(), 1);
        assert_eq!(world.codes(), ["gzip_broken"]);
        assert_eq!(world.drain(), []);
        world.restart();
        assert_eq!(world.drain(), []);
    }
}

#[test]
fn a_name_that_promises_gzip_is_not_believed() {
    let mut world = World::new(|d| bounded(d, "*"), &[("a.gz", b"plain\n")]);
    assert_eq!(world.lines(), ["plain"]);
    assert_eq!(world.codes(), ["not_gzip"]);
}

#[test]
fn huge_lines_in_gzip_are_refused_or_whole() {
    let content = [&b"a".repeat(300_000)[..], b"\n", &b"b".repeat(30_000), b"\nc\n"].concat();
    let mut world = World::new(|d| bounded(d, "*"), &[("x.gz", &gz(&content))]);
    world.config.max_record_bytes = 100_000;
    world.config.chunk_bytes = 4096;
    world.restart();
    let got = world.drain();
    let shape: Vec<_> = got.iter().map(|g| (g.value.as_ref().unwrap().len(), g.broken, g.offset)).collect();
    assert_eq!(shape, [(65_536, Some("too_large"), 0), (30_000, None, 300_001), (1, None, 330_002)]);
}
