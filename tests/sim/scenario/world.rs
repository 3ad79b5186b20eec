//! What a script's commands do: a shard, a clock that they move, a store that answers when told, and sources that
//! remember.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

use evenkeel::id::{Causes, Receipt};
use evenkeel::scheduler::{
    Arrival, ArrivalClass, Command, KindSettings, Outcome, Record, Recovered, Retry, Settings, Shard, Slot, State, Time,
};

use super::text::{self, Names};

type Answer = Result<(), String>;

/// A change on its way to the store.
enum Change {
    Write { record: Record, slot: Slot, write: u64 },
    Erase(Arc<str>),
}

impl Change {
    fn id(&self) -> &str {
        match self {
            Self::Write { record, .. } => &record.id,
            Self::Erase(id) => id,
        }
    }
}

/// A source that remembers all its events.
#[derive(Default)]
struct Log {
    events: BTreeMap<u64, String>,
    owed: BTreeSet<u64>,
}

impl Log {
    /// Everything below is done.
    fn low_water(&self) -> u64 {
        self.owed.first().copied().or_else(|| self.events.keys().last().map(|last| last + 1)).unwrap_or(0)
    }
}

pub(super) struct World {
    settings: Settings,
    permits: u32,
    shard: Shard,
    now: Time,
    names: Names,
    runs: HashMap<String, (Slot, u64, Causes)>,
    changes: VecDeque<Change>,
    records: BTreeMap<String, Record>,
    logs: BTreeMap<String, Log>,
    commands: Vec<Command>,
}

impl Default for World {
    fn default() -> Self {
        let mut settings = Settings::new(NonZeroU16::MIN, NonZeroU32::MIN);
        settings.kinds[0].retry = Retry { jitter: 0.0, initial: Duration::from_secs(1), ..Retry::DEFAULT };
        Self {
            shard: Shard::new(settings.clone()),
            settings,
            permits: 100,
            now: Time::ZERO,
            names: Names::default(),
            runs: HashMap::new(),
            changes: VecDeque::new(),
            records: BTreeMap::new(),
            logs: BTreeMap::new(),
            commands: Vec::new(),
        }
        .granted()
    }
}

impl World {
    fn granted(mut self) -> Self {
        self.grant();
        self
    }

    fn grant(&mut self) {
        for kind in 0..self.settings.kinds.len() {
            self.shard.grant(u16::try_from(kind).unwrap(), self.permits);
        }
    }

