//! What people and programs are shown of a running engine: plain values with stable JSON (admin API, `-o json`).
//!
//! Must never be used to decide anything. Adding a field is compatible; renaming one needs a deprecation.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::contract::{Cause, OwedReason};
use crate::id::{ShardId, WorkerId};

/// The whole process at a glance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The controller's name.
    pub controller: String,
    /// The version of evenkeel.
    pub version: String,
    /// `running` or `draining`.
    pub state: EngineState,
    /// When the process started.
    pub started: Timestamp,
    /// How many shards the cluster has.
    pub shards: u16,
    /// How many of them this process leads.
    pub led: u16,
    /// What waits and runs in the shards led here.
    pub counts: Counts,
    /// The event streams.
    pub streams: Vec<StreamStatus>,
    /// Seconds since the oldest event that is not done came in; `None` when nothing is owed.
    pub oldest_undone_seconds: Option<f64>,
    /// What needs attention, in words; empty when all is well.
    pub problems: Vec<String>,
}

/// Whether the engine takes events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// It does.
    Running,
    /// It finishes what runs and stops.
    Draining,
}

/// How many ids are in which state, and how far the bounds are used (D6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Owed a run now.
    pub pending: u64,
    /// Running.
    pub running: u64,
    /// Waiting for a time: a retry or one that was asked for.
    pub delayed: u64,
    /// Waiting for somebody.
    pub parked: u64,
    /// Owed records in the store.
    pub owed_records: u64,
    /// Places taken of `limits.admitted`.
    pub admitted: u64,
    /// The bound, over all shards led here.
    pub admitted_max: u64,
    /// Places taken of `limits.timers`.
    pub timers: u64,
    /// The bound, over all shards led here.
    pub timers_max: u64,
}

impl Counts {
    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &Self) {
        self.pending += other.pending;
        self.running += other.running;
        self.delayed += other.delayed;
        self.parked += other.parked;
        self.owed_records += other.owed_records;
        self.admitted += other.admitted;
        self.admitted_max += other.admitted_max;
        self.timers += other.timers;
        self.timers_max += other.timers_max;
    }
}

/// One event stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StreamStatus {
    /// Its name.
    pub name: String,
    /// How it is.
    pub state: StreamState,
    /// What is wrong and what to do, if something is.
    pub problem: Option<String>,
    /// Events it handed over since the start.
    pub events: u64,
    /// Errors since the start.
    pub errors: u64,
    /// Times it was started again after a failure.
    pub restarts: u64,
}

/// How a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamState {
    /// Well.
    Running,
    /// It runs, but something is wrong.
    Degraded,
    /// It failed and waits to be started again.
    Restarting,
    /// It ended by itself.
    Ended,
    /// The engine is stopping, or leads no shard.
    Stopped,
}

/// One shard.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ShardStatus {
    /// Its number.
    pub shard: ShardId,
    /// Whether this process leads it.
    pub led: bool,
    /// The process that leads it, as far as is known here; `None` where this process leads all, or nobody does.
    #[serde(default)]
    pub leader: Option<String>,
    /// Until when this process leads it if etcd does not answer any more; `None` elsewhere.
    #[serde(default)]
    pub until: Option<Timestamp>,
    /// The fencing token's first two parts, while it is led here.
    pub term: Option<String>,
    /// What waits and runs in it.
    pub counts: Counts,
    /// Runs ended in this term.
    pub runs: u64,
}

/// The state of an id (semantics, "Words").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdState {
    /// Nothing is owed.
    Idle,
    /// Owed a run.
    Pending,
    /// Running.
    Running,
    /// Waiting for a time.
    Delayed,
    /// Waiting for somebody.
    Parked,
}

/// One id that waits or runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QueueEntry {
    /// The id.
    pub id: String,
    /// Its kind; for opaque ids the controller's name.
    pub kind: String,
    /// Its shard.
    pub shard: ShardId,
    /// Its worker.
    pub worker: WorkerId,
    /// Its state.
    pub state: IdState,
    /// Failed attempts since the last success.
    pub attempt: u32,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// When it runs next, for a delayed one.
    pub due: Option<Timestamp>,
    /// Why it is parked.
    pub parked: Option<OwedReason>,
    /// The error of the last attempt.
    pub error: Option<String>,
    /// Why it runs.
    pub causes: Vec<Cause>,
    /// How many causes there are besides.
    pub more_causes: u32,
}

/// Which ids to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueQuery {
    /// Only this state.
    #[serde(default)]
    pub state: Option<IdState>,
    /// Only this shard.
    #[serde(default)]
    pub shard: Option<ShardId>,
    /// At most so many; at most and by default [`PAGE_MAX`].
    #[serde(default)]
    pub limit: Option<usize>,
    /// Where the page before ended.
    #[serde(default)]
    pub after: Option<String>,
}

