//! One list from begin to end: made, handed over as there is room, counted.
//!
//! Must never hold more ids than the channel between list and engine. Tested in tests/it/streams_resync.rs.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::plan::Scope;
use crate::contract::{Events, IdList, ListError, Stopped};

/// How many ids a list may be ahead of the engine, so that reading them and waiting for room overlap.
const AHEAD_MAX: usize = 1_000;
/// The bounds of the histogram of durations, in seconds: from an empty list to a million slow ids.
const SECONDS: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0];

/// One list from begin to end, and what is told of it.
pub(super) struct Pass<'a> {
    list: Arc<dyn IdList>,
    events: &'a Events,
    instruments: Instruments,
}

impl<'a> Pass<'a> {
    pub(super) fn new(list: Arc<dyn IdList>, events: &'a Events) -> Self {
        Self { list, events, instruments: Instruments::new(events) }
    }

    /// Makes the list and hands over what is in scope; the inner error is the list's.
    pub(super) async fn make(&self, scope: &Scope) -> Result<Result<(), ListError>, Stopped> {
        let begun = Instant::now();
        let (into, ids) = mpsc::channel(AHEAD_MAX);
        let list = async { Ok(self.list.list(into).await) };
        let (listed, seen) = tokio::try_join!(list, self.hand_over(ids, scope))?;
        let made = match listed {
            Ok(said) if said != seen => Err(ListError(format!("the list says that it has {said} ids and gave {seen}"))),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        self.instruments.record(made.is_ok().then_some(seen), begun.elapsed());
        if made.is_ok() {
            self.events.report(None);
        }
        Ok(made)
    }

    /// Hands over what is listed, waiting while there is no room, and counts it.
    async fn hand_over(&self, mut ids: mpsc::Receiver<String>, scope: &Scope) -> Result<u64, Stopped> {
        let mut seen = 0;
        while let Some(id) = ids.recv().await {
            seen += 1;
            if scope.holds(|| self.events.shard_of(&id)) {
                // What belongs to another process is that one's to list.
                let _ = self.events.send(&id).await?;
            }
        }
        Ok(seen)
    }

    /// Tells of a list that failed.
    pub(super) fn report(&self, error: &ListError, retry_in: Duration) {
        let stream = self.events.name();
        tracing::warn!(%stream, %error, ?retry_in, "the list of ids failed");
        self.events.count_error("list");
        self.events.report(Some(format!("the list of ids failed: {error}; it is made again in {retry_in:?}")));
    }
}

/// What is measured (T3).
struct Instruments {
    stream: KeyValue,
    items: Counter<u64>,
    duration: Histogram<f64>,
}

impl Instruments {
    fn new(events: &Events) -> Self {
        let meter = events.meter();
        Self {
            stream: KeyValue::new("evenkeel.stream", events.name().to_string()),
            items: meter
                .u64_counter("evenkeel.resync.items")
                .with_unit("{id}")
                .with_description("Ids named by complete lists")
                .build(),
            duration: meter
                .f64_histogram("evenkeel.resync.duration")
                .with_unit("s")
                .with_description("Time from the begin of a list until its last id was handed over")
                .with_boundaries(SECONDS.to_vec())
                .build(),
        }
    }

    fn record(&self, items: Option<u64>, took: Duration) {
        let outcome = if items.is_some() { "done" } else { "failed" };
        let outcome = KeyValue::new("evenkeel.outcome", outcome);
        self.duration.record(took.as_secs_f64(), &[self.stream.clone(), outcome]);
        if let Some(items) = items {
            self.items.add(items, std::slice::from_ref(&self.stream));
        }
    }
}
