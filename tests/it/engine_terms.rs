//! Terms of one process (L1, L3, L4, L6): nothing of a term reaches the next one, and nothing is lost between them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use evenkeel::engine::view::{IdState, TriggerResult, WaitFor};
use evenkeel::id::ShardId;
use evenkeel::local::{LocalElector, ManualElector, ManualHandle, MemoryStore};
use evenkeel::{
    Action, BoxFuture, Class, ClusterRecord, Elector, ElectorError, Engine, EngineError, Failure, FencingToken, Leader,
    Leadership, Reconciler, ReconcilerOptions, RecordStore, Run, Sharding, Term, Validity,
};

use super::engine_world::{
    Calls, Do, Faulty, Feed, HOUR, Mode, PATIENCE, Running, SECOND, Topic, builder, lock, open, options, until,
};
use super::store_conformance::cluster;

const FIRST: ShardId = ShardId(0);

async fn manual(store: Arc<dyn RecordStore>) -> (Arc<ManualElector>, ManualHandle) {
    let stands = store.check_cluster(&cluster()).await.unwrap();
    let (elector, handle) = ManualElector::new(store, &stands);
    (Arc::new(elector), handle)
}

async fn until_led(running: &Running, led: bool) {
    let begun = std::time::Instant::now();
    while running.handle.shards().await.unwrap()[0].led != led {
        assert!(begun.elapsed() < PATIENCE, "never led: {led}");
        tokio::task::yield_now().await;
    }
}

/// The tokens of the runs of one id, over everything that can happen to a process.
#[tokio::test(flavor = "multi_thread")]
async fn l4_tokens_only_grow_over_attempts_terms_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens: Vec<String> = Vec::new();
    for restart in 0..3 {
        let store: Arc<dyn RecordStore> = open(folder.path()).await;
        let stands = store.check_cluster(&cluster()).await.unwrap();
        let calls = Calls::new(|_, number| if number % 2 == 1 { Do::fail() } else { Do::done() });
        let elector = Arc::new(LocalElector::new(Arc::clone(&store), &stands));
        let engine = builder(calls.clone()).store(store).elector(elector).incarnation(stands.incarnation);
        let running = Running::start(engine).await;
        for _ in 0..4 {
            let ended = running.trigger("x", WaitFor::Done).await;
            assert!(matches!(ended, TriggerResult::Ended { .. }), "{ended:?}");
        }
        if restart == 1 {
            running.crash().await;
        } else {
            running.stop().await.unwrap();
        }
        tokens.extend(calls.of("x").into_iter().map(|call| call.token));
    }
    assert!(tokens.len() >= 12, "{tokens:?}");
    for pair in tokens.windows(2) {
        let parsed: Vec<FencingToken> = pair.iter().map(|token| token.parse().unwrap()).collect();
        assert!(pair[0] < pair[1] && parsed[0] < parsed[1], "{pair:?}");
    }
}

/// Without store and elector the calendar makes them grow.
#[tokio::test(flavor = "multi_thread")]
async fn l4_tokens_grow_over_restarts_without_a_store_too() {
    let calls = Calls::done();
    for _ in 0..3 {
        let running = Running::start(builder(calls.clone())).await;
        running.trigger("x", WaitFor::Done).await;
        running.stop().await.unwrap();
    }
    let tokens: Vec<String> = calls.of("x").into_iter().map(|call| call.token).collect();
    assert!(tokens.len() == 3 && tokens.is_sorted() && tokens[0] != tokens[2], "{tokens:?}");
}

/// A store that was restored from a backup: the incarnation is raised, and every token is greater than all before.
#[tokio::test(flavor = "multi_thread")]
async fn l4_a_raised_incarnation_goes_before_the_revision() {
    let mut tokens = Vec::new();
    for incarnation in [1, 2] {
        let store = Arc::new(MemoryStore::new());
        let wanted = ClusterRecord { incarnation, ..cluster() };
        let stands = store.check_cluster(&wanted).await.unwrap();
        let elector = Arc::new(LocalElector::new(store.clone(), &stands));
        let calls = Calls::done();
        let running = Running::start(builder(calls.clone()).store(store).elector(elector)).await;
        running.trigger("x", WaitFor::Done).await;
        running.stop().await.unwrap();
        tokens.push(calls.of("x")[0].token.clone());
    }
    assert!(tokens[0] < tokens[1] && tokens[1].starts_with("0002-"), "{tokens:?}");
}

