//! What the source's tasks share.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::SourceFigures;
use millstream_core::source::Notice;
use pb::streaming_pull_response::SubscriptionProperties;
use tokio::time::Instant;

use super::ledger::{AckIds, Ledger, Moment};

/// Notices kept for the pipeline at most; it takes them after every batch.
const NOTICES_MAX: usize = 100;
/// An outage that lasts longer is told.
const OUTAGE_TOLD: Duration = Duration::from_secs(60);

pub(super) struct Shared {
    ledger: Mutex<Ledger>,
    started: Instant,
    notices: Mutex<Vec<Notice>>,
    withheld: Mutex<Vec<AckIds>>,
    streams: Mutex<Vec<StreamState>>,
    properties: Vec<AtomicU8>,
    redelivered: AtomicU64,
}

/// Whether a stream is up.
#[derive(Debug, Clone)]
struct StreamState {
    was_up: bool,
    failing: Option<Failing>,
}

impl StreamState {
    fn connecting() -> Self {
        let failing = Failing { since: Instant::now(), says: "not connected yet".to_owned(), told: false };
        Self { was_up: false, failing: Some(failing) }
    }
}

#[derive(Debug, Clone)]
struct Failing {
    since: Instant,
    says: String,
    told: bool,
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
    pub(super) fn new(subscriptions: usize, streams: usize) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new(subscriptions, streams)),
            started: Instant::now(),
            notices: Mutex::default(),
            withheld: Mutex::default(),
            streams: Mutex::new(vec![StreamState::connecting(); streams]),
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

    /// Messages that came and are none of this source's business; they are given back when it closes.
    pub(super) fn withhold(&self, subscription: usize, ack_ids: Vec<String>) {
        lock(&self.withheld).push((subscription, ack_ids));
    }

    pub(super) fn take_withheld(&self) -> Vec<AckIds> {
        std::mem::take(&mut lock(&self.withheld))
    }

    /// A stream is open.
    pub(super) fn up(&self, stream: usize) {
        lock(&self.streams)[stream] = StreamState { was_up: true, failing: None };
    }

    /// A stream could not be opened, or broke.
    pub(super) fn down(&self, stream: usize, says: String) {
        let told = {
            let mut streams = lock(&self.streams);
            let state = &mut streams[stream];
            match &mut state.failing {
                None => {
                    state.failing = Some(Failing { since: Instant::now(), says, told: false });
                    None
                }
                Some(failing) => {
                    failing.says = says;
                    let tell = !failing.told && failing.since.elapsed() > OUTAGE_TOLD;
                    failing.told |= tell;
                    tell.then(|| failing.says.clone())
                }
            }
        };
        if let Some(says) = told {
            self.notice("pubsub_unreachable", format!("{says}; trying on"));
        }
    }

    /// The longest failing stream, if any fails.
    pub(super) fn outage(&self) -> Option<Outage> {
        let streams = lock(&self.streams);
        let of = |state: &StreamState| {
            let failing = state.failing.as_ref()?;
            Some(Outage { was_up: state.was_up, lasts: failing.since.elapsed(), says: failing.says.clone() })
        };
        streams.iter().filter_map(of).max_by_key(|outage| outage.lasts)
    }

    /// The service said of so many messages that it delivered them before.
    pub(super) fn redelivered(&self, messages: u64) {
        self.redelivered.fetch_add(messages, Ordering::Relaxed);
    }

    /// How the source stands.
    pub(super) fn figures(&self) -> SourceFigures {
        let (outstanding, oldest) = self.ledger().total();
        let age = oldest.map_or(Duration::ZERO, |arrived| self.now().saturating_sub(arrived));
        let open = lock(&self.streams).iter().filter(|s| s.was_up && s.failing.is_none()).count();
        SourceFigures {
            outstanding_messages: Some(outstanding.messages),
            outstanding_bytes: Some(outstanding.bytes),
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
