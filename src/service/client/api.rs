//! Requests to the admin API, and what goes wrong with them, in words.
//!
//! Must never show a token, follow a redirect, or leave the asker to guess what to do. Its errors hold their whole text
//! and no source, so that a broken connection is never taken for a reader of standard output that went away.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::service::cli::UsageError;
use crate::service::telemetry::text::{printable, shortened};

/// How long a connection may take to open.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take that waits for no run: a little longer than the server gives itself.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// The same for an answer that waits for runs.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(630);
/// A stream that is silent for so long is dead: the server sends something every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// So much of an answer that is not understood is shown.
const SHOWN_CHARS_MAX: usize = 200;

/// The API of one process.
pub(super) struct Api {
    http: reqwest::Client,
    base: Url,
}

/// What went wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct ApiError(pub String);

/// A problem as the server tells it.
#[derive(Debug, Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    title: String,
    #[serde(default)]
    detail: String,
    /// The answers per id, with a trigger.
    pub answers: Option<serde_json::Value>,
}

/// An answer, or a problem.
pub(super) enum Reply<T> {
    Answer(T),
    Problem(StatusCode, Problem),
}

impl Api {
    /// The API at this address, with the token of this file.
    ///
    /// # Errors
    /// The address or the file cannot be used, as a [`UsageError`].
    pub(super) fn new(server: &str, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let base = base(server)?;
        let mut headers = HeaderMap::new();
        if let Some(path) = token_file {
            headers.insert(AUTHORIZATION, authorization(path)?);
        }
        // Another part of the process may have chosen one; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_MAX)
            .read_timeout(WAIT_MAX);
        if base.scheme() == "http" {
            // Saves reading the system's certificates.
            http = http.tls_certs_only([]);
        }
        let http = http.build().map_err(|error| ApiError(format!("cannot set up HTTP: {error}")))?;
        Ok(Self { http, base })
    }

    /// Which process is asked.
    pub(super) fn server(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Asks for something to see.
    ///
    /// # Errors
    /// The server does not answer, or says no.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<T> {
        let response = self.send(Method::GET, path, query, None::<&()>, Some(ANSWER_MAX)).await?;
        match self.reply(response).await? {
            Reply::Answer(answer) => Ok(answer),
            Reply::Problem(status, problem) => Err(self.refusal(status, &problem)),
        }
    }

