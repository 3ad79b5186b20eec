//! Metrics: OpenTelemetry's instruments, shown on a Prometheus page.
//!
//! Must never put an id into an attribute (T3, B76), nor use a registry or a provider that other code of the process
//! shares. docs/metrics.md lists what is exported; `tests/it/admin_metrics.rs` compares it with what a run exports.

use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{
    Aggregation, Instrument, InstrumentKind, Pipeline, SdkMeterProvider, Stream, Temporality,
};
use prometheus::{Registry, TextEncoder};

/// The scope of every instrument.
pub const SCOPE: &str = "evenkeel";

/// The bounds of the buckets of all durations, in seconds: 0.5 ms to 10 min, fine where runs usually end, and with the
/// default `timeout` (10 s), `cascade_wait` and `max_delay` (5 min) among them.
pub const DURATION_BUCKETS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0,
];

/// How many sets of attributes one instrument keeps; what comes later falls into one overflow set. One process may lead
/// hundreds of shards with several workers and outcomes each, more than the SDK's 2,000.
const SETS_MAX: usize = 20_000;

/// The metrics of one controller.
pub struct Metrics {
    provider: SdkMeterProvider,
    page: Page,
    reader: Reader,
}

/// The metrics cannot be set up or shown.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(String);

impl Metrics {
    /// Metrics of the controller with this name.
    ///
    /// # Errors
    /// The exporter cannot be set up.
    pub fn new(controller: &str) -> Result<Self, MetricsError> {
        let resource = Resource::builder_empty()
            .with_service_name(controller.to_owned())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        Self::with_resource(resource)
    }

    /// Metrics of the process that this resource describes.
    ///
    /// # Errors
    /// The exporter cannot be set up.
    pub fn with_resource(resource: Resource) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            // There is one scope; a label that says so on every line helps nobody.
            .scope_info_enabled(false)
            .build()
            .map_err(|e| MetricsError(e.to_string()))?;
        let reader = Reader(Arc::new(exporter));
        let provider =
            SdkMeterProvider::builder().with_reader(reader.clone()).with_resource(resource).with_view(view).build();
        Ok(Self { provider, page: Page(registry), reader })
    }

    /// For instruments: the scope is [`SCOPE`].
    #[must_use]
    pub fn meter(&self) -> Meter {
        self.provider.meter(SCOPE)
    }

    /// What `/metrics` shows.
    #[must_use]
    pub fn page(&self) -> Page {
        self.page.clone()
    }

    /// For whoever sends the numbers elsewhere.
    #[must_use]
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Ends the instruments; the page is empty from then on.
    ///
    /// # Errors
    /// It was ended before.
    pub fn shutdown(&self) -> Result<(), MetricsError> {
        self.provider.shutdown().map_err(|e| MetricsError(e.to_string()))
    }
}

/// Reads all numbers; the page and whoever else wants them share one, since each reader of a provider costs every
/// number that is recorded another place to record it in.
#[derive(Debug, Clone)]
pub struct Reader(Arc<PrometheusExporter>);

impl Reader {
    /// The numbers as they are now, sums since the start.
    ///
    /// # Errors
    /// The metrics were ended.
    pub fn read(&self) -> Result<ResourceMetrics, opentelemetry_sdk::error::OTelSdkError> {
        let mut metrics = ResourceMetrics::default();
        self.collect(&mut metrics)?;
        Ok(metrics)
    }
}

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

/// The Prometheus page; clones show the same.
#[derive(Clone)]
pub struct Page(Registry);

impl Page {
    /// The content type of the page.
    pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

    /// Collects everything and writes the page. Takes time with the number of series: not for a thread that must not
    /// wait.
    ///
    /// # Errors
    /// A value has no text form.
    pub fn render(&self) -> Result<String, MetricsError> {
        TextEncoder::new().encode_to_string(&self.0.gather()).map_err(|e| MetricsError(e.to_string()))
    }
}

/// Buckets for all durations, and room for every shard.
fn view(instrument: &Instrument) -> Option<Stream> {
    let mut stream = Stream::builder().with_cardinality_limit(SETS_MAX);
    if instrument.kind() == InstrumentKind::Histogram && instrument.unit() == "s" {
        stream = stream.with_aggregation(Aggregation::ExplicitBucketHistogram {
            boundaries: DURATION_BUCKETS.to_vec(),
            record_min_max: false,
        });
    }
    // The parts above are constants that a test has tried.
    stream.build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t4_the_page_has_names_units_and_buckets() {
        let metrics = Metrics::new("dns").unwrap();
        let meter = metrics.meter();
        let labels = [KeyValue::new("evenkeel.controller", "dns"), KeyValue::new("evenkeel.outcome", "done")];
        meter.u64_counter("evenkeel.runs").with_unit("{run}").with_description("Runs").build().add(3, &labels);
        meter.f64_histogram("evenkeel.run.duration").with_unit("s").build().record(0.031, &labels);
        meter.i64_up_down_counter("evenkeel.runs.active").with_unit("{run}").build().add(2, &labels);
        let page = metrics.page().render().unwrap();
        for line in [
            "# TYPE evenkeel_runs_total counter",
            r#"evenkeel_runs_total{evenkeel_controller="dns",evenkeel_outcome="done"} 3"#,
            r#"evenkeel_run_duration_seconds_bucket{evenkeel_controller="dns",evenkeel_outcome="done",le="0.025"} 0"#,
            r#"evenkeel_run_duration_seconds_bucket{evenkeel_controller="dns",evenkeel_outcome="done",le="0.05"} 1"#,
            r#"evenkeel_run_duration_seconds_bucket{evenkeel_controller="dns",evenkeel_outcome="done",le="600"} 1"#,
            "# TYPE evenkeel_runs_active gauge",
            r#"target_info{service_name="dns",service_version="0.1.0"} 1"#,
        ] {
            assert!(page.contains(line), "{line}\nnot in\n{page}");
        }
        assert!(!page.contains("otel_scope"), "{page}");
    }

    #[test]
    fn b76_a_fleet_of_shards_does_not_overflow() {
        let metrics = Metrics::new("dns").unwrap();
        let counter = metrics.meter().u64_counter("evenkeel.runs").build();
        for shard in 0..5_000 {
            counter.add(1, &[KeyValue::new("evenkeel.shard", shard)]);
        }
        let page = metrics.page().render().unwrap();
        assert_eq!(page.lines().filter(|line| line.starts_with("evenkeel_runs_total{")).count(), 5_000);
    }

    #[test]
    fn two_controllers_of_one_process_share_nothing() {
        let (a, b) = (Metrics::new("a").unwrap(), Metrics::new("b").unwrap());
        a.meter().u64_counter("evenkeel.runs").build().add(1, &[]);
        assert!(a.page().render().unwrap().contains("evenkeel_runs_total 1"));
        assert!(!b.page().render().unwrap().contains("evenkeel_runs_total"));
    }
}
