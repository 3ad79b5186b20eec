//! The stream's own metrics: lag, oldest event that is not done, silence of the brokers, misrouted events, lost
//! offsets.
//!
//! Must never have an id as an attribute, and must stop reporting a partition that is no longer assigned (B76): the
//! callbacks read the assignments that stand, and nothing else. Tested below with a reader of the SDK.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter};

use super::assignment::Assignment;
use super::ledger::Tick;

/// What the metrics read: kept by the consumer's thread, outlives its restarts.
pub(super) struct Gauges {
    began: Instant,
    stream: Arc<str>,
    group: String,
    assigned: Mutex<Vec<Arc<Assignment>>>,
    /// When a broker last answered anything.
    answered: AtomicU64,
    /// When the consumer's thread last looked for messages.
    polled: AtomicU64,
}

impl Gauges {
    pub(super) fn new(stream: Arc<str>, group: String) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            stream,
            group,
            assigned: Mutex::default(),
            answered: AtomicU64::new(0),
            polled: AtomicU64::new(0),
        })
    }

    /// The time as ledgers keep it: milliseconds since the stream was made.
    pub(super) fn tick(&self, now: Instant) -> Tick {
        u64::try_from(now.duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn set_assigned(&self, assigned: Vec<Arc<Assignment>>) {
        *self.assigned.lock().unwrap_or_else(PoisonError::into_inner) = assigned;
    }

    pub(super) fn answered(&self, now: Instant) {
        self.answered.store(self.tick(now), Ordering::Relaxed);
    }

    pub(super) fn polled(&self, now: Instant) {
        self.polled.store(self.tick(now), Ordering::Relaxed);
    }

    /// Seconds since a broker answered anything.
    pub(super) fn silence(&self, now: Instant) -> f64 {
        seconds(self.tick(now), self.answered.load(Ordering::Relaxed))
    }

    /// Seconds since the consumer's thread looked for messages.
    pub(super) fn since_poll(&self, now: Instant) -> f64 {
        seconds(self.tick(now), self.polled.load(Ordering::Relaxed))
    }

    fn each(&self, mut then: impl FnMut(&Assignment)) {
        for assignment in self.assigned.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            then(assignment);
        }
    }

    fn attributes(&self, assignment: &Assignment) -> [KeyValue; 6] {
        [
            KeyValue::new("evenkeel.stream", self.stream.to_string()),
            KeyValue::new("evenkeel.shard", i64::from(assignment.shard.0)),
            KeyValue::new("messaging.system", "kafka"),
            KeyValue::new("messaging.destination.name", assignment.place.topic.to_string()),
            KeyValue::new("messaging.destination.partition.id", assignment.place.partition.to_string()),
            KeyValue::new("messaging.consumer.group.name", self.group.clone()),
        ]
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of a process's life are exact in a float")]
fn seconds(now: Tick, then: Tick) -> f64 {
    now.saturating_sub(then) as f64 / 1_000.0
}

/// The counters, and the gauges by their callbacks.
pub(super) struct Instruments {
    misrouted: Counter<u64>,
    lost: Counter<u64>,
    stream: Arc<str>,
}

impl Instruments {
    /// Registers them; once for a stream, since callbacks cannot be taken back.
    pub(super) fn new(meter: &Meter, gauges: &Arc<Gauges>) -> Self {
        let read = Arc::clone(gauges);
        meter
            .u64_observable_gauge("evenkeel.kafka.lag")
            .with_description("Offsets between what is committed and the end of the partition")
            .with_unit("{message}")
            .with_callback(move |observer| {
                read.each(|assignment| {
                    if let Some(lag) = assignment.lag() {
                        observer.observe(lag, &read.attributes(assignment));
                    }
                });
            })
            .build();
        let read = Arc::clone(gauges);
        meter
            .f64_observable_gauge("evenkeel.oldest_undone")
            .with_description("Time since the delivery of the oldest event that is not done")
            .with_unit("s")
            .with_callback(move |observer| {
                let now = read.tick(Instant::now());
                read.each(|assignment| {
                    let oldest = assignment.ledger().oldest().map_or(0.0, |(_, at)| seconds(now, at));
                    observer.observe(oldest, &read.attributes(assignment));
                });
            })
            .build();
        let read = Arc::clone(gauges);
        meter
            .f64_observable_gauge("evenkeel.kafka.silence")
            .with_description("Time since a broker last answered")
            .with_unit("s")
            .with_callback(move |observer| {
                let stream = KeyValue::new("evenkeel.stream", read.stream.to_string());
                observer.observe(read.silence(Instant::now()), &[stream]);
            })
            .build();
        Self {
            misrouted: meter
                .u64_counter("evenkeel.misrouted")
                .with_description("Events on a partition of another shard than their id's")
                .with_unit("{event}")
                .build(),
            lost: meter
                .u64_counter("evenkeel.kafka.lost")
                .with_description("Offsets that were gone from the log before they were read")
                .with_unit("{message}")
                .build(),
            stream: Arc::clone(&gauges.stream),
        }
    }

    pub(super) fn misrouted(&self, topic: &Arc<str>) {
        self.misrouted.add(1, &self.attributes(topic));
    }

    pub(super) fn lost(&self, topic: &Arc<str>, offsets: u64) {
        self.lost.add(offsets, &self.attributes(topic));
    }

    fn attributes(&self, topic: &Arc<str>) -> [KeyValue; 3] {
        [
            KeyValue::new("evenkeel.stream", self.stream.to_string()),
            KeyValue::new("messaging.system", "kafka"),
            KeyValue::new("messaging.destination.name", topic.to_string()),
        ]
    }
}

#[cfg(test)]
#[cfg(feature = "cli")]
mod tests {
    use super::*;
    use crate::kafka::assignment::Place;
    use opentelemetry::metrics::MeterProvider as _;
    use prometheus::TextEncoder;

    fn page(registry: &prometheus::Registry) -> String {
        TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn b76_a_partition_that_left_is_not_reported_any_more() {
        let registry = prometheus::Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build().unwrap();
        let provider = opentelemetry_sdk::metrics::SdkMeterProvider::builder().with_reader(exporter).build();
        let gauges = Gauges::new("orders".into(), "zones".into());
        let instruments = Instruments::new(&provider.meter("evenkeel"), &gauges);
        let assign = |partition| {
            let place = Place { topic: "orders.v1".into(), partition };
            let assignment = Assignment::new(place, 12, 0, None);
            assignment.set_end(7);
            assignment
        };
        gauges.set_assigned(vec![assign(3), assign(4)]);
        instruments.misrouted(&"orders.v1".into());
        instruments.lost(&"orders.v1".into(), 5);
        let before = page(&registry);
        for wanted in [
            r#"messaging_destination_partition_id="3""#,
            r#"messaging_destination_partition_id="4""#,
            r#"messaging_destination_name="orders.v1""#,
            "evenkeel_oldest_undone_seconds{",
            "evenkeel_misrouted_total{",
            "evenkeel_kafka_lost_total{",
            "evenkeel_kafka_silence_seconds{",
        ] {
            assert!(before.contains(wanted), "{wanted} in {before}");
        }
        let lag = before.lines().find(|line| line.starts_with("evenkeel_kafka_lag{")).unwrap();
        assert!(lag.ends_with(" 7"), "{lag}");
        gauges.set_assigned(vec![assign(4)]);
        let after = page(&registry);
        assert!(!after.contains(r#"partition_id="3""#) && after.contains(r#"partition_id="4""#), "{after}");
    }
}
