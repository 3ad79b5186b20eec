//! Log lines of the engine. The message is constant, what varies stands in fields; nothing is formatted that nobody
//! reads.

use tracing::{Level, debug, error, info, warn};

use super::journal::Entry;
use super::shared::Shared;
use super::view::{RunOutcome, StreamState};
use crate::contract::{DeadLetterError, StoreError};
use crate::id::ShardId;

/// The target of the lines that say how a run ended; one line a run.
pub const RUN_TARGET: &str = "evenkeel::run";

/// How a run ended: failures warn, give-ups and panics are errors, what changed nothing is for debugging.
pub(crate) fn run_ended(shared: &Shared, shard: ShardId, entry: &Entry, unchanged: bool) {
    macro_rules! line {
        ($level:expr) => {
            if tracing::enabled!(target: RUN_TARGET, $level) {
                let all = entry.causes();
                let causes: Vec<String> = all.iter()
                    .map(|cause| shared.sources.cause(cause, entry.cause_error()).to_string()).collect();
                tracing::event!(
                    target: RUN_TARGET,
                    $level,
                    outcome = entry.outcome.name(),
                    id = &*entry.id,
                    attempt = entry.attempt,
                    duration_seconds = entry.ended.since(entry.started).as_secs_f64(),
                    shard = shard.0,
                    worker = entry.worker.0,
                    causes = causes.join(", "),
                    more_causes = all.more(),
                    next_seconds = entry.next.map(|next| next.since(entry.ended).as_secs_f64()),
                    message = entry.message().map(|text| &**text),
                );
            }
        };
    }
    match entry.outcome {
        RunOutcome::Done | RunOutcome::Requeued if unchanged => line!(Level::DEBUG),
        RunOutcome::Done | RunOutcome::Requeued | RunOutcome::Cancelled => line!(Level::INFO),
        RunOutcome::Failed | RunOutcome::TimedOut => line!(Level::WARN),
        RunOutcome::GivenUp | RunOutcome::Panicked => line!(Level::ERROR),
    }
}

/// Under what name a stuck run is shown.
pub(crate) fn stuck_key(id: &str) -> String {
    format!("stuck {id}")
}

pub(crate) fn stuck_text(id: &str) -> String {
    format!(
        "a run of {id:?} blocks its thread and cannot be stopped; end the process, and let the reconciler not block"
    )
}

pub(crate) fn stuck(shared: &Shared, shard: ShardId, id: &str) {
    error!(controller = &*shared.name, shard = shard.0, id, "a run blocks its thread and cannot be stopped");
}

pub(crate) fn store_failed(shared: &Shared, shard: ShardId, error: &StoreError) {
    error!(controller = &*shared.name, shard = shard.0, %error, "owed records cannot be written; trying again");
}

pub(crate) fn store_unread(shared: &Shared, shard: ShardId, error: &StoreError) {
    error!(controller = &*shared.name, shard = shard.0, %error, "owed records cannot be read; trying again");
}

pub(crate) fn bound_reached(shared: &Shared, shard: ShardId, bound: &str) {
    warn!(
        controller = &*shared.name,
        shard = shard.0,
        bound,
        "a bound is reached; sources are held back until there is room, and nothing is lost"
    );
}

pub(crate) fn letter_failed(shared: &Shared, shard: ShardId, id: &str, error: &DeadLetterError) {
    error!(controller = &*shared.name, shard = shard.0, id, %error, "a dead letter cannot be sent; trying again");
}

pub(crate) fn recovered(shared: &Shared, shard: ShardId, count: usize) {
    if count > 0 {
        info!(controller = &*shared.name, shard = shard.0, count, "took over owed records");
    } else {
        debug!(controller = &*shared.name, shard = shard.0, "no owed records");
    }
}

pub(crate) fn term_began(shared: &Shared, shard: ShardId, revision: u64) {
    info!(controller = &*shared.name, shard = shard.0, revision, "leads the shard");
}

pub(crate) fn term_ended(shared: &Shared, shard: ShardId, why: &str) {
    info!(controller = &*shared.name, shard = shard.0, why, "leads the shard no more");
}

/// What a stop had no time for.
pub(crate) fn left(shared: &Shared, shard: ShardId, records: usize, letters: usize) {
    let controller = &*shared.name;
    if records > 0 {
        let count = records;
        error!(
            controller,
            shard = shard.0,
            count,
            "owed records were not written before the stop; their events come again from their source"
        );
    }
    if letters > 0 {
        let count = letters;
        error!(
            controller,
            shard = shard.0,
            count,
            "dead letters were not sent before the stop; `queues` lists their ids"
        );
    }
}

pub(crate) fn stream_failed(shared: &Shared, stream: &str, error: &str, delay_seconds: f64) {
    warn!(controller = &*shared.name, stream, error, delay_seconds, "an event stream failed and is started again");
}

pub(crate) fn stream_ended(shared: &Shared, stream: &str) {
    warn!(controller = &*shared.name, stream, "an event stream ended by itself; it gives no more events");
}

/// Streams that a stop could not end.
pub(crate) fn streams_block(shared: &Shared) {
    for stream in shared.streams().iter().filter(|stream| stream.get().0 != StreamState::Stopped) {
        let controller = &*shared.name;
        error!(controller, stream = &*stream.name, "an event stream blocks its thread; the stop does not wait for it");
    }
}

pub(crate) fn stopping(shared: &Shared) {
    info!(controller = &*shared.name, "stopping: no more events, runs may finish");
}

pub(crate) fn refused_id(stream: &str, error: &crate::id::IdError) {
    debug!(stream, %error, "an event names no valid id");
}
