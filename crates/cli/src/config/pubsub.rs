//! Pub/Sub as source, as sink and as the place of dead letters.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Bytes, OneOrMany, Span};

/// Messages of Pub/Sub subscriptions, acknowledged when their checkpoint is durable. `PUBSUB_EMULATOR_HOST` is honoured.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PubsubConfig {
    /// The project of names that are no full ones.
    pub(crate) project: Option<String>,
    /// Subscriptions: IDs in `project`, or full names (`projects/…/subscriptions/…`).
    pub(crate) subscriptions: Option<OneOrMany>,
    /// Each subscription's topic, or one for all: which table flattened events belong to, and what `create` makes. The
    /// subscription's ID without `-sub` by default.
    pub(crate) topics: Option<OneOrMany>,
    /// Every subscription of `project` whose ID begins with this, looked up at each start.
    pub(crate) subscription_prefix: Option<String>,
    /// Streaming pulls for each subscription. `2` by default, `1` for more than 16 subscriptions.
    pub(crate) streams: Option<usize>,
    /// Messages that may be unacknowledged, in all: what an epoch can hold. `200000` by default. An epoch ends early when
    /// this is nearly reached.
    pub(crate) max_outstanding_messages: Option<u64>,
    /// The same in bytes. `256MiB` by default.
    pub(crate) max_outstanding_bytes: Option<Bytes>,
    /// How long a message is leased at a time; after a crash it comes again when that is over. `30s` by default.
    pub(crate) lease: Option<Span>,
    /// A message that is not durable after so long is given up and comes again. `60m` by default.
    pub(crate) max_lease: Option<Span>,
    /// Make topics and subscriptions that do not exist. `false` by default; the keys below say how.
    #[serde(default)]
    pub(crate) create: bool,
    /// With `create`: the subscription's own acknowledgement deadline. `60s` by default.
    pub(crate) ack_deadline: Option<Span>,
    /// With `create`: deliver messages of one ordering key in order. `false` by default.
    pub(crate) message_ordering: Option<bool>,
    /// With `create`: exactly-once delivery. `false` by default: the pipeline removes duplicates itself.
    pub(crate) exactly_once_delivery: Option<bool>,
    /// With `create`: where Pub/Sub puts what it delivered too often.
    pub(crate) dead_letter_topic: Option<String>,
    /// With `create`: deliveries before that, 5 to 100; a crash of the pipeline counts too. `100` by default.
    pub(crate) max_delivery_attempts: Option<u32>,
    /// `http://…` of an emulator or `https://…`; the service by default.
    pub(crate) endpoint: Option<String>,
    /// A credentials file; Application Default Credentials by default.
    pub(crate) credentials: Option<PathBuf>,
}

/// Publishes events to a topic, at least once. `PUBSUB_EMULATOR_HOST` is honoured.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PubsubSinkConfig {
    /// The sink's name in checkpoints and summaries. `pubsub` by default; needed if there are several of them.
    pub(crate) name: Option<String>,
    /// The project, if `topic` is no full name.
    pub(crate) project: Option<String>,
    /// The topic: an ID in `project`, or a full name.
    pub(crate) topic: String,
    /// What a message holds. `record` by default.
    #[serde(default)]
    pub(crate) format: MessageFormat,
    /// Publish with the key as ordering key. `true` by default; without it requests are larger and faster.
    pub(crate) ordering_keys: Option<bool>,
    /// Make the topic if it does not exist. `false` by default.
    #[serde(default)]
    pub(crate) create: bool,
    /// `http://…` of an emulator or `https://…`; the service by default.
    pub(crate) endpoint: Option<String>,
    /// A credentials file; Application Default Credentials by default.
    pub(crate) credentials: Option<PathBuf>,
}

/// What a published message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MessageFormat {
    /// The record as it came: its value, its key as ordering key, its headers as attributes.
    #[default]
    Record,
    /// The event as a JSON object: table, op, order, key, row, before.
    Event,
}

/// Dead letters as messages of a topic: the record's bytes as data, the facts as attributes. `PUBSUB_EMULATOR_HOST` is honoured.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadLetterTopicConfig {
    /// The project of names that are no full ones.
    pub(crate) project: Option<String>,
    /// The topic: an ID in `project`, or a full name.
    pub(crate) topic: String,
    /// A subscription to it, from which `dead-letters replay` takes them.
    pub(crate) subscription: Option<String>,
    /// Make the topic and the subscription if they do not exist. `false` by default.
    #[serde(default)]
    pub(crate) create: bool,
    /// The folder for letters that no message can hold (a key above 1 KiB, a record of 10 MB), as JSON lines.
    /// `dead-letters` in the checkpoint's folder by default.
    pub(crate) directory: Option<PathBuf>,
    /// `http://…` of an emulator or `https://…`; the service by default.
    pub(crate) endpoint: Option<String>,
    /// A credentials file; Application Default Credentials by default.
    pub(crate) credentials: Option<PathBuf>,
}
