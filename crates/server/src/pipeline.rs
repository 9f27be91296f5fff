//! What the control plane knows of the pipeline: its handle, where it is reached, how fast it is.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_engine::{Clock, Handle, Status, SystemClock};
use serde_json::{Value, json};

use crate::json::{latencies_json, source_json, status_json};
use crate::rates::{Rate, Rates};

/// A running pipeline, to be asked about.
#[derive(Debug)]
pub struct Pipeline {
    name: String,
    handle: Handle,
    /// Where the HTTP API listens.
    http: Option<SocketAddr>,
    /// Where the metrics are.
    metrics: Option<SocketAddr>,
    rates: Mutex<Rates>,
}

impl Pipeline {
    /// The pipeline `name`, and the addresses at which this process answers.
    pub fn new(name: &str, handle: Handle, http: Option<SocketAddr>, metrics: Option<SocketAddr>) -> Self {
        Self { name: name.to_owned(), handle, http, metrics, rates: Mutex::default() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it may be asked.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Takes a sample for its rates, and answers with its status and what flows a second now. To be called a few times a second.
    pub fn tick(&self) -> (Status, Rate) {
        let status = self.handle.status();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.sample(&status);
        (status, rates.rate())
    }

    /// How it stands.
    pub fn json(&self) -> Value {
        let (status, rate) = self.tick();
        let mut value = status_json(&self.name, &status);
        value["http"] = json!(self.http.map(|address| address.to_string()));
        value["metrics"] = json!(self.metrics.map(|address| address.to_string()));
        value["lag_seconds"] = json!(lag(&status).map(|lag| lag.as_secs_f64()));
        value["rates"] = json!({
            "records_per_second": rate.records, "bytes_per_second": rate.bytes, "events_per_second": rate.events,
        });
        value["held_back_seconds"] = json!(status.held_back.as_secs_f64());
        value["latency_seconds"] = latencies_json(&status.latencies);
        value["source"] = source_json(&status.source);
        value
    }
}

/// How far the watermark is behind the clock; `None` before the first event.
pub(crate) fn lag(status: &Status) -> Option<Duration> {
    let watermark = Duration::from_millis(u64::try_from(status.watermark_ms?).unwrap_or(0));
    Some(SystemClock.now().saturating_sub(watermark))
}
