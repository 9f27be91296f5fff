//! Faults on demand: by rates, drawn from a seed, and by script. Limits: draws happen in the order in which calls arrive,
//! so that a run repeats exactly only as far as its client does.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tonic::{Code, Status};

/// What goes wrong. Rates are between 0 and 1; by default nothing goes wrong.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Where the draws begin.
    pub seed: u64,
    /// Calls, and streams on opening, that fail with UNAVAILABLE and do nothing.
    pub unavailable: f64,
    /// Publish, Pull, Acknowledge and ModifyAckDeadline that do what they should and fail with UNAVAILABLE all the same.
    pub lost_answer: f64,
    /// Responses of a stream after which it ends with UNAVAILABLE.
    pub cut: f64,
    /// Deliveries that come a second time at once, also while the first is outstanding; not with exactly-once delivery, and of an
    /// ordered key only first ones.
    pub duplicate: f64,
    /// Responses whose messages are shuffled; those with an ordering key stay where they are on an ordered subscription.
    pub reorder: f64,
    /// Acks that are accepted and forgotten.
    pub lost_ack: f64,
    /// Requests with acks or deadlines that wait before they count.
    pub slow_ack: f64,
    /// How long they wait.
    pub slow_ack_millis: u64,
    /// Deliveries whose lease ends almost at once, whatever deadline was asked for; of an ordered key only first ones.
    pub early_expiry: f64,
    /// Resources that are refused.
    pub deny: Vec<Denial>,
    /// Faults at certain calls.
    pub script: Vec<Step>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            seed: 0,
            unavailable: 0.0,
            lost_answer: 0.0,
            cut: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            lost_ack: 0.0,
            slow_ack: 0.0,
            slow_ack_millis: 100,
            early_expiry: 0.0,
            deny: Vec::new(),
            script: Vec::new(),
        }
    }
}

/// A resource that is refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Denial {
    /// Its full name, or the beginning of names, followed by `*`.
    pub resource: String,
    /// `PERMISSION_DENIED`, `UNAUTHENTICATED`, or any other code.
    pub code: String,
}

/// A fault at certain calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The method, such as `Publish` or `StreamingPull`.
    pub method: String,
    /// At which of its calls, counted from 1 since the faults were set.
    pub call: u64,
    /// For how many calls.
    #[serde(default = "once")]
    pub times: u64,
    /// What happens.
    pub action: Action,
}

fn once() -> u64 {
    1
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call fails with this code, such as `UNAVAILABLE`, and does nothing.
    Fail(String),
    /// The stream ends with UNAVAILABLE after this many messages.
    Cut(u64),
}

impl Faults {
    /// Reads `duplicate=0.01,cut=0.001,deny=projects/p/topics/t:PERMISSION_DENIED,script=Publish@3*2:UNAVAILABLE` or JSON.
    fn read(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            let faults: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
            return faults.checked();
        }
        let mut faults = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not NAME=VALUE"))?;
            let number =
                || value.parse::<u64>().map_err(|_| format!("{name}: `{value}` is not a whole number"));
            match name {
                "seed" => faults.seed = number()?,
                "slow_ack_millis" => faults.slow_ack_millis = number()?,
                "deny" => {
                    let (resource, code) =
                        value.rsplit_once(':').ok_or_else(|| format!("deny: `{value}` is not NAME:CODE"))?;
                    faults.deny.push(Denial { resource: resource.to_owned(), code: code.to_owned() });
                }
                "script" => faults.script.push(step(value)?),
                _ => {
                    let rate = faults.rate(name).ok_or_else(|| {
                        format!("there is no fault `{name}`; there are {}", RATES.join(", "))
                    })?;
                    *rate = value.parse().map_err(|_| format!("{name}: `{value}` is not a number"))?;
                }
            }
        }
        faults.checked()
    }

    fn rate(&mut self, name: &str) -> Option<&mut f64> {
        match name {
            "unavailable" => Some(&mut self.unavailable),
            "lost_answer" => Some(&mut self.lost_answer),
            "cut" => Some(&mut self.cut),
            "duplicate" => Some(&mut self.duplicate),
            "reorder" => Some(&mut self.reorder),
            "lost_ack" => Some(&mut self.lost_ack),
            "slow_ack" => Some(&mut self.slow_ack),
            "early_expiry" => Some(&mut self.early_expiry),
            _ => None,
        }
    }

    fn checked(mut self) -> Result<Self, String> {
        for name in RATES {
            if let Some(rate) = self.rate(name).filter(|rate| !(0.0..=1.0).contains(*rate)) {
                return Err(format!("{name}: {rate} is not between 0 and 1"));
            }
        }
        let codes =
            self.deny.iter().map(|denial| &denial.code).chain(self.script.iter().filter_map(|step| {
                match &step.action {
                    Action::Fail(code) => Some(code),
                    Action::Cut(_) => None,
                }
            }));
        match codes.into_iter().find(|name| code(name).is_none()) {
            Some(unknown) => Err(format!("`{unknown}` is no gRPC code, such as PERMISSION_DENIED")),
            None => Ok(self),
        }
    }
}

