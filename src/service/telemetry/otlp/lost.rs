//! What did not reach the collector: counted as a metric, and said in a line once a minute at most, however much it is
//! (B77).
//!
//! Must never show what a collector answered beyond its status, since that may repeat a token. Tested in
//! `tests/it/otlp.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use opentelemetry_sdk::error::OTelSdkError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::service::config::Signal;

/// The target of telemetry's own lines; they go to no collector.
pub(super) const TARGET: &str = "evenkeel::telemetry";

/// How often is looked whether there is something to say.
const LOOK: Duration = Duration::from_secs(1);
/// How often at most something is said about one signal.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Why something was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// There was no room for it.
    QueueFull,
    /// The collector did not take it in time, or refused it.
    Failed,
}

impl Reason {
    const ALL: [Self; 2] = [Self::QueueFull, Self::Failed];

    const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Failed => "failed",
        }
    }
}

/// The counts: of spans, of log records, and of metrics' exports, whose numbers come with the next one.
#[derive(Debug, Default)]
pub(super) struct Lost([Of; Signal::ALL.len()]);

/// The counts of one signal.
#[derive(Debug, Default)]
struct Of {
    counts: [AtomicU64; Reason::ALL.len()],
    /// Whether something arrived since the last look.
    arrived: AtomicBool,
    /// What was wrong the last time: with the connection, as only the client knows it, and with the export.
    connection: Mutex<Option<String>>,
    error: Mutex<Option<String>>,
}

impl Lost {
    pub(super) fn add(&self, signal: Signal, reason: Reason, count: u64) {
        self.of(signal).counts[reason as usize].fetch_add(count, Relaxed);
    }

    pub(super) fn get(&self, signal: Signal, reason: Reason) -> u64 {
        self.of(signal).counts[reason as usize].load(Relaxed)
    }

    /// A batch was taken.
    pub(super) fn delivered(&self, signal: Signal) -> bool {
        self.of(signal).arrived.store(true, Relaxed);
        true
    }

    /// A batch was given up.
    pub(super) fn failed(&self, signal: Signal, count: usize, error: &OTelSdkError) -> bool {
        self.add(signal, Reason::Failed, u64::try_from(count).unwrap_or(u64::MAX));
        let connection = lock(&self.of(signal).connection).take();
        *lock(&self.of(signal).error) = Some(connection.unwrap_or_else(|| shown(error)));
        false
    }

    /// What a client found out, for the next line: the exporter says only that something was.
    pub(super) fn connection(&self, signal: Signal, error: String) {
        *lock(&self.of(signal).connection) = Some(error);
    }

    /// Shows the counts as a metric, which has no id and few attributes.
    pub(super) fn observe(self: &Arc<Self>, meter: &Meter) {
        let lost = Arc::clone(self);
        meter
            .u64_observable_counter("evenkeel.telemetry.lost")
            .with_description("Spans, log records and exports of metrics that did not reach the collector.")
            .with_callback(move |observer| {
                for signal in Signal::ALL {
                    for reason in Reason::ALL {
                        let attributes = [
                            KeyValue::new("evenkeel.signal", signal.name()),
                            KeyValue::new("evenkeel.reason", reason.name()),
                        ];
                        observer.observe(lost.get(signal, reason), &attributes);
                    }
                }
            })
            .build();
    }

    /// Says what is lost, until `closing`.
    pub(super) async fn tell(&self, closing: &CancellationToken) {
        let mut said = Signal::ALL.map(Said::nothing);
        while tokio::time::timeout(LOOK, closing.cancelled()).await.is_err() {
            said.iter_mut().for_each(|said| said.look(self));
        }
    }

    fn of(&self, signal: Signal) -> &Of {
        &self.0[signal as usize]
    }
}

/// What was seen of a signal, and what was said about it.
struct Said {
    signal: Signal,
    seen: Counts,
    said: Counts,
    /// Whether the last line said that something is lost.
    is_lost: bool,
    /// When that was said last.
    at: Option<Instant>,
}

type Counts = [u64; Reason::ALL.len()];

impl Said {
    fn nothing(signal: Signal) -> Self {
        Self { signal, seen: [0; Reason::ALL.len()], said: [0; Reason::ALL.len()], is_lost: false, at: None }
    }

    fn look(&mut self, lost: &Lost) {
        let counts = Reason::ALL.map(|reason| lost.get(self.signal, reason));
        let arrived = lost.of(self.signal).arrived.swap(false, Relaxed);
        let grew = std::mem::replace(&mut self.seen, counts) != counts;
        let signal = self.signal.name();
        let [queue_full, failed] = [0, 1].map(|i| counts[i] - self.said[i]);
        if grew && self.at.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
            let error = lock(&lost.of(self.signal).error).take();
            tracing::warn!(target: TARGET, signal, queue_full, failed, error, "telemetry is lost");
            (self.said, self.is_lost, self.at) = (counts, true, Some(Instant::now()));
        } else if arrived && !grew && self.is_lost {
            tracing::info!(target: TARGET, signal, queue_full, failed, "telemetry arrives again");
            (self.said, self.is_lost) = (counts, false);
        }
    }
}

/// The exporter's own words: a status, or what is wrong with the connection.
fn shown(error: &OTelSdkError) -> String {
    match error {
        OTelSdkError::InternalFailure(text) => text.clone(),
        other => other.to_string(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
