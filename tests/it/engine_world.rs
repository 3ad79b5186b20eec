//! What the tests of the engine share: a reconciler that does what a test says and remembers its calls, a stream that
//! owes its events as Kafka does, a store that can be told to fail, and an engine that is started and stopped.
//!
//! Works in real and in virtual time alike: what is waited for is looked at again and again, never slept for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel::engine::view::{Explanation, IdState, TriggerAnswer, TriggerResult, WaitFor};
use evenkeel::id::{Receipt, ShardId};
use evenkeel::local::{FileStore, LocalElector, MemoryStore};
use evenkeel::{
    Action, BoxFuture, Builder, Cause, Class, ClusterRecord, Engine, EngineError, Event, EventStream, Events, Failure,
    Handle, OwedRecord, Reconciler, ReconcilerOptions, RecordChange, RecordStore, Retry, Run, Sent, Source, StoreError,
    StreamError, Term, Timing, Tracker,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::store_conformance::cluster;

/// No test waits longer. In virtual time it is over at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Waits until something is so.
#[track_caller]
pub(crate) fn until<F: FnMut() -> bool>(what: &str, mut so: F) -> impl Future<Output = ()> + use<F> {
    let (what, place) = (what.to_owned(), std::panic::Location::caller());
    async move {
        let begun = std::time::Instant::now();
        while !so() {
            assert!(begun.elapsed() < PATIENCE, "{place}: not within {PATIENCE:?}: {what}");
            tokio::time::sleep(MS).await;
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a run does.
pub(crate) enum Do {
    Answer(Result<Action, Failure>),
    /// Waits for [`Calls::release`]; fails when it is cancelled before.
    Hold,
    /// Waits for [`Calls::release`], whatever is said to it.
    Ignore,
    Panic(Box<dyn FnOnce() + Send>),
}

impl Do {
    pub(crate) fn done() -> Self {
        Self::Answer(Ok(Action::done()))
    }

    pub(crate) fn again(delay: Duration) -> Self {
        Self::Answer(Ok(Action::done().requeue_after(delay)))
    }

    pub(crate) fn fail() -> Self {
        Self::Answer(Err(Failure::transient("no route")))
    }

    pub(crate) fn give_up() -> Self {
        Self::Answer(Err(Failure::terminal("no such zone")))
    }
}

/// One run, as the reconciler saw it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) token: String,
    pub(crate) key: String,
    pub(crate) causes: Vec<Cause>,
    pub(crate) more_causes: u32,
    pub(crate) begun: Instant,
    pub(crate) ended: Option<Instant>,
}

type Script = Box<dyn Fn(&Run, u32) -> Do + Send + Sync>;

struct World {
    script: Script,
    calls: Mutex<Vec<Call>>,
    counts: Mutex<HashMap<String, u32>>,
    gates: Mutex<BTreeMap<String, Arc<Notify>>>,
}

/// Does what a function of the run and of the number of calls of its id says, and remembers every call.
#[derive(Clone)]
pub(crate) struct Calls(Arc<World>);

impl Calls {
    pub(crate) fn new(script: impl Fn(&Run, u32) -> Do + Send + Sync + 'static) -> Self {
        let (calls, counts, gates) = Default::default();
        let world = World { script: Box::new(script), calls, counts, gates };
        Self(Arc::new(world))
    }

    pub(crate) fn done() -> Self {
        Self::new(|_, _| Do::done())
    }

    pub(crate) fn all(&self) -> Vec<Call> {
        lock(&self.0.calls).clone()
    }

    pub(crate) fn of(&self, id: &str) -> Vec<Call> {
        self.all().into_iter().filter(|call| call.id == id).collect()
    }

    pub(crate) fn count(&self, id: &str) -> usize {
        lock(&self.0.counts).get(id).map_or(0, |count| *count as usize)
    }

    pub(crate) fn ids(&self) -> BTreeSet<String> {
        lock(&self.0.counts).keys().cloned().collect()
    }

    pub(crate) fn running(&self) -> usize {
        lock(&self.0.calls).iter().filter(|call| call.ended.is_none()).count()
    }

    /// Lets the run of this id that holds end, or the next one that does.
    pub(crate) fn release(&self, id: &str) {
        self.gate(id).notify_one();
    }

    #[track_caller]
    pub(crate) fn until_count(&self, id: &str, count: usize) -> impl Future<Output = ()> + use<> {
        let (calls, id) = (self.clone(), id.to_owned());
        until(&format!("{count} runs of {id}"), move || calls.count(&id) >= count)
    }

    /// Fails if two runs of one id were under way at a time (Q3).
    #[track_caller]
    pub(crate) fn assert_no_overlap(&self) {
        let mut last: BTreeMap<String, Option<Instant>> = BTreeMap::new();
        for call in self.all() {
            if let Some(ended) = last.insert(call.id.clone(), call.ended) {
                assert!(ended.is_some_and(|ended| ended <= call.begun), "two runs of {} at a time", call.id);
            }
        }
    }

    fn gate(&self, id: &str) -> Arc<Notify> {
        Arc::clone(lock(&self.0.gates).entry(id.to_owned()).or_default())
    }

    fn begin(&self, run: &Run) -> (u32, Ending) {
        let mut calls = lock(&self.0.calls);
        let mut counts = lock(&self.0.counts);
        let number = counts.entry(run.id().to_owned()).or_default();
        *number += 1;
        calls.push(Call {
            id: run.id().to_owned(),
            attempt: run.attempt(),
            token: run.fencing_token().to_string(),
            key: run.key(),
            causes: run.causes(),
            more_causes: run.more_causes(),
            begun: Instant::now(),
            ended: None,
        });
        (*number, Ending(self.clone(), calls.len() - 1))
    }
}

/// Marks the end of a call, also of one that is dropped.
struct Ending(Calls, usize);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0.0.calls)[self.1].ended = Some(Instant::now());
    }
}

