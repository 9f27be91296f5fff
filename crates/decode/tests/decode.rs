//! The decoders against the corpus of real events, and against everything that is not one.

mod corpus;

use std::sync::Arc;

use millstream_core::Decoded;
use millstream_decode::{Options, debezium, debezium_flat};

#[test]
#[ignore = "a look at the whole corpus, for people"]
fn look() {
    let wanted = std::env::var("LOOK").unwrap_or_default();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".jsonl")
            || name.contains(".final.")
            || (!wanted.is_empty() && !name.starts_with(&wanted))
        {
            continue;
        }
        let mut options = Options { keep_before: true, ..Options::default() };
        if name == "toast.placeholder.jsonl" {
            options.placeholder = "@@gone@@".into();
        }
        let flat = name.contains("unwrap");
        let options = Arc::new(options);
        let mut decoder = if flat { debezium_flat(options) } else { debezium(options) };
        let items = corpus::decode(&mut *decoder, &corpus::batch(&name));
        let dead = items.iter().filter(|i| matches!(i, Decoded::Dead(_))).count();
        println!("##### {name} {} items, {dead} dead", items.len());
        let mut schemas = Vec::new();
        for item in &items {
            let text = corpus::show(item, &mut schemas);
            if !wanted.is_empty() || matches!(item, Decoded::Dead(_)) {
                println!("{text}");
            }
        }
        for notice in decoder.notices() {
            println!("{notice:?}");
        }
    }
}
