//! What a request is told when it cannot be answered: RFC 9457 problems.
//!
//! Must never show more than the asker may know: a detail is made of what the request said and of fixed words.
//! docs/http-api.md lists the kinds; `tests/it/admin_docs.rs` compares.

use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::engine::HandleError;

/// When to ask again where nothing better is known.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// A kind of problem: its short name, its status and its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The last part of `type`.
    pub name: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The same words for every problem of this kind.
    pub title: &'static str,
}

macro_rules! kinds {
    ($($constant:ident = $status:literal $name:literal $title:literal;)*) => {
        $(pub(super) const $constant: Kind = Kind { name: $name, status: $status, title: $title };)*
        /// All of them.
        pub const KINDS: &[Kind] = &[$($constant),*];
    };
}

kinds! {
    INVALID = 400 "invalid-request" "the request makes no sense";
    TOKEN = 401 "token-needed" "a token is needed";
    FOREIGN = 403 "foreign-origin" "this host or origin may not ask";
    NOT_FOUND = 404 "not-found" "there is nothing at this path";
    METHOD = 405 "method-not-allowed" "this path takes another method";
    SLOW_BODY = 408 "body-too-slow" "the body came too slowly";
    TOO_LARGE = 413 "body-too-large" "the body is too large";
    URI_TOO_LONG = 414 "uri-too-long" "the address is too long";
    MEDIA_TYPE = 415 "media-type" "the body must be JSON";
    FULL = 429 "full" "the queues are full";
    INTERNAL = 500 "internal" "an internal error";
    STOPPING = 503 "stopping" "the process is stopping";
    UNAVAILABLE = 503 "unavailable" "not to be had here";
    NOT_DURABLE = 503 "not-durable" "the store did not take the record";
    BUSY = 503 "busy" "the process did not answer in time";
    TOKEN_FILE = 503 "token-file" "the token file cannot be used";
    NOT_LIVE = 503 "not-live" "something is stuck";
    NOT_READY = 503 "not-ready" "not ready";
    WAITED = 504 "waited-too-long" "the run has not ended in time";
}

/// What every `type` begins with.
pub const TYPE_PREFIX: &str = "urn:evenkeel:problem:";

/// A request that cannot be answered.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    kind: Kind,
    detail: String,
    answers: Option<Value>,
}

/// The JSON of a problem.
#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    answers: Option<&'a Value>,
}

impl Problem {
    /// A problem of this kind; the detail says what is wrong here and what to do.
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), answers: None }
    }

    /// Which kind it is.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// What is wrong here and what to do.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// A request that makes no sense.
    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(INVALID, detail)
    }

    /// Adds the answers per id.
    pub(super) fn with_answers(mut self, answers: &impl Serialize) -> Self {
        self.answers = serde_json::to_value(answers).ok();
        self
    }
}

impl From<HandleError> for Problem {
    fn from(error: HandleError) -> Self {
        let kind = match error {
            HandleError::Stopped => STOPPING,
            HandleError::NotLed(_) => UNAVAILABLE,
            HandleError::Invalid(_) => INVALID,
        };
        Self::new(kind, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Kind { name, status, title } = self.kind;
        let (detail, answers) = (self.detail.as_str(), self.answers.as_ref());
        let body = Body { r#type: format!("{TYPE_PREFIX}{name}"), title, status, detail, answers };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Maps of strings always have a JSON form.
        let mut response = (status, serde_json::to_vec(&body).unwrap_or_default()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"evenkeel\""));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SOON.as_secs()));
            }
            _ => {}
        }
        response
    }
}
