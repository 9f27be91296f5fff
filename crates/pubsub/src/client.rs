//! Connections to the service: channels, credentials, and what every request carries.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use google_cloud_auth::credentials::{self, CacheableResource, Credentials};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use http::Extensions;
use millstream_core::{Error, Result};
use pb::publisher_client::PublisherClient;
use pb::subscriber_client::SubscriberClient;
use tonic::metadata::{KeyAndValueRef, MetadataMap, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use crate::config::Connection;

const SERVICE: &str = "https://pubsub.googleapis.com";
const SCOPE: &str = "https://www.googleapis.com/auth/pubsub";
/// A message has at most 10 MB; a response can hold several.
const RESPONSE_BYTES_MAX: usize = 128 << 20;
/// A failed acknowledgement names each id in its trailers.
const TRAILERS_BYTES_MAX: u32 = 4 << 20;
/// For the answer to a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// What may lie unread in a stream's, and in a connection's, HTTP/2 window.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// A way to the service. Cheap to clone; connects when it is first used, and again when a connection was lost.
#[derive(Debug, Clone)]
pub struct Client {
    channels: Arc<[Channel]>,
    turn: Arc<AtomicUsize>,
    credentials: Option<Credentials>,
    /// Shown in errors.
    endpoint: Arc<str>,
}

impl Client {
    /// A client with `connections` connections, which live on the current tokio runtime. Nothing is sent yet.
    ///
    /// # Errors
    /// If the endpoint is no URL, no credentials can be found or read, or there is no runtime.
    pub fn new(connection: &Connection, connections: usize) -> Result<Self> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::fatal("a Pub/Sub client needs a tokio runtime: please report this as a bug"));
        }
        install_crypto();
        let endpoint = Connection::url(connection.endpoint.as_deref().unwrap_or(SERVICE))?;
        let mut builder = Endpoint::from_shared(endpoint.clone())
            .map_err(|e| {
                Error::fatal(format!("`{endpoint}` is no URL of a Pub/Sub endpoint")).with_source(e)
            })?
            .connect_timeout(Duration::from_secs(10))
            .http2_keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true)
            .http2_max_header_list_size(TRAILERS_BYTES_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .tcp_nodelay(true);
        let plaintext = endpoint.starts_with("http://");
        if !plaintext {
            builder = builder.tls_config(ClientTlsConfig::new().with_native_roots()).map_err(|e| {
                Error::fatal("cannot set up TLS with the system's root certificates").with_source(e)
            })?;
        }
        let credentials =
            if plaintext { None } else { Some(read_credentials(connection.credentials.as_deref())?) };
        let channels = (0..connections.max(1)).map(|_| builder.connect_lazy()).collect();
        Ok(Self { channels, turn: Arc::default(), credentials, endpoint: endpoint.into() })
    }

    /// Where it connects to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel_of(self.turn.fetch_add(1, Ordering::Relaxed))
    }

    fn channel_of(&self, turn: usize) -> Channel {
        self.channels[turn % self.channels.len()].clone()
    }

    /// For the `n`th stream, so that no connection has more streams than others.
    pub(crate) fn stream_subscriber(&self, n: usize) -> SubscriberClient<Channel> {
        SubscriberClient::new(self.channel_of(n)).max_decoding_message_size(RESPONSE_BYTES_MAX)
    }

    /// Pulls, acknowledges, manages subscriptions.
    pub(crate) fn subscriber(&self) -> SubscriberClient<Channel> {
        SubscriberClient::new(self.channel()).max_decoding_message_size(RESPONSE_BYTES_MAX)
    }

    /// Publishes, manages topics.
    pub(crate) fn publisher(&self) -> PublisherClient<Channel> {
        PublisherClient::new(self.channel())
    }

    /// The request of a call that answers once: with credentials, the resource that the service routes by, and a bound, as a server that
    /// accepts and never answers must not stop a pipeline without a word.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` if no token could be had, `UNAVAILABLE` if that may change.
    pub(crate) async fn request<T>(
        &self,
        message: T,
        key: &str,
        resource: &str,
    ) -> Result<Request<T>, Status> {
        let mut request = self.stream_request(message, key, resource).await?;
        request.set_timeout(ANSWER_TIMEOUT);
        Ok(request)
    }

    /// The same for a stream, which has no bound.
    pub(crate) async fn stream_request<T>(
        &self,
        message: T,
        key: &str,
        resource: &str,
    ) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        self.authorize(metadata).await?;
        let routing = format!("{key}={}", resource.replace('/', "%2F"));
        if let Ok(value) = MetadataValue::try_from(routing) {
            metadata.insert("x-goog-request-params", value);
        }
        Ok(request)
    }

    async fn authorize(&self, metadata: &mut MetadataMap) -> Result<(), Status> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let headers = credentials.headers(Extensions::new()).await.map_err(|e| {
            let text = format!("no access token: {e}");
            if e.is_transient() { Status::unavailable(text) } else { Status::unauthenticated(text) }
        })?;
        if let CacheableResource::New { data, .. } = headers {
            for pair in MetadataMap::from_headers(data).iter() {
                if let KeyAndValueRef::Ascii(key, value) = pair {
                    metadata.insert(key, value.clone());
                }
            }
        }
        Ok(())
    }
}

/// TLS needs a process-wide provider of cryptography, and nobody else chooses one.
fn install_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Whoever was first is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

fn read_credentials(file: Option<&Path>) -> Result<Credentials> {
    let Some(file) = file else {
        return credentials::Builder::default().with_scopes([SCOPE]).build().map_err(|e| {
            Error::fatal("no Application Default Credentials: set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default login`, or give `credentials`")
                .with_source(e)
        });
    };
    let shown = file.display();
    let text = std::fs::read(file)
        .map_err(|e| Error::fatal(format!("cannot read the credentials file {shown}")).with_source(e))?;
    // What is wrong in the file is not shown: it is a secret.
    let json: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|_| Error::fatal(format!("the credentials file {shown} is no JSON")))?;
    let built = match json.get("type").and_then(|kind| kind.as_str()) {
        Some("service_account") => credentials::service_account::Builder::new(json).build(),
        Some("external_account") => {
            credentials::external_account::Builder::new(json).with_scopes([SCOPE]).build()
        }
        Some("authorized_user") => credentials::user_account::Builder::new(json).build(),
        Some("impersonated_service_account") => credentials::impersonated::Builder::new(json).build(),
        _ => {
            return Err(Error::fatal(format!(
                "the credentials file {shown} is of no known type: service_account, external_account, authorized_user or impersonated_service_account"
            )));
        }
    };
    built.map_err(|e| Error::fatal(format!("the credentials file {shown} cannot be used")).with_source(e))
}
