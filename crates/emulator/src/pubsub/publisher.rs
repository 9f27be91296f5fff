//! The Publisher service.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::api::{self, publisher_server::Publisher};
use super::broker::Broker;
use super::{names, paging, status, topic, wire};

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct PublisherService(pub(crate) Arc<Broker>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Publisher for PublisherService {
    async fn create_topic(&self, request: Request<api::Topic>) -> Answer<api::Topic> {
        let mut config = request.into_inner();
        self.0.dice().call("CreateTopic", &[&config.name])?;
        topic::complete(&mut config)?;
        self.0.create_topic(config.clone()).await?;
        Ok(Response::new(config))
    }

    async fn update_topic(&self, request: Request<api::UpdateTopicRequest>) -> Answer<api::Topic> {
        let request = request.into_inner();
        let wanted = request.topic.ok_or_else(|| status::invalid("The request has no topic."))?;
        self.0.dice().call("UpdateTopic", &[&wanted.name])?;
        let topic = self.0.topic(&wanted.name)?;
        let mut config = topic.config();
        for path in paging::mask(request.update_mask)? {
            match path.as_str() {
                "labels" => config.labels.clone_from(&wanted.labels),
                "message_retention_duration" => {
                    config.message_retention_duration = wanted.message_retention_duration
                }
                "message_storage_policy" => {
                    config.message_storage_policy.clone_from(&wanted.message_storage_policy);
                }
                "kms_key_name" => config.kms_key_name.clone_from(&wanted.kms_key_name),
                "schema_settings" => config.schema_settings.clone_from(&wanted.schema_settings),
                other => return Err(paging::no_such_path(other, "topic")),
            }
        }
        topic::complete(&mut config)?;
        self.0.update_topic(&topic, config.clone()).await?;
        Ok(Response::new(config))
    }

    async fn publish(&self, request: Request<wire::PublishRequest>) -> Answer<wire::PublishResponse> {
        let request = request.into_inner();
        let dice = self.0.dice();
        dice.call("Publish", &[&request.topic])?;
        let count = request.messages.len();
        let first = self.0.publish(&request.topic, request.messages, request.bytes).await?;
        dice.answer(Response::new(wire::PublishResponse { first, count }))
    }

    async fn get_topic(&self, request: Request<api::GetTopicRequest>) -> Answer<api::Topic> {
        let name = request.into_inner().topic;
        self.0.dice().call("GetTopic", &[&name])?;
        Ok(Response::new(self.0.topic(&name)?.config()))
    }

    async fn list_topics(&self, request: Request<api::ListTopicsRequest>) -> Answer<api::ListTopicsResponse> {
        let request = request.into_inner();
        self.0.dice().call("ListTopics", &[&request.project])?;
        names::check_project(&request.project)?;
        let world = self.0.world();
        let page =
            paging::in_project(&world.topics, &request.project, request.page_size, &request.page_token);
        Ok(Response::new(api::ListTopicsResponse {
            topics: page.items.into_iter().map(|topic| topic.config()).collect(),
            next_page_token: page.next,
        }))
    }

    async fn list_topic_subscriptions(
        &self,
        request: Request<api::ListTopicSubscriptionsRequest>,
    ) -> Answer<api::ListTopicSubscriptionsResponse> {
        let request = request.into_inner();
        self.0.dice().call("ListTopicSubscriptions", &[&request.topic])?;
        let topic = self.0.topic(&request.topic)?;
        let names = topic.subscriptions().iter().map(|subscription| subscription.name.clone()).collect();
        let (subscriptions, next_page_token) = paging::names(names, request.page_size, &request.page_token);
        Ok(Response::new(api::ListTopicSubscriptionsResponse { subscriptions, next_page_token }))
    }

    async fn list_topic_snapshots(
        &self,
        request: Request<api::ListTopicSnapshotsRequest>,
    ) -> Answer<api::ListTopicSnapshotsResponse> {
        let request = request.into_inner();
        self.0.dice().call("ListTopicSnapshots", &[&request.topic])?;
        let topic = self.0.topic(&request.topic)?;
        let names = topic.snapshots().iter().map(|snapshot| snapshot.config().name).collect();
        let (snapshots, next_page_token) = paging::names(names, request.page_size, &request.page_token);
        Ok(Response::new(api::ListTopicSnapshotsResponse { snapshots, next_page_token }))
    }

    async fn delete_topic(&self, request: Request<api::DeleteTopicRequest>) -> Answer<()> {
        let name = request.into_inner().topic;
        self.0.dice().call("DeleteTopic", &[&name])?;
        self.0.delete_topic(&name).await?;
        Ok(Response::new(()))
    }

    async fn detach_subscription(
        &self,
        request: Request<api::DetachSubscriptionRequest>,
    ) -> Answer<api::DetachSubscriptionResponse> {
        let name = request.into_inner().subscription;
        self.0.dice().call("DetachSubscription", &[&name])?;
        self.0.detach(&name).await?;
        Ok(Response::new(api::DetachSubscriptionResponse {}))
    }
}
