//! Failed calls: what happened, on what, and what to do.

use millstream_core::Error;
use tonic::{Code, Status};

/// What a call was about, for its error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    /// E.g. `pull from`.
    pub(crate) what: &'static str,
    /// The resource's full name.
    pub(crate) resource: &'a str,
    /// The least role that allows it.
    pub(crate) role: &'static str,
}

/// The least role for pulling, acknowledging and seeking.
pub const SUBSCRIBER: &str = "roles/pubsub.subscriber";
/// The least role for publishing.
pub const PUBLISHER: &str = "roles/pubsub.publisher";
/// The least role for looking resources up.
pub(crate) const VIEWER: &str = "roles/pubsub.viewer";
/// The least role for making resources.
pub(crate) const EDITOR: &str = "roles/pubsub.editor";

/// Whether the same call may succeed later, by the codes that Google's own clients retry.
pub(crate) fn is_retryable(code: Code) -> bool {
    matches!(
        code,
        Code::Aborted
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::ResourceExhausted
            | Code::Unavailable
            | Code::Unknown
    )
}

impl Call<'_> {
    /// The failure as an error that says what to do.
    pub(crate) fn error(&self, status: &Status) -> Error {
        let Self { what, resource, role } = self;
        let text = match status.code() {
            Code::NotFound => format!(
                "cannot {what} {resource}: it does not exist; check the project and the name, or let `create` make it"
            ),
            Code::PermissionDenied => {
                format!(
                    "cannot {what} {resource}: permission denied; grant {role} to the account of the credentials"
                )
            }
            Code::Unauthenticated => format!(
                "cannot {what} {resource}: the credentials were refused or have expired; renew them (`gcloud auth application-default login`, or the service account's key)"
            ),
            code => format!("cannot {what} {resource}: {}", code_name(code)),
        };
        // What is wrong with a message may quote it, and a key is a row's value.
        let words = if status.code() == Code::InvalidArgument { "" } else { status.message() };
        let text = match shown(words) {
            "" => text,
            message => format!("{text} (Pub/Sub says: {message})"),
        };
        if is_retryable(status.code()) { Error::transient(text) } else { Error::fatal(text) }
    }
}

/// The server's own words, cut to a length that a log can bear.
fn shown(message: &str) -> &str {
    let end = message.char_indices().nth(300).map_or(message.len(), |(at, _)| at);
    message[..end].trim()
}

/// The code as gRPC's documentation writes it.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::Kind;

    #[test]
    fn an_error_names_the_resource_and_the_role() {
        let call = Call { what: "pull from", resource: "projects/p/subscriptions/s", role: SUBSCRIBER };
        let denied = call.error(&Status::permission_denied("User not authorized"));
        assert_eq!(denied.kind(), Kind::Fatal);
        let text = denied.to_string();
        assert!(text.contains("projects/p/subscriptions/s") && text.contains(SUBSCRIBER), "{text}");
        assert_eq!(call.error(&Status::unavailable("")).kind(), Kind::Transient);
        assert_eq!(call.error(&Status::not_found("")).kind(), Kind::Fatal);
        for code in
            [Code::Internal, Code::Aborted, Code::Unknown, Code::ResourceExhausted, Code::DeadlineExceeded]
        {
            assert!(is_retryable(code), "{code:?}");
        }
        for code in
            [Code::Unauthenticated, Code::InvalidArgument, Code::FailedPrecondition, Code::Unimplemented]
        {
            assert!(!is_retryable(code), "{code:?}");
        }
        let long = call.error(&Status::internal("é".repeat(1000))).to_string();
        assert!(long.len() < 1000, "{}", long.len());
    }
}
