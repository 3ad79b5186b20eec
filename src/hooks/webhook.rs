//! A reconciler behind HTTP: one POST per run, the answer decides.
//!
//! Must never follow a redirect, read more than the cap, wait beyond the run's time (the body included), or show a
//! secret. Dropping the future aborts the request. Tested against real servers, good and bad, in `tests`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::HookError;
use super::http::{BodyError, HttpSettings, Target, describe, read_body, read_start, shown_location};
use super::retry_after;
use super::signature::Signer;
use super::stop::Stop;
use super::text::{ERROR_BYTES_MAX, Secrets};
use super::wire::{ANSWER_BYTES_MAX, Answer, Request, traceparent};
use crate::contract::{Action, Failure, Reconciler, Run};

/// The header with the token that lets a target refuse a run that was overtaken (L4).
const FENCING_TOKEN: HeaderName = HeaderName::from_static("evenkeel-fencing-token");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// How to reach a webhook.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WebhookSettings {
    /// The target.
    pub http: HttpSettings,
    /// A file with the secrets to sign with, one a line, base64 with or without `whsec_` before it; read again when it
    /// changes.
    pub secret_file: Option<PathBuf>,
}

impl WebhookSettings {
    /// A webhook at this address, unsigned.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { http: HttpSettings::new(url), secret_file: None }
    }
}

/// A reconciler that calls a webhook.
pub struct Webhook {
    target: Target,
    signer: Option<Signer>,
    warned: AtomicBool,
}

impl Webhook {
    /// Makes the reconciler; connections are made with the first runs.
    ///
    /// # Errors
    /// A setting that cannot be used: the URL, a header, a file.
    pub fn new(settings: WebhookSettings) -> Result<Self, HookError> {
        let target = Target::new(settings.http)?;
        let signer = settings.secret_file.map(Signer::new);
        if let Some(signer) = &signer {
            signer.keys(&mut Secrets::default())?;
        }
        Ok(Self { target, signer, warned: AtomicBool::new(false) })
    }

    /// One call, from the request to the outcome.
    async fn call(&self, run: &Run) -> Result<Action, Failure> {
        let body = Request::of(run).to_json()?;
        let mut call = self.target.call()?;
        self.add_headers(&mut call.headers, &mut call.secrets, run, &body)?;
        let request = call.client.post(self.target.url()).headers(call.headers).body(body);
        match request.send().await {
            Ok(response) => self.outcome(response, &call.secrets).await,
            Err(error) => {
                let reason = call.secrets.clean(&describe(&error.without_url()), ERROR_BYTES_MAX);
                Err(Failure::transient(format_args!("POST {}: {reason}", self.target.shown())))
            }
        }
    }

    /// The contract's headers; they replace what the settings have under the same names.
    fn add_headers(&self, to: &mut HeaderMap, secrets: &mut Secrets, run: &Run, body: &str) -> Result<(), Failure> {
        to.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        to.insert(FENCING_TOKEN, HeaderValue::from_str(&run.fencing_token().to_string())?);
        match run.trace_context().and_then(traceparent) {
            Some(parent) => to.insert(TRACEPARENT, HeaderValue::from_str(&parent)?),
            None => to.remove(TRACEPARENT),
        };
        for name in [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE] {
            to.remove(name);
        }
        let Some(signer) = &self.signer else { return Ok(()) };
        let (id, now) = (run.key(), SystemTime::UNIX_EPOCH.elapsed()?.as_secs());
        let signature = signer.keys(secrets)?.sign(&id, i64::try_from(now)?, body)?;
        to.insert(WEBHOOK_ID, HeaderValue::from_str(&id)?);
        to.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(now));
        to.insert(WEBHOOK_SIGNATURE, HeaderValue::from_str(&signature)?);
        Ok(())
    }

    /// What an answer means, by its status; the table stands in docs/reconcilers.md.
    async fn outcome(&self, mut response: Response, secrets: &Secrets) -> Result<Action, Failure> {
        let status = response.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(Action::done());
        }
        if status.is_success() {
            return self.answer(response, secrets).await;
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            self.target.forget_credentials();
            self.signer.iter().for_each(Signer::forget);
        }
        let detail = match shown_location(response.url(), response.headers()) {
            Some(location) if status.is_redirection() => {
                format!("redirects are not followed; if {location} is right, put it into url")
            }
            _ => {
                let text = read_start(&mut response, ERROR_BYTES_MAX).await;
                secrets.clean(&String::from_utf8_lossy(&text), ERROR_BYTES_MAX)
            }
        };
        let separator = if detail.is_empty() { "" } else { ": " };
        let message = format!("POST {} answered {status}{separator}{detail}", self.target.shown());
        if matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) {
            return Err(Failure::terminal(message));
        }
        let failure = Failure::transient(message);
        let delay = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        match delay.and_then(|value| retry_after::parse(value, SystemTime::now())) {
            Some(delay) => Err(failure.retry_after(delay)),
            None => Err(failure),
        }
    }

    /// A good status: JSON is the answer, anything else is passed over.
    async fn answer(&self, mut response: Response, secrets: &Secrets) -> Result<Action, Failure> {
        let shown = self.target.shown();
        let headers = response.headers();
        let text = |name| headers.get(name).map(|value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()));
        if let Some(encoding) = text(CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            let encoding = secrets.clean(&encoding, ERROR_BYTES_MAX);
            let message = format!("POST {shown}: the answer is compressed ({encoding}), which was not asked for");
            return Err(Failure::transient(message));
        }
        let declared_json = text(CONTENT_TYPE).is_some_and(|kind| is_json(&kind));
        let body = read_body(&mut response, ANSWER_BYTES_MAX).await.map_err(|error| match error {
            BodyError::TooLarge => {
                Failure::transient(format_args!("POST {shown}: the answer is larger than {ANSWER_BYTES_MAX} bytes"))
            }
            BodyError::Broken(reason) => Failure::transient(format_args!("POST {shown}: {reason}")),
        })?;
        let body = body.trim_ascii();
        if body.is_empty() {
            return Ok(Action::done());
        }
        // Many frameworks send JSON under another type; an error in it must not pass for success.
        if !declared_json && !body.starts_with(b"{") {
            self.warn_once();
            return Ok(Action::done());
        }
        match Answer::parse(body) {
            Ok(answer) => answer.outcome(secrets),
            Err(error) => {
                let error = secrets.clean(&error.to_string(), ERROR_BYTES_MAX);
                Err(Failure::transient(format_args!("POST {shown}: {error}")))
            }
        }
    }

    fn warn_once(&self) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "evenkeel::hook",
                "POST {} answered with a body that is not JSON; it is passed over and the run counts as done. \
                 Answer 204, or JSON with Content-Type: application/json (said once)",
                self.target.shown()
            );
        }
    }
}

impl Reconciler for Webhook {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        tokio::select! {
            biased;
            outcome = self.call(run) => outcome,
            stop = Stop::of(run) => Err(Failure::transient(format_args!("POST {}: {stop}", self.target.shown()))),
        }
    }
}

fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    kind == "application/json" || kind == "text/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}
