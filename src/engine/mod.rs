//! The engine: runs what the scheduler decides.
//!
//! One task per shard and term (`shard`), one per stream (`streams`), one that writes records per term, one per run
//! that is still pending after its first poll, and a watching thread (`watchdog`). A stop goes through them in order:
//! intake, runs, owed records; commits and telemetry are flushed by whoever owns them, after [`Engine::run`] has
//! returned (L5, B91).
//!
//! It must never know an adapter: streams, stores, electors and reconcilers come in as traits. Tested through its
//! public API in `tests/it`, and end to end in `tests/live`.

mod beacon;
mod builder;
mod clock;
mod handle;
mod intake;
mod invoke;
mod journal;
mod log;
mod news;
mod options;
mod patience;
mod pool;
mod shard;
mod shared;
mod sink;
mod stats;
mod streams;
mod trace;
pub mod view;
mod watchdog;

use std::future::Future;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use builder::{BuildError, Builder};
pub use handle::{Handle, HandleError, Select};
pub use log::RUN_TARGET;
pub use news::{JournalCursor, JournalNews};
pub use options::{Limits, ReconcilerOptions, Sharding, Timing};

pub use crate::scheduler::Retry;

use crate::contract::{ElectorError, Leadership, StoreError, Term};
use crate::id::ShardId;
use shard::{Message, ShardLoop, TermEnd};
use shared::Shared;
use streams::NamedStream;
use watchdog::{Alarm, Watchdog};

/// How long streams may take to be dropped; one that takes longer blocks its thread, and the stop goes on without it.
const STREAMS_MAX: Duration = Duration::from_secs(5);
/// How long giving a shard back may take; then it ends by its own deadline.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// A controller, ready to run.
pub struct Engine {
    shared: Arc<Shared>,
    streams: Vec<NamedStream>,
}

/// The engine itself failed; what a reconciler or an ordinary stream does wrong never ends it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A stream marked critical failed.
    #[error("stream {name:?} failed: {error}")]
    CriticalStream {
        /// Its name.
        name: String,
        /// Its error.
        error: String,
    },
    /// The store of owed records cannot be used.
    #[error("the store of owed records: {0}")]
    Store(#[from] StoreError),
    /// Leadership cannot be had.
    #[error(transparent)]
    Elector(#[from] ElectorError),
    /// A shard's loop is stuck: end the process, so that another can lead (L8).
    #[error("{0}")]
    Silent(String),
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A part of the engine panicked: a bug. End the process.
    #[error("a part of the engine panicked: {0}")]
    Bug(String),
}

impl Engine {
    /// Begins to put an engine together. The name stands in metrics, logs and fencing.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }

    pub(crate) fn new(shared: Arc<Shared>, streams: Vec<NamedStream>) -> Self {
        Self { shared, streams }
    }

    /// A handle that stays good while the engine runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// Runs until `shutdown` resolves or [`Handle::drain`] is called, then stops: no more events, runs may finish,
    /// what is owed is recorded. When it returns, nothing runs any more, and sources know what is done.
    ///
    /// # Errors
    /// The engine's own faults only. On [`EngineError::Silent`] a thread is stuck: the process must be ended, since
    /// waiting for its runtime would wait for ever.
    ///
    /// # Cancel safety
    /// Dropping it cuts everything off at once; nothing is lost that a source or a record keeps.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), EngineError> {
        let shared = self.shared;
        let _over = shared.stop.over.clone().drop_guard();
        stats::observe(&shared.meter, &shared);
        let alarm = Alarm::default();
        let _watchdog = Watchdog::start(&shared, alarm.clone())?;
        let mut tasks: JoinSet<Result<(), EngineError>> = JoinSet::new();
        let mut streams = JoinSet::new();
        for number in 0..shared.router.shards() {
            tasks.spawn(lead(Arc::clone(&shared), ShardId(number)));
        }
        for (named, info) in self.streams.into_iter().zip(shared.streams()) {
            let name = named.name.to_string();
            let supervised = streams::supervise(Arc::clone(&shared), named, info);
            streams.spawn(async move { supervised.await.map_err(|error| EngineError::CriticalStream { name, error }) });
        }
        shared.ready.store(true, Relaxed);
        let first_error = until_stop(&shared, shutdown, &alarm, &mut tasks, &mut streams).await;
        stop(&shared, &alarm, tasks, streams, first_error).await
    }
}

