//! The journal's records. A record is its length, a checksum, a kind and a protobuf message; a published batch's messages
//! follow that as they are.

use bytes::Bytes;
use prost::Message;

use super::api;

/// The first bytes of a segment; the last one is the format's number.
pub(crate) const MAGIC: &[u8; 8] = b"MSPUBSB\x01";

/// What is before a record's content: length, checksum, kind.
pub(crate) const HEAD: usize = 9;

/// A topic's and a subscription's configurations, and all that numbers go on from: the first record of a segment.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct State {
    #[prost(uint64, tag = "1")]
    pub(crate) next_id: u64,
    #[prost(uint32, tag = "2")]
    pub(crate) next_tag: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) boot: u32,
    #[prost(message, repeated, tag = "4")]
    pub(crate) topics: Vec<api::Topic>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) subscriptions: Vec<Subscribed>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) snapshots: Vec<api::Snapshot>,
}

/// A subscription, made or changed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Subscribed {
    #[prost(uint32, tag = "1")]
    pub(crate) tag: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<api::Subscription>,
    /// Whether it is new, and so begins without messages.
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
}

/// A snapshot, made of a subscription or, without one, changed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Taken {
    #[prost(string, tag = "1")]
    pub(crate) subscription: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<api::Snapshot>,
}

/// A seek.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sought {
    #[prost(string, tag = "1")]
    pub(crate) subscription: String,
    /// Nanoseconds since 1970, if there is no snapshot.
    #[prost(sint64, tag = "2")]
    pub(crate) time: i64,
    #[prost(string, tag = "3")]
    pub(crate) snapshot: String,
}

/// A batch; the messages follow, with these lengths.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Published {
    #[prost(string, tag = "1")]
    pub(crate) topic: String,
    #[prost(uint64, tag = "2")]
    pub(crate) first: u64,
    #[prost(sint64, tag = "3")]
    pub(crate) time: i64,
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) lengths: Vec<u32>,
}

/// Messages that a subscription is done with, as runs of ids: first, count, first, count.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Finished {
    #[prost(uint32, tag = "1")]
    pub(crate) tag: u32,
    #[prost(uint64, repeated, tag = "2")]
    pub(crate) runs: Vec<u64>,
}

/// A message from a segment that goes, which is still needed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Carried {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(sint64, tag = "2")]
    pub(crate) time: i64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) wire: Bytes,
    /// The subscriptions that have it.
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) tags: Vec<u32>,
    /// The subscriptions that acknowledged it and keep it.
    #[prost(uint32, repeated, tag = "5")]
    pub(crate) acked: Vec<u32>,
    /// The snapshots that have it.
    #[prost(string, repeated, tag = "6")]
    pub(crate) snapshots: Vec<String>,
}

/// A record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    State(State),
    Topic(Box<api::Topic>),
    TopicGone(String),
    Subscription(Box<Subscribed>),
    SubscriptionGone(String),
    Snapshot(Taken),
    SnapshotGone(String),
    Seek(Sought),
    Publish(Published, Vec<Bytes>),
    Finish(Finished),
    Carry(Carried),
}

impl Record {
    fn kind(&self) -> u8 {
        match self {
            Record::State(_) => 1,
            Record::Topic(_) => 2,
            Record::TopicGone(_) => 3,
            Record::Subscription(_) => 4,
            Record::SubscriptionGone(_) => 5,
            Record::Snapshot(_) => 6,
            Record::SnapshotGone(_) => 7,
            Record::Seek(_) => 8,
            Record::Publish(..) => 9,
            Record::Finish(_) => 10,
            Record::Carry(_) => 11,
        }
    }

    /// About how much it takes on disk.
    pub(crate) fn size(&self) -> usize {
        64 + match self {
            Record::Publish(_, wires) => wires.iter().map(|wire| wire.len() + 4).sum(),
            Record::Finish(finished) => finished.runs.len() * 4,
            Record::Carry(carried) => carried.wire.len(),
            _ => 1024,
        }
    }

