//! What a config's Pub/Sub parts mean.

use std::path::PathBuf;
use std::time::Duration;

use millstream_core::Result;
use millstream_pubsub::sink::{Format, SinkConfig};
use millstream_pubsub::{Connection, Create, PubsubConfig, SubscriptionName, TopicName};

use super::Checker;
use crate::config::{self, OneOrMany, Step};

/// More subscriptions than this have one stream each by default.
const SUBSCRIPTIONS_WITH_TWO_STREAMS: usize = 16;

/// Of one extension.
const LEASE_MAX: Duration = Duration::from_secs(30);

/// A topic of dead letters, and a subscription from which they are replayed.
#[derive(Debug, Clone)]
pub(crate) struct LetterTopicPlan {
    pub(crate) connection: Connection,
    pub(crate) topic: TopicName,
    pub(crate) subscription: Option<SubscriptionName>,
    pub(crate) create: bool,
}

impl Checker<'_> {
    pub(super) fn pubsub_source(&mut self, given: &config::PubsubConfig) -> PubsubConfig {
        let at = |key: &str| [Step::from("source"), Step::from(key)];
        let project = given.project.as_deref();
        let ids = given.subscriptions.as_ref().map(|OneOrMany(ids)| &**ids).unwrap_or_default();
        let subscriptions = self.names(&at("subscriptions"), ids, |id| SubscriptionName::parse(id, project));
        if let Some((at_index, twice)) =
            subscriptions.iter().enumerate().find(|(i, name)| subscriptions[..*i].contains(name))
        {
            let place = [Step::from("source"), Step::from("subscriptions"), Step::from(at_index)];
            self.problem(&place, format!("{twice} is named twice"), "each subscription is pulled from once");
        }
        if ids.is_empty() && given.subscription_prefix.is_none() {
            self.problem(
                &["source".into()],
                "no subscription to pull from",
                "give `subscriptions` or `subscription_prefix`",
            );
        }
        let prefix = match (&given.subscription_prefix, project) {
            (Some(prefix), Some(project)) => Some((format!("projects/{project}"), prefix.clone())),
            (Some(_), None) => {
                self.problem(&at("subscription_prefix"), "`subscription_prefix` needs `project`", "");
                None
            }
            (None, _) => None,
        };
        let streams = given.streams.unwrap_or(if ids.len() > SUBSCRIPTIONS_WITH_TWO_STREAMS { 1 } else { 2 });
        if !(1..=64).contains(&streams) {
            self.problem(&at("streams"), "`streams` is 1 to 64", "");
        }
        let mut plan = PubsubConfig::new(
            self.connection(&["source".into()], &given.endpoint, &given.credentials),
            subscriptions,
        );
        plan.prefix = prefix;
        plan.streams = streams;
        if let Some(messages) = given.max_outstanding_messages {
            plan.outstanding_messages_max = messages;
        }
        if let Some(bytes) = &given.max_outstanding_bytes {
            plan.outstanding_bytes_max = bytes.0;
        }
        if plan.outstanding_messages_max == 0 {
            self.problem(&at("max_outstanding_messages"), "at least one message must be allowed", "");
        }
        if plan.outstanding_bytes_max == 0 {
            self.problem(&at("max_outstanding_bytes"), "at least one byte must be allowed", "");
        }
        plan.lease = self.deadline(&at("lease"), given.lease, plan.lease);
        if plan.lease > LEASE_MAX {
            let help =
                "it is extended as long as needed; what a crashed run held comes again only when it is over";
            self.problem(&at("lease"), "a lease is at most 30s at a time", help);
        }
        plan.lease_max = self.positive(&at("max_lease"), given.max_lease, plan.lease_max);
        if plan.lease_max < plan.lease {
            self.problem(&at("max_lease"), "`max_lease` is shorter than `lease`", "");
        }
        let topics = self.topics(given, &plan.subscriptions);
        plan.topics = plan.subscriptions.iter().cloned().zip(topics.iter().cloned()).collect();
        plan.create = self.create(given, topics);
        plan
    }

    /// The topic of each subscription.
    fn topics(&mut self, given: &config::PubsubConfig, subscriptions: &[SubscriptionName]) -> Vec<TopicName> {
        let at = [Step::from("source"), Step::from("topics")];
        let ids = match &given.topics {
            Some(OneOrMany(ids)) => ids.clone(),
            None => subscriptions.iter().map(|name| name.likely_topic().to_owned()).collect(),
        };
        let mut topics = self.names(&at, &ids, |id| TopicName::parse(id, given.project.as_deref()));
        if let [one] = &topics[..] {
            topics = vec![one.clone(); subscriptions.len()];
        }
        if topics.len() != subscriptions.len() && topics.len() == ids.len() {
            self.problem(&at, "give one topic for each subscription, or one for all", "");
        }
        topics
    }

    fn create(&mut self, given: &config::PubsubConfig, topics: Vec<TopicName>) -> Option<Create> {
        let at = |key: &str| [Step::from("source"), Step::from(key)];
        let project = given.project.as_deref();
        let only_with_create = [
            ("ack_deadline", given.ack_deadline.is_some()),
            ("message_ordering", given.message_ordering.is_some()),
            ("exactly_once_delivery", given.exactly_once_delivery.is_some()),
            ("dead_letter_topic", given.dead_letter_topic.is_some()),
            ("max_delivery_attempts", given.max_delivery_attempts.is_some()),
        ];
        if !given.create {
            for (key, _) in only_with_create.into_iter().filter(|(_, is_given)| *is_given) {
                let message = format!("`{key}` says how a subscription is made, and none is");
                self.problem(&at(key), message, "add `create: true`, or remove it");
            }
            return None;
        }
        if given.subscription_prefix.is_some() {
            self.problem(
                &at("create"),
                "`create` makes what `subscriptions` names, not what a prefix finds",
                "",
            );
        }
        let attempts = given.max_delivery_attempts.unwrap_or(100);
        if !(5..=100).contains(&attempts) {
            self.problem(&at("max_delivery_attempts"), "`max_delivery_attempts` is 5 to 100", "");
        }
        if given.max_delivery_attempts.is_some() && given.dead_letter_topic.is_none() {
            self.problem(
                &at("max_delivery_attempts"),
                "`max_delivery_attempts` needs `dead_letter_topic`",
                "",
            );
        }
        let dead = given.dead_letter_topic.as_slice();
        Some(Create {
            topics,
            ack_deadline: self.deadline(&at("ack_deadline"), given.ack_deadline, Duration::from_secs(60)),
            ordering: given.message_ordering.unwrap_or(false),
            exactly_once: given.exactly_once_delivery.unwrap_or(false),
            dead_letter_topic: self
                .names(&at("dead_letter_topic"), dead, |id| TopicName::parse(id, project))
                .pop(),
            delivery_attempts_max: attempts,
        })
    }

    pub(super) fn pubsub_sink(
        &mut self,
        index: usize,
        given: &config::PubsubSinkConfig,
    ) -> Option<SinkConfig> {
        let at = [Step::from("sinks"), Step::from(index), Step::from("topic")];
        let topic = std::slice::from_ref(&given.topic);
        let topic = self.names(&at, topic, |id| TopicName::parse(id, given.project.as_deref())).pop()?;
        Some(SinkConfig {
            connection: self.connection(&at[..2], &given.endpoint, &given.credentials),
            topic,
            format: match given.format {
                config::MessageFormat::Record => Format::Record,
                config::MessageFormat::Event => Format::Event,
            },
            ordering_keys: given.ordering_keys.unwrap_or(true),
            create: given.create,
        })
    }

    pub(super) fn letter_topic(&mut self, given: &config::DeadLetterTopicConfig) -> Option<LetterTopicPlan> {
        let at = |key: &str| [Step::from("dead_letters"), Step::from(key)];
        let project = given.project.as_deref();
        let topic = std::slice::from_ref(&given.topic);
        let topic = self.names(&at("topic"), topic, |id| TopicName::parse(id, project)).pop();
        let subscription = given.subscription.as_slice();
        let subscription =
            self.names(&at("subscription"), subscription, |id| SubscriptionName::parse(id, project)).pop();
        let connection = self.connection(&["dead_letters".into()], &given.endpoint, &given.credentials);
        Some(LetterTopicPlan { connection, topic: topic?, subscription, create: given.create })
    }

    /// The connection of the part of the config that is found under `part`.
    fn connection(
        &mut self,
        part: &[Step],
        endpoint: &Option<String>,
        credentials: &Option<PathBuf>,
    ) -> Connection {
        let of_environment = self.loaded.pubsub_emulator.clone();
        match (endpoint, &of_environment) {
            (Some(given), _) if given.trim().is_empty() => {
                let at: Vec<Step> = part.iter().cloned().chain([Step::from("endpoint")]).collect();
                self.problem(&at, "`endpoint` is empty", "leave it out for Google's own service");
            }
            (Some(given), _) => {
                if let Err(error) = Connection::url(given) {
                    let at: Vec<Step> = part.iter().cloned().chain([Step::from("endpoint")]).collect();
                    self.problem(&at, error.to_string(), "");
                }
            }
            (None, Some(given)) => {
                if let Err(error) = Connection::url(given) {
                    self.problem(part, format!("PUBSUB_EMULATOR_HOST: {error}"), "");
                }
            }
            (None, None) => {}
        }
        Connection {
            endpoint: endpoint.clone().or(of_environment),
            credentials: credentials.as_ref().map(|file| self.base.join(file)),
        }
    }

    /// A pipeline that publishes into a topic that it reads from never ends.
    pub(super) fn circles(&mut self, plan: &super::Plan) {
        let super::SourcePlan::Pubsub(source) = &plan.source else { return };
        let config::SourceConfig::Pubsub(given) = &self.loaded.config.source else { return };
        if given.topics.is_none() && !given.create {
            // Topics are only guessed then.
            return;
        }
        let reads = |topic: &TopicName| source.topics.values().any(|of| of == topic);
        let message = |topic: &TopicName| {
            format!("the source reads from {topic}: each message would make another, without end")
        };
        if let Some(letters) = plan.letter_topic.as_ref().filter(|letters| reads(&letters.topic)) {
            self.problem(
                &["dead_letters".into(), "topic".into()],
                message(&letters.topic),
                "choose another topic",
            );
        }
        for (index, sink) in plan.sinks.iter().enumerate() {
            if let super::SinkKind::Pubsub(sink) = &sink.kind
                && reads(&sink.topic)
            {
                let place = [Step::from("sinks"), Step::from(index), Step::from("topic")];
                self.problem(&place, message(&sink.topic), "choose another topic");
            }
        }
    }

    /// The names that make sense; of the others the first is told.
    fn names<T>(&mut self, at: &[Step], texts: &[String], parse: impl Fn(&str) -> Result<T>) -> Vec<T> {
        let (names, wrong): (Vec<_>, Vec<_>) = texts.iter().map(|text| parse(text)).partition(Result::is_ok);
        if let Some(Err(error)) = wrong.into_iter().next() {
            self.problem(at, error.to_string(), "");
        }
        names.into_iter().flatten().collect()
    }

    fn deadline(&mut self, at: &[Step], span: Option<config::Span>, default: Duration) -> Duration {
        let value = span.map_or(default, |span| span.0);
        if !(Duration::from_secs(10)..=Duration::from_secs(600)).contains(&value) {
            self.problem(at, "must be 10s to 10m: Pub/Sub allows no other", "");
        } else if value.subsec_nanos() > 0 {
            self.problem(at, "must be whole seconds: Pub/Sub takes no other", "");
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Plan, SourcePlan};

    fn read(text: &str) -> Result<Plan, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.yaml");
        std::fs::write(&file, format!("{text}\nsinks: [{{ type: discard }}]\n")).unwrap();
        let environment = |name: &str| (name == "PUBSUB_EMULATOR_HOST").then(|| "localhost:8085".to_owned());
        Plan::read(&file, &environment)
            .map_err(|problems| problems.render(false).replace(&dir.path().display().to_string(), ""))
    }

    #[test]
    fn subscriptions_have_full_names_and_topics_by_default() {
        let plan = read(
            "source:\n  type: pubsub\n  project: acme\n  subscriptions: [cdc.orders-sub, projects/other/subscriptions/x.y]\n  create: true\n",
        );
        let SourcePlan::Pubsub(source) = plan.unwrap().source else { panic!("not Pub/Sub") };
        let names: Vec<_> = source.subscriptions.iter().map(|name| name.path().to_owned()).collect();
        assert_eq!(names, ["projects/acme/subscriptions/cdc.orders-sub", "projects/other/subscriptions/x.y"]);
        let topics: Vec<_> =
            source.create.unwrap().topics.iter().map(|name| name.path().to_owned()).collect();
        assert_eq!(topics, ["projects/acme/topics/cdc.orders", "projects/acme/topics/x.y"]);
        assert_eq!(source.connection.endpoint.as_deref(), Some("localhost:8085"));
    }

    #[test]
    fn what_makes_no_sense_has_its_place() {
        let text = "source:\n  type: pubsub\n  subscriptions: orders\n  lease: 5s\n  streams: 0\n  ack_deadline: 20s\n  max_outstanding_messages: 0\n";
        insta::assert_snapshot!("pubsub_nonsense", read(text).unwrap_err());
        let text = "source:\n  type: pubsub\n  project: acme\n  subscription_prefix: cdc\n  create: true\n  max_delivery_attempts: 4\ndead_letters: { type: pubsub, topic: dead }\n";
        insta::assert_snapshot!("pubsub_create_nonsense", read(text).unwrap_err());
    }

    /// `10500ms` was cut to 10 s, and `ftp://` taken for a service that cannot be reached.
    #[test]
    fn what_would_be_taken_for_something_else_is_refused() {
        let text = "source:\n  type: pubsub\n  project: acme\n  subscriptions: orders\n  lease: 10500ms\n  create: true\n  ack_deadline: 20.5s\n  endpoint: ftp://localhost:8085\ndead_letters: { type: pubsub, project: acme, topic: dead, endpoint: localhost:808500 }\n";
        insta::assert_snapshot!("pubsub_misread", read(text).unwrap_err());
    }

    /// An empty endpoint, which an unset variable leaves behind, was the real service instead of the emulator that was meant.
    #[test]
    fn an_empty_endpoint_is_not_googles() {
        let text = "source: { type: pubsub, project: acme, subscriptions: orders, endpoint: \"\" }\n";
        let error = read(text).unwrap_err();
        assert!(error.contains("`endpoint` is empty"), "{error}");
    }
}
