//! How an engine stops (L5, B89, B91): in order, in time, whatever hangs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::id::ShardId;
use evenkeel::{
    Action, BoxFuture, Builder, Class, DeadLetter, DeadLetterError, Elector, ElectorError, Event, EventStream, Events,
    Failure, Leadership, Letter, Limits, OwedRecord, Reconciler, ReconcilerOptions, RecordChange, RecordStore, Retry,
    Run, Source, StoreError, StreamError, Term, Timing, Tracker,
};
use tokio::time::Instant;

use super::engine_world::{
    Calls, Do, Faulty, Feed, HOUR, MS, Mode, Running, SECOND, builder, lock, options, plain_retry, until,
};

/// What happened, in order.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<&'static str>>>);

impl Order {
    fn note(&self, what: &'static str) {
        lock(&self.0).push(what);
    }

    fn all(&self) -> Vec<&'static str> {
        lock(&self.0).clone()
    }

    fn has(&self, what: &str) -> bool {
        self.all().contains(&what)
    }
}

/// Sends one event, and notes the end of intake and what is done.
struct Noted(Order, &'static str);

impl Tracker for Noted {
    fn done(&self, _: &[u64]) {
        self.0.note(self.1);
    }
}

impl EventStream for Noted {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        struct Ended(Order);
        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.note("intake");
            }
        }
        let _ended = Ended(self.0.clone());
        for (id, done) in [("finishes", "run settled"), ("hangs", "record settled")] {
            let source = events.open(Source {
                stream: Arc::clone(events.name()),
                class: Class::Event,
                partition: None,
                tracker: Some(Arc::new(Noted(self.0.clone(), done))),
            });
            events.send_event(&Event { id, receipt: evenkeel::id::Receipt::new(source, 0), trace: None }).await?;
        }
        std::future::pending().await
    }
}

/// One run finishes within the drain, the other has to be cancelled.
struct NotedRuns(Order);

impl Reconciler for NotedRuns {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        self.0.note("run begun");
        if run.id() == "hangs" {
            run.cancelled().await;
            self.0.note("run cancelled");
            return Err(Failure::transient("cancelled"));
        }
        let asked = self.0.clone();
        until("the stop is asked for", move || asked.has("asked")).await;
        tokio::time::sleep(SECOND).await;
        self.0.note("run finished");
        Ok(Action::done())
    }
}

struct NotedStore(Order, Faulty);

impl RecordStore for NotedStore {
    fn is_durable(&self) -> bool {
        true
    }

    fn check_cluster<'a>(
        &'a self,
        wanted: &'a evenkeel::ClusterRecord,
    ) -> BoxFuture<'a, Result<evenkeel::ClusterRecord, StoreError>> {
        self.1.check_cluster(wanted)
    }

    fn next_revision(&self, shard: ShardId) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.1.next_revision(shard)
    }

    fn load<'a>(
        &'a self,
        shard: ShardId,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwedRecord>, StoreError>> {
        self.1.load(shard, after, limit)
    }

    fn commit<'a>(&'a self, term: Term, changes: &'a [RecordChange]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            tokio::time::sleep(100 * MS).await;
            self.0.note("records");
            self.1.commit(term, changes).await
        })
    }
}

struct NotedElector(Order);

impl Elector for NotedElector {
    fn lead(&self, shard: ShardId) -> BoxFuture<'_, Result<Leadership, ElectorError>> {
        Box::pin(async move { Ok(Leadership::new(Term { shard, incarnation: 1, revision: 1 })) })
    }

    fn release(&self, leadership: Leadership) -> BoxFuture<'_, ()> {
        assert!(!leadership.ended.is_cancelled());
        self.0.note("released");
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test(start_paused = true)]
async fn b91_l5_a_stop_goes_through_intake_runs_records_and_leadership_in_this_order() {
    let order = Order::default();
    let engine = builder(NotedRuns(order.clone()))
        .store(Arc::new(NotedStore(order.clone(), Faulty::durable())))
        .elector(Arc::new(NotedElector(order.clone())))
        .stream("events", Noted(order.clone(), ""));
    let mut running = Running::start(engine).await;
    let begun = order.clone();
    until("both run", move || begun.all().len() == 2).await;
    order.note("asked");
    running.ask();
    running.stop().await.unwrap();
    order.note("engine ended");
    let wanted = [
        "run begun",
        "run begun",
        "asked",
        "intake",
        "run finished",
        "run settled",
        "run cancelled",
        "records",
        "record settled",
        "released",
        "engine ended",
    ];
    assert_eq!(order.all(), wanted);
}

