//! The parts of this room together in an engine: resync, channel, elector and file store.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::id::ShardId;
use evenkeel::local::{FileStore, LocalElector, ManualElector, MemoryStore, Resync, channel};
use evenkeel::{Action, Engine, Failure, Reconciler, RecordStore, Run, Sharding};
use tokio::sync::{Notify, oneshot};

use super::store_conformance::{cluster, load_all};

/// Longer than any of this takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Remembers which ids it has seen; those that begin with `bad` fail for good.
#[derive(Clone, Default)]
struct Seen(Arc<(Mutex<BTreeSet<String>>, Notify)>);

impl Seen {
    async fn until(&self, so: impl Fn(&BTreeSet<String>) -> bool) {
        let looked = async {
            loop {
                let changed = self.0.1.notified();
                if so(&self.0.0.lock().unwrap()) {
                    return;
                }
                changed.await;
            }
        };
        let seen = || self.0.0.lock().unwrap().len();
        tokio::time::timeout(DEADLINE, looked).await.unwrap_or_else(|_| panic!("{} ids seen", seen()));
    }
}

impl Reconciler for Seen {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        self.0.0.lock().unwrap().insert(run.id().to_owned());
        self.0.1.notify_waiters();
        if run.id().starts_with("bad") { Err(Failure::terminal("it is bad")) } else { Ok(Action::done()) }
    }
}

#[tokio::test]
async fn q9_an_engine_looks_at_everything_that_exists_and_records_what_it_gave_up() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(FileStore::open(folder.path()).await.unwrap());
    let stands = store.check_cluster(&cluster()).await.unwrap();
    let ids: Vec<String> = (0..5_000).map(|i| format!("id-{i:04}")).collect();
    let listed = ids.clone();
    let (sender, stream) = channel(10);
    let seen = Seen::default();
    let engine = Engine::builder("everything")
        .reconciler(seen.clone())
        .sharding(Sharding { shards: 3, ..Sharding::default() })
        .store(store.clone())
        .elector(Arc::new(LocalElector::new(store.clone(), &stands)))
        .stream("all", Resync::every(Duration::from_secs(3_600)).list_fn(move || std::future::ready(listed.clone())))
        .stream("asked", stream)
        .build()
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { _ = stopped.await }));
    seen.until(|seen| ids.iter().all(|id| seen.contains(id))).await;
    for id in ["bad-1", "bad-2", "good"] {
        sender.send(id).await.unwrap();
    }
    seen.until(|seen| seen.len() == 5_003).await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();

    let mut parked = Vec::new();
    for shard in (0..3).map(ShardId) {
        parked.extend(load_all(&*store, shard).await);
    }
    parked.sort_by(|a, b| a.id.cmp(&b.id));
    let parked: Vec<_> = parked.iter().map(|r| (r.id.as_str(), r.error.as_deref())).collect();
    assert_eq!(parked, [("bad-1", Some("it is bad")), ("bad-2", Some("it is bad"))]);
}

#[tokio::test]
async fn l6_a_shard_that_is_given_by_hand_is_listed_and_given_back() {
    let store = Arc::new(MemoryStore::new());
    let stands = store.check_cluster(&cluster()).await.unwrap();
    let (elector, handle) = ManualElector::new(store.clone(), &stands);
    let ids: Vec<String> = (0..200).map(|i| format!("id-{i:03}")).collect();
    let seen = Seen::default();
    let list = move || std::future::ready(ids.clone());
    let engine = Engine::builder("by-hand")
        .reconciler(seen.clone())
        .sharding(Sharding { shards: 2, ..Sharding::default() })
        .store(store)
        .elector(Arc::new(elector))
        .stream("all", Resync::every(Duration::from_secs(3_600)).list_fn(list))
        .build()
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async { _ = stopped.await }));
    handle.become_leader(ShardId(0));
    seen.until(|seen| seen.len() > 50).await;
    handle.become_leader(ShardId(1));
    seen.until(|seen| seen.len() == 200).await;
    handle.step_down(ShardId(0));
    tokio::time::timeout(DEADLINE, handle.released(ShardId(0))).await.expect("given back");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
