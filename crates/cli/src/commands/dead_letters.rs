//! `dead-letters list`, `show` and `replay`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use millstream_core::{Counters, Store};
use millstream_engine::{Clock, SystemClock};
use millstream_state::LocalStore;
use serde_json::{Value, json};

use super::{Failure, plan, run};
use crate::arguments::{DeadLetters, Letters, OnConfig, Replay};
use crate::control::{self, LETTERS_PER_REQUEST, Request};
use crate::dead_letters::{Desk, Letter, LetterId, letters, replayed};
use crate::output::{Table, count, plural, print, print_json};
use crate::plan::Plan;
use crate::report;
use crate::world::PlanWorld;

/// Letters that `show` prints when none is named.
const SHOWN: usize = 10;

/// Does one of the three.
pub(crate) fn command(command: &DeadLetters) -> Result<(), Failure> {
    match command {
        DeadLetters::List(on) => list(on),
        DeadLetters::Show(letters) => show(letters),
        DeadLetters::Replay(replay) => self::replay(replay),
    }
}

/// A group's counts.
#[derive(Debug, Default)]
struct Group {
    letters: u64,
    replayed: u64,
    first: String,
    last: String,
    example: String,
}

fn list(on: &OnConfig) -> Result<(), Failure> {
    let plan = plan(&on.config)?;
    let replayed = replayed(&plan.dead_letters);
    let mut groups: BTreeMap<(String, String, String, String), Group> = BTreeMap::new();
    for letter in letters(&plan.dead_letters)? {
        let letter = letter?;
        let was_replayed = letter
            .letter_id()
            .is_some_and(|id| replayed.get(id.stage.name()).is_some_and(|ranges| ranges.contains(id.number)));
        let key = (letter.stage, letter.code, letter.table.unwrap_or_default(), letter.partition);
        let group = groups.entry(key).or_default();
        if group.letters == 0 {
            group.first.clone_from(&letter.time);
            group.example = letter.id;
        }
        group.last = letter.time;
        group.letters += 1;
        group.replayed += u64::from(was_replayed);
    }
    if on.json {
        let list: Vec<Value> = groups
            .into_iter()
            .map(|((stage, code, table, partition), g)| {
                json!({
                    "stage": stage, "code": code, "table": Some(table).filter(|t| !t.is_empty()), "partition": partition,
                    "letters": g.letters, "replayed": g.replayed, "first": g.first, "last": g.last, "example": g.example,
                })
            })
            .collect();
        print_json(&Value::Array(list));
        return Ok(());
    }
    if groups.is_empty() {
        let topic = plan.letter_topic.as_ref().map(|topic| format!("; letters go to {}", topic.topic));
        print(&format!("no dead letters in {}{}\n", plan.dead_letters.display(), topic.unwrap_or_default()));
        return Ok(());
    }
    let mut table = Table::new(["letters", "replayed", "stage", "cause", "table", "from", "example"]);
    for ((stage, code, name, partition), g) in groups {
        // Behind the path stands what tells the file from others that had it.
        let file = partition.split('#').next().unwrap_or_default().to_owned();
        table.row([count(g.letters), count(g.replayed), stage, code, name, file, g.example]);
    }
    print(&table.render(0));
    Ok(())
}

fn show(arguments: &Letters) -> Result<(), Failure> {
    let plan = plan(&arguments.on.config)?;
    let wanted = parse(&arguments.ids)?;
    let mut found: VecDeque<Letter> = VecDeque::new();
    for letter in letters(&plan.dead_letters)? {
        let letter = letter?;
        if wanted.is_empty() {
            if found.len() == SHOWN {
                found.pop_front();
            }
            found.push_back(letter);
        } else if letter.letter_id().is_some_and(|id| wanted.contains(&id)) {
            found.push_back(letter);
        }
    }
    if let Some(missing) =
        wanted.iter().find(|id| !found.iter().any(|letter| letter.letter_id() == Some(**id)))
    {
        return Err(no_letter(&plan, missing));
    }
    for letter in found {
        let value = serde_json::to_value(&letter)
            .map_err(|e| Failure::Failed(format!("cannot show a letter: {e}")))?;
        print(&if arguments.on.json { format!("{value}\n") } else { format!("{value:#}\n") });
    }
    Ok(())
}

