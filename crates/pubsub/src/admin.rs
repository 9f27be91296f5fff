//! Topics and subscriptions: made, listed, looked at, and put back.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Error, Result};
use pb::seek_request::Target;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::backoff::Backoff;
use crate::client::Client;
use crate::config::{Create, SeekTo};
use crate::failure::{Call, EDITOR, PUBLISHER, SUBSCRIBER, VIEWER, is_retryable};
use crate::name::{SubscriptionName, TopicName};

/// Subscriptions of a page.
const PAGE: i32 = 500;
/// Tries of one call.
const TRIES: u32 = 6;
/// How long a start waits to know whether something exists.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Tries a call again while its failure may pass.
async fn patiently<T, F: Future<Output = Result<T, Status>>>(
    call: Call<'_>,
    attempt: impl Fn() -> F,
) -> Result<T, Status> {
    let mut backoff = Backoff::new();
    for _ in 1..TRIES {
        match attempt().await {
            Err(status) if is_retryable(status.code()) => {
                tracing::debug!("{}", call.error(&status));
                tokio::time::sleep(backoff.wait()).await;
            }
            other => return other,
        }
    }
    attempt().await
}

/// Makes the topics and subscriptions that do not exist. What exists is left as it is.
pub(crate) async fn create(
    client: &Client,
    subscriptions: &[SubscriptionName],
    create: &Create,
) -> Result<()> {
    for topic in create.topics.iter().chain(&create.dead_letter_topic) {
        create_topic(client, topic).await?;
    }
    for (name, topic) in subscriptions.iter().zip(&create.topics) {
        let call = Call { what: "make", resource: name.path(), role: EDITOR };
        let message = pb::Subscription {
            name: name.path().to_owned(),
            topic: topic.path().to_owned(),
            ack_deadline_seconds: create.ack_deadline.as_secs() as i32,
            enable_message_ordering: create.ordering,
            enable_exactly_once_delivery: create.exactly_once,
            dead_letter_policy: create.dead_letter_topic.as_ref().map(|topic| pb::DeadLetterPolicy {
                dead_letter_topic: topic.path().to_owned(),
                max_delivery_attempts: create.delivery_attempts_max as i32,
            }),
            ..pb::Subscription::default()
        };
        let message = &message;
        let made = patiently(call, || async move {
            let request = client.request(message.clone(), "name", name.path()).await?;
            client.subscriber().create_subscription(request).await
        });
        exists(call, made.await)?;
    }
    Ok(())
}

/// Makes a topic if it does not exist.
pub(crate) async fn create_topic(client: &Client, topic: &TopicName) -> Result<()> {
    let call = Call { what: "make", resource: topic.path(), role: EDITOR };
    let made = patiently(call, || async move {
        let message = pb::Topic { name: topic.path().to_owned(), ..pb::Topic::default() };
        client.publisher().create_topic(client.request(message, "name", topic.path()).await?).await
    });
    exists(call, made.await)
}

fn exists<T>(call: Call<'_>, made: Result<T, Status>) -> Result<()> {
    match made {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::AlreadyExists => Ok(()),
        Err(status) => Err(call.error(&status)),
    }
}

/// Subscriptions of `project` (`projects/PROJECT`) whose ID begins with `prefix`, sorted.
pub(crate) async fn list(client: &Client, project: &str, prefix: &str) -> Result<Vec<SubscriptionName>> {
    let call = Call { what: "list the subscriptions of", resource: project, role: VIEWER };
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let message =
            pb::ListSubscriptionsRequest { project: project.to_owned(), page_size: PAGE, page_token };
        let message = &message;
        let page = patiently(call, || async move {
            client
                .subscriber()
                .list_subscriptions(client.request(message.clone(), "project", project).await?)
                .await
        });
        let page = page.await.map_err(|status| call.error(&status))?.into_inner();
        for subscription in &page.subscriptions {
            let name = SubscriptionName::parse(&subscription.name, None)?;
            if name.id().starts_with(prefix) {
                names.push(name);
            }
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            names.sort_unstable();
            return Ok(names);
        }
    }
}

