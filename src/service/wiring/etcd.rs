//! etcd, as the config names it.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::parts::{Stores, cluster};
use crate::contract::{Elector, Secret, StoreError};
use crate::etcd::{Connection, ElectorSettings, Etcd, EtcdElector, EtcdStore, Keys, REQUEST_MAX, Tls, User, agree};
use crate::service::config::{self, Config};

/// etcd is asked for so long at the start before the log says that it does not answer; then it is asked again.
const PATIENCE: Duration = Duration::from_secs(5);
/// A `check` waits for it no longer.
const CHECK_PATIENCE: Duration = Duration::from_secs(3);

/// The elector, for the end.
#[derive(Default)]
pub(super) struct Leading(Option<Arc<EtcdElector>>);

impl Leading {
    /// Lets go of the lease, after the engine has given its shards back.
    pub(super) async fn close(&self) {
        if let Some(elector) = &self.0 {
            elector.close().await;
        }
    }
}

/// What etcd's adapter would say at a start.
pub(super) fn check(config: &Config) -> Vec<(String, String)> {
    let Some(etcd) = &config.etcd else { return Vec::new() };
    Etcd::new(connection(etcd)).err().map(|error| ("etcd".to_owned(), error.to_string())).into_iter().collect()
}

/// What etcd itself says: whether it answers, and whether this config fits what stands there. Writes nothing.
pub(super) async fn connect(config: &Config) -> Vec<(String, String)> {
    let Some(etcd) = &config.etcd else { return Vec::new() };
    let asked = async {
        let client = Etcd::new(connection(etcd))?;
        let keys = Keys::new(&config.name);
        anyhow::Ok(crate::etcd::compare(&client, &keys, &cluster(config)?, CHECK_PATIENCE).await?)
    };
    match asked.await {
        Ok(()) => Vec::new(),
        Err(error) => vec![("etcd".to_owned(), format!("{error:#}"))],
    }
}

/// Leadership and owed records in etcd. Waits for it, until it answers.
pub(super) async fn open(config: &Config, etcd: &config::Etcd) -> anyhow::Result<(Stores, Leading)> {
    let keys = Keys::new(&config.name);
    let client = Etcd::new(connection(etcd)).context("etcd")?;
    let wanted = cluster(config)?;
    let agreed = loop {
        match agree(&client, &keys, &wanted, PATIENCE).await {
            Ok(agreed) => break agreed,
            Err(error @ (StoreError::Unknown(_) | StoreError::Refused(_))) => {
                tracing::warn!(%error, "etcd does not answer; asking again");
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    let key = keys.cluster();
                    format!("etcd, key {key}: all processes named {} must agree", config.name)
                });
            }
        }
    };
    let elector = Arc::new(EtcdElector::start(ElectorSettings {
        connection: connection(etcd),
        keys: keys.clone(),
        process: process(),
        shards: wanted.shards,
        ttl: etcd.ttl,
        incarnation: agreed.incarnation,
        overrun: Arc::new(|shard| overrun(shard.0)),
    })?);
    let stores = Stores {
        store: Arc::new(EtcdStore::new(client, keys)),
        elector: Arc::clone(&elector) as Arc<dyn Elector>,
        incarnation: agreed.incarnation,
    };
    Ok((stores, Leading(Some(elector))))
}

/// Runs of a shard that is led elsewhere go on: only the end of the process ends them (L3).
fn overrun(shard: u16) {
    let text = "leadership has ended, and its runs block their threads: the process ends, so that nothing runs twice";
    let _ = writeln!(std::io::stderr(), "shard {shard}: {text}");
    std::process::exit(1);
}

/// How this process calls itself: the host, which in a container is the pod, and the process.
fn process() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}/{}", std::process::id())
}

fn connection(etcd: &config::Etcd) -> Connection {
    let tls = |tls: &config::Tls| Tls {
        ca_file: tls.ca_file.clone(),
        certificate: tls.client.as_ref().map(|own| (own.certificate_file.clone(), own.key_file.clone())),
    };
    let user =
        |user: &config::EtcdUser| User { name: user.name.clone(), password: Secret::new(user.password.expose()) };
    Connection {
        endpoints: etcd.endpoints.clone(),
        request: REQUEST_MAX,
        tls: etcd.tls.as_ref().map(tls),
        user: etcd.user.as_ref().map(user),
    }
}