impl Reconciler for Calls {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let (number, _ending) = self.begin(run);
        let what = (self.0.script)(run, number);
        let gate = self.gate(run.id());
        match what {
            Do::Answer(answer) => answer,
            Do::Hold => tokio::select! {
                () = gate.notified() => Ok(Action::done()),
                reason = run.cancelled() => Err(Failure::transient(format!("{reason:?}"))),
            },
            Do::Ignore => {
                gate.notified().await;
                Ok(Action::done())
            }
            Do::Panic(panic) => {
                panic();
                unreachable!("it panics")
            }
        }
    }
}

/// A stream whose events are owed until the engine says that they are done, in its own positions from 0.
pub(crate) struct Feed {
    events: mpsc::UnboundedReceiver<String>,
    done: Arc<Done>,
    class: Class,
}

/// Feeds a [`Feed`], and hears what is done.
#[derive(Clone)]
pub(crate) struct Feeder {
    events: mpsc::UnboundedSender<String>,
    sent: Arc<AtomicU64>,
    done: Arc<Done>,
}

#[derive(Default)]
struct Done(Mutex<Positions>);

#[derive(Default)]
struct Positions {
    low_water: u64,
    above: BTreeSet<u64>,
    twice: Vec<u64>,
}

impl Tracker for Done {
    fn done(&self, positions: &[u64]) {
        lock(&self.0).add(positions);
    }
}

impl Positions {
    fn add(&mut self, positions: &[u64]) {
        for position in positions {
            if *position < self.low_water || !self.above.insert(*position) {
                self.twice.push(*position);
            }
        }
        while self.above.remove(&self.low_water) {
            self.low_water += 1;
        }
    }
}

impl Feed {
    pub(crate) fn new(class: Class) -> (Self, Feeder) {
        let (sender, events) = mpsc::unbounded_channel();
        let done = Arc::new(Done::default());
        (Self { events, done: Arc::clone(&done), class }, Feeder { events: sender, sent: Arc::default(), done })
    }
}

impl Feeder {
    /// Sends an event and gives its position.
    pub(crate) fn send(&self, id: &str) -> u64 {
        self.events.send(id.to_owned()).unwrap();
        self.sent.fetch_add(1, Ordering::SeqCst)
    }

    /// The position below which everything is done: the offset that would be committed.
    #[track_caller]
    pub(crate) fn low_water(&self) -> u64 {
        let done = lock(&self.done.0);
        assert!(done.twice.is_empty(), "said to be done twice: {:?}", done.twice);
        done.low_water
    }

    /// What is done above that.
    pub(crate) fn done_above(&self) -> Vec<u64> {
        lock(&self.done.0).above.iter().copied().collect()
    }

    #[track_caller]
    pub(crate) fn until_low_water(&self, position: u64) -> impl Future<Output = ()> + use<> {
        let feeder = self.clone();
        until(&format!("everything below {position} is done"), move || feeder.low_water() >= position)
    }
}

impl EventStream for Feed {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        let source = events.open(Source {
            stream: Arc::clone(events.name()),
            class: self.class,
            partition: Some(("topic".into(), 0)),
            tracker: Some(Arc::clone(&self.done) as _),
        });
        let mut position = 0;
        while let Some(id) = self.events.recv().await {
            let event = Event { id: &id, receipt: Receipt::new(source, position), trace: None };
            events.send_event(&event).await?;
            position += 1;
        }
        events.stopping().await;
        Ok(())
    }

    fn class(&self) -> Class {
        self.class
    }
}

