//! `journal`: the last runs, and those that end from now on. People read the lines of the log.
//!
//! Must never end a stream quietly that the server has not ended. Tested in `tests/it/client.rs`.

use serde::Deserialize;

use super::JournalArgs;
use super::api::{Api, ApiError};
use super::ids::checked;
use super::out::{Terminal, clock};
use super::progress::with_progress;
use crate::engine::view::JournalEntry;
use crate::service::telemetry::run_line::RunLine;
use crate::service::telemetry::text::{count, printable};

/// The answer of the API.
#[derive(Deserialize)]
struct Journal {
    entries: Vec<JournalEntry>,
}

/// Shows the last runs, and goes on if asked.
pub(super) async fn journal(api: &Api, args: &JournalArgs, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let mut query = vec![("limit", args.limit.to_string())];
    if let Some(id) = &args.id {
        checked(std::slice::from_ref(id))?;
        query.push(("id", id.clone()));
    }
    if args.follow {
        query.push(("follow", "true".into()));
        return follow(api, query, terminal).await;
    }
    let what = format!("waiting for {}", api.server());
    let answer: serde_json::Value = with_progress(terminal, &what, api.get("/v1/journal", &query)).await?;
    if !terminal.is_for_people() {
        terminal.document(&answer)?;
        return Ok(true);
    }
    let journal: Journal = serde_json::from_value(answer)?;
    for run in journal.entries.iter().rev() {
        show(run, terminal)?;
    }
    if journal.entries.is_empty() {
        terminal.note("no runs yet");
    }
    Ok(true)
}

/// The line of a run, as the log has it.
pub(super) fn run_line(run: &JournalEntry, colour: bool) -> RunLine {
    let causes: Vec<_> = run.causes.iter().map(ToString::to_string).collect();
    RunLine {
        time: clock(run.at),
        outcome: run.outcome.name().into(),
        id: run.id.to_string(),
        attempt: run.attempt.into(),
        duration_seconds: run.duration_seconds,
        shard: run.shard.0.into(),
        causes: causes.join(", "),
        more_causes: run.more_causes.into(),
        next_seconds: run.next.map(|next| next.duration_since(run.at).as_secs_f64()),
        message: run.message.as_deref().map(str::to_owned),
        colour,
    }
}

fn show(run: &JournalEntry, terminal: &mut Terminal) -> anyhow::Result<()> {
    if !terminal.is_for_people() {
        return terminal.item(run);
    }
    let line = run_line(run, terminal.colour);
    Ok(terminal.line(line.to_string())?)
}

/// What a stream's event other than a run says.
#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    runs: u64,
    #[serde(default)]
    reason: String,
}

async fn follow(api: &Api, mut query: Vec<(&str, String)>, terminal: &mut Terminal) -> anyhow::Result<bool> {
    loop {
        let what = format!("waiting for {}", api.server());
        let mut stream = with_progress(terminal, &what, api.open("/v1/journal", &query)).await?;
        let mut events = Events::default();
        let reason = loop {
            // Shown before the next piece is waited for.
            terminal.flush()?;
            match api.piece(&mut stream).await? {
                Some(piece) => events.add(&piece),
                None => return Err(ApiError(format!("{} ended the stream without a reason", api.server())).into()),
            }
            if let Some(reason) = show_all(&mut events, terminal)? {
                break reason;
            }
        };
        if !reason.starts_with("too slow") {
            return Err(ApiError(format!("{} ended the stream: {}", api.server(), printable(&reason))).into());
        }
        terminal.note("some runs are not shown: they were not read fast enough");
        query.retain(|(name, _)| *name != "limit");
    }
}

/// Shows what has come; gives the reason if the stream has ended.
fn show_all(events: &mut Events, terminal: &mut Terminal) -> anyhow::Result<Option<String>> {
    while let Some((name, data)) = events.next() {
        match name.as_str() {
            "run" => show(&serde_json::from_str(&data)?, terminal)?,
            "skipped" => {
                let skipped: Said = serde_json::from_str(&data)?;
                terminal.note(format!("{} runs are not shown", count(skipped.runs)));
            }
            "closed" => return Ok(Some(serde_json::from_str::<Said>(&data)?.reason)),
            // A later version may say more.
            _ => {}
        }
    }
    Ok(None)
}

/// Server-sent events from pieces that end anywhere.
#[derive(Default)]
struct Events {
    buffer: Vec<u8>,
}

impl Events {
    fn add(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole event: its name and its data.
    fn next(&mut self) -> Option<(String, String)> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
        let (mut name, mut data) = (String::new(), String::new());
        for line in String::from_utf8_lossy(&block).lines() {
            match line.split_once(':') {
                Some(("event", value)) => name = value.trim_start().to_owned(),
                Some(("data", value)) => data.push_str(value.strip_prefix(' ').unwrap_or(value)),
                _ => {}
            }
        }
        Some((name, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_from_pieces_that_end_anywhere() {
        let text = "event: run\ndata: {\"a\":1}\n\n:\n\nevent: closed\ndata: é\n\nevent: half";
        for size in 1..text.len() {
            let mut events = Events::default();
            let mut read = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                events.add(piece);
                while let Some(event) = events.next() {
                    read.push(event);
                }
            }
            let wanted = [("run", "{\"a\":1}"), ("", ""), ("closed", "é")];
            assert_eq!(read, wanted.map(|(name, data)| (name.to_owned(), data.to_owned())), "{size}");
        }
    }
}
