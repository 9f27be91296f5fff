//! Asking a running pipeline over its HTTP API, from this machine or another.
//!
//! Limits: plain HTTP, as the API itself; an answer is at most 64 MiB and comes within 75 s.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use millstream_core::{Error, Result};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

const ANSWER_BYTES_MAX: usize = 64 << 20;
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// A little longer than the API itself takes at most.
const ANSWER_PATIENCE: Duration = Duration::from_secs(75);

/// A pipeline's HTTP API.
pub(crate) struct Remote {
    /// Host and port.
    authority: String,
    port: u16,
    host: String,
    /// Before `/api`, where a proxy has put it there; without a slash at its end.
    prefix: String,
    /// `Bearer TOKEN`.
    authorization: Option<HeaderValue>,
}

impl Remote {
    /// The API at `url`; what is wrong with it or the token otherwise.
    pub(crate) fn new(url: &str, token: Option<&str>) -> Result<Self, String> {
        let uri: Uri =
            url.parse().map_err(|_| format!("`{url}` is not a URL such as http://127.0.0.1:8080"))?;
        let authority = match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) => authority,
            (Some("https"), _) => {
                return Err(
                    "the HTTP API speaks plain HTTP: give an http:// URL, or go through a tunnel".to_owned()
                );
            }
            _ => return Err(format!("`{url}` is not a URL such as http://127.0.0.1:8080")),
        };
        let authorization = token.map(|token| {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            value.map_err(|_| "the token holds characters that no header can".to_owned())
        });
        Ok(Self {
            authority: authority.as_str().to_owned(),
            port: authority.port_u16().unwrap_or(80),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authorization: authorization.transpose()?,
        })
    }

    /// What a path under `/api` says.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        self.ask(Method::GET, path, None)
    }

    /// Asks for what a path under `/api` does.
    pub(crate) fn post(&self, path: &str, body: Option<&Value>) -> Result<Value> {
        self.ask(Method::POST, path, body)
    }

    fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::fatal("cannot start a connection").with_source(e))?;
        let at = format!("http://{}", self.authority);
        let answer =
            runtime.block_on(async { timeout(ANSWER_PATIENCE, self.exchange(method, path, body)).await });
        let (status, bytes) = answer.map_err(|_| {
            Error::transient(format!("{at} gave no answer within {} s", ANSWER_PATIENCE.as_secs()))
        })??;
        let value: Option<Value> = serde_json::from_slice(&bytes).ok();
        match value {
            Some(value) if status.is_success() => Ok(value),
            Some(value) if value["error"].is_string() => {
                let error = value["error"].as_str().unwrap_or_default();
                Err(Error::fatal(format!("{at} says: {error} ({status})")))
            }
            _ => Err(Error::fatal(format!(
                "{at} is not a Millstream pipeline's HTTP API: it answers {status}"
            ))),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes)> {
        let lost = |e: hyper::Error| {
            Error::transient(format!("lost the connection to http://{}", self.authority)).with_source(e)
        };
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let unreachable = || format!("cannot reach http://{}", self.authority);
        let stream = match timeout(CONNECT_PATIENCE, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return Err(Error::transient(unreachable()).with_source(e)),
            Err(_) => return Err(Error::transient(format!("{}: nothing answers", unreachable()))),
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        // Its error is the request's too.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/api/{path}", self.prefix))
            .header(HOST, &self.authority);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| Error::fatal("the request cannot be written").with_source(e))?;
        let response = sender.send_request(request).await.map_err(lost)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|e| {
            Error::transient(format!("http://{}: no whole answer", self.authority)).with_source(e)
        })?;
        Ok((status, body.to_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_hosts_ports_and_maybe_a_path() {
        let at = |url: &str| Remote::new(url, None).map(|r| (r.host, r.port, r.prefix));
        assert_eq!(
            at("http://pipelines.internal:8080"),
            Ok(("pipelines.internal".to_owned(), 8080, String::new()))
        );
        assert_eq!(at("http://[::1]:1/shop/"), Ok(("::1".to_owned(), 1, "/shop".to_owned())));
        assert_eq!(at("http://h").unwrap().1, 80);
        for wrong in ["h:8080", "https://h", "ftp://h", "", "/api", "http://"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
        let refused = Remote::new("http://h", Some("hunter2\n")).err().unwrap();
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}
