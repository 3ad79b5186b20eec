//! What every store of owed records must do (D12, L4, L7, I1): one suite for all of them.
//!
//! Must never know a store: tests/it/store.rs runs it with the stores of one machine, the live tests with those that
//! need a service. Each check gets a place of its own, where nothing was stored before.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel::id::{Partitioner, ShardId};
use evenkeel::{
    BoxFuture, Cause, ClusterRecord, OwedReason, OwedRecord, Position, RECORD_ERROR_BYTES_MAX, RECORD_FORMAT,
    RecordChange, RecordStore, StoreError, Term,
};

type Store = Arc<dyn RecordStore>;

/// A place where a store stands.
pub(crate) trait Place: Send + Sync {
    /// Opens what stands there; the store that was opened before has been dropped.
    fn open(&self) -> BoxFuture<'_, Store>;

    /// Makes this process the shard's leader, in a term later than every one before.
    fn lead<'a>(&'a self, store: &'a Store, shard: ShardId) -> BoxFuture<'a, Term> {
        Box::pin(async move {
            Term { shard, incarnation: 1, revision: store.next_revision(shard).await.expect("a revision") }
        })
    }
}

/// Runs every check, each in a fresh place.
pub(crate) async fn run<P: Place + 'static, F: Future<Output = P>>(fresh: impl Fn() -> F) {
    d12_changes_apply_in_order(&fresh().await).await;
    d12_records_come_back_as_they_were(&fresh().await).await;
    d12_pages_follow_one_another(&fresh().await).await;
    d12_ten_thousand_records_come_back(&fresh().await).await;
    i1_every_allowed_id_is_a_key(&fresh().await).await;
    q2_shards_share_nothing(&fresh().await).await;
    l4_a_term_that_is_over_writes_nothing(&fresh().await).await;
    l4_revisions_grow_also_when_opened_anew(&fresh().await).await;
    l7_a_cluster_of_another_shape_is_refused(&fresh().await).await;
    d12_commits_of_many_tasks_are_whole(fresh().await).await;
}

pub(crate) fn record(id: &str) -> OwedRecord {
    OwedRecord {
        id: id.into(),
        due: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        attempt: 1,
        reason: OwedReason::Held,
        key: 42,
        stuck: 0,
        error: None,
        causes: vec![Cause::Recovered {}],
    }
}

pub(crate) fn attempt(id: &str, attempt: u32) -> OwedRecord {
    OwedRecord { attempt, ..record(id) }
}

pub(crate) fn put(id: &str) -> RecordChange {
    RecordChange::Put(record(id))
}

fn delete(id: &str) -> RecordChange {
    RecordChange::Delete(id.into())
}

pub(crate) fn cluster() -> ClusterRecord {
    ClusterRecord { shards: 12, hash: Partitioner::Murmur2, usage: "ids".into(), format: RECORD_FORMAT, incarnation: 0 }
}

