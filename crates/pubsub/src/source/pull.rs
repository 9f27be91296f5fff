//! One streaming pull: opened, read, and opened again whenever it ends, which the service does to every stream sooner or later.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, unfold};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Error, Result};
use prost::Message;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tonic::{Code, Status, Streaming};

use super::ledger::Limits;
use super::shared::Shared;
use super::{Delivery, PREFETCH_BYTES, PREFETCH_UNIT, publish_ts_ms};
use crate::backoff::Backoff;
use crate::client::Client;
use crate::failure::{Call, SUBSCRIBER, is_retryable};
use crate::name::SubscriptionName;

/// An empty request this often keeps a silent stream open.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Some servers answer a stream only with its first message. One that says nothing for so long is asked whether it is there.
const SILENT_OPENING: Duration = Duration::from_secs(1);
/// A stream that was open for so long did not fail.
const LASTING: Duration = Duration::from_secs(30);
/// With this version the service sends heartbeats of its own.
const PROTOCOL_VERSION: i64 = 1;

pub(super) struct Pull {
    pub(super) client: Client,
    pub(super) subscription: usize,
    pub(super) name: SubscriptionName,
    pub(super) stream: usize,
    /// The same after a reconnect, so that the service can move what it knows to the new stream.
    pub(super) client_id: String,
    pub(super) limits: Limits,
    pub(super) lease: Duration,
    pub(super) published_before_ms: Option<i64>,
    pub(super) withheld: Withheld,
    pub(super) shared: Arc<Shared>,
    pub(super) prefetch: Arc<Semaphore>,
    pub(super) deliveries: mpsc::Sender<Result<Delivery>>,
}

/// What came and is none of the source's business. It stays leased and counts among what the stream may have outstanding.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    /// Since the stream was opened.
    messages: u64,
    bytes: u64,
    /// When the newest of all was published, ms, and the same when a stream was clogged for the last time.
    newest_ms: Option<i64>,
    newest_ms_then: Option<i64>,
}

impl Withheld {
    fn add(&mut self, messages: &[pb::ReceivedMessage]) {
        self.messages += messages.len() as u64;
        self.bytes += bytes_of(messages);
        self.newest_ms = messages.iter().filter_map(publish_ts_ms).max().max(self.newest_ms);
    }

    /// Whether it takes up so much of the limits that the rest could starve.
    fn clogs(&self, limits: Limits) -> bool {
        self.messages > limits.messages / 2 || self.bytes > limits.bytes / 2
    }

    /// A stream is clogged and will be opened anew. Answers whether anything came since the last time that had not come before.
    fn start_anew(&mut self) -> bool {
        let is_news = self.newest_ms > self.newest_ms_then;
        self.newest_ms_then = self.newest_ms;
        is_news
    }
}

/// As the service counts them.
fn bytes_of(messages: &[pb::ReceivedMessage]) -> u64 {
    messages.iter().filter_map(|m| m.message.as_ref()).map(|m| m.encoded_len() as u64).sum()
}

/// Why reading a stream came to an end.
enum Ended {
    /// What it may have outstanding is taken up by messages that are withheld: only another one gives the rest.
    Clogged,
    /// The service, or the network.
    Broken(Status),
    /// The source is gone.
    Unwanted,
}

