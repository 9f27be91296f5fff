//! The Subscriber service.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Request, Response, Status, Streaming};

use super::api::{self, subscriber_server::Subscriber};
use super::backlog::Receiver;
use super::broker::Broker;
use super::stream::{self, Outlet};
use super::subscription::{self, Sorted, Subscription};
use super::{names, paging, status, wire};

/// A response's most messages.
pub(crate) const BATCH_MESSAGES: usize = 1000;
/// A response's bytes; one message may go over it.
pub(crate) const BATCH_BYTES: usize = 1024 * 1024;
/// A request of acks has at most so many bytes.
const ACKS_BYTES_MAX: usize = 512 * 1024;
/// How long Pull waits for a first message.
const PULL_WAIT: Duration = Duration::from_secs(5);
/// The longest lease.
pub(crate) const LEASE_MAX: i32 = 600;

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct SubscriberService(pub(crate) Arc<Broker>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Subscriber for SubscriberService {
    async fn create_subscription(&self, request: Request<api::Subscription>) -> Answer<api::Subscription> {
        let mut config = request.into_inner();
        self.0.dice().call("CreateSubscription", &[&config.name, &config.topic])?;
        names::check(&config.name, "subscriptions")?;
        names::check(&config.topic, "topics")?;
        subscription::complete(&mut config)?;
        Ok(Response::new(self.0.create_subscription(config).await?))
    }

    async fn get_subscription(
        &self,
        request: Request<api::GetSubscriptionRequest>,
    ) -> Answer<api::Subscription> {
        let name = request.into_inner().subscription;
        self.0.dice().call("GetSubscription", &[&name])?;
        Ok(Response::new(self.0.subscription(&name)?.config()))
    }

    async fn update_subscription(
        &self,
        request: Request<api::UpdateSubscriptionRequest>,
    ) -> Answer<api::Subscription> {
        let request = request.into_inner();
        let wanted =
            request.subscription.ok_or_else(|| status::invalid("The request has no subscription."))?;
        self.0.dice().call("UpdateSubscription", &[&wanted.name])?;
        let subscription = self.0.subscription(&wanted.name)?;
        let mut config = subscription.config();
        let detached = config.detached;
        for path in paging::mask(request.update_mask)? {
            update(&mut config, &wanted, &path)?;
        }
        subscription::complete(&mut config)?;
        config.detached = detached;
        self.0.update_subscription(&subscription, config.clone()).await?;
        Ok(Response::new(config))
    }

    async fn list_subscriptions(
        &self,
        request: Request<api::ListSubscriptionsRequest>,
    ) -> Answer<api::ListSubscriptionsResponse> {
        let request = request.into_inner();
        self.0.dice().call("ListSubscriptions", &[&request.project])?;
        names::check_project(&request.project)?;
        let world = self.0.world();
        let page = paging::in_project(
            &world.subscriptions,
            &request.project,
            request.page_size,
            &request.page_token,
        );
        Ok(Response::new(api::ListSubscriptionsResponse {
            subscriptions: page.items.into_iter().map(|subscription| subscription.config()).collect(),
            next_page_token: page.next,
        }))
    }

    async fn delete_subscription(&self, request: Request<api::DeleteSubscriptionRequest>) -> Answer<()> {
        let name = request.into_inner().subscription;
        self.0.dice().call("DeleteSubscription", &[&name])?;
        self.0.delete_subscription(&name).await?;
        Ok(Response::new(()))
    }

    async fn modify_ack_deadline(&self, request: Request<wire::ModifyRequest>) -> Answer<()> {
        let request = request.into_inner();
        let dice = self.0.dice();
        dice.call("ModifyAckDeadline", &[&request.subscription])?;
        let subscription = self.usable(&request.subscription)?;
        check_acks(request.ids.len(), request.bytes)?;
        if !(0..=LEASE_MAX).contains(&request.seconds) {
            return Err(status::invalid("ack_deadline_seconds must be between 0 and 600."));
        }
        dice.slow_ack().await;
        let sorted = subscription.modify(request.ids.iter().map(|id| (id, request.seconds)), &self.0.clock);
        self.0.settle(&subscription).await?;
        answer(&subscription, sorted)?;
        dice.answer(Response::new(()))
    }

    async fn acknowledge(&self, request: Request<wire::AckRequest>) -> Answer<()> {
        let request = request.into_inner();
        let dice = self.0.dice();
        dice.call("Acknowledge", &[&request.subscription])?;
        let subscription = self.usable(&request.subscription)?;
        check_acks(request.ids.len(), request.bytes)?;
        dice.slow_ack().await;
        let sorted = subscription.acknowledge(&request.ids, &dice);
        self.0.settle(&subscription).await?;
        answer(&subscription, sorted)?;
        dice.answer(Response::new(()))
    }

    async fn pull(&self, request: Request<api::PullRequest>) -> Answer<wire::Delivery> {
        let request = request.into_inner();
        let dice = self.0.dice();
        dice.call("Pull", &[&request.subscription])?;
        let subscription = self.usable(&request.subscription)?;
        let messages = usize::try_from(request.max_messages).unwrap_or(0).min(BATCH_MESSAGES);
        if messages == 0 {
            return Err(status::invalid("max_messages must be at least 1."));
        }
        #[expect(deprecated, reason = "clients still send it")]
        let wait = if request.return_immediately { Duration::ZERO } else { PULL_WAIT };
        let mut wakes = subscription.wakes();
        let seat = PullSeat::take(&subscription);
        let to = Receiver {
            consumer: 0,
            client: seat.client,
            messages,
            bytes: BATCH_BYTES,
            lease: subscription.lease(),
        };
        let found = tokio::time::timeout(wait, async {
            loop {
                wakes.borrow_and_update();
                subscription.usable()?;
                let out = subscription.deliver(to, &self.0.clock, &dice);
                if !out.is_empty() || wait.is_zero() || wakes.changed().await.is_err() {
                    return Ok::<_, Status>(out);
                }
            }
        })
        .await;
        drop(seat);
        let messages = found.unwrap_or_else(|_| Ok(Vec::new()))?;
        dice.answer(Response::new(wire::Delivery { messages, ..wire::Delivery::default() }))
    }

    type StreamingPullStream = Outlet;

    async fn streaming_pull(&self, request: Request<Streaming<wire::StreamRequest>>) -> Answer<Outlet> {
        Ok(Response::new(stream::open(self.0.clone(), request.into_inner())))
    }

    async fn modify_push_config(&self, request: Request<api::ModifyPushConfigRequest>) -> Answer<()> {
        let request = request.into_inner();
        self.0.dice().call("ModifyPushConfig", &[&request.subscription])?;
        self.0.subscription(&request.subscription)?;
        if request.push_config.is_some_and(|push| !push.push_endpoint.is_empty()) {
            return Err(Status::unimplemented("This emulator has pull subscriptions only."));
        }
        Ok(Response::new(()))
    }

    async fn get_snapshot(&self, request: Request<api::GetSnapshotRequest>) -> Answer<api::Snapshot> {
        let name = request.into_inner().snapshot;
        self.0.dice().call("GetSnapshot", &[&name])?;
        Ok(Response::new(self.0.snapshot(&name)?.config()))
    }

    async fn list_snapshots(
        &self,
        request: Request<api::ListSnapshotsRequest>,
    ) -> Answer<api::ListSnapshotsResponse> {
        let request = request.into_inner();
        self.0.dice().call("ListSnapshots", &[&request.project])?;
        names::check_project(&request.project)?;
        let world = self.0.world();
        let page =
            paging::in_project(&world.snapshots, &request.project, request.page_size, &request.page_token);
        Ok(Response::new(api::ListSnapshotsResponse {
            snapshots: page.items.into_iter().map(|snapshot| snapshot.config()).collect(),
            next_page_token: page.next,
        }))
    }

    async fn create_snapshot(&self, request: Request<api::CreateSnapshotRequest>) -> Answer<api::Snapshot> {
        let request = request.into_inner();
        self.0.dice().call("CreateSnapshot", &[&request.name, &request.subscription])?;
        Ok(Response::new(self.0.create_snapshot(request).await?))
    }

    async fn update_snapshot(&self, request: Request<api::UpdateSnapshotRequest>) -> Answer<api::Snapshot> {
        let request = request.into_inner();
        let wanted = request.snapshot.ok_or_else(|| status::invalid("The request has no snapshot."))?;
        self.0.dice().call("UpdateSnapshot", &[&wanted.name])?;
        let snapshot = self.0.snapshot(&wanted.name)?;
        let mut config = snapshot.config();
        for path in paging::mask(request.update_mask)? {
            match path.as_str() {
                "labels" => config.labels.clone_from(&wanted.labels),
                "expire_time" => config.expire_time = wanted.expire_time,
                other => return Err(paging::no_such_path(other, "snapshot")),
            }
        }
        self.0.update_snapshot(&snapshot, config.clone()).await?;
        Ok(Response::new(config))
    }

    async fn delete_snapshot(&self, request: Request<api::DeleteSnapshotRequest>) -> Answer<()> {
        let name = request.into_inner().snapshot;
        self.0.dice().call("DeleteSnapshot", &[&name])?;
        self.0.delete_snapshot(&name).await?;
        Ok(Response::new(()))
    }

    async fn seek(&self, request: Request<api::SeekRequest>) -> Answer<api::SeekResponse> {
        let request = request.into_inner();
        self.0.dice().call("Seek", &[&request.subscription])?;
        self.0.seek(request).await?;
        Ok(Response::new(api::SeekResponse {}))
    }
}

/// The client of one Pull; leaves also when the call is cancelled.
struct PullSeat<'a> {
    subscription: &'a Subscription,
    client: u32,
}

