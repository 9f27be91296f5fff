//! Who may ask what.
//!
//! Whoever reaches a loopback address may do everything: those are the machine's own users. But web pages reach it too,
//! through the browser of whoever works there. So what changes anything is refused to requests that another site made, and where no
//! token is set, a request must name this machine (`Host`): a page whose name was pointed to 127.0.0.1 does not. Elsewhere
//! a token is required for everything that changes something.

use std::fmt;
use std::net::IpAddr;

use axum::http::{HeaderMap, Method, StatusCode, header};
use subtle::ConstantTimeEq;

/// A secret that its holder may ask with. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Takes as long for a guess that is nearly right as for any other of its length.
    fn is(&self, guess: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(guess).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Decides by a request's head alone.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    token: Option<Token>,
    local: bool,
}

/// Why a request was refused.
pub(crate) type Refused = (StatusCode, &'static str);

impl Guard {
    /// For a listener at `address`. The caller sees to it that there is a token where the address is no loopback one.
    pub fn new(address: IpAddr, token: Option<Token>) -> Self {
        Self { token, local: address.is_loopback() }
    }

    pub(crate) fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<(), Refused> {
        if self.local && self.token.is_none() && !names_this_machine(headers) {
            let text = "this address answers only requests for this machine (Host: localhost); set `http.token` to be reached by other names";
            return Err((StatusCode::FORBIDDEN, text));
        }
        if matches!(*method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        if is_of_another_site(headers) {
            return Err((StatusCode::FORBIDDEN, "a page of another site may not ask for this"));
        }
        match &self.token {
            Some(token) if bearer(headers).is_some_and(|guess| token.is(guess)) => Ok(()),
            None if self.local => Ok(()),
            _ => Err((
                StatusCode::UNAUTHORIZED,
                "needs `Authorization: Bearer TOKEN` with the token of `http.token`",
            )),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Browsers always name the host; who does not is no browser.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Browsers say where a request that changes something comes from.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site")
        && !matches!(site.as_bytes(), b"same-origin" | b"none")
    {
        return true;
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let own = headers.get(header::HOST).map(|host| host.as_bytes());
    let of = origin.as_bytes();
    let of = of.strip_prefix(b"http://").or_else(|| of.strip_prefix(b"https://"));
    of.is_none() || of != own
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn answer(guard: &Guard, method: Method, headers: &[(&str, &str)]) -> u16 {
        let headers = headers.iter().map(|(name, value)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        });
        match guard.admit(&method, &headers.collect()) {
            Ok(()) => 200,
            Err((status, _)) => status.as_u16(),
        }
    }

    #[test]
    fn without_a_token_this_machine_may_and_web_pages_may_not() {
        let guard = Guard::new([127, 0, 0, 1].into(), None);
        let (get, post) =
            (|h: &[_]| answer(&guard, Method::GET, h), |h: &[_]| answer(&guard, Method::POST, h));
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "[::1]"] {
            assert_eq!((get(&[("host", host)]), post(&[("host", host)])), (200, 200), "{host}");
        }
        for host in
            ["evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1"]
        {
            assert_eq!((get(&[("host", host)]), post(&[("host", host)])), (403, 403), "{host}");
        }
        let at = |name, value| [("host", "localhost:1"), (name, value)];
        for origin in ["http://evil.example", "null", "http://localhost:2", "localhost:1"] {
            assert_eq!(post(&at("origin", origin)), 403, "{origin}");
            assert_eq!(get(&at("origin", origin)), 200, "the browser does not show it to that page");
        }
        assert_eq!(post(&at("origin", "http://localhost:1")), 200);
        assert_eq!(post(&at("sec-fetch-site", "cross-site")), 403);
        assert_eq!(post(&at("sec-fetch-site", "same-site")), 403);
        assert_eq!(post(&at("sec-fetch-site", "same-origin")), 200);
        assert_eq!(post(&[]), 200);
    }

    #[test]
    fn with_a_token_only_its_holder_may_change_anything() {
        let token = Some(Token::new("a-token-that-nobody-guesses"));
        for address in [IpAddr::from([0, 0, 0, 0]), IpAddr::from([127, 0, 0, 1])] {
            let guard = Guard::new(address, token.clone());
            let post = |value: &str| answer(&guard, Method::POST, &[("authorization", value)]);
            assert_eq!(answer(&guard, Method::GET, &[("host", "pipelines.internal")]), 200);
            assert_eq!(post("Bearer a-token-that-nobody-guesses"), 200);
            assert_eq!(post("bearer  a-token-that-nobody-guesses "), 200);
            for wrong in [
                "",
                "Bearer",
                "Bearer ",
                "Bearer a-token",
                "Basic a-token-that-nobody-guesses",
                "Bearer b-token-that-nobody-guesses",
            ] {
                assert_eq!(post(wrong), 401, "{wrong}");
            }
            assert_eq!(answer(&guard, Method::DELETE, &[]), 401);
        }
        let none = Guard::new([0, 0, 0, 0].into(), None);
        assert_eq!(answer(&none, Method::POST, &[]), 401, "no token opens what has none");
        assert_eq!(format!("{token:?}"), "Some(Token(…))");
    }
}
