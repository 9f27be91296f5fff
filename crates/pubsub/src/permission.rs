//! Whether the account of the credentials may do something: asked without doing it, and without a permission to ask.

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::client::Client;
pub use crate::failure::{PUBLISHER, SUBSCRIBER};
use crate::name::{SubscriptionName, TopicName};

const TEST: &str = "/google.iam.v1.IAMPolicy/TestIamPermissions";

/// `google.iam.v1.TestIamPermissionsRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct Question {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    permissions: Vec<String>,
}

/// `google.iam.v1.TestIamPermissionsResponse`: those of them that are held.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(string, repeated, tag = "1")]
    permissions: Vec<String>,
}

/// Whether the account may publish to a topic; no to one that does not exist. `None` where nobody tells: emulators mostly know no
/// permissions.
pub async fn may_publish(client: &Client, topic: &TopicName) -> Option<bool> {
    told(holds(client, topic.path(), "pubsub.topics.publish").await)
}

/// The same for pulling from a subscription, with its acknowledgements.
pub async fn may_pull(client: &Client, subscription: &SubscriptionName) -> Option<bool> {
    told(holds(client, subscription.path(), "pubsub.subscriptions.consume").await)
}

fn told(answer: Result<bool, Status>) -> Option<bool> {
    match answer {
        Err(status) if status.code() == Code::PermissionDenied => Some(false),
        other => other.ok(),
    }
}

async fn holds(client: &Client, resource: &str, permission: &str) -> Result<bool, Status> {
    let question = Question { resource: resource.to_owned(), permissions: vec![permission.to_owned()] };
    let request = client.request(question, "resource", resource).await?;
    let mut service = Grpc::new(client.channel());
    service.ready().await.map_err(|e| Status::from_error(e.into()))?;
    let codec = ProstCodec::<Question, Answer>::default();
    let answer = service.unary(request, PathAndQuery::from_static(TEST), codec).await?.into_inner();
    Ok(answer.permissions.iter().any(|held| held == permission))
}