impl<'a> PullSeat<'a> {
    fn take(subscription: &'a Subscription) -> Self {
        Self { subscription, client: subscription.backlog().pull_client() }
    }
}

impl Drop for PullSeat<'_> {
    fn drop(&mut self) {
        self.subscription.backlog().end_pull(self.client);
    }
}

impl SubscriberService {
    fn usable(&self, name: &str) -> Result<Arc<Subscription>, Status> {
        let subscription = self.0.subscription(name)?;
        subscription.usable()?;
        Ok(subscription)
    }
}

fn check_acks(ids: usize, bytes: usize) -> Result<(), Status> {
    if ids == 0 {
        return Err(status::invalid("The request has no ack ids."));
    }
    if bytes > ACKS_BYTES_MAX {
        return Err(status::invalid(format!(
            "A request has at most {ACKS_BYTES_MAX} bytes; this one has {bytes}."
        )));
    }
    Ok(())
}

/// What a unary call answers about its ids.
fn answer(subscription: &Subscription, sorted: Sorted) -> Result<(), Status> {
    if sorted.invalid.is_empty() && sorted.unordered.is_empty() {
        return Ok(());
    }
    if !subscription.config().enable_exactly_once_delivery {
        return Err(status::invalid(
            "You have passed an invalid ack ID to the service (ack_id may be malformed).",
        ));
    }
    let mut failures: HashMap<String, String> = HashMap::new();
    failures.extend(sorted.invalid.into_iter().map(|id| (id, status::INVALID_ACK_ID.to_owned())));
    failures.extend(sorted.unordered.into_iter().map(|id| (id, status::UNORDERED_ACK_ID.to_owned())));
    Err(status::failed_acks(failures))
}

