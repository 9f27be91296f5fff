//! Where the service is and who asks: endpoints and credentials, for the REST API and for gRPC alike.

use std::path::{Path, PathBuf};
use std::sync::Once;

use google_cloud_auth::credentials::{self, CacheableResource, Credentials};
use http::{Extensions, HeaderMap};
use millstream_core::{Error, Result};

/// IAM says what the account may do; this only says that it may be asked. A load job reads Cloud Storage, too.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// How the service is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Connection {
    /// Endpoint of the REST API, for an emulator or a private endpoint.
    pub rest: Option<String>,
    /// Endpoint of the Storage Write API.
    pub grpc: Option<String>,
    /// Endpoint of Cloud Storage, for files that are loaded.
    pub gcs: Option<String>,
    /// File with credentials; else Application Default Credentials. A plaintext endpoint gets none.
    pub credentials: Option<PathBuf>,
}

impl Connection {
    /// The URL of an endpoint, which may be a mere `HOST:PORT`.
    ///
    /// # Errors
    /// If it is none that a client can connect to. The text does not show it: it may come from the environment.
    pub fn url(endpoint: &str) -> Result<String> {
        let url = if endpoint.contains("://") { endpoint.to_owned() } else { format!("http://{endpoint}") };
        let refuse = |what: &str| {
            let like = "`http://HOST:PORT` (an emulator) or `https://HOST`";
            Err(Error::fatal(format!("no endpoint of BigQuery: {what}; give {like}")))
        };
        let Ok(uri) = url.parse::<http::Uri>() else { return refuse("it is no URL") };
        let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            refuse("its scheme is neither `http` nor `https`")
        } else if uri.host().is_none_or(str::is_empty) {
            refuse("it names no host")
        } else if authority.contains('@') {
            refuse("it has a user, and credentials go into a file")
        } else if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            refuse("its port is no number up to 65535")
        } else if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            refuse("it has a path")
        } else {
            Ok(url.trim_end_matches('/').to_owned())
        }
    }
}

/// The credentials for one endpoint; none where it is plaintext.
#[derive(Debug, Clone)]
pub(crate) struct Auth(Option<Credentials>);

/// Why there is no access token.
#[derive(Debug)]
pub(crate) struct NoToken {
    pub(crate) text: String,
    pub(crate) is_transient: bool,
}

impl Auth {
    /// Reads the credentials, if the endpoint takes any.
    pub(crate) fn new(connection: &Connection, endpoint: &str) -> Result<Self> {
        install_crypto();
        let plaintext = endpoint.starts_with("http://");
        Ok(Self(if plaintext { None } else { Some(read(connection.credentials.as_deref())?) }))
    }

    /// What a request carries to say who asks.
    pub(crate) async fn headers(&self) -> Result<HeaderMap, NoToken> {
        let Some(credentials) = &self.0 else { return Ok(HeaderMap::new()) };
        let headers = credentials
            .headers(Extensions::new())
            .await
            .map_err(|e| NoToken { text: format!("no access token: {e}"), is_transient: e.is_transient() })?;
        Ok(match headers {
            CacheableResource::New { data, .. } => data,
            CacheableResource::NotModified => HeaderMap::new(),
        })
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

fn read(file: Option<&Path>) -> Result<Credentials> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody else may have chosen a provider of cryptography: then a client must not panic at its first use of TLS.
    #[tokio::test]
    async fn clients_for_tls_can_be_made() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let user = r#"{"type":"authorized_user","client_id":"a","client_secret":"b","refresh_token":"c"}"#;
        std::io::Write::write_all(&mut file, user.as_bytes()).unwrap();
        let credentials = Some(file.path().to_owned());
        let connection = Connection { credentials, ..Connection::default() };
        assert_eq!(crate::Rest::new(&connection).unwrap().endpoint(), "https://bigquery.googleapis.com");
        let storage = crate::Storage::new(&connection, 2).unwrap();
        assert_eq!(storage.endpoint(), "https://bigquerystorage.googleapis.com");
    }

    #[test]
    fn credentials_that_cannot_be_used_are_not_shown() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, br#"{"type":"secret"}"#).unwrap();
        let error = read(Some(file.path())).unwrap_err().to_string();
        assert!(error.contains("of no known type") && !error.contains("secret\""), "{error}");
        assert!(read(Some(Path::new("/nowhere/key.json"))).is_err());
    }

    #[test]
    fn endpoints_are_urls_without_a_path() {
        for (given, url) in [
            ("localhost:9050", "http://localhost:9050"),
            ("http://[::1]:9050/", "http://[::1]:9050"),
            ("https://bigquery.example.com", "https://bigquery.example.com"),
        ] {
            assert_eq!(Connection::url(given).unwrap(), url);
        }
        for bad in
            ["", "ftp://h", "http://u:secret@h", "http://h:99999", "http://h/bigquery/v2", "http://h?x"]
        {
            let error = Connection::url(bad).unwrap_err().to_string();
            assert!(error.contains("give `http") && !error.contains("secret"), "{error}");
        }
    }
}
