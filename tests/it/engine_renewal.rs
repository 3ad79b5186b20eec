//! Leadership beside runs that are busy (B57, B30, L3): whoever renews it on a thread of its own is never held up by
//! the engine, and what it says is obeyed although every thread of the runtime is taken.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use evenkeel::id::ShardId;
use evenkeel::local::{ManualElector, ManualHandle, MemoryStore};
use evenkeel::{Action, Failure, Reconciler, RecordStore as _, Run};

use super::engine_world::{Calls, PATIENCE, Running, Topic, builder, until};
use super::store_conformance::cluster;

const SHARD: ShardId = ShardId(0);
/// How long a leadership lasts without being renewed.
const TTL: Duration = Duration::from_secs(4);
const RUNS: u64 = 8;
const THREADS: u64 = 2;

async fn manual() -> (Arc<ManualElector>, ManualHandle) {
    let store = Arc::new(MemoryStore::new());
    let stands = store.check_cluster(&cluster()).await.unwrap();
    let (elector, handle) = ManualElector::new(store, &stands);
    (Arc::new(elector), handle)
}

/// Renews a leadership as a lease is renewed: on a thread of its own, and lost where it was late.
struct Renewer {
    renewals: Arc<AtomicU64>,
    lost: Arc<AtomicBool>,
    stop: mpsc::Sender<()>,
}

impl Renewer {
    fn start(leader: ManualHandle) -> Self {
        let (stop, stopped) = mpsc::channel();
        let this = Self { renewals: Arc::default(), lost: Arc::default(), stop };
        let (renewals, lost) = (Arc::clone(&this.renewals), Arc::clone(&this.lost));
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while stopped.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout) {
                leader.become_leader(SHARD);
                if last.elapsed() > TTL {
                    lost.store(true, Ordering::SeqCst);
                    leader.lose(SHARD);
                }
                last = Instant::now();
                renewals.fetch_add(1, Ordering::SeqCst);
            }
        });
        this
    }
}

/// Takes a whole thread until it is let go, and never looks up.
struct Spins {
    calls: Calls,
    spinning: Arc<AtomicU64>,
    free: Arc<AtomicBool>,
}

impl Reconciler for Spins {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let answer = self.calls.reconcile(run);
        // Not at the first poll, which is the shard's own.
        tokio::task::yield_now().await;
        self.spinning.fetch_add(1, Ordering::SeqCst);
        let begun = Instant::now();
        while !self.free.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        answer.await
    }
}

struct World {
    calls: Calls,
    topic: Topic,
    spinning: Arc<AtomicU64>,
    free: Arc<AtomicBool>,
    running: Running,
}

impl World {
    /// An engine whose runs take every thread there is.
    async fn busy(elector: Arc<ManualElector>, leader: &ManualHandle) -> Self {
        let (calls, topic) = (Calls::done(), Topic::default());
        let (spinning, free): (Arc<AtomicU64>, Arc<AtomicBool>) = Default::default();
        let spins = Spins { calls: calls.clone(), spinning: Arc::clone(&spinning), free: Arc::clone(&free) };
        topic.send((0..RUNS).map(|number| format!("id-{number}")));
        let running = Running::begin(builder(spins).elector(elector).stream("topic", topic.stream()));
        leader.become_leader(SHARD);
        let world = Self { calls, topic, spinning, free, running };
        let spinning = Arc::clone(&world.spinning);
        wait("every thread is taken", move || spinning.load(Ordering::SeqCst) >= THREADS);
        world
    }

    fn let_go(&self) {
        self.free.store(true, Ordering::SeqCst);
    }
}

/// Waits without the runtime, all of whose threads are busy.
#[track_caller]
fn wait(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// B57: eight runs that do not yield take both threads for longer than a leadership lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b57_busy_runs_do_not_cost_the_leadership() {
    let (elector, leader) = manual().await;
    let world = World::busy(elector, &leader).await;
    let renewer = Renewer::start(leader);
    let begun = Instant::now();
    wait("it is renewed for longer than it lasts", || {
        renewer.renewals.load(Ordering::SeqCst) > 20 && begun.elapsed() > TTL * 3 / 2
    });
    world.let_go();
    let topic = world.topic.clone();
    until("all are done", move || topic.committed() == RUNS).await;
    assert!(!renewer.lost.load(Ordering::SeqCst), "a renewal waited for the engine for longer than {TTL:?}");
    let counts: Vec<usize> = (0..RUNS).map(|number| world.calls.count(&format!("id-{number}"))).collect();
    assert_eq!(counts, vec![1; counts.len()], "one term, one run for each");
    drop(renewer.stop);
    world.running.stop().await.unwrap();
}

/// B57, the other way round: it is lost while both threads are taken. What those runs answer afterwards settles
/// nothing, and the next term does all of it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_b57_what_ends_after_the_leadership_settles_nothing() {
    let (elector, leader) = manual().await;
    let world = World::busy(elector, &leader).await;
    leader.lose(SHARD);
    world.let_go();
    tokio::time::timeout(PATIENCE, leader.released(SHARD)).await.expect("it is given back");
    assert_eq!(world.topic.committed(), 0, "settled by a run that ended after the leadership");
    leader.become_leader(SHARD);
    let topic = world.topic.clone();
    until("the next term does it all", move || topic.committed() == RUNS).await;
    world.calls.assert_no_overlap();
    world.running.stop().await.unwrap();
}

/// B30: a process that waits for leadership is ready, so that a rolling update does not wait for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b30_leadership_has_no_part_in_readiness() {
    let (elector, leader) = manual().await;
    let running = Running::begin(builder(Calls::done()).elector(elector).stream("topic", Topic::default()));
    let handle = running.handle.clone();
    let well = move || handle.health().live && handle.health().ready;
    until("ready without a shard", well.clone()).await;
    for _ in 0..3 {
        leader.become_leader(SHARD);
        until("it leads", || running.handle.trigger("x").is_ok()).await;
        assert!(well(), "{:?}", running.handle.health());
        leader.step_down(SHARD);
        tokio::time::timeout(PATIENCE, leader.released(SHARD)).await.expect("it is given back");
        assert!(running.handle.trigger("x").is_err(), "it does not lead");
        assert!(well(), "{:?}", running.handle.health());
    }
    running.stop().await.unwrap();
}