/// A log of events that outlives engines and terms, as a topic of Kafka does: read again from what is committed, and
/// committed up to what is done.
#[derive(Clone, Default)]
pub(crate) struct Topic(Arc<Log>);

#[derive(Default)]
struct Log {
    events: Mutex<Vec<String>>,
    grown: Notify,
    /// What is done, and under which assignment.
    done: Mutex<(u64, Positions)>,
}

/// Hears what is done of one assignment.
struct Assignment {
    log: Arc<Log>,
    number: u64,
}

impl Tracker for Assignment {
    fn done(&self, positions: &[u64]) {
        let (current, done) = &mut *lock(&self.log.done);
        if *current == self.number {
            done.add(positions);
        }
    }
}

impl Topic {
    pub(crate) fn send(&self, ids: impl IntoIterator<Item = String>) {
        lock(&self.0.events).extend(ids);
        self.0.grown.notify_waiters();
    }

    /// The offset below which everything is done.
    #[track_caller]
    pub(crate) fn committed(&self) -> u64 {
        let (_, done) = &*lock(&self.0.done);
        assert!(done.twice.is_empty(), "said to be done twice: {:?}", done.twice);
        done.low_water
    }

    /// A reader of the whole topic.
    pub(crate) fn stream(&self) -> Self {
        self.clone()
    }

    /// Begins a new assignment: what was done above the committed offset is forgotten, and read again.
    fn assign(&self) -> (Assignment, u64) {
        let (current, done) = &mut *lock(&self.0.done);
        *current += 1;
        *done = Positions { low_water: done.low_water, ..Positions::default() };
        (Assignment { log: Arc::clone(&self.0), number: *current }, done.low_water)
    }

    async fn event(&self, position: u64) -> String {
        loop {
            let grown = self.0.grown.notified();
            if let Some(id) = lock(&self.0.events).get(usize::try_from(position).unwrap()) {
                return id.clone();
            }
            grown.await;
        }
    }

    async fn hand_over(&self, events: &Events) -> Result<(), StreamError> {
        let (assignment, mut position) = self.assign();
        let source = events.open(Source {
            stream: Arc::clone(events.name()),
            class: Class::Event,
            partition: Some(("topic".into(), 0)),
            tracker: Some(Arc::new(assignment)),
        });
        loop {
            let id = self.event(position).await;
            let event = Event { id: &id, receipt: Receipt::new(source, position), trace: None };
            if !matches!(events.send_event(&event).await?, Sent::Taken) {
                return Ok(());
            }
            position += 1;
        }
    }
}

impl EventStream for Topic {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        let mut led = events.shards();
        loop {
            let _ = led.wait_for(|led| !led.is_empty()).await;
            tokio::select! {
                biased;
                _ = led.changed() => {}
                handed = self.hand_over(&events) => handed?,
            }
        }
    }
}

/// How a store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    #[default]
    Well,
    /// Refuses writes.
    Refuses,
    /// Does not know whether it wrote.
    Unknown,
    /// Never answers a write.
    Hangs,
    /// Never answers a question either.
    HangsReading,
    /// Works again in a new process only.
    Unusable,
}

/// A store with its faults. Says that it is durable where told so: what it keeps then outlives the engine.
#[derive(Clone)]
pub(crate) struct Faulty {
    inner: Arc<dyn RecordStore>,
    durable: bool,
    mode: Arc<Mutex<Mode>>,
    commits: Arc<Mutex<Vec<RecordChange>>>,
}

impl Faulty {
    pub(crate) fn durable() -> Self {
        Self::over(Arc::new(MemoryStore::new()), true)
    }

    pub(crate) fn memory() -> Self {
        Self::over(Arc::new(MemoryStore::new()), false)
    }

    pub(crate) fn over(inner: Arc<dyn RecordStore>, durable: bool) -> Self {
        Self { inner, durable, mode: Arc::default(), commits: Arc::default() }
    }

    pub(crate) fn set(&self, mode: Mode) {
        *lock(&self.mode) = mode;
    }

    /// What was written, in order.
    pub(crate) fn commits(&self) -> Vec<RecordChange> {
        lock(&self.commits).clone()
    }

    /// What stands in it.
    pub(crate) async fn records(&self) -> BTreeMap<String, OwedRecord> {
        let records = self.inner.load(ShardId(0), None, usize::MAX).await.unwrap();
        records.into_iter().map(|record| (record.id.clone(), record)).collect()
    }

