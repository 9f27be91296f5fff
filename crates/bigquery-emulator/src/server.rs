//! Starting and stopping the emulator.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;

use crate::api::big_query_write_server::BigQueryWriteServer;
use crate::catalog;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::faults::Faults;
use crate::gcs::Buckets;
use crate::warehouse::{Settings, Warehouse};
use crate::write::WriteService;
use crate::{gcs, persistence, rest};

/// How long open calls may take to end on stopping.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// How often what was accepted is put into the database, so that it does not pile up.
const LANDING: Duration = Duration::from_secs(1);
/// HTTP/2 windows: as large as what is sent without waiting.
const STREAM_WINDOW: u32 = 16 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;
const FRAME: u32 = 1024 * 1024;
/// A client that vanished is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The emulator.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server to be.
    pub fn builder() -> Builder {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Builder {
            rest: free,
            grpc: free,
            gcs: free,
            data: None,
            faults: Faults::default(),
            settings: Settings::default(),
            datasets: Vec::new(),
            buckets: Vec::new(),
        }
    }
}

/// How to start it.
#[derive(Debug, Clone)]
pub struct Builder {
    rest: SocketAddr,
    grpc: SocketAddr,
    gcs: SocketAddr,
    data: Option<PathBuf>,
    faults: Faults,
    settings: Settings,
    datasets: Vec<(String, String, String)>,
    buckets: Vec<(String, String)>,
}

impl Builder {
    /// Where the REST API listens; without this on a free port of 127.0.0.1.
    #[must_use]
    pub fn rest(mut self, address: SocketAddr) -> Self {
        self.rest = address;
        self
    }

    /// Where the Storage Write API listens; without this on a free port of 127.0.0.1.
    #[must_use]
    pub fn grpc(mut self, address: SocketAddr) -> Self {
        self.grpc = address;
        self
    }

    /// Where Cloud Storage listens; without this on a free port of 127.0.0.1.
    #[must_use]
    pub fn gcs(mut self, address: SocketAddr) -> Self {
        self.gcs = address;
        self
    }

    /// A bucket of Cloud Storage that is there from the start, with its location, such as `US`.
    #[must_use]
    pub fn bucket(mut self, name: impl Into<String>, location: impl Into<String>) -> Self {
        self.buckets.push((name.into(), location.into()));
        self
    }

    /// Where to keep tables, rows, streams and objects, so that the next start finds them; without this in memory only.
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

    /// A dataset that is there from the start, with its location, such as `US`.
    #[must_use]
    pub fn dataset(
        mut self,
        project: impl Into<String>,
        dataset: impl Into<String>,
        location: impl Into<String>,
    ) -> Self {
        self.datasets.push((project.into(), dataset.into(), location.into()));
        self
    }

    /// The largest AppendRows request, in bytes; 20 MB without this.
    #[must_use]
    pub fn request_bytes(mut self, bytes: usize) -> Self {
        self.settings.request_bytes = bytes;
        self
    }

    /// Whether calls without `x-goog-request-params` are refused; they are without this.
    #[must_use]
    pub fn require_routing(mut self, required: bool) -> Self {
        self.settings.require_routing = required;
        self
    }

    /// For how long after a change of a table the Storage Write API does not know its new columns; not at all without this.
    #[must_use]
    pub fn schema_delay(mut self, delay: Duration) -> Self {
        self.settings.schema_delay = delay;
        self
    }

    /// How much later changes are applied to tables with `maxStaleness`, at most as late as that says; at once without this.
    #[must_use]
    pub fn apply_delay(mut self, delay: Duration) -> Self {
        self.settings.apply_delay = delay;
        self
    }

    fn open(&self) -> Result<Warehouse, Failure> {
        let engine = Engine::open(self.data.as_deref())?;
        let clock = Clock::start();
        let objects = self.data.as_ref().map(|data| data.join("objects"));
        let buckets = Buckets::open(objects.as_deref(), &clock)?;
        let warehouse = Warehouse::new(engine, self.settings.clone(), self.faults.clone(), clock, buckets);
        persistence::load(&warehouse)?;
        for (project, dataset, location) in &self.datasets {
            if warehouse.location(project, dataset).is_none() {
                let connection = warehouse.engine.lock();
                let resource = serde_json::Map::new();
                catalog::create_dataset(&warehouse, &connection, project, dataset, Some(location), resource)?;
            }
        }
        for (bucket, location) in &self.buckets {
            if warehouse.buckets.lock().bucket(bucket).is_err() {
                warehouse.buckets.create(&warehouse.clock, bucket, location)?;
            }
        }
        Ok(warehouse)
    }

