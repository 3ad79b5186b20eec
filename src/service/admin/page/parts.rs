//! The parts of the page, each a function of what the engine answered.
//!
//! Must never write an id, a name or an error but through [`Text`], nor more rows than its bounds. What the script
//! replaces is marked `data-part`; nothing inside can hold the keyboard's focus, so that no refresh takes it away.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use jiff::Timestamp;

use super::html::{Count, Span, Text, ago, clock, span};
use super::{Part, View};
use crate::engine::view::{
    Counts, EngineState, IdState, JournalEntry, QueueEntry, RunOutcome, ShardStatus, Status, StreamState,
};

/// The most rows of shards: more are beyond looking at.
const SHARDS_MAX: usize = 64;
/// The most rows of ids in one table.
const IDS_MAX: usize = 25;
/// The journal's rows before the script follows it.
const RUNS_MAX: usize = 30;

/// The page for somebody who has shown no token: it tells nothing of the process.
pub(super) fn locked() -> String {
    "<main id=\"locked\"><h1>evenkeel</h1><form id=\"unlock\"><label for=\"token\">Admin token</label>\
     <input id=\"token\" type=\"password\" autocomplete=\"off\" spellcheck=\"false\" required autofocus \
     aria-describedby=\"how\"><button>Show</button></form><p id=\"refused\" role=\"alert\"></p>\
     <p id=\"how\">A token of the file that <code>admin.token_file</code> names. It stays in this page's memory and \
     is forgotten when the page is closed.</p><noscript><p>Sending a token needs this page's script. Without it: \
     <code>evenkeel status</code>, or <code>curl -H 'Authorization: Bearer …'</code>.</p></noscript></main>"
        .to_owned()
}

/// The whole page.
pub(super) fn all(view: &View) -> String {
    let title =
        view.status.as_ref().map_or_else(|_| "evenkeel".to_owned(), |status| Text(&status.controller).to_string());
    let sections = [
        section(
            "Queues",
            "queues",
            "",
            &each(&view.status, |status| cards(&status.counts, status.oldest_undone_seconds)),
        ),
        table(
            "Failing",
            "failing",
            "parked, and waiting for another attempt",
            &["Id", "State", "Failed", "Since", "Next run", "Why"],
            &failing(view),
        ),
        table(
            "Slowest",
            "slowest",
            "running now, and among the last runs",
            &["Id", "Took", "State", "Attempt", "Shard", "Message"],
            &slowest(view),
        ),
        table(
            "Shards",
            "shards",
            "",
            &["Shard", "Leader", "Pending", "Running", "Delayed", "Parked", "Runs"],
            &rows(7, &view.shards, |shards: &Vec<ShardStatus>| shard_rows(shards), "There is no shard."),
        ),
        table(
            "Streams",
            "streams",
            "",
            &["Stream", "State", "Events", "Errors", "Restarts", "Problem"],
            &rows(6, &view.status, stream_rows, "There is no stream: only triggers can cause runs."),
        ),
        journal(view),
    ];
    format!(
        "<a class=\"skip\" href=\"#main\">Skip to the content</a><header>\
         <h1><bdi data-part=\"title\">{title}</bdi></h1>\
         <p data-part=\"state\">{}</p><p id=\"live\" role=\"status\">as of {}</p></header>\
         <main id=\"main\" tabindex=\"-1\"><div data-part=\"problems\">{}</div>{}</main>",
        state(view),
        clock(view.at),
        problems(view),
        sections.concat()
    )
}

fn state(view: &View) -> String {
    let (class, text) = match (view.health.live, view.health.ready) {
        (false, _) => ("bad", "stuck"),
        (true, false) => ("warn", "not ready"),
        (true, true) => ("good", "ready"),
    };
    let mut out = badge(class, text);
    if let Ok(status) = &view.status {
        let up = span(Duration::from_secs_f64(view.at.duration_since(status.started).as_secs_f64().max(0.0)));
        if status.state == EngineState::Draining {
            out += &badge("warn", "draining");
        }
        let version = Text(&status.version);
        _ = write!(out, " leads {} of {} shards · up {up} · version {version}", status.led, status.shards);
    }
    out
}

