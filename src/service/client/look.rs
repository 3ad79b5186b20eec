//! `status`, `health`, `shards`, `queues`, `explain`.
//!
//! Must never leave out for programs what the API answers. Tested in `tests/it/client.rs`.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::QueuesArgs;
use super::api::Api;
use super::ids::checked;
use super::journal::run_line;
use super::out::Column::{Left, Right};
use super::out::{Terminal, ago, until};
use super::progress::with_progress;
use crate::engine::view::{
    Counts, EngineState, Explanation, IdState, PAGE_MAX, QueueEntry, QueuePage, ShardStatus, Status,
};
use crate::service::telemetry::text::{count, printable, seconds};

/// An answer as people need it, or `None` after it was printed for programs as it came.
async fn ask<T: DeserializeOwned>(
    api: &Api,
    path: &str,
    query: &[(&str, String)],
    terminal: &mut Terminal,
) -> anyhow::Result<Option<T>> {
    let what = format!("waiting for {}", api.server());
    let answer: Value = with_progress(terminal, &what, api.get(path, query)).await?;
    if terminal.is_for_people() {
        return Ok(Some(serde_json::from_value(answer)?));
    }
    terminal.document(&answer)?;
    Ok(None)
}

/// Whether the process is well.
pub(super) async fn health(api: &Api, ready: bool, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let path = if ready { "/readyz" } else { "/livez" };
    let problem = api.probe(path).await?;
    if terminal.is_for_people() {
        terminal.line(printable(problem.as_deref().unwrap_or("ok")))?;
    } else {
        terminal.document(&serde_json::json!({"ok": problem.is_none(), "problem": problem}))?;
    }
    Ok(problem.is_none())
}

/// The process at a glance.
pub(super) async fn status(api: &Api, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let Some(status) = ask::<Status>(api, "/v1/status", &[], terminal).await? else { return Ok(true) };
    let state = match status.state {
        EngineState::Running => "runs",
        EngineState::Draining => "is draining",
    };
    terminal.line(format!(
        "{} {state}, started {} ago, leads {} of {} shards, version {}",
        printable(&status.controller),
        ago(Timestamp::now(), status.started),
        status.led,
        status.shards,
        printable(&status.version)
    ))?;
    counts(&status.counts, terminal)?;
    if let Some(age) = status.oldest_undone_seconds {
        terminal.line(format!("the oldest event that is not done came {} ago", seconds(age)))?;
    }
    if !status.streams.is_empty() {
        let rows: Vec<_> = status
            .streams
            .iter()
            .map(|stream| {
                let state = serde_json::to_value(stream.state).ok();
                vec![
                    stream.name.clone(),
                    state.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned(),
                    count(stream.events),
                    count(stream.errors),
                    count(stream.restarts),
                ]
            })
            .collect();
        let columns = [Left("STREAM"), Left("STATE"), Right("EVENTS"), Right("ERRORS"), Right("RESTARTS")];
        terminal.line("")?;
        terminal.table(&columns, &rows)?;
    }
    if !status.problems.is_empty() {
        terminal.line("")?;
    }
    for problem in &status.problems {
        terminal.line(format!("problem: {}", printable(problem)))?;
    }
    if status.counts.parked > 0 {
        terminal.note("`evenkeel queues --state parked` shows what waits for somebody, `evenkeel redrive` releases it");
    }
    Ok(true)
}

fn counts(counts: &Counts, terminal: &mut Terminal) -> std::io::Result<()> {
    let numbers = [
        ("pending", counts.pending),
        ("running", counts.running),
        ("delayed", counts.delayed),
        ("parked", counts.parked),
        ("owed records", counts.owed_records),
    ];
    let ids: Vec<_> = numbers.iter().map(|(name, number)| format!("{name} {}", count(*number))).collect();
    terminal.line(ids.join("  "))?;
    let share = |name, used, max| format!("{name} {} of {}", count(used), count(max));
    let admitted = share("admitted", counts.admitted, counts.admitted_max);
    terminal.line(format!("{admitted}  {}", share("timers", counts.timers, counts.timers_max)))
}

/// The answer of the API.
#[derive(serde::Deserialize)]
struct Shards {
    shards: Vec<ShardStatus>,
}

