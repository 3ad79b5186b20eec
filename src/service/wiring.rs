//! From a config to adapters, engine and servers. The one place that names concrete adapters.

use std::process::ExitCode;

use super::config::{Config, Loaded};

/// What [`publish`] sends, and where.
#[derive(Debug, Clone)]
pub struct Publish {
    /// The ids, checked.
    pub ids: Vec<String>,
    /// The topic.
    pub topic: String,
}

/// What adapters find wrong with their part of the config, by key: what a start would say, without a connection.
#[must_use]
pub fn check(_config: &Config) -> Vec<(String, String)> {
    Vec::new()
}

/// Runs the controller until it is told to stop.
///
/// # Errors
/// It cannot start, or a critical part failed.
///
/// # Cancel safety
/// Dropping it stops without a drain.
pub async fn run(_loaded: Loaded) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no engine")
}

/// Sends events to a topic, with the configured hash.
///
/// # Errors
/// Kafka did not take all of them.
///
/// # Cancel safety
/// Some events may have been sent.
pub async fn publish(_config: &Config, _publish: Publish) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no Kafka")
}

/// The Kafka client library and what it was built with (B85).
#[must_use]
pub fn kafka_library() -> String {
    crate::kafka::library()
}