fn replay(arguments: &Replay) -> Result<(), Failure> {
    let plan = Arc::new(plan(&arguments.on.config)?);
    let chosen = choose(&plan, arguments)?;
    let ids: Vec<LetterId> = chosen.to_replay;
    if chosen.sinkless > 0 {
        tracing::warn!(
            "{} left out: the sink that refused the row is not in the config (any more)",
            plural(chosen.sinkless, "letter")
        );
    }
    let topic_before_ms = topic_before_ms(&plan, arguments);
    let asked = Asked { letters: ids.len() as u64, topic: topic_before_ms.is_some() };
    if asked.is_nothing() {
        finish(arguments, &plan, &asked, None);
        return Ok(());
    }
    if ask_the_running(&plan, &ids, topic_before_ms)? {
        finish(arguments, &plan, &asked, None);
        return Ok(());
    }
    let before = dead_so_far(&plan)?;
    let desk = Arc::new(Desk::new(&plan.dead_letters));
    desk.ask(ids);
    if let Some(before_ms) = topic_before_ms {
        desk.ask_topic(before_ms);
    }
    let world = PlanWorld::of_desk(plan.clone(), desk.clone())?;
    let ended = run::drive(&plan, world, desk, run::Until::default())?;
    let failed = letters_of(&ended.summary.status.counters).saturating_sub(before);
    finish(arguments, &plan, &asked, Some((&ended, failed)));
    ended.verdict()
}

/// Asks the pipeline, if it runs; false if it does not.
fn ask_the_running(plan: &Plan, ids: &[LetterId], topic_before_ms: Option<i64>) -> Result<bool, Failure> {
    let ask = |letters: &[LetterId], topic_before_ms| {
        let letters = letters.iter().map(ToString::to_string).collect();
        let request = Request::Replay { letters, topic_before_ms };
        Ok::<_, Failure>(control::ask(&plan.checkpoint.directory, &request)?.is_some())
    };
    let (first, rest) = ids.split_at(ids.len().min(LETTERS_PER_REQUEST));
    if !ask(first, topic_before_ms)? {
        return Ok(false);
    }
    for letters in rest.chunks(LETTERS_PER_REQUEST) {
        if !ask(letters, None)? {
            let text = "the pipeline ended before it was asked for all letters: replay the rest by calling this again";
            return Err(Failure::Failed(text.to_owned()));
        }
    }
    Ok(true)
}

/// What a replay was asked for: letters of the folder, and whether all of the topic's.
struct Asked {
    letters: u64,
    topic: bool,
}

impl Asked {
    fn is_nothing(&self) -> bool {
        self.letters == 0 && !self.topic
    }
}

/// How many letters were made: of records, and of rows that a sink refused.
fn letters_of(counters: &Counters) -> u64 {
    let refused: u64 = counters.sinks.values().map(|sink| sink.rejected).sum();
    counters.dead.values().sum::<u64>() + refused
}

/// Letters that were made up to the last checkpoint.
fn dead_so_far(plan: &Plan) -> Result<u64, Failure> {
    let directory = &plan.checkpoint.directory;
    if !LocalStore::exists(directory) {
        return Ok(0);
    }
    let mut store = LocalStore::open(directory, millstream_state::Options::default())?;
    let last = run::runtime(plan)?.block_on(store.latest())?;
    Ok(last.map_or(0, |last| letters_of(&last.counters)))
}

/// Of the topic's letters, those until now are taken, all of them: messages cannot be chosen.
fn topic_before_ms(plan: &Plan, arguments: &Replay) -> Option<i64> {
    let topic = plan.letter_topic.as_ref()?;
    if topic.subscription.is_none() {
        tracing::warn!(
            "letters of {} cannot be replayed: `dead_letters.subscription` names no subscription to it",
            topic.topic
        );
        return None;
    }
    let chooses = !arguments.ids.is_empty() || arguments.cause.is_some() || arguments.table.is_some();
    if chooses {
        tracing::warn!(
            "letters of {} are left out: ids, --cause and --table choose among those of the folder",
            topic.topic
        );
        return None;
    }
    i64::try_from(SystemClock.now().as_millis()).ok()
}

