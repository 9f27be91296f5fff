//! What goes wrong, as the REST API words it: a reason, a message, a status.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

/// Why it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    NotFound,
    Duplicate,
    Invalid,
    InvalidQuery,
    AccessDenied,
    ResourceInUse,
    RateLimitExceeded,
    BackendError,
    PreconditionFailed,
    NotImplemented,
    InternalError,
    /// Cloud Storage's words for what is there already, or in the way.
    Conflict,
    Required,
}

impl Reason {
    /// Its name, its HTTP status, and the name of that.
    pub(crate) fn names(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::NotFound => ("notFound", 404, "NOT_FOUND"),
            Self::Duplicate => ("duplicate", 409, "ALREADY_EXISTS"),
            Self::Invalid => ("invalid", 400, "INVALID_ARGUMENT"),
            Self::InvalidQuery => ("invalidQuery", 400, "INVALID_ARGUMENT"),
            Self::AccessDenied => ("accessDenied", 403, "PERMISSION_DENIED"),
            Self::ResourceInUse => ("resourceInUse", 400, "FAILED_PRECONDITION"),
            Self::RateLimitExceeded => ("rateLimitExceeded", 429, "RESOURCE_EXHAUSTED"),
            Self::BackendError => ("backendError", 503, "UNAVAILABLE"),
            Self::PreconditionFailed => ("conditionNotMet", 412, "FAILED_PRECONDITION"),
            Self::NotImplemented => ("notImplemented", 501, "UNIMPLEMENTED"),
            Self::Conflict => ("conflict", 409, "ALREADY_EXISTS"),
            Self::Required => ("required", 400, "INVALID_ARGUMENT"),
            Self::InternalError => ("internalError", 500, "INTERNAL"),
        }
    }
}

impl Failure {
    /// A failure.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// `notFound`.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Reason::NotFound, message)
    }

    /// `duplicate`.
    pub(crate) fn duplicate(message: impl Into<String>) -> Self {
        Self::new(Reason::Duplicate, message)
    }

    /// `invalid`.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, message)
    }

    /// `invalidQuery`.
    pub(crate) fn query(message: impl Into<String>) -> Self {
        Self::new(Reason::InvalidQuery, message)
    }

    /// A construct of SQL that is not understood.
    pub(crate) fn unsupported(construct: impl std::fmt::Display) -> Self {
        Self::query(format!("The emulator does not understand: {construct}"))
    }

    /// One entry of a list of errors.
    pub(crate) fn proto(&self) -> Value {
        let mut proto = json!({"reason": self.reason.names().0, "message": self.message});
        if self.reason == Reason::InvalidQuery {
            proto["location"] = json!("query");
        }
        proto
    }

    /// The body of a response.
    pub(crate) fn body(&self) -> Value {
        let (reason, code, status) = self.reason.names();
        json!({"error": {
            "code": code,
            "message": self.message,
            "errors": [{"message": self.message, "domain": "global", "reason": reason}],
            "status": status,
        }})
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.reason.names().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/json; charset=UTF-8")], self.body().to_string())
                .into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE || status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("0"));
        }
        response
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Reason::InternalError, error.to_string())
    }
}

impl From<duckdb::Error> for Failure {
    fn from(error: duckdb::Error) -> Self {
        Self::query(error.to_string())
    }
}

impl From<duckdb::arrow::error::ArrowError> for Failure {
    fn from(error: duckdb::arrow::error::ArrowError) -> Self {
        Self::new(Reason::InternalError, error.to_string())
    }
}
