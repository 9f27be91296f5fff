//! Reading the journal on start: the state that its records lead to.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use bytes::Bytes;

use super::api;
use super::backlog::Kept;
use super::filter::Filter;
use super::journal::Segment;
use super::names;
use super::record::{Carried, Finished, MAGIC, Published, Record, Sought, State, Subscribed, Taken};
use super::snapshot;

/// A subscription as it was.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) tag: u32,
    pub(crate) config: api::Subscription,
    pub(crate) messages: BTreeMap<u64, Kept>,
    filter: Option<Filter>,
}

/// A snapshot as it was.
#[derive(Debug)]
pub(crate) struct RecoveredSnapshot {
    pub(crate) config: api::Snapshot,
    pub(crate) messages: BTreeMap<u64, Kept>,
}

/// What the journal says.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) next_id: u64,
    pub(crate) next_tag: u32,
    pub(crate) boot: u32,
    pub(crate) topics: BTreeMap<String, api::Topic>,
    pub(crate) subscriptions: BTreeMap<String, Recovered>,
    pub(crate) snapshots: BTreeMap<String, RecoveredSnapshot>,
}

/// Takes the directory for this process alone.
pub(crate) fn take(directory: &Path) -> io::Result<File> {
    fs::create_dir_all(directory)?;
    let file = OpenOptions::new().create(true).write(true).truncate(false).open(directory.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(io::Error::other(format!(
            "{} is in use by another emulator; stop it or choose another directory",
            directory.display()
        ))),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Reads all segments.
pub(crate) fn read(directory: &Path) -> io::Result<(Past, Vec<Segment>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if let Some(number) =
            number.filter(|_| path.extension().is_some_and(|extension| extension == "journal"))
        {
            files.push((number, path));
        }
    }
    files.sort();
    let mut past = Past { next_id: 1, next_tag: 1, ..Past::default() };
    let mut segments = Vec::new();
    for (number, path) in files {
        let bytes = fs::read(&path)?;
        let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
            return Err(io::Error::other(format!(
                "{} is not of a format that this version reads; move the directory away to begin anew",
                path.display()
            )));
        };
        let mut segment = Segment { bytes: bytes.len() as u64, ..Segment::new(number) };
        // A record that is not whole is what a crash left: nobody was told that it was written.
        while let Some((record, length)) = Record::read(rest) {
            segment.note(&record);
            past.apply(record);
            rest = &rest[length..];
        }
        segments.push(segment);
    }
    Ok((past, segments))
}

impl Past {
    fn apply(&mut self, record: Record) {
        match record {
            Record::State(state) => self.state(state),
            Record::Topic(topic) => {
                self.topics.insert(topic.name.clone(), *topic);
            }
            Record::TopicGone(name) => {
                self.topics.remove(&name);
                for subscription in self.subscriptions.values_mut().filter(|s| s.config.topic == name) {
                    names::DELETED_TOPIC.clone_into(&mut subscription.config.topic);
                    subscription.config.topic_message_retention_duration = None;
                }
            }
            Record::Subscription(subscribed) => self.subscription(*subscribed),
            Record::SubscriptionGone(name) => _ = self.subscriptions.remove(&name),
            Record::Snapshot(taken) => self.snapshot(taken),
            Record::SnapshotGone(name) => _ = self.snapshots.remove(&name),
            Record::Seek(sought) => self.seek(&sought),
            Record::Publish(published, wires) => self.publish(&published, wires),
            Record::Finish(finished) => self.finish(&finished),
            Record::Carry(carried) => self.carry(carried),
        }
    }

    /// A segment's first record: what exists is as it says, with the messages that are known.
    fn state(&mut self, state: State) {
        self.next_id = self.next_id.max(state.next_id);
        self.next_tag = self.next_tag.max(state.next_tag);
        self.boot = state.boot;
        self.topics = state.topics.into_iter().map(|topic| (topic.name.clone(), topic)).collect();
        let names: Vec<_> =
            state.subscriptions.iter().filter_map(|s| Some(s.config.as_ref()?.name.clone())).collect();
        self.subscriptions.retain(|name, _| names.contains(name));
        state.subscriptions.into_iter().for_each(|subscribed| self.subscription(subscribed));
        self.snapshots.retain(|name, _| state.snapshots.iter().any(|config| config.name == *name));
        for config in state.snapshots {
            self.snapshot(Taken { subscription: String::new(), config: Some(config) });
        }
    }