impl Pull {
    /// Until the source is dropped, or the service says that trying again is useless.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::new();
        let name = self.name.clone();
        let call = Call { what: "pull from", resource: name.path(), role: SUBSCRIBER };
        loop {
            let opened = Instant::now();
            let status = match self.read(&mut backoff).await {
                Ended::Unwanted => return,
                Ended::Clogged => {
                    // What comes round and round says nothing about the rest.
                    if self.withheld.start_anew() {
                        self.shared.reopening(self.stream);
                    }
                    sleep(backoff.wait()).await;
                    continue;
                }
                Ended::Broken(status) => status,
            };
            if opened.elapsed() > LASTING {
                // A server may be silent for long and end streams as a matter of routine.
                backoff.reset();
            }
            if !is_retryable(status.code()) {
                // The receiver may be gone by now.
                let _ = self.deliveries.send(Err(call.error(&status))).await;
                return;
            }
            let error = call.error(&status);
            tracing::debug!("{error}; opening the stream again");
            self.shared.down(self.stream, self.say(&error));
            sleep(backoff.wait()).await;
        }
    }

    fn say(&self, error: &Error) -> String {
        format!("{}: {error}", self.client.endpoint())
    }

    /// Opens the stream and reads it to its end.
    async fn read(&mut self, backoff: &mut Backoff) -> Ended {
        // Dropped with this future, whatever ends it.
        let (_holding, held) = oneshot::channel();
        let mut messages = match self.open(held).await {
            Ok(messages) => messages,
            Err(status) => return Ended::Broken(status),
        };
        self.shared.up(self.stream);
        (self.withheld.messages, self.withheld.bytes) = (0, 0);
        loop {
            match messages.message().await {
                Ok(Some(response)) => {
                    backoff.reset();
                    if let Err(ended) = self.take(response).await {
                        return ended;
                    }
                }
                // An end without an error is as routine as one with UNAVAILABLE.
                Ok(None) => return Ended::Broken(Status::unavailable("the stream was closed")),
                Err(status) => return Ended::Broken(status),
            }
        }
    }

    async fn open(
        &self,
        held: oneshot::Receiver<()>,
    ) -> Result<Streaming<pb::StreamingPullResponse>, Status> {
        let first = pb::StreamingPullRequest {
            subscription: self.name.path().to_owned(),
            stream_ack_deadline_seconds: self.lease.as_secs() as i32,
            client_id: self.client_id.clone(),
            max_outstanding_messages: self.limits.messages.try_into().unwrap_or(i64::MAX),
            max_outstanding_bytes: self.limits.bytes.try_into().unwrap_or(i64::MAX),
            protocol_version: PROTOCOL_VERSION,
            ..pb::StreamingPullRequest::default()
        };
        let request =
            self.client.stream_request(requests(first, held), "subscription", self.name.path()).await?;
        let mut subscriber = self.client.stream_subscriber(self.stream);
        let mut opening = pin!(subscriber.streaming_pull(request));
        let opened = tokio::select! {
            biased;
            opened = &mut opening => opened,
            there = self.is_there() => {
                there?;
                self.shared.up(self.stream);
                opening.await
            }
        };
        opened.map(tonic::Response::into_inner)
    }

    /// Whether the server, silent on the stream, answers on its connection and lets this subscription be pulled from: asked until
    /// it does, with an extension of no lease, which takes the same permission and changes nothing.
    async fn is_there(&self) -> Result<(), Status> {
        loop {
            sleep(SILENT_OPENING).await;
            let message = pb::ModifyAckDeadlineRequest {
                subscription: self.name.path().to_owned(),
                ack_deadline_seconds: self.lease.as_secs() as i32,
                ..pb::ModifyAckDeadlineRequest::default()
            };
            let request = self.client.request(message, "subscription", self.name.path()).await?;
            match self.client.stream_subscriber(self.stream).modify_ack_deadline(request).await {
                Ok(_) => return Ok(()),
                // That there is no lease to extend says all the same that somebody is there.
                Err(status) if status.code() == Code::InvalidArgument => return Ok(()),
                Err(status) if is_retryable(status.code()) => {}
                Err(status) => return Err(status),
            }
        }
    }

    /// Notes the leases of a response and hands its messages on.
    async fn take(&mut self, response: pb::StreamingPullResponse) -> Result<(), Ended> {
        if let Some(properties) = response.subscription_properties {
            self.shared.learn(self.subscription, properties);
        }
        let mut messages = response.received_messages;
        if let Some(before_ms) = self.published_before_ms {
            let (wanted, others): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|m| publish_ts_ms(m).is_none_or(|ms| ms < before_ms));
            messages = wanted;
            if !others.is_empty() {
                self.withheld.add(&others);
                self.shared.withhold(self.subscription, others.into_iter().map(|m| m.ack_id).collect());
            }
        }
        if !messages.is_empty() {
            self.hand_on(messages).await?;
        }
        if self.withheld.clogs(self.limits) { Err(Ended::Clogged) } else { Ok(()) }
    }

    async fn hand_on(&self, mut messages: Vec<pb::ReceivedMessage>) -> Result<(), Ended> {
        let again = messages.iter().filter(|m| m.delivery_attempt > 1).count();
        self.shared.redelivered(again as u64);
        let ack_ids = messages.iter_mut().map(|m| std::mem::take(&mut m.ack_id)).collect();
        // Each message is measured once: with many attributes that is no small work.
        let bytes = bytes_of(&messages) as usize;
        let group = self.shared.ledger().arrive(
            self.subscription,
            self.stream,
            ack_ids,
            bytes as u64,
            self.shared.now(),
            self.lease,
        );
        let units = bytes.div_ceil(PREFETCH_UNIT).clamp(1, PREFETCH_BYTES / PREFETCH_UNIT);
        let prefetched = self.prefetch.clone().acquire_many_owned(units as u32).await;
        let prefetched = prefetched.map_err(|_| Ended::Unwanted)?;
        let delivery = Delivery {
            subscription: self.subscription,
            group,
            messages: messages.into_iter(),
            bytes,
            _prefetched: prefetched,
        };
        self.deliveries.send(Ok(delivery)).await.map_err(|_| Ended::Unwanted)
    }
}

/// The stream's requests: the first, then heartbeats, until the holder of the other end of `held` is gone: HTTP/2 resets a stream
/// only when both of its halves are dropped. Leases and acknowledgements go by calls of their own, which answer.
fn requests(
    first: pb::StreamingPullRequest,
    held: oneshot::Receiver<()>,
) -> impl Stream<Item = pb::StreamingPullRequest> + Send + 'static {
    unfold((Some(first), held), |(first, mut held)| async {
        match first {
            Some(first) => Some((first, (None, held))),
            None => tokio::select! {
                _ = &mut held => None,
                () = sleep(HEARTBEAT) => Some((pb::StreamingPullRequest::default(), (None, held))),
            },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clogged_stream_waits_for_more_only_while_there_is_news() {
        let message = |ms: i64| {
            let publish_time = Some(prost_types::Timestamp { seconds: ms / 1000, nanos: 0 });
            let message = pb::PubsubMessage { data: vec![0; 60].into(), publish_time, ..Default::default() };
            pb::ReceivedMessage { message: Some(message), ..Default::default() }
        };
        let mut withheld = Withheld::default();
        withheld.add(&[message(5000), message(3000)]);
        assert!(!withheld.clogs(Limits { messages: 4, bytes: 1000 }));
        assert!(withheld.clogs(Limits { messages: 3, bytes: 1000 }));
        assert!(withheld.clogs(Limits { messages: 4, bytes: 200 }));
        assert!(withheld.start_anew());
        withheld.add(&[message(5000), message(3000)]);
        assert!(!withheld.start_anew(), "the same as before");
        withheld.add(&[message(6000)]);
        assert!(withheld.start_anew());
    }
}
