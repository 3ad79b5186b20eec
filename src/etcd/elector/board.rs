//! What leadership shows to people: who leads, until when, and what is wrong with etcd.
//!
//! Must never be used to decide anything.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock;
use crate::contract::Leader;
use crate::etcd::EtcdError;
use crate::id::ShardId;
use crate::leadership::{Change, Moment};

#[derive(Debug, Default)]
pub(super) struct Board {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    leaders: BTreeMap<ShardId, String>,
    /// Until when this process leads.
    held: BTreeMap<ShardId, Moment>,
    problem: Option<String>,
}

impl Board {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn list(&self, names: Vec<(ShardId, String)>) {
        self.inner().leaders = names.into_iter().collect();
    }

    pub(super) fn saw(&self, change: &Change, leader: Option<String>) {
        match (change, leader) {
            (Change::Leader(shard, _), Some(name)) => {
                self.inner().leaders.insert(*shard, name);
            }
            (Change::LeaderGone(shard), _) => {
                self.inner().leaders.remove(shard);
            }
            _ => {}
        }
    }

    pub(super) fn hold(&self, moved: &[(ShardId, Moment)]) {
        if !moved.is_empty() {
            self.inner().held.extend(moved.iter().copied());
        }
    }

    pub(super) fn ended(&self, shard: ShardId) {
        self.inner().held.remove(&shard);
    }

    pub(super) fn leader(&self, shard: ShardId) -> Option<Leader> {
        let inner = self.inner();
        let name = inner.leaders.get(&shard)?.clone();
        Some(Leader { name, until: inner.held.get(&shard).copied().map(clock::wall) })
    }

    /// A call failed: said in the log once, until all is well again.
    pub(super) fn failed(&self, what: &str, error: &EtcdError) {
        let text = format!("leadership: {what}: {error}");
        if self.inner().problem.replace(text).is_none() {
            tracing::warn!(%error, "cannot do its part of leadership: {what}");
        }
    }

    /// etcd has confirmed the lease.
    pub(super) fn well(&self) {
        if self.inner().problem.take().is_some() {
            tracing::info!("etcd confirms the lease again");
        }
    }

    pub(super) fn problem(&self) -> Option<String> {
        self.inner().problem.clone()
    }
}
