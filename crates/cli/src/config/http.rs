//! Where a running pipeline answers over HTTP.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

/// The HTTP API of the running pipeline. Without this key there is none; `http: {}` is enough for one.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpConfig {
    /// Address and port; port 0 takes a free one, which `status` shows. `127.0.0.1:8080` by default.
    pub(crate) listen: Option<String>,
    /// What `Authorization: Bearer …` must hold to change anything, such as `${MILLSTREAM_TOKEN}`: 16 or more visible ASCII
    /// characters. Required unless `listen` is a loopback address.
    pub(crate) token: Option<Secret>,
}

/// Metrics for Prometheus at `/metrics`. Without this key there are none but those of the HTTP API; `metrics: {}` is enough.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricsConfig {
    /// Address and port; port 0 takes a free one, which `status` shows. `127.0.0.1:9249` by default.
    pub(crate) listen: Option<String>,
}

/// A text that is never shown.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