    pub(crate) async fn elector(&self) -> Arc<LocalElector> {
        let stands = self.inner.check_cluster(&cluster()).await.unwrap();
        Arc::new(LocalElector::new(Arc::clone(&self.inner), &stands))
    }

    async fn fault(&self, reading: bool) -> Result<(), StoreError> {
        let mode = *lock(&self.mode);
        match mode {
            Mode::HangsReading => std::future::pending().await,
            Mode::Well => Ok(()),
            Mode::Unusable => Err(StoreError::Unusable("the disk is broken".into())),
            Mode::Unknown => Err(StoreError::Unknown("no answer".into())),
            _ if reading => Ok(()),
            Mode::Refuses => Err(StoreError::Refused("the disk is full".into())),
            Mode::Hangs => std::future::pending().await,
        }
    }
}

impl RecordStore for Faulty {
    fn is_durable(&self) -> bool {
        self.durable
    }

    fn check_cluster<'a>(&'a self, wanted: &'a ClusterRecord) -> BoxFuture<'a, Result<ClusterRecord, StoreError>> {
        self.inner.check_cluster(wanted)
    }

    fn next_revision(&self, shard: ShardId) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.inner.next_revision(shard)
    }

    fn load<'a>(
        &'a self,
        shard: ShardId,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwedRecord>, StoreError>> {
        Box::pin(async move {
            self.fault(true).await?;
            self.inner.load(shard, after, limit).await
        })
    }

    fn commit<'a>(&'a self, term: Term, changes: &'a [RecordChange]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.fault(false).await?;
            self.inner.commit(term, changes).await?;
            lock(&self.commits).extend_from_slice(changes);
            Ok(())
        })
    }
}

/// Opens the file store of a folder, as soon as the one before has let go of it.
pub(crate) async fn open(folder: &std::path::Path) -> Arc<FileStore> {
    let begun = std::time::Instant::now();
    loop {
        match FileStore::open(folder).await {
            Ok(store) => return Arc::new(store),
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(MS).await;
    }
}

/// Options with short times and a known backoff: 1 s, 2 s, 4 s …
pub(crate) fn options() -> ReconcilerOptions {
    ReconcilerOptions { retry: plain_retry(), ..ReconcilerOptions::default() }
}

pub(crate) fn plain_retry() -> Retry {
    Retry { initial: SECOND, factor: 2.0, max_delay: 60 * SECOND, jitter: 0.0, max_retries: Some(3) }
}

/// A builder with these options and a timing that stops quickly.
pub(crate) fn builder(reconciler: impl Reconciler) -> Builder {
    let timing = Timing { drain: 4 * SECOND, ..Timing::default() };
    let options = ReconcilerOptions { cancel_grace: SECOND, ..options() };
    Engine::builder("test").reconciler(reconciler).options(options).timing(timing)
}

/// An engine that runs.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) task: tokio::task::JoinHandle<Result<(), EngineError>>,
}

impl Running {
    /// Starts it and waits until it leads all its shards.
    pub(crate) async fn start(builder: Builder) -> Self {
        let running = Self::begin(builder);
        let handle = running.handle.clone();
        let led = async || handle.shards().await.is_ok_and(|shards| shards.iter().all(|shard| shard.led));
        while !led().await {
            tokio::task::yield_now().await;
        }
        running
    }

    /// Starts it.
    pub(crate) fn begin(builder: Builder) -> Self {
        let engine = builder.build().unwrap();
        let handle = engine.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(engine.run(async move { _ = stopped.await }));
        Self { handle, stop: Some(stop), task }
    }

    /// Asks for a stop, as a signal does.
    pub(crate) fn ask(&mut self) {
        self.stop.take();
    }

    /// Stops it in order.
    pub(crate) async fn stop(mut self) -> Result<(), EngineError> {
        self.ask();
        tokio::time::timeout(HOUR, &mut self.task).await.expect("a stop ends").unwrap()
    }

    /// Cuts it off, as a crash does; nothing is written.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(crate) async fn explain(&self, id: &str) -> Explanation {
        self.handle.explain(id).await.unwrap()
    }

    pub(crate) async fn state(&self, id: &str) -> IdState {
        self.explain(id).await.state
    }

    pub(crate) async fn until_state(&self, id: &str, state: IdState) {
        let begun = std::time::Instant::now();
        loop {
            let explained = self.explain(id).await;
            if explained.state == state {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "never {state:?}: {explained:?}");
            tokio::time::sleep(MS).await;
        }
    }

    pub(crate) async fn trigger(&self, id: &str, wait: WaitFor) -> TriggerResult {
        let mut answers: Vec<TriggerAnswer> = self.handle.trigger_batch(vec![id.to_owned()], wait).await;
        answers.remove(0).result
    }
}
