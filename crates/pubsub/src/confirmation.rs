//! What the service says of single acknowledgement ids when a call fails in part: with exactly-once delivery, `ErrorInfo`
//! metadata maps ids to `PERMANENT_FAILURE_…` or `TRANSIENT_FAILURE_…` (documentation of exactly-once delivery).

use std::collections::{HashMap, HashSet};

use prost::Message;
use prost_types::Any;
use tonic::Status;

/// `google.rpc.Status`, as far as it is needed.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.rpc.ErrorInfo`, as far as it is needed.
#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

/// Ids that failed; those that are not named succeeded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// May succeed later.
    pub(crate) temporary: HashSet<String>,
    /// Will not: the lease is over, or another delivery has a newer id.
    pub(crate) permanent: HashSet<String>,
}

/// What the failed call says of single ids; `None` if it says nothing of any.
pub(crate) fn confirmation(status: &Status) -> Option<Confirmation> {
    let details = RpcStatus::decode(status.details()).ok()?.details;
    let infos = details.iter().filter(|any| any.type_url.ends_with("google.rpc.ErrorInfo"));
    let mut failed = Confirmation { temporary: HashSet::new(), permanent: HashSet::new() };
    for info in infos.filter_map(|any| ErrorInfo::decode(&*any.value).ok()) {
        for (id, failure) in info.metadata {
            if failure.starts_with("PERMANENT_FAILURE_") {
                failed.permanent.insert(id);
            } else if failure.starts_with("TRANSIENT_FAILURE_") {
                failed.temporary.insert(id);
            }
        }
    }
    let says_nothing = failed.temporary.is_empty() && failed.permanent.is_empty();
    (!says_nothing).then_some(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn ids_are_told_apart() {
        let pairs = [
            ("a", "PERMANENT_FAILURE_INVALID_ACK_ID"),
            ("b", "TRANSIENT_FAILURE_UNORDERED_ACK_ID"),
            ("reason", "something else"),
        ];
        let info = ErrorInfo { metadata: pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into() };
        let any =
            Any { type_url: "type.googleapis.com/google.rpc.ErrorInfo".into(), value: info.encode_to_vec() };
        let details = RpcStatus { details: vec![any] }.encode_to_vec();
        let status = Status::with_details(Code::FailedPrecondition, "", details.into());
        let failed = confirmation(&status).unwrap();
        assert_eq!((failed.temporary, failed.permanent), (["b".to_owned()].into(), ["a".to_owned()].into()));
        assert_eq!(confirmation(&Status::unavailable("")), None);
    }
}
