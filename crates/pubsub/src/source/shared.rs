//! What the source's tasks share.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::SourceFigures;
use millstream_core::source::Notice;
use pb::streaming_pull_response::SubscriptionProperties;
use tokio::time::Instant;

use super::ledger::{AckIds, Ledger, Limits, Moment};

/// Notices kept for the pipeline at most; it takes them after every batch.
const NOTICES_MAX: usize = 100;
/// Ids of withheld messages that are kept to be given back; about as many as that.
const WITHHELD_MAX: usize = 200_000;
/// Outages are told at most this often.
const OUTAGES_APART: Duration = Duration::from_secs(60);

pub(super) struct Shared {
    ledger: Mutex<Ledger>,
    started: Instant,
    notices: Mutex<Vec<Notice>>,
    withheld: Mutex<Vec<AckIds>>,
    streams: Mutex<Streams>,
    properties: Vec<AtomicU8>,
    redelivered: AtomicU64,
}

/// All streams; those of a subscription are neighbours.
struct Streams {
    states: Vec<StreamState>,
    of_a_subscription: usize,
    /// Since when the streams fail of whose failure was told.
    told: Option<Instant>,
    last_told: Option<Instant>,
}

/// Whether a stream is up.
#[derive(Debug, Clone)]
struct StreamState {
    was_up: bool,
    /// When this state began.
    since: Instant,
    /// What the last failure said; `None` if it is up.
    failing: Option<String>,
}

impl StreamState {
    fn connecting() -> Self {
        Self { was_up: false, since: Instant::now(), failing: Some("not connected yet".to_owned()) }
    }
}

/// Some stream is down.
pub(super) struct Outage {
    pub(super) was_up: bool,
    pub(super) lasts: Duration,
    pub(super) says: String,
}

const EXACTLY_ONCE: u8 = 1;
const ORDERED: u8 = 2;

impl Shared {
    /// Of as many streams for each subscription, which may have so much outstanding each.
    pub(super) fn new(subscriptions: usize, of_a_subscription: usize, limits: Limits) -> Self {
        let streams = subscriptions * of_a_subscription;
        let states = vec![StreamState::connecting(); streams];
        Self {
            ledger: Mutex::new(Ledger::new(subscriptions, streams, limits)),
            started: Instant::now(),
            notices: Mutex::default(),
            withheld: Mutex::default(),
            streams: Mutex::new(Streams { states, of_a_subscription, told: None, last_told: None }),
            properties: (0..subscriptions).map(|_| AtomicU8::new(0)).collect(),
            redelivered: AtomicU64::new(0),
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Time on the source's own clock.
    pub(super) fn now(&self) -> Moment {
        self.started.elapsed()
    }

    pub(super) fn notice(&self, code: &'static str, text: String) {
        tracing::debug!(code, "{text}");
        let mut notices = lock(&self.notices);
        if notices.len() < NOTICES_MAX {
            notices.push(Notice { code, text });
        }
    }

    pub(super) fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut lock(&self.notices))
    }

    /// Messages that came and are none of this source's business; they are given back when it closes, or come back when their
    /// leases end.
    pub(super) fn withhold(&self, subscription: usize, ack_ids: Vec<String>) {
        let mut withheld = lock(&self.withheld);
        if withheld.iter().map(|(_, ids)| ids.len()).sum::<usize>() < WITHHELD_MAX {
            withheld.push((subscription, ack_ids));
        }
    }

    pub(super) fn take_withheld(&self) -> Vec<AckIds> {
        std::mem::take(&mut lock(&self.withheld))
    }

    /// A stream is open.
    pub(super) fn up(&self, stream: usize) {
        let recovered = {
            let mut streams = lock(&self.streams);
            streams.states[stream] = StreamState { was_up: true, since: Instant::now(), failing: None };
            if streams.states.iter().any(|state| state.failing.is_some()) {
                None
            } else {
                streams.told.take()
            }
        };
        if let Some(since) = recovered {
            let text = format!("Pub/Sub was reached again after {} s", since.elapsed().as_secs());
            self.notice("pubsub_reachable", text);
        }
    }

    /// The source itself ends a stream to open it anew: until then nobody knows whether there is more.
    pub(super) fn reopening(&self, stream: usize) {
        let state = &mut lock(&self.streams).states[stream];
        (state.since, state.failing) = (Instant::now(), Some("being opened anew".to_owned()));
    }

    /// A stream could not be opened, or broke. That a stream ends is routine; that it cannot be opened (again) is told, once for
    /// all streams and until they are open again.
    pub(super) fn down(&self, stream: usize, says: String) {
        let tell = {
            let now = Instant::now();
            let mut guard = lock(&self.streams);
            let streams = &mut *guard;
            let state = &mut streams.states[stream];
            let could_not_be_opened = state.failing.is_some();
            if !could_not_be_opened {
                state.since = now;
            }
            state.failing = Some(says.clone());
            let often = streams.last_told.is_some_and(|last| now.duration_since(last) < OUTAGES_APART);
            let tell = could_not_be_opened && streams.told.is_none() && !often;
            if tell {
                (streams.told, streams.last_told) = (Some(state.since), Some(now));
            }
            tell
        };
        if tell {
            self.notice("pubsub_unreachable", format!("{says}; trying on"));
        }
    }

    /// The longest failing stream, if any fails.
    pub(super) fn outage(&self) -> Option<Outage> {
        let streams = lock(&self.streams);
        let of = |state: &StreamState| {
            let says = state.failing.clone()?;
            Some(Outage { was_up: state.was_up, lasts: state.since.elapsed(), says })
        };
        streams.states.iter().filter_map(of).max_by_key(|outage| outage.lasts)
    }

