//! What is measured (T3), under the names of the surface.
//!
//! The loop counts in plain integers and copies them here once a turn; instruments that only observe read them when
//! somebody scrapes. Only durations are recorded as they happen, through instruments that were bound to their
//! attributes beforehand.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{BoundHistogram, Histogram, Meter};

use super::shared::Shared;
use super::view::RunOutcome;
use crate::id::ShardId;

/// The instrumentation scope.
pub(crate) const SCOPE: &str = "evenkeel";

/// Numbers of one shard, written by its loop and read by whoever looks.
#[derive(Debug, Default)]
pub(crate) struct ShardStats {
    pub(crate) led: AtomicU64,
    pub(crate) terms: AtomicU64,
    pub(crate) admitted: AtomicU64,
    pub(crate) present: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) started: AtomicU64,
    pub(crate) runs: [AtomicU64; RunOutcome::ALL.len()],
    pub(crate) panics: AtomicU64,
    pub(crate) cut_off: AtomicU64,
    pub(crate) pending: [AtomicU64; 3],
    pub(crate) running: AtomicU64,
    pub(crate) delayed: AtomicU64,
    pub(crate) parked: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) seats: AtomicU64,
    pub(crate) timers: AtomicU64,
    pub(crate) overdue: AtomicU64,
    pub(crate) full: AtomicU64,
    pub(crate) records_full: AtomicU64,
    /// Since when the oldest event is not done, in milliseconds of the engine's clock; 0 for none.
    pub(crate) oldest_hold_ms: AtomicU64,
}

impl ShardStats {
    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Relaxed)
    }

    /// One more. Only the shard's loop writes its numbers, so a plain sum will do.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }
}

/// Durations of one shard and kind.
#[derive(Clone)]
pub(crate) struct Durations {
    pub(crate) wait: BoundHistogram<f64>,
    pub(crate) run: [BoundHistogram<f64>; RunOutcome::ALL.len()],
    pub(crate) requeue_delay: [BoundHistogram<f64>; 2],
}

/// Instruments that durations are recorded through.
#[derive(Debug, Clone)]
pub(crate) struct Instruments {
    wait: Histogram<f64>,
    run: Histogram<f64>,
    requeue_delay: Histogram<f64>,
}

impl Instruments {
    pub(crate) fn new(meter: &Meter) -> Self {
        let seconds = |name, text| meter.f64_histogram(name).with_unit("s").with_description(text).build();
        Self {
            wait: seconds("evenkeel.queue.wait", "Time an id waited in its lane before its run."),
            run: seconds("evenkeel.run.duration", "Time a run took."),
            requeue_delay: seconds(
                "evenkeel.requeue.delay",
                "Delay until the next run of an id that is retried or asked for it.",
            ),
        }
    }

    /// Binds the instruments to a shard's attributes.
    pub(crate) fn bind(&self, controller: &str, kind: &str, shard: ShardId) -> Durations {
        let base = [
            KeyValue::new("evenkeel.controller", controller.to_owned()),
            KeyValue::new("evenkeel.kind", kind.to_owned()),
            KeyValue::new("evenkeel.shard", i64::from(shard.0)),
        ];
        let with = |key: &'static str, value: &'static str| {
            let mut attributes = base.to_vec();
            attributes.push(KeyValue::new(key, value));
            attributes
        };
        Durations {
            wait: self.wait.bind(&base),
            run: RunOutcome::ALL.map(|outcome| self.run.bind(&with("evenkeel.outcome", outcome.name()))),
            requeue_delay: ["retry", "requested"]
                .map(|reason| self.requeue_delay.bind(&with("evenkeel.reason", reason))),
        }
    }
}

