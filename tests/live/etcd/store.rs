//! The store in etcd: the suite that every store must pass, and what only etcd can do to it.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use evenkeel::etcd::{Connection, Etcd, EtcdStore, Keys};
use evenkeel::id::ShardId;
use evenkeel::{BoxFuture, OwedReason, RecordChange, RecordStore, StoreError, Term};

use super::proxy::{Flow, Proxy};
use crate::member::Members;
use crate::store_conformance::{self, Place, attempt, cluster, load_all, put, record};
use crate::support::fresh;

const SHARD: ShardId = ShardId(3);

/// A controller of its own in the cluster that the tests share.
struct Controller {
    members: &'static Members,
    keys: Keys,
}

impl Controller {
    fn new(members: &'static Members) -> Self {
        Self { members, keys: Keys::new(&fresh("store")) }
    }

    fn store(&self, etcd: Etcd) -> Arc<dyn RecordStore> {
        Arc::new(EtcdStore::new(etcd, self.keys.clone()))
    }

    /// Takes the leader key, whoever has it.
    async fn lead(&self, shard: ShardId) -> Term {
        let (mut hand, key) = (self.members.hand(0).await, self.keys.leader(shard));
        hand.delete(key.clone(), None).await.unwrap();
        let revision = hand.put(key, "test", None).await.unwrap().header().unwrap().revision();
        Term { shard, incarnation: 1, revision: u64::try_from(revision).unwrap() }
    }

    async fn hand(&self) -> Client {
        self.members.hand(0).await
    }
}

