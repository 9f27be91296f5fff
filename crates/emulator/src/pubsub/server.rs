//! Starting and stopping the emulator.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};

use super::api::i_a_m_policy_server::IAMPolicyServer;
use super::api::publisher_server::PublisherServer;
use super::api::subscriber_server::SubscriberServer;
use super::broker::Broker;
use super::counts::Counts;
use super::faults::Faults;
use super::message::BYTES_MAX;
use super::permissions::PolicyService;
use super::publisher::PublisherService;
use super::subscriber::SubscriberService;
use super::{api, names, subscription, topic};

/// How long open calls may take to end on stopping.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// HTTP/2 windows: as large as what is sent without waiting.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const FRAME: u32 = 1024 * 1024;
/// A client that vanished is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The emulator.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server to be.
    pub fn builder() -> Builder {
        Builder {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            data: None,
            faults: Faults::default(),
            topics: Vec::new(),
            subscriptions: Vec::new(),
        }
    }
}

/// How to start it.
#[derive(Debug, Clone)]
pub struct Builder {
    listen: SocketAddr,
    data: Option<PathBuf>,
    faults: Faults,
    topics: Vec<String>,
    subscriptions: Vec<(String, String)>,
}

impl Builder {
    /// Where to listen; without this on a free port of 127.0.0.1.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = address;
        self
    }

    /// Where to keep topics, subscriptions and messages, so that the next start finds them; without this in memory only.
    #[must_use]
    pub fn data(mut self, directory: impl Into<PathBuf>) -> Self {
        self.data = Some(directory.into());
        self
    }

    /// What goes wrong; without this nothing.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// A topic that is there from the start, by its full name.
    #[must_use]
    pub fn topic(mut self, name: impl Into<String>) -> Self {
        self.topics.push(name.into());
        self
    }

    /// A subscription that is there from the start, by its full name and its topic's.
    #[must_use]
    pub fn subscription(mut self, name: impl Into<String>, topic: impl Into<String>) -> Self {
        self.subscriptions.push((name.into(), topic.into()));
        self
    }

    /// Makes what is there from the start, unless the journal has it.
    async fn prepare(&self, broker: &Broker) -> Result<(), Status> {
        let made = |result: Result<(), Status>| match result {
            Err(status) if status.code() == Code::AlreadyExists => Ok(()),
            other => other,
        };
        for name in &self.topics {
            let mut config = api::Topic { name: name.clone(), ..api::Topic::default() };
            topic::complete(&mut config)?;
            made(broker.create_topic(config).await)?;
        }
        for (name, topic) in &self.subscriptions {
            names::check(name, "subscriptions")?;
            names::check(topic, "topics")?;
            let mut config =
                api::Subscription { name: name.clone(), topic: topic.clone(), ..Default::default() };
            subscription::complete(&mut config)?;
            made(broker.create_subscription(config).await.map(|_| ()))?;
        }
        Ok(())
    }

    /// Starts it on the current runtime.
    ///
    /// # Errors
    /// When the address cannot be listened on, the data cannot be read or is in use, or a given name is wrong.
    pub async fn start(self) -> std::io::Result<Running> {
        let listener = TcpListener::bind(self.listen).await?;
        let address = listener.local_addr()?;
        let (stop, mut stopping) = watch::channel(false);
        let (data, faults, stopped) = (self.data.clone(), self.faults.clone(), stop.subscribe());
        let opened = tokio::task::spawn_blocking(move || Broker::open(data.as_deref(), faults, stopped));
        let broker = Arc::new(opened.await.map_err(std::io::Error::other)??);
        let prepared = self.prepare(&broker).await;
        prepared.map_err(|status| std::io::Error::other(status.message().to_owned()))?;
        let publisher =
            PublisherServer::new(PublisherService(broker.clone())).max_decoding_message_size(2 * BYTES_MAX);
        let subscriber =
            SubscriberServer::new(SubscriberService(broker.clone())).max_decoding_message_size(2 * BYTES_MAX);
        let server = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .tcp_nodelay(true)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .add_service(publisher)
            .add_service(subscriber)
            .add_service(IAMPolicyServer::new(PolicyService(broker.clone())))
            .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), async move {
                let _ = stopping.changed().await;
            });
        let ticking = broker.clone();
        let tasks = vec![
            tokio::spawn(async move {
                let _ = server.await;
            }),
            tokio::spawn(async move { ticking.keep_ticking().await }),
        ];
        Ok(Running { address, broker, stop, tasks })
    }
}

/// A running emulator. It ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    broker: Arc<Broker>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the faults; calls of the script are counted anew.
    pub fn set_faults(&self, faults: Faults) {
        self.broker.set_faults(faults);
    }

    /// What it counted so far.
    pub fn counts(&self) -> Counts {
        self.broker.counts()
    }

    /// Lets time pass at once, for leases, backoffs, retention and the times of messages published afterwards.
    pub async fn advance(&self, by: Duration) {
        self.broker.clock.advance(by);
        self.broker.tick().await;
    }

    /// Ends it: streams end with UNAVAILABLE, calls that run may finish.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let mut tasks = std::mem::take(&mut self.tasks).into_iter();
        if let Some(mut server) = tasks.next()
            && tokio::time::timeout(STOP_WAIT, &mut server).await.is_err()
        {
            server.abort();
        }
        for task in tasks {
            task.abort();
        }
        let broker = self.broker.clone();
        let closed =
            tokio::task::spawn_blocking(move || broker.journal().map(super::journal::Journal::close));
        // Only a panic of the writer could be told here.
        let _ = closed.await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for task in &self.tasks {
            task.abort();
        }
    }
}
