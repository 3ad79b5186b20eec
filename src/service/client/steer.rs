//! `redrive`, `cancel`, `drain`.
//!
//! Must never say that something was done before the server has said so. Tested in `tests/it/client.rs`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::RedriveArgs;
use super::api::{Api, Reply};
use super::ids::checked;
use super::out::Column::Left;
use super::out::Terminal;
use super::progress::with_progress;
use crate::engine::view::SteerAnswer;

/// The answer of the API.
#[derive(Deserialize)]
struct Answers {
    answers: Vec<SteerAnswer>,
}

/// Releases parked ids. Fails if one that was named was not parked.
pub(super) async fn redrive(api: &Api, args: RedriveArgs, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let Some(pattern) = args.pattern else {
        let ids = checked(&args.ids)?;
        return steer(api, "/v1/redrive", &json!({ "ids": ids }), terminal).await;
    };
    steer(api, "/v1/redrive", &json!({ "match": pattern }), terminal).await
}

/// Ends runs and parks. Fails if there was nothing to end.
pub(super) async fn cancel(api: &Api, ids: &[String], terminal: &mut Terminal) -> anyhow::Result<bool> {
    let ids = checked(ids)?;
    steer(api, "/v1/cancel", &json!({ "ids": ids }), terminal).await
}

/// Begins a graceful stop.
pub(super) async fn drain(api: &Api, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let answer = post(api, "/v1/drain", &json!({}), terminal).await?;
    match terminal.is_for_people() {
        true => terminal.line("it finishes what runs and stops; `evenkeel status` shows how far it is")?,
        false => terminal.document(&answer)?,
    }
    Ok(true)
}

async fn post(api: &Api, path: &str, body: &Value, terminal: &mut Terminal) -> anyhow::Result<Value> {
    let what = format!("waiting for {}", api.server());
    match with_progress(terminal, &what, api.post(path, &[], body, None)).await? {
        Reply::Answer(answer) => Ok(answer),
        Reply::Problem(status, problem) => Err(api.refusal(status, &problem)),
    }
}

async fn steer(api: &Api, path: &str, body: &Value, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let answer = post(api, path, body, terminal).await?;
    let Answers { answers } = serde_json::from_value(answer.clone())?;
    let ok = answers.iter().all(|answer| answer.done);
    if !terminal.is_for_people() {
        terminal.document(&answer)?;
        return Ok(ok);
    }
    if answers.is_empty() {
        terminal.note("no parked id matches");
        return Ok(true);
    }
    let rows: Vec<_> = answers
        .into_iter()
        .map(|answer| vec![answer.id, if answer.done { "yes".into() } else { "no".into() }, answer.reason])
        .collect();
    terminal.table(&[Left("ID"), Left("DONE"), Left("WHY")], &rows)?;
    Ok(ok)
}