pub(crate) async fn load_all(store: &dyn RecordStore, shard: ShardId) -> Vec<OwedRecord> {
    let mut all: Vec<OwedRecord> = Vec::new();
    loop {
        let page = store.load(shard, all.last().map(|r| r.id.as_str()), 1_000).await.expect("a page");
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

async fn ids(store: &Store, shard: ShardId) -> Vec<String> {
    load_all(store.as_ref(), shard).await.into_iter().map(|r| r.id).collect()
}

async fn d12_changes_apply_in_order(place: &dyn Place) {
    let (store, shard) = (place.open().await, ShardId(3));
    let term = place.lead(&store, shard).await;
    assert_eq!(ids(&store, shard).await, [""; 0]);

    store.commit(term, &[put("c"), put("a"), put("b")]).await.unwrap();
    assert_eq!(ids(&store, shard).await, ["a", "b", "c"], "in id order");

    let again = RecordChange::Put(attempt("b", 7));
    store.commit(term, &[delete("a"), again, delete("not there")]).await.unwrap();
    assert_eq!(load_all(store.as_ref(), shard).await, [attempt("b", 7), record("c")]);

    store.commit(term, &[put("x"), delete("x"), delete("y"), put("y")]).await.unwrap();
    let twice = [RecordChange::Put(attempt("z", 1)), RecordChange::Put(attempt("z", 2))];
    store.commit(term, &twice).await.unwrap();
    store.commit(term, &[]).await.unwrap();
    let wanted = [attempt("b", 7), record("c"), record("y"), attempt("z", 2)];
    assert_eq!(load_all(store.as_ref(), shard).await, wanted, "the last change of an id stands");

    let durable = store.is_durable();
    drop(store);
    let store = place.open().await;
    assert_eq!(store.is_durable(), durable);
    assert_eq!(load_all(store.as_ref(), shard).await, wanted, "also when opened anew");
}

async fn d12_records_come_back_as_they_were(place: &dyn Place) {
    let (store, shard) = (place.open().await, ShardId(0));
    let term = place.lead(&store, shard).await;
    let mut records: Vec<OwedRecord> =
        [OwedReason::Held, OwedReason::Requested, OwedReason::GivenUp, OwedReason::Cancelled, OwedReason::Stuck]
            .into_iter()
            .enumerate()
            .map(|(i, reason)| OwedRecord { reason, ..record(&format!("reason-{i}")) })
            .collect();
    records.push(OwedRecord { attempt: u32::MAX, key: u64::MAX, stuck: u8::MAX, ..record("the largest numbers") });
    records.push(OwedRecord { due: SystemTime::UNIX_EPOCH, causes: vec![], ..record("the least") });
    let position = Some(Position { topic: "orders".into(), partition: 7, offset: 991 });
    let causes = vec![
        Cause::Event { stream: "orders".into(), position },
        Cause::Resync { stream: "nightly".into() },
        Cause::Retry { attempt: 3, error: Some("no route\nto \"host\"".into()) },
        Cause::Redrive {},
    ];
    records.push(OwedRecord { causes, error: Some("a\0b\u{202e}c".into()), ..record("the words") });
    let too_long = "é".repeat(RECORD_ERROR_BYTES_MAX);
    records.push(OwedRecord { error: Some(too_long), ..record("too long an error") });
    records.sort_by(|a, b| a.id.cmp(&b.id));

    let changes: Vec<_> = records.iter().cloned().map(RecordChange::Put).collect();
    store.commit(term, &changes).await.unwrap();
    let wanted: Vec<_> = records.into_iter().map(OwedRecord::cut).collect();
    assert_eq!(load_all(store.as_ref(), shard).await, wanted);
    let longest = wanted.iter().filter_map(|r| r.error.as_ref()).map(String::len).max();
    assert_eq!(longest, Some(RECORD_ERROR_BYTES_MAX), "an error is cut");
}

async fn d12_pages_follow_one_another(place: &dyn Place) {
    let (store, shard) = (place.open().await, ShardId(1));
    let term = place.lead(&store, shard).await;
    let changes: Vec<_> = (0..95).map(|i| put(&format!("id-{i:03}"))).collect();
    store.commit(term, &changes).await.unwrap();
    let page = async |after: Option<&str>, limit| {
        let page = store.load(shard, after, limit).await.unwrap();
        page.into_iter().map(|r| r.id).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2).await, ["id-000", "id-001"]);
    assert_eq!(page(Some("id-001"), 2).await, ["id-002", "id-003"]);
    assert_eq!(page(Some("id-001x"), 1).await, ["id-002"], "after an id that is not there");
    assert_eq!(page(Some("a"), 1).await, ["id-000"]);
    assert_eq!(page(Some("id-093"), 10).await, ["id-094"]);
    assert_eq!(page(Some("id-094"), 10).await, [""; 0]);
    assert_eq!(page(Some("zzz"), 10).await, [""; 0]);
    assert_eq!(page(None, 0).await, [""; 0]);
    assert_eq!(page(None, usize::MAX).await.len(), 95);
    // What is deleted between two pages moves nothing.
    store.commit(term, &[delete("id-001")]).await.unwrap();
    assert_eq!(page(Some("id-001"), 1).await, ["id-002"]);
}

async fn d12_ten_thousand_records_come_back(place: &dyn Place) {
    let (store, shard) = (place.open().await, ShardId(9));
    let term = place.lead(&store, shard).await;
    let wanted: Vec<String> = (0..10_000).map(|i| format!("prod/Database/orders-{i:05}")).collect();
    for batch in wanted.chunks(100) {
        let changes: Vec<_> = batch.iter().map(|id| put(id)).collect();
        store.commit(term, &changes).await.unwrap();
    }
    drop(store);
    let store = place.open().await;
    assert_eq!(ids(&store, shard).await, wanted);
    let term = place.lead(&store, shard).await;
    for batch in wanted.chunks(100) {
        let changes: Vec<_> = batch.iter().map(|id| delete(id)).collect();
        store.commit(term, &changes).await.unwrap();
    }
    assert_eq!(ids(&store, shard).await, [""; 0]);
}

/// Ids that are allowed and that a path, a key, a shell or a careless comparison might trip over.
const ODD_IDS: &[&str] = &[
    ".",
    "..",
    "/",
    "//",
    "a/../b",
    "%",
    "%2f",
    "%2F",
    "%00",
    " ",
    "  ",
    "-x",
    "--",
    "~root",
    "$(id)",
    "`id`",
    "'",
    "\"",
    "\\",
    "\\0",
    "a:b",
    "*",
    "?",
    "a,b",
    "{}",
    "[0]",
    "#",
    "&",
    "=",
    "+",
    ";",
    "|",
    "<>",
    "!",
    "@",
    "^",
    "null",
    "0",
    "caf\u{e9}",
    "cafe\u{301}",
    "déjà/vu",
    "日本",
    "\u{a0}",
    "\u{2028}",
    "\u{fffd}",
    "\u{10ffff}",
    "😀",
    "ﬁ",
    "ß",
    "SS",
    "a",
    "ab",
    "a b",
    "A",
    "aa",
    "a/b",
    "a0",
];

async fn i1_every_allowed_id_is_a_key(place: &dyn Place) {
    let (store, shard) = (place.open().await, ShardId(0));
    let term = place.lead(&store, shard).await;
    let longest = ["x".repeat(512), "日".repeat(170) + "xy"];
    let mut wanted = ODD_IDS.to_vec();
    wanted.extend(longest.iter().map(String::as_str));
    for id in &wanted {
        assert_eq!(evenkeel::id::check(id), Ok(()), "{id:?}");
    }
    let changes: Vec<_> = wanted.iter().map(|id| put(id)).collect();
    store.commit(term, &changes).await.unwrap();
    wanted.sort_unstable();
    assert_eq!(ids(&store, shard).await, wanted, "in the order of their bytes");
    for pair in wanted.windows(2) {
        let next = store.load(shard, Some(pair[0]), 1).await.unwrap();
        assert_eq!(next[0].id, pair[1]);
    }
    for (i, id) in wanted.iter().enumerate() {
        store.commit(term, &[delete(id)]).await.unwrap();
        assert_eq!(ids(&store, shard).await.len(), wanted.len() - i - 1, "deleting {id:?} deletes it alone");
    }
}

async fn q2_shards_share_nothing(place: &dyn Place) {
    let store = place.open().await;
    let shards = [0, 1, 2, 10, 11, 12, 110, 111, 255, 256, 1_111, 4_095].map(ShardId);
    for shard in shards {
        let term = place.lead(&store, shard).await;
        let names = ["1", "11", "1/1", &format!("only-{shard}")].map(put);
        store.commit(term, &names).await.unwrap();
    }
    for shard in shards {
        assert_eq!(ids(&store, shard).await, ["1", "1/1", "11", &format!("only-{shard}")]);
    }
    let term = place.lead(&store, ShardId(1)).await;
    store.commit(term, &["1", "11", "1/1", "only-1", "only-11"].map(delete)).await.unwrap();
    for shard in shards {
        assert_eq!(ids(&store, shard).await.len(), if shard == ShardId(1) { 0 } else { 4 }, "shard {shard}");
    }
    assert_eq!(ids(&store, ShardId(3)).await, [""; 0], "a shard that nobody wrote to");
}

async fn l4_a_term_that_is_over_writes_nothing(place: &dyn Place) {
    let (store, shard) = (place.open().await, ShardId(5));
    let early = place.lead(&store, shard).await;
    let first = place.lead(&store, shard).await;
    let late = store.commit(early, &[put("x")]).await.unwrap_err();
    assert!(matches!(late, StoreError::Fenced), "fenced by a term that has written nothing yet: {late}");
    store.commit(first, &[put("a")]).await.unwrap();
    let other = place.lead(&store, ShardId(6)).await;
    let second = place.lead(&store, shard).await;
    assert!(second.revision > first.revision);

    let late = store.commit(first, &[delete("a"), put("b")]).await.unwrap_err();
    assert!(matches!(late, StoreError::Fenced), "{late}");
    assert!(!late.is_unknown());
    assert_eq!(ids(&store, shard).await, ["a"], "nothing of it was written");
    store.commit(second, &[put("c")]).await.unwrap();
    store.commit(other, &[put("d")]).await.unwrap();

    drop(store);
    let store = place.open().await;
    let late = store.commit(first, &[put("b")]).await.unwrap_err();
    assert!(matches!(late, StoreError::Fenced), "also when opened anew: {late}");
    assert_eq!(ids(&store, shard).await, ["a", "c"]);
    assert_eq!(ids(&store, ShardId(6)).await, ["d"], "another shard's term is its own");
}

async fn l4_revisions_grow_also_when_opened_anew(place: &dyn Place) {
    let mut last = [0; 3];
    for _ in 0..3 {
        let store = place.open().await;
        for _ in 0..3 {
            for (shard, last) in [0, 1, 4_095].map(ShardId).into_iter().zip(&mut last) {
                let term = place.lead(&store, shard).await;
                assert!(term.revision > *last, "shard {shard}: {} after {last}", term.revision);
                assert_eq!(term.token(1).to_string().len(), 4 + 1 + 19 + 1 + 12, "it fits a token");
                *last = term.revision;
            }
        }
    }
}

async fn l7_a_cluster_of_another_shape_is_refused(place: &dyn Place) {
    let store = place.open().await;
    let stands = store.check_cluster(&cluster()).await.unwrap();
    assert_eq!(stands, ClusterRecord { incarnation: 1, ..cluster() }, "the first incarnation is 1");
    drop(store);

    let store = place.open().await;
    assert_eq!(store.check_cluster(&cluster()).await.unwrap(), stands);
    assert_eq!(store.check_cluster(&stands).await.unwrap(), stands);
    let cases = [
        (ClusterRecord { shards: 4, ..cluster() }, "with shards 12, this process is configured with shards 4"),
        (ClusterRecord { hash: Partitioner::Crc32, ..cluster() }, "with hash murmur2, this process is configured"),
        (ClusterRecord { usage: "resources".into(), ..cluster() }, "with use ids, this process is configured"),
        (ClusterRecord { incarnation: 2, ..cluster() }, "with incarnation 1, this process is configured with incarn"),
    ];
    for (wanted, message) in cases {
        let error = store.check_cluster(&wanted).await.unwrap_err();
        assert!(matches!(error, StoreError::Mismatch { .. }), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    let raised = ClusterRecord { format: RECORD_FORMAT + 1, ..cluster() };
    let raised = store.check_cluster(&raised).await.unwrap();
    assert_eq!(raised, ClusterRecord { format: RECORD_FORMAT + 1, ..stands }, "an older format is raised");
    drop(store);

    let store = place.open().await;
    let error = store.check_cluster(&cluster()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error}");
    assert!(error.to_string().contains("by a newer version"), "{error}");
    assert_eq!(store.check_cluster(&raised).await.unwrap(), raised, "a refusal changes nothing");
}

/// Every commit writes a pair; whoever looks, at any time, sees both halves of the same commit.
async fn d12_commits_of_many_tasks_are_whole<P: Place + 'static>(place: P) {
    const TASKS: u32 = 32;
    const COMMITS: u32 = 20;
    let (store, shard) = (place.open().await, ShardId(2));
    let term = place.lead(&store, shard).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let (left, right) = (format!("{task:02}-left"), format!("{task:02}-right"));
            for n in 1..=COMMITS {
                let changes = [&left, &right].map(|id| RecordChange::Put(attempt(id, n)));
                store.commit(term, &changes).await.expect("a commit");
                let own = store.load(shard, Some(&format!("{task:02}-")), 2).await.expect("a page");
                assert_eq!(own, [attempt(&left, n), attempt(&right, n)], "a commit is seen when it returns");
            }
        });
    }
    let mut looks = 0;
    while !tasks.is_empty() {
        let page = store.load(shard, None, usize::MAX).await.unwrap();
        for pair in page.chunks(2) {
            assert_eq!((pair[0].attempt, pair.len()), (pair[1].attempt, 2), "a half of {:?}", pair[0].id);
        }
        looks += 1;
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("no task failed");
        }
    }
    assert!(looks > 0);
    let all = load_all(store.as_ref(), shard).await;
    assert_eq!(all.len(), 2 * usize::try_from(TASKS).unwrap());
    assert!(all.iter().all(|r| r.attempt == COMMITS));
}
