//! Would the topics take what a run publishes: those of sinks, and that of dead letters? They are only looked at: whether the account
//! may publish shows with the first message.

use std::fmt::Display;

use millstream_core::Result;
use millstream_pubsub::admin::{Sight, has_subscriptions, look_for_subscription, look_for_topic};
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
    let looked = async {
        let client = Client::new(&plan.connection, 1)?;
        let Some(subscription) = &plan.subscription else {
            return Ok(is_there && !has_subscriptions(&client, &plan.topic).await?);
        };
        tell(whose, subscription, plan.create, look_for_subscription(&client, subscription).await, out);
        Ok(false)
    };
    // Whoever cannot list them has been told of the topic, or may not look.
    let looked: Result<bool> = looked.await;
    if looked.is_ok_and(|is_lost| is_lost) {
        let text = format!("{whose}: {} has no subscription: what is published to it is lost", plan.topic);
        let remedy = "make a subscription, and name it in `dead_letters.subscription`, so that letters can be replayed";
        push(out, Level::Warning, "topic_without_subscription", text, remedy);
    }
}

/// Whether the topic is there; anything else is told.
async fn of_topic(
    whose: &str,
    connection: &Connection,
    topic: &TopicName,
    create: bool,
    out: &mut Vec<Finding>,
) -> bool {
    let looked = async { look_for_topic(&Client::new(connection, 1)?, topic).await };
    tell(whose, topic, create, looked.await, out)
}

/// Tells of what is not there, or cannot be seen. Whether it is there.
fn tell(
    whose: &str,
    name: &impl Display,
    create: bool,
    sight: Result<Sight>,
    out: &mut Vec<Finding>,
) -> bool {
    match sight {
        Ok(Sight::There) => return true,
        Ok(Sight::Missing) if create => {
            let text = format!("{whose}: {name} does not exist: a run makes it at its start");
            push(out, Level::Note, "to_be_made", text, "the account needs roles/pubsub.editor for that");
        }
        Ok(Sight::Missing) => {
            let text = format!("{whose}: {name} does not exist: a run would end at its start");
            push(
                out,
                Level::Error,
                "missing_resource",
                text,
                "make it, correct the project and the name, or set `create: true`",
            );
        }
        Ok(Sight::Hidden) => {
            let text =
                format!("{whose}: the account may not look at {name}: nobody can tell whether it exists");
            let remedy = "grant roles/pubsub.viewer to look; to publish takes roles/pubsub.publisher, to replay roles/pubsub.subscriber";
            push(out, Level::Warning, "hidden_resource", text, remedy);
        }
        Err(error) => {
            let remedy = "correct the endpoint or the credentials, or try again";
            push(out, Level::Error, "unreachable_resource", format!("{whose}: {error}"), remedy);
        }
    }
    false
}

fn push(out: &mut Vec<Finding>, level: Level, code: &'static str, text: String, remedy: &str) {
    out.push(Finding { level, code, table: None, text, detail: String::new(), remedy: remedy.to_owned() });
}
