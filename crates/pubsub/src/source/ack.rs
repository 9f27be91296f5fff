//! Acknowledges what was released, in calls of bounded size, and tells what became of it.
//!
//! A lost acknowledgement is only a redelivery. So failures that may pass are tried again for a while, and then left to that;
//! with exactly-once delivery the service says which ids failed for ever, and these are not tried again.

use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::shared::Shared;
use crate::backoff::Backoff;
use crate::client::Client;
use crate::confirmation::confirmation;
use crate::failure::{Call, SUBSCRIBER, is_retryable};
use crate::name::SubscriptionName;

/// Ids of a call at most; the service takes 512 KiB a request.
pub(super) const IDS_PER_CALL: usize = 2500;
pub(super) const ID_BYTES_PER_CALL: usize = 450_000;
/// Calls of one subscription at a time.
const CALLS_AT_A_TIME: usize = 4;
/// How long an acknowledgement is tried.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) enum AckOrder {
    Acknowledge(Vec<String>),
    /// Answered when everything before it was acknowledged or given up.
    Flush(oneshot::Sender<()>),
}

/// Acknowledges for one subscription.
pub(super) struct Acker {
    caller: Arc<Caller>,
    calls: JoinSet<()>,
}

struct Caller {
    client: Client,
    name: SubscriptionName,
    subscription: usize,
    shared: Arc<Shared>,
}

impl Acker {
    pub(super) fn new(
        client: Client,
        name: SubscriptionName,
        subscription: usize,
        shared: Arc<Shared>,
    ) -> Self {
        Self { caller: Arc::new(Caller { client, name, subscription, shared }), calls: JoinSet::new() }
    }

    /// Until the source is gone and everything that it released is done with.
    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<AckOrder>) {
        while let Some(order) = orders.recv().await {
            match order {
                AckOrder::Acknowledge(ids) => {
                    for ids in chunks(ids) {
                        self.call(ids).await;
                    }
                }
                AckOrder::Flush(done) => {
                    self.finish().await;
                    // Who asked may have lost patience.
                    let _ = done.send(());
                }
            }
        }
        self.finish().await;
    }

    async fn call(&mut self, ids: Vec<String>) {
        let caller = self.caller.clone();
        // With exactly-once delivery and ordering, acknowledgements of one key must come in order.
        let at_a_time = if caller.shared.acks_in_order(caller.subscription) { 1 } else { CALLS_AT_A_TIME };
        while self.calls.len() >= at_a_time {
            self.calls.join_next().await;
        }
        self.calls.spawn(async move { caller.acknowledge(ids).await });
    }

    async fn finish(&mut self) {
        while self.calls.join_next().await.is_some() {}
    }
}

impl Caller {
    async fn acknowledge(&self, mut ids: Vec<String>) {
        let call = Call { what: "acknowledge messages of", resource: self.name.path(), role: SUBSCRIBER };
        let mut backoff = Backoff::new();
        let began = Instant::now();
        loop {
            let Err(status) = self.send(ids.clone()).await else { return };
            let lost = match confirmation(&status) {
                Some(failed) => {
                    // In their order: with ordering, others would fail again for that. What a passing failure does not name may
                    // have failed too.
                    let passing = is_retryable(status.code());
                    ids.retain(|id| {
                        failed.temporary.contains(id) || (passing && !failed.permanent.contains(id))
                    });
                    failed.permanent.len()
                }
                None if is_retryable(status.code()) => 0,
                None => std::mem::take(&mut ids).len(),
            };
            if lost > 0 {
                self.lost(lost, &call.error(&status).to_string());
            }
            if ids.is_empty() {
                return;
            }
            if began.elapsed() > PATIENCE {
                return self.lost(ids.len(), &call.error(&status).to_string());
            }
            sleep(backoff.wait()).await;
        }
    }

    async fn send(&self, ack_ids: Vec<String>) -> Result<(), Status> {
        let message = pb::AcknowledgeRequest { subscription: self.name.path().to_owned(), ack_ids };
        let request = self.client.request(message, "subscription", self.name.path()).await?;
        self.client.subscriber().acknowledge(request).await.map(|_| ())
    }

    fn lost(&self, count: usize, says: &str) {
        let text = format!(
            "{count} acknowledgements were lost, and their messages will be delivered again and recognised: {says}"
        );
        self.shared.notice("ack_lost", text);
    }
}

/// Ids in calls of bounded size.
pub(super) fn chunks(ids: Vec<String>) -> Vec<Vec<String>> {
    let bytes: usize = ids.iter().map(String::len).sum();
    if ids.len() <= IDS_PER_CALL && bytes <= ID_BYTES_PER_CALL {
        return vec![ids];
    }
    let mut chunks = Vec::new();
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    for id in ids {
        if chunk.len() == IDS_PER_CALL || (bytes + id.len() > ID_BYTES_PER_CALL && !chunk.is_empty()) {
            chunks.push(std::mem::take(&mut chunk));
            bytes = 0;
        }
        bytes += id.len();
        chunk.push(id);
    }
    chunks.push(chunk);
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_bounded_and_keep_the_order() {
        let ids: Vec<String> = (0..6000).map(|n| format!("{n:0180}")).collect();
        let chunks = chunks(ids.clone());
        assert!(chunks.iter().all(
            |c| c.len() <= IDS_PER_CALL && c.iter().map(String::len).sum::<usize>() <= ID_BYTES_PER_CALL
        ));
        assert_eq!(chunks.concat(), ids);
        assert_eq!(super::chunks(vec!["x".repeat(600_000)]).len(), 1);
    }
}
