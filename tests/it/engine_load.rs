//! Many ids at once (Q7, B74): `concurrency` bounds the runs of the process, and a slow id holds nobody up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel::{Action, Class, Failure, Reconciler, ReconcilerOptions, Run, Sharding};

use super::engine_world::{Calls, Do, Feed, MS, Running, SECOND, builder, options, until};

/// Counts what is in flight.
#[derive(Clone, Default)]
struct Gauge {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    runs: Arc<AtomicUsize>,
}

impl Gauge {
    fn enter(&self) -> InFlight {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.runs.fetch_add(1, Ordering::SeqCst);
        InFlight(Arc::clone(&self.now))
    }
}

struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes a while for each run; a tenth of them hang until they are told to stop.
struct Backend {
    gauge: Gauge,
    slow: bool,
}

impl Reconciler for Backend {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let _in_flight = self.gauge.enter();
        if self.slow && run.id().ends_with('7') {
            run.cancelled().await;
            return Err(Failure::transient("it hung"));
        }
        tokio::time::sleep(5 * MS).await;
        Ok(Action::done())
    }
}

/// 2,000 ids in four shards, ten in flight: never more, and ten as long as there is enough to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q7_b74_no_more_runs_than_concurrency_over_all_shards() {
    for (shards, concurrency) in [(1, 10), (4, 10), (16, 3)] {
        let gauge = Gauge::default();
        let (feed, events) = Feed::new(Class::Event);
        let options = ReconcilerOptions { concurrency, ..options() };
        let backend = Backend { gauge: gauge.clone(), slow: false };
        let engine = builder(backend).options(options).sharding(Sharding { shards, ..Sharding::default() });
        let running = Running::start(engine.stream("events", feed)).await;
        let total = 2_000 / (16 / u64::from(concurrency)).max(1);
        (0..total).for_each(|number| _ = events.send(&format!("id-{number}")));
        events.until_low_water(total).await;
        assert_eq!(gauge.runs.load(Ordering::SeqCst) as u64, total);
        assert_eq!(gauge.most.load(Ordering::SeqCst), concurrency as usize, "{shards} shards");
        running.stop().await.unwrap();
    }
}

/// A backend that hangs in part: its ids time out and are tried again, all others go on, and the bound holds.
#[tokio::test(start_paused = true)]
async fn q7_b74_a_backend_that_hangs_takes_no_more_than_its_places() {
    let gauge = Gauge::default();
    let (feed, events) = Feed::new(Class::Event);
    let options = ReconcilerOptions { concurrency: 10, timeout: Some(SECOND), ..options() };
    let backend = Backend { gauge: gauge.clone(), slow: true };
    let engine = builder(backend).options(options).sharding(Sharding { shards: 4, ..Sharding::default() });
    let running = Running::start(engine.stream("events", feed)).await;
    (0..2_000).for_each(|number| _ = events.send(&format!("id-{number}")));
    // 200 of them hang four times for a second each, ten at a time at the most; the rest is done long before.
    until("all others are done", || events.low_water() + events.done_above().len() as u64 >= 1_800).await;
    assert!(running.handle.health().live);
    events.until_low_water(2_000).await;
    assert_eq!(gauge.most.load(Ordering::SeqCst), 10);
    assert_eq!(running.handle.status().await.unwrap().counts.parked, 200);
    running.stop().await.unwrap();
}

/// A slow id never blocks the ids behind it while a slot of its worker is free.
#[tokio::test(start_paused = true)]
async fn q7_a_slow_id_holds_nobody_up() {
    let calls = Calls::new(|run, _| if run.id().starts_with("slow") { Do::Hold } else { Do::done() });
    let (feed, events) = Feed::new(Class::Event);
    let options = ReconcilerOptions { workers: 2, concurrency: 8, timeout: None, ..options() };
    let running = Running::start(builder(calls.clone()).options(options).stream("events", feed)).await;
    // Three slow ids in the same worker, which has four slots.
    let mut worker = None;
    let mut slow = Vec::new();
    for number in 0.. {
        let id = format!("slow-{number}");
        let own = running.explain(&id).await.worker;
        if *worker.get_or_insert(own) == own {
            slow.push(id);
        }
        if slow.len() == 3 {
            break;
        }
    }
    slow.iter().for_each(|id| _ = events.send(id));
    until("they run", || calls.running() == 3).await;
    (0..1_000).for_each(|number| _ = events.send(&format!("id-{number}")));
    until("all others are done", || events.done_above().len() == 1_000).await;
    assert_eq!((calls.running(), events.low_water()), (3, 0));
    slow.iter().for_each(|id| calls.release(id));
    events.until_low_water(1_003).await;
    running.stop().await.unwrap();
}

/// Shards share the permits: one that is always busy does not starve the others.
#[tokio::test(start_paused = true)]
async fn q7_a_busy_shard_leaves_permits_to_the_others() {
    let calls = Calls::done();
    let (feed, events) = Feed::new(Class::Event);
    let options = ReconcilerOptions { concurrency: 2, ..options() };
    let hasher = |id: &str| id.split('-').next().and_then(|shard| shard.parse().ok());
    let engine = builder(Slow(calls.clone())).options(options).hasher(hasher);
    let engine = engine.sharding(Sharding { shards: 3, ..Sharding::default() }).stream("events", feed);
    let running = Running::start(engine).await;
    (0..3_000).for_each(|number| _ = events.send(&format!("0-{number}")));
    until("it is busy", || calls.all().len() > 10).await;
    events.send("1-a");
    events.send("2-a");
    let before = calls.all().len();
    calls.until_count("1-a", 1).await;
    calls.until_count("2-a", 1).await;
    let between = calls.all().len() - before;
    assert!(between < 200, "{between} runs of the busy shard went before");
    events.until_low_water(3_002).await;
    running.stop().await.unwrap();
}

/// Takes ten milliseconds for each run.
struct Slow(Calls);

impl Reconciler for Slow {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        tokio::time::sleep(10 * MS).await;
        self.0.reconcile(run).await
    }
}

/// Workers, slots and concurrency in odd proportions: everything runs, none of it at once twice.
#[tokio::test(start_paused = true)]
async fn q7_any_proportion_of_workers_and_concurrency_works() {
    for (workers, concurrency, shards) in [(1, 1, 1), (1, 64, 2), (8, 1, 3), (4_096, 7, 1), (64, 64, 5), (3, 2, 2)] {
        let calls = Calls::done();
        let (feed, events) = Feed::new(Class::Event);
        let options = ReconcilerOptions { workers, concurrency, ..options() };
        let engine = builder(Slow(calls.clone())).options(options);
        let engine = engine.sharding(Sharding { shards, ..Sharding::default() }).stream("events", feed);
        let running = Running::start(engine).await;
        let wanted: BTreeSet<String> = (0..100).map(|number| format!("id-{number}")).collect();
        wanted.iter().for_each(|id| _ = events.send(id));
        events.until_low_water(100).await;
        assert_eq!(calls.ids(), wanted, "{workers} workers, {concurrency} at a time, {shards} shards");
        running.stop().await.unwrap();
    }
}
