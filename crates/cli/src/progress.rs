//! How a run is going: a line on a terminal that is drawn again and again, a log line every 10 s elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millstream_engine::{Clock, Histogram, Status, SystemClock};

use crate::output::count;

/// How often the line is drawn, or looked at for a log line.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// Tables below the line.
const TABLES_SHOWN: usize = 12;
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The line that is being drawn, so that log lines can step around it.
static LINE: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn drawn() -> Option<ProgressBar> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Standard error for log lines: the progress line is taken away while one is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let write = || io::stderr().write_all(buffer).map(|()| buffer.len());
        match drawn() {
            Some(line) => line.suspend(write),
            None => write(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Shows how a run is going.
#[derive(Debug)]
pub(crate) struct Progress {
    /// `None` where standard error is no terminal.
    line: Option<ProgressBar>,
    /// Whether the tables are shown below the line.
    tables: bool,
    logged: Instant,
}

impl Progress {
    /// Starts showing; with the tables below, if wanted.
    pub(crate) fn new(tables: bool) -> Self {
        let line = std::io::stderr().is_terminal().then(|| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                line.set_style(style);
            }
            *LINE.lock().unwrap_or_else(PoisonError::into_inner) = Some(line.clone());
            line
        });
        Self { line, tables, logged: Instant::now() }
    }

    /// Shows `status` and the events that are judged a second.
    pub(crate) fn show(&mut self, pipeline: &str, status: &Status, rate: f64) {
        match &self.line {
            Some(line) => {
                let mut text = describe(pipeline, status, rate);
                if self.tables {
                    text.push_str(&tables(status));
                }
                line.set_message(text);
                line.tick();
            }
            None if self.logged.elapsed() >= LOG_EVERY => {
                self.logged = Instant::now();
                tracing::info!("{}", describe(pipeline, status, rate));
            }
            None => {}
        }
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        if let Some(line) = &self.line {
            *LINE.lock().unwrap_or_else(PoisonError::into_inner) = None;
            line.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn describe(pipeline: &str, status: &Status, rate: f64) -> String {
    let duplicates: u64 = status.counters.tables.values().map(|t| t.duplicates).sum();
    let dead: u64 = status.counters.dead.values().sum();
    let rejected: u64 = status.counters.sinks.values().map(|s| s.rejected).sum();
    let lag = match status.watermark_ms {
        Some(watermark) => {
            human(SystemClock.now().saturating_sub(Duration::from_millis(watermark.max(0) as u64)))
        }
        None => "-".to_owned(),
    };
    let took = quantiles(&status.latencies.broker_to_warehouse)
        .map(|took| format!(", visible after {took}"))
        .unwrap_or_default();
    format!(
        "{pipeline} {}: {} events, {} events/s, lag {lag}, epoch {}, dead {}, duplicates {}{took}",
        status.phase.name(),
        count(status.events_in),
        count(rate as u64),
        status.epoch.0,
        count(dead + rejected),
        count(duplicates),
    )
}

/// A line for each table.
fn tables(status: &Status) -> String {
    let line = |(name, t): (&String, &millstream_core::TableCounters)| {
        let (events, duplicates, late) = (count(t.events), count(t.duplicates), count(t.late));
        format!("\n  {name}: {events} events, {duplicates} duplicates, {late} late")
    };
    status.counters.tables.iter().take(TABLES_SHOWN).map(line).collect()
}

/// Latency percentiles, if there are any.
pub(crate) fn quantiles(latency: &Histogram) -> Option<String> {
    let at = |share| latency.quantile(share).map(human_ms);
    Some(format!("p50 {}, p95 {}, p99 {}", at(0.5)?, at(0.95)?, at(0.99)?))
}

fn human_ms(span: Duration) -> String {
    if span < Duration::from_secs(10) { format!("{} ms", span.as_millis()) } else { human(span) }
}

/// A time span in its two largest units.
fn human(span: Duration) -> String {
    let s = span.as_secs();
    match s {
        0..60 => format!("{:.1} s", span.as_secs_f64()),
        60..3600 => format!("{} m {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} m", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_well() {
        assert_eq!(human(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(human(Duration::from_secs(3700)), "1 h 1 m");
        assert_eq!(human(Duration::from_secs(200_000)), "2 d 7 h");
    }
}
