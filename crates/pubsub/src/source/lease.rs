//! Keeps leases alive until their messages are acknowledged, and gives them back when a run is cancelled.

use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Error, Fut};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tonic::Status;

use super::ack::chunks;
use super::ledger::{AckIds, Due, Moment};
use super::shared::Shared;
use crate::backoff::Backoff;
use crate::client::Client;
use crate::confirmation::confirmation;
use crate::failure::{Call, SUBSCRIBER, is_retryable};
use crate::name::SubscriptionName;

/// How often leases are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How long giving back may take.
const GIVE_BACK_PATIENCE: Duration = Duration::from_millis(2500);

/// Prolongs leases: of a subscription's messages, by their ids.
pub(super) type Prolong = Arc<dyn Fn(usize, Vec<String>) -> Fut<'static, Result<(), Status>> + Send + Sync>;

/// Keeps the leases of all subscriptions.
#[derive(Clone)]
pub(super) struct Keeper {
    pub(super) prolong: Prolong,
    pub(super) names: Arc<[SubscriptionName]>,
    pub(super) shared: Arc<Shared>,
    pub(super) lease: Duration,
    /// Of a message, in all.
    pub(super) lease_max: Duration,
}

/// What prolongs leases by calls to the service.
pub(super) fn by_calls(client: Client, names: Arc<[SubscriptionName]>, lease: Duration) -> Prolong {
    Arc::new(move |subscription, ids| {
        let (client, names) = (client.clone(), names.clone());
        Box::pin(async move { modify(&client, &names[subscription], ids, lease.as_secs() as i32).await })
    })
}

impl Keeper {
    /// Prolongs each lease when half of it is over, for as long as `lease_max` in all.
    pub(super) async fn run(self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut calls = JoinSet::new();
        loop {
            ticks.tick().await;
            while calls.try_join_next().is_some() {}
            let now = self.shared.now();
            if let Some(before) = now.checked_sub(self.lease_max) {
                let given_up = self.shared.ledger().give_up(before, now);
                if given_up > 0 {
                    let text = format!(
                        "{given_up} messages were not durable {} s after they came: their leases end, and they will be delivered again",
                        self.lease_max.as_secs()
                    );
                    self.shared.notice("lease_given_up", text);
                }
            }
            let due = self.shared.ledger().due(now + self.lease / 2);
            for due in due {
                let keeper = self.clone();
                calls.spawn(async move { keeper.extend(due).await });
            }
        }
    }

    /// Prolongs leases and notes until when they run; what could not be prolonged before its end is told.
    async fn extend(&self, mut due: Due) {
        let mut until = Moment::MAX;
        for ids in chunks(std::mem::take(&mut due.ids)) {
            match self.try_until_over(&due, ids).await {
                Ok(of_these) => until = until.min(of_these),
                Err(error) => {
                    let lapsed = self.shared.ledger().lapsed(&due.groups);
                    return self.lost(lapsed, &error);
                }
            }
        }
        self.shared.ledger().extended(&due.groups, until);
    }

    /// Tries for as long as the leases run; answers until when they do then.
    async fn try_until_over(&self, due: &Due, mut ids: Vec<String>) -> Result<Moment, Error> {
        let name = &self.names[due.subscription];
        let call = Call { what: "extend leases of", resource: name.path(), role: SUBSCRIBER };
        let mut backoff = Backoff::new();
        // When the first try that succeeded for some of them began: a deadline counts from when the service takes the call.
        let mut since: Option<Moment> = None;
        loop {
            let sent = self.shared.now();
            // An answer that takes longer is of no use: there must be time for another try.
            let answer = timeout(self.lease / 4, (self.prolong)(due.subscription, ids.clone())).await;
            let status = match answer {
                Ok(Ok(())) => return Ok(since.unwrap_or(sent) + self.lease),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer"),
            };
            let passing = is_retryable(status.code());
            match confirmation(&status) {
                // Exactly-once delivery: ids of leases that have ended are refused, and their messages come again.
                Some(failed) => {
                    since = since.or(Some(sent));
                    let refused = self.shared.ledger().refused(&due.groups, &failed.permanent);
                    self.lost(refused as u64, &call.error(&status));
                    ids.retain(|id| {
                        failed.temporary.contains(id) || (passing && !failed.permanent.contains(id))
                    });
                    if ids.is_empty() {
                        return Ok(since.unwrap_or(sent) + self.lease);
                    }
                }
                None if !passing => return Err(call.error(&status)),
                None => {}
            }
            if self.shared.now() >= due.deadline {
                return Err(call.error(&status));
            }
            sleep(backoff.wait().min(self.lease / 8)).await;
        }
    }

