//! StreamingPull: one task a stream, which takes acks in and sends deliveries out. It sends only while the transport has
//! room, so that what a slow client does not read stays in the backlog.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::api::streaming_pull_response as confirmations;
use super::backlog::Receiver;
use super::broker::Broker;
use super::status;
use super::subscriber::{BATCH_BYTES, BATCH_MESSAGES, LEASE_MAX};
use super::subscription::{Sorted, Subscription};
use super::wire::{Delivery, StreamRequest};

/// How long a stream is silent at most: empty responses keep it alive.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The responses of a stream.
#[derive(Debug)]
pub(crate) struct Outlet(mpsc::Receiver<Result<Delivery, Status>>);

impl Stream for Outlet {
    type Item = Result<Delivery, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

/// Opens a stream.
pub(crate) fn open(broker: Arc<Broker>, requests: Streaming<StreamRequest>) -> Outlet {
    // One response in the channel while the one before is being written.
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(status) = serve(&broker, requests, &sender).await {
            // The client may be gone.
            let _ = sender.send(Err(status)).await;
        }
    });
    Outlet(receiver)
}

/// Leaves the subscription however the stream ends.
struct Seat {
    subscription: Arc<Subscription>,
    consumer: u32,
    client: u32,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.subscription.backlog().leave(self.consumer, self.client);
        self.subscription.wake();
    }
}

type Sender = mpsc::Sender<Result<Delivery, Status>>;

async fn serve(
    broker: &Arc<Broker>,
    mut requests: Streaming<StreamRequest>,
    out: &Sender,
) -> Result<(), Status> {
    let Some(first) = requests.message().await? else { return Ok(()) };
    let mut cut_after = broker.dice().call("StreamingPull", &[&first.subscription])?;
    let subscription = broker.subscription(&first.subscription)?;
    subscription.usable()?;
    check_deadline(first.deadline_seconds, true)?;
    let mut lease = Duration::from_secs(u64::try_from(first.deadline_seconds).unwrap_or(10));
    let (consumer, client) =
        subscription.backlog().join(&first.client, first.outstanding_messages, first.outstanding_bytes);
    let seat = Seat { subscription, consumer, client };
    let subscription = &seat.subscription;
    let mut stopping = broker.stopping();
    let mut wakes = subscription.wakes();

    let mut properties = None;
    let mut confirmation = take(broker, subscription, &first).await?;
    let mut idle = false;
    let mut half_closed = false;
    loop {
        if !idle {
            wakes.borrow_and_update();
            subscription.usable()?;
        }
        let keepalive = tokio::time::sleep(KEEPALIVE);
        // Acks come first: they make room. While a confirmation waits for its turn, no more of them are taken.
        tokio::select! {
            biased;
            _ = stopping.changed() => return Err(Status::unavailable("The server is shutting down.")),
            request = requests.message(), if confirmation.is_none() && !half_closed => match request? {
                Some(request) => {
                    check_later(&request)?;
                    if request.deadline_seconds != 0 {
                        lease = Duration::from_secs(u64::try_from(request.deadline_seconds).unwrap_or(10));
                    }
                    confirmation = take(broker, subscription, &request).await?;
                    idle = false;
                }
                None => half_closed = true,
            },
            permit = out.reserve(), if !idle || confirmation.is_some() => {
                let Ok(permit) = permit else { return Ok(()) };
                // A client that sends no more gets what was confirmed, and the stream ends.
                if half_closed && confirmation.is_none() {
                    return Ok(());
                }
                let dice = broker.dice();
                let to =
                    Receiver { consumer, client, messages: BATCH_MESSAGES, bytes: BATCH_BYTES, lease };
                let messages = if half_closed { Vec::new() } else { subscription.deliver(to, &broker.clock, &dice) };
                let count = messages.len() as u64;
                let mut delivery = confirmation.take().unwrap_or_default();
                delivery.messages = messages;
                let now = subscription.properties();
                if properties != Some(now) {
                    properties = Some(now);
                    delivery.properties = Some(now);
                }
                idle = count == 0;
                if !delivery.is_empty() {
                    permit.send(Ok(delivery));
                }
                if count > 0 {
                    if let Some(left) = &mut cut_after {
                        *left = left.saturating_sub(count);
                    }
                    if cut_after == Some(0) || dice.happens(dice.faults.cut) {
                        return Err(Status::unavailable("The stream was cut."));
                    }
                }
            },
            _ = wakes.changed(), if idle => idle = false,
            () = out.closed() => return Ok(()),
            () = keepalive => {
                if let Ok(permit) = out.try_reserve() {
                    permit.send(Ok(Delivery::default()));
                }
            }
        }
        if half_closed {
            idle = false;
        }
    }
}