fn problems(view: &View) -> String {
    let mut all: Vec<&str> = view.health.problems.iter().map(String::as_str).collect();
    if let Ok(status) = &view.status {
        all.extend(
            status.problems.iter().map(String::as_str).filter(|said| !view.health.problems.iter().any(|p| p == said)),
        );
    }
    if let Err(error) = &view.status {
        all.push(error);
    }
    if all.is_empty() {
        return String::new();
    }
    let items: String = all.iter().map(|problem| format!("<li>{}</li>", Text(problem))).collect();
    format!("<div class=\"problems\" role=\"alert\"><h2>Needs attention</h2><ul>{items}</ul></div>")
}

fn section(title: &str, name: &str, note: &str, content: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!(" <small>{note}</small>") };
    format!(
        "<section aria-labelledby=\"h-{name}\"><h2 id=\"h-{name}\">{title}{note}</h2>\
         <div data-part=\"{name}\">{content}</div></section>"
    )
}

/// A table that scrolls by itself where it is too wide, by keyboard too.
fn table(title: &str, name: &str, note: &str, heads: &[&str], body: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!(" <small>{note}</small>") };
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    let button = if name == "journal" { "<button id=\"pause\" type=\"button\" hidden>Pause</button>" } else { "" };
    format!(
        "<section aria-labelledby=\"h-{name}\"><h2 id=\"h-{name}\">{title}{note}</h2>{button}\
         <div class=\"scroll\" role=\"region\" aria-labelledby=\"h-{name}\" tabindex=\"0\"><table><thead><tr>{heads}\
         </tr></thead><tbody data-part=\"{name}\">{body}</tbody></table></div></section>"
    )
}

/// What one part shows, or why it shows nothing.
fn each<T>(part: &Part<T>, show: impl Fn(&T) -> String) -> String {
    match part {
        Ok(value) => show(value),
        Err(error) => format!("<p class=\"missing\">Not shown: {}</p>", Text(error)),
    }
}

fn rows<T>(columns: usize, part: &Part<T>, show: impl Fn(&T) -> String, empty: &str) -> String {
    match part.as_ref().map(show) {
        Ok(rows) if rows.is_empty() => format!("<tr><td colspan=\"{columns}\" class=\"empty\">{empty}</td></tr>"),
        Ok(rows) => rows,
        Err(error) => format!("<tr><td colspan=\"{columns}\" class=\"missing\">Not shown: {}</td></tr>", Text(error)),
    }
}

fn badge(class: &str, text: impl Display) -> String {
    format!("<span class=\"badge {class}\">{text}</span>")
}

fn id(id: &str) -> String {
    format!("<th scope=\"row\" class=\"id\"><bdi>{}</bdi></th>", Text(id))
}

fn cells<const N: usize>(values: [&dyn Display; N]) -> String {
    values.iter().map(|value| format!("<td>{value}</td>")).collect()
}

fn text(value: Option<&str>) -> String {
    format!("<td class=\"text\"><bdi>{}</bdi></td>", Text(value.unwrap_or_default()))
}

fn cards(counts: &Counts, oldest: Option<f64>) -> String {
    let card = |class: &str, name: &str, value: &dyn Display, note: &str| {
        format!("<div class=\"{class}\"><dt>{name}</dt><dd>{value}</dd><dd class=\"note\">{note}</dd></div>")
    };
    let room = |used: u64, max: u64| {
        format!("<meter min=\"0\" max=\"{max}\" high=\"{}\" value=\"{used}\">{used} of {max}</meter>", max / 10 * 9)
    };
    let oldest = match oldest {
        Some(age) => format!("oldest event {}", Span(age)),
        None if counts.pending + counts.running + counts.delayed == 0 => "nothing is owed".to_owned(),
        None => "no event of a stream waits".to_owned(),
    };
    let admitted = format!(
        "{} of {} places {}",
        Count(counts.admitted),
        Count(counts.admitted_max),
        room(counts.admitted, counts.admitted_max)
    );
    let timers = format!(
        "{} of {} timers {}",
        Count(counts.timers),
        Count(counts.timers_max),
        room(counts.timers, counts.timers_max)
    );
    let cards = [
        card("pending", "pending", &Count(counts.pending), &oldest),
        card("running", "running", &Count(counts.running), &admitted),
        card("delayed", "delayed", &Count(counts.delayed), &timers),
        card("parked", "parked", &Count(counts.parked), "wait for an event or a redrive"),
        card("records", "owed records", &Count(counts.owed_records), "survive a crash"),
    ];
    format!("<dl class=\"cards\">{}</dl>{}", cards.concat(), bar(counts))
}

