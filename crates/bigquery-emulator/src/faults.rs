//! Faults on demand: by rates, drawn from a seed, and by script. Limits: draws happen in the order in which calls arrive,
//! so that a run repeats exactly only as far as its client does.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tonic::{Code, Status};

use crate::failure::{Failure, Reason};

/// What goes wrong. Rates are between 0 and 1; by default nothing goes wrong.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Where the draws begin.
    pub seed: u64,
    /// gRPC calls that fail with UNAVAILABLE and do nothing; of AppendRows each request counts, and the connection ends.
    pub unavailable: f64,
    /// gRPC calls that do what they should and fail with UNAVAILABLE all the same; of AppendRows the connection ends.
    pub lost_answer: f64,
    /// Responses of AppendRows after which the connection ends with UNAVAILABLE.
    pub cut: f64,
    /// Requests of AppendRows that are answered with RESOURCE_EXHAUSTED and do nothing.
    pub throttle: f64,
    /// Uses of a stream that find it expired: it is gone then, with all its rows that were not visible.
    pub expired: f64,
    /// Requests of AppendRows that wait before they are looked at.
    pub slow_append: f64,
    /// How long they wait.
    pub slow_append_millis: u64,
    /// REST calls that fail with 503 and do nothing.
    pub rest_unavailable: f64,
    /// REST calls that fail with 429 and do nothing.
    pub rest_throttle: f64,
    /// REST calls that do what they should and fail with 503 all the same.
    pub rest_lost_answer: f64,
    /// Load jobs that fail with `backendError` and write nothing.
    pub load_fails: f64,
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
            throttle: 0.0,
            expired: 0.0,
            slow_append: 0.0,
            slow_append_millis: 100,
            rest_unavailable: 0.0,
            rest_throttle: 0.0,
            rest_lost_answer: 0.0,
            load_fails: 0.0,
            deny: Vec::new(),
            script: Vec::new(),
        }
    }
}

/// A resource that is refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Denial {
    /// Its full name, such as `projects/p/datasets/d/tables/t`, or the beginning of names, followed by `*`.
    pub resource: String,
    /// `PERMISSION_DENIED`, `UNAUTHENTICATED`, or any other code.
    pub code: String,
}

/// A fault at certain calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The method: `AppendRows` (each request), `FlushRows` and so on, or a REST one such as `jobs.query` or `tables.patch`.
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
    /// Of AppendRows: the connection ends with UNAVAILABLE after this many more responses.
    Cut(u64),
}

impl Faults {
    /// Reads `cut=0.001,deny=projects/p/datasets/d*:PERMISSION_DENIED,script=FlushRows@3*2:UNAVAILABLE` or JSON.
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
                "slow_append_millis" => faults.slow_append_millis = number()?,
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
            "throttle" => Some(&mut self.throttle),
            "expired" => Some(&mut self.expired),
            "slow_append" => Some(&mut self.slow_append),
            "rest_unavailable" => Some(&mut self.rest_unavailable),
            "rest_throttle" => Some(&mut self.rest_throttle),
            "rest_lost_answer" => Some(&mut self.rest_lost_answer),
            "load_fails" => Some(&mut self.load_fails),
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

const RATES: [&str; 10] = [
    "unavailable",
    "lost_answer",
    "cut",
    "throttle",
    "expired",
    "slow_append",
    "rest_unavailable",
    "rest_throttle",
    "rest_lost_answer",
    "load_fails",
];

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

