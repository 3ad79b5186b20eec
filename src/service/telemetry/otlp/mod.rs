//! Traces, metrics and logs to a collector, by OTLP (T1).
//!
//! Everything happens in a runtime of its own, with one thread: runs hand spans and log lines to bounded queues and go
//! on, whatever the collector does. What finds no room, or cannot be delivered in time, is counted (`lost`) and said
//! once a while. Telemetry never tells of itself: its threads are marked as suppressed, and what its libraries log goes
//! to no collector (B77). Tested in `tests/it/otlp*.rs` against a collector that misbehaves, in `tests/live/otlp*.rs`
//! against a real one.

mod exporters;
mod http;
mod lost;
mod pipe;
mod push;
mod signals;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::exporters::Exporters;
use self::lost::Lost;
pub use self::signals::Bridge;

use self::pipe::Pipe;
use self::signals::{LogQueue, LogSink, SpanQueue, SpanSink};
use super::metrics::{Metrics, SCOPE};
use crate::service::config::{Otlp as Config, OtlpSignal, Signal};

/// How long the end of the process waits for the last telemetry, all signals together (B28). A collector that answers
/// needs some milliseconds, one that refuses connections costs as little.
pub const LAST_TELEMETRY: Duration = Duration::from_secs(3);

/// The way to the collector. Dropping it loses what still waits.
pub struct Otlp {
    runtime: Option<Runtime>,
    closing: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    tracer: Option<SdkTracerProvider>,
    logger: Option<SdkLoggerProvider>,
    metrics: Option<(OtlpSignal, Duration)>,
    share: f64,
    resource: Resource,
    lost: Arc<Lost>,
}

impl Otlp {
    /// Sets up what the config asks for; connections are made when there is something to send.
    ///
    /// # Errors
    /// A certificate or an address cannot be used, or the system gives no thread.
    pub fn start(config: &Config, controller: &str) -> anyhow::Result<Self> {
        let runtime = runtime().context("cannot start the thread for telemetry")?;
        let mut otlp = Self {
            runtime: Some(runtime),
            closing: CancellationToken::new(),
            tasks: Vec::new(),
            tracer: None,
            logger: None,
            metrics: config.metrics.clone().map(|signal| (signal, config.interval)),
            share: config.sampling,
            resource: resource(config, controller),
            lost: Arc::default(),
        };
        if let Some(signal) = &config.traces {
            otlp.tracer = Some(otlp.traces(signal).context("telemetry.otlp: traces")?);
        }
        if let Some(signal) = &config.logs {
            otlp.logger = Some(otlp.logs(signal).context("telemetry.otlp: logs")?);
        }
        let (lost, closing) = (Arc::clone(&otlp.lost), otlp.closing.clone());
        otlp.spawn(async move { lost.tell(&closing).await });
        Ok(otlp)
    }

    /// What the process is called, for all signals alike.
    #[must_use]
    pub fn resource(&self) -> Resource {
        self.resource.clone()
    }

    /// For the engine's spans, and for which share of the items it should make them.
    #[must_use]
    pub fn tracer(&self) -> Option<(BoxedTracer, f64)> {
        let provider = self.tracer.as_ref()?;
        Some((BoxedTracer::new(Box::new(provider.tracer(SCOPE))), self.share))
    }

    /// Takes log lines as records.
    #[must_use]
    pub fn log_bridge(&self) -> Option<Bridge> {
        self.logger.as_ref().map(Bridge::new)
    }

    /// Sends these metrics from now on, and counts among them what is lost.
    ///
    /// # Errors
    /// A certificate or an address cannot be used.
    pub fn send_metrics(&mut self, metrics: &Metrics) -> anyhow::Result<()> {
        self.lost.observe(&metrics.meter());
        let Some((signal, interval)) = self.metrics.take() else { return Ok(()) };
        let exporters = self.exporters(&signal, Signal::Metrics).context("telemetry.otlp: metrics")?;
        let (patient, last) = (exporters.metrics(true)?, exporters.metrics(false)?);
        let push = push::Push { reader: metrics.reader(), patient, last, interval, lost: Arc::clone(&self.lost) };
        let closing = self.closing.clone();
        self.spawn(push.run(closing));
        Ok(())
    }

    /// Sends what still waits, within [`LAST_TELEMETRY`].
    ///
    /// # Cancel safety
    /// What was not sent is lost.
    pub async fn stop(mut self) {
        self.closing.cancel();
        let tasks = std::mem::take(&mut self.tasks);
        let all = async {
            for task in tasks {
                // A task that panicked has nothing more to send.
                let _ = task.await;
            }
        };
        if tokio::time::timeout(LAST_TELEMETRY, all).await.is_err() {
            let seconds = LAST_TELEMETRY.as_secs();
            tracing::warn!(target: lost::TARGET, seconds, "the last telemetry was not taken in time and is lost");
        }
    }

    fn traces(&mut self, signal: &OtlpSignal) -> anyhow::Result<SdkTracerProvider> {
        let exporters = self.exporters(signal, Signal::Traces)?;
        let sink = SpanSink::new(exporters.spans(true)?, exporters.spans(false)?, &self.resource);
        let pipe = self.pipe(signal, Signal::Traces);
        let (queue, pump) = pipe.open(sink);
        self.spawn(pump);
        Ok(SdkTracerProvider::builder()
            .with_span_processor(SpanQueue(queue))
            // The engine has decided already.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(self.resource.clone())
            .build())
    }

    fn logs(&mut self, signal: &OtlpSignal) -> anyhow::Result<SdkLoggerProvider> {
        let exporters = self.exporters(signal, Signal::Logs)?;
        let sink = LogSink::new(exporters.logs(true)?, exporters.logs(false)?, &self.resource);
        let pipe = self.pipe(signal, Signal::Logs);
        let (queue, pump) = pipe.open(sink);
        self.spawn(pump);
        Ok(SdkLoggerProvider::builder()
            .with_log_processor(LogQueue(queue))
            .with_resource(self.resource.clone())
            .build())
    }

    fn exporters(&self, signal: &OtlpSignal, which: Signal) -> anyhow::Result<Exporters> {
        // A channel of tonic's belongs to the runtime in which it is made.
        let _in_runtime = self.runtime.as_ref().map(Runtime::enter);
        Exporters::new(signal, which, &self.lost)
    }

    fn pipe(&self, signal: &OtlpSignal, which: Signal) -> Pipe {
        let (lost, closing) = (Arc::clone(&self.lost), self.closing.clone());
        Pipe { signal: which, queue: signal.queue, batch: signal.batch, delay: signal.delay, lost, closing }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.extend(self.runtime.as_ref().map(|runtime| runtime.spawn(task)));
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        // Waiting for it is neither allowed in a runtime nor wanted.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("evenkeel-otlp")
        // Whatever is done on these threads is telemetry's own business: no span, no record.
        .on_thread_start(|| std::mem::forget(Context::enter_telemetry_suppressed_scope()))
        .enable_all()
        .build()
}

/// What is found out about the process, and what the config says about it, which wins.
fn resource(config: &Config, controller: &str) -> Resource {
    let instance = format!("{}:{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id());
    Resource::builder_empty()
        .with_service_name(controller.to_owned())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", instance))
        .with_attributes(config.resource.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone())))
        .build()
}
