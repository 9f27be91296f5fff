//! What each corpus file decodes to.

use std::sync::Arc;

use millstream_decode::{Options, debezium, debezium_flat};

use crate::corpus;

/// The decoded form of a file: each schema once, then every item.
fn decoded(name: &str) -> String {
    let mut options = Options { keep_before: true, ..Options::default() };
    if name.starts_with("toast.placeholder") {
        options.placeholder = "@@gone@@".into();
    }
    let options = Arc::new(options);
    let flat = name.contains("unwrap");
    let mut decoder = if flat { debezium_flat(options) } else { debezium(options) };
    let mut schemas = Vec::new();
    let mut text = String::new();
    for item in corpus::decode(&mut *decoder, &corpus::batch(name)) {
        text.push_str(&corpus::show(&item, &mut schemas));
        text.push('\n');
    }
    for n in decoder.notices() {
        text.push_str(&format!("notice {} {} {} {}\n", n.code, n.table, n.column, n.count));
    }
    text
}

#[test]
fn every_corpus_file_decodes_to_its_golden() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("goldens");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let _bound = settings.bind_to_scope();
    for name in corpus::files() {
        insta::assert_snapshot!(name.trim_end_matches(".jsonl"), decoded(&name));
    }
}
