//! A sink that publishes: the records as they came, or each event as JSON.
//!
//! Everything that an epoch wrote is published before its checkpoint, so that nothing is lost; what a crash keeps from its checkpoint is
//! published again. There is nothing to take back and no token.

mod event;

use std::collections::HashMap;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::record::Body;
use millstream_core::sink::{Judged, Rejection, WriteReport};
use millstream_core::{Cause, CommitToken, Epoch, Fut, Output, OutputBatch, RecordBatch, Result, Sink};
use prost::Message;

use crate::admin;
use crate::client::Client;
use crate::config::Connection;
use crate::name::TopicName;
use crate::publisher::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, MESSAGE_BYTES_MAX,
    ORDERING_KEY_BYTES_MAX, Publisher,
};

/// Connections; requests take turns.
const CONNECTIONS: usize = 2;

/// What a message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// The record's value as it came; its key as ordering key, its headers as attributes. A sweep is no record that came, and is
    /// left out.
    #[default]
    Record,
    /// The event as a JSON object; its table, operation and order as attributes too.
    Event,
}

/// Settings of a publishing sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// Where and as whom.
    pub connection: Connection,
    /// Where to.
    pub topic: TopicName,
    /// What a message holds.
    pub format: Format,
    /// Whether messages carry the key as ordering key. Without it requests are larger and go side by side.
    pub ordering_keys: bool,
    /// Make the topic if it does not exist. Otherwise that fails the start.
    pub create: bool,
}

/// Publishes to a topic.
pub struct PubsubSink {
    config: SinkConfig,
    client: Client,
    publisher: Publisher,
}

impl PubsubSink {
    /// A sink that has not published anything yet.
    ///
    /// # Errors
    /// If no credentials are found or the endpoint is no URL.
    pub fn new(config: SinkConfig) -> Result<Self> {
        let client = Client::new(&config.connection, CONNECTIONS)?;
        let publisher = Publisher::new(client.clone(), config.topic.clone());
        Ok(Self { config, client, publisher })
    }

    /// Whether there is nothing to publish for an event.
    fn leaves_out(&self, judged: &Judged, records: &RecordBatch) -> bool {
        let record = records.record(judged.event.record as usize);
        self.config.format == Format::Record && record.is_some_and(|record| record.sweep().is_some())
    }

    fn message(&self, judged: &Judged, records: &RecordBatch) -> Result<pb::PubsubMessage, Cause> {
        let mut message = match self.config.format {
            Format::Record => of_record(records, judged.event.record)?,
            Format::Event => event::message(judged),
        };
        if !self.config.ordering_keys {
            message.ordering_key.clear();
        }
        fits(&message)?;
        Ok(message)
    }

    async fn write_now(&mut self, batch: &OutputBatch) -> Result<WriteReport> {
        let mut report = WriteReport::default();
        for (index, output) in batch.outputs.iter().enumerate() {
            match output {
                Output::Event(judged) if judged.distinct && self.leaves_out(judged, &batch.records) => {
                    report.filtered += 1;
                }
                Output::Event(judged) if judged.distinct => match self.message(judged, &batch.records) {
                    Ok(message) => {
                        self.publisher.add(message).await?;
                        report.written += 1;
                    }
                    Err(cause) => report.rejected.push(Rejection { output: index, cause }),
                },
                Output::Event(_) => report.duplicates += 1,
                // Of values that came late the older event has told already.
                Output::Patch(_) => {}
            }
        }
        Ok(report)
    }
}

/// The record behind an event, as a message.
fn of_record(records: &RecordBatch, index: u32) -> Result<pb::PubsubMessage, Cause> {
    let record = records.record(index as usize).expect("invariant: the index is the batch's own");
    let text = |bytes: &[u8], what: &str| {
        String::from_utf8(bytes.to_vec()).map_err(|_| {
            Cause::new("not_utf8", format!("Pub/Sub takes UTF-8 only, and the record's {what} is not"))
        })
    };
    let mut attributes = HashMap::new();
    for header in record.headers() {
        attributes.insert(text(header.name, "header name")?, text(header.value, "header value")?);
    }
    let ordering_key = record.key().map(|key| text(key, "key")).transpose()?.unwrap_or_default();
    let data = match record.body() {
        Body::Value(bytes) | Body::Broken(bytes, _) => bytes.to_vec(),
        Body::Tombstone => Vec::new(),
    };
    Ok(pb::PubsubMessage { data: data.into(), attributes, ordering_key, ..pb::PubsubMessage::default() })
}

