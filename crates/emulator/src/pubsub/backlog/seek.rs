//! Making a backlog anew: after a seek, and after a restart. Its messages get new places, so that ack ids from before
//! mean nothing any more.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{Backlog, NOBODY, State};
use crate::pubsub::message::{self, Message};

/// A message to be in a backlog.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) published: i64,
    pub(crate) wire: Bytes,
    pub(crate) acked: bool,
}

impl Backlog {
    /// Its messages, as far as their bytes are still there.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (u64, Kept)> {
        self.entries.iter().filter(|entry| !entry.wire.is_empty()).map(|entry| {
            let acked = entry.finished || entry.state == State::Acked;
            (entry.id, Kept { published: entry.published, wire: entry.wire.clone(), acked })
        })
    }

    /// Messages with ids in this range, and of these ids, that must not be lost.
    pub(crate) fn alive(
        &self,
        ids: std::ops::RangeInclusive<u64>,
        also: &[u64],
    ) -> impl Iterator<Item = (u64, Kept)> {
        let from = self.entries.partition_point(|entry| entry.id < *ids.start());
        let to = self.entries.partition_point(|entry| entry.id <= *ids.end());
        let carried =
            also.iter().filter_map(|id| self.entries.binary_search_by_key(id, |entry| entry.id).ok());
        // An entry without bytes is finished, and waits for those before it.
        (from..to)
            .chain(carried)
            .filter_map(|at| self.entries.get(at))
            .filter(|entry| !entry.wire.is_empty())
            .map(|entry| {
                (
                    entry.id,
                    Kept { published: entry.published, wire: entry.wire.clone(), acked: entry.finished },
                )
            })
    }

    /// Replaces all messages. What was delivered and not acknowledged comes again.
    pub(crate) fn rebuild(&mut self, messages: impl IntoIterator<Item = (u64, Kept)>) {
        self.clear();
        self.recent = (VecDeque::new(), super::HashMap::new());
        let retained = self.rules.retain_acked.is_some();
        for (id, kept) in messages {
            if kept.acked && !retained {
                continue;
            }
            let key = if kept.acked { Bytes::new() } else { message::ordering_key(&kept.wire) };
            self.append(kept.published, &Message { id, wire: kept.wire }, &key);
            if kept.acked
                && let Some(entry) = self.entries.back_mut()
            {
                (entry.state, entry.finished, entry.key) = (State::Acked, true, NOBODY);
                self.counts.backlog -= 1;
            }
        }
        self.effects.wake = true;
    }

    /// What was published before a time is acknowledged, and nothing else is.
    pub(crate) fn seek_time(&mut self, time: i64) {
        let messages: Vec<_> = self
            .kept()
            .map(|(id, kept)| {
                let acked = kept.published < time;
                (id, Kept { acked, ..kept })
            })
            .collect();
        self.rebuild(messages);
    }

    /// What a snapshot has is not acknowledged, and all else is.
    pub(crate) fn seek_snapshot(&mut self, snapshot: impl Iterator<Item = (u64, Kept)>) {
        let mut messages: BTreeMap<u64, Kept> =
            self.kept().map(|(id, kept)| (id, Kept { acked: true, ..kept })).collect();
        messages.extend(snapshot);
        let messages: Vec<_> = messages.into_iter().collect();
        self.rebuild(messages);
    }
}