/// Never answers.
struct Hangs;

impl DeadLetter for Hangs {
    fn send(&self, _: Letter) -> BoxFuture<'_, Result<(), DeadLetterError>> {
        Box::pin(std::future::pending())
    }
}

/// Leads once, and hangs in whatever is asked of it from then on.
struct HangingElector(bool);

impl Elector for HangingElector {
    fn lead(&self, shard: ShardId) -> BoxFuture<'_, Result<Leadership, ElectorError>> {
        let leads = self.0;
        Box::pin(async move {
            if !leads {
                std::future::pending::<()>().await;
            }
            Ok(Leadership::new(Term { shard, incarnation: 1, revision: 1 }))
        })
    }

    fn release(&self, _: Leadership) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// The situations of B89. Each gets an engine, and says when the stop is to come and how many runs it has then.
async fn situation(name: &str) -> Running {
    let store = Faulty::durable();
    let calls = Calls::new(|run, _| match run.id().split('-').next().unwrap() {
        "hangs" => Do::Ignore,
        "obeys" => Do::Hold,
        "later" => Do::again(HOUR),
        "fails" => Do::fail(),
        "hopeless" => Do::give_up(),
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let retry = Retry { initial: HOUR, max_delay: HOUR, ..plain_retry() };
    let options = ReconcilerOptions { retry, timeout: None, cancel_grace: SECOND, ..options() };
    let engine: Builder = builder(calls.clone())
        .options(options)
        .limits(Limits { admitted: 10, ..Limits::default() })
        .timing(Timing { drain: 4 * SECOND, ..Timing::default() })
        .store(Arc::new(store.clone()))
        .stream("events", feed);
    let plain = store.elector().await;
    let engine = match name {
        "no leader" => return Running::begin(engine.elector(Arc::new(HangingElector(false)))),
        "leadership hangs" => engine.elector(Arc::new(HangingElector(true))),
        "letters hang" => engine.elector(plain).dead_letter("events", Arc::new(Hangs)),
        _ => engine.elector(plain),
    };
    let running = Running::start(engine).await;
    let (ids, mode): (&[&str], Mode) = match name {
        "a run hangs" => (&["hangs-1", "obeys-1"], Mode::Well),
        "a requested time" => (&["later-1"], Mode::Well),
        "a retry" => (&["fails-1"], Mode::Well),
        "a full shard" => (
            &[
                "hangs-1", "obeys-1", "obeys-2", "obeys-3", "obeys-4", "obeys-5", "obeys-6", "obeys-7", "obeys-8",
                "obeys-9", "held-1", "held-2",
            ],
            Mode::Well,
        ),
        "the store refuses" => (&["fails-1", "hopeless-1"], Mode::Refuses),
        "the store hangs" => (&["fails-1", "hopeless-1", "obeys-1"], Mode::Hangs),
        "letters hang" => (&["hopeless-1"], Mode::Well),
        "all at once" => (&["hangs-1", "fails-1", "later-1", "hopeless-1"], Mode::Hangs),
        _ => (&[], Mode::Well),
    };
    store.set(mode);
    ids.iter().for_each(|id| _ = events.send(id));
    let wanted = ids.iter().filter(|id| !id.starts_with("held")).count();
    until("they have begun", || calls.all().len() >= wanted).await;
    running
}

#[tokio::test(start_paused = true)]
async fn b89_a_stop_is_heard_in_every_situation() {
    // The drain, the grace, the last writes and giving the shard back, one after the other.
    let bound = 4 * SECOND + SECOND + 5 * SECOND + 5 * SECOND + SECOND;
    for name in [
        "idle",
        "no leader",
        "leadership hangs",
        "a run hangs",
        "a requested time",
        "a retry",
        "a full shard",
        "the store refuses",
        "the store hangs",
        "letters hang",
        "all at once",
    ] {
        for by_handle in [false, true] {
            let mut running = situation(name).await;
            let began = Instant::now();
            if by_handle {
                running.handle.drain();
            } else {
                running.ask();
            }
            let ended = tokio::time::timeout(10 * bound, &mut running.task).await.expect(name).unwrap();
            ended.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(began.elapsed() <= bound, "{name}: {:?}", began.elapsed());
            if matches!(name, "idle" | "no leader" | "a requested time" | "a retry") {
                assert!(began.elapsed() < SECOND, "{name} has nothing to wait for: {:?}", began.elapsed());
            }
        }
    }
}

/// What is recorded before the stop is told, so that a store that comes back within the last writes keeps it all.
#[tokio::test(start_paused = true)]
async fn b89_d12_a_store_that_comes_back_during_the_stop_gets_everything() {
    let store = Faulty::durable();
    let calls = Calls::new(|_, _| Do::Hold);
    let (feed, events) = Feed::new(Class::Event);
    let engine = builder(calls.clone()).store(Arc::new(store.clone())).elector(store.elector().await);
    let mut running = Running::start(engine.stream("events", feed)).await;
    (0..20).for_each(|number| _ = events.send(&format!("id-{number}")));
    until("all run", || calls.running() == 20).await;
    store.set(Mode::Refuses);
    running.ask();
    tokio::time::sleep(6 * SECOND).await;
    store.set(Mode::Well);
    running.stop().await.unwrap();
    assert_eq!((store.records().await.len(), events.low_water()), (20, 20));
}

/// Nothing starts once a stop has begun, and who asks is told (L5).
#[tokio::test(start_paused = true)]
async fn l5_nothing_is_taken_and_nothing_starts_once_a_stop_has_begun() {
    let calls = Calls::new(|run, _| if run.id() == "holds" { Do::Hold } else { Do::done() });
    let (feed, events) = Feed::new(Class::Event);
    let mut running = Running::start(builder(calls.clone()).stream("events", feed)).await;
    events.send("holds");
    calls.until_count("holds", 1).await;
    running.ask();
    tokio::time::sleep(MS).await;
    assert!(running.handle.trigger("late").is_err());
    let late = running.trigger("late", evenkeel::engine::view::WaitFor::Done).await;
    assert!(matches!(late, evenkeel::engine::view::TriggerResult::Unavailable { .. }), "{late:?}");
    let explained = running.explain("holds").await;
    assert!(explained.led, "it still answers: {explained:?}");
    calls.release("holds");
    running.stop().await.unwrap();
    assert_eq!((calls.all().len(), events.low_water()), (1, 1));
}

/// Runs are told to stop `cancel_grace` before the end of the drain, and not before.
#[tokio::test(start_paused = true)]
async fn l5_runs_may_use_the_drain() {
    for (drain, told) in [(30, 20), (10, 0), (4, 0)] {
        let calls = Calls::new(|_, _| Do::Hold);
        let options = ReconcilerOptions { timeout: None, cancel_grace: 10 * SECOND, ..options() };
        let timing = Timing { drain: Duration::from_secs(drain), ..Timing::default() };
        let running = Running::start(builder(calls.clone()).options(options).timing(timing)).await;
        running.handle.trigger("x").unwrap();
        calls.until_count("x", 1).await;
        let began = Instant::now();
        running.stop().await.unwrap();
        let took = calls.of("x")[0].ended.unwrap() - began;
        assert!(took >= told * SECOND && took < told * SECOND + 100 * MS, "drain {drain}: {took:?}");
    }
}
