//! Routes and answers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use millstream_core::Kind;
use millstream_engine::{Handle, Phase, Status};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::families;
use crate::guard::Guard;
use crate::json::{checkpoints_json, tables_json};
use crate::pipeline::Pipeline;

const BODY_BYTES_MAX: usize = 64 << 10;
/// How long a savepoint is waited for: it comes with the next checkpoint.
const SAVEPOINT_PATIENCE: Duration = Duration::from_secs(60);
/// How long any answer may take, its request's body included.
const ANSWER_PATIENCE: Duration = Duration::from_secs(70);

/// Everything that the HTTP API answers, `/metrics` included.
pub fn api(pipeline: Arc<Pipeline>, guard: Guard) -> Router {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/pipeline", get(status))
        .route("/api/tables", get(tables))
        .route("/api/checkpoints", get(checkpoints))
        .route("/api/drain", post(drain))
        .route("/api/cancel", post(cancel))
        .route("/api/pause", post(pause))
        .route("/api/resume", post(resume))
        .route("/api/savepoint", post(savepoint));
    guarded(router, pipeline, guard)
}

/// `/metrics` alone, and `/healthz`.
pub fn metrics_only(pipeline: Arc<Pipeline>, guard: Guard) -> Router {
    let router = Router::new().route("/metrics", get(metrics)).route("/healthz", get(healthz));
    guarded(router, pipeline, guard)
}

fn guarded(router: Router<Arc<Pipeline>>, pipeline: Arc<Pipeline>, guard: Guard) -> Router {
    router
        .fallback(async || error(StatusCode::NOT_FOUND, "nothing is here"))
        .method_not_allowed_fallback(async || {
            error(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(Arc::new(guard), admit))
        .with_state(pipeline)
}

async fn admit(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    if let Err((status, text)) = guard.admit(request.method(), request.headers()) {
        let mut response = error(status, text);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        return response;
    }
    match timeout(ANSWER_PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => error(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
    }
}

fn answer(status: StatusCode, value: &Value) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, Body::from(format!("{value}\n"))).into_response()
}

fn error(status: StatusCode, text: impl Into<String>) -> Response {
    answer(status, &json!({ "error": text.into() }))
}

async fn healthz() -> Response {
    answer(StatusCode::OK, &json!({ "ok": true }))
}

async fn readyz(State(pipeline): State<Arc<Pipeline>>) -> Response {
    let phase = pipeline.handle().status().phase;
    if families::is_up(phase) {
        return answer(StatusCode::OK, &json!({ "phase": phase.name() }));
    }
    let text = format!("{} is {}", pipeline.name(), phase.name());
    answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": text, "phase": phase.name() }))
}

async fn metrics(State(pipeline): State<Arc<Pipeline>>) -> Response {
    let text = families::expose(pipeline.name(), &pipeline.handle().status());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn status(State(pipeline): State<Arc<Pipeline>>) -> Response {
    answer(StatusCode::OK, &pipeline.json())
}

fn shown(pipeline: &Pipeline, show: fn(&str, &Status) -> Value) -> Response {
    answer(StatusCode::OK, &show(pipeline.name(), &pipeline.handle().status()))
}

async fn tables(State(pipeline): State<Arc<Pipeline>>) -> Response {
    shown(&pipeline, tables_json)
}

async fn checkpoints(State(pipeline): State<Arc<Pipeline>>) -> Response {
    shown(&pipeline, checkpoints_json)
}

async fn drain(State(pipeline): State<Arc<Pipeline>>) -> Response {
    ask(&pipeline, Handle::drain, "finishing what is in flight")
}

async fn cancel(State(pipeline): State<Arc<Pipeline>>) -> Response {
    ask(&pipeline, Handle::cancel, "ending now")
}

async fn pause(State(pipeline): State<Arc<Pipeline>>) -> Response {
    ask(&pipeline, Handle::pause, "pausing")
}

async fn resume(State(pipeline): State<Arc<Pipeline>>) -> Response {
    ask(&pipeline, Handle::resume, "going on")
}

fn ask(pipeline: &Pipeline, order: fn(&Handle), asked: &str) -> Response {
    if let Some(ended) = ended(pipeline) {
        return ended;
    }
    tracing::info!("{}: asked over HTTP: {asked}", pipeline.name());
    order(pipeline.handle());
    answer(StatusCode::ACCEPTED, &json!({ "pipeline": pipeline.name(), "asked": asked }))
}

fn ended(pipeline: &Pipeline) -> Option<Response> {
    let phase = pipeline.handle().status().phase;
    let text = || format!("{} has ended: it is {}", pipeline.name(), phase.name());
    matches!(phase, Phase::Finished | Phase::Failed).then(|| error(StatusCode::CONFLICT, text()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Savepoint {
    name: String,
}

async fn savepoint(
    State(pipeline): State<Arc<Pipeline>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return error(rejection.status(), rejection.body_text()),
    };
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
    });
    if !is_json {
        return error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "needs `Content-Type: application/json`");
    }
    let name = match serde_json::from_slice(&body) {
        Ok(Savepoint { name }) => name,
        Err(e) => {
            return error(
                StatusCode::BAD_REQUEST,
                format!("needs a body such as {{\"name\": \"before-upgrade\"}}: {e}"),
            );
        }
    };
    if let Some(ended) = ended(&pipeline) {
        return ended;
    }
    let phase = pipeline.handle().status().phase;
    if !families::is_up(phase) {
        let text = format!("{} is {}: a savepoint is made while it runs", pipeline.name(), phase.name());
        return error(StatusCode::SERVICE_UNAVAILABLE, text);
    }
    match timeout(SAVEPOINT_PATIENCE, pipeline.handle().savepoint(&name)).await {
        Ok(Ok(place)) => answer(StatusCode::OK, &json!({ "pipeline": pipeline.name(), "savepoint": place })),
        Ok(Err(e)) if e.kind() == Kind::Transient => error(StatusCode::SERVICE_UNAVAILABLE, e.to_string()),
        Ok(Err(e)) => error(StatusCode::CONFLICT, e.to_string()),
        Err(_) => {
            error(StatusCode::GATEWAY_TIMEOUT, "the checkpoint takes long; the savepoint comes with it")
        }
    }
}