/// The shards.
pub(super) async fn shards(api: &Api, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let Some(answer) = ask::<Shards>(api, "/v1/shards", &[], terminal).await? else { return Ok(true) };
    let number = |is_led: bool, number: u64| if is_led { count(number) } else { String::new() };
    let now = Timestamp::now();
    let rows: Vec<_> = answer
        .shards
        .iter()
        .map(|shard| {
            let mut row = vec![shard.shard.to_string(), led(shard, now), shard.term.clone().unwrap_or_default()];
            let counts = &shard.counts;
            let numbers = [counts.pending, counts.running, counts.delayed, counts.parked, shard.runs];
            row.extend(numbers.map(|n| number(shard.led, n)));
            row
        })
        .collect();
    let columns = [
        Right("SHARD"),
        Left("LED"),
        Left("TERM"),
        Right("PENDING"),
        Right("RUNNING"),
        Right("DELAYED"),
        Right("PARKED"),
        Right("RUNS"),
    ];
    terminal.table(&columns, &rows)?;
    Ok(true)
}

/// Who leads a shard, and for how long without a word from etcd.
fn led(shard: &ShardStatus, now: Timestamp) -> String {
    match (shard.led, shard.until, &shard.leader) {
        (true, Some(until), _) => format!("here for {}", seconds((until.duration_since(now)).as_secs_f64().max(0.0))),
        (true, None, _) => "here".to_owned(),
        (false, _, Some(leader)) => printable(leader).into_owned(),
        (false, _, None) => "no".to_owned(),
    }
}

/// What waits and runs, as many pages as are asked for.
pub(super) async fn queues(api: &Api, args: &QueuesArgs, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut filter = Vec::new();
    filter.extend(args.state.map(|state| ("state", state_name(state.into()))));
    filter.extend(args.shard.map(|shard| ("shard", shard.to_string())));
    let (mut entries, mut after) = (Vec::new(), None);
    let what = format!("waiting for {}", api.server());
    let pages = async {
        loop {
            let mut query = filter.clone();
            query.push(("limit", (limit - entries.len()).min(PAGE_MAX).to_string()));
            query.extend(after.take().map(|after| ("after", after)));
            let page: QueuePage = api.get("/v1/queues", &query).await?;
            entries.extend(page.entries);
            after = page.next;
            if after.is_none() || entries.len() >= limit {
                return anyhow::Ok(());
            }
        }
    };
    with_progress(terminal, &what, pages).await?;
    let page = QueuePage { entries, next: after };
    if !terminal.is_for_people() {
        terminal.document(&serde_json::to_value(&page)?)?;
        return Ok(true);
    }
    let now = Timestamp::now();
    let rows: Vec<_> = page.entries.iter().map(|entry| row(entry, now)).collect();
    let columns =
        [Left("ID"), Left("STATE"), Right("SHARD"), Right("FAILED"), Left("SINCE"), Left("NEXT"), Left("ERROR")];
    terminal.table(&columns, &rows)?;
    if page.next.is_some() {
        terminal.note(format!("there are more than {}: --limit shows more of them", count(u64::from(args.limit))));
    }
    Ok(true)
}

fn row(entry: &QueueEntry, now: Timestamp) -> Vec<String> {
    let state = match entry.parked.and_then(|reason| serde_json::to_value(reason).ok()) {
        Some(reason) => format!("parked: {}", reason.as_str().unwrap_or_default()),
        None => state_name(entry.state),
    };
    vec![
        entry.id.clone(),
        state,
        entry.shard.to_string(),
        entry.attempt.to_string(),
        ago(now, entry.since),
        entry.due.map_or_else(String::new, |due| until(now, due)),
        entry.error.clone().unwrap_or_default(),
    ]
}

/// The word of the API for a state.
fn state_name(state: IdState) -> String {
    serde_json::to_value(state).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Why an id runs, waits, or does not (X4).
pub(super) async fn explain(api: &Api, id: &str, terminal: &mut Terminal) -> anyhow::Result<bool> {
    checked(&[id.to_owned()])?;
    let query = [("id", id.to_owned())];
    let Some(answer) = ask::<Explanation>(api, "/v1/explain", &query, terminal).await? else { return Ok(true) };
    let (id, state) = (printable(&answer.id), state_name(answer.state));
    terminal.line(format!("{id}  {state}  shard {}  worker {}", answer.shard, answer.worker.0))?;
    terminal.line(printable(&answer.why))?;
    if let Some(entry) = &answer.entry {
        if entry.attempt > 0 {
            terminal.line(format!("failed {} times in a row", entry.attempt))?;
        }
        if let Some(error) = &entry.error {
            terminal.line(format!("last error: {}", printable(error)))?;
        }
        let causes: Vec<_> = entry.causes.iter().map(ToString::to_string).collect();
        if !causes.is_empty() {
            let more = if entry.more_causes > 0 { format!(" and {} more", entry.more_causes) } else { String::new() };
            terminal.line(format!("cause: {}{more}", printable(&causes.join(", "))))?;
        }
    }
    for run in answer.journal.iter().rev() {
        let line = run_line(run, terminal.colour);
        terminal.line(line.to_string())?;
    }
    Ok(true)
}
