//! Keeps leases alive until their messages are acknowledged, and gives them back when a run is cancelled.

use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Error, Kind};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tonic::Status;

use super::ack::chunks;
use super::ledger::AckIds;
use super::shared::Shared;
use crate::backoff::Backoff;
use crate::client::Client;
use crate::failure::{Call, SUBSCRIBER};
use crate::name::SubscriptionName;

/// How often leases are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Tries of one extension; after them the lease may end, and its messages come again.
const TRIES: u32 = 5;
/// How long giving back may take.
const GIVE_BACK_PATIENCE: Duration = Duration::from_millis(2500);

/// Prolongs each lease when half of it is over, for as long as `lease_max` in all.
pub(super) async fn keep(
    client: Client,
    names: Vec<SubscriptionName>,
    shared: Arc<Shared>,
    lease: Duration,
    lease_max: Duration,
) {
    let names: Arc<[SubscriptionName]> = names.into();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut calls = JoinSet::new();
    loop {
        ticks.tick().await;
        while calls.try_join_next().is_some() {}
        let now = shared.now();
        if let Some(before) = now.checked_sub(lease_max) {
            let given_up = shared.ledger().give_up(before);
            if given_up > 0 {
                let text = format!(
                    "{given_up} messages were not durable {} s after they came: their leases end, and they will be delivered again",
                    lease_max.as_secs()
                );
                shared.notice("lease_given_up", text);
            }
        }
        let due = shared.ledger().extend(now + lease / 2, now + lease);
        for (subscription, ids) in due {
            for ids in chunks(ids) {
                let (client, names) = (client.clone(), names.clone());
                let shared = shared.clone();
                calls.spawn(async move {
                    let count = ids.len();
                    if let Err(error) = extend(&client, &names[subscription], ids, lease).await {
                        let text = format!(
                            "the leases of {count} messages end, and they will be delivered again: {error}"
                        );
                        shared.notice("lease_lost", text);
                    }
                });
            }
        }
    }
}

async fn extend(
    client: &Client,
    name: &SubscriptionName,
    ids: Vec<String>,
    lease: Duration,
) -> Result<(), Error> {
    let call = Call { what: "extend leases of", resource: name.path(), role: SUBSCRIBER };
    let mut backoff = Backoff::new();
    let mut last = Ok(());
    for _ in 0..TRIES {
        match modify(client, name, ids.clone(), lease.as_secs() as i32).await {
            Ok(()) => return Ok(()),
            Err(status) => last = Err(call.error(&status)),
        }
        match &last {
            Err(error) if error.kind() == Kind::Transient => sleep(backoff.wait()).await,
            // Under exactly-once delivery the ids of a lease that has ended are refused: the messages come again.
            _ => return last,
        }
    }
    last
}

/// Ends leases at once, so that others get the messages now. As far as that can be had in a moment.
pub(super) async fn give_back(client: &Client, names: &[SubscriptionName], leased: Vec<AckIds>) {
    let all = async {
        let mut calls = JoinSet::new();
        for (subscription, ids) in leased {
            for ids in chunks(ids) {
                let (client, name) = (client.clone(), names[subscription].clone());
                calls.spawn(async move { modify(&client, &name, ids, 0).await });
            }
        }
        while calls.join_next().await.is_some() {}
    };
    // What is not given back comes again when its lease is over.
    let _ = timeout(GIVE_BACK_PATIENCE, all).await;
}

async fn modify(
    client: &Client,
    name: &SubscriptionName,
    ack_ids: Vec<String>,
    seconds: i32,
) -> Result<(), Status> {
    let message = pb::ModifyAckDeadlineRequest {
        subscription: name.path().to_owned(),
        ack_ids,
        ack_deadline_seconds: seconds,
    };
    let request = client.request(message, "subscription", name.path()).await?;
    client.subscriber().modify_ack_deadline(request).await.map(|_| ())
}