    fn subscription(&mut self, subscribed: Subscribed) {
        let Some(config) = subscribed.config else { return };
        self.next_tag = self.next_tag.max(subscribed.tag.saturating_add(1));
        let filter = Filter::parse(&config.filter).ok().flatten();
        let messages = match self.subscriptions.remove(&config.name) {
            Some(known) if !subscribed.created && !config.detached && known.tag == subscribed.tag => {
                known.messages
            }
            _ => BTreeMap::new(),
        };
        let name = config.name.clone();
        self.subscriptions.insert(name, Recovered { tag: subscribed.tag, config, messages, filter });
    }

    fn snapshot(&mut self, taken: Taken) {
        let Some(config) = taken.config else { return };
        if let Some(known) = self.snapshots.get_mut(&config.name) {
            known.config = config;
            return;
        }
        let source = self.subscriptions.get(&taken.subscription);
        let open = |kept: &&Kept| !kept.acked;
        let messages = source.map_or_else(BTreeMap::new, |source| {
            let open = source.messages.iter().filter(|(_, kept)| open(kept));
            open.map(|(id, kept)| (*id, kept.clone())).collect()
        });
        self.snapshots.insert(config.name.clone(), RecoveredSnapshot { config, messages });
    }

    fn seek(&mut self, sought: &Sought) {
        let Some(subscription) = self.subscriptions.get_mut(&sought.subscription) else { return };
        if sought.snapshot.is_empty() {
            for kept in subscription.messages.values_mut() {
                kept.acked = kept.published < sought.time;
            }
        } else if let Some(snapshot) = self.snapshots.get(&sought.snapshot) {
            subscription.messages.values_mut().for_each(|kept| kept.acked = true);
            subscription.messages.extend(snapshot.messages.iter().map(|(id, kept)| (*id, kept.clone())));
        }
    }

    fn publish(&mut self, published: &Published, wires: Vec<Bytes>) {
        self.next_id = self.next_id.max(published.first + wires.len() as u64);
        let here = |topic: &str| topic == published.topic;
        for (id, wire) in (published.first..).zip(wires) {
            let kept = Kept { published: published.time, wire, acked: false };
            for subscription in self.subscriptions.values_mut() {
                let wanted = here(&subscription.config.topic) && !subscription.config.detached;
                if wanted && subscription.filter.as_ref().is_none_or(|filter| filter.passes(&kept.wire)) {
                    subscription.messages.insert(id, kept.clone());
                }
            }
            for snapshot in self.snapshots.values_mut().filter(|snapshot| here(&snapshot.config.topic)) {
                snapshot.messages.insert(id, kept.clone());
            }
        }
    }

    fn finish(&mut self, finished: &Finished) {
        let Some(subscription) = self.subscriptions.values_mut().find(|s| s.tag == finished.tag) else {
            return;
        };
        let retained = super::subscription::rules(&subscription.config).retain_acked.is_some();
        for run in finished.runs.chunks_exact(2) {
            for id in run[0]..run[0].saturating_add(run[1]) {
                if !retained {
                    subscription.messages.remove(&id);
                } else if let Some(kept) = subscription.messages.get_mut(&id) {
                    kept.acked = true;
                }
            }
        }
    }

    fn carry(&mut self, carried: Carried) {
        self.next_id = self.next_id.max(carried.id + 1);
        let kept = |acked| Kept { published: carried.time, wire: carried.wire.clone(), acked };
        for subscription in self.subscriptions.values_mut() {
            if carried.tags.contains(&subscription.tag) {
                // What was read before knows better whether it is acknowledged.
                subscription.messages.entry(carried.id).or_insert_with(|| kept(false));
            } else if carried.acked.contains(&subscription.tag) {
                subscription.messages.entry(carried.id).or_insert_with(|| kept(true));
            }
        }
        for name in &carried.snapshots {
            if let Some(snapshot) = self.snapshots.get_mut(name) {
                snapshot.messages.insert(carried.id, kept(false));
            }
        }
    }
}

impl Past {
    /// Forgets snapshots whose time is over.
    pub(crate) fn forget_expired(&mut self, wall: i64) {
        let over = |config: &api::Snapshot| {
            config.expire_time.as_ref().is_some_and(|time| snapshot::nanos(time) <= wall)
        };
        self.snapshots.retain(|_, snapshot| !over(&snapshot.config));
    }
}