/// What waits, runs, is delayed and counted in one term is nothing to the next.
#[tokio::test(start_paused = true)]
async fn l1_b92_a_term_begins_with_nothing_of_the_one_before() {
    let (elector, leader) = manual(Arc::new(MemoryStore::new())).await;
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("runs", 1) => Do::Ignore,
        ("fails", 1 | 2) => Do::fail(),
        ("asks", 1) => Do::again(HOUR),
        ("parked", 1) => Do::give_up(),
        _ => Do::done(),
    });
    let options = ReconcilerOptions { workers: 1, concurrency: 1, ..options() };
    let running = Running::begin(builder(calls.clone()).options(options).elector(elector));
    leader.become_leader(FIRST);
    until_led(&running, true).await;
    for id in ["fails", "asks", "parked", "runs", "waits"] {
        running.handle.trigger(id).unwrap();
    }
    calls.until_count("runs", 1).await;
    running.until_state("fails", IdState::Pending).await;
    let before = running.handle.status().await.unwrap().counts;
    assert_eq!((before.running, before.pending, before.delayed, before.parked), (1, 2, 1, 1), "{before:?}");
    leader.lose(FIRST);
    until_led(&running, false).await;
    assert!(running.handle.trigger("waits").is_err(), "nobody leads");
    leader.become_leader(FIRST);
    until_led(&running, true).await;
    let after = running.handle.status().await.unwrap().counts;
    assert_eq!((after.running, after.pending, after.delayed, after.parked, after.admitted), (0, 0, 0, 0, 0));
    for id in ["fails", "asks", "parked", "runs", "waits"] {
        assert_eq!(running.state(id).await, IdState::Idle, "{id}");
        let ended = running.trigger(id, WaitFor::Done).await;
        assert!(matches!(ended, TriggerResult::Ended { .. }), "{id}: {ended:?}");
    }
    let fails: Vec<u32> = calls.of("fails").iter().map(|call| call.attempt).collect();
    assert_eq!(fails, [1, 1], "the count began anew");
    tokio::time::sleep(HOUR * 2).await;
    assert_eq!(calls.count("asks"), 2, "the time that the first term was asked for is forgotten");
    calls.assert_no_overlap();
    running.stop().await.unwrap();
}

/// Says that it was polled again, then blocks its thread until it is let go.
struct Blocks {
    calls: Calls,
    begun: mpsc::Sender<()>,
    gate: Mutex<mpsc::Receiver<()>>,
}

impl Reconciler for Blocks {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        tokio::task::yield_now().await;
        let answer = self.calls.reconcile(run);
        if self.calls.count("x") == 0 {
            let answer = answer.await;
            self.begun.send(()).unwrap();
            let _ = lock(&self.gate).recv_timeout(PATIENCE);
            return answer;
        }
        answer.await
    }
}

/// A run that cannot be cut off at once: the process does not lead again before it has ended, and its late end is not
/// taken for that of a run of the next term.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn l3_q3_the_next_term_waits_for_the_last_run_of_the_one_before() {
    let (elector, leader) = manual(Arc::new(MemoryStore::new())).await;
    let (begun, begins) = mpsc::channel();
    let (gate, opens) = mpsc::channel();
    let calls = Calls::done();
    let blocks = Blocks { calls: calls.clone(), begun, gate: Mutex::new(opens) };
    let topic = Topic::default();
    topic.send(["x".to_owned()]);
    let running = Running::begin(builder(blocks).elector(elector).stream("topic", topic.stream()));
    leader.become_leader(FIRST);
    tokio::task::spawn_blocking(move || begins.recv_timeout(PATIENCE).unwrap()).await.unwrap();
    leader.lose(FIRST);
    until_led(&running, false).await;
    leader.become_leader(FIRST);
    // For as long as the run lasts, nobody leads. A loop that did not wait would lead within this time.
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!running.handle.shards().await.unwrap()[0].led, "it leads while a run of the term before goes on");
    }
    gate.send(()).unwrap();
    until_led(&running, true).await;
    let end = topic.clone();
    until("the event is done", move || end.committed() == 1).await;
    assert_eq!(calls.count("x"), 2, "the cut-off run answered nothing");
    running.stop().await.unwrap();
}

/// Leads while a clock says so, and tells nobody when it does not any more, like a process that stood still.
#[derive(Clone, Default)]
struct Clocked {
    holds: Arc<AtomicBool>,
    terms: Arc<AtomicU64>,
    released: Arc<AtomicU64>,
}

impl Validity for Clocked {
    fn holds(&self) -> bool {
        self.holds.load(Ordering::SeqCst)
    }
}

