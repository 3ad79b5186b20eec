//! Sends the metrics at intervals.
//!
//! It reads what the Prometheus page reads, so that a number that is recorded costs the same with a collector as
//! without: a second reader of the SDK would store each number twice. Must never keep more than one reading.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter as _;
use tokio_util::sync::CancellationToken;

use super::lost::Lost;
use crate::service::config::Signal;
use crate::service::telemetry::metrics::Reader;

/// What it takes to send metrics.
pub(super) struct Push {
    pub reader: Reader,
    pub patient: MetricExporter,
    pub last: MetricExporter,
    pub interval: Duration,
    pub lost: Arc<Lost>,
}

impl Push {
    /// Sends until `closing`, and then once more, for what happened last.
    pub(super) async fn run(self, closing: CancellationToken) {
        while tokio::time::timeout(self.interval, closing.cancelled()).await.is_err() {
            tokio::select! {
                () = self.push(&self.patient) => {}
                () = closing.cancelled() => break,
            }
        }
        self.push(&self.last).await;
    }

    async fn push(&self, exporter: &MetricExporter) {
        let sent = match self.reader.read() {
            Ok(metrics) => exporter.export(&metrics).await,
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => self.lost.delivered(Signal::Metrics),
            Err(error) => self.lost.failed(Signal::Metrics, 1, &error),
        };
    }
}
