//! What to pull from, and how.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use millstream_core::{Error, Result};

use crate::name::{SnapshotName, SubscriptionName, TopicName};

/// Where the service is, and as whom to talk to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Connection {
    /// `http://…` of an emulator (plaintext, no credentials), or `https://…`; `None` is the service itself.
    pub endpoint: Option<String>,
    /// A credentials file (service account, external account, authorized user); `None` is Application Default
    /// Credentials. Not used with a plaintext endpoint.
    pub credentials: Option<PathBuf>,
}

impl Connection {
    /// The endpoint as a whole URL; `localhost:8085`, as `PUBSUB_EMULATOR_HOST` has it, is one of an emulator.
    ///
    /// # Errors
    /// If it is none that a client can connect to. The text does not show it: it may come from the environment.
    pub fn url(endpoint: &str) -> Result<String> {
        let url = if endpoint.contains("://") { endpoint.to_owned() } else { format!("http://{endpoint}") };
        let refuse = |what: &str| {
            let like = "`http://HOST:PORT` (an emulator) or `https://HOST`";
            Err(Error::fatal(format!("no endpoint of Pub/Sub: {what}; give {like}")))
        };
        let Ok(uri) = url.parse::<http::Uri>() else { return refuse("it is no URL") };
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            refuse("its scheme is neither `http` nor `https`")
        } else if uri.host().is_none_or(str::is_empty) {
            refuse("it names no host")
        } else if authority.contains('@') {
            refuse("it has a user, and credentials go into a file")
        } else if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            refuse("its port is no number up to 65535")
        } else if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            refuse("it has a path")
        } else {
            Ok(url)
        }
    }
}

/// Settings of a Pub/Sub source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PubsubConfig {
    /// Where and as whom.
    pub connection: Connection,
    /// Subscriptions to pull from; each is a partition.
    pub subscriptions: Vec<SubscriptionName>,
    /// Topics of subscriptions that are not named after theirs; see [`SubscriptionName::likely_topic`]. Records carry the topic's
    /// ID, which tells the table of flattened events.
    pub topics: HashMap<SubscriptionName, TopicName>,
    /// Every subscription of this project (`projects/PROJECT`) whose ID begins with this text, looked up at the start.
    pub prefix: Option<(String, String)>,
    /// Streaming pulls for each subscription; 1 to 64.
    pub streams: usize,
    /// Messages that may be leased and not acknowledged, in all; divided between the streams.
    pub outstanding_messages_max: u64,
    /// The same in bytes.
    pub outstanding_bytes_max: u64,
    /// How long a message is leased, and by how much a lease is extended, at a time: 10 s to 10 min. After a crash
    /// messages come again when it is over.
    pub lease: Duration,
    /// A message that is not acknowledged after this long is given back.
    pub lease_max: Duration,
    /// Take only what was published before this time, ms since 1970. The rest is given back when the source closes.
    pub published_before_ms: Option<i64>,
    /// Make topics and subscriptions that do not exist.
    pub create: Option<Create>,
    /// A service that was never reached fails the attempt after this long; once it was reached, streams are opened again
    /// for as long as it takes.
    pub connect_patience: Duration,
    /// About how long [`next`](millstream_core::Source::next) waits before it answers that there is nothing.
    pub poll_interval: Duration,
}

/// How subscriptions that do not exist are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// The topic of each subscription, in the order of `subscriptions`; made too if it does not exist.
    pub topics: Vec<TopicName>,
    /// The subscription's own acknowledgement deadline: 10 s to 10 min.
    pub ack_deadline: Duration,
    /// Deliver messages of one ordering key in order. Cannot be changed later.
    pub ordering: bool,
    /// Exactly-once delivery.
    pub exactly_once: bool,
    /// Where Pub/Sub itself puts what was delivered too often; made too if it does not exist.
    pub dead_letter_topic: Option<TopicName>,
    /// Deliveries before that: 5 to 100.
    pub delivery_attempts_max: u32,
}

/// Where a subscription is put to before the pipeline starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeekTo {
    /// What was published before this time, ms since 1970, is acknowledged, the rest is not.
    TimeMs(i64),
    /// The state that a snapshot of the subscription's topic keeps.
    Snapshot(SnapshotName),
}

impl Create {
    /// As many subscriptions to `topic`, unordered, with a deadline of a minute.
    pub fn of_topic(topic: TopicName, subscriptions: usize) -> Self {
        Self {
            topics: vec![topic; subscriptions],
            ack_deadline: Duration::from_secs(60),
            ordering: false,
            exactly_once: false,
            dead_letter_topic: None,
            delivery_attempts_max: 100,
        }
    }
}

