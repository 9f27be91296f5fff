//! The REST API, version 2.

mod cells;
mod datasets;
mod jobs;
mod loads;
mod tables;
mod transfers;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::failure::{Failure, Reason};
use crate::warehouse::Warehouse;

/// Bodies beyond this are refused.
const BODY_MAX: usize = 64 << 20;

/// A call.
pub(crate) struct Call<'a> {
    pub(crate) warehouse: &'a Warehouse,
    pub(crate) query: HashMap<String, String>,
    pub(crate) body: Value,
    pub(crate) if_match: Option<String>,
}

impl Call<'_> {
    /// A parameter.
    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A parameter that says yes or no.
    fn flag(&self, name: &str) -> bool {
        self.parameter(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// A parameter that is a number.
    fn number(&self, name: &str) -> Result<Option<usize>, Failure> {
        let parse = |value: &str| {
            value.parse().map_err(|_| Failure::invalid(format!("Invalid value for {name}: {value}")))
        };
        self.parameter(name).map(parse).transpose()
    }

    /// Lets something go wrong, if it is its turn, and says what is called.
    fn begin(&self, method: &'static str, resource: &str) -> Result<(), Failure> {
        self.warehouse.dice().rest(method, &[resource])
    }

    /// A page of a list: its items, and the token of the next page.
    fn page(&self, items: Vec<Value>) -> Result<(Vec<Value>, Option<String>), Failure> {
        let start = self.number("pageToken")?.unwrap_or(0);
        let most = self.number("maxResults")?.filter(|n| *n > 0).unwrap_or(1_000);
        let next = (start.saturating_add(most) < items.len()).then(|| (start + most).to_string());
        Ok((items.into_iter().skip(start).take(most).collect(), next))
    }

    /// Refuses a change of a resource that has changed since it was read.
    fn check_etag(&self, etag: &str) -> Result<(), Failure> {
        match &self.if_match {
            Some(wanted) if wanted != etag && wanted != "*" => {
                Err(Failure::new(Reason::PreconditionFailed, "Precondition check failed."))
            }
            _ => Ok(()),
        }
    }
}

/// The service.
pub(crate) fn router(warehouse: Arc<Warehouse>) -> Router {
    Router::new().fallback(answer).layer(DefaultBodyLimit::max(BODY_MAX)).with_state(warehouse)
}

async fn answer(
    State(warehouse): State<Arc<Warehouse>>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    let if_match = headers.get(header::IF_MATCH).and_then(|v| v.to_str().ok()).map(str::to_owned);
    beside(move || {
        let body = match body.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&body)
                .map_err(|e| Failure::invalid(format!("Invalid JSON payload received. {e}")))?,
        };
        let call = Call { warehouse: &warehouse, query, body, if_match };
        let done = route(&call, &method, &path)?;
        Ok(match warehouse.dice().rest_answer(done)? {
            Value::Null => StatusCode::NO_CONTENT.into_response(),
            value => json_response(value),
        })
    })
    .await
}

/// Answers a call by work that may take the processor, and wait for the database or for files.
pub(crate) async fn beside(work: impl FnOnce() -> Result<Response, Failure> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(answered) => answered.unwrap_or_else(IntoResponse::into_response),
        Err(e) => Failure::new(Reason::InternalError, e.to_string()).into_response(),
    }
}

pub(crate) fn json_response(value: Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json; charset=UTF-8")], value.to_string()).into_response()
}

fn route(call: &Call<'_>, method: &Method, path: &str) -> Result<Value, Failure> {
    let rest = ["/bigquery/v2", "/v1"].iter().find_map(|base| path.strip_prefix(base)).unwrap_or(path);
    let parts = rest.split('/').filter(|part| !part.is_empty()).map(decoded).collect::<Vec<_>>();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (method.as_str(), parts.as_slice()) {
        ("GET", ["projects", p, "datasets"]) => datasets::list(call, p),
        ("POST", ["projects", p, "datasets"]) => datasets::insert(call, p),
        ("GET", ["projects", p, "datasets", d]) => datasets::get(call, p, d),
        ("PATCH", ["projects", p, "datasets", d]) => datasets::change(call, p, d, true),
        ("PUT", ["projects", p, "datasets", d]) => datasets::change(call, p, d, false),
        ("DELETE", ["projects", p, "datasets", d]) => datasets::delete(call, p, d),
        ("GET", ["projects", p, "datasets", d, "tables"]) => tables::list(call, p, d),
        ("POST", ["projects", p, "datasets", d, "tables"]) => tables::insert(call, p, d),
        ("GET", ["projects", p, "datasets", d, "tables", t]) => tables::get(call, &tables::id(p, d, t)),
        ("PATCH", ["projects", p, "datasets", d, "tables", t]) => {
            tables::change(call, &tables::id(p, d, t), true)
        }
        ("PUT", ["projects", p, "datasets", d, "tables", t]) => {
            tables::change(call, &tables::id(p, d, t), false)
        }
        ("DELETE", ["projects", p, "datasets", d, "tables", t]) => tables::delete(call, &tables::id(p, d, t)),
        ("GET", ["projects", p, "datasets", d, "tables", t, "data"]) => {
            tables::data(call, &tables::id(p, d, t))
        }
        ("POST", ["projects", p, "queries"]) => jobs::query(call, p),
        ("GET", ["projects", p, "queries", id]) => jobs::results(call, p, id),
        ("POST", ["projects", p, "jobs"]) => jobs::insert(call, p),
        ("GET", ["projects", p, "jobs"]) => jobs::list(call, p),
        ("GET", ["projects", p, "jobs", id]) => jobs::get(call, p, id),
        ("POST", ["projects", p, "jobs", id, "cancel"]) => jobs::cancel(call, p, id),
        ("GET", ["projects", p, "locations", l, "transferConfigs"]) => transfers::list(call, p, l),
        ("POST", ["projects", p, "locations", l, "transferConfigs"]) => transfers::create(call, p, l),
        ("PATCH", ["projects", p, "locations", l, "transferConfigs", id]) => transfers::patch(call, p, l, id),
        _ => Err(Failure::not_found(format!("Not found: {method} {path} is not known to the emulator"))),
    }
}

/// A part of a path without its percent signs.
pub(crate) fn decoded(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| byte == b'%') {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
