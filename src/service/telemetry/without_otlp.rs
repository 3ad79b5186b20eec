//! In the place of OTLP in a build without the feature `otlp`: the config asks for it in vain, and is told so.

use opentelemetry::global::BoxedTracer;
use opentelemetry_sdk::Resource;
use tracing::Subscriber;
use tracing_subscriber::Layer;

use super::metrics::Metrics;
use crate::service::config::Otlp as Config;

/// What is said to whoever asks for it.
const MISSING: &str = "this evenkeel was built without OTLP; install one with it (cargo feature `otlp`)";

/// Never there.
pub enum Otlp {}

/// Never there.
pub enum Bridge {}

impl<S: Subscriber> Layer<S> for Bridge {}

impl Otlp {
    /// Refuses.
    ///
    /// # Errors
    /// Always: [`MISSING`].
    pub fn start(_: &Config, _: &str) -> anyhow::Result<Self> {
        anyhow::bail!(MISSING)
    }

    /// Never called.
    #[must_use]
    pub fn resource(&self) -> Resource {
        match *self {}
    }

    /// Never called.
    #[must_use]
    pub fn tracer(&self) -> Option<(BoxedTracer, f64)> {
        match *self {}
    }

    /// Never called.
    #[must_use]
    pub fn log_bridge(&self) -> Option<Bridge> {
        match *self {}
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub fn send_metrics(&mut self, _: &Metrics) -> anyhow::Result<()> {
        match *self {}
    }

    /// Never called.
    #[expect(clippy::unused_async, reason = "the same as with OTLP")]
    pub async fn stop(self) {
        match self {}
    }
}