/// The most ids in one answer: a shard builds it in one turn of its loop.
pub const PAGE_MAX: usize = 1_000;

/// A page of ids.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct QueuePage {
    /// The ids.
    pub entries: Vec<QueueEntry>,
    /// Give it as `after` for the next page; `None` at the end.
    pub next: Option<String>,
}

/// How a run ended (D1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// Success.
    Done,
    /// Success; runs again at a time that it asked for.
    Requeued,
    /// Failed; tried again.
    Failed,
    /// Failed for good, or for the last time.
    GivenUp,
    /// Cancelled.
    Cancelled,
    /// Panicked; tried again.
    Panicked,
    /// Took too long; tried again.
    TimedOut,
}

impl RunOutcome {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Done, Self::Requeued, Self::Failed, Self::GivenUp, Self::Cancelled, Self::Panicked, Self::TimedOut];

    /// The name used in logs, metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Requeued => "requeued",
            Self::Failed => "failed",
            Self::GivenUp => "given_up",
            Self::Cancelled => "cancelled",
            Self::Panicked => "panicked",
            Self::TimedOut => "timed_out",
        }
    }
}

/// One run that has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JournalEntry {
    /// When it ended.
    pub at: Timestamp,
    /// The id.
    pub id: Arc<str>,
    /// Its kind; for opaque ids the controller's name.
    pub kind: Arc<str>,
    /// Its shard.
    pub shard: ShardId,
    /// Its worker.
    pub worker: WorkerId,
    /// How it ended.
    pub outcome: RunOutcome,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// How long it took.
    pub duration_seconds: f64,
    /// How long the id had waited for it.
    pub waited_seconds: f64,
    /// Why it ran.
    pub causes: Vec<Cause>,
    /// How many causes there were besides.
    pub more_causes: u32,
    /// Its error, or its line for people.
    pub message: Option<Arc<str>>,
    /// When it runs next, if that is known.
    pub next: Option<Timestamp>,
}

/// Which runs to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalQuery {
    /// Only runs of this id.
    #[serde(default)]
    pub id: Option<String>,
    /// At most so many, the latest ones; at most and by default [`PAGE_MAX`].
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Why an id runs, waits, or does not (X4).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Explanation {
    /// The id.
    pub id: String,
    /// Its shard.
    pub shard: ShardId,
    /// Its worker.
    pub worker: WorkerId,
    /// Whether this process leads its shard; if not, nothing more is known here.
    pub led: bool,
    /// Its state.
    pub state: IdState,
    /// One sentence for people.
    pub why: String,
    /// The same for programs.
    pub reason: String,
    /// Everything known of it, unless it is idle and unknown.
    pub entry: Option<QueueEntry>,
    /// Its last runs, the latest first.
    pub journal: Vec<JournalEntry>,
}

/// What a trigger waits for (X7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitFor {
    /// Until the id is admitted, in memory.
    #[default]
    Admitted,
    /// Until an owed record of it is durable.
    Durable,
    /// Until the run that answers it has ended.
    Done,
}

/// What became of one triggered id (X7).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TriggerAnswer {
    /// The id.
    pub id: String,
    /// What became of it.
    #[serde(flatten)]
    pub result: TriggerResult,
}

/// What became of a triggered id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TriggerResult {
    /// It will run.
    Admitted,
    /// It was owed a run already; that run answers this trigger too.
    AlreadyPresent,
    /// It will run, and that survives a crash.
    Durable,
    /// The run has ended.
    Ended {
        /// How.
        outcome: RunOutcome,
        /// Its error or line for people.
        message: Option<Arc<str>>,
    },
    /// The shard is full; try again later.
    Full,
    /// The text is no id.
    Refused {
        /// Which rule it breaks.
        reason: String,
    },
    /// Another process leads its shard, or the engine is stopping.
    Unavailable {
        /// What to do.
        reason: String,
    },
    /// The user's own hash dropped it.
    Dropped,
    /// The store did not take the record; the id will run, but a crash may lose it.
    NotDurable {
        /// Why not.
        reason: String,
    },
}

/// What became of one id that was cancelled or redriven.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SteerAnswer {
    /// The id.
    pub id: String,
    /// Whether anything was done.
    pub done: bool,
    /// What was done, or why nothing.
    pub reason: String,
}

/// Whether the process is alive, and whether it should get traffic.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Health {
    /// `Err` names the shard or id whose loop or thread is stuck (C4, L8).
    pub live: bool,
    /// Whether everything has started, and nothing is full.
    pub ready: bool,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}