fn finish(arguments: &Replay, plan: &Plan, asked: &Asked, ended: Option<(&run::Ended, u64)>) {
    // What a running pipeline does of it is seen in its status.
    let replayed = match ended {
        Some((ended, _)) => Some(ended.summary.status.records_in),
        None => asked.is_nothing().then_some(0),
    };
    if arguments.on.json {
        let summary = ended.map(|(ended, _)| report::summary_json(&plan.pipeline, &ended.summary));
        print_json(&json!({
            "asked": asked.letters,
            "asked_topic": asked.topic,
            "replayed": replayed,
            "failed_again": ended.map(|(_, failed)| failed),
            "by_running_pipeline": !asked.is_nothing() && ended.is_none(),
            "summary": summary,
        }));
        return;
    }
    match ended {
        None if asked.is_nothing() => print("there is nothing to replay\n"),
        None => {
            let topic = if asked.topic { ", and those of the topic" } else { "" };
            let letters = plural(asked.letters, "letter");
            print(&format!("the running pipeline was asked to replay {letters}{topic}\n"));
        }
        Some((ended, failed)) => {
            let replayed = plural(replayed.unwrap_or_default(), "letter");
            print(&format!("replayed {replayed}; {} failed again\n\n", count(failed)));
            print(&report::summary_text(&plan.pipeline, &ended.summary));
        }
    }
}

/// The letters that a replay is to send.
struct Chosen {
    to_replay: Vec<LetterId>,
    /// Matching letters for a sink that is not in the config.
    sinkless: u64,
}

fn choose(plan: &Plan, arguments: &Replay) -> Result<Chosen, Failure> {
    let wanted = parse(&arguments.ids)?;
    let replayed = replayed(&plan.dead_letters);
    let mut unseen: BTreeSet<LetterId> = wanted.iter().copied().collect();
    let mut chosen = Chosen { to_replay: Vec::new(), sinkless: 0 };
    for letter in letters(&plan.dead_letters)? {
        let letter = letter?;
        let Some(id) = letter.letter_id() else { continue };
        unseen.remove(&id);
        let matches = (wanted.is_empty() || wanted.contains(&id))
            && arguments.cause.as_ref().is_none_or(|code| *code == letter.code)
            && (arguments.table.is_none() || arguments.table == letter.table)
            && !replayed.get(id.stage.name()).is_some_and(|ranges| ranges.contains(id.number));
        match (matches, letter.has_taker(|sink| plan.sinks.iter().any(|s| s.name == sink))) {
            (false, _) => {}
            (true, false) => chosen.sinkless += 1,
            (true, true) => chosen.to_replay.push(id),
        }
    }
    match unseen.first() {
        Some(missing) => Err(no_letter(plan, missing)),
        None => Ok(chosen),
    }
}

fn no_letter(plan: &Plan, id: &LetterId) -> Failure {
    Failure::Failed(format!("there is no letter {id} in {}", plan.dead_letters.display()))
}

fn parse(ids: &[String]) -> Result<Vec<LetterId>, Failure> {
    ids.iter().map(|id| id.parse().map_err(Failure::Usage)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some 75,000 letters were one request, longer than a running pipeline takes: "not a request: EOF while parsing a string".
    #[test]
    fn a_request_for_many_letters_is_not_too_long() {
        let id = LetterId { stage: millstream_core::Stage::Validate, number: u64::MAX };
        let letters = vec![id.to_string(); LETTERS_PER_REQUEST];
        let request = Request::Replay { letters, topic_before_ms: Some(i64::MAX) };
        assert!((serde_json::to_vec(&request).unwrap().len() as u64) < control::REQUEST_BYTES_MAX);
    }
}