    /// Carries out one line and writes down what came of it.
    pub(super) fn obey(&mut self, line: &str, out: &mut Vec<String>) -> Answer {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            ["settings", rest @ ..] => self.configure(rest)?,
            ["event", id, rest @ ..] => self.event(id, ArrivalClass::Event, rest, out)?,
            ["resync", id, rest @ ..] => self.event(id, ArrivalClass::Resync, rest, out)?,
            ["trigger", id, rest @ ..] => self.event(id, ArrivalClass::Trigger, rest, out)?,
            ["start"] => self.start(u32::MAX, out),
            ["start", count] => self.start(count.parse().map_err(|_| "a count is a number")?, out),
            ["done", id] => self.end(id, Outcome::Done(None), out),
            ["done", id, "again", "at", time] => {
                let time = Time::ZERO.after(text::duration(time)?);
                self.end(id, Outcome::Done(Some(time)), out);
            }
            ["done", id, "again", "in", delay] => {
                let time = self.now.after(text::duration(delay)?);
                self.end(id, Outcome::Done(Some(time)), out);
            }
            ["fail", id] => self.end(id, Outcome::Failed(None), out),
            ["fail", id, "retry", "in", delay] => {
                let delay = Some(text::duration(delay)?);
                self.end(id, Outcome::Failed(delay), out);
            }
            ["fail", id, "for", "good"] => self.end(id, Outcome::Terminal, out),
            ["stopped", id] => self.end(id, Outcome::Cancelled, out),
            ["cancel", id] => {
                let answer = self.shard.handle_cancel(self.now, id, &mut self.commands);
                out.push(text::cancel_answer(answer).to_owned());
            }
            ["redrive", "all"] => {
                let (_, ids) = self.shard.handle_redrive_matching(self.now, None, usize::MAX, |_| true);
                out.extend(ids.iter().map(|id| format!("released {id}")));
            }
            ["redrive", id] => {
                let released = self.shard.handle_redrive(self.now, id);
                out.push(if released { "released" } else { "not parked" }.to_owned());
            }
            ["record", id] => {
                let issued = self.shard.record_now(id, &mut self.commands).is_some();
                out.extend((!issued).then(|| "no record".to_owned()));
            }
            ["durable"] => self.durable(None, out),
            ["durable", id] => self.durable(Some(id), out),
            ["advance", time] => self.advance(text::duration(time)?, out),
            ["drain"] => self.shard.handle_drain(&mut self.commands),
            ["kill"] => self.kill(out),
            ["why", id] => out.push(text::why(&self.shard.why(id))),
            ["show"] => self.show(out),
            ["levels"] => out.push(self.levels()),
            ["counters"] => out.push(self.counters()),
            ["store"] => out.extend(
                self.records
                    .values()
                    .map(|record| self.names.record(self.now, record, false))
                    .map(|text| text.replacen("write ", "", 1)),
            ),
            ["low", "water"] => out.extend(self.logs.iter().map(|(name, log)| format!("{name} {}", log.low_water()))),
            ["next", "time"] => out.push(self.shard.next_time().map_or("never".to_owned(), |time| format!("{time:?}"))),
            _ => return Err("no such command".to_owned()),
        }
        self.carry_out(out);
        self.shard.audit();
        Ok(())
    }

    fn configure(&mut self, words: &[&str]) -> Answer {
        let count =
            |text: &str| text.parse::<u32>().ok().and_then(NonZeroU32::new).ok_or(format!("{text:?} is no count"));
        for word in words {
            let (key, value) = word.split_once('=').ok_or("a setting is KEY=VALUE")?;
            let KindSettings { workers, slots, retry } = &mut self.settings.kinds[0];
            match key {
                "workers" => *workers = value.parse().map_err(|_| "workers is a number")?,
                "slots" => *slots = count(value)?,
                "permits" => self.permits = value.parse().map_err(|_| "permits is a number")?,
                "admitted" => self.settings.admitted_max = count(value)?,
                "timers" => self.settings.timers_max = count(value)?,
                "owed_records" => self.settings.owed_records_max = count(value)?,
                "max_hold" => self.settings.max_hold = text::duration(value)?,
                "min_requeue" => self.settings.min_requeue = text::duration(value)?,
                "resolution" => self.settings.resolution = text::duration(value)?,
                "durable" => self.settings.durable = value == "yes",
                "initial" => retry.initial = text::duration(value)?,
                "max_delay" => retry.max_delay = text::duration(value)?,
                "max_retries" => retry.max_retries = value.parse().ok(),
                _ => return Err(format!("no setting is called {key:?}")),
            }
        }
        self.shard = Shard::new(self.settings.clone());
        self.grant();
        Ok(())
    }

    /// `event ID [SOURCE@POSITION] [on WORKER]`; without a source it is nobody's: `http`, or `resync`.
    fn event(&mut self, id: &str, class: ArrivalClass, words: &[&str], out: &mut Vec<String>) -> Answer {
        let (source, words) = match words {
            [source, rest @ ..] if source.contains('@') => (*source, rest),
            rest if class == ArrivalClass::Resync => ("resync@0", rest),
            rest => ("http@0", rest),
        };
        let worker = match words {
            [] => 0,
            ["on", worker] => worker.parse().map_err(|_| "a worker is a number")?,
            _ => return Err("event ID [SOURCE@POSITION] [on WORKER]".to_owned()),
        };
        let receipt = self.names.receipt(source)?;
        if let Some((name, _)) = source.split_once('@').filter(|_| receipt.source.is_tracked()) {
            let log = self.logs.entry(name.to_owned()).or_default();
            log.events.insert(receipt.position, id.to_owned());
            log.owed.insert(receipt.position);
        }
        let arrival = Arrival { id, kind: 0, worker, receipt, class };
        let admission = self.shard.handle_event(self.now, &arrival, &mut self.commands);
        out.push(text::admission(admission).to_owned());
        Ok(())
    }

    fn start(&mut self, count: u32, out: &mut Vec<String>) {
        for _ in 0..count {
            let Some(start) = self.shard.poll_start(self.now, &mut self.commands) else { break };
            out.push(self.names.start(&start));
            let before = self.runs.insert(start.id.to_string(), (start.slot, start.run, start.causes));
            assert!(before.is_none(), "{} runs twice", start.id);
        }
    }

    fn end(&mut self, id: &str, outcome: Outcome, out: &mut Vec<String>) {
        let Some((slot, run, causes)) = self.runs.remove(id) else { return out.push("it does not run".to_owned()) };
        let next = self.shard.handle_outcome(self.now, slot, run, outcome, &causes, &mut self.commands);
        out.push(text::next(next));
    }

    /// The store has made these changes durable, and says so.
    fn durable(&mut self, id: Option<&str>, out: &mut Vec<String>) {
        let (changes, rest) =
            std::mem::take(&mut self.changes).into_iter().partition(|change| id.is_none_or(|id| change.id() == id));
        self.changes = rest;
        let changes: VecDeque<Change> = changes;
        for change in changes {
            match change {
                Change::Erase(id) => drop(self.records.remove(&*id)),
                Change::Write { record, slot, write } => {
                    self.records.insert(record.id.to_string(), record);
                    self.shard.handle_recorded(self.now, slot, write, &mut self.commands);
                }
            }
            self.carry_out(out);
        }
    }

    /// Lets time pass as a driver does: awake when something is due, and asleep else.
    fn advance(&mut self, by: Duration, out: &mut Vec<String>) {
        let until = self.now.after(by);
        let mut delayed = self.delayed();
        while let Some(time) = self.shard.next_time().filter(|time| *time <= until) {
            self.now = self.now.max(time);
            self.shard.handle_time(self.now, &mut self.commands);
            let still = self.delayed();
            out.extend(delayed.difference(&still).map(|id| format!("{:?}: {id} is due", self.now)));
            delayed = still;
            let mut commands = Vec::new();
            self.carry_out(&mut commands);
            out.extend(commands.into_iter().map(|command| format!("{:?}: {command}", self.now)));
        }
        self.now = until;
    }

    fn delayed(&self) -> BTreeSet<String> {
        let (entries, _) = self.shard.page(None, usize::MAX, usize::MAX, |state| state == State::Delayed);
        entries.into_iter().map(|entry| entry.id.to_string()).collect()
    }

    fn carry_out(&mut self, out: &mut Vec<String>) {
        for command in std::mem::take(&mut self.commands) {
            match command {
                Command::Release(receipt) => {
                    out.push(format!("release {}", self.names.name(receipt)));
                    self.release(receipt);
                }
                Command::Cancel { slot, run, reason } => {
                    let id = self.shard.view_at(slot).expect("it runs").id;
                    out.push(format!("stop {id}, run {run}: {}", text::cancel_cause(reason)));
                }
                Command::Write { slot, write, given_up } => {
                    let record = self.shard.record(self.now, slot).expect("something is owed");
                    out.push(self.names.record(self.now, &record, given_up));
                    self.changes.push_back(Change::Write { record, slot, write });
                }
                Command::Erase(id) => {
                    out.push(format!("erase {id}"));
                    self.changes.push_back(Change::Erase(id));
                }
            }
        }
    }

    fn release(&mut self, receipt: Receipt) {
        let name = self.names.name(receipt);
        let (name, _) = name.split_once('@').expect("only events are released");
        let log = self.logs.get_mut(name).expect("only tracked events are released");
        assert!(log.owed.remove(&receipt.position), "{name}@{} is released twice", receipt.position);
    }

    /// The process is gone at once; another takes over from what is durable, and the sources give again what is not
    /// done.
    fn kill(&mut self, out: &mut Vec<String>) {
        self.shard = Shard::new(self.settings.clone());
        self.grant();
        self.runs.clear();
        self.changes.clear();
        self.commands.clear();
        self.names.forget();
        for record in self.records.values() {
            let Record { id, kind, due, failures, reason, .. } = record.clone();
            let recovered = Recovered { id, kind, worker: 0, due, failures, reason };
            self.shard.handle_recovered(self.now, &recovered);
            out.push(format!("recover {}", self.names.record(self.now, record, false).trim_start_matches("write ")));
        }
        let again: Vec<_> = self
            .logs
            .iter()
            .flat_map(|(name, log)| {
                log.events
                    .range(log.low_water()..)
                    .map(move |(position, id)| (id.clone(), format!("{name}@{position}")))
            })
            .collect();
        for (id, receipt) in again {
            let mut admission = Vec::new();
            self.event(&id, ArrivalClass::Event, &[&receipt], &mut admission).expect("it was an event before");
            out.push(format!("event {id} {receipt}: {}", admission.join("")));
        }
    }

    fn show(&self, out: &mut Vec<String>) {
        let (mut entries, _) = self.shard.page(None, usize::MAX, usize::MAX, |_| true);
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        out.extend(entries.iter().map(|entry| self.names.entry(entry)));
    }

    fn levels(&self) -> String {
        let levels = self.shard.levels();
        numbers(&[
            ("admitted", levels.admitted.into()),
            ("timers", levels.timers.into()),
            ("waiting", self.shard.waiting().into()),
            ("running", self.shard.running().into()),
            ("delayed", self.shard.delayed().into()),
            ("parked", levels.parked.into()),
            ("records", levels.records.into()),
            ("overdue", levels.overdue.into()),
        ])
    }

    fn counters(&self) -> String {
        let counters = self.shard.counters();
        numbers(&[
            ("admitted", counters.admitted),
            ("present", counters.present),
            ("refused", counters.refused),
            ("started", counters.started),
            ("retries", counters.retries),
            ("given up", counters.given_up),
            ("records full", counters.records_full),
            ("timers full", counters.timers_full),
        ])
    }
}

/// Those that are not zero.
fn numbers(all: &[(&str, u64)]) -> String {
    let shown: Vec<_> =
        all.iter().filter(|(_, number)| *number > 0).map(|(name, number)| format!("{name} {number}")).collect();
    if shown.is_empty() { "all zero".to_owned() } else { shown.join(", ") }
}
