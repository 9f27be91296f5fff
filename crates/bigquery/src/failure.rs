//! Failed calls of the REST API: what BigQuery said, and what that means for the caller.

use millstream_core::Error;
use serde_json::Value as Json;

/// What a call was about, for its error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    /// E.g. `create the table`.
    pub(crate) what: &'static str,
    /// The resource's full name.
    pub(crate) resource: &'a str,
    /// The permission that it takes.
    pub(crate) permission: &'static str,
}

/// An answer that is none, or that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The HTTP status; 0 where there was no answer.
    pub(crate) status: u16,
    /// BigQuery's reason, e.g. `notFound`.
    pub(crate) reason: String,
    /// BigQuery's words.
    pub(crate) message: String,
}

/// Reasons that pass by themselves.
const PASSING: [&str; 8] = [
    "backendError",
    "internalError",
    "jobBackendError",
    "jobInternalError",
    "jobRateLimitExceeded",
    "rateLimitExceeded",
    "tableUnavailable",
    "timeout",
];

/// Whether a job, or a call, that failed for this reason may succeed later.
pub(crate) fn is_passing(reason: &str) -> bool {
    PASSING.contains(&reason)
}

impl Failure {
    pub(crate) fn no_answer(message: String) -> Self {
        Self { status: 0, reason: String::new(), message }
    }

    /// Reads an error's body.
    pub(crate) fn read(status: u16, body: &[u8]) -> Self {
        let json: Json = serde_json::from_slice(body).unwrap_or_default();
        let error = &json["error"];
        let text = |json: &Json| json.as_str().unwrap_or_default().to_owned();
        Self { status, reason: text(&error["errors"][0]["reason"]), message: text(&error["message"]) }
    }

    /// Whether the same call may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.status, 0 | 408 | 429 | 500 | 502 | 503 | 504) || is_passing(&self.reason)
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status == 404
    }

    pub(crate) fn is_duplicate(&self) -> bool {
        self.status == 409 && matches!(&*self.reason, "duplicate" | "alreadyExists" | "")
    }

    /// Somebody else changed the resource since it was read.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status == 412
    }

    /// The failure as an error that says what to do.
    pub(crate) fn error(&self, call: &Call<'_>) -> Error {
        let Call { what, resource, permission } = call;
        let text = match self.status {
            0 => format!("cannot {what} {resource}: there is no answer"),
            401 => format!(
                "cannot {what} {resource}: the credentials were refused or have expired; renew them (`gcloud auth application-default login`, or the service account's key)"
            ),
            403 if self.is_access() => {
                let permission = self.missing_permission().unwrap_or(permission);
                format!(
                    "cannot {what} {resource}: permission denied; grant a role with {permission} to the account of the credentials"
                )
            }
            404 => format!(
                "cannot {what} {resource}: it, or what it lies in, does not exist; check the project, the dataset and their names"
            ),
            412 => format!("cannot {what} {resource}: somebody else has changed it meanwhile"),
            status if self.reason.is_empty() => format!("cannot {what} {resource}: HTTP status {status}"),
            _ => format!("cannot {what} {resource}: {}", self.reason),
        };
        let text = match shown(&self.message) {
            "" => text,
            words => format!("{text} (BigQuery says: {words})"),
        };
        // Whoever read before the other's change may read again.
        if self.is_transient() || self.is_conflict() { Error::transient(text) } else { Error::fatal(text) }
    }

    /// A status 403 is also that of quotas.
    fn is_access(&self) -> bool {
        matches!(&*self.reason, "accessDenied" | "forbidden" | "")
    }

    /// `Access Denied: Table a:b.c: Permission bigquery.tables.get denied on …`.
    fn missing_permission(&self) -> Option<&str> {
        let mut words = self.message.split(|c: char| c.is_whitespace() || c == '\'');
        words.find(|word| word.starts_with("bigquery.") && word.split('.').count() == 3)
    }
}

/// The server's own words, cut to a length that a log can bear.
pub(crate) fn shown(message: &str) -> &str {
    let end = message.char_indices().nth(400).map_or(message.len(), |(at, _)| at);
    message[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::Kind;

    const CALL: Call<'_> =
        Call { what: "create the table", resource: "p.d.t", permission: "bigquery.tables.create" };

    fn failure(status: u16, reason: &str, message: &str) -> Failure {
        let body = serde_json::json!({ "error": { "code": status, "message": message, "errors": [{ "reason": reason }] } });
        Failure::read(status, body.to_string().as_bytes())
    }

    #[test]
    fn what_may_pass_is_transient() {
        let cases = [
            (429, "rateLimitExceeded", true),
            (403, "rateLimitExceeded", true),
            (403, "quotaExceeded", false),
            (403, "accessDenied", false),
            (400, "invalid", false),
            (400, "backendError", true),
            (404, "notFound", false),
            (500, "", true),
            (503, "backendError", true),
            (501, "", false),
            (412, "conditionNotMet", true),
        ];
        for (status, reason, transient) in cases {
            let kind = failure(status, reason, "").error(&CALL).kind();
            assert_eq!(kind == Kind::Transient, transient, "{status} {reason}");
        }
        assert_eq!(Failure::no_answer("reset".into()).error(&CALL).kind(), Kind::Transient);
    }

    #[test]
    fn a_refusal_names_the_resource_and_the_permission() {
        let told = failure(
            403,
            "accessDenied",
            "Access Denied: Dataset p:d: Permission bigquery.datasets.get denied on dataset p:d (or it may not exist).",
        );
        let text = told.error(&CALL).to_string();
        assert!(text.contains("p.d.t") && text.contains("a role with bigquery.datasets.get to"), "{text}");
        let silent = failure(403, "accessDenied", "").error(&CALL).to_string();
        assert!(silent.contains("bigquery.tables.create"), "{silent}");
        let quota = failure(403, "quotaExceeded", "too much").error(&CALL).to_string();
        assert_eq!(quota, "cannot create the table p.d.t: quotaExceeded (BigQuery says: too much)");
    }

    #[test]
    fn any_body_is_read() {
        for body in ["", "<html>", "[]", "{\"error\":7}"] {
            let failure = Failure::read(502, body.as_bytes());
            assert_eq!(failure.error(&CALL).to_string(), "cannot create the table p.d.t: HTTP status 502");
        }
        let long = failure(400, "invalid", &"ü".repeat(5000)).error(&CALL).to_string();
        assert!(long.chars().count() < 600);
    }
}
