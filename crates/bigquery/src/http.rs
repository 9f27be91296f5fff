//! What the REST APIs of BigQuery and Cloud Storage have in common: the client, the credentials of a request, and asking again.

use std::time::Duration;

use http::HeaderMap;
use millstream_core::{Error, Result};
use reqwest::Method;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::connection::{Auth, Connection};
use crate::failure::Failure;

/// How long a call is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// A way to an API. Cheap to clone; connects when it is first used.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    client: reqwest::Client,
    auth: Auth,
    /// Where the API is.
    pub(crate) endpoint: String,
    /// Calls that fail for passing reasons are tried no longer than this.
    patience: Duration,
}

impl Http {
    /// A client for an endpoint, which waits so long for an answer. Nothing is sent yet.
    ///
    /// # Errors
    /// If the endpoint is no URL, or no credentials can be found or read.
    pub(crate) fn new(connection: &Connection, endpoint: &str, answer_timeout: Duration) -> Result<Self> {
        let endpoint = Connection::url(endpoint)?;
        let auth = Auth::new(connection, &endpoint)?;
        let client = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(10))
            .timeout(answer_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| {
                Error::fatal("cannot set up an HTTP client with the system's root certificates")
                    .with_source(e)
            })?;
        Ok(Self { client, auth, endpoint, patience: PATIENCE })
    }

    /// The same with another patience.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// A request with the credentials.
    pub(crate) async fn request(
        &self,
        method: Method,
        url: &str,
    ) -> Result<reqwest::RequestBuilder, Failure> {
        let credentials: HeaderMap = self.auth.headers().await.map_err(|e| Failure {
            status: if e.is_transient { 0 } else { 401 },
            ..Failure::no_answer(e.text)
        })?;
        Ok(self.client.request(method, url).headers(credentials))
    }

    /// The tries of a call, of which the first begins now. `what` is asked again, for those who debug.
    pub(crate) fn tries<'a>(&self, what: &'a str) -> Tries<'a> {
        Tries { what, backoff: Backoff::new(), began: Instant::now(), patience: self.patience }
    }
}

/// The tries of a call.
pub(crate) struct Tries<'a> {
    what: &'a str,
    backoff: Backoff,
    began: Instant,
    patience: Duration,
}

impl Tries<'_> {
    /// Waits for the next try; answers the failure if it is one that stays, or if there is no more patience.
    pub(crate) async fn again(&mut self, failure: Failure) -> Result<(), Failure> {
        let wait = self.backoff.wait();
        if !failure.is_transient() || self.began.elapsed() + wait > self.patience {
            return Err(failure);
        }
        tracing::debug!(status = failure.status, reason = failure.reason, "{} is asked again", self.what);
        sleep(wait).await;
        Ok(())
    }
}

/// A request that got no answer. URLs are left out: they are long, and may hold a page's token or be the secret of an upload.
pub(crate) fn lost(error: reqwest::Error) -> Failure {
    Failure::no_answer(causes(&error.without_url()))
}

/// An error with what is behind it: "error sending request" alone helps nobody.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
