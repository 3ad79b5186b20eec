//! The store of owed records in etcd (D12), for controllers of several processes.
//!
//! Every change is one transaction that holds only while the shard's leader key has the create revision of the term
//! (L4), and only after the change that this process knows as the last. So a write whose answer did not come is settled
//! before anything is built on it: the next transaction either finds that it has happened, or makes it impossible.
//!
//! Must never trust what it reads: another program may have written it. Tested by the stores' conformance suite and by
//! faults, against a real etcd in `tests/live/etcd/`.

mod batch;
mod head;
mod records;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::KvClient;

use self::head::Head;
use super::cluster::agree;
use super::connect::{Etcd, Repeat};
use super::error::EtcdError;
use super::keys::Keys;
use crate::contract::{BoxFuture, ClusterRecord, OwedRecord, RecordChange, RecordStore, StoreError, Term};
use crate::id::ShardId;

/// How long a call goes on from member to member before the caller hears of it, who tries again by itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is read. A page of the largest records stays below; the library's own limit of 4 MiB does
/// not.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Keeps owed records in etcd, guarded by the leader keys. Clones share what they know.
#[derive(Clone)]
pub struct EtcdStore {
    inner: Arc<Inner>,
}

struct Inner {
    etcd: Etcd,
    keys: Keys,
    /// Stands in each change, so that this store knows its own.
    writer: String,
    /// Changes of a shard go one after the other.
    heads: Mutex<HashMap<ShardId, Arc<tokio::sync::Mutex<Head>>>>,
}

impl EtcdStore {
    /// The store of the controller with these keys. Nothing is sent yet.
    #[must_use]
    pub fn new(etcd: Etcd, keys: Keys) -> Self {
        let inner = Inner { etcd, keys, writer: head::writer(), heads: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }
}

impl Inner {
    /// A call that may be repeated: a read, or a transaction that compares what it changes.
    async fn call<T, F>(&self, request: impl Fn(KvClient) -> F) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        self.etcd
            .call(PATIENCE, Repeat::Always, |client| {
                request(client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX))
            })
            .await
    }

    fn head(&self, shard: ShardId) -> Arc<tokio::sync::Mutex<Head>> {
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(heads.entry(shard).or_default())
    }
}

impl RecordStore for EtcdStore {
    fn is_durable(&self) -> bool {
        true
    }

    fn check_cluster<'a>(&'a self, wanted: &'a ClusterRecord) -> BoxFuture<'a, Result<ClusterRecord, StoreError>> {
        Box::pin(agree(&self.inner.etcd, &self.inner.keys, wanted, PATIENCE))
    }

    fn next_revision(&self, _: ShardId) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async {
            let reason = "a term with records in etcd comes from a leader key in etcd: use the elector of etcd";
            Err(StoreError::Unusable(reason.into()))
        })
    }

    fn load<'a>(
        &'a self,
        shard: ShardId,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwedRecord>, StoreError>> {
        Box::pin(async move { Ok(records::load(&self.inner, shard, after, limit).await?) })
    }

    fn commit<'a>(&'a self, term: Term, changes: &'a [RecordChange]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let head = self.inner.head(term.shard);
            let mut head = head.lock().await;
            let mut is_first = true;
            for part in batch::parts(changes, &self.inner.keys, term.shard) {
                match head::write(&self.inner, term, &mut head, part).await {
                    Ok(()) => is_first = false,
                    // A part has been written: whoever asks must not take the whole for refused.
                    Err(StoreError::Refused(reason)) if !is_first => return Err(StoreError::Unknown(reason)),
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }
}

impl From<EtcdError> for StoreError {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::Settings(reason) => Self::Unusable(reason),
            EtcdError::Unknown(_) | EtcdError::Full(_) | EtcdError::Unreachable(_) => Self::Unknown(error.to_string()),
            EtcdError::Denied(_) | EtcdError::Refused(_) | EtcdError::Compacted | EtcdError::LeaseGone => {
                Self::Refused(error.to_string())
            }
        }
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore")
            .field("etcd", &self.inner.etcd)
            .field("keys", &self.inner.keys)
            .finish_non_exhaustive()
    }
}
