//! Would the topics take what a run publishes: those of sinks, and that of dead letters? They are only looked at; nothing is published.

use std::fmt::Display;

use millstream_core::Result;
use millstream_pubsub::admin::{Sight, has_subscriptions, look_at, look_for_subscription, look_for_topic};
use millstream_pubsub::permission::{PUBLISHER, SUBSCRIBER, may_publish, may_pull};
use millstream_pubsub::{Client, Connection, TopicName};

use super::{Finding, Level};
use crate::plan::{LetterTopicPlan, Plan, SinkKind};

/// What is doubtful about the topics.
pub(super) async fn findings(plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    for sink in &plan.sinks {
        if let SinkKind::Pubsub(config) = &sink.kind {
            let whose = format!("sink {}", sink.name);
            of_topic(&whose, &config.connection, &config.topic, config.create, &mut findings).await;
        }
    }
    if let Some(letters) = &plan.letter_topic {
        of_letters(letters, &mut findings).await;
    }
    findings
}

async fn of_letters(plan: &LetterTopicPlan, out: &mut Vec<Finding>) {
    let whose = "dead letters";
    let is_there = of_topic(whose, &plan.connection, &plan.topic, plan.create, out).await;
    // Without a client the topic's finding says why.
    let Ok(client) = Client::new(&plan.connection, 1) else { return };
    if let Some(subscription) = &plan.subscription {
        let sight = look_for_subscription(&client, subscription).await;
        let permitted = may_pull(&client, subscription).await;
        let is_seen = tell(whose, subscription, plan.create, sight, permitted, SUBSCRIBER, out);
        let facts = if is_seen { look_at(&client, subscription).await.ok() } else { None };
        if let Some(facts) = facts.filter(|facts| facts.topic != plan.topic.path()) {
            let text = format!("{whose}: {subscription} is to {}: letters never come to it", facts.topic);
            let remedy =
                format!("name a subscription to {}; a replay would take what is not its own", plan.topic);
            push(out, Level::Error, "wrong_topic", text, &remedy);
        }
    } else if is_there && has_subscriptions(&client, &plan.topic).await.is_ok_and(|has| !has) {
        let text = format!("{whose}: {} has no subscription: what is published to it is lost", plan.topic);
        let remedy = "make a subscription, and name it in `dead_letters.subscription`, so that letters can be replayed";
        push(out, Level::Warning, "topic_without_subscription", text, remedy);
    }
}

/// Whether the topic is there; what is wrong is told.
async fn of_topic(
    whose: &str,
    connection: &Connection,
    topic: &TopicName,
    create: bool,
    out: &mut Vec<Finding>,
) -> bool {
    let (sight, permitted) = match Client::new(connection, 1) {
        Ok(client) => (look_for_topic(&client, topic).await, may_publish(&client, topic).await),
        Err(error) => (Err(error), None),
    };
    tell(whose, topic, create, sight, permitted, PUBLISHER, out)
}

/// Tells what is not there, cannot be seen, or must not be used for want of a role. Whether it is there.
fn tell(
    whose: &str,
    name: &impl Display,
    create: bool,
    sight: Result<Sight>,
    permitted: Option<bool>,
    role: &str,
    out: &mut Vec<Finding>,
) -> bool {
    let (level, code, text, remedy) = match (sight, permitted) {
        (Ok(Sight::Missing), _) if create => (
            Level::Note,
            "to_be_made",
            format!("{name} does not exist: a run makes it at its start"),
            "the account needs roles/pubsub.editor for that".to_owned(),
        ),
        (Ok(Sight::Missing), _) => (
            Level::Error,
            "missing_resource",
            format!("{name} does not exist: a run would end at its start"),
            "make it, correct the project and the name, or set `create: true`".to_owned(),
        ),
        (Ok(sight), Some(false)) => (
            Level::Error,
            "not_permitted",
            match sight {
                Sight::Hidden => format!("{name} does not exist, or the account lacks {role}"),
                _ => format!("the account lacks {role} on {name}"),
            },
            format!("grant {role} to the account of the credentials"),
        ),
        (Ok(Sight::Hidden), None) => (
            Level::Warning,
            "hidden_resource",
            format!("the account may not look at {name}: nobody can tell whether it exists"),
            format!("grant roles/pubsub.viewer to look; a run takes {role}"),
        ),
        (Ok(_), _) => return true,
        (Err(error), _) => (
            Level::Error,
            "unreachable_resource",
            error.to_string(),
            "correct the endpoint or the credentials, or try again".to_owned(),
        ),
    };
    push(out, level, code, format!("{whose}: {text}"), &remedy);
    false
}

pub(super) fn push(out: &mut Vec<Finding>, level: Level, code: &'static str, text: String, remedy: &str) {
    out.push(Finding { level, code, table: None, text, detail: String::new(), remedy: remedy.to_owned() });
}