/// Whether something is there, as far as one is allowed to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// It exists.
    There,
    /// It does not exist.
    Missing,
    /// The account may not look; whether it may publish or pull is another question.
    Hidden,
}

fn sight<T>(call: Call<'_>, found: Result<T, Status>) -> Result<Sight> {
    match found {
        Ok(_) => Ok(Sight::There),
        Err(status) if status.code() == Code::NotFound => Ok(Sight::Missing),
        Err(status) if status.code() == Code::PermissionDenied => Ok(Sight::Hidden),
        Err(status) => Err(call.error(&status)),
    }
}

/// Looks for a topic; nothing is published.
///
/// # Errors
/// If the service cannot be reached, or refuses the credentials.
pub async fn look_for_topic(client: &Client, name: &TopicName) -> Result<Sight> {
    let call = Call { what: "look at", resource: name.path(), role: VIEWER };
    let found = patiently(call, || async move {
        let message = pb::GetTopicRequest { topic: name.path().to_owned() };
        client.publisher().get_topic(client.request(message, "topic", name.path()).await?).await
    });
    sight(call, found.await)
}

/// Looks for a subscription; nothing is taken from it.
///
/// # Errors
/// As of [`look_for_topic`].
pub async fn look_for_subscription(client: &Client, name: &SubscriptionName) -> Result<Sight> {
    let call = Call { what: "look at", resource: name.path(), role: VIEWER };
    sight(call, get_subscription(client, name).await)
}

/// Whether any subscription keeps what is published to a topic.
///
/// # Errors
/// If they cannot be listed.
pub async fn has_subscriptions(client: &Client, topic: &TopicName) -> Result<bool> {
    let call = Call { what: "list the subscriptions of", resource: topic.path(), role: VIEWER };
    let listed = patiently(call, || async move {
        let message = pb::ListTopicSubscriptionsRequest {
            topic: topic.path().to_owned(),
            page_size: 1,
            ..pb::ListTopicSubscriptionsRequest::default()
        };
        let request = client.request(message, "topic", topic.path()).await?;
        client.publisher().list_topic_subscriptions(request).await
    });
    let listed = listed.await.map_err(|status| call.error(&status))?.into_inner();
    Ok(!listed.subscriptions.is_empty())
}

/// Before a start: fails if a topic that will be published to is known not to exist. Whoever may publish need not be allowed to
/// look, and a service that is away now may be back in time: what cannot be told shows with the first message.
pub(crate) async fn need_topic(client: &Client, name: &TopicName) -> Result<()> {
    let call = Call { what: "publish to", resource: name.path(), role: PUBLISHER };
    unless_missing(call, look_for_topic(client, name)).await
}

/// The same for a subscription that is to keep what is published: it keeps nothing from before it was made.
pub(crate) async fn need_subscription(client: &Client, name: &SubscriptionName) -> Result<()> {
    let call = Call { what: "pull from", resource: name.path(), role: SUBSCRIBER };
    unless_missing(call, look_for_subscription(client, name)).await
}

async fn unless_missing(call: Call<'_>, look: impl Future<Output = Result<Sight>>) -> Result<()> {
    match timeout(START_PATIENCE, look).await {
        Ok(Ok(Sight::Missing)) => Err(call.error(&Status::not_found(""))),
        _ => Ok(()),
    }
}

async fn get_subscription(client: &Client, name: &SubscriptionName) -> Result<pb::Subscription, Status> {
    let found = patiently(looking_at(name), || async move {
        let message = pb::GetSubscriptionRequest { subscription: name.path().to_owned() };
        client
            .subscriber()
            .get_subscription(client.request(message, "subscription", name.path()).await?)
            .await
    });
    found.await.map(tonic::Response::into_inner)
}

