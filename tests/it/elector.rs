//! Leadership without a cluster (L1, L4, L6).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel::id::ShardId;
use evenkeel::local::{LocalElector, ManualElector, MemoryStore};
use evenkeel::{
    BoxFuture, ClusterRecord, Elector, Leadership, OwedRecord, RecordChange, RecordStore, StoreError, Term,
};

use super::store_conformance::{cluster, put};
use super::support::pending;

const SHARD: ShardId = ShardId(3);

fn facts() -> ClusterRecord {
    ClusterRecord { incarnation: 4, ..cluster() }
}

#[tokio::test]
async fn l6_this_process_leads_every_shard() {
    let store = Arc::new(MemoryStore::new());
    let elector = LocalElector::new(store.clone(), &facts());
    let mut last = 0;
    for shard in (0..12).map(ShardId) {
        let leadership = elector.lead(shard).await.unwrap();
        assert_eq!((leadership.term.shard, leadership.term.incarnation), (shard, 4));
        assert!(!leadership.ending.is_cancelled() && !leadership.ended.is_cancelled());
        store.commit(leadership.term, &[put("a")]).await.unwrap();
        last = last.max(leadership.term.revision);
    }
    assert!(last > 0);
}

#[tokio::test]
async fn l4_a_shard_is_led_once_at_a_time_and_each_term_is_later() {
    let store = Arc::new(MemoryStore::new());
    let stands = store.check_cluster(&facts()).await.unwrap();
    let elector = LocalElector::new(store.clone(), &stands);
    let first = elector.lead(SHARD).await.unwrap();
    let mut second = elector.lead(SHARD);
    assert!(pending(&mut second).await, "while the first is held");
    drop(second);

    elector.release(first.clone()).await;
    assert!(first.ended.is_cancelled(), "what was given back is over");
    let second = elector.lead(SHARD).await.unwrap();
    assert!(second.term > first.term);
    assert!(matches!(store.commit(first.term, &[put("a")]).await, Err(StoreError::Fenced)));

    elector.release(first).await;
    let mut third = elector.lead(SHARD);
    assert!(pending(&mut third).await, "giving the first back again does not end the second");
    assert!(!second.ended.is_cancelled());
    elector.release(second).await;
    third.await.unwrap();
}

#[tokio::test]
async fn l6_the_embedding_program_says_what_is_led() {
    let (elector, handle) = ManualElector::new(Arc::new(MemoryStore::new()), &facts());
    let mut lead = elector.lead(SHARD);
    assert!(pending(&mut lead).await);
    handle.become_leader(ShardId(4));
    assert!(pending(&mut lead).await, "another shard");
    handle.become_leader(SHARD);
    handle.become_leader(SHARD);
    let first = lead.await.unwrap();

    handle.become_leader(SHARD);
    assert!(!first.ending.is_cancelled(), "it leads already");
    handle.step_down(SHARD);
    handle.step_down(SHARD);
    assert!(first.ending.is_cancelled() && !first.ended.is_cancelled(), "in order: what is owed can be written");
    let mut released = Box::pin(handle.released(SHARD));
    assert!(pending(&mut released).await, "its runs may still go on");
    elector.release(first.clone()).await;
    released.await;

    let mut lead = elector.lead(SHARD);
    assert!(pending(&mut lead).await, "not led until somebody says so");
    handle.become_leader(SHARD);
    let second = lead.await.unwrap();
    assert!(second.term > first.term);

    handle.lose(SHARD);
    assert!(second.ending.is_cancelled() && second.ended.is_cancelled(), "at once");
    handle.become_leader(SHARD);
    let mut third = elector.lead(SHARD);
    assert!(pending(&mut third).await, "not before the last run of the term before has ended (L3)");
    elector.release(second).await;
    third.await.unwrap();
    handle.released(ShardId(9)).await;
}

/// A store whose revisions come when told, the first ones as errors.
struct Slow {
    inner: MemoryStore,
    failures: AtomicU32,
    failure: StoreError,
    gate: tokio::sync::Semaphore,
}

impl Slow {
    fn new(failures: u32, failure: StoreError, permits: usize) -> Arc<Self> {
        let gate = tokio::sync::Semaphore::new(permits);
        Arc::new(Self { inner: MemoryStore::new(), failures: failures.into(), failure, gate })
    }
}

impl RecordStore for Slow {
    fn is_durable(&self) -> bool {
        self.inner.is_durable()
    }

    fn check_cluster<'a>(&'a self, wanted: &'a ClusterRecord) -> BoxFuture<'a, Result<ClusterRecord, StoreError>> {
        self.inner.check_cluster(wanted)
    }

    fn next_revision(&self, shard: ShardId) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            self.gate.acquire().await.unwrap().forget();
            match self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Err(self.failure.clone()),
                Err(_) => self.inner.next_revision(shard).await,
            }
        })
    }

    fn load<'a>(
        &'a self,
        shard: ShardId,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwedRecord>, StoreError>> {
        self.inner.load(shard, after, limit)
    }

    fn commit<'a>(&'a self, term: Term, changes: &'a [RecordChange]) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.commit(term, changes)
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_full_is_asked_again_one_that_is_unusable_ends_it() {
    let full = Slow::new(5, StoreError::Refused("the disk is full".into()), 100);
    let started = tokio::time::Instant::now();
    LocalElector::new(full, &facts()).lead(SHARD).await.unwrap();
    assert!(started.elapsed() >= std::time::Duration::from_millis(250 * (1 + 2 + 4 + 8 + 16)), "with growing delays");

    let broken = Slow::new(1, StoreError::Unusable("the disk is on fire".into()), 100);
    let error = LocalElector::new(broken, &facts()).lead(SHARD).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot lead shard 3: the disk is on fire");
}

#[tokio::test]
async fn l6_a_leadership_that_is_no_longer_wanted_when_it_comes_is_given_back() {
    let store = Slow::new(0, StoreError::Fenced, 0);
    let (elector, handle) = ManualElector::new(store.clone(), &facts());
    handle.become_leader(SHARD);
    let mut lead = elector.lead(SHARD);
    assert!(pending(&mut lead).await);
    handle.step_down(SHARD);
    let mut released = Box::pin(handle.released(SHARD));
    assert!(pending(&mut released).await, "the store has not answered");
    store.gate.add_permits(1);
    assert!(pending(&mut lead).await, "stepped down meanwhile");
    released.await;

    // Cancel safety: a future that is dropped while it asks gives the shard back.
    handle.become_leader(SHARD);
    assert!(pending(&mut lead).await);
    drop(lead);
    store.gate.add_permits(1);
    let leadership: Leadership = elector.lead(SHARD).await.unwrap();
    assert_eq!(leadership.term.shard, SHARD);
}