/// The states side by side, as a picture; the numbers above say the same.
fn bar(counts: &Counts) -> String {
    let states = [
        ("pending", counts.pending),
        ("running", counts.running),
        ("delayed", counts.delayed),
        ("parked", counts.parked),
    ];
    let total: u64 = states.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return String::new();
    }
    let (mut left, mut rects) = (0, String::new());
    for (state, count) in states.into_iter().filter(|(_, count)| *count > 0) {
        // At least one pixel in a hundred for what is there at all.
        let width = (u128::from(count) * 1_000 / u128::from(total)).max(10);
        _ = write!(rects, "<rect class=\"{state}\" x=\"{left}\" width=\"{width}\" height=\"10\"/>");
        left += width;
    }
    format!(
        "<svg class=\"bar\" viewBox=\"0 0 {} 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{rects}</svg>",
        left
    )
}

/// Parked ids, then those with the most failed attempts.
fn failing(view: &View) -> String {
    let parked = view.parked.as_ref().map_err(Clone::clone);
    let found = parked.and_then(|parked| {
        let delayed = view.delayed.as_ref().map_err(Clone::clone)?;
        let mut found: Vec<&QueueEntry> = parked.iter().collect();
        found.extend(delayed.iter().filter(|entry| entry.attempt > 0));
        found.sort_by_key(|entry| (entry.state != IdState::Parked, std::cmp::Reverse(entry.attempt)));
        Ok(found)
    });
    rows(
        6,
        &found,
        |found| found.iter().take(IDS_MAX).map(|entry| failing_row(entry, view.at)).collect(),
        "Nothing fails.",
    )
}

fn failing_row(entry: &QueueEntry, now: Timestamp) -> String {
    let state = match entry.state {
        IdState::Parked => badge("bad", "parked"),
        _ => badge("warn", "waits"),
    };
    let next = entry.due.map_or_else(|| "when redriven".to_owned(), |due| ago(now, due));
    format!(
        "<tr>{}{}{}</tr>",
        id(&entry.id),
        cells([&state, &Count(entry.attempt.into()), &ago(now, entry.since), &next]),
        text(entry.error.as_deref())
    )
}

/// What runs for the longest time now, then the longest of the last runs.
fn slowest(view: &View) -> String {
    let running = view.running.as_ref().map_err(Clone::clone);
    let found = running.and_then(|running| {
        let journal = view.journal.as_ref().map_err(Clone::clone)?;
        let (mut running, mut ended): (Vec<_>, Vec<_>) = (running.iter().collect(), journal.iter().collect());
        running.sort_by_key(|entry| entry.since);
        ended.sort_by(|a: &&JournalEntry, b| b.duration_seconds.total_cmp(&a.duration_seconds));
        Ok((running, ended))
    });
    rows(
        6,
        &found,
        |(running, ended)| {
            let now: String = running.iter().take(IDS_MAX / 2).map(|entry| running_row(entry, view.at)).collect();
            let rest = IDS_MAX / 2 - running.len().min(IDS_MAX / 2 - 5);
            now + &ended.iter().take(rest).map(|run| slow_row(run)).collect::<String>()
        },
        "Nothing has run yet.",
    )
}

fn running_row(entry: &QueueEntry, now: Timestamp) -> String {
    let took = Span(now.duration_since(entry.since).as_secs_f64());
    let facts = cells([&took, &badge("info", "running"), &Count(u64::from(entry.attempt) + 1), &entry.shard]);
    format!("<tr>{}{facts}{}</tr>", id(&entry.id), text(entry.error.as_deref()))
}

