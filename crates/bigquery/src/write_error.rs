//! What the Storage Write API answers when it does not do what it was asked, sorted by what a sink can do about it.

use std::fmt;

use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1 as pb;
use millstream_core::Error;
use pb::storage_error::StorageErrorCode;
use prost::Message as _;
use tonic::{Code, Status};

use crate::failure::shown;

/// What a sink can do about a [`WriteError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteErrorKind {
    /// The same may succeed later; it was tried for a while.
    Transient,
    /// The stream, or its table, does not exist, no longer exists, or is not known yet everywhere. Look the table up; a new stream.
    NotFound,
    /// The stream takes no more rows. A new one.
    StreamFinalized,
    /// The stream is committed already.
    AlreadyCommitted,
    /// The rows have columns that the service does not know in the table (yet). Alter the table, or wait until it is known.
    ExtraFields,
    /// The offset is past the stream's end: rows before it are missing.
    OutOfRange,
    /// There are rows at the offset already, which is no error for rows that are sent again.
    AlreadyExists,
    /// The request or its schema is wrong.
    Invalid,
    /// The stream's or the table's state forbids it.
    Precondition,
    /// The account may not, or nobody knows who asks.
    Denied,
    /// Anything else that no retry mends.
    Other,
}

/// An answer of the Storage Write API that is an error.
#[derive(Clone, PartialEq, Eq)]
pub struct WriteError {
    kind: WriteErrorKind,
    message: String,
    /// What the service says, for the few cases in which it has to be read.
    words: String,
}

impl WriteError {
    /// An error of this kind; `message` says what happened, and where.
    pub fn new(kind: WriteErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), words: String::new() }
    }

    /// What a sink can do about it.
    pub fn kind(&self) -> WriteErrorKind {
        self.kind
    }

    /// Whether the same may succeed later.
    pub fn is_transient(&self) -> bool {
        self.kind == WriteErrorKind::Transient
    }

    /// What the service says. Unlike the error's text it may quote values of rows: for dead letters, not for logs.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// `expected offset N`: where the stream ends, if the service told.
    pub fn expected_offset(&self) -> Option<i64> {
        expected_offset(&self.words)
    }

    /// The error of a call that failed.
    pub(crate) fn of_status(what: &str, resource: &str, status: &Status) -> Self {
        let error = RpcStatus::decode(status.details()).ok().and_then(|s| storage_error(&s.details));
        Self::build(what, resource, status.code(), status.message(), error)
    }

    /// The error in an answer that came as it should.
    pub(crate) fn of_answer(
        what: &str,
        resource: &str,
        code: i32,
        message: &str,
        details: &[prost_types::Any],
    ) -> Self {
        Self::build(what, resource, Code::from_i32(code), message, storage_error(details))
    }

    fn build(what: &str, resource: &str, code: Code, message: &str, error: Option<pb::StorageError>) -> Self {
        let stated = error.as_ref().map_or(StorageErrorCode::Unspecified, pb::StorageError::code);
        let kind = kind(code, stated, message);
        let advice = match kind {
            WriteErrorKind::Denied if code == Code::Unauthenticated => {
                "; the credentials were refused or have expired"
            }
            WriteErrorKind::Denied => "; grant roles/bigquery.dataEditor to the account of the credentials",
            _ => "",
        };
        let mut text = format!("cannot {what} {resource}: {}{advice}", code_name(code));
        // What is wrong with rows may quote them.
        let quotes = kind == WriteErrorKind::Invalid && stated == StorageErrorCode::Unspecified;
        let words = if quotes { "" } else { shown(message) };
        if !words.is_empty() {
            text.push_str(&format!(" (BigQuery says: {words})"));
        }
        Self { kind, message: text, words: message.to_owned() }
    }
}

/// Without the service's words, like the text.
impl fmt::Debug for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteError").field("kind", &self.kind).field("message", &self.message).finish()
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for WriteError {}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        if error.is_transient() { Error::transient(error.message) } else { Error::fatal(error.message) }
    }
}