    /// Asks a probe: `None` where all is well, else what it says.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) async fn probe(&self, path: &str) -> anyhow::Result<Option<String>> {
        let response = self.send(Method::GET, path, &[], None::<&()>, Some(ANSWER_MAX)).await?;
        if response.status().is_success() {
            return Ok(None);
        }
        match self.reply::<serde_json::Value>(response).await? {
            Reply::Problem(_, problem) => Ok(Some(format!("{}: {}", problem.title, problem.detail))),
            Reply::Answer(_) => Err(ApiError(self.stranger("an answer that is none of a probe")).into()),
        }
    }

    /// Asks for something to be done, within this time.
    ///
    /// # Errors
    /// The server does not answer.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: &impl Serialize,
        most: Option<Duration>,
    ) -> anyhow::Result<Reply<T>> {
        let response = self.send(Method::POST, path, query, Some(body), Some(most.unwrap_or(ANSWER_MAX))).await?;
        self.reply(response).await
    }

    /// Opens a stream of events.
    ///
    /// # Errors
    /// The server does not answer, or says no.
    pub(super) async fn open(&self, path: &str, query: &[(&str, String)]) -> anyhow::Result<Response> {
        let response = self.send(Method::GET, path, query, None::<&()>, None).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        match self.reply::<serde_json::Value>(response).await? {
            Reply::Problem(status, problem) => Err(self.refusal(status, &problem)),
            Reply::Answer(_) => Err(ApiError(self.stranger("an answer that is no stream")).into()),
        }
    }

    /// The next piece of a stream; `None` at its end.
    ///
    /// # Errors
    /// The connection broke off, or the server fell silent.
    pub(super) async fn piece(&self, stream: &mut Response) -> anyhow::Result<Option<Bytes>> {
        match tokio::time::timeout(SILENCE_MAX, stream.chunk()).await {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(self.fault(&error, None)),
            Err(_) => Err(ApiError(format!("{} has fallen silent", self.server())).into()),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&impl Serialize>,
        most: Option<Duration>,
    ) -> anyhow::Result<Response> {
        let mut url = self.base.clone();
        url.set_path(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url);
        if let Some(most) = most {
            request = request.timeout(most);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.map_err(|error| self.fault(&error, most))
    }

    async fn reply<T: DeserializeOwned>(&self, response: Response) -> anyhow::Result<Reply<T>> {
        let status = response.status();
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or("").to_owned();
        let body = response.bytes().await.map_err(|error| self.fault(&error, Some(ANSWER_MAX)))?;
        let read_error = |error: serde_json::Error| ApiError(self.stranger(&format!("what cannot be read ({error})")));
        if status.is_success() && kind.starts_with("application/json") {
            return Ok(Reply::Answer(serde_json::from_slice(&body).map_err(read_error)?));
        }
        if kind.starts_with("application/problem+json") {
            return Ok(Reply::Problem(status, serde_json::from_slice(&body).map_err(read_error)?));
        }
        let text = String::from_utf8_lossy(&body);
        let text = shortened(text.trim(), SHOWN_CHARS_MAX);
        Err(ApiError(self.stranger(&format!("HTTP {} {}", status.as_u16(), printable(&text)))).into())
    }

    /// What a problem means to whoever typed the command.
    pub(super) fn refusal(&self, status: StatusCode, problem: &Problem) -> anyhow::Error {
        let (title, detail) = (printable(&problem.title), printable(&problem.detail));
        let hint = match status {
            StatusCode::UNAUTHORIZED => "\n  --token-file FILE or EVENKEEL_TOKEN_FILE gives the token",
            StatusCode::SERVICE_UNAVAILABLE => "\n  `evenkeel status` may say more",
            _ => "",
        };
        match status {
            StatusCode::BAD_REQUEST => UsageError(detail.into_owned()).into(),
            StatusCode::UNAUTHORIZED => ApiError(format!("{} asks for a token{hint}", self.server())).into(),
            _ => ApiError(format!("{}: {title}: {detail}{hint}", self.server())).into(),
        }
    }

    fn fault(&self, error: &reqwest::Error, most: Option<Duration>) -> anyhow::Error {
        let server = self.server();
        let text = match (cause(error), error.is_timeout(), most) {
            (Some(ErrorKind::ConnectionRefused), ..) => format!(
                "cannot reach {server}: connection refused\n  is `evenkeel run` running? \
                 --server or EVENKEEL_SERVER says which process to ask"
            ),
            (_, true, Some(most)) if !error.is_connect() => {
                format!("no answer from {server} within {} s\n  its log may say why", most.as_secs())
            }
            _ if error.is_connect() => format!(
                "cannot reach {server}: {}\n  --server or EVENKEEL_SERVER says which process to ask",
                innermost(error)
            ),
            _ => format!("the connection to {server} broke off: {}", innermost(error)),
        };
        ApiError(text).into()
    }

    fn stranger(&self, what: &str) -> String {
        format!(
            "{} answered with {what}\n  is that the admin address of an `evenkeel run` of version {}?",
            self.server(),
            env!("CARGO_PKG_VERSION")
        )
    }
}

fn base(server: &str) -> Result<Url, UsageError> {
    // The text may hold a password: it is not repeated before that is known.
    let wrong = |what: &str| UsageError(format!("--server: {what}; give it as http://HOST:PORT"));
    let url = Url::parse(server).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong("not an http or https URL"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a name or password in the URL is of no use, the token comes from --token-file"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("only the address, without a path"));
    }
    Ok(url)
}

/// The first token of the file.
fn authorization(path: &Path) -> Result<HeaderValue, UsageError> {
    let wrong = |what: &str| UsageError(format!("--token-file {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let token = text.lines().map(str::trim).find(|line| !line.is_empty()).ok_or_else(|| wrong("it is empty"))?;
    let mut value =
        HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| wrong("the first line is no token"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The kind of the input/output error at the bottom, if there is one.
fn cause(error: &reqwest::Error) -> Option<ErrorKind> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return Some(error.kind());
        }
        source = error.source();
    }
    None
}

/// The error at the bottom says what happened; those above say that something did.
fn innermost(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    printable(&innermost.to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_makes_no_sense_is_a_usage_error_and_shows_no_password() {
        for (server, says) in [
            ("", "relative URL without a base"),
            ("127.0.0.1:7070", "http://HOST:PORT"),
            ("localhost:7070", "not an http or https URL"),
            ("ftp://x", "not an http or https URL"),
            ("http://", "empty host"),
            ("http://x:99999", "invalid port number"),
            ("http://me:canary@x", "--token-file"),
            ("http://x/v1", "without a path"),
            ("http://x/?a=canary", "without a path"),
        ] {
            let text = base(server).unwrap_err().to_string();
            assert!(text.contains(says) && !text.contains("canary"), "{server}: {text}");
        }
        for server in ["http://127.0.0.1:7070", "https://evenkeel.example/", "http://[::1]:1"] {
            assert!(base(server).is_ok(), "{server}");
        }
    }
}