const RATES: [&str; 8] =
    ["unavailable", "lost_answer", "cut", "duplicate", "reorder", "lost_ack", "slow_ack", "early_expiry"];

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text)
    }
}

/// `Publish@3*2:UNAVAILABLE`, `StreamingPull@1:cut:100`.
fn step(text: &str) -> Result<Step, String> {
    let wrong =
        || format!("script: `{text}` is not METHOD@CALL[*TIMES]:CODE or METHOD@CALL[*TIMES]:cut:MESSAGES");
    let (method, rest) = text.split_once('@').ok_or_else(wrong)?;
    let (calls, action) = rest.split_once(':').ok_or_else(wrong)?;
    let (call, times) = calls.split_once('*').unwrap_or((calls, "1"));
    let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
    let action = match action.strip_prefix("cut:") {
        Some(messages) => Action::Cut(number(messages)?),
        None => Action::Fail(action.to_owned()),
    };
    Ok(Step { method: method.to_owned(), call: number(call)?, times: number(times)?, action })
}

/// The code of a name such as `PERMISSION_DENIED`.
fn code(name: &str) -> Option<Code> {
    Some(match name {
        "CANCELLED" => Code::Cancelled,
        "UNKNOWN" => Code::Unknown,
        "INVALID_ARGUMENT" => Code::InvalidArgument,
        "DEADLINE_EXCEEDED" => Code::DeadlineExceeded,
        "NOT_FOUND" => Code::NotFound,
        "ALREADY_EXISTS" => Code::AlreadyExists,
        "PERMISSION_DENIED" => Code::PermissionDenied,
        "RESOURCE_EXHAUSTED" => Code::ResourceExhausted,
        "FAILED_PRECONDITION" => Code::FailedPrecondition,
        "ABORTED" => Code::Aborted,
        "OUT_OF_RANGE" => Code::OutOfRange,
        "UNIMPLEMENTED" => Code::Unimplemented,
        "INTERNAL" => Code::Internal,
        "UNAVAILABLE" => Code::Unavailable,
        "DATA_LOSS" => Code::DataLoss,
        "UNAUTHENTICATED" => Code::Unauthenticated,
        _ => return None,
    })
}

/// Faults at work.
#[derive(Debug, Default)]
pub(crate) struct Dice {
    pub(crate) faults: Faults,
    draws: AtomicU64,
    calls: Mutex<HashMap<&'static str, u64>>,
    /// How often something was made to go wrong.
    pub(crate) hits: AtomicU64,
}