fn kind(code: Code, stated: StorageErrorCode, message: &str) -> WriteErrorKind {
    use WriteErrorKind as Kind;
    match stated {
        StorageErrorCode::TableNotFound | StorageErrorCode::StreamNotFound => return Kind::NotFound,
        StorageErrorCode::StreamAlreadyCommitted => return Kind::AlreadyCommitted,
        StorageErrorCode::StreamFinalized => return Kind::StreamFinalized,
        StorageErrorCode::SchemaMismatchExtraFields => return Kind::ExtraFields,
        StorageErrorCode::OffsetAlreadyExists => return Kind::AlreadyExists,
        StorageErrorCode::OffsetOutOfRange => return Kind::OutOfRange,
        StorageErrorCode::InvalidStreamState => return Kind::Precondition,
        StorageErrorCode::KmsServiceError => return Kind::Transient,
        _ => {}
    }
    let lower = message.to_ascii_lowercase();
    match code {
        Code::Aborted
        | Code::Unavailable
        | Code::Cancelled
        | Code::Internal
        | Code::DeadlineExceeded
        | Code::Unknown
        | Code::ResourceExhausted => Kind::Transient,
        Code::NotFound => Kind::NotFound,
        Code::AlreadyExists => Kind::AlreadyExists,
        Code::OutOfRange => Kind::OutOfRange,
        // Some servers give no structured reason.
        Code::InvalidArgument if lower.contains("more fields than bigquery schema") => Kind::ExtraFields,
        Code::InvalidArgument | Code::FailedPrecondition if lower.contains("finalized") => {
            Kind::StreamFinalized
        }
        Code::InvalidArgument => Kind::Invalid,
        Code::FailedPrecondition => Kind::Precondition,
        Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
        _ => Kind::Other,
    }
}

/// `expected offset 10, received 15`.
fn expected_offset(words: &str) -> Option<i64> {
    let lower = words.to_ascii_lowercase();
    let (_, rest) = lower.split_once("expected offset")?;
    let digits: String =
        rest.trim_start_matches([' ', ':', '=']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn storage_error(details: &[prost_types::Any]) -> Option<pb::StorageError> {
    let any =
        details.iter().find(|any| any.type_url.ends_with("google.cloud.bigquery.storage.v1.StorageError"))?;
    pb::StorageError::decode(&*any.value).ok()
}

/// `google.rpc.Status`, of which a failed call has the bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// The code as gRPC's documentation writes it.
fn code_name(code: Code) -> &'static str {
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

    fn stated(code: Code, stated: StorageErrorCode) -> WriteError {
        let error = pb::StorageError { code: stated.into(), ..pb::StorageError::default() };
        let any = prost_types::Any {
            type_url: "type.googleapis.com/google.cloud.bigquery.storage.v1.StorageError".to_owned(),
            value: error.encode_to_vec(),
        };
        let details = RpcStatus { details: vec![any] }.encode_to_vec();
        WriteError::of_status("append to", "s", &Status::with_details(code, "text", details.into()))
    }

    #[test]
    fn stated_reasons_win_over_codes() {
        use StorageErrorCode as Stated;
        let cases = [
            (Code::InvalidArgument, Stated::StreamFinalized, WriteErrorKind::StreamFinalized),
            (Code::InvalidArgument, Stated::SchemaMismatchExtraFields, WriteErrorKind::ExtraFields),
            (Code::NotFound, Stated::TableNotFound, WriteErrorKind::NotFound),
            (Code::AlreadyExists, Stated::OffsetAlreadyExists, WriteErrorKind::AlreadyExists),
            (Code::OutOfRange, Stated::OffsetOutOfRange, WriteErrorKind::OutOfRange),
            (Code::FailedPrecondition, Stated::KmsServiceError, WriteErrorKind::Transient),
            (Code::ResourceExhausted, Stated::Unspecified, WriteErrorKind::Transient),
            (Code::Aborted, Stated::Unspecified, WriteErrorKind::Transient),
            (Code::PermissionDenied, Stated::Unspecified, WriteErrorKind::Denied),
            (Code::FailedPrecondition, Stated::Unspecified, WriteErrorKind::Precondition),
        ];
        for (code, reason, expected) in cases {
            assert_eq!(stated(code, reason).kind(), expected, "{code:?} {reason:?}");
        }
    }

    #[test]
    fn words_are_read_where_there_is_nothing_else() {
        let of = |code, words: &str| WriteError::of_status("append to", "s", &Status::new(code, words));
        let extra = of(
            Code::InvalidArgument,
            "The input schema has more fields than BigQuery schema, extra fields: 'x'",
        );
        assert_eq!(extra.kind(), WriteErrorKind::ExtraFields);
        let past = of(Code::OutOfRange, "The offset is beyond stream, expected offset 10, received 15");
        assert_eq!((past.kind(), past.expected_offset()), (WriteErrorKind::OutOfRange, Some(10)));
        assert_eq!(of(Code::OutOfRange, "expected offset ten").expected_offset(), None);
    }

    #[test]
    fn bad_rows_are_not_quoted() {
        let error = WriteError::of_answer("append to", "s", 3, "bad value: secret", &[]);
        assert_eq!(error.to_string(), "cannot append to s: INVALID_ARGUMENT");
        assert!(!format!("{error:?}").contains("secret") && error.words().contains("secret"));
    }
}
