//! Stores, reconcilers and streams, as the config names them.

use std::sync::Arc;

use anyhow::Context;
use tokio::sync::watch;

use super::etcd::{self, Leading};
use super::kafka::{self, Committers};
use crate::contract::{ClusterRecord, Elector, IdList, RECORD_FORMAT, RecordStore};
use crate::engine::Builder;
use crate::hooks::{Exec, ExecList, ExecSettings, HttpList, HttpSettings, Webhook, WebhookSettings};
use crate::local::{FileStore, LocalElector, MemoryStore, Resync};
use crate::service::config::{self, Config, List, StreamSource, Target};

/// A command that was told to stop gets this share of `cancel_grace` before it is killed, so that it is gone before
/// its run is cut off.
const TERM_SHARE: f64 = 0.5;

/// Where owed records are kept, and who leads.
pub(super) struct Stores {
    pub(super) store: Arc<dyn RecordStore>,
    pub(super) elector: Arc<dyn Elector>,
    pub(super) incarnation: u32,
}

impl Stores {
    /// Opens the store, and makes sure that it belongs to this cluster (L7).
    pub(super) async fn open(config: &Config) -> anyhow::Result<(Self, Leading)> {
        if let Some(etcd) = &config.etcd {
            return etcd::open(config, etcd).await;
        }
        let store: Arc<dyn RecordStore> = match &config.data_dir {
            Some(folder) => Arc::new(FileStore::open(folder.clone()).await.context("data_dir")?),
            None => Arc::new(MemoryStore::new()),
        };
        let agreed = store.check_cluster(&cluster(config)?).await.context("data_dir")?;
        let elector = Arc::new(LocalElector::new(Arc::clone(&store), &agreed));
        Ok((Self { store, elector, incarnation: agreed.incarnation }, Leading::default()))
    }
}

/// What this config says about the whole cluster (L7).
pub(super) fn cluster(config: &Config) -> anyhow::Result<ClusterRecord> {
    Ok(ClusterRecord {
        shards: u16::try_from(config.sharding.shards)?,
        hash: config.sharding.hash,
        usage: "ids".to_owned(),
        format: RECORD_FORMAT,
        // Whatever stands there: it is raised by hand, after a restore.
        incarnation: 0,
    })
}

/// Adds the reconciler.
pub(super) fn reconciler(builder: Builder, config: &Config) -> anyhow::Result<Builder> {
    match &config.reconciler.target {
        Target::Webhook(http) => {
            let mut settings = WebhookSettings::new(http.url.clone());
            settings.http = http_settings(http);
            settings.secret_file.clone_from(&http.secret_file);
            Ok(builder.reconciler(Webhook::new(settings).context("reconciler.webhook")?))
        }
        Target::Exec(exec) => {
            let mut settings = exec_settings(exec, config);
            settings.term_grace = config.reconciler.options.cancel_grace.mul_f64(TERM_SHARE);
            Ok(builder.reconciler(Exec::new(settings).context("reconciler.exec")?))
        }
    }
}

/// Adds the event streams.
pub(super) fn streams(mut builder: Builder, config: &Config) -> anyhow::Result<(Builder, Committers)> {
    let mut committers = Committers::default();
    // Bumped when Kafka has lost events, so that every resync lists at once (K6).
    let (lost, asked) = watch::channel(0);
    for stream in &config.streams {
        let (name, critical) = (stream.name.as_str(), stream.critical);
        match &stream.source {
            // Ids that are posted to /v1/trigger; the engine takes those anyhow.
            StreamSource::Http => {}
            StreamSource::Resync(resync) => {
                let built = self::resync(resync, config, asked.clone())
                    .with_context(|| format!("streams.{name}.resync.list"))?;
                builder = if critical { builder.critical_stream(name, built) } else { builder.stream(name, built) };
            }
            StreamSource::Kafka(kafka) => {
                builder = kafka::add(builder, config, (name, critical), kafka, &lost, &mut committers)
                    .with_context(|| format!("streams.{name}.kafka"))?;
            }
        }
    }
    Ok((builder, committers))
}

fn resync(resync: &config::Resync, config: &Config, asked: watch::Receiver<u64>) -> anyhow::Result<Resync> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the config keeps it from 0 to 0.5")]
    let percent = (resync.jitter * 100.0).round() as u8;
    let built = Resync::every(resync.every).jitter_percent(percent).asked_by(asked);
    Ok(match &resync.list {
        List::Http(http) => with_list(built, HttpList::new(http_settings(http), resync.timeout)?),
        List::Exec(exec) => with_list(built, ExecList::new(exec_settings(exec, config), resync.timeout)?),
    })
}

fn with_list(resync: Resync, list: impl IdList) -> Resync {
    resync.list(list)
}

fn http_settings(http: &config::Http) -> HttpSettings {
    let mut settings = HttpSettings::new(http.url.clone());
    settings.authorization_file.clone_from(&http.authorization_file);
    settings.ca_file.clone_from(&http.ca_file);
    settings
}

fn exec_settings(exec: &config::Exec, config: &Config) -> ExecSettings {
    let mut settings = ExecSettings::new(exec.argv.clone(), config.dir.clone());
    settings.env.clone_from(&exec.env);
    settings
}