impl Dice {
    /// Starts anew with these faults.
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    fn draw(&self) -> u64 {
        let n = self.draws.fetch_add(1, Ordering::Relaxed);
        // SplitMix64.
        let mut x = self.faults.seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Whether something of this rate happens now.
    pub(crate) fn happens(&self, rate: f64) -> bool {
        let happens = rate > 0.0 && ((self.draw() >> 11) as f64) < rate * (1u64 << 53) as f64;
        if happens {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        happens
    }

    /// A number below `limit`.
    pub(crate) fn below(&self, limit: usize) -> usize {
        (self.draw() % limit.max(1) as u64) as usize
    }

    /// A call begins: fails it, or says after how many messages its stream ends.
    pub(crate) fn call(&self, method: &'static str, resources: &[&str]) -> Result<Option<u64>, Status> {
        let failure = |code, message: String| {
            self.hits.fetch_add(1, Ordering::Relaxed);
            Err(Status::new(code, message))
        };
        for denial in &self.faults.deny {
            let named = |resource: &&&str| match denial.resource.strip_suffix('*') {
                Some(beginning) => resource.starts_with(beginning),
                None => **resource == denial.resource,
            };
            if let Some(resource) = resources.iter().find(named) {
                let code = code(&denial.code).unwrap_or(Code::PermissionDenied);
                let id = super::names::id(resource);
                return failure(code, format!("User not authorized to perform this action (resource={id})."));
            }
        }
        let mut cut = None;
        if !self.faults.script.is_empty() {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let call = calls.entry(method).or_default();
            *call += 1;
            let now = |step: &&Step| {
                step.method == method && (0..step.times).contains(&call.wrapping_sub(step.call))
            };
            match self.faults.script.iter().find(now).map(|step| &step.action) {
                Some(Action::Fail(name)) => {
                    let code = code(name).unwrap_or(Code::Unavailable);
                    return failure(code, format!("A scripted fault: call {call} of {method}."));
                }
                Some(Action::Cut(messages)) => cut = Some(*messages),
                None => {}
            }
        }
        if self.happens(self.faults.unavailable) {
            return Err(Status::unavailable(
                "The service was unable to fulfill your request. Please try again.",
            ));
        }
        Ok(cut)
    }

    /// The answer of a call that did what it should.
    pub(crate) fn answer<T>(&self, answer: T) -> Result<T, Status> {
        if self.happens(self.faults.lost_answer) {
            return Err(Status::unavailable("The connection was lost before the answer."));
        }
        Ok(answer)
    }

    /// Waits as long as a slow ack does.
    pub(crate) async fn slow_ack(&self) {
        if self.happens(self.faults.slow_ack) {
            tokio::time::sleep(Duration::from_millis(self.faults.slow_ack_millis)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_inline_and_from_json() {
        let inline: Faults =
            "seed=7,duplicate=0.25,deny=projects/p/*:UNAUTHENTICATED,script=Publish@3*2:ABORTED,\
                              script=StreamingPull@1:cut:100"
                .parse()
                .unwrap();
        let json: Faults = r#"{"seed": 7, "duplicate": 0.25,
            "deny": [{"resource": "projects/p/*", "code": "UNAUTHENTICATED"}],
            "script": [{"method": "Publish", "call": 3, "times": 2, "action": {"fail": "ABORTED"}},
                       {"method": "StreamingPull", "call": 1, "action": {"cut": 100}}]}"#
            .parse()
            .unwrap();
        assert_eq!(inline, json);
        for wrong in [
            "cut",
            "cut=x",
            "cut=2",
            "cutt=0.1",
            "deny=x:NO",
            "script=Publish:X",
            "{\"cut\": 3}",
            "{\"x\": 1}",
        ] {
            assert!(wrong.parse::<Faults>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn draws_repeat_and_keep_their_rate() {
        let draws = |seed| {
            let dice = Dice::new(Faults { seed, ..Faults::default() });
            (0..10_000).map(|_| dice.happens(0.1)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        let hits = draws(3).into_iter().filter(|hit| *hit).count();
        assert!((900..1100).contains(&hits), "{hits}");
    }

    #[test]
    fn scripts_count_calls() {
        let dice = Dice::new("script=Publish@2*2:ABORTED,script=StreamingPull@1:cut:5".parse().unwrap());
        let codes: Vec<_> =
            (0..4).map(|_| dice.call("Publish", &[]).err().map(|status| status.code())).collect();
        assert_eq!(codes, [None, Some(Code::Aborted), Some(Code::Aborted), None]);
        assert_eq!(dice.call("StreamingPull", &[]).unwrap(), Some(5));
        assert_eq!(dice.call("StreamingPull", &[]).unwrap(), None);
    }
}