fn slow_row(run: &JournalEntry) -> String {
    let facts = cells([&Span(run.duration_seconds), &outcome(run.outcome), &Count(run.attempt.into()), &run.shard]);
    format!("<tr>{}{facts}{}</tr>", id(&run.id), text(run.message.as_deref()))
}

fn outcome(outcome: RunOutcome) -> String {
    let class = match outcome {
        RunOutcome::Done | RunOutcome::Requeued => "good",
        RunOutcome::Failed | RunOutcome::Cancelled | RunOutcome::TimedOut => "warn",
        RunOutcome::GivenUp | RunOutcome::Panicked => "bad",
    };
    badge(class, outcome.name().replace('_', " "))
}

fn shard_rows(shards: &[ShardStatus]) -> String {
    let row = |shard: &ShardStatus| {
        let leader = match (&shard.term, &shard.leader) {
            (Some(term), _) if shard.led => {
                format!("{} <small>term {}</small>", badge("good", "this process"), Text(term))
            }
            _ if shard.led => badge("good", "this process"),
            (_, Some(leader)) => format!("{} <bdi>{}</bdi>", badge("quiet", "elsewhere"), Text(leader)),
            (_, None) => badge("warn", "not led, as far as is known here"),
        };
        let counts = &shard.counts;
        let figures = [counts.pending, counts.running, counts.delayed, counts.parked, shard.runs].map(Count);
        let [pending, running, delayed, parked, runs] = &figures;
        let facts = cells([&leader, pending, running, delayed, parked, runs]);
        format!("<tr><th scope=\"row\">{}</th>{facts}</tr>", shard.shard)
    };
    let mut out: String = shards.iter().take(SHARDS_MAX).map(row).collect();
    if shards.len() > SHARDS_MAX {
        let more = shards.len() - SHARDS_MAX;
        _ = write!(
            out,
            "<tr><td colspan=\"7\" class=\"empty\">and {more} more: <code>evenkeel shards</code></td></tr>"
        );
    }
    out
}

fn stream_rows(status: &Status) -> String {
    let row = |stream: &crate::engine::view::StreamStatus| {
        let (class, state) = match stream.state {
            StreamState::Running => ("good", "running"),
            StreamState::Degraded => ("warn", "degraded"),
            StreamState::Restarting => ("bad", "restarting"),
            StreamState::Ended => ("quiet", "ended"),
            StreamState::Stopped => ("quiet", "stopped"),
        };
        let [events, errors, restarts] = [stream.events, stream.errors, stream.restarts].map(Count);
        let facts = cells([&badge(class, state), &events, &errors, &restarts]);
        format!("<tr>{}{facts}{}</tr>", id(&stream.name), text(stream.problem.as_deref()))
    };
    status.streams.iter().map(row).collect()
}

fn journal(view: &View) -> String {
    let row = |run: &JournalEntry| {
        let cause = run.causes.first().map(ToString::to_string).unwrap_or_default();
        let more = if run.more_causes as usize + run.causes.len() > 1 { " …" } else { "" };
        let facts = cells([&Count(run.attempt.into()), &Span(run.duration_seconds), &Span(run.waited_seconds)]);
        format!(
            "<tr><td>{}</td><td>{}</td>{}{facts}<td><bdi>{}</bdi>{more}</td>{}</tr>",
            clock(run.at),
            outcome(run.outcome),
            id(&run.id),
            Text(&cause),
            text(run.message.as_deref())
        )
    };
    let body = rows(
        8,
        &view.journal,
        |runs| runs.iter().take(RUNS_MAX).map(row).collect(),
        "Nothing has run yet. <code>evenkeel trigger ID</code> runs an id now.",
    );
    let heads = ["Time (UTC)", "Outcome", "Id", "Attempt", "Took", "Waited", "Cause", "Message"];
    table("Journal", "journal", "the last runs, the latest first", &heads, &body)
}
