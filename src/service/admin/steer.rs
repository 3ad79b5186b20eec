//! The routes that change something: trigger, cancel, redrive, drain.
//!
//! Must never answer to GET, nor say that something was done before the engine has said so. Each call leaves a line in
//! the log that says who did what. Tested in `tests/it/admin.rs`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};

use super::App;
use super::connections::Peer;
use super::input::{json, query};
use super::look::Draining;
use super::problem::{BUSY, FULL, INVALID, Kind, NOT_DURABLE, Problem, UNAVAILABLE, WAITED};
use crate::engine::Select;
use crate::engine::view::{EngineState, SteerAnswer, TriggerAnswer, TriggerResult, WaitFor};
use crate::id::ID_BYTES_MAX;
use crate::service::telemetry::text::shortened;

/// The most ids in one call; whoever has more sends them in parts, and hears of each part.
pub const IDS_MAX: usize = 10_000;

/// How long `wait=done` and `durable=true` keep a connection.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The query of `POST /v1/trigger`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerParams {
    #[serde(default)]
    durable: bool,
    wait: Option<Wait>,
}

/// What `wait` can be.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wait {
    Done,
}

/// A body with ids.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ids {
    ids: Vec<String>,
}

/// The answers per id.
#[derive(Serialize)]
pub(super) struct Answers<T> {
    answers: Vec<T>,
}

/// `POST /v1/trigger` (X7).
pub(super) async fn trigger(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, Problem> {
    let params: TriggerParams = query(request.uri())?;
    let wait = match (params.durable, params.wait) {
        (false, None) => WaitFor::Admitted,
        (true, None) => WaitFor::Durable,
        (false, Some(Wait::Done)) => WaitFor::Done,
        (true, Some(Wait::Done)) => {
            return Err(Problem::invalid(
                "query: give durable=true or wait=done, not both: a run that ended needs no record",
            ));
        }
    };
    let Ids { ids } = json(request, app.body_patience).await?;
    check_count(&ids)?;
    tracing::debug!(%peer, ids = ids.len(), "trigger");
    let answers = match wait {
        WaitFor::Admitted => app.within(super::ANSWER_MAX, app.backend.trigger(ids, wait)).await?,
        WaitFor::Durable | WaitFor::Done => {
            let _place = app.waiters.try_acquire().map_err(|_| {
                Problem::new(BUSY, "too many requests wait already; try again, or trigger without waiting")
            })?;
            app.within(WAIT_MAX, app.backend.trigger(ids, wait)).await.map_err(waited)?
        }
    };
    Ok(triggered(answers, wait))
}

/// A wait that came to its end is not the engine's fault.
fn waited(problem: Problem) -> Problem {
    match problem.kind() == BUSY {
        true => Problem::new(WAITED, "the ids will run all the same; `GET /v1/explain` says what they wait for"),
        false => problem,
    }
}

fn check_count(ids: &[String]) -> Result<(), Problem> {
    match ids.len() {
        0 => Err(Problem::invalid("body: ids: give at least one id")),
        n if n > IDS_MAX => Err(Problem::invalid(format!("body: ids: {n} ids; at most {IDS_MAX} in one call"))),
        _ => Ok(()),
    }
}

/// One status where all ids fared alike, else 207 and the answers.
fn triggered(answers: Vec<TriggerAnswer>, wait: WaitFor) -> Response {
    let mut kinds = answers.iter().map(|answer| failure(&answer.result));
    let first = kinds.next().flatten();
    if kinds.any(|kind| kind.map(|k| k.name) != first.map(|k| k.name)) {
        return (StatusCode::MULTI_STATUS, Json(Answers { answers })).into_response();
    }
    match first {
        None if wait == WaitFor::Done => Json(Answers { answers }).into_response(),
        None => (StatusCode::ACCEPTED, Json(Answers { answers })).into_response(),
        Some(kind) => {
            let detail = match kind {
                INVALID => "no id among these keeps the id rules; the answers say which rule is broken",
                FULL => "no id could be admitted; try again when some have run",
                NOT_DURABLE => "the ids will run, but a crash before that would lose them; the answers say why",
                _ => "no id could be admitted here; the answers say why",
            };
            Problem::new(kind, detail).with_answers(&answers).into_response()
        }
    }
}

/// How an id that failed would be answered alone; `None` if it did not fail.
fn failure(result: &TriggerResult) -> Option<Kind> {
    match result {
        TriggerResult::Full => Some(FULL),
        TriggerResult::Refused { .. } => Some(INVALID),
        TriggerResult::Unavailable { .. } => Some(UNAVAILABLE),
        TriggerResult::NotDurable { .. } => Some(NOT_DURABLE),
        TriggerResult::Admitted
        | TriggerResult::AlreadyPresent
        | TriggerResult::Durable
        | TriggerResult::Ended { .. }
        | TriggerResult::Dropped => None,
    }
}

/// `POST /v1/cancel`
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Json<Answers<SteerAnswer>>, Problem> {
    let Ids { ids } = json(request, app.body_patience).await?;
    check_count(&ids)?;
    tracing::info!(%peer, ids = ids.len(), first = &*first(&ids), "cancel was asked for");
    let answers = app.ask(app.backend.cancel(ids)).await?;
    Ok(Json(Answers { answers }))
}

/// The first of the ids, for the log; what is no id is not repeated in full.
fn first(ids: &[String]) -> Cow<'_, str> {
    ids.first().map_or(Cow::Borrowed(""), |id| shortened(id, ID_BYTES_MAX))
}

/// The body of `POST /v1/redrive`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Redrive {
    ids: Option<Vec<String>>,
    r#match: Option<String>,
}

/// `POST /v1/redrive` (X1).
pub(super) async fn redrive(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Json<Answers<SteerAnswer>>, Problem> {
    let select = match json(request, app.body_patience).await? {
        Redrive { ids: Some(ids), r#match: None } => {
            check_count(&ids)?;
            tracing::info!(%peer, ids = ids.len(), first = &*first(&ids), "redrive was asked for");
            Select::Ids(ids)
        }
        Redrive { ids: None, r#match: Some(pattern) } if !pattern.is_empty() => {
            if pattern.len() > ID_BYTES_MAX {
                return Err(Problem::invalid(format!(
                    "body: match: a pattern may have {ID_BYTES_MAX} bytes, as an id"
                )));
            }
            tracing::info!(%peer, pattern, "redrive was asked for");
            Select::Match(pattern)
        }
        _ => return Err(Problem::invalid("body: give either ids or match; `{\"match\": \"*\"}` means all parked ids")),
    };
    let answers = app.ask(app.backend.redrive(select)).await?;
    Ok(Json(Answers { answers }))
}

/// The body of `POST /v1/drain`: nothing, but as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// `POST /v1/drain`
pub(super) async fn drain(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, Problem> {
    let Nothing {} = json(request, app.body_patience).await?;
    tracing::info!(%peer, "drain was asked for");
    app.backend.drain();
    Ok((StatusCode::ACCEPTED, Json(Draining { state: EngineState::Draining })).into_response())
}
