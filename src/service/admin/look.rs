//! The routes that show: health, metrics, status, shards, queues, journal, explain.
//!
//! Must never change anything. Tested in `tests/it/admin.rs`.

use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::App;
use super::follow::follow;
use super::guard::Trusted;
use super::input::{id, limit, query};
use super::problem::{INTERNAL, NOT_LIVE, NOT_READY, Problem};
use crate::engine::view::{
    EngineState, Explanation, JournalEntry, JournalQuery, QueuePage, QueueQuery, ShardStatus, Status,
};
use crate::service::telemetry::metrics::Page;

/// The OpenAPI document of all this.
const OPENAPI: &str = include_str!("openapi.json");

/// `GET /livez`: whether the process should go on. Asks nothing but this process (B80).
pub(super) async fn livez(State(app): State<Arc<App>>, Extension(trusted): Extension<Trusted>) -> Response {
    let health = app.backend.health();
    match health.live {
        true => "ok\n".into_response(),
        false => Problem::new(NOT_LIVE, problems(&health.problems, trusted)).into_response(),
    }
}

/// `GET /readyz`: whether it takes events.
pub(super) async fn readyz(State(app): State<Arc<App>>, Extension(trusted): Extension<Trusted>) -> Response {
    let health = app.backend.health();
    match health.live && health.ready {
        true => "ok\n".into_response(),
        false => Problem::new(NOT_READY, problems(&health.problems, trusted)).into_response(),
    }
}

/// Probes need no token, but ids and names are only for those who have one.
fn problems(problems: &[String], trusted: Trusted) -> String {
    match trusted.0 {
        true if problems.is_empty() => "it has not started yet, or is stopping".into(),
        true => problems.join("; "),
        false => "ask with a token, or read the log, to learn why".into(),
    }
}

/// `GET /metrics`: the Prometheus page, made on a thread where it holds up nobody.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let page = app.page.clone();
    let text = match tokio::task::spawn_blocking(move || page.render()).await {
        Ok(text) => text.map_err(|error| Problem::new(INTERNAL, error.to_string()))?,
        Err(_) => return Err(Problem::new(INTERNAL, "the page could not be made; the log says why")),
    };
    Ok(([(CONTENT_TYPE, Page::CONTENT_TYPE)], text).into_response())
}

/// `GET /v1/openapi.json`
pub(super) async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

/// `GET /v1/status`
pub(super) async fn status(State(app): State<Arc<App>>) -> Result<Json<Status>, Problem> {
    app.ask(app.backend.status()).await.map(Json)
}

/// The answer of `GET /v1/shards`.
#[derive(Serialize)]
pub(super) struct Shards {
    shards: Vec<ShardStatus>,
}

/// `GET /v1/shards`
pub(super) async fn shards(State(app): State<Arc<App>>) -> Result<Json<Shards>, Problem> {
    let shards = app.ask(app.backend.shards()).await?;
    Ok(Json(Shards { shards }))
}

/// `GET /v1/queues`
pub(super) async fn queues(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<QueuePage>, Problem> {
    let asked: QueueQuery = query(&uri)?;
    let asked = QueueQuery { limit: Some(limit(asked.limit)?), ..asked };
    app.ask(app.backend.queues(asked)).await.map(Json)
}

/// The query of `GET /v1/journal`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalParams {
    id: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    follow: bool,
}

/// The answer of `GET /v1/journal`.
#[derive(Serialize)]
pub(super) struct Journal {
    entries: Vec<JournalEntry>,
}

/// `GET /v1/journal`
pub(super) async fn journal(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    let asked: JournalParams = query(&uri)?;
    asked.id.as_deref().map(id).transpose()?;
    let most = limit(asked.limit)?;
    if asked.follow {
        return follow(app, asked.id, asked.limit.unwrap_or(0)).await;
    }
    let entries = app.ask(app.backend.journal(JournalQuery { id: asked.id, limit: Some(most) })).await?;
    Ok(Json(Journal { entries }).into_response())
}

/// The query of `GET /v1/explain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainParams {
    id: String,
}

/// `GET /v1/explain`
pub(super) async fn explain(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Explanation>, Problem> {
    let asked: ExplainParams = query(&uri)?;
    id(&asked.id)?;
    app.ask(app.backend.explain(&asked.id)).await.map(Json)
}

/// The answer of `POST /v1/drain`.
#[derive(Serialize)]
pub(super) struct Draining {
    pub(super) state: EngineState,
}
