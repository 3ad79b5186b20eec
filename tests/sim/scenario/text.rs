//! The words of a script: receipts, causes, times and answers as people read them.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel::id::{Causes, Receipt, SourceId};
use evenkeel::scheduler::{
    Admission, CancelAnswer, CancelCause, EntryView, Next, ParkReason, Record, RecordReason, Start, State, Time, Why,
};

/// How the answers to `why` begin, one for each that there is.
pub(super) const REASONS: [&str; 10] = [
    "nothing is owed",
    "it starts next",
    "its worker is busy",
    "its kind is busy",
    "the shard drains",
    "it runs",
    "it failed",
    "it asked for a time",
    "it ran a moment ago",
    "it is parked",
];

/// The names of the sources, in the order in which they appeared.
#[derive(Default)]
pub(super) struct Names {
    names: Vec<String>,
}

impl Names {
    /// `http` and `resync` do not care what becomes of their events; all others are told.
    pub(super) fn receipt(&mut self, text: &str) -> Result<Receipt, String> {
        let (name, position) = text.split_once('@').ok_or("a receipt is NAME@POSITION")?;
        let position = position.parse().map_err(|_| "a position is a number")?;
        Ok(Receipt::new(self.source(name), position))
    }

    pub(super) fn source(&mut self, name: &str) -> SourceId {
        let number = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        SourceId::numbered(u32::try_from(number).unwrap(), !matches!(name, "http" | "resync"))
    }

    /// A new term has new sources: the old names stand for new numbers.
    pub(super) fn forget(&mut self) {
        self.names.iter_mut().for_each(|name| name.clear());
    }

    pub(super) fn name(&self, receipt: Receipt) -> String {
        match (receipt.source, receipt.source.number()) {
            (_, Some(number)) => format!("{}@{}", self.names[number as usize], receipt.position),
            (SourceId::RETRY, _) => format!("failure {}", receipt.position),
            (SourceId::REQUESTED, _) => "requested time".to_owned(),
            (SourceId::RECOVERED, _) => "owed record".to_owned(),
            (SourceId::REDRIVE, _) => "redrive".to_owned(),
            (SourceId::CANCELLED, _) => "cancelled run".to_owned(),
            (other, _) => panic!("no cause is called {other:?}"),
        }
    }

    pub(super) fn causes(&self, causes: &Causes) -> String {
        let mut names: Vec<_> = causes.iter().map(|cause| self.name(cause)).collect();
        if causes.more() > 0 {
            names.push(format!("and {} more", causes.more()));
        }
        names.join(", ")
    }

    pub(super) fn start(&self, start: &Start) -> String {
        let Start { id, run, attempt, .. } = start;
        format!("start {id}, run {run}, attempt {attempt}: {}", self.causes(&start.causes))
    }

    pub(super) fn record(&self, now: Time, record: &Record, given_up: bool) -> String {
        let mut text = format!("write {}: ", record.id);
        text += match record.reason {
            RecordReason::Held => "held",
            RecordReason::Requested => "requested time",
            RecordReason::Parked(reason) => parked(reason),
        };
        if record.due > now {
            write!(text, ", due {:?}", record.due).unwrap();
        }
        if record.failures > 0 {
            write!(text, ", failures {}", record.failures).unwrap();
        }
        if given_up {
            text += ", and a dead letter";
        }
        text
    }

    pub(super) fn entry(&self, entry: &EntryView) -> String {
        let state = match entry.state {
            State::Pending => format!("pending since {}", time(entry.since)),
            State::Running => format!("running since {}", time(entry.since)),
            State::Delayed => format!("delayed until {:?}", entry.due.expect("a delayed id has a time")),
            State::Parked => parked(entry.parked.expect("a parked id has a reason")).to_owned(),
            State::Free | State::Idle => "idle".to_owned(),
        };
        let mut text = format!("{} {state}", entry.id);
        if entry.failures > 0 {
            write!(text, ", failures {}", entry.failures).unwrap();
        }
        if entry.recorded {
            text += ", recorded";
        }
        if !entry.causes.is_empty() {
            write!(text, ": {}", self.causes(&entry.causes)).unwrap();
        }
        text
    }
}

pub(super) const fn parked(reason: ParkReason) -> &'static str {
    match reason {
        ParkReason::GivenUp => "given up",
        ParkReason::Cancelled => "cancelled",
        ParkReason::Stuck => "stuck",
    }
}

pub(super) const fn admission(admission: Admission) -> &'static str {
    match admission {
        Admission::Admitted => "admitted",
        Admission::Present => "already present",
        Admission::Refused => "refused",
    }
}

pub(super) const fn cancel_answer(answer: CancelAnswer) -> &'static str {
    match answer {
        CancelAnswer::Stopping => "stopping",
        CancelAnswer::Parked => "parked",
        CancelAnswer::AlreadyParked => "already parked",
        CancelAnswer::Idle => "nothing is owed",
        CancelAnswer::Full => "no more ids can be parked",
    }
}

pub(super) const fn cancel_cause(cause: CancelCause) -> &'static str {
    match cause {
        CancelCause::Triggered => "triggered",
        CancelCause::Asked => "asked",
    }
}

pub(super) fn next(next: Next) -> String {
    match next {
        Next::Idle => "nothing follows".to_owned(),
        Next::Again => "again".to_owned(),
        Next::At(time) => format!("again at {time:?}"),
        Next::Parked(reason) => format!("parked: {}", parked(reason)),
        Next::Stale => "stale".to_owned(),
    }
}

pub(super) fn why(why: &Why) -> String {
    let text = match why {
        Why::Idle => "nothing is owed".to_owned(),
        Why::Next => "it starts next".to_owned(),
        Why::WorkerBusy { running, slots } => format!("its worker is busy with {running} of {slots} runs"),
        Why::KindBusy { running } => format!("its kind is busy with {running} runs"),
        Why::Draining => "the shard drains".to_owned(),
        Why::Running { since, again, stopping } => {
            let again = if *again { ", and runs again then" } else { "" };
            let stopping = if *stopping { ", told to stop" } else { "" };
            format!("it runs since {}{stopping}{again}", time(*since))
        }
        Why::Retry { due, failures, overdue } => {
            let overdue = if *overdue { ", no more ids can be parked" } else { "" };
            format!("it failed {failures} times, tried again at {due:?}{overdue}")
        }
        Why::Requested { due } => format!("it asked for a time, {due:?}"),
        Why::TooSoon { due } => format!("it ran a moment ago, and runs again at {due:?}"),
        Why::Parked { reason, recorded } => {
            let recorded = if *recorded { "" } else { ", not recorded yet" };
            format!("it is parked: {}{recorded}", parked(*reason))
        }
    };
    format!("why: {text}")
}

/// A moment, as the time since the script began.
pub(super) fn time(time: Time) -> String {
    if time == Time::ZERO { "0s".to_owned() } else { format!("{time:?}") }
}

/// `250ms`, `1s`, `2m`, `1h`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| format!("{text:?} is no duration"))?;
    match &text[digits..] {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        "h" => Ok(Duration::from_secs(number * 3_600)),
        _ => Err(format!("{text:?} has no unit: ms, s, m or h")),
    }
}