    fn lost(&self, messages: u64, error: &Error) {
        if messages > 0 {
            let text =
                format!("the leases of {messages} messages end, and they will be delivered again: {error}");
            self.shared.notice("lease_lost", text);
        }
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::source::ledger::Limits;

    const LEASE: Duration = Duration::from_secs(30);

    /// Leases of two messages for `run`, prolonged by a service that answers as `answer` says to a try, counted from 1 on; the
    /// tries' times, s, and the notices' codes.
    async fn tries(
        run: Duration,
        answer: impl Fn(usize) -> Result<(), Status> + Send + Sync + 'static,
    ) -> (Vec<u64>, Vec<&'static str>) {
        let limits = Limits { messages: 1000, bytes: 1000 };
        let shared = Arc::new(Shared::new(1, 1, limits));
        let times: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (noted, clock) = (times.clone(), shared.clone());
        let prolong: Prolong = Arc::new(move |_, _| {
            let mut times = noted.lock().unwrap();
            times.push(clock.now().as_secs());
            let answer = answer(times.len());
            Box::pin(async move { answer })
        });
        let names = [SubscriptionName::parse("projects/p/subscriptions/orders", None).unwrap()];
        let keeper = Keeper {
            prolong,
            names: names.into(),
            shared: shared.clone(),
            lease: LEASE,
            lease_max: LEASE * 9,
        };
        shared.ledger().arrive(0, 0, vec!["a".into(), "b".into()], 2, shared.now(), LEASE);
        assert!(timeout(run, keeper.run()).await.is_err(), "it ends only with the source");
        let times = times.lock().unwrap().clone();
        (times, shared.take_notices().into_iter().map(|notice| notice.code).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_prolonged_when_half_of_it_is_over() {
        let (times, notices) = tries(Duration::from_secs(62), |_| Ok(())).await;
        assert_eq!((times, notices), (vec![16, 32, 48], vec![]));
    }

    /// An extension was tried five times within two seconds. Then its lease counted as prolonged all the same, and the next try came
    /// when it was over: an outage of three seconds ended every lease.
    #[tokio::test(start_paused = true)]
    async fn an_extension_that_fails_is_tried_as_long_as_the_lease_runs() {
        let failing = |n| if n <= 7 { Err(Status::unavailable("")) } else { Ok(()) };
        let (times, notices) = tries(Duration::from_secs(60), failing).await;
        assert!(times[7] > 18 && times[7] < 30, "{times:?}");
        assert!(times[8] > times[7] + 10, "half of the new lease: {times:?}");
        assert!(notices.is_empty(), "{notices:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ended_is_told_once_and_not_prolonged() {
        let (times, notices) = tries(Duration::from_secs(200), |_| Err(Status::unavailable(""))).await;
        assert!(times.last().is_some_and(|last| (29..36).contains(last)), "{times:?}");
        assert_eq!(notices, ["lease_lost"]);
        let denied = tries(Duration::from_secs(200), |_| Err(Status::permission_denied(""))).await;
        assert_eq!(denied, (vec![16], vec!["lease_lost"]));
    }
}
