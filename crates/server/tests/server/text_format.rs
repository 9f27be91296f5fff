//! A strict reader of Prometheus' text format, written after its description and not after what writes it here.

use std::collections::{BTreeMap, BTreeSet};

/// Labels and their values.
pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// (name, labels, number).
    pub(crate) samples: Vec<(String, Labels, f64)>,
}

/// The families by name. Panics on whatever the format does not allow.
pub(crate) fn read(text: &str) -> BTreeMap<String, Read> {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut families: BTreeMap<String, Read> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(is_name(name, true), "{line}");
            current = name.to_owned();
            let read = Read { help: help.to_owned(), ..Read::default() };
            assert!(families.insert(current.clone(), read).is_none(), "{name} comes twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            families.get_mut(name).unwrap().kind = kind.to_owned();
        } else {
            let sample = sample(line);
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("no family: {line}"));
            let suffix =
                sample.0.strip_prefix(&current).unwrap_or_else(|| panic!("in another family: {line}"));
            let suffixes: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line}");
            assert!(seen.insert((sample.0.clone(), sample.1.clone())), "a sample comes twice: {line}");
            family.samples.push(sample);
        }
    }
    families
        .iter()
        .filter(|(_, read)| read.kind == "histogram")
        .for_each(|(name, read)| check_histogram(name, read));
    families
}

fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no number: {line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name, true), "{line}");
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
            assert!(is_name(label, false), "{line}");
            let (value, after) = quoted(after).unwrap_or_else(|| panic!("no end: {line}"));
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = after.strip_prefix('}').unwrap_or_else(|| panic!("no brace: {line}"));
                    break;
                }
            }
        }
    }
    let number = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no number: {line}"));
    (name.to_owned(), labels, number.parse().unwrap_or_else(|_| panic!("no number: {line}")))
}

/// A value up to its quotation mark, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}

fn is_name(text: &str, colons: bool) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(allowed)
}

fn check_histogram(name: &str, read: &Read) {
    let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    for (_, labels, n) in read.samples.iter().filter(|(of, ..)| of.ends_with("_bucket")) {
        let mut labels = labels.clone();
        let bound = labels.remove("le").unwrap().replace("+Inf", "inf").parse().unwrap();
        series.entry(labels).or_default().push((bound, *n));
    }
    for (labels, buckets) in series {
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {labels:?}: {buckets:?}");
        let of = |suffix: &str| {
            let sample = read.samples.iter().find(|(of, l, _)| of.ends_with(suffix) && *l == labels);
            sample.unwrap_or_else(|| panic!("{name} has no {suffix}")).2
        };
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, of("_count"))), "{name} {labels:?}");
        assert!(of("_sum") >= 0.0);
    }
}
