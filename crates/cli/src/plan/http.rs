//! Where a pipeline answers over HTTP, and who may ask.

use std::net::{Ipv4Addr, SocketAddr};

use millstream_server::{Guard, Token};

use super::Checker;
use crate::config::{HttpConfig, MetricsConfig, Step};

const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9249);
/// A token that fewer attempts would find than a network lets through in a year.
const TOKEN_CHARS_MIN: usize = 16;

/// The HTTP API.
#[derive(Debug, Clone)]
pub(crate) struct HttpPlan {
    pub(crate) listen: SocketAddr,
    token: Option<Token>,
}

impl HttpPlan {
    /// Who may ask the API that listens there.
    pub(crate) fn guard(&self) -> Guard {
        Guard::new(self.listen.ip(), self.token.clone())
    }
}

impl Checker<'_> {
    pub(super) fn http(&mut self, given: &HttpConfig) -> HttpPlan {
        let at = |key: &str| [Step::from("http"), Step::from(key)];
        let listen = self.address(&at("listen"), given.listen.as_deref(), HTTP);
        let token = given.token.as_ref().map(|secret| secret.0.as_str());
        if let Some(token) = token
            && (token.len() < TOKEN_CHARS_MIN || !token.bytes().all(|b| b.is_ascii_graphic()))
        {
            let message =
                format!("a token is {TOKEN_CHARS_MIN} or more visible ASCII characters without blanks");
            self.problem(&at("token"), message, "for example what `openssl rand -hex 32` prints");
        }
        if token.is_none() && !listen.ip().is_loopback() {
            let help = "add `token: ${MILLSTREAM_TOKEN}`, or listen on 127.0.0.1";
            let message = "whoever reaches this address could end the pipeline: it needs a `token`";
            self.problem(&at("listen"), message, help);
        }
        HttpPlan { listen, token: token.map(Token::new) }
    }

    pub(super) fn metrics(&mut self, given: &MetricsConfig, http: Option<&HttpPlan>) -> SocketAddr {
        let at = [Step::from("metrics"), Step::from("listen")];
        let listen = self.address(&at, given.listen.as_deref(), METRICS);
        if listen.port() != 0 && http.is_some_and(|http| http.listen == listen) {
            let help = "choose another port, or remove `metrics`: the HTTP API has `/metrics` too";
            self.problem(&at, "the HTTP API listens there already", help);
        }
        listen
    }

    fn address(&mut self, at: &[Step], given: Option<&str>, default: SocketAddr) -> SocketAddr {
        let Some(text) = given else { return default };
        let text = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        text.parse().unwrap_or_else(|_| {
            let message = "`listen` is an IP address and a port";
            self.problem(
                at,
                message,
                format!("for example `{default}`, `0.0.0.0:{}` or `[::1]:0`", default.port()),
            );
            default
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;

    fn read(text: &str) -> Result<Plan, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.yaml");
        let rest = "source: { type: files, path: in.jsonl }\nsinks: [{ type: discard }]\n";
        std::fs::write(&file, format!("{text}\n{rest}")).unwrap();
        let environment = |name: &str| match name {
            "TOKEN" => Some("0123456789abcdef".to_owned()),
            "SHORT" => Some("hunter2".to_owned()),
            _ => None,
        };
        Plan::read(&file, &environment)
            .map_err(|problems| problems.render(false).replace(&dir.path().display().to_string(), ""))
    }

    #[test]
    fn what_is_not_asked_for_is_off_and_loopback_is_the_default() {
        let none = read("").unwrap();
        assert!(none.http.is_none() && none.metrics.is_none());
        let all = read("http: {}\nmetrics: {}").unwrap();
        assert_eq!(all.http.unwrap().listen.to_string(), "127.0.0.1:8080");
        assert_eq!(all.metrics.unwrap().to_string(), "127.0.0.1:9249");
        let given = read("http: { listen: '[::1]:0' }\nmetrics: { listen: 0.0.0.0:9249 }").unwrap();
        assert_eq!(given.http.unwrap().listen.to_string(), "[::1]:0");
        let open = read("http: { listen: 0.0.0.0:8080, token: '${TOKEN}' }").unwrap();
        assert!(!format!("{open:?}").contains("0123456789abcdef"), "the token is not shown");
        let local = read("http: { listen: localhost:0 }\nmetrics: { listen: localhost:0 }").unwrap();
        assert_eq!(local.metrics.unwrap().to_string(), "127.0.0.1:0");
    }

    #[test]
    fn what_makes_no_sense_has_its_place() {
        insta::assert_snapshot!("http_without_token", read("http: { listen: 0.0.0.0:8080 }").unwrap_err());
        let short = read("http:\n  token: ${SHORT}\nmetrics: { listen: 127.0.0.1:8080 }").unwrap_err();
        assert!(!short.contains("hunter2"), "{short}");
        insta::assert_snapshot!("http_nonsense", short);
        insta::assert_snapshot!(
            "http_listen",
            read("http: { listen: 8080 }\nmetrics: { listen: here }").unwrap_err()
        );
    }
}
