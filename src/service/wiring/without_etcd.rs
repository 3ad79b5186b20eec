//! In the place of etcd in a build without the feature `etcd`: says so wherever somebody asks for it.

use super::parts::Stores;
use crate::service::config::{self, Config};

const MISSING: &str = "this evenkeel was built without etcd; install one with it (cargo feature `etcd`)";

/// Nothing to let go of.
#[derive(Default)]
pub(super) struct Leading(());

impl Leading {
    #[expect(clippy::unused_async, reason = "the same as with etcd")]
    pub(super) async fn close(&self) {}
}

pub(super) fn check(config: &Config) -> Vec<(String, String)> {
    config.etcd.iter().map(|_| ("etcd".to_owned(), MISSING.to_owned())).collect()
}

#[expect(clippy::unused_async, reason = "the same as with etcd")]
pub(super) async fn connect(config: &Config) -> Vec<(String, String)> {
    check(config)
}

#[expect(clippy::unused_async, reason = "the same as with etcd")]
pub(super) async fn open(_config: &Config, _etcd: &config::Etcd) -> anyhow::Result<(Stores, Leading)> {
    anyhow::bail!(MISSING)
}