/// Whether the service takes the message.
fn fits(message: &pb::PubsubMessage) -> Result<(), Cause> {
    let refuse = |code, what: String| Err(Cause::new(code, format!("{what}, which Pub/Sub does not take")));
    if message.ordering_key.len() > ORDERING_KEY_BYTES_MAX {
        let what =
            format!("a key of {} bytes, more than {ORDERING_KEY_BYTES_MAX}", message.ordering_key.len());
        return refuse("ordering_key_too_long", what);
    }
    if message.attributes.len() > ATTRIBUTES_MAX {
        return refuse(
            "too_many_attributes",
            format!("{} headers, more than {ATTRIBUTES_MAX}", message.attributes.len()),
        );
    }
    let fits = |(name, value): (&String, &String)| {
        !name.is_empty()
            && name.len() <= ATTRIBUTE_NAME_BYTES_MAX
            && value.len() <= ATTRIBUTE_VALUE_BYTES_MAX
            && !name.starts_with("goog")
    };
    if !message.attributes.iter().all(fits) {
        let what = format!(
            "a header whose name is empty, begins with `goog` or has more than {ATTRIBUTE_NAME_BYTES_MAX} bytes, or whose value has more than {ATTRIBUTE_VALUE_BYTES_MAX}"
        );
        return refuse("attribute_refused", what);
    }
    let len = message.encoded_len();
    if len > MESSAGE_BYTES_MAX {
        return refuse("too_large", format!("a message of {len} bytes, more than {MESSAGE_BYTES_MAX}"));
    }
    if message.data.is_empty() && message.attributes.is_empty() {
        return refuse("empty_message", "a message without data and attributes".to_owned());
    }
    Ok(())
}

impl Sink for PubsubSink {
    fn recover<'a>(&'a mut self, _last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            if self.config.create {
                return admin::create_topic(&self.client, &self.config.topic).await;
            }
            admin::need_topic(&self.client, &self.config.topic).await
        })
    }

    fn begin(&mut self, _epoch: Epoch, _ingested_at_us: i64) -> Fut<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write<'a>(&'a mut self, batch: &'a OutputBatch) -> Fut<'a, Result<WriteReport>> {
        Box::pin(self.write_now(batch))
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move {
            self.publisher.publish().await?;
            Ok(None)
        })
    }

    fn commit<'a>(&'a mut self, _token: &'a CommitToken) -> Fut<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(key: &str, attribute: (&str, &str), bytes: usize) -> pb::PubsubMessage {
        pb::PubsubMessage {
            data: vec![0; bytes].into(),
            attributes: [(attribute.0.to_owned(), attribute.1.to_owned())].into(),
            ordering_key: key.to_owned(),
            ..pb::PubsubMessage::default()
        }
    }

    #[test]
    fn what_the_service_would_refuse_is_refused_with_a_cause() {
        let code = |message| fits(&message).map_err(|cause| cause.code);
        assert_eq!(code(message(&"k".repeat(1024), ("a", "b"), 1)), Ok(()));
        assert_eq!(code(message(&"k".repeat(1025), ("a", "b"), 1)), Err("ordering_key_too_long"));
        assert_eq!(code(message("", ("", "b"), 1)), Err("attribute_refused"));
        assert_eq!(code(message("", ("googclient", "b"), 1)), Err("attribute_refused"));
        assert_eq!(code(message("", ("a", &"b".repeat(1025)), 1)), Err("attribute_refused"));
        assert_eq!(code(message("", ("a", "b"), 10_000_000)), Err("too_large"));
        assert_eq!(code(pb::PubsubMessage::default()), Err("empty_message"));
    }
}
