//! From a config to adapters, engine and servers. The one place that names concrete adapters.
//!
//! Must never decide anything that the config or the engine decides. Tested through the binary, in `tests/it/run.rs`
//! and `tests/live`.

mod dump;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(not(feature = "etcd"))]
#[path = "without_etcd.rs"]
mod etcd;
mod first;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(not(feature = "kafka"))]
#[path = "without_kafka.rs"]
mod kafka;
mod parts;
mod signals;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use self::etcd::Leading;
pub use self::first::{is_first, run_as_child};
use self::kafka::Committers;
use self::parts::Stores;
use super::admin::{AdminOptions, Server};
use super::config::{Config, Loaded, Logs};
use super::telemetry::logs::{self, LogFormat, LogGuard};
use super::telemetry::metrics::Metrics;
use super::telemetry::otlp::{Bridge, Otlp};
use crate::engine::{Builder, Engine, EngineError};

/// How long the last commit may take before the process ends without it: its events come again then.
const LAST_COMMIT: Duration = Duration::from_secs(5);

/// What [`publish`] sends, and where.
#[derive(Debug, Clone)]
pub struct Publish {
    /// The ids, checked.
    pub ids: Vec<String>,
    /// The topic.
    pub topic: String,
}

/// What the messages of a topic say of the hash that chose their partitions.
#[derive(Debug, Clone, serde::Serialize)]
pub struct HashMatches {
    /// The topic.
    pub topic: String,
    /// How many partitions it has.
    pub partitions: u32,
    /// How many messages were read.
    pub messages: u64,
    /// How many of them have a key.
    pub with_key: u64,
    /// The hash that the config names.
    pub configured: &'static str,
    /// Each hash that is known.
    pub hashes: Vec<HashMatch>,
}

/// One hash.
#[derive(Debug, Clone, serde::Serialize)]
pub struct HashMatch {
    /// Its name.
    pub hash: &'static str,
    /// How many messages stand where it would have put them.
    pub matches: u64,
    /// Whether the config may name it.
    pub can_route: bool,
}

/// What adapters find wrong with their part of the config, by key: what a start would say, without a connection.
#[must_use]
pub fn check(config: &Config) -> Vec<(String, String)> {
    let mut found = kafka::check(config);
    found.extend(etcd::check(config));
    if cfg!(not(feature = "otlp")) && config.telemetry.otlp.is_some() {
        let missing = "this evenkeel was built without OTLP; install one with it (cargo feature `otlp`)";
        found.push(("telemetry.otlp".to_owned(), missing.to_owned()));
    }
    found
}

/// What the services say that the config names, by key. Nothing is written.
///
/// # Cancel safety
/// Safe.
pub async fn connect(config: &Config) -> Vec<(String, String)> {
    let mut found = kafka::connect(config).await;
    found.extend(etcd::connect(config).await);
    found
}

/// Sends events to a topic, with the configured hash.
///
/// # Errors
/// Kafka did not take all of them.
///
/// # Cancel safety
/// Some events may have been sent.
pub async fn publish(config: &Config, publish: Publish) -> anyhow::Result<ExitCode> {
    kafka::publish(config, publish).await
}

/// Reads the last messages of a topic, and says which hash fits. Waits for brokers.
///
/// # Errors
/// The topic cannot be read.
pub fn partitioner(config: &Config, topic: &str) -> anyhow::Result<HashMatches> {
    kafka::partitioner(config, topic)
}

/// The Kafka client library and what it was built with (B85).
#[must_use]
pub fn kafka_library() -> String {
    kafka::library()
}