impl Elector for Clocked {
    fn lead(&self, shard: ShardId) -> BoxFuture<'_, Result<Leadership, ElectorError>> {
        Box::pin(async move {
            while !self.holds() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let revision = 1 + self.terms.fetch_add(1, Ordering::SeqCst);
            Ok(Leadership::new(Term { shard, incarnation: 1, revision }).while_valid(Arc::new(self.clone())))
        })
    }

    fn release(&self, _leadership: Leadership) -> BoxFuture<'_, ()> {
        self.released.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {})
    }

    fn leader(&self, _shard: ShardId) -> Option<Leader> {
        (!self.holds()).then(|| Leader { name: "host-2/17".into(), until: None })
    }

    fn problem(&self) -> Option<String> {
        (!self.holds()).then(|| "etcd does not answer".into())
    }
}

/// The clock is looked at before a source is told and before a run starts: the tokens come too late when the process
/// stood still. A standby is as ready as a leader, and says who leads (B30).
#[tokio::test(flavor = "multi_thread")]
async fn l3_b10_b30_nothing_is_settled_or_started_once_the_clock_says_that_it_is_over() {
    let clock = Clocked::default();
    clock.holds.store(true, Ordering::SeqCst);
    let calls = Calls::new(|run, number| if run.id() == "x" && number == 1 { Do::Hold } else { Do::done() });
    let topic = Topic::default();
    topic.send(["x".to_owned()]);
    let running =
        Running::start(builder(calls.clone()).elector(Arc::new(clock.clone())).stream("topic", topic.stream())).await;
    calls.until_count("x", 1).await;
    clock.holds.store(false, Ordering::SeqCst);
    topic.send(["y".to_owned()]);
    calls.release("x");
    let released = clock.released.clone();
    until("it is given back", move || released.load(Ordering::SeqCst) == 1).await;
    assert_eq!((topic.committed(), calls.count("y")), (0, 0));
    let shard = running.handle.shards().await.unwrap().remove(0);
    assert_eq!((shard.led, shard.leader.as_deref()), (false, Some("host-2/17")));
    let health = running.handle.health();
    assert!(health.live && health.ready && health.problems == ["etcd does not answer"], "{health:?}");
    assert!(running.explain("x").await.why.contains("led by host-2/17"));
    clock.holds.store(true, Ordering::SeqCst);
    let end = topic.clone();
    until("both are done", move || end.committed() == 2).await;
    assert_eq!((calls.count("x"), calls.count("y")), (2, 1), "in the next term");
    running.stop().await.unwrap();
}

/// B20: 10,000 events while leadership comes and goes 50 times, in both ways, at moments of chance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b20_no_event_is_lost_while_leadership_comes_and_goes() {
    let mut chance = super::support::Chance::new();
    let (elector, leader) = manual(Arc::new(MemoryStore::new())).await;
    let calls = Calls::new(|_, number| if number == 1 { Do::fail() } else { Do::done() });
    let mut options = ReconcilerOptions { concurrency: 16, ..options() };
    options.retry.initial = Duration::from_millis(1);
    let limits = evenkeel::Limits { admitted: 100, ..evenkeel::Limits::default() };
    let timing = evenkeel::Timing {
        min_requeue: Duration::from_millis(1),
        resolution: Duration::from_millis(1),
        ..evenkeel::Timing::default()
    };
    let topic = Topic::default();
    let engine = builder(Yields(calls.clone())).options(options).limits(limits).timing(timing);
    let running = Running::begin(engine.elector(elector).stream("topic", topic.stream()));
    let total = 10_000;
    topic.send((0..total).map(|number| format!("id-{number}")));
    for _ in 0..50 {
        leader.become_leader(FIRST);
        until_led(&running, true).await;
        tokio::time::sleep(Duration::from_micros(chance.below(8_000))).await;
        let committed = topic.committed();
        assert!((0..committed).all(|number| calls.count(&format!("id-{number}")) > 0), "{committed} is too far");
        if chance.below(2) == 0 {
            leader.lose(FIRST);
        } else {
            leader.step_down(FIRST);
        }
        tokio::time::timeout(PATIENCE, leader.released(FIRST)).await.expect("it is given back");
    }
    leader.become_leader(FIRST);
    let end = topic.clone();
    until("everything is committed", move || end.committed() == total).await;
    assert_eq!(calls.ids().len() as u64, total);
    calls.assert_no_overlap();
    running.stop().await.unwrap();
}

/// Yields once, so that every run has a task of its own.
struct Yields(Calls);

impl Reconciler for Yields {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        tokio::task::yield_now().await;
        self.0.reconcile(run).await
    }
}

