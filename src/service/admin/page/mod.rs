//! The status page at `/`: the process at a glance in a browser, made here and readable without scripts.
//!
//! Must never tell anything to somebody who has shown no token where one is asked for, run or load anything that did
//! not come with the page, or cost the engine more than a twentieth of its time. The page's script fetches the page
//! again and takes its parts over, so that all is rendered in one place; only the journal's lines are its own, as they
//! come from `/v1/journal?follow=true`. Tested in `tests/it/admin_page.rs`, and in a browser in `tests/live/page.rs`.

mod html;
mod parts;

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, WWW_AUTHENTICATE, X_FRAME_OPTIONS};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::App;
use super::guard::Trusted;
use super::problem::Problem;
use crate::engine::view::{
    Health, IdState, JournalEntry, JournalQuery, PAGE_MAX, QueueEntry, QueueQuery, ShardStatus, Status,
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// How long a part may wait for the engine before the page comes without it.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// A page is shown to everybody for so long before it is made anew.
const KEPT_MIN: Duration = Duration::from_secs(1);
/// And for so many times as long as it took to make: at a million ids it is fetched less often, not at a greater cost.
const KEPT_FACTOR: u32 = 20;
/// The last runs that are looked at for the slowest ones.
const RUNS_LOOKED_AT: usize = 500;

/// Nothing runs or is loaded but the script and the style that stand in the page, known by their digests.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(hmac_sha256::Hash::hash(text.as_bytes())));
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        digest(SCRIPT),
        digest(STYLE)
    )
});

/// The page as it was made last.
pub(super) struct Pages {
    /// One is made at a time; who comes meanwhile gets it too.
    turn: Semaphore,
    last: Mutex<Option<Made>>,
}

#[derive(Clone)]
struct Made {
    html: Arc<str>,
    fresh_until: Instant,
}

impl Pages {
    pub(super) fn new() -> Self {
        Self { turn: Semaphore::new(1), last: Mutex::new(None) }
    }

    fn fresh(&self) -> Option<Arc<str>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|made| Instant::now() < made.fresh_until).map(|made| Arc::clone(&made.html))
    }

    fn keep(&self, html: &Arc<str>, took: Duration) {
        let fresh_until = Instant::now() + (took * KEPT_FACTOR).max(KEPT_MIN);
        let made = Made { html: Arc::clone(html), fresh_until };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    }
}

/// `GET /`: the page, or the same page without anything on it, which asks for a token.
pub(super) async fn page(State(app): State<Arc<App>>, Extension(trusted): Extension<Trusted>) -> Response {
    if !trusted.0 {
        let headers = [(WWW_AUTHENTICATE, "bearer realm=\"evenkeel\"")];
        return (StatusCode::UNAUTHORIZED, headers, document(&parts::locked())).into_response();
    }
    document(&made(&app).await).into_response()
}

/// The page's body, made now or a moment ago.
async fn made(app: &App) -> Arc<str> {
    if let Some(html) = app.pages.fresh() {
        return html;
    }
    let _turn = app.pages.turn.acquire().await;
    if let Some(html) = app.pages.fresh() {
        return html;
    }
    let begun = Instant::now();
    let html: Arc<str> = View::ask(app).await.render().into();
    app.pages.keep(&html, begun.elapsed());
    html
}

fn document(body: &str) -> Response {
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>evenkeel</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    );
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (REFERRER_POLICY, "no-referrer"),
        (X_FRAME_OPTIONS, "DENY"),
    ];
    (headers, html).into_response()
}

/// A part that the engine did not answer for, in words.
type Part<T> = Result<T, String>;

/// All that the page shows. Each part may be missing without taking the others with it.
struct View {
    at: Timestamp,
    health: Health,
    status: Part<Status>,
    shards: Part<Vec<ShardStatus>>,
    running: Part<Vec<QueueEntry>>,
    parked: Part<Vec<QueueEntry>>,
    delayed: Part<Vec<QueueEntry>>,
    journal: Part<Vec<JournalEntry>>,
}

impl View {
    async fn ask(app: &App) -> Self {
        let (status, shards) = tokio::join!(
            part(app.within(ANSWER_MAX, app.backend.status())),
            part(app.within(ANSWER_MAX, app.backend.shards())),
        );
        // Where nothing is in a state, the table is not searched for it.
        let counts = status.as_ref().map(|status| status.counts).unwrap_or_default();
        let (running, parked, delayed, journal) = tokio::join!(
            queue(app, IdState::Running, counts.running),
            queue(app, IdState::Parked, counts.parked),
            queue(app, IdState::Delayed, counts.delayed),
            part(app.within(ANSWER_MAX, app.backend.journal(JournalQuery { id: None, limit: Some(RUNS_LOOKED_AT) }))),
        );
        let health = app.backend.health();
        Self { at: Timestamp::now(), health, status, shards, running, parked, delayed, journal }
    }

    fn render(&self) -> String {
        parts::all(self)
    }
}

async fn queue(app: &App, state: IdState, count: u64) -> Part<Vec<QueueEntry>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let query = QueueQuery { state: Some(state), limit: Some(PAGE_MAX), ..QueueQuery::default() };
    Ok(part(app.within(ANSWER_MAX, app.backend.queues(query))).await?.entries)
}

async fn part<T>(answer: impl Future<Output = Result<Result<T, crate::engine::HandleError>, Problem>>) -> Part<T> {
    match answer.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(problem) => Err(problem.detail().to_owned()),
    }
}
