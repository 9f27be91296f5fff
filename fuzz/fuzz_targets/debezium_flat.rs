//! Arbitrary records through the decoder of flattened events.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_core::Decoded;
use millstream_decode::{Options, debezium_flat};

mod record;

fuzz_target!(|data: &[u8]| record::run(
    data,
    |keep| { debezium_flat(Options { keep_before: keep, ..record::options() }.into()) },
    |item, json| assert!(json || !matches!(item, Decoded::Event(_)))
));
