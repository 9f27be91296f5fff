//! Snapshots and seeks, as the broker does them.

use std::sync::Arc;

use tonic::Status;

use super::api::{self, seek_request::Target};
use super::broker::{Broker, RECORD_BYTES, durable};
use super::names;
use super::record::{Record, Sought, Taken};
use super::snapshot::{self, Snapshot};
use super::status;

impl Broker {
    /// A snapshot.
    pub(crate) fn snapshot(&self, name: &str) -> Result<Arc<Snapshot>, Status> {
        match self.world().snapshots.get(name) {
            Some(snapshot) => Ok(snapshot.clone()),
            None => names::check(name, "snapshots").and_then(|()| Err(status::not_found(name))),
        }
    }

    /// Takes a snapshot of a subscription.
    pub(crate) async fn create_snapshot(
        &self,
        request: api::CreateSnapshotRequest,
    ) -> Result<api::Snapshot, Status> {
        names::check(&request.name, "snapshots")?;
        let subscription = self.subscription(&request.subscription)?;
        subscription.usable()?;
        let topic = self.topic(&subscription.config().topic).map_err(|_| {
            Status::failed_precondition(
                "The subscription's topic was deleted, so there can be no snapshot of it.",
            )
        })?;
        let room = self.room(RECORD_BYTES).await?;
        let (config, pending) = {
            let mut world = self.world_mut();
            if world.snapshots.contains_key(&request.name) {
                return Err(status::exists(&request.name));
            }
            // Nothing is published while the topic's lock is held, so that the snapshot has all and nothing twice.
            let _publishing = topic.subscriptions();
            let backlog = subscription.backlog();
            let oldest = backlog.kept().find(|(_, kept)| !kept.acked).map(|(_, kept)| kept.published);
            let expire_time = snapshot::expiry(oldest, self.clock.wall()).ok_or_else(|| {
                Status::failed_precondition(
                    "The oldest unacknowledged message is too old: the snapshot would expire within an hour.",
                )
            })?;
            let config = api::Snapshot {
                name: request.name.clone(),
                topic: topic.name.clone(),
                expire_time: Some(expire_time),
                labels: request.labels,
            };
            let snapshot = Arc::new(Snapshot::new(config.clone(), backlog.kept()));
            topic.snapshots().push(snapshot.clone());
            world.snapshots.insert(request.name, snapshot);
            let taken = Taken { subscription: request.subscription, config: Some(config.clone()) };
            (config, self.write(room, || Record::Snapshot(taken)))
        };
        durable(pending).await?;
        Ok(config)
    }

    /// Changes a snapshot's description.
    pub(crate) async fn update_snapshot(
        &self,
        snapshot: &Snapshot,
        config: api::Snapshot,
    ) -> Result<(), Status> {
        let room = self.room(RECORD_BYTES).await?;
        snapshot.configure(config.clone());
        let taken = Taken { subscription: String::new(), config: Some(config) };
        durable(self.write(room, || Record::Snapshot(taken))).await
    }

    /// Deletes a snapshot.
    pub(crate) async fn delete_snapshot(&self, name: &str) -> Result<(), Status> {
        names::check(name, "snapshots")?;
        let room = self.room(RECORD_BYTES).await?;
        let pending = {
            let mut world = self.world_mut();
            let snapshot = world.snapshots.remove(name).ok_or_else(|| status::not_found(name))?;
            if let Some(topic) = world.topics.get(&snapshot.topic) {
                topic.snapshots().retain(|other| !Arc::ptr_eq(other, &snapshot));
            }
            self.write(room, || Record::SnapshotGone(name.to_owned()))
        };
        durable(pending).await
    }

    /// Seeks.
    pub(crate) async fn seek(&self, request: api::SeekRequest) -> Result<(), Status> {
        let subscription = self.subscription(&request.subscription)?;
        subscription.usable()?;
        let room = self.room(RECORD_BYTES).await?;
        let mut sought = Sought { subscription: request.subscription, ..Sought::default() };
        let pending = match request.target {
            Some(Target::Time(time)) => {
                sought.time = snapshot::nanos(&time);
                let mut backlog = subscription.backlog();
                backlog.seek_time(sought.time);
                self.write(room, || Record::Seek(sought))
            }
            Some(Target::Snapshot(name)) => {
                let snapshot = self.snapshot(&name)?;
                if snapshot.topic != subscription.config().topic {
                    return Err(status::invalid("The snapshot is of another topic than the subscription."));
                }
                sought.snapshot = name;
                let messages = snapshot.messages().clone();
                let mut backlog = subscription.backlog();
                let wanted = messages.into_iter().filter(|(_, kept)| subscription.wants(&kept.wire));
                backlog.seek_snapshot(wanted);
                self.write(room, || Record::Seek(sought))
            }
            None => return Err(status::invalid("A seek needs a time or a snapshot.")),
        };
        durable(pending).await?;
        self.settle(&subscription).await
    }
}