/// Dropped in mid-flight, the engine cuts everything off: runs too, and the writer that tries again and again.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_dropped_leaves_nothing_running() {
    let store = Faulty::durable();
    let calls = Calls::new(|run, _| if run.id() == "given-up" { Do::give_up() } else { Do::Ignore });
    let (feed, events) = Feed::new(Class::Event);
    let elector = store.elector().await;
    let engine = builder(calls.clone()).store(Arc::new(store.clone())).elector(elector).stream("events", feed);
    let running = Running::start(engine).await;
    store.set(Mode::Refuses);
    for id in ["a", "b", "given-up"] {
        events.send(id);
    }
    until("all have begun", || calls.all().len() == 3).await;
    running.crash().await;
    until("nothing runs", || calls.running() == 0).await;
    store.set(Mode::Well);
    tokio::time::sleep(SECOND).await;
    assert!(store.commits().is_empty(), "nobody writes any more: {:?}", store.commits());
}

/// A shard that moves away while another stays: what was asked of it is answered, and the other goes on (L1).
#[tokio::test(start_paused = true)]
async fn l1_a_shard_goes_and_the_other_stays() {
    let (elector, leader) = manual(Arc::new(MemoryStore::new())).await;
    let calls = Calls::new(|run, _| if run.id().starts_with("holds") { Do::Hold } else { Do::done() });
    let sharding = Sharding { shards: 2, ..Sharding::default() };
    let hasher = |id: &str| id.rsplit('-').next().and_then(|number| number.parse().ok());
    let engine = builder(calls.clone()).sharding(sharding).hasher(hasher).elector(elector);
    let running = Running::begin(engine);
    leader.become_leader(ShardId(0));
    leader.become_leader(ShardId(1));
    until("both are led", || running.handle.trigger("a-0").is_ok() && running.handle.trigger("a-1").is_ok()).await;
    let handle = running.handle.clone();
    let asked = tokio::spawn(async move { handle.trigger_batch(vec!["holds-0".into()], WaitFor::Done).await });
    calls.until_count("holds-0", 1).await;
    leader.lose(ShardId(0));
    let answer = asked.await.unwrap().remove(0);
    assert!(matches!(answer.result, TriggerResult::Unavailable { .. }), "{answer:?}");
    assert!(matches!(running.trigger("b-0", WaitFor::Done).await, TriggerResult::Unavailable { .. }));
    assert!(matches!(running.trigger("b-1", WaitFor::Done).await, TriggerResult::Ended { .. }));
    let status = running.handle.status().await.unwrap();
    assert_eq!((status.led, status.counts.running), (1, 0));
    assert!(!running.explain("b-0").await.led);
    running.stop().await.unwrap();
}

/// A store that does not answer at the start of a term holds up neither a stop nor a step down.
#[tokio::test(start_paused = true)]
async fn b89_a_term_that_cannot_begin_can_be_stopped() {
    for by_leader in [false, true] {
        let store = Faulty::durable();
        let (elector, leader) = manual(Arc::new(MemoryStore::new())).await;
        store.set(Mode::HangsReading);
        let running = Running::begin(builder(Calls::done()).store(Arc::new(store)).elector(elector));
        leader.become_leader(FIRST);
        tokio::time::sleep(SECOND).await;
        assert!(running.handle.trigger("x").is_err());
        if by_leader {
            leader.step_down(FIRST);
            tokio::time::timeout(HOUR, leader.released(FIRST)).await.expect("given back");
        }
        running.stop().await.unwrap();
    }
}

/// A store that is away for a while at the start of a term is waited for; one that is broken ends the engine.
#[tokio::test(start_paused = true)]
async fn b80_a_store_that_is_away_at_the_start_is_waited_for() {
    let store = Faulty::durable();
    store.set(Mode::Unknown);
    let calls = Calls::done();
    let elector = store.elector().await;
    let running = Running::begin(builder(calls.clone()).store(Arc::new(store.clone())).elector(elector));
    tokio::time::sleep(60 * SECOND).await;
    let health = running.handle.health();
    assert!(health.live && !health.ready, "{health:?}");
    assert!(health.problems[0].contains("owed records cannot be read: the store did not answer"), "{health:?}");
    store.set(Mode::Well);
    until("it leads", || running.handle.trigger("x").is_ok()).await;
    calls.until_count("x", 1).await;
    assert!(running.handle.health().ready);
    running.stop().await.unwrap();

    let broken = Faulty::durable();
    broken.set(Mode::Unusable);
    let elector = broken.elector().await;
    let engine: Engine = builder(Calls::done()).store(Arc::new(broken)).elector(elector).build().unwrap();
    let error = engine.run(std::future::pending()).await.unwrap_err();
    assert!(matches!(error, EngineError::Store(_)) && error.to_string().contains("the disk is broken"), "{error}");
}
