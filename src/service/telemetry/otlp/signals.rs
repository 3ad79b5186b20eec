//! Spans and log lines on their way into the queues, and out of them.

use std::time::Duration;

use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter as _, LogProcessor, SdkLogRecord, SdkLogger, SdkLoggerProvider};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

use super::lost::TARGET;
use super::pipe::{Queue, Sink};

/// Libraries that the way to the collector is made of: what they say goes to no collector, or one export would make the
/// next (B77).
const OWN: [&str; 8] = [TARGET, "opentelemetry", "tonic", "h2", "hyper", "reqwest", "rustls", "tower"];

/// Takes ended spans.
#[derive(Debug)]
pub(super) struct SpanQueue(pub Queue<SpanData>);

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.0.push(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// The pipe has an end of its own.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Takes log records.
#[derive(Debug)]
pub(super) struct LogQueue(pub Queue<(SdkLogRecord, InstrumentationScope)>);

impl LogProcessor for LogQueue {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        self.0.push((record.clone(), scope.clone()));
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// The pipe has an end of its own.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends spans.
pub(super) struct SpanSink {
    patient: SpanExporter,
    once: SpanExporter,
}

impl SpanSink {
    pub(super) fn new(mut patient: SpanExporter, mut once: SpanExporter, resource: &Resource) -> Self {
        patient.set_resource(resource);
        once.set_resource(resource);
        Self { patient, once }
    }
}

impl Sink<SpanData> for SpanSink {
    async fn send(&self, batch: &[SpanData]) -> OTelSdkResult {
        self.patient.export(batch.to_vec()).await
    }

    async fn send_once(&self, batch: &[SpanData]) -> OTelSdkResult {
        self.once.export(batch.to_vec()).await
    }
}

/// Sends log records.
pub(super) struct LogSink {
    patient: LogExporter,
    once: LogExporter,
}

impl LogSink {
    pub(super) fn new(mut patient: LogExporter, mut once: LogExporter, resource: &Resource) -> Self {
        patient.set_resource(resource);
        once.set_resource(resource);
        Self { patient, once }
    }
}

impl Sink<(SdkLogRecord, InstrumentationScope)> for LogSink {
    async fn send(&self, batch: &[(SdkLogRecord, InstrumentationScope)]) -> OTelSdkResult {
        let records: Vec<_> = batch.iter().map(|(record, scope)| (record, scope)).collect();
        self.patient.export(LogBatch::new(&records)).await
    }

    async fn send_once(&self, batch: &[(SdkLogRecord, InstrumentationScope)]) -> OTelSdkResult {
        let records: Vec<_> = batch.iter().map(|(record, scope)| (record, scope)).collect();
        self.once.export(LogBatch::new(&records)).await
    }
}

/// Makes records of log lines, but for telemetry's own.
pub struct Bridge(OpenTelemetryTracingBridge<SdkLoggerProvider, SdkLogger>);

impl Bridge {
    pub(super) fn new(provider: &SdkLoggerProvider) -> Self {
        Self(OpenTelemetryTracingBridge::new(provider))
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Bridge {
    fn on_event(&self, event: &Event<'_>, context: tracing_subscriber::layer::Context<'_, S>) {
        let target = event.metadata().target();
        if !OWN.iter().any(|own| target.starts_with(own)) {
            self.0.on_event(event, context);
        }
    }
}
