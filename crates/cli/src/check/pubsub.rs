//! Would the plan's subscriptions give what a pipeline needs? They are only looked at: taking messages would count as deliveries.

use millstream_core::Result;
use millstream_pubsub::admin::{SubscriptionFacts, look_at, resolve};
use millstream_pubsub::permission::{SUBSCRIBER, may_pull};
use millstream_pubsub::{Client, PubsubConfig, SubscriptionName};

use super::{Finding, Level};

/// Fewer deliveries than this are used up by a few crashes.
const DELIVERY_ATTEMPTS_MIN: u32 = 100;

/// What is doubtful about the subscriptions.
pub(super) async fn findings(config: &PubsubConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = look(config, &mut findings).await {
        let remedy = if config.create.is_some() {
            "with `create` it is made at the start of a run; otherwise correct `source`"
        } else {
            "correct `source`, or grant the role"
        };
        let level = if config.create.is_some() { Level::Warning } else { Level::Error };
        push(&mut findings, level, "unreadable_source", error.to_string(), remedy);
    }
    findings
}

async fn look(config: &PubsubConfig, out: &mut Vec<Finding>) -> Result<()> {
    let client = Client::new(&config.connection, 1)?;
    let names = resolve(&client, config).await?;
    for name in &names {
        of_subscription(name, &look_at(&client, name).await?, out);
        if may_pull(&client, name).await == Some(false) {
            let text = format!("the account lacks {SUBSCRIBER} on {name}");
            push(out, Level::Error, "not_permitted", text, "grant it to the account of the credentials");
        }
    }
    let streams = (names.len() * config.streams) as u64;
    let share = config.outstanding_messages_max / streams.max(1);
    if share < 1000 {
        let text = format!(
            "each of {streams} streams may hold {share} unacknowledged messages: a busy subscription ends epochs early for it"
        );
        push(
            out,
            Level::Warning,
            "few_outstanding",
            text,
            "raise `source.max_outstanding_messages`, or lower `streams`",
        );
    }
    Ok(())
}

fn of_subscription(name: &SubscriptionName, facts: &SubscriptionFacts, out: &mut Vec<Finding>) {
    if facts.pushes {
        let text = format!("{name} pushes or exports its messages: nothing can be pulled from it");
        push(
            out,
            Level::Error,
            "not_a_pull_subscription",
            text,
            "make a pull subscription to the same topic",
        );
    }
    if facts.detached {
        let text = format!("{name} is detached from its topic: it gives nothing any more");
        push(out, Level::Error, "detached_subscription", text, "make a new subscription");
    }
    if facts.topic == "_deleted-topic_" {
        let text = format!("the topic of {name} was deleted: only what it still holds will come");
        push(out, Level::Warning, "deleted_topic", text, "make a subscription to the topic's successor");
    }
    if let Some(attempts) = facts.delivery_attempts_max.filter(|attempts| *attempts < DELIVERY_ATTEMPTS_MIN) {
        let text = format!(
            "{name} gives a message up after {attempts} deliveries, and each crash of the pipeline counts as one for what was on its way"
        );
        push(out, Level::Warning, "few_delivery_attempts", text, "set its `max_delivery_attempts` to 100");
    }
    if facts.exactly_once {
        let text = format!(
            "{name} has exactly-once delivery, which costs throughput: the pipeline tells duplicates by itself"
        );
        push(out, Level::Note, "exactly_once_delivery", text, "a subscription without it is as good here");
    }
}

fn push(out: &mut Vec<Finding>, level: Level, code: &'static str, text: String, remedy: &str) {
    out.push(Finding { level, code, table: None, text, detail: String::new(), remedy: remedy.to_owned() });
}