/// Waits for a reason to stop; an error if it is one.
async fn until_stop(
    shared: &Shared,
    shutdown: impl Future<Output = ()>,
    alarm: &Alarm,
    tasks: &mut JoinSet<Result<(), EngineError>>,
    streams: &mut JoinSet<Result<(), EngineError>>,
) -> Result<(), EngineError> {
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => return Ok(()),
            () = shared.stop.asked.cancelled() => return Ok(()),
            () = alarm.silent.cancelled() => return Err(silent(shared)),
            Some(ended) = tasks.join_next() => flatten(ended)?,
            Some(ended) = streams.join_next() => flatten(ended)?,
        }
    }
}

/// Stops in order (B91): intake, then runs and owed records.
async fn stop(
    shared: &Shared,
    alarm: &Alarm,
    mut tasks: JoinSet<Result<(), EngineError>>,
    mut streams: JoinSet<Result<(), EngineError>>,
    first_error: Result<(), EngineError>,
) -> Result<(), EngineError> {
    shared.stop.asked.cancel();
    log::stopping(shared);
    if alarm.silent.is_cancelled() {
        return first_error;
    }
    shared.stop.close_intake();
    let ended = async { while streams.join_next().await.is_some() {} };
    if tokio::time::timeout(STREAMS_MAX, ended).await.is_err() {
        log::streams_block(shared);
    }
    shared.stop.shards.cancel();
    let mut result = first_error;
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => return result,
                Some(ended) => result = result.and(flatten(ended)),
            },
            () = alarm.silent.cancelled() => return result.and(Err(silent(shared))),
        }
    }
}

fn silent(shared: &Shared) -> EngineError {
    let texts: Vec<String> =
        shared.problems.all().into_iter().filter(|problem| problem.fatal).map(|problem| problem.text).collect();
    EngineError::Silent(texts.join("; "))
}

fn flatten(ended: Result<Result<(), EngineError>, tokio::task::JoinError>) -> Result<(), EngineError> {
    ended.unwrap_or_else(|error| Err(EngineError::Bug(error.to_string())))
}

/// Leads one shard whenever it may, term after term.
async fn lead(shared: Arc<Shared>, shard: ShardId) -> Result<(), EngineError> {
    let inbox = shared.door(shard).inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut inbox) = inbox else { return Ok(()) };
    loop {
        let Some(leadership) = until_led(&shared, shard, &mut inbox).await? else { return Ok(()) };
        log::term_began(&shared, shard, leadership.term.revision);
        shared.set_term(shard, Some(leadership.term));
        let term = ShardLoop::new(Arc::clone(&shared), leadership.term, inbox);
        let (returned, end) = term.run(&leadership).await;
        inbox = returned;
        shared.set_term(shard, None);
        match end {
            TermEnd::Drained { records, letters } => {
                log::left(&shared, shard, records, letters);
                log::term_ended(&shared, shard, "handed over");
            }
            TermEnd::Lost => log::term_ended(&shared, shard, "leadership was lost"),
            TermEnd::Store(error) => return Err(error.into()),
            // It is not given back: its runs have not ended (L3).
            TermEnd::Stuck(text) => return Err(EngineError::Silent(text)),
        }
        if let Some(elector) = &shared.elector
            && tokio::time::timeout(RELEASE_MAX, elector.release(leadership)).await.is_err()
        {
            log::term_ended(&shared, shard, "it could not be given back in time");
        }
        if shared.stop.shards.is_cancelled() {
            return Ok(());
        }
    }
}

/// Waits until this process leads the shard; `None` when it is to stop. Questions that come meanwhile are not kept: who
/// asks hears that the shard is not led.
async fn until_led(
    shared: &Shared,
    shard: ShardId,
    inbox: &mut mpsc::UnboundedReceiver<Message>,
) -> Result<Option<Leadership>, EngineError> {
    let mut electing = std::pin::pin!(elect(shared, shard));
    loop {
        tokio::select! {
            biased;
            () = shared.stop.shards.cancelled() => return Ok(None),
            leadership = &mut electing => return leadership.map(Some),
            _ = inbox.recv() => {}
        }
    }
}

/// A leadership from the elector; without one this process leads at once (L6).
async fn elect(shared: &Shared, shard: ShardId) -> Result<Leadership, EngineError> {
    if let Some(elector) = &shared.elector {
        return Ok(elector.lead(shard).await?);
    }
    // No counter is kept, so the calendar must do: tokens grow over restarts while the clock is not set back.
    let revision = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(1);
    Ok(Leadership::new(Term { shard, incarnation: shared.incarnation, revision }))
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("name", &self.shared.name).finish_non_exhaustive()
    }
}
