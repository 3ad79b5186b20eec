//! In the place of Kafka in a build without the feature `kafka`: says so wherever somebody asks for it.

use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::watch;

use super::{HashMatches, Publish};
use crate::engine::Builder;
use crate::service::config::{Config, KafkaStream};

const MISSING: &str = "this evenkeel was built without Kafka; install one with it (cargo feature `kafka`)";

/// Nothing to commit.
#[derive(Default)]
pub(super) struct Committers(());

impl Committers {
    #[expect(clippy::unused_async, reason = "the same as with Kafka")]
    pub(super) async fn close(&self, _bound: Duration) {}
}

pub(super) fn check(config: &Config) -> Vec<(String, String)> {
    config.kafka.iter().map(|_| ("kafka".to_owned(), MISSING.to_owned())).collect()
}

#[expect(clippy::unused_async, reason = "the same as with Kafka")]
pub(super) async fn connect(config: &Config) -> Vec<(String, String)> {
    check(config)
}

pub(super) fn add(
    _builder: Builder,
    _config: &Config,
    _named: (&str, bool),
    _stream: &KafkaStream,
    _lost: &watch::Sender<u64>,
    _committers: &mut Committers,
) -> anyhow::Result<Builder> {
    anyhow::bail!(MISSING)
}

#[expect(clippy::unused_async, reason = "the same as with Kafka")]
pub(super) async fn publish(_config: &Config, _publish: Publish) -> anyhow::Result<ExitCode> {
    anyhow::bail!(MISSING)
}

pub(super) fn partitioner(_config: &Config, _topic: &str) -> anyhow::Result<HashMatches> {
    anyhow::bail!(MISSING)
}

pub(super) fn library() -> String {
    "none: built without the feature `kafka`".to_owned()
}
