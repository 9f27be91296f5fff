//! Cloud Storage: its JSON API, as far as clients need it to put files where load jobs find them.

mod bucket;
mod upload;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::rest::{beside, decoded, json_response};
use crate::warehouse::Warehouse;

pub(crate) use bucket::Buckets;

/// Bodies beyond this are refused; larger objects come in parts.
const BODY_MAX: usize = 256 << 20;
/// Objects of a page.
const PAGE: usize = 1000;

/// A call.
struct Call {
    warehouse: Arc<Warehouse>,
    query: HashMap<String, String>,
    headers: HeaderMap,
    body: Bytes,
}

impl Call {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn generation(&self) -> Result<Option<u64>, Failure> {
        let read = |text: &str| {
            text.parse().map_err(|_| Failure::invalid(format!("Invalid value for ifGenerationMatch: {text}")))
        };
        self.parameter("ifGenerationMatch").map(read).transpose()
    }

    fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    fn json(&self) -> Result<Value, Failure> {
        match self.body.is_empty() {
            true => Ok(Value::Null),
            false => {
                serde_json::from_slice(&self.body).map_err(|e| Failure::invalid(format!("Parse Error: {e}")))
            }
        }
    }

    /// Lets something go wrong, if it is its turn, and says what is called.
    fn begin(&self, method: &'static str, bucket: &str, object: Option<&str>) -> Result<(), Failure> {
        let mut resource = format!("buckets/{bucket}");
        if let Some(object) = object {
            resource += &format!("/objects/{object}");
        }
        self.warehouse.dice().rest(method, &[&resource])
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
    beside(move || {
        let call = Call { warehouse, query, headers, body };
        route(&call, &method, &path).and_then(|done| call.warehouse.dice().rest_answer(done))
    })
    .await
}

fn route(call: &Call, method: &Method, path: &str) -> Result<Response, Failure> {
    let parts = path.split('/').filter(|part| !part.is_empty()).map(decoded).collect::<Vec<_>>();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match (method.as_str(), parts.as_slice()) {
        ("POST", ["storage", "v1", "b"]) => create(call),
        ("GET", ["storage", "v1", "b"]) => list_buckets(call),
        ("GET", ["storage", "v1", "b", bucket]) => {
            call.begin("buckets.get", bucket, None)?;
            Ok(json_response(call.warehouse.buckets.lock().bucket(bucket)?.to_json(bucket)))
        }
        ("DELETE", ["storage", "v1", "b", bucket]) => {
            call.begin("buckets.delete", bucket, None)?;
            call.warehouse.buckets.delete(bucket)?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        ("GET", ["storage", "v1", "b", bucket, "iam", "testPermissions"]) => {
            call.begin("buckets.testIamPermissions", bucket, None)?;
            call.warehouse.buckets.lock().bucket(bucket)?;
            // Whoever asks is the owner; a name that comes several times is known by its last value only.
            Ok(json_response(json!({"kind": "storage#testIamPermissionsResponse", "permissions": OWNERS})))
        }
        ("GET", ["storage", "v1", "b", bucket, "o"]) => list(call, bucket),
        ("GET", ["storage", "v1", "b", bucket, "o", object]) => {
            get(call, bucket, object, call.parameter("alt") == Some("media"))
        }
        ("GET", ["download", "storage", "v1", "b", bucket, "o", object]) => get(call, bucket, object, true),
        ("DELETE", ["storage", "v1", "b", bucket, "o", object]) => {
            call.begin("objects.delete", bucket, Some(object))?;
            call.warehouse.buckets.delete_object(bucket, object, call.generation()?)?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        ("POST", ["upload" | "resumable", .., "b", bucket, "o"]) => upload::begin(call, bucket),
        ("PUT", ["upload" | "resumable", .., "b", bucket, "o"]) => upload::part(call, bucket),
        ("DELETE", ["upload" | "resumable", .., "b", _, "o"]) => Ok(upload::cancel(call)),
        _ => Err(Failure::not_found(format!("Not found: {method} {path} is not known to the emulator"))),
    }
}

/// What the owner of a bucket may do.
const OWNERS: [&str; 5] = [
    "storage.buckets.get",
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
];

fn create(call: &Call) -> Result<Response, Failure> {
    let json = call.json()?;
    let name = json["name"].as_str().unwrap_or_default();
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if !(3..=222).contains(&name.len()) || !name.chars().all(fine) {
        return Err(Failure::invalid(format!("Invalid bucket name: '{name}'")));
    }
    call.begin("buckets.insert", name, None)?;
    let buckets = &call.warehouse.buckets;
    buckets.create(&call.warehouse.clock, name, json["location"].as_str().unwrap_or("US"))?;
    Ok(json_response(buckets.lock().bucket(name)?.to_json(name)))
}

fn list_buckets(call: &Call) -> Result<Response, Failure> {
    call.begin("buckets.list", "", None)?;
    let state = call.warehouse.buckets.lock();
    let items: Vec<_> = state.buckets.iter().map(|(name, bucket)| bucket.to_json(name)).collect();
    Ok(json_response(json!({"kind": "storage#buckets", "items": items})))
}

fn list(call: &Call, bucket: &str) -> Result<Response, Failure> {
    call.begin("objects.list", bucket, None)?;
    let state = call.warehouse.buckets.lock();
    let objects = &state.bucket(bucket)?.objects;
    let prefix = call.parameter("prefix").unwrap_or_default();
    let delimiter = call.parameter("delimiter");
    let after = call.parameter("pageToken").unwrap_or_default();
    let most =
        call.parameter("maxResults").and_then(|n| n.parse().ok()).map_or(PAGE, |n: usize| n.clamp(1, PAGE));
    let (mut items, mut folders, mut next) = (Vec::new(), BTreeSet::new(), None);
    let mut last = "";
    for (name, object) in
        objects.iter().filter(|(name, _)| name.starts_with(prefix) && *name.as_str() > *after)
    {
        if items.len() + folders.len() == most {
            next = Some(last);
            break;
        }
        last = name;
        let folder = delimiter.and_then(|d| Some(name[prefix.len()..].find(d)? + prefix.len() + d.len()));
        match folder {
            Some(end) => drop(folders.insert(&name[..end])),
            None => items.push(object.to_json(bucket, name)),
        }
    }
    let mut json = json!({"kind": "storage#objects", "items": items, "prefixes": folders});
    if let Some(next) = next {
        json["nextPageToken"] = json!(next);
    }
    Ok(json_response(json))
}

fn get(call: &Call, bucket: &str, name: &str, media: bool) -> Result<Response, Failure> {
    call.begin("objects.get", bucket, Some(name))?;
    let object = call.warehouse.buckets.object(bucket, name)?;
    if !media {
        return Ok(json_response(object.to_json(bucket, name)));
    }
    let headers = [
        (header::CONTENT_TYPE, object.content_type.clone()),
        (header::HeaderName::from_static("x-goog-hash"), format!("crc32c={}", object.crc32c())),
        (header::HeaderName::from_static("x-goog-generation"), object.generation.to_string()),
    ];
    let range = call.header(header::RANGE).and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        let len = object.bytes.len();
        let first: usize = first.parse().ok()?;
        let end = last.parse().map_or(len, |last: usize| last.saturating_add(1).min(len));
        (first < end).then_some((first, end, len))
    });
    Ok(match range {
        Some((first, end, len)) => {
            let content = format!("bytes {first}-{}/{len}", end - 1);
            let part = Body::from(object.bytes.slice(first..end));
            (StatusCode::PARTIAL_CONTENT, headers, [(header::CONTENT_RANGE, content)], part).into_response()
        }
        None => (headers, Body::from(object.bytes)).into_response(),
    })
}