impl PubsubConfig {
    /// Settings for `subscriptions`; everything else by default.
    pub fn new(connection: Connection, subscriptions: Vec<SubscriptionName>) -> Self {
        Self {
            connection,
            subscriptions,
            topics: HashMap::new(),
            prefix: None,
            streams: 2,
            outstanding_messages_max: 200_000,
            outstanding_bytes_max: 256 << 20,
            lease: Duration::from_secs(30),
            lease_max: Duration::from_secs(3600),
            published_before_ms: None,
            create: None,
            connect_patience: Duration::from_secs(60),
            poll_interval: Duration::from_millis(250),
        }
    }

    /// Checks the bounds.
    pub(crate) fn validate(&self) -> Result<()> {
        let deadline = Duration::from_secs(10)..=Duration::from_secs(600);
        if self.subscriptions.is_empty() && self.prefix.is_none() {
            return Err(Error::fatal(
                "the Pub/Sub source names no subscription: give `subscriptions` or `subscription_prefix`",
            ));
        }
        let mut names = HashSet::new();
        if let Some(twice) = self.subscriptions.iter().find(|name| !names.insert(*name)) {
            return Err(Error::fatal(format!(
                "{twice} is named twice: each subscription is pulled from once"
            )));
        }
        if !deadline.contains(&self.lease) {
            return Err(Error::fatal("a lease is 10 s to 10 min: Pub/Sub allows no other"));
        }
        let of_create = self.create.as_ref().map(|create| create.ack_deadline);
        if [Some(self.lease), of_create].into_iter().flatten().any(|span| span.subsec_nanos() > 0) {
            return Err(Error::fatal("leases and deadlines are whole seconds: Pub/Sub takes no other"));
        }
        if !(1..=64).contains(&self.streams) {
            return Err(Error::fatal("1 to 64 streams can pull from a subscription"));
        }
        if self.outstanding_messages_max == 0 || self.outstanding_bytes_max == 0 {
            return Err(Error::fatal("at least one message must be allowed to be outstanding"));
        }
        if let Some(create) = &self.create {
            if !deadline.contains(&create.ack_deadline) {
                return Err(Error::fatal("an acknowledgement deadline is 10 s to 10 min"));
            }
            if create.topics.len() != self.subscriptions.len() {
                return Err(Error::fatal("to make subscriptions, each needs its topic"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ftp://…` was taken, and failed as a service that cannot be reached.
    #[test]
    fn an_endpoint_is_checked_before_anything_is_sent() {
        for (good, url) in [
            ("localhost:8085", "http://localhost:8085"),
            ("[::1]:8085", "http://[::1]:8085"),
            ("http://[::1]", "http://[::1]"),
            ("https://europe-west1-pubsub.googleapis.com/", "https://europe-west1-pubsub.googleapis.com/"),
        ] {
            assert_eq!(Connection::url(good).unwrap(), url);
        }
        for (bad, says) in [
            ("ftp://localhost:8085", "scheme"),
            ("http://", "URL"),
            ("http://:8085", "host"),
            ("http://localhost:80850", "port"),
            ("http://localhost:x", "port"),
            ("http://hunter2:hunter2@localhost", "user"),
            ("https://pubsub.googleapis.com/v1/projects", "path"),
            ("http://a b", "URL"),
        ] {
            let error = Connection::url(bad).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hunter2"), "{bad}: {error}");
        }
    }

    /// 10.5 s were sent as 10 s, and a lease ended before its extension was due.
    #[test]
    fn deadlines_are_whole_seconds() {
        let name = SubscriptionName::parse("projects/p/subscriptions/orders", None).unwrap();
        let topic = TopicName::parse("projects/p/topics/orders", None).unwrap();
        let mut config = PubsubConfig::new(Connection::default(), vec![name]);
        config.create = Some(Create::of_topic(topic, 1));
        config.validate().unwrap();
        let odd = Duration::from_millis(10_500);
        let lease = PubsubConfig { lease: odd, ..config.clone() };
        let create = config.create.clone().map(|create| Create { ack_deadline: odd, ..create });
        for config in [lease, PubsubConfig { create, ..config }] {
            assert!(config.validate().unwrap_err().to_string().contains("whole seconds"));
        }
    }
}