/// Runs the controller until it is told to stop.
///
/// # Errors
/// It cannot start, or a critical part failed.
///
/// # Cancel safety
/// Dropping it stops without a drain.
pub async fn run(loaded: Loaded) -> anyhow::Result<ExitCode> {
    // First of all, so that a signal during the start is heard too (B27).
    let stop = signals::stop()?;
    let dump_asked = dump::listen()?;
    crate::hooks::harden_process().context("cannot take core files from this process and its commands")?;
    let config = &loaded.config;
    let mut otlp = config.telemetry.otlp.as_ref().map(|otlp| Otlp::start(otlp, &config.name)).transpose()?;
    let _logs = start_logs(config, otlp.as_ref().and_then(Otlp::log_bridge))?;
    for warning in &loaded.warnings {
        tracing::warn!("{}", warning.line(&loaded.file));
    }
    let metrics = start_metrics(config, otlp.as_mut())?;
    let admin = config.admin.as_ref().map(bind).transpose()?;
    // etcd may be away for long; who looks after the process must not think it dead (B80).
    let starting = admin.as_ref().map(Server::starting).transpose()?;
    let stopped = tokio::select! {
        started = start(config, &metrics, otlp.as_ref()) => started,
        () = stop.asked() => return Ok(ExitCode::SUCCESS),
    };
    let (engine, committers, leading) = stopped?;
    if let Some(starting) = starting {
        starting.stop().await;
    }
    let handle = engine.handle();
    let _dump = dump::on_signal(dump_asked, &handle);
    let admin = admin.map(|server| server.start(Arc::new(handle.clone()), metrics.page())).transpose()?;
    let address = admin.as_ref().map_or_else(|| "off".to_owned(), |admin| format!("http://{}", admin.local_addr()));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %loaded.file, admin = address, "evenkeel starts");
    let result = engine.run(stop.asked()).await;
    // The engine has stopped intake, ended runs and written what is owed. Now the sources hear of it (B91).
    committers.close(LAST_COMMIT).await;
    leading.close().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    let code = finish(result);
    // Last of all, since nothing that matters may wait for it (B28).
    if let Some(otlp) = otlp {
        otlp.stop().await;
    }
    if let Err(error) = metrics.shutdown() {
        tracing::warn!(%error, "metrics were not ended");
    }
    code
}

fn finish(result: Result<(), EngineError>) -> anyhow::Result<ExitCode> {
    match result {
        Ok(()) => {
            tracing::info!("evenkeel has stopped");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(error.into()),
    }
}

/// The metrics, on their way to the collector too, if there is one.
fn start_metrics(config: &Config, otlp: Option<&mut Otlp>) -> anyhow::Result<Metrics> {
    let Some(otlp) = otlp else { return Ok(Metrics::new(&config.name)?) };
    let metrics = Metrics::with_resource(otlp.resource())?;
    otlp.send_metrics(&metrics)?;
    Ok(metrics)
}

/// Sets the log up; kept until the process ends.
fn start_logs(config: &Config, bridge: Option<Bridge>) -> anyhow::Result<LogGuard> {
    let format = match config.telemetry.logs {
        Logs::Human => LogFormat::Human,
        Logs::Json => LogFormat::Json,
    };
    Ok(logs::init(format, &config.telemetry.level.to_string().to_lowercase(), bridge)?)
}

/// Takes the admin server's address before anything else starts: a second process on the same config ends here.
fn bind(admin: &super::config::Admin) -> anyhow::Result<Server> {
    Ok(Server::bind(AdminOptions::new(admin.listen, admin.token_file.clone()))?)
}

/// Puts the engine together.
async fn start(
    config: &Config,
    metrics: &Metrics,
    otlp: Option<&Otlp>,
) -> anyhow::Result<(Engine, Committers, Leading)> {
    let (stores, leading) = Stores::open(config).await?;
    let mut builder: Builder = Engine::builder(&config.name)
        .sharding(config.sharding)
        .options(config.reconciler.options)
        .limits(config.limits)
        .timing(config.timing)
        .meter(metrics.meter())
        .store(Arc::clone(&stores.store))
        .elector(stores.elector)
        .incarnation(stores.incarnation);
    if let Some((tracer, share)) = otlp.and_then(Otlp::tracer) {
        builder = builder.tracer(tracer).trace_share(share);
    }
    let builder = parts::reconciler(builder, config)?;
    let (builder, committers) = parts::streams(builder, config)?;
    Ok((builder.build()?, committers, leading))
}
