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
    pub(super) shared: Arc<Shared>,
    pub(super) prefetch: Arc<Semaphore>,
    pub(super) deliveries: mpsc::Sender<Result<Delivery>>,
}

/// Why reading a stream came to an end.
enum Ended {
    /// The service, or the network.
    Broken(Status),
    /// The source is gone.
    Unwanted,
}

impl Pull {
    /// Until the source is dropped, or the service says that trying again is useless.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::new();
        let call = Call { what: "pull from", resource: self.name.path(), role: SUBSCRIBER };
        loop {
            let opened = Instant::now();
            let status = match self.read(&mut backoff).await {
                Ended::Unwanted => return,
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
    async fn read(&self, backoff: &mut Backoff) -> Ended {
        // Dropped with this future, whatever ends it.
        let (_holding, held) = oneshot::channel();
        let mut messages = match self.open(held).await {
            Ok(messages) => messages,
            Err(status) => return Ended::Broken(status),
        };
        self.shared.up(self.stream);
        loop {
            match messages.message().await {
                Ok(Some(response)) => {
                    backoff.reset();
                    if self.take(response).await.is_err() {
                        return Ended::Unwanted;
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
    async fn take(&self, response: pb::StreamingPullResponse) -> Result<(), ()> {
        if let Some(properties) = response.subscription_properties {
            self.shared.learn(self.subscription, properties);
        }
        let mut messages = response.received_messages;
        if let Some(before_ms) = self.published_before_ms {
            let (wanted, others): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(|m| publish_ts_ms(m).is_none_or(|ms| ms < before_ms));
            messages = wanted;
            if !others.is_empty() {
                self.shared.withhold(self.subscription, others.into_iter().map(|m| m.ack_id).collect());
            }
        }
        if messages.is_empty() {
            return Ok(());
        }
        let again = messages.iter().filter(|m| m.delivery_attempt > 1).count();
        self.shared.redelivered(again as u64);
        let ack_ids = messages.iter_mut().map(|m| std::mem::take(&mut m.ack_id)).collect();
        // Each message is measured once: with many attributes that is no small work.
        let bytes =
            messages.iter().filter_map(|m| m.message.as_ref()).map(Message::encoded_len).sum::<usize>();
        let group = self.shared.ledger().arrive(
            self.subscription,
            self.stream,
            ack_ids,
            bytes as u64,
            self.shared.now(),
            self.lease,
        );
        let units = bytes.div_ceil(PREFETCH_UNIT).clamp(1, PREFETCH_BYTES / PREFETCH_UNIT);
        let prefetched = self.prefetch.clone().acquire_many_owned(units as u32).await.map_err(|_| ())?;
        let delivery = Delivery {
            subscription: self.subscription,
            group,
            messages: messages.into_iter(),
            bytes,
            _prefetched: prefetched,
        };
        self.deliveries.send(Ok(delivery)).await.map_err(|_| ())
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
