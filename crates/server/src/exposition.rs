//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use millstream_engine::Histogram;

/// What a family's samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, but for a restart.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets.
    Histogram,
}

impl Kind {
    /// Its name in the format.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric with its labels, beside `pipeline`, which all of `millstream_*` have.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What its samples are.
    pub kind: Kind,
    /// What tells its samples apart.
    pub labels: &'static [&'static str],
    /// What it counts.
    pub help: &'static str,
}

/// The text that is being written.
pub(crate) struct Exposition<'a> {
    /// `None` for families that belong to the process.
    pipeline: Option<&'a str>,
    text: String,
}

impl<'a> Exposition<'a> {
    pub(crate) fn new(pipeline: &'a str) -> Self {
        Self { pipeline: Some(pipeline), text: String::new() }
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    /// Begins a family; its samples follow at once. One without samples is told too, so that what exists can be seen.
    pub(crate) fn begin(&mut self, family: &Family, of_process: bool) -> Samples<'_> {
        // Writing into a String does not fail, here and below.
        let _ = writeln!(self.text, "# HELP {} {}", family.name, escape(family.help, false));
        let _ = writeln!(self.text, "# TYPE {} {}", family.name, family.kind.name());
        let pipeline = if of_process { None } else { self.pipeline };
        Samples { name: family.name, labels: family.labels, pipeline, text: &mut self.text }
    }
}

/// Writes the samples of one family.
pub(crate) struct Samples<'a> {
    name: &'static str,
    labels: &'static [&'static str],
    pipeline: Option<&'a str>,
    text: &'a mut String,
}

impl Samples<'_> {
    /// A sample, its labels' values in the family's order.
    pub(crate) fn sample(&mut self, values: &[&str], number: impl Display) {
        self.line("", values, None, number);
    }

    /// A histogram, in seconds.
    pub(crate) fn histogram(&mut self, values: &[&str], histogram: &Histogram) {
        for (bound_ms, n) in Histogram::BOUNDS_MS.iter().zip(histogram.cumulative()) {
            let bound = (*bound_ms as f64 / 1000.0).to_string();
            self.line("_bucket", values, Some(&bound), n);
        }
        self.line("_bucket", values, Some("+Inf"), histogram.count());
        self.line("_sum", values, None, histogram.sum().as_secs_f64());
        self.line("_count", values, None, histogram.count());
    }

    fn line(&mut self, suffix: &str, values: &[&str], bound: Option<&str>, number: impl Display) {
        debug_assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        let pipeline = self.pipeline.map(|name| ("pipeline", name));
        let own = self.labels.iter().copied().zip(values.iter().copied());
        let labels = pipeline.into_iter().chain(own).chain(bound.map(|bound| ("le", bound)));
        let shown: Vec<String> =
            labels.map(|(label, value)| format!("{label}=\"{}\"", escape(value, true))).collect();
        let _ = match &shown[..] {
            [] => writeln!(self.text, "{}{suffix} {number}", self.name),
            labels => writeln!(self.text, "{}{suffix}{{{}}} {number}", self.name, labels.join(",")),
        };
    }
}

/// Backslashes and line ends, and in values of labels quotation marks.
fn escape(text: &str, quoted: bool) -> String {
    let text = text.replace('\\', r"\\").replace('\n', r"\n");
    if quoted { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let family =
            Family { name: "a_total", kind: Kind::Counter, labels: &["table"], help: "Back\\slash\n\"q\"." };
        let mut out = Exposition::new("p");
        let mut samples = out.begin(&family, false);
        samples.sample(&["public.\"odd\\name\"\n}"], u64::MAX);
        samples.sample(&["ä"], 0.25);
        out.begin(&Family { name: "b", labels: &[], kind: Kind::Gauge, help: "B." }, true).sample(&[], 1);
        let expected = concat!(
            "# HELP a_total Back\\\\slash\\n\"q\".\n",
            "# TYPE a_total counter\n",
            "a_total{pipeline=\"p\",table=\"public.\\\"odd\\\\name\\\"\\n}\"} 18446744073709551615\n",
            "a_total{pipeline=\"p\",table=\"ä\"} 0.25\n",
            "# HELP b B.\n# TYPE b gauge\nb 1\n",
        );
        assert_eq!(out.finish(), expected);
    }
}