    /// Whether a subscription gave nothing for so long, while it could: its streams were open and might be sent more.
    pub(super) fn is_silent(&self, subscription: usize, lasting: Duration) -> bool {
        let streams = lock(&self.streams);
        let first = subscription * streams.of_a_subscription;
        let of = first..first + streams.of_a_subscription;
        if !streams.states[of.clone()].iter().all(|s| s.failing.is_none() && s.since.elapsed() >= lasting) {
            return false;
        }
        drop(streams);
        let now = self.now();
        let ledger = self.ledger();
        ledger.silent_since(subscription).is_some_and(|since| now.saturating_sub(since) >= lasting)
            && !of.into_iter().any(|stream| ledger.is_nearly_full(stream))
    }

    /// The service said of so many messages that it delivered them before.
    pub(super) fn redelivered(&self, messages: u64) {
        self.redelivered.fetch_add(messages, Ordering::Relaxed);
    }

    /// How the source stands.
    pub(super) fn figures(&self) -> SourceFigures {
        let now = self.now();
        let ((outstanding, oldest), limits, held) = {
            let ledger = self.ledger();
            (ledger.total(), ledger.limits(), ledger.held(now))
        };
        let age = oldest.map_or(Duration::ZERO, |arrived| now.saturating_sub(arrived));
        let open = lock(&self.streams).states.iter().filter(|s| s.was_up && s.failing.is_none()).count();
        SourceFigures {
            outstanding_messages: Some(outstanding.messages),
            outstanding_bytes: Some(outstanding.bytes),
            outstanding_messages_max: Some(limits.messages),
            outstanding_bytes_max: Some(limits.bytes),
            held_ms: Some(u64::try_from(held.as_millis()).unwrap_or(u64::MAX)),
            oldest_outstanding_ms: Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            open_streams: Some(open as u64),
            redelivered: Some(self.redelivered.load(Ordering::Relaxed)),
            ..SourceFigures::default()
        }
    }

    /// What a stream said of its subscription; it may change at any time.
    pub(super) fn learn(&self, subscription: usize, properties: SubscriptionProperties) {
        let exactly_once = if properties.exactly_once_delivery_enabled { EXACTLY_ONCE } else { 0 };
        let ordered = if properties.message_ordering_enabled { ORDERED } else { 0 };
        self.properties[subscription].store(exactly_once | ordered, Ordering::Relaxed);
    }

    /// Whether acknowledgements must be sent one after another.
    pub(super) fn acks_in_order(&self, subscription: usize) -> bool {
        self.properties[subscription].load(Ordering::Relaxed) == EXACTLY_ONCE | ORDERED
    }
}

/// A panic elsewhere leaves counts that are right.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn shared() -> Shared {
        Shared::new(2, 2, Limits { messages: 10, bytes: 100 })
    }

    fn codes(shared: &Shared) -> Vec<&'static str> {
        shared.take_notices().into_iter().map(|notice| notice.code).collect()
    }

    /// Of an outage nothing was told for its first minute, and nothing of its end.
    #[tokio::test(start_paused = true)]
    async fn an_outage_is_told_once_and_so_is_its_end() {
        let shared = shared();
        (0..4).for_each(|stream| shared.up(stream));
        (0..4).for_each(|stream| shared.down(stream, "ended".to_owned()));
        (0..4).for_each(|stream| shared.up(stream));
        assert!(codes(&shared).is_empty(), "the service ends streams as a matter of routine");
        for _ in 0..9 {
            (0..4).for_each(|stream| shared.down(stream, "refused".to_owned()));
        }
        assert_eq!(codes(&shared), ["pubsub_unreachable"]);
        (0..3).for_each(|stream| shared.up(stream));
        assert!(codes(&shared).is_empty(), "one is still away");
        shared.up(3);
        assert_eq!(codes(&shared), ["pubsub_reachable"]);
        // One that flutters is not told each time.
        for _ in 0..9 {
            advance(Duration::from_secs(1)).await;
            shared.down(0, "ended".to_owned());
            shared.down(0, "refused".to_owned());
            shared.up(0);
        }
        assert!(codes(&shared).is_empty());
        shared.down(0, "ended".to_owned());
        advance(OUTAGES_APART).await;
        shared.down(0, "refused".to_owned());
        assert_eq!(codes(&shared), ["pubsub_unreachable"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_is_not_there_at_the_start_is_told_at_once() {
        let shared = shared();
        shared.down(0, "refused".to_owned());
        assert_eq!(codes(&shared), ["pubsub_unreachable"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscription_is_silent_only_while_it_could_give_something() {
        let (shared, while_) = (shared(), Duration::from_secs(1));
        (0..4).for_each(|stream| shared.up(stream));
        assert!(!shared.is_silent(0, while_), "not for long enough");
        advance(while_).await;
        assert!(shared.is_silent(0, while_) && shared.is_silent(1, while_));
        let arrive = |stream, ids: usize| {
            let ids = vec!["id".to_owned(); ids];
            shared.ledger().arrive(0, stream, ids, 1, shared.now(), Duration::from_secs(30))
        };
        let (group, full) = (arrive(0, 1), arrive(1, 9));
        advance(while_).await;
        assert!(!shared.is_silent(0, while_), "something waits");
        shared.ledger().hand_out(group, 1, shared.now());
        shared.ledger().hand_out(full, 2, shared.now());
        advance(while_).await;
        assert!(!shared.is_silent(0, while_), "it may not be sent much more");
        shared.ledger().release(0, 2, shared.now());
        assert!(shared.is_silent(0, while_));
        shared.reopening(2);
        assert!(shared.outage().is_some() && codes(&shared).is_empty(), "nothing to tell, and no silence");
        assert!(shared.is_silent(0, while_) && !shared.is_silent(1, while_), "each for itself");
    }
}
