//! Which shard judges an event, and under which key its state lies.
//!
//! Both hashes are fixed forever, because state on disk and messages between shards depend on them:
//!
//! - *table hash*: FNV-1a, 64 bits, over `db NUL schema NUL table` (UTF-8).
//! - *address*: the canonical key's bytes; for an event without a key `FF`, partition and block (8 bytes each, big-endian),
//!   where a block is the offset without its lowest 20 bits; nothing for a truncate.
//! - *state key*: the table hash (8 bytes, big-endian), then the address. Canonical keys never begin with `FF`.
//! - *shard*: FNV-1a continued from the table hash over the address, mixed by MurmurHash3's 64-bit finaliser, times the
//!   number of shards, high 64 bits.
//!
//! Events without a key are told by where they came from. A block of offsets shares one entry, so that the offsets of a file
//! cost two bytes each, while neighbouring blocks go to different shards.

use crate::bytes::{fnv1a, fnv1a_on};
use crate::event::{Event, Op, Origin};
use crate::order::EventId;
use crate::schema::TableName;

/// First byte of the address of a keyless event.
pub(super) const KEYLESS: u8 = 0xff;
/// Length of such an address.
const KEYLESS_LEN: usize = 17;
const BLOCK_BITS: u32 = 20;

/// The table hash, see the module's docs.
pub(super) fn table_hash(table: &TableName) -> u64 {
    let hash = fnv1a_on(fnv1a(table.db.as_bytes()), &[0]);
    fnv1a_on(fnv1a_on(fnv1a_on(hash, table.schema.as_bytes()), &[0]), table.table.as_bytes())
}

/// The shard of an address, see the module's docs.
pub(super) fn shard_of_address(table: u64, address: &[u8], shards: usize) -> usize {
    let mut h = fnv1a_on(table, address);
    h = (h ^ h >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ h >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^= h >> 33;
    ((u128::from(h) * shards as u128) >> 64) as usize
}

/// The address of a keyless event.
pub(super) fn keyless_address(origin: &Origin) -> [u8; KEYLESS_LEN] {
    let mut address = [KEYLESS; KEYLESS_LEN];
    address[1..9].copy_from_slice(&origin.partition.to_be_bytes());
    address[9..].copy_from_slice(&(origin.offset >> BLOCK_BITS).to_be_bytes());
    address
}

/// The identity of a keyless event within its block.
pub(super) fn keyless_id(origin: &Origin) -> EventId {
    EventId(u128::from(origin.index) << BLOCK_BITS | u128::from(origin.offset & ((1 << BLOCK_BITS) - 1)))
}

/// The state key of an address.
pub(super) fn put_state_key(out: &mut Vec<u8>, table: u64, address: &[u8]) {
    out.clear();
    out.extend_from_slice(&table.to_be_bytes());
    out.extend_from_slice(address);
}

/// The shard, below `shards`, that judges `event`: stable across runs and machines. Truncates are broadcast; their shard is
/// the one that decides and reports them.
pub fn shard_of(event: &Event, shards: usize) -> usize {
    if shards <= 1 {
        return 0;
    }
    let table = table_hash(&event.schema.table);
    match &event.key {
        _ if event.op == Op::Truncate => shard_of_address(table, &[], shards),
        Some(key) => shard_of_address(table, key.as_bytes(), shards),
        None => shard_of_address(table, &keyless_address(&event.origin), shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are the format: a change of them loses the state of every pipeline.
    #[test]
    fn hashes_are_fixed() {
        let table = table_hash(&TableName::new("shop", "public", "orders"));
        assert_eq!(table, 0x4d4c_3370_024c_752b);
        assert_eq!(shard_of_address(table, &[2, 14], 7), 3);
        assert_eq!(shard_of_address(table, &[2, 16], 7), 4);
    }

    #[test]
    fn shards_are_used_evenly() {
        let mut counts = [0; 7];
        for i in 0..70_000u32 {
            counts[shard_of_address(1, &i.to_be_bytes(), 7)] += 1;
        }
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
    }
}
