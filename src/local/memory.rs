//! A store of owed records in memory.
//!
//! Must never claim to be durable: with it, offsets are held until their runs succeed (D12). Tested by the stores'
//! conformance suite (tests/it/store.rs).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::seen::Seen;
use crate::contract::{BoxFuture, ClusterRecord, OwedRecord, RecordChange, RecordStore, StoreError, Term};
use crate::id::ShardId;

/// Keeps owed records until the process ends. Clones share what is stored.
///
/// Revisions are made from the clock, in microseconds, so that fencing tokens go on growing after a restart although
/// nothing is remembered; a clock that was set back by hand between two processes breaks that.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    cluster: Option<ClusterRecord>,
    shards: BTreeMap<ShardId, Shard>,
}

#[derive(Debug, Default)]
struct Shard {
    seen: Seen,
    records: BTreeMap<String, OwedRecord>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check_cluster(&mut self, wanted: &ClusterRecord) -> Result<ClusterRecord, StoreError> {
        let stands = match &self.cluster {
            None => wanted.first(),
            Some(stored) => stored.agree(wanted)?,
        };
        Ok(self.cluster.insert(stands).clone())
    }

    fn next_revision(&mut self, shard: ShardId) -> Result<u64, StoreError> {
        let incarnation = self.cluster.as_ref().map(|cluster| cluster.incarnation);
        let shard = self.shards.entry(shard).or_default();
        shard.seen = shard.seen.next(SystemTime::now(), incarnation)?;
        Ok(shard.seen.revision)
    }

    fn load(&self, shard: ShardId, after: Option<&str>, limit: usize) -> Vec<OwedRecord> {
        let Some(shard) = self.shards.get(&shard) else { return Vec::new() };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        shard.records.range::<str, _>((start, Bound::Unbounded)).take(limit).map(|(_, record)| record.clone()).collect()
    }

    fn commit(&mut self, term: Term, changes: &[RecordChange]) -> Result<(), StoreError> {
        let shard = self.shards.entry(term.shard).or_default();
        shard.seen = shard.seen.admit(term)?;
        for change in changes {
            match change {
                RecordChange::Put(record) => shard.records.insert(record.id.clone(), record.clone().cut()),
                RecordChange::Delete(id) => shard.records.remove(id),
            };
        }
        Ok(())
    }
}

impl RecordStore for MemoryStore {
    fn is_durable(&self) -> bool {
        false
    }

    fn check_cluster<'a>(&'a self, wanted: &'a ClusterRecord) -> BoxFuture<'a, Result<ClusterRecord, StoreError>> {
        Box::pin(async move { self.state().check_cluster(wanted) })
    }

    fn next_revision(&self, shard: ShardId) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move { self.state().next_revision(shard) })
    }

    fn load<'a>(
        &'a self,
        shard: ShardId,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwedRecord>, StoreError>> {
        Box::pin(async move { Ok(self.state().load(shard, after, limit)) })
    }

    fn commit<'a>(&'a self, term: Term, changes: &'a [RecordChange]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.state().commit(term, changes) })
    }
}
