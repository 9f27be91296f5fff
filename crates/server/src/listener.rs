//! A listening socket and the connections that come of it, each with a bound on its number, size and time.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use millstream_core::{Error, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Connections at a time; more wait.
const CONNECTIONS_MAX: usize = 128;
/// How long a request's head may take, and a connection may be silent.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// A connection is closed after so long, so that those who read nothing do not keep others out.
const CONNECTION_LIFE: Duration = Duration::from_secs(600);
/// How long answers that are under way may take at the end.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// An address that is taken and not served yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Takes `address` (port 0: any free port); `key` names it in the config.
    ///
    /// # Errors
    /// Fatal, if it cannot be had.
    pub async fn bind(address: SocketAddr, key: &str) -> Result<Self> {
        let failed = |e: std::io::Error| {
            let advice = match e.kind() {
                std::io::ErrorKind::AddrInUse => {
                    ": another program has the port; choose another one, or 0 for any"
                }
                _ => "",
            };
            Error::fatal(format!("cannot listen on {address} (`{key}`){advice}")).with_source(e)
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers with `router` from now on.
    pub fn serve(self, router: Router) -> Server {
        let (stop, stopped) = watch::channel(false);
        Server { stop, task: tokio::spawn(accept(self.listener, router, stopped)) }
    }
}

/// Answers until dropped or closed.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Takes no connection any more and lets the answers end that are under way, such as that to `POST /api/cancel`.
    pub async fn close(mut self) {
        self.stop.send_replace(true);
        // What takes longer is cut off.
        let _ = timeout(CLOSE_PATIENCE, &mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, router: Router, mut stopped: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            accepted = async {
                let permit = room.clone().acquire_owned().await;
                (permit, listener.accept().await)
            } => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            (permit, Ok((stream, _))) => {
                let (router, stopped) = (router.clone(), stopped.clone());
                connections.spawn(async move {
                    converse(stream, router, stopped).await;
                    drop(permit);
                });
            }
            (_, Err(e)) => {
                tracing::warn!("cannot accept an HTTP connection: {e}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn converse(stream: TcpStream, router: Router, mut stopped: watch::Receiver<bool>) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // Whoever talks no HTTP, or leaves, is nothing to tell of.
        _ = connection.as_mut() => return,
        _ = stopped.wait_for(|stopped| *stopped) => {}
        () = sleep(CONNECTION_LIFE) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(CLOSE_PATIENCE, connection).await;
}