    /// A call begins: fails it, or says after how many responses its connection ends.
    pub(crate) fn call(&self, method: &'static str, resources: &[&str]) -> Result<Option<u64>, Status> {
        let failure = |code, message: String| {
            self.hits.fetch_add(1, Ordering::Relaxed);
            Err(Status::new(code, message))
        };
        let at = |resource: &&&str, name: &str| match name.strip_suffix('*') {
            Some(beginning) => resource.starts_with(beginning),
            None => **resource == name,
        };
        for denial in &self.faults.deny {
            if let Some(resource) = resources.iter().find(|resource| at(resource, &denial.resource)) {
                let code = code(&denial.code).unwrap_or(Code::PermissionDenied);
                return failure(code, format!("Access Denied: {resource}: User does not have permission."));
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
        Ok(cut)
    }

    /// The answer of a call that did what it should.
    pub(crate) fn answer<T>(&self, answer: T) -> Result<T, Status> {
        if self.happens(self.faults.lost_answer) {
            return Err(Status::unavailable("The connection was lost before the answer."));
        }
        Ok(answer)
    }

    /// Waits as long as a slow append does.
    pub(crate) async fn slow_append(&self) {
        if self.happens(self.faults.slow_append) {
            tokio::time::sleep(Duration::from_millis(self.faults.slow_append_millis)).await;
        }
    }

    /// Fails a gRPC call before it does anything.
    pub(crate) fn grpc(&self, method: &'static str, resources: &[&str]) -> Result<Option<u64>, Status> {
        let cut = self.call(method, resources)?;
        if self.happens(self.faults.unavailable) {
            return Err(Status::unavailable("The service is currently unavailable."));
        }
        Ok(cut)
    }

    /// Fails a REST call before it does anything.
    pub(crate) fn rest(&self, method: &'static str, resources: &[&str]) -> Result<(), Failure> {
        if let Err(status) = self.call(method, resources) {
            let reason = match status.code() {
                Code::PermissionDenied | Code::Unauthenticated => Reason::AccessDenied,
                Code::ResourceExhausted => Reason::RateLimitExceeded,
                Code::NotFound => Reason::NotFound,
                Code::AlreadyExists => Reason::Duplicate,
                Code::Internal => Reason::InternalError,
                Code::Unavailable => Reason::BackendError,
                _ => Reason::Invalid,
            };
            return Err(Failure::new(reason, status.message()));
        }
        if self.happens(self.faults.rest_unavailable) {
            return Err(Failure::new(Reason::BackendError, "The service is currently unavailable."));
        }
        if self.happens(self.faults.rest_throttle) {
            let message =
                "Exceeded rate limits: too many api requests per user per method for this user_method";
            return Err(Failure::new(Reason::RateLimitExceeded, message));
        }
        Ok(())
    }

    /// Whether a load job fails.
    pub(crate) fn load_fails(&self) -> bool {
        self.happens(self.faults.load_fails)
    }

    /// Fails a REST call that did what it should.
    pub(crate) fn rest_answer<T>(&self, answer: T) -> Result<T, Failure> {
        if self.happens(self.faults.rest_lost_answer) {
            return Err(Failure::new(Reason::BackendError, "The connection was lost before the answer."));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_inline_and_from_json() {
        let inline: Faults =
            "seed=7,throttle=0.25,deny=projects/p/datasets/d*:UNAUTHENTICATED,script=FlushRows@3*2:ABORTED,\
                              script=AppendRows@1:cut:100"
                .parse()
                .unwrap();
        let json: Faults = r#"{"seed": 7, "throttle": 0.25,
            "deny": [{"resource": "projects/p/datasets/d*", "code": "UNAUTHENTICATED"}],
            "script": [{"method": "FlushRows", "call": 3, "times": 2, "action": {"fail": "ABORTED"}},
                       {"method": "AppendRows", "call": 1, "action": {"cut": 100}}]}"#
            .parse()
            .unwrap();
        assert_eq!(inline, json);
        for wrong in [
            "cut",
            "cut=x",
            "cut=2",
            "cutt=0.1",
            "deny=x:NO",
            "script=FlushRows:X",
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
        let dice = Dice::new("script=FlushRows@2*2:ABORTED,script=AppendRows@1:cut:5".parse().unwrap());
        let codes: Vec<_> =
            (0..4).map(|_| dice.call("FlushRows", &[]).err().map(|status| status.code())).collect();
        assert_eq!(codes, [None, Some(Code::Aborted), Some(Code::Aborted), None]);
        assert_eq!(dice.call("AppendRows", &[]).unwrap(), Some(5));
        assert_eq!(dice.call("AppendRows", &[]).unwrap(), None);
    }
}