    /// Starts it on the current runtime.
    ///
    /// # Errors
    /// When an address cannot be listened on, the data cannot be read or is in use, or a given name is wrong.
    pub async fn start(self) -> std::io::Result<Running> {
        let (rest, grpc) = (TcpListener::bind(self.rest).await?, TcpListener::bind(self.grpc).await?);
        let gcs = TcpListener::bind(self.gcs).await?;
        let addresses = (rest.local_addr()?, grpc.local_addr()?, gcs.local_addr()?);
        let opened = tokio::task::spawn_blocking(move || self.open()).await.map_err(std::io::Error::other)?;
        let warehouse = Arc::new(opened.map_err(|failure| std::io::Error::other(failure.message))?);
        let (stop, stopping) = watch::channel(false);
        let stopped = |mut stopping: watch::Receiver<bool>| async move {
            let _ = stopping.changed().await;
        };
        // Larger messages are refused by name, not by the transport.
        let write = BigQueryWriteServer::new(WriteService(warehouse.clone()))
            .max_decoding_message_size(warehouse.settings.request_bytes.saturating_mul(2).max(64 << 20))
            .max_encoding_message_size(64 << 20);
        let grpc = tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .tcp_nodelay(true)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .add_service(write)
            .serve_with_incoming_shutdown(
                TcpIncoming::from(grpc).with_nodelay(Some(true)),
                stopped(stopping.clone()),
            );
        let rest = axum::serve(rest, rest::router(warehouse.clone()))
            .with_graceful_shutdown(stopped(stopping.clone()));
        let gcs = axum::serve(gcs, gcs::router(warehouse.clone())).with_graceful_shutdown(stopped(stopping));
        let landing = warehouse.clone();
        let tasks = vec![
            tokio::spawn(async move {
                let _ = grpc.await;
            }),
            tokio::spawn(async move {
                let _ = rest.await;
            }),
            tokio::spawn(async move {
                let _ = gcs.await;
            }),
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(LANDING).await;
                    let warehouse = landing.clone();
                    let landed =
                        tokio::task::spawn_blocking(move || warehouse.land_all(&warehouse.engine.lock()));
                    // What cannot be landed stays, and the next reader hears why.
                    let _ = landed.await;
                }
            }),
        ];
        Ok(Running { rest: addresses.0, grpc: addresses.1, gcs: addresses.2, warehouse, stop, tasks })
    }
}

/// A running emulator. It ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    rest: SocketAddr,
    grpc: SocketAddr,
    gcs: SocketAddr,
    warehouse: Arc<Warehouse>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    /// Where the REST API listens.
    pub fn rest(&self) -> SocketAddr {
        self.rest
    }

    /// Where the Storage Write API listens.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Where Cloud Storage listens.
    pub fn gcs(&self) -> SocketAddr {
        self.gcs
    }

    /// The names of a bucket's objects.
    pub fn objects(&self, bucket: &str) -> Vec<String> {
        self.warehouse.buckets.names(bucket)
    }

    /// Replaces the faults; calls of the script are counted anew.
    pub fn set_faults(&self, faults: Faults) {
        self.warehouse.set_faults(faults);
    }

    /// How often something was made to go wrong since the faults were set.
    pub fn faults_hit(&self) -> u64 {
        self.warehouse.dice().hits.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Lets time pass at once: for the delays of schemas and of changes, and for how long deletes are remembered.
    ///
    /// # Errors
    /// When rows that were accepted before cannot be put into the database.
    pub async fn advance(&self, by: Duration) -> std::io::Result<()> {
        let warehouse = self.warehouse.clone();
        let landed = tokio::task::spawn_blocking(move || {
            let connection = warehouse.engine.lock();
            warehouse.land_all(&connection)?;
            warehouse.clock.advance(by);
            Ok(())
        });
        let landed = landed.await.map_err(std::io::Error::other)?;
        landed.map_err(|failure: Failure| std::io::Error::other(failure.message))
    }

    /// The streams that applications made and did not finalize.
    pub fn open_streams(&self) -> Vec<String> {
        let streams: Vec<_> = self.warehouse.streams().values().cloned().collect();
        let open = streams.iter().filter(|stream| !stream.lock().finalized);
        open.map(|stream| stream.name.clone()).collect()
    }

    /// Lets a stream expire, as the service does after some days: it is gone, with its rows that are not visible.
    pub fn expire(&self, stream: &str) {
        self.warehouse.streams().remove(stream);
    }

    /// Ends it: connections end with UNAVAILABLE, calls that run may finish.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let tasks = std::mem::take(&mut self.tasks);
        let ending = async {
            for mut task in tasks {
                if tokio::time::timeout(STOP_WAIT, &mut task).await.is_err() {
                    task.abort();
                }
            }
        };
        ending.await;
        let warehouse = self.warehouse.clone();
        let landed = tokio::task::spawn_blocking(move || warehouse.land_all(&warehouse.engine.lock()));
        // What was answered is in the database already where it has to be.
        let _ = landed.await;
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