fn update(config: &mut api::Subscription, wanted: &api::Subscription, path: &str) -> Result<(), Status> {
    match path {
        "ack_deadline_seconds" => config.ack_deadline_seconds = wanted.ack_deadline_seconds,
        "retain_acked_messages" => config.retain_acked_messages = wanted.retain_acked_messages,
        "message_retention_duration" => config.message_retention_duration = wanted.message_retention_duration,
        "labels" => config.labels.clone_from(&wanted.labels),
        "expiration_policy" => config.expiration_policy = wanted.expiration_policy,
        "dead_letter_policy" => config.dead_letter_policy.clone_from(&wanted.dead_letter_policy),
        "dead_letter_policy.max_delivery_attempts" | "dead_letter_policy.dead_letter_topic" => {
            let policy = config.dead_letter_policy.get_or_insert_default();
            let wanted = wanted.dead_letter_policy.clone().unwrap_or_default();
            if path.ends_with("attempts") {
                policy.max_delivery_attempts = wanted.max_delivery_attempts;
            } else {
                policy.dead_letter_topic = wanted.dead_letter_topic;
            }
        }
        "retry_policy" => config.retry_policy = wanted.retry_policy,
        "enable_exactly_once_delivery" => {
            config.enable_exactly_once_delivery = wanted.enable_exactly_once_delivery;
        }
        "push_config" => config.push_config.clone_from(&wanted.push_config),
        "enable_message_ordering" | "filter" | "name" | "topic" => {
            return Err(status::invalid(format!("A subscription's {path} cannot be changed.")));
        }
        other => return Err(paging::no_such_path(other, "subscription")),
    }
    Ok(())
}