/// Takes a request's acks and deadlines in; what is to be confirmed about them.
async fn take(
    broker: &Broker,
    subscription: &Subscription,
    request: &StreamRequest,
) -> Result<Option<Delivery>, Status> {
    if request.modify_seconds.len() != request.modify_ids.len() {
        return Err(status::invalid(
            "modify_deadline_seconds and modify_deadline_ack_ids must have the same length.",
        ));
    }
    if request.modify_seconds.iter().any(|seconds| !(0..=LEASE_MAX).contains(seconds)) {
        return Err(status::invalid("modify_deadline_seconds must be between 0 and 600."));
    }
    if request.acks.is_empty() && request.modify_ids.is_empty() {
        return Ok(None);
    }
    let dice = broker.dice();
    dice.slow_ack().await;
    let acked = subscription.acknowledge(&request.acks, &dice);
    let modified = subscription
        .modify(request.modify_ids.iter().zip(request.modify_seconds.iter().copied()), &broker.clock);
    broker.settle(subscription).await?;
    if !subscription.properties().exactly_once_delivery_enabled {
        if !acked.invalid.is_empty() || !modified.invalid.is_empty() {
            return Err(status::invalid("Some of the ack ids are malformed."));
        }
        return Ok(None);
    }
    Ok(Some(Delivery {
        acks: (!request.acks.is_empty()).then(|| confirmed_acks(acked)),
        modifications: (!request.modify_ids.is_empty()).then(|| confirmed_modifications(modified)),
        ..Delivery::default()
    }))
}

fn confirmed_acks(sorted: Sorted) -> confirmations::AcknowledgeConfirmation {
    confirmations::AcknowledgeConfirmation {
        ack_ids: sorted.done,
        invalid_ack_ids: sorted.invalid,
        unordered_ack_ids: sorted.unordered,
        temporary_failed_ack_ids: Vec::new(),
    }
}

fn confirmed_modifications(sorted: Sorted) -> confirmations::ModifyAckDeadlineConfirmation {
    confirmations::ModifyAckDeadlineConfirmation {
        ack_ids: sorted.done,
        invalid_ack_ids: sorted.invalid,
        temporary_failed_ack_ids: Vec::new(),
    }
}

fn check_deadline(seconds: i32, first: bool) -> Result<(), Status> {
    if (seconds == 0 && !first) || (10..=LEASE_MAX).contains(&seconds) {
        return Ok(());
    }
    Err(status::invalid(format!("stream_ack_deadline_seconds must be between 10 and 600, not {seconds}.")))
}

/// Checks what only the first request may say.
fn check_later(request: &StreamRequest) -> Result<(), Status> {
    check_deadline(request.deadline_seconds, false)?;
    if !request.subscription.is_empty() {
        return Err(status::invalid("Only a stream's first request may name the subscription."));
    }
    if request.outstanding_messages != 0 || request.outstanding_bytes != 0 || request.protocol != 0 {
        return Err(status::invalid(
            "Only a stream's first request may have max_outstanding_messages, max_outstanding_bytes or protocol_version.",
        ));
    }
    Ok(())
}
