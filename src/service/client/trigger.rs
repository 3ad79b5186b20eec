//! `trigger`: ids that were typed, or a stream of them from standard input.
//!
//! Must never lose an answer or call an id triggered that was not. From standard input, ids that find no room are sent
//! again until they are admitted: the stream is held back as the queues are. Tested in `tests/it/client.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::TriggerArgs;
use super::api::{Api, ApiError, Reply, WAIT_MAX};
use super::ids::{Line, checked, lines};
use super::out::Terminal;
use super::progress::with_progress;
use crate::engine::view::{RunOutcome, TriggerAnswer, TriggerResult};
use crate::service::telemetry::text::{count, printable};

/// Ids of one request: fewer than the server takes, so that an answer comes soon.
const BATCH: usize = 1_000;
/// The same where the answer waits for the runs.
const BATCH_WAITING: usize = 100;
/// When ids that found no room are sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The answer of the API.
#[derive(Deserialize)]
struct Answers {
    answers: Vec<TriggerAnswer>,
}

/// Triggers, and says what became of each id.
pub(super) async fn trigger(api: &Api, args: TriggerArgs, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let TriggerArgs { ids, wait, durable } = args;
    let is_stream = ids.iter().any(|id| id == "-");
    let typed: Vec<_> = ids.into_iter().filter(|id| id != "-").collect();
    let typed = checked(&typed)?;
    let mut query = Vec::new();
    query.extend(wait.then(|| ("wait", "done".to_owned())));
    query.extend(durable.then(|| ("durable", "true".to_owned())));
    let batch = if wait { BATCH_WAITING } else { BATCH };
    let mut triggering = Triggering { api, query, is_stream, terminal, tally: BTreeMap::new(), ok: true };
    for ids in typed.chunks(batch) {
        triggering.send(ids.to_vec()).await?;
    }
    if is_stream {
        triggering.stream(batch).await?;
        triggering.sum_up()?;
    }
    Ok(triggering.ok)
}

struct Triggering<'a> {
    api: &'a Api,
    query: Vec<(&'static str, String)>,
    is_stream: bool,
    terminal: &'a mut Terminal,
    /// How many ids fared how.
    tally: BTreeMap<String, u64>,
    ok: bool,
}

impl Triggering<'_> {
    /// Sends what has come whenever the answer to what came before is there.
    async fn stream(&mut self, batch: usize) -> anyhow::Result<()> {
        let input = std::mem::replace(&mut self.terminal.input, Box::new(std::io::empty()));
        let mut lines = lines(input);
        let mut read = Vec::with_capacity(batch);
        while lines.recv_many(&mut read, batch).await > 0 {
            let mut ids = Vec::with_capacity(read.len());
            for line in read.drain(..) {
                match line {
                    Line::Id(id) => ids.push(id),
                    Line::Bad(number, reason) => self.bad_line(number, &reason),
                    Line::Broken(reason) => {
                        return Err(ApiError(format!("cannot read standard input: {reason}")).into());
                    }
                }
            }
            if !ids.is_empty() {
                self.send(ids).await?;
            }
        }
        Ok(())
    }

    fn bad_line(&mut self, number: u64, reason: &str) {
        self.ok = false;
        *self.tally.entry("refused".into()).or_default() += 1;
        self.terminal.note(format!("line {number}: {reason}"));
    }

    /// Sends a batch; from a stream, until all of it has found room.
    async fn send(&mut self, mut ids: Vec<String>) -> anyhow::Result<()> {
        loop {
            let answers = self.post(&ids).await?;
            let mut full = Vec::new();
            for answer in answers {
                match answer.result {
                    TriggerResult::Full if self.is_stream => full.push(answer.id),
                    _ => self.show(&answer)?,
                }
            }
            if full.is_empty() {
                return Ok(());
            }
            let what = format!("waiting for room for {} ids", count(full.len() as u64));
            with_progress(self.terminal, &what, tokio::time::sleep(AGAIN_AFTER)).await;
            ids = full;
        }
    }

    async fn post(&mut self, ids: &[String]) -> anyhow::Result<Vec<TriggerAnswer>> {
        let most = (!self.query.is_empty()).then_some(WAIT_MAX);
        let body = json!({ "ids": ids });
        let work = self.api.post("/v1/trigger", &self.query, &body, most);
        let sent: u64 = self.tally.values().sum();
        let what = match sent {
            0 => format!("waiting for {} ids", count(ids.len() as u64)),
            sent => format!("{} ids are answered, waiting for {} more", count(sent), count(ids.len() as u64)),
        };
        match with_progress(self.terminal, &what, work).await? {
            Reply::Answer(Answers { answers }) => Ok(answers),
            Reply::Problem(status, problem) => match problem.answers {
                Some(answers) => Ok(serde_json::from_value(answers)?),
                None => Err(self.api.refusal(status, &problem)),
            },
        }
    }

    /// Shows one answer: all of what was typed, of a stream only what failed.
    fn show(&mut self, answer: &TriggerAnswer) -> anyhow::Result<()> {
        let (is_ok, word, reason) = words(&answer.result);
        self.ok &= is_ok;
        *self.tally.entry(word.clone()).or_default() += 1;
        if !self.terminal.is_for_people() {
            return self.terminal.item(answer);
        }
        if !is_ok || !self.is_stream {
            let reason = reason.map(|reason| format!(": {}", printable(&reason))).unwrap_or_default();
            self.terminal.line(format!("{}  {word}{reason}", printable(&answer.id)))?;
        }
        Ok(())
    }

    fn sum_up(&mut self) -> anyhow::Result<()> {
        if !self.terminal.is_for_people() {
            return Ok(());
        }
        let parts: Vec<_> = self.tally.iter().map(|(word, n)| format!("{} {word}", count(*n))).collect();
        let ids = count(self.tally.values().sum());
        let line = if parts.is_empty() { "no ids came".into() } else { format!("{ids} ids: {}", parts.join(", ")) };
        Ok(self.terminal.line(line)?)
    }
}

/// Whether it is what was asked for, what it is called, and why.
fn words(result: &TriggerResult) -> (bool, String, Option<String>) {
    let (is_ok, word, reason) = match result {
        TriggerResult::Admitted => (true, "admitted", None),
        TriggerResult::AlreadyPresent => (true, "already present", None),
        TriggerResult::Durable => (true, "recorded", None),
        TriggerResult::Dropped => (true, "dropped by the controller's hash", None),
        TriggerResult::Full => (false, "not admitted", Some("its shard is full; try again later".to_owned())),
        TriggerResult::Refused { reason } => (false, "refused", Some(reason.clone())),
        TriggerResult::Unavailable { reason } => (false, "unavailable", Some(reason.clone())),
        TriggerResult::NotDurable { reason } => (false, "not recorded", Some(reason.clone())),
        TriggerResult::Ended { outcome, message } => {
            let is_ok = matches!(outcome, RunOutcome::Done | RunOutcome::Requeued);
            (is_ok, outcome.name(), message.as_deref().map(str::to_owned))
        }
    };
    (is_ok, word.to_owned(), reason)
}
