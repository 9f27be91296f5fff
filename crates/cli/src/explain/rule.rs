//! By which rule an event of a key was decided.

use millstream_core::Order;
use serde::{Deserialize, Serialize};

use super::KeyEvent;

/// The rule that decided an event. Orders are compared, never times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub(crate) enum Rule {
    /// Newer than everything the key has: it is the current row.
    Newest,
    /// Newer than everything the key has, and a delete: there is no row.
    Deleted,
    /// Was applied when it came, and replaced by the event of this order.
    Replaced { by: String },
    /// Something newer had come before it: kept in histories, not applied to replicas.
    Late { behind: String },
    /// Below the table's newest truncate, or sweep.
    Truncated { by: String },
}

impl Rule {
    /// For people.
    pub(crate) fn text(&self) -> String {
        match self {
            Rule::Newest => "newest: the current row".to_owned(),
            Rule::Deleted => "newest: a delete, so there is no row".to_owned(),
            Rule::Replaced { by } => format!("was newest when it came; replaced by {by}"),
            Rule::Late { behind } => format!("came after {behind}, which is newer: kept in the history only"),
            Rule::Truncated { by } => match swept(by) {
                Some(incarnation) => {
                    format!("gone with the sweep of what was before incarnation {incarnation}")
                }
                None => format!("gone with the truncate {by}"),
            },
        }
    }
}

/// The incarnation of a sweep's order; `None` for a truncate's.
pub(crate) fn swept(order: &str) -> Option<u64> {
    match Order::parse_hex(order)?.sections() {
        [incarnation] => Some(*incarnation),
        _ => None,
    }
}

/// Decides the rule of each event; `events` are in the order of `order`, and `ingested_at` tells their arrival.
pub(super) fn decide(events: &mut [KeyEvent], truncated: Option<&Order>) {
    let truncated = truncated.map(ToString::to_string);
    // A sweep comes behind the snapshot, which had replaced the rows that it read.
    let is_sweep = truncated.as_deref().and_then(swept).is_some();
    for index in 0..events.len() {
        let event = &events[index];
        let later = &events[index + 1..];
        let overtaken = later
            .iter()
            .filter(|other| other.ingested_at < event.ingested_at)
            .max_by_key(|other| &other.order);
        let rule = match (&truncated, overtaken, later.first()) {
            (Some(by), ..)
                if event.order <= *by && later.first().is_none_or(|next| next.order > *by && !is_sweep) =>
            {
                Rule::Truncated { by: by.clone() }
            }
            (_, Some(newer), _) => Rule::Late { behind: newer.order.clone() },
            (_, None, Some(next)) => Rule::Replaced { by: next.order.clone() },
            (_, None, None) if event.op == "d" => Rule::Deleted,
            (_, None, None) => Rule::Newest,
        };
        events[index].rule = rule;
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::Incarnation;

    use super::*;

    fn event(order: u64, at: &str, op: &str) -> KeyEvent {
        KeyEvent {
            order: Order::postgres(Incarnation(0), 1, order).to_string(),
            op: op.to_owned(),
            source_ts_ms: None,
            ingested_at: at.to_owned(),
            unchanged: Vec::new(),
            row: serde_json::Value::Null,
            rule: Rule::Newest,
        }
    }

    #[test]
    fn rules_follow_order_and_arrival() {
        let order = |n| Order::postgres(Incarnation(0), 1, n);
        let mut events = [
            event(1, "01", "c"),
            event(2, "01", "u"),
            event(3, "05", "u"),
            event(4, "03", "u"),
            event(5, "06", "d"),
        ];
        decide(&mut events, Some(&order(1)));
        assert_eq!(events[0].rule, Rule::Truncated { by: order(1).to_string() });
        assert_eq!(events[1].rule, Rule::Replaced { by: order(3).to_string() });
        assert_eq!(events[2].rule, Rule::Late { behind: order(4).to_string() });
        assert_eq!(events[3].rule, Rule::Replaced { by: order(5).to_string() });
        assert_eq!(events[4].rule, Rule::Deleted);
    }

    #[test]
    fn a_sweep_took_what_no_snapshot_replaced() {
        let sweep = Order::start(Incarnation(1));
        let mut gone = [event(1, "01", "c"), event(2, "01", "u")];
        decide(&mut gone, Some(&sweep));
        assert_eq!(gone[1].rule, Rule::Truncated { by: sweep.to_string() });
        assert_eq!(gone[1].rule.text(), "gone with the sweep of what was before incarnation 1");
        let read = Order::postgres_read(Incarnation(1), 9, 9).to_string();
        let mut read_again = [event(1, "01", "c"), KeyEvent { order: read.clone(), ..event(0, "02", "r") }];
        decide(&mut read_again, Some(&sweep));
        assert_eq!(read_again[0].rule, Rule::Replaced { by: read });
        assert_eq!(read_again[1].rule, Rule::Newest);
    }
}
