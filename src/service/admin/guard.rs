//! Who may ask: the checks that every request passes before anything else looks at it.
//!
//! Must never let a web page reach a process on its reader's machine (DNS rebinding, forged requests), nor let anybody
//! in without a token where one is set. No CORS header is ever sent. Tested in `tests/it/admin_security.rs`.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::{FOREIGN, INVALID, Problem, TOKEN, TOKEN_FILE, URI_TOO_LONG};
use super::token::TokenFile;

/// The longest path and query: an id of 512 bytes, percent-encoded, takes a fifth of it.
const URI_BYTES_MAX: usize = 8 * 1024;

/// Paths for probes and scrapers, which carry no token, and for the page that asks for one. What they answer depends on
/// [`Trusted`].
const OPEN_PATHS: [&str; 4] = ["/", "/livez", "/readyz", "/metrics"];

/// What the checks need to know.
#[derive(Debug)]
pub(super) struct Guard {
    /// The server listens on this machine only, where a browser may be led to it by a foreign name.
    pub loopback: bool,
    /// The tokens, if any are asked for.
    pub tokens: Option<TokenFile>,
}

/// The request has shown a token, or none is asked for: it may be told everything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trusted(pub bool);

/// Lets a request pass, or answers it.
pub(super) async fn guard(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    let mut response = match guard.admit(&mut request) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            tracing::debug!(path = request.uri().path(), ?problem, "refused a request");
            problem.into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

impl Guard {
    fn admit(&self, request: &mut Request) -> Result<(), Problem> {
        let uri = request.uri();
        if uri.path_and_query().is_some_and(|path| path.as_str().len() > URI_BYTES_MAX) {
            return Err(Problem::new(URI_TOO_LONG, format!("path and query may have {URI_BYTES_MAX} bytes")));
        }
        let host = self.check_host(request)?;
        check_origin(request.headers(), host.as_ref())?;
        let open = OPEN_PATHS.contains(&uri.path());
        let trusted = match &self.tokens {
            None => true,
            Some(tokens) => match tokens.admits(request.headers()) {
                Ok(admitted) => admitted,
                Err(_) if open => false,
                Err(error) => {
                    tracing::warn!(%error, "nobody gets in");
                    return Err(Problem::new(TOKEN_FILE, "the server cannot read its token file; its log says why"));
                }
            },
        };
        if !trusted && !open {
            let detail = "send `Authorization: Bearer TOKEN` with a token of the file that `admin.token_file` names";
            return Err(Problem::new(TOKEN, detail));
        }
        request.extensions_mut().insert(Trusted(trusted));
        Ok(())
    }

    /// The host that the request names. On loopback it must be this machine, so that no foreign name leads here.
    fn check_host(&self, request: &Request) -> Result<Option<Authority>, Problem> {
        let mut values = request.headers().get_all(HOST).iter();
        let named = match (values.next(), values.next()) {
            (Some(value), None) => Some(
                value
                    .to_str()
                    .ok()
                    .and_then(|text| text.parse::<Authority>().ok())
                    .ok_or_else(|| bad_host("broken"))?,
            ),
            (None, _) if request.version() == Version::HTTP_10 => None,
            (None, _) => return Err(bad_host("missing")),
            (Some(_), Some(_)) => return Err(bad_host("given twice")),
        };
        // A request line may hold a whole address; it then counts instead of the header, so both must be right.
        for authority in named.iter().chain(request.uri().authority()) {
            if self.loopback && !is_this_machine(authority.host()) {
                let detail = "this server answers to localhost and loopback addresses only; ask it by one of these";
                return Err(Problem::new(FOREIGN, detail));
            }
        }
        Ok(named)
    }
}

fn bad_host(what: &str) -> Problem {
    Problem::new(INVALID, format!("the Host header is {what}; send one with the server's address"))
}

/// A browser says which page a request comes from; only one that this server sent itself may ask, and it sends none.
fn check_origin(headers: &HeaderMap, host: Option<&Authority>) -> Result<(), Problem> {
    let refused = || Problem::new(FOREIGN, "requests of web pages from elsewhere are refused");
    for origin in headers.get_all(ORIGIN) {
        let origin = origin.to_str().ok().and_then(|text| text.split_once("://"));
        let same = origin.is_some_and(|(scheme, authority)| {
            matches!(scheme, "http" | "https") && host.is_some_and(|host| host.as_str().eq_ignore_ascii_case(authority))
        });
        if !same {
            return Err(refused());
        }
    }
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        None | Some(b"none" | b"same-origin") => Ok(()),
        Some(_) => Err(refused()),
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in
            ["", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1", "[::2]", "2130706433"]
        {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