/// Registers the instruments that only observe. They live as long as the meter's provider and stop reporting when the
/// engine is gone.
pub(crate) fn observe(meter: &Meter, shared: &Arc<Shared>) {
    counter(meter, shared, "evenkeel.enqueues", "Events by what became of them.", |shard, report| {
        for (result, counter) in
            [("ok", &shard.admitted), ("already_present", &shard.present), ("rejected", &shard.refused)]
        {
            report(ShardStats::get(counter), Some(("evenkeel.outcome", result)));
        }
    });
    counter(meter, shared, "evenkeel.dequeues", "Runs started.", |shard, report| {
        report(ShardStats::get(&shard.started), None);
    });
    counter(meter, shared, "evenkeel.runs", "Runs ended, by outcome.", |shard, report| {
        for (outcome, counter) in RunOutcome::ALL.into_iter().zip(&shard.runs) {
            report(ShardStats::get(counter), Some(("evenkeel.outcome", outcome.name())));
        }
    });
    counter(meter, shared, "evenkeel.panics", "Runs that panicked.", |shard, report| {
        report(ShardStats::get(&shard.panics), None);
    });
    counter(
        meter,
        shared,
        "evenkeel.runs.cut_off",
        "Runs that were cut off because they did not stop.",
        |shard, report| {
            report(ShardStats::get(&shard.cut_off), None);
        },
    );
    counter(meter, shared, "evenkeel.leader.changes", "Terms of leadership begun by this process.", |shard, report| {
        report(ShardStats::get(&shard.terms), None);
    });
    gauge(meter, shared, "evenkeel.queue.depth", "Ids that wait for a worker.", |shard, report| {
        for (priority, counter) in ["event", "due", "resync"].into_iter().zip(&shard.pending) {
            report(ShardStats::get(counter), Some(("evenkeel.reason", priority)));
        }
    });
    gauge(meter, shared, "evenkeel.runs.active", "Runs under way.", |shard, report| {
        report(ShardStats::get(&shard.running), None);
    });
    gauge(meter, shared, "evenkeel.delayed", "Ids that wait for a time.", |shard, report| {
        report(ShardStats::get(&shard.delayed), None);
    });
    gauge(meter, shared, "evenkeel.parked", "Ids that wait for somebody.", |shard, report| {
        report(ShardStats::get(&shard.parked), None);
    });
    gauge(meter, shared, "evenkeel.owed_records", "Owed records in the store.", |shard, report| {
        report(ShardStats::get(&shard.records), None);
    });
    gauge(meter, shared, "evenkeel.leader", "1 while this process leads the shard.", |shard, report| {
        report(ShardStats::get(&shard.led), None);
    });
    streams(meter, shared);
}

type Report<'a> = &'a dyn Fn(u64, Option<(&'static str, &'static str)>);

fn counter(
    meter: &Meter,
    shared: &Arc<Shared>,
    name: &'static str,
    text: &'static str,
    read: impl Fn(&ShardStats, Report<'_>) + Send + Sync + 'static,
) {
    let shared = Arc::downgrade(shared);
    meter
        .u64_observable_counter(name)
        .with_description(text)
        .with_callback(move |observer| {
            let Some(shared) = shared.upgrade() else { return };
            each_shard(&shared, &|stats, attributes| {
                read(stats, &|value, extra| observer.observe(value, &join(attributes, extra)));
            });
        })
        .build();
}

fn gauge(
    meter: &Meter,
    shared: &Arc<Shared>,
    name: &'static str,
    text: &'static str,
    read: impl Fn(&ShardStats, Report<'_>) + Send + Sync + 'static,
) {
    let shared = Arc::downgrade(shared);
    meter
        .u64_observable_gauge(name)
        .with_description(text)
        .with_callback(move |observer| {
            let Some(shared) = shared.upgrade() else { return };
            each_shard(&shared, &|stats, attributes| {
                read(stats, &|value, extra| observer.observe(value, &join(attributes, extra)));
            });
        })
        .build();
}

/// Shards that this process leads or has led: a shard that moved away reports zeros, not its last numbers (B76).
fn each_shard(shared: &Shared, read: &dyn Fn(&ShardStats, &[KeyValue])) {
    for (number, shard) in shared.shards.iter().enumerate() {
        if ShardStats::get(&shard.stats.terms) == 0 {
            continue;
        }
        let attributes = [
            KeyValue::new("evenkeel.controller", shared.name.to_string()),
            KeyValue::new("evenkeel.shard", i64::try_from(number).unwrap_or(i64::MAX)),
        ];
        read(&shard.stats, &attributes);
    }
}

fn join(attributes: &[KeyValue], extra: Option<(&'static str, &'static str)>) -> Vec<KeyValue> {
    let mut all = attributes.to_vec();
    all.extend(extra.map(|(key, value)| KeyValue::new(key, value)));
    all
}

fn streams(meter: &Meter, shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    meter
        .u64_observable_counter("evenkeel.stream.events")
        .with_description("Events that streams handed over, and their errors.")
        .with_callback(move |observer| {
            let Some(shared) = weak.upgrade() else { return };
            for stream in shared.streams() {
                let name = KeyValue::new("evenkeel.stream", stream.name.to_string());
                let controller = KeyValue::new("evenkeel.controller", shared.name.to_string());
                let error = |error: bool| KeyValue::new("error", error);
                observer.observe(stream.events.load(Relaxed), &[controller.clone(), name.clone(), error(false)]);
                let errors = stream.errors_by_name.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for (reason, count) in errors {
                    let reason = KeyValue::new("evenkeel.reason", reason);
                    observer.observe(count, &[controller.clone(), name.clone(), error(true), reason]);
                }
            }
        })
        .build();
}