    /// Appends its bytes.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEAD]);
        let content = match self {
            Record::State(state) => state.encode_to_vec(),
            Record::Topic(topic) => topic.encode_to_vec(),
            Record::TopicGone(name) | Record::SubscriptionGone(name) | Record::SnapshotGone(name) => {
                name.clone().into_bytes()
            }
            Record::Subscription(subscribed) => subscribed.encode_to_vec(),
            Record::Snapshot(taken) => taken.encode_to_vec(),
            Record::Seek(sought) => sought.encode_to_vec(),
            Record::Publish(published, _) => published.encode_length_delimited_to_vec(),
            Record::Finish(finished) => finished.encode_to_vec(),
            Record::Carry(carried) => carried.encode_to_vec(),
        };
        out.extend_from_slice(&content);
        if let Record::Publish(_, wires) = self {
            for wire in wires {
                out.extend_from_slice(wire);
            }
        }
        let length = (out.len() - start - HEAD) as u32;
        out[start + 8] = self.kind();
        let sum = checksum(&out[start + 8..]);
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the record at the beginning, and how long it is; nothing if it is not whole.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let sum = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
        let end = HEAD.checked_add(length)?;
        let summed = bytes.get(8..end)?;
        if checksum(summed) != sum {
            return None;
        }
        let (kind, content) = summed.split_first()?;
        let name = || std::str::from_utf8(content).ok().map(str::to_owned);
        let record = match kind {
            1 => Record::State(State::decode(content).ok()?),
            2 => Record::Topic(Box::new(api::Topic::decode(content).ok()?)),
            3 => Record::TopicGone(name()?),
            4 => Record::Subscription(Box::new(Subscribed::decode(content).ok()?)),
            5 => Record::SubscriptionGone(name()?),
            6 => Record::Snapshot(Taken::decode(content).ok()?),
            7 => Record::SnapshotGone(name()?),
            8 => Record::Seek(Sought::decode(content).ok()?),
            9 => {
                let mut rest = content;
                let published = Published::decode_length_delimited(&mut rest).ok()?;
                let mut wires = Vec::with_capacity(published.lengths.len());
                for length in &published.lengths {
                    let (wire, after) = rest.split_at_checked(*length as usize)?;
                    wires.push(Bytes::copy_from_slice(wire));
                    rest = after;
                }
                Record::Publish(published, wires)
            }
            10 => Record::Finish(Finished::decode(content).ok()?),
            11 => Record::Carry(Carried::decode(content).ok()?),
            _ => return None,
        };
        Some((record, end))
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Ids as runs.
pub(crate) fn runs(ids: &[u64]) -> Vec<u64> {
    let mut runs: Vec<u64> = Vec::new();
    for id in ids {
        match runs.as_mut_slice() {
            [.., first, count] if *first + *count == *id => *count += 1,
            _ => runs.extend([*id, 1]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_torn_ones_do_not() {
        let wires = vec![Bytes::from_static(b"one"), Bytes::from_static(b""), Bytes::from_static(b"three")];
        let published = Published {
            topic: "t".to_owned(),
            first: 7,
            time: -3,
            lengths: wires.iter().map(|w| w.len() as u32).collect(),
        };
        let records = [
            Record::Publish(published, wires),
            Record::TopicGone("projects/p/topics/t".to_owned()),
            Record::Finish(Finished { tag: 3, runs: runs(&[1, 2, 3, 9, 5, 6]) }),
            Record::State(State { next_id: 5, ..State::default() }),
            Record::Carry(Carried {
                id: 1,
                wire: Bytes::from_static(b"x"),
                tags: vec![1, 2],
                ..Carried::default()
            }),
        ];
        let mut bytes = Vec::new();
        for record in &records {
            record.write(&mut bytes);
        }
        let mut at = 0;
        for record in &records {
            let (read, length) = Record::read(&bytes[at..]).unwrap();
            assert_eq!(&read, record);
            for cut in 0..length {
                assert_eq!(Record::read(&bytes[at..at + cut]), None);
            }
            let mut broken = bytes[at..at + length].to_vec();
            broken[length - 1] ^= 1;
            assert_eq!(Record::read(&broken), None);
            at += length;
        }
        assert_eq!(at, bytes.len());
        assert_eq!(runs(&[1, 2, 3, 9, 5, 6]), [1, 3, 9, 1, 5, 2]);
    }
}
