//! SIGUSR1 writes what waits and runs into the log (D11).

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::task::AbortOnDropHandle;

use crate::engine::view::{QueueQuery, Status};
use crate::engine::{Handle, HandleError};

/// Lines of one dump, at most: enough to see what is stuck, too few to fill a disk.
const LINES_MAX: usize = 10_000;

/// Listens from now on: what comes during the start is answered after it, and does not end the process.
pub(super) fn listen() -> anyhow::Result<Signal> {
    signal(SignalKind::user_defined1()).context("cannot listen to SIGUSR1")
}

/// Dumps on the signal until this is dropped.
pub(super) fn on_signal(mut asked: Signal, handle: &Handle) -> AbortOnDropHandle<()> {
    let handle = handle.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        while asked.recv().await.is_some() {
            if let Err(error) = dump(&handle).await {
                tracing::warn!(%error, "the state could not be dumped");
            }
        }
    }))
}

async fn dump(handle: &Handle) -> Result<(), HandleError> {
    let status = handle.status().await?;
    summary(&status);
    let mut query = QueueQuery::default();
    let mut lines = 0;
    loop {
        let page = handle.queues(query.clone()).await?;
        for entry in &page.entries {
            tracing::info!(
                id = entry.id,
                state = ?entry.state,
                shard = entry.shard.0,
                attempt = entry.attempt,
                due = entry.due.map(tracing::field::display),
                parked = entry.parked.map(tracing::field::debug),
                error = entry.error,
                "dump"
            );
        }
        lines += page.entries.len();
        match page.next {
            Some(next) if lines < LINES_MAX => query.after = Some(next),
            Some(_) => {
                tracing::info!(lines, "dump: there are more; `evenkeel queues` lists them all");
                return Ok(());
            }
            None => return Ok(()),
        }
    }
}

fn summary(status: &Status) {
    let counts = &status.counts;
    tracing::info!(
        pending = counts.pending,
        running = counts.running,
        delayed = counts.delayed,
        parked = counts.parked,
        owed_records = counts.owed_records,
        admitted = counts.admitted,
        timers = counts.timers,
        problems = status.problems.join("; "),
        "dump: the state of this process"
    );
}
