//! Arbitrary records through the envelope decoder, fresh and warm: nothing panics, every record has one outcome, and
//! what is no JSON is never an event.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_core::Decoded;
use millstream_decode::{Options, debezium};

mod record;

fuzz_target!(|data: &[u8]| record::run(
    data,
    |keep| { debezium(Options { keep_before: keep, keep_source: keep, ..record::options() }.into()) },
    |item, json| assert!(json || !matches!(item, Decoded::Event(_)))
));
