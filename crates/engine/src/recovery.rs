//! Recovery: from observed facts to a decision, without any I/O.

use millstream_core::counters::SinkCounters;
use millstream_core::{Checkpoint, CommitToken, Counters, Epoch, Error, Incarnation, Result};

/// What an attempt starts from.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The epoch that begins.
    pub(crate) epoch: Epoch,
    /// The largest `__ingested_at` that may have been used by a durable epoch, µs.
    pub(crate) ingested_at_us: i64,
    /// What each sink of the config recovers to, in the config's order.
    pub(crate) sinks: Vec<SinkPlan>,
    /// Counters to go on from: those of the checkpoint, without sinks that are gone.
    pub(crate) counters: Counters,
    /// What people should know: sinks that came or went.
    pub(crate) notices: Vec<(&'static str, String)>,
}

/// What a sink recovers to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SinkPlan {
    /// Finish, or find finished, the commit of this token; drop everything after it.
    Token { epoch: Epoch, token: CommitToken },
    /// It never gave a token: drop everything of it.
    Nothing,
}

impl SinkPlan {
    pub(crate) fn token(&self) -> Option<&CommitToken> {
        match self {
            SinkPlan::Token { token, .. } => Some(token),
            SinkPlan::Nothing => None,
        }
    }
}

/// Refuses an incarnation below the checkpoint's: its events would be older than everything that is there.
///
/// # Errors
/// Fatal, with both numbers.
pub(crate) fn check_incarnation(last: Option<&Checkpoint>, now: Incarnation) -> Result<()> {
    match last.map(|checkpoint| checkpoint.incarnation) {
        Some(before) if now < before => Err(Error::fatal(format!(
            "the config says `incarnation: {}`, but the last checkpoint was made with {}: every event would be older than \
             what is there, and replicas would take none of them. Set `incarnation: {}`, or a higher one if the source's \
             positions started anew",
            now.0, before.0, before.0
        ))),
        _ => Ok(()),
    }
}

/// Decides from the last checkpoint and the sinks that the config names.
pub(crate) fn plan(last: Option<&Checkpoint>, sinks: &[String]) -> Plan {
    let Some(last) = last else {
        let sinks = sinks.iter().map(|_| SinkPlan::Nothing).collect();
        let notices = Vec::new();
        return Plan { epoch: Epoch(1), ingested_at_us: 0, sinks, counters: Counters::default(), notices };
    };
    let mut counters = last.counters.clone();
    let mut notices = Vec::new();
    counters.sinks.retain(|name, _| {
        let stays = sinks.contains(name);
        if !stays {
            notices.push((
                "sink_removed",
                format!("sink {name} is no longer in the config; its rows stay as they are"),
            ));
        }
        stays
    });
    let events = counters.events();
    let plans = sinks.iter().map(|name| {
        if !counters.sinks.contains_key(name) {
            counters.sinks.insert(name.clone(), SinkCounters { absent: events, ..SinkCounters::default() });
            if events > 0 {
                notices.push((
                    "sink_added",
                    format!("sink {name} is new: it gets events from now on, not the {events} before"),
                ));
            }
        }
        match last.sinks.iter().find(|mark| &mark.sink == name) {
            Some(mark) => SinkPlan::Token { epoch: mark.epoch, token: mark.token.clone() },
            None => SinkPlan::Nothing,
        }
    });
    let sinks = plans.collect();
    Plan { epoch: last.epoch.next(), ingested_at_us: last.ingested_at_us, sinks, counters, notices }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::TableCounters;
    use millstream_core::checkpoint::SinkMark;

    fn checkpoint(marks: &[(&str, u64)]) -> Checkpoint {
        let mut counters = Counters::default();
        counters.tables.insert("t".into(), TableCounters { events: 9, ..TableCounters::default() });
        for (name, _) in marks {
            counters.sinks.insert((*name).into(), SinkCounters { written: 9, ..SinkCounters::default() });
        }
        let marks = marks.iter().map(|&(sink, epoch)| SinkMark {
            sink: sink.into(),
            epoch: Epoch(epoch),
            token: CommitToken(vec![epoch as u8]),
        });
        Checkpoint {
            epoch: Epoch(7),
            sinks: marks.collect(),
            ingested_at_us: 70,
            counters,
            ..Checkpoint::default()
        }
    }

    /// A config whose incarnation was lowered, or forgotten in a copy, was taken as it was: everything that came then was older
    /// than what the warehouse held and was superseded, without a word.
    #[test]
    fn an_incarnation_never_goes_down() {
        let last = Checkpoint { incarnation: Incarnation(3), ..checkpoint(&[]) };
        let error = check_incarnation(Some(&last), Incarnation(2)).unwrap_err().to_string();
        assert!(error.contains("`incarnation: 2`") && error.contains("made with 3"), "{error}");
        assert!(check_incarnation(Some(&last), Incarnation(3)).is_ok());
        assert!(check_incarnation(Some(&last), Incarnation(4)).is_ok());
        assert!(check_incarnation(None, Incarnation(0)).is_ok());
    }

    #[test]
    fn every_case_of_checkpoint_and_sink() {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let first = plan(None, &names(&["a"]));
        assert_eq!((first.epoch, first.sinks), (Epoch(1), vec![SinkPlan::Nothing]));

        let last = checkpoint(&[("a", 7), ("b", 3)]);
        let same = plan(Some(&last), &names(&["a", "b"]));
        assert_eq!(same.epoch, Epoch(8));
        assert_eq!(same.ingested_at_us, 70);
        assert_eq!(same.sinks[1], SinkPlan::Token { epoch: Epoch(3), token: CommitToken(vec![3]) });
        assert!(same.notices.is_empty());

        let changed = plan(Some(&last), &names(&["b", "c"]));
        assert_eq!(changed.sinks[1], SinkPlan::Nothing);
        assert_eq!(changed.counters.sinks["c"].absent, 9);
        assert!(!changed.counters.sinks.contains_key("a"));
        assert_eq!(changed.notices.iter().map(|n| n.0).collect::<Vec<_>>(), ["sink_removed", "sink_added"]);
        assert!(changed.counters.residues().iter().all(|r| !r.contains("sink")));
    }
}
