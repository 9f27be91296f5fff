//! Generates the gRPC servers' traits. The messages come from a crate, so neither .proto files nor protoc are needed;
//! the methods that move messages have types of their own (`pubsub::wire`), which leave a message's bytes as they are.

use tonic_build::manual::{Builder, Method, Service};

const API: &str = "googleapis_tonic_google_pubsub_v1::google::pubsub::v1";
const WIRE: &str = "crate::pubsub::wire";
const PROST: &str = "tonic_prost::ProstCodec";
const OWN: &str = "crate::pubsub::wire::WireCodec";

fn main() {
    Builder::new().build_client(false).compile(&[publisher(), subscriber(), policy()]);
}

fn method(name: &str, codec: &str, input: &str, output: &str) -> Method {
    Method::builder()
        .name(snake(name))
        .route_name(name)
        .codec_path(codec)
        .input_type(input)
        .output_type(output)
        .build()
}

/// `google.protobuf.Empty`, which is the unit type: tonic-build takes only paths.
const EMPTY: &str = "crate::pubsub::wire::Empty";

/// A method whose messages are as in the API.
fn plain(name: &str, input: &str, output: &str) -> Method {
    let output = if output == "Empty" { EMPTY.to_owned() } else { format!("{API}::{output}") };
    method(name, PROST, &format!("{API}::{input}"), &output)
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

fn publisher() -> Service {
    Service::builder()
        .name("Publisher")
        .package("google.pubsub.v1")
        .method(plain("CreateTopic", "Topic", "Topic"))
        .method(plain("UpdateTopic", "UpdateTopicRequest", "Topic"))
        .method(method(
            "Publish",
            OWN,
            &format!("{WIRE}::PublishRequest"),
            &format!("{WIRE}::PublishResponse"),
        ))
        .method(plain("GetTopic", "GetTopicRequest", "Topic"))
        .method(plain("ListTopics", "ListTopicsRequest", "ListTopicsResponse"))
        .method(plain(
            "ListTopicSubscriptions",
            "ListTopicSubscriptionsRequest",
            "ListTopicSubscriptionsResponse",
        ))
        .method(plain("ListTopicSnapshots", "ListTopicSnapshotsRequest", "ListTopicSnapshotsResponse"))
        .method(plain("DeleteTopic", "DeleteTopicRequest", "Empty"))
        .method(plain("DetachSubscription", "DetachSubscriptionRequest", "DetachSubscriptionResponse"))
        .build()
}

fn subscriber() -> Service {
    let streaming = Method::builder()
        .name("streaming_pull")
        .route_name("StreamingPull")
        .codec_path(OWN)
        .input_type(format!("{WIRE}::StreamRequest"))
        .output_type(format!("{WIRE}::Delivery"))
        .client_streaming()
        .server_streaming()
        .build();
    Service::builder()
        .name("Subscriber")
        .package("google.pubsub.v1")
        .method(plain("CreateSubscription", "Subscription", "Subscription"))
        .method(plain("GetSubscription", "GetSubscriptionRequest", "Subscription"))
        .method(plain("UpdateSubscription", "UpdateSubscriptionRequest", "Subscription"))
        .method(plain("ListSubscriptions", "ListSubscriptionsRequest", "ListSubscriptionsResponse"))
        .method(plain("DeleteSubscription", "DeleteSubscriptionRequest", "Empty"))
        .method(method("ModifyAckDeadline", OWN, &format!("{WIRE}::ModifyRequest"), EMPTY))
        .method(method("Acknowledge", OWN, &format!("{WIRE}::AckRequest"), EMPTY))
        .method(method("Pull", OWN, &format!("{API}::PullRequest"), &format!("{WIRE}::Delivery")))
        .method(streaming)
        .method(plain("ModifyPushConfig", "ModifyPushConfigRequest", "Empty"))
        .method(plain("GetSnapshot", "GetSnapshotRequest", "Snapshot"))
        .method(plain("ListSnapshots", "ListSnapshotsRequest", "ListSnapshotsResponse"))
        .method(plain("CreateSnapshot", "CreateSnapshotRequest", "Snapshot"))
        .method(plain("UpdateSnapshot", "UpdateSnapshotRequest", "Snapshot"))
        .method(plain("DeleteSnapshot", "DeleteSnapshotRequest", "Empty"))
        .method(plain("Seek", "SeekRequest", "SeekResponse"))
        .build()
}

fn policy() -> Service {
    let (request, response) = ("TestIamPermissionsRequest", "TestIamPermissionsResponse");
    let own = |name: &str| format!("crate::pubsub::permissions::{name}");
    Service::builder()
        .name("IAMPolicy")
        .package("google.iam.v1")
        .method(method("TestIamPermissions", PROST, &own(request), &own(response)))
        .build()
}
