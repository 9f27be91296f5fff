//! The REST API: one way for every call, with retries.
//!
//! The client is reqwest, which is in the tree for the credentials anyway, and not `google-cloud-bigquery-v2`: a sink needs ten calls
//! of the API, and that crate has all of them, compiles for minutes, and models every resource so strictly that a field which it does
//! not know is lost when a schema is read, changed and written back.
//!
//! Every call here may be repeated: what makes something is answered by "there already" if a first try came through unheard.

use std::time::Duration;

use millstream_core::Result;
use reqwest::{Method, header};
use serde_json::Value as Json;

use crate::connection::Connection;
use crate::failure::{Call, Failure};
use crate::http::{Http, lost};

const SERVICE: &str = "https://bigquery.googleapis.com";
const TRANSFER: &str = "https://bigquerydatatransfer.googleapis.com";
/// For the answer to a call; a query's results are waited for up to 10 s by the service itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// A way to the REST API. Cheap to clone; connects when it is first used.
#[derive(Debug, Clone)]
pub struct Rest {
    http: Http,
}

/// A call's method, place and body.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    /// Behind `projects/`, its segments [encoded](segment).
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) body: Option<Json>,
    /// Only if the resource is still this one.
    pub(crate) etag: Option<&'a str>,
    /// Whose call it is.
    pub(crate) service: Service,
}

/// The services that are asked.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Service {
    /// BigQuery itself.
    #[default]
    Bigquery,
    /// The Data Transfer Service, which has a host of its own; an emulator or a private endpoint has one for both.
    DataTransfer,
}

impl Ask<'_> {
    pub(crate) fn new(method: Method, path: String) -> Self {
        Self { method, path, query: Vec::new(), body: None, etag: None, service: Service::default() }
    }

    pub(crate) fn get(path: String) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn post(path: String, body: Json) -> Self {
        Self { body: Some(body), ..Self::new(Method::POST, path) }
    }
}

impl Rest {
    /// A client for the service or for the endpoint that is given. Nothing is sent yet.
    ///
    /// # Errors
    /// If the endpoint is no URL, or no credentials can be found or read.
    pub fn new(connection: &Connection) -> Result<Self> {
        let endpoint = connection.rest.as_deref().unwrap_or(SERVICE);
        Ok(Self { http: Http::new(connection, endpoint, ANSWER_TIMEOUT)? })
    }

    /// Where it connects to.
    pub fn endpoint(&self) -> &str {
        &self.http.endpoint
    }

    /// The same, but calls that fail for passing reasons are tried no longer than this.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { http: self.http.with_patience(patience) }
    }

    /// Asks until there is an answer, an error that stays, or no more patience.
    pub(crate) async fn ask(&self, ask: &Ask<'_>) -> Result<Json, Failure> {
        let mut tries = self.http.tries(&ask.path);
        loop {
            match self.ask_once(ask).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => tries.again(failure).await?,
            }
        }
    }

    /// The same; what fails is an error about `call`.
    pub(crate) async fn answer(&self, call: &Call<'_>, ask: &Ask<'_>) -> Result<Json> {
        self.ask(ask).await.map_err(|failure| failure.error(call))
    }

    async fn ask_once(&self, ask: &Ask<'_>) -> Result<Json, Failure> {
        let url = match ask.service {
            Service::Bigquery => format!("{}/bigquery/v2/projects/{}", self.http.endpoint, ask.path),
            Service::DataTransfer if self.http.endpoint == SERVICE => {
                format!("{TRANSFER}/v1/projects/{}", ask.path)
            }
            Service::DataTransfer => format!("{}/v1/projects/{}", self.http.endpoint, ask.path),
        };
        let mut request = self.http.request(ask.method.clone(), &url).await?.query(&ask.query);
        if let Some(etag) = ask.etag {
            request = request.header(header::IF_MATCH, etag);
        }
        if let Some(body) = &ask.body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        let body = response.bytes().await.map_err(lost)?;
        if !status.is_success() {
            return Err(Failure::read(status.as_u16(), &body));
        }
        if body.is_empty() {
            return Ok(Json::Null);
        }
        serde_json::from_slice(&body).map_err(|_| Failure::no_answer("the answer is no JSON".to_owned()))
    }
}

/// A name as a segment of a path.
pub(crate) fn segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b':' | b'$') {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_segments() {
        assert_eq!(segment("my table/ü"), "my%20table%2F%C3%BC");
        assert_eq!(segment("example.com:acme"), "example.com:acme");
    }
}
