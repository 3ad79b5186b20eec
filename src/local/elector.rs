//! Leadership without a cluster: this process leads every shard, or the embedding program says which (L6).
//!
//! Must never give out two leaderships of one shard at a time, nor a term that is not later than the one before: the
//! revision comes from the store's counter (L4). Tested in tests/it/elector.rs.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::contract::{BoxFuture, ClusterRecord, Elector, ElectorError, Leadership, RecordStore, StoreError, Term};
use crate::id::ShardId;

/// How long to wait before a store that could not be written is asked again for a revision: first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// This process leads all shards: for one machine, whose store is locked against a second process.
#[derive(Debug, Clone)]
pub struct LocalElector {
    inner: Arc<Inner>,
}

/// The embedding program decides what this process leads, through a [`ManualHandle`].
///
/// Revisions come from the store, so tokens grow from term to term of this store. Where several processes with stores
/// of their own take turns, they are made from the clocks of both, and grow as long as those agree.
#[derive(Debug, Clone)]
pub struct ManualElector {
    inner: Arc<Inner>,
}

/// Says what this process leads; clones steer the same elector. No call waits, and each may be repeated.
#[derive(Debug, Clone)]
pub struct ManualHandle {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn RecordStore>,
    incarnation: u32,
    shards: Mutex<HashMap<ShardId, Shard>>,
    /// Told after every change of a shard.
    changed: Notify,
}

#[derive(Default)]
struct Shard {
    /// Whether this process is meant to lead it.
    wanted: bool,
    /// Whether a leadership is being made or held.
    taken: bool,
    /// The one that is held.
    held: Option<Leadership>,
}

impl LocalElector {
    /// An elector for a process whose store is its own. The incarnation is that of the store's cluster record, as
    /// [`RecordStore::check_cluster`] gave it.
    #[must_use]
    pub fn new(store: Arc<dyn RecordStore>, cluster: &ClusterRecord) -> Self {
        Self { inner: Inner::new(store, cluster) }
    }
}

impl ManualElector {
    /// An elector that leads nothing yet, and the handle that says what it is to lead.
    #[must_use]
    pub fn new(store: Arc<dyn RecordStore>, cluster: &ClusterRecord) -> (Self, ManualHandle) {
        let inner = Inner::new(store, cluster);
        (Self { inner: Arc::clone(&inner) }, ManualHandle { inner })
    }
}

impl ManualHandle {
    /// This process is to lead the shard. The engine begins a term as soon as it asks for one.
    pub fn become_leader(&self, shard: ShardId) {
        self.inner.change(shard, |shard| shard.wanted = true);
    }

    /// This process is to give the shard back in order: nothing starts any more, runs are cancelled and given their
    /// grace, what is owed is written. [`released`](Self::released) tells when that is over and another process may
    /// lead.
    pub fn step_down(&self, shard: ShardId) {
        self.inner.change(shard, |shard| {
            shard.wanted = false;
            if let Some(held) = &shard.held {
                held.ending.cancel();
            }
        });
    }

    /// This process has lost the shard: what runs is cut off, nothing is settled or written any more.
    pub fn lose(&self, shard: ShardId) {
        self.inner.change(shard, |shard| {
            shard.wanted = false;
            if let Some(held) = &shard.held {
                held.ending.cancel();
                held.ended.cancel();
            }
        });
    }

    /// Resolves when this process neither leads the shard nor is going to.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn released(&self, shard: ShardId) {
        self.inner.when(shard, |shard| (!shard.wanted && !shard.taken).then_some(())).await;
    }
}

impl Elector for LocalElector {
    fn lead(&self, shard: ShardId) -> BoxFuture<'_, Result<Leadership, ElectorError>> {
        Box::pin(async move {
            self.inner.change(shard, |shard| shard.wanted = true);
            self.inner.lead(shard).await
        })
    }

    fn release(&self, leadership: Leadership) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.inner.release(&leadership) })
    }
}

impl Elector for ManualElector {
    fn lead(&self, shard: ShardId) -> BoxFuture<'_, Result<Leadership, ElectorError>> {
        Box::pin(self.inner.lead(shard))
    }

    fn release(&self, leadership: Leadership) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.inner.release(&leadership) })
    }
}

impl Inner {
    fn new(store: Arc<dyn RecordStore>, cluster: &ClusterRecord) -> Arc<Self> {
        let incarnation = cluster.incarnation;
        Arc::new(Self { store, incarnation, shards: Mutex::default(), changed: Notify::new() })
    }

    fn shards(&self) -> MutexGuard<'_, HashMap<ShardId, Shard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, shard: ShardId, change: impl FnOnce(&mut Shard)) {
        change(self.shards().entry(shard).or_default());
        self.changed.notify_waiters();
    }

    /// Waits until a look at the shard gives something.
    async fn when<T>(&self, shard: ShardId, mut look: impl FnMut(&mut Shard) -> Option<T>) -> T {
        loop {
            // Made before the look, so that a change after it is not missed.
            let changed = self.changed.notified();
            if let Some(seen) = look(self.shards().entry(shard).or_default()) {
                return seen;
            }
            changed.await;
        }
    }

    async fn lead(&self, shard: ShardId) -> Result<Leadership, ElectorError> {
        loop {
            let take = |shard: &mut Shard| {
                let free = shard.wanted && !shard.taken;
                shard.taken |= free;
                free.then_some(())
            };
            self.when(shard, take).await;
            let taken = Taken { inner: self, shard, kept: false };
            let leadership = Leadership::new(self.next_term(shard).await?);
            if taken.keep(&leadership) {
                return Ok(leadership);
            }
        }
    }

    /// A later term than all before. A store that is full is asked again: it recovers, and there is nobody else to
    /// lead.
    async fn next_term(&self, shard: ShardId) -> Result<Term, ElectorError> {
        let mut delay = RETRY_FIRST;
        loop {
            let error = match self.store.next_revision(shard).await {
                Ok(revision) => return Ok(Term { shard, incarnation: self.incarnation, revision }),
                Err(error @ (StoreError::Refused(_) | StoreError::Unknown(_))) => error,
                Err(error) => return Err(ElectorError { shard, reason: error.to_string() }),
            };
            tracing::warn!(%shard, %error, retry_in = ?delay, "cannot begin a term");
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_MAX);
        }
    }

    fn release(&self, leadership: &Leadership) {
        leadership.ending.cancel();
        leadership.ended.cancel();
        self.change(leadership.term.shard, |shard| {
            // An earlier leadership that is given back twice is not this one.
            if shard.held.as_ref().is_some_and(|held| held.term == leadership.term) {
                (shard.held, shard.taken) = (None, false);
            }
        });
    }
}

/// A shard that is taken, and given back when the future that took it is dropped.
struct Taken<'a> {
    inner: &'a Inner,
    shard: ShardId,
    kept: bool,
}

impl Taken<'_> {
    /// Whether the shard is still wanted, now that the term is made.
    fn keep(mut self, leadership: &Leadership) -> bool {
        if let Some(shard) = self.inner.shards().get_mut(&self.shard).filter(|shard| shard.wanted) {
            shard.held = Some(leadership.clone());
            self.kept = true;
        }
        self.kept
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.inner.change(self.shard, |shard| shard.taken = false);
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = self.shards();
        let held: Vec<_> = shards.values().filter_map(|shard| shard.held.as_ref()).map(|held| held.term).collect();
        f.debug_struct("Elector").field("incarnation", &self.incarnation).field("held", &held).finish_non_exhaustive()
    }
}