impl Place for Controller {
    fn open(&self) -> BoxFuture<'_, Arc<dyn RecordStore>> {
        Box::pin(async { self.store(self.members.etcd()) })
    }

    fn lead<'a>(&'a self, _: &'a Arc<dyn RecordStore>, shard: ShardId) -> BoxFuture<'a, Term> {
        Box::pin(self.lead(shard))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_etcd_store_conforms() {
    let Some(members) = Members::shared() else { return };
    store_conformance::run(|| async { Controller::new(members) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_a_batch_beyond_etcds_limits_is_cut() {
    let Some(members) = Members::shared() else { return };
    let place = Controller::new(members);
    let (store, term) = (place.open().await, place.lead(SHARD).await);
    // 1,000 of the largest records that there are: about 12 MB, in at least nine transactions.
    let error = Some("\u{1}".repeat(evenkeel::RECORD_ERROR_BYTES_MAX));
    let large = |i: usize| {
        let id = format!("{i:04}{}", "x".repeat(508));
        evenkeel::OwedRecord { error: error.clone(), ..record(&id) }
    };
    let records: Vec<_> = (0..1_000).map(large).collect();
    let changes: Vec<_> = records.iter().cloned().map(RecordChange::Put).collect();
    store.commit(term, &changes).await.unwrap();
    assert_eq!(load_all(store.as_ref(), SHARD).await, records);
    assert_eq!(store.load(SHARD, None, usize::MAX).await.unwrap(), records, "pages of one revision");

    let gone: Vec<_> = records.iter().map(|record| RecordChange::Delete(record.id.clone())).collect();
    store.commit(term, &gone).await.unwrap();
    assert_eq!(load_all(store.as_ref(), SHARD).await, []);
}

/// An answer that is lost, to a store that can ask elsewhere and to one that cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_a_write_whose_answer_is_lost_is_settled_before_the_next() {
    let Some(members) = Members::shared() else { return };
    let place = Controller::new(members);
    let term = place.lead(SHARD).await;
    let proxy = Proxy::to(&members.endpoint(0)).await;
    let quick = |endpoints| Connection { request: Duration::from_millis(500), ..Connection::new(endpoints) };
    let two = place.store(Etcd::new(quick(vec![proxy.endpoint(), members.endpoint(0)])).unwrap());
    two.commit(term, &[put("first")]).await.unwrap();
    let version = async || {
        let answer = place.hand().await.get(place.keys.record(SHARD, "a"), None).await.unwrap();
        answer.kvs().first().map(etcd_client::KeyValue::version)
    };

    proxy.set(Flow::Requests);
    two.commit(term, &[put("a")]).await.unwrap();
    assert_eq!(version().await, Some(1), "it was written once, and found to be so");

    let one = place.store(Etcd::new(quick(vec![proxy.endpoint()])).unwrap());
    proxy.set(Flow::All);
    one.commit(term, &[put("b")]).await.unwrap();
    proxy.set(Flow::Requests);
    let error = one.commit(term, &[RecordChange::Put(attempt("b", 7))]).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    proxy.set(Flow::All);
    one.commit(term, &[RecordChange::Delete("b".into())]).await.unwrap();
    let ids: Vec<_> = load_all(one.as_ref(), SHARD).await.into_iter().map(|r| r.id).collect();
    assert_eq!(ids, ["a", "first"]);
}

/// A write that lies with a frozen member must not come true after a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_a_write_that_arrives_late_changes_nothing() {
    let Some(members) = Members::shared() else { return };
    let place = Controller::new(members);
    let term = place.lead(SHARD).await;
    let proxy = Proxy::to(&members.endpoint(0)).await;
    let connection = Connection {
        request: Duration::from_millis(500),
        ..Connection::new(vec![proxy.endpoint(), members.endpoint(0)])
    };
    let store = place.store(Etcd::new(connection).unwrap());
    store.commit(term, &[put("a")]).await.unwrap();
    proxy.set(Flow::Answers);
    store.commit(term, &[RecordChange::Put(attempt("a", 2))]).await.unwrap();
    store.commit(term, &[RecordChange::Put(attempt("a", 3))]).await.unwrap();
    // The first try of the second write is let through now. A member that has carried it out would move the revision.
    proxy.set(Flow::All);
    let later = place.store(members.etcd());
    for n in 4..20 {
        later.commit(term, &[RecordChange::Put(attempt("b", n))]).await.unwrap();
        assert_eq!(load_all(later.as_ref(), SHARD).await, [attempt("a", 3), attempt("b", n)]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_only_the_leader_key_of_the_term_writes() {
    let Some(members) = Members::shared() else { return };
    let place = Controller::new(members);
    let (store, term) = (place.open().await, place.lead(SHARD).await);
    store.commit(term, &[put("a")]).await.unwrap();
    place.hand().await.delete(place.keys.leader(SHARD), None).await.unwrap();
    let error = store.commit(term, &[put("b")]).await.unwrap_err();
    assert!(matches!(error, StoreError::Fenced), "without a leader key: {error}");
    // The same name again, by somebody else: another create revision, so another term.
    place.lead(SHARD).await;
    let error = store.commit(term, &[put("b")]).await.unwrap_err();
    assert!(matches!(error, StoreError::Fenced), "{error}");
    // A value that changes is no other term.
    let term = place.lead(SHARD).await;
    place.hand().await.put(place.keys.leader(SHARD), "changed", Some(PutOptions::new())).await.unwrap();
    store.commit(term, &[put("c")]).await.unwrap();
    let ids: Vec<_> = load_all(store.as_ref(), SHARD).await.into_iter().map(|r| r.id).collect();
    assert_eq!(ids, ["a", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contents_of_another_program_are_survived() {
    let Some(members) = Members::shared() else { return };
    let place = Controller::new(members);
    let (store, term) = (place.open().await, place.lead(SHARD).await);
    store.commit(term, &[put("m")]).await.unwrap();
    let mut hand = place.hand().await;
    let prefix = place.keys.records(SHARD);
    let strange: [(&[u8], &[u8]); 5] = [
        (b"a", b"no json"),
        (b"b", br#"{"v":99,"id":"b"}"#),
        (b"c", &record("other").to_json()),
        (b"\xff", b"x"),
        (b"line\nfeed", b"x"),
    ];
    for (id, value) in strange {
        hand.put([prefix.as_bytes(), id].concat(), value, None).await.unwrap();
    }
    for key in [place.keys.head(SHARD), place.keys.records(ShardId(4))] {
        hand.put(key, "\u{0}garbage", None).await.unwrap();
    }

    let found = load_all(store.as_ref(), SHARD).await;
    let ids: Vec<_> = found.iter().map(|r| r.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c", "m"], "an id whose record cannot be read is owed all the same");
    for record in &found[..3] {
        assert_eq!((record.reason, record.attempt), (OwedReason::Held, 0));
        let error = record.error.as_deref().unwrap();
        assert!(error.starts_with("its owed record could not be read: "), "{error}");
    }
    assert!(found[1].error.as_deref().unwrap().contains("format 99"));
    assert_eq!(found[3], record("m"));
    let firsts: Vec<_> = store.load(SHARD, None, 2).await.unwrap().into_iter().map(|r| r.id).collect();
    assert_eq!(firsts, ["a", "b"]);
    assert_eq!(load_all(store.as_ref(), ShardId(4)).await, [], "a key without an id");

    let changes = ["a", "b", "c"].map(|id| RecordChange::Delete(id.into()));
    store.commit(term, &changes).await.unwrap();
    assert_eq!(load_all(store.as_ref(), SHARD).await, [record("m")], "a head that another program wrote is passed");

    hand.put(place.keys.cluster(), "no json", None).await.unwrap();
    let error = store.check_cluster(&cluster()).await.unwrap_err();
    let says = error.to_string();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{says}");
    assert!(says.contains("/cluster") && says.contains("another name"), "{says}");
}

/// Compaction takes away the revision to which the pages of a list are pinned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_survives_compaction() {
    let Some(members) = Members::shared() else { return };
    let place = Controller::new(members);
    let (store, term) = (place.open().await, place.lead(SHARD).await);
    let ids: Vec<_> = (0..6_000).map(|i| format!("{i:05}")).collect();
    let changes: Vec<_> = ids.iter().map(|id| put(id)).collect();
    store.commit(term, &changes).await.unwrap();
    let compacting = async {
        let (mut hand, key) = (place.hand().await, fresh("compacted"));
        loop {
            let revision = hand.put(key.clone(), "x", None).await.unwrap().header().unwrap().revision();
            hand.compact(revision, None).await.unwrap();
        }
    };
    let listing = async {
        for _ in 0..10 {
            let found = store.load(SHARD, None, usize::MAX).await.unwrap();
            assert!(found.iter().map(|r| &r.id).eq(&ids), "{} of {} came", found.len(), ids.len());
        }
    };
    tokio::select! {
        () = compacting => {}
        () = listing => {}
    }
}

/// Two processes that start at once agree on what one of them writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l7_the_first_of_many_writes_the_cluster_record() {
    let Some(members) = Members::shared() else { return };
    let place = Controller::new(members);
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..16_u16 {
        let store = place.store(members.etcd());
        tasks.spawn(async move {
            let wanted = evenkeel::ClusterRecord { shards: 1 + i % 2, ..cluster() };
            store.check_cluster(&wanted).await.map(|stands| stands.shards)
        });
    }
    let (mut joined, mut refused) = (Vec::new(), 0);
    while let Some(result) = tasks.join_next().await {
        match result.unwrap() {
            Ok(shards) => joined.push(shards),
            Err(StoreError::Mismatch { field, .. }) => {
                assert_eq!(field, "shards");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((joined.len(), refused), (8, 8));
    assert!(joined.iter().all(|shards| *shards == joined[0]));
}

/// A full database: what fills it may have been written, what comes after it is refused; nothing is written twice or
/// lost, and all goes on once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_a_full_database_refuses_and_goes_on() {
    let Some(members) = Members::start_with(1, "http", &["--quota-backend-bytes", "4194304"]) else { return };
    let members: &'static Members = Box::leak(Box::new(members));
    let place = Controller::new(members);
    let (store, term) = (place.open().await, place.lead(SHARD).await);
    store.commit(term, &[put("a")]).await.unwrap();
    let mut hand = place.hand().await;
    while hand.put("filler", vec![b'x'; 500_000], None).await.is_ok() {}
    let error = store.commit(term, &[put("b")]).await.unwrap_err();
    assert!(matches!(&error, StoreError::Refused(reason) if reason.contains("defragment")), "{error}");
    assert_eq!(load_all(store.as_ref(), SHARD).await, [record("a")]);

    let revision = hand.get("filler", None).await.unwrap().header().unwrap().revision();
    hand.compact(revision, None).await.unwrap();
    hand.defragment().await.unwrap();
    members.ctl(&["alarm", "disarm"]);
    store.commit(term, &[put("b")]).await.unwrap();
    assert_eq!(load_all(store.as_ref(), SHARD).await, [record("a"), record("b")]);
    drop(store);
    for at in 0..members.count() {
        members.kill(at);
    }
}

/// A store that has been away: members are restarted, its leader is killed and frozen, while a writer goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_writes_go_on_through_the_loss_of_a_member() {
    let Some(members) = Members::start(3) else { return };
    let keys = Keys::new(&fresh("store"));
    let connection = Connection { request: Duration::from_millis(500), ..members.connection() };
    let store = EtcdStore::new(Etcd::new(connection).unwrap(), keys.clone());
    let mut hand = members.hand(0).await;
    let created = Txn::new()
        .when([Compare::create_revision(keys.leader(SHARD), CompareOp::Equal, 0)])
        .and_then([TxnOp::put(keys.leader(SHARD), "test", None)]);
    let revision = hand.txn(created).await.unwrap().header().unwrap().revision();
    let term = Term { shard: SHARD, incarnation: 1, revision: u64::try_from(revision).unwrap() };

    let (mut written, mut unknown) = (0, 0);
    let mut write = async |count: u32| {
        for _ in 0..count {
            written += 1;
            while let Err(error) = store.commit(term, &[RecordChange::Put(attempt("a", written))]).await {
                assert!(error.is_unknown(), "{error}");
                unknown += 1;
            }
            assert_eq!(load_all(&store, SHARD).await, [attempt("a", written)]);
        }
    };
    write(20).await;
    let leader = members.leader().await;
    members.kill(leader);
    write(20).await;
    members.restart(leader);
    let leader = members.leader().await;
    members.freeze(leader);
    write(20).await;
    members.thaw(leader);
    write(20).await;
    for at in 0..3 {
        members.stop(at);
        members.restart(at);
        write(10).await;
    }
    println!(
        "{written} writes through a kill, a freeze and three restarts: {unknown} times the outcome was asked for again"
    );
}
