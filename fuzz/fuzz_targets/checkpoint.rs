//! Checkpoint bytes, forwards and keys: whatever a damaged disk may hold is refused or understood, never a panic, and
//! what is understood means the same when it is written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_core::Key;
use millstream_core::dedupe::Forward;
use millstream_state::{decode_checkpoint, encode_checkpoint};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(checkpoint) = decode_checkpoint(bytes) {
        let again = encode_checkpoint(&checkpoint);
        let reread = decode_checkpoint(&again).expect("what was written can be read");
        assert_eq!(encode_checkpoint(&reread), again);
    }
    if let Ok(forward) = Forward::decode(bytes) {
        let again = forward.encode();
        let reread = Forward::decode(&again).expect("what was written can be read");
        assert_eq!(reread.encode(), again);
    }
    if let Some(key) = Key::from_bytes(bytes) {
        assert_eq!(key.as_bytes(), bytes);
    }
});