/// What a subscription is set to, as far as it matters to a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionFacts {
    /// The topic; `_deleted-topic_` if it is gone.
    pub topic: String,
    /// Its own acknowledgement deadline.
    pub ack_deadline: Duration,
    /// Messages of one ordering key come in order.
    pub ordering: bool,
    /// Exactly-once delivery.
    pub exactly_once: bool,
    /// After how many deliveries Pub/Sub itself puts a message into its dead-letter topic; `None` never.
    pub delivery_attempts_max: Option<u32>,
    /// Pushes, or writes to a service by itself: nothing can be pulled then.
    pub pushes: bool,
    /// Detached from its topic: nothing comes any more.
    pub detached: bool,
}

/// Looks at a subscription without taking anything from it.
///
/// # Errors
/// If it does not exist or may not be looked at, with the least role that allows it.
pub async fn look_at(client: &Client, name: &SubscriptionName) -> Result<SubscriptionFacts> {
    let call = looking_at(name);
    let found = get_subscription(client, name).await.map_err(|status| call.error(&status))?;
    let pushes = found.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty())
        || found.bigquery_config.is_some()
        || found.cloud_storage_config.is_some();
    Ok(SubscriptionFacts {
        topic: found.topic,
        ack_deadline: Duration::from_secs(found.ack_deadline_seconds.max(0) as u64),
        ordering: found.enable_message_ordering,
        exactly_once: found.enable_exactly_once_delivery,
        delivery_attempts_max: found
            .dead_letter_policy
            .map(|policy| policy.max_delivery_attempts.max(0) as u32),
        pushes,
        detached: found.detached,
    })
}

fn looking_at(name: &SubscriptionName) -> Call<'_> {
    Call { what: "look at", resource: name.path(), role: VIEWER }
}

/// Puts a subscription back, or forward. Takes effect within seconds; messages on their way still come.
///
/// # Errors
/// If the subscription or the snapshot does not exist, or may not be used.
pub async fn seek(client: &Client, name: &SubscriptionName, to: &SeekTo) -> Result<()> {
    let (target, shown) = match to {
        SeekTo::TimeMs(ms) => {
            let (seconds, nanos) = (ms.div_euclid(1000), (ms.rem_euclid(1000) * 1_000_000) as i32);
            (Target::Time(prost_types::Timestamp { seconds, nanos }), name.to_string())
        }
        SeekTo::Snapshot(snapshot) => {
            (Target::Snapshot(snapshot.path().to_owned()), format!("{name} to {snapshot}"))
        }
    };
    let call = Call { what: "seek", resource: &shown, role: SUBSCRIBER };
    let message = pb::SeekRequest { subscription: name.path().to_owned(), target: Some(target) };
    let message = &message;
    let sought = patiently(call, || async move {
        client.subscriber().seek(client.request(message.clone(), "subscription", name.path()).await?).await
    });
    let Err(status) = sought.await else { return Ok(()) };
    // The service says the same of either that does not exist.
    if let (Code::NotFound, SeekTo::Snapshot(snapshot)) = (status.code(), to) {
        match get_subscription(client, name).await {
            Ok(_) => {
                return Err(Error::fatal(format!(
                    "cannot seek {name}: there is no snapshot {snapshot} (any more: each expires within a week); check the project and the name"
                )));
            }
            Err(status) if status.code() == Code::NotFound => return Err(looking_at(name).error(&status)),
            // Nobody may look: both are named.
            Err(_) => {}
        }
    }
    Err(call.error(&status))
}

/// The subscriptions of a source's settings, those that a prefix names looked up.
///
/// # Errors
/// If they cannot be listed.
pub async fn resolve(client: &Client, config: &crate::PubsubConfig) -> Result<Vec<SubscriptionName>> {
    let mut names = config.subscriptions.clone();
    if let Some((project, prefix)) = &config.prefix {
        names.extend(list(client, project, prefix).await?);
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Err(Error::fatal(format!("no subscription of {project} begins with `{prefix}`")));
        }
    }
    Ok(names)
}
