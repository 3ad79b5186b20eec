//! An engine to measure: no-op reconciles that are counted, streams that hand over what they are told, metrics that are
//! collected while it runs.
//!
//! Whoever waits is woken, nobody looks again and again: that would be counted as the engine's time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenkeel::contract::{Class, Source};
use evenkeel::id::{Receipt, SourceId};
use evenkeel::{
    Action, Engine, EngineError, Event, EventStream, Events, Failure, Handle, Limits, Reconciler, Run, Sharding,
    StreamError,
};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// Events that a stream hands over at once.
const BATCH: usize = 256;
/// The most shards that a case has.
const SHARDS: usize = 2;
/// Twice what any case needs.
pub(crate) const LIMITS: Limits = Limits { admitted: 2_000_000, timers: 2_000_000, owed_records: 1_000_000 };

/// The runs of one shard, in a cache line that it shares with nobody.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    runs: AtomicU64,
    goal: AtomicU64,
    reached: Notify,
}

impl Tally {
    /// A run has ended. Only the shard's own loop counts here, so a plain sum will do.
    pub(crate) fn count(&self) {
        let runs = self.runs.load(Relaxed) + 1;
        self.runs.store(runs, Relaxed);
        if runs == self.goal.load(Relaxed) {
            self.reached.notify_one();
        }
    }

    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Relaxed)
    }

    /// To be set before the events are handed over.
    pub(crate) fn aim(&self, runs: u64) {
        self.goal.store(runs, Relaxed);
    }

    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }
}

/// Does nothing.
#[derive(Clone, Default)]
pub(crate) struct Nothing {
    pub(crate) tallies: Arc<[Tally; SHARDS]>,
}

impl Reconciler for Nothing {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        std::hint::black_box(run.id());
        self.tallies[usize::from(run.shard().0)].count();
        Ok(Action::done())
    }
}

/// The same behind a gate: while it is shut, runs stay pending and what comes waits.
#[derive(Clone)]
struct Gated {
    nothing: Nothing,
    shut: Arc<AtomicBool>,
    gate: watch::Receiver<bool>,
}

impl Reconciler for Gated {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        if self.shut.load(Relaxed) {
            let _ = self.gate.clone().wait_for(|open| *open).await;
        }
        self.nothing.reconcile(run).await
    }
}

/// What a stream is told to do.
type Job = Box<dyn for<'a> FnOnce(&'a Feed<'a>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> + Send>;

/// A stream's way to the engine, with a source of its own.
pub(crate) struct Feed<'a> {
    events: &'a Events,
    source: SourceId,
    position: AtomicU64,
}

impl Feed<'_> {
    /// Hands over all of these in batches.
    pub(crate) async fn batches(&self, ids: &[String]) {
        for chunk in ids.chunks(BATCH) {
            let first = self.positions(chunk.len() as u64);
            let batch: Vec<Event<'_>> = (first..).zip(chunk).map(|(position, id)| self.event(id, position)).collect();
            self.events.send_all(&batch).await.expect("the engine runs");
        }
    }

    /// Hands over all of these one by one.
    pub(crate) async fn singles(&self, ids: &[String]) {
        for (position, id) in (self.positions(ids.len() as u64)..).zip(ids) {
            self.events.send_event(&self.event(id, position)).await.expect("the engine runs");
        }
    }

    fn event<'i>(&self, id: &'i str, position: u64) -> Event<'i> {
        Event { id, receipt: Receipt::new(self.source, position), trace: None }
    }

    fn positions(&self, count: u64) -> u64 {
        self.position.fetch_add(count, Relaxed)
    }
}

struct Fed(mpsc::Receiver<Job>);

impl EventStream for Fed {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        let source = events.open(Source::untracked(Arc::clone(events.name()), Class::Event));
        let feed = Feed { events: &events, source, position: AtomicU64::new(0) };
        while let Some(job) = self.0.recv().await {
            job(&feed).await;
        }
        events.stopping().await;
        Ok(())
    }
}

/// Takes metrics as a collector does.
struct Collector;

impl PushMetricExporter for Collector {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        std::hint::black_box(metrics);
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

/// Numbers are collected so often: sixty times as often as by default.
pub(crate) const COLLECT: Duration = Duration::from_secs(1);
/// For what must not depend on how long it takes.
const NEVER: Duration = Duration::from_secs(86_400);

/// Instruments whose numbers are collected.
pub(crate) fn meters(interval: Duration) -> SdkMeterProvider {
    let reader = PeriodicReader::builder(Collector).with_interval(interval).build();
    SdkMeterProvider::builder().with_reader(reader).build()
}

/// An engine that runs, with a stream for each shard.
pub(crate) struct Bed {
    feeds: Vec<mpsc::Sender<Job>>,
    tallies: Arc<[Tally; SHARDS]>,
    pub(crate) handle: Handle,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), EngineError>>,
    gate: Option<(Arc<AtomicBool>, watch::Sender<bool>)>,
    _meters: SdkMeterProvider,
}

impl Bed {
    /// An engine of so many shards, whose runs end at once.
    pub(crate) async fn start(shards: u32) -> Self {
        let nothing = Nothing::default();
        Self::with(shards, nothing.clone(), nothing.tallies, None, COLLECT).await
    }

    /// The same of one shard, whose numbers nobody collects meanwhile.
    pub(crate) async fn unwatched() -> Self {
        let nothing = Nothing::default();
        Self::with(1, nothing.clone(), nothing.tallies, None, NEVER).await
    }

    /// An engine of one shard with a reconciler that counts its runs here.
    pub(crate) async fn of(reconciler: impl Reconciler, counts: &Nothing) -> Self {
        Self::with(1, reconciler, Arc::clone(&counts.tallies), None, COLLECT).await
    }

    /// An engine of one shard whose runs end once the gate is open; it is shut.
    pub(crate) async fn gated() -> Self {
        let nothing = Nothing::default();
        let (open, gate) = watch::channel(false);
        let shut = Arc::new(AtomicBool::new(true));
        let gated = Gated { nothing: nothing.clone(), shut: Arc::clone(&shut), gate };
        Self::with(1, gated, nothing.tallies, Some((shut, open)), COLLECT).await
    }

    async fn with(
        shards: u32,
        reconciler: impl Reconciler,
        tallies: Arc<[Tally; SHARDS]>,
        gate: Option<(Arc<AtomicBool>, watch::Sender<bool>)>,
        collect: Duration,
    ) -> Self {
        let meters = meters(collect);
        let mut builder = Engine::builder("bench")
            .reconciler(reconciler)
            .sharding(Sharding { shards, ..Sharding::default() })
            .limits(LIMITS)
            .meter(meters.meter("evenkeel"));
        let mut feeds = Vec::new();
        for shard in 0..shards {
            let (feed, jobs) = mpsc::channel(16);
            builder = builder.stream(&format!("feed-{shard}"), Fed(jobs));
            feeds.push(feed);
        }
        let engine = builder.build().expect("the parts fit");
        let handle = engine.handle();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(engine.run(async {
            let _ = stopped.await;
        }));
        let bed = Self { feeds, tallies, handle, stop, running, gate, _meters: meters };
        bed.all_led(shards as usize).await;
        bed
    }

    /// Streams run only once the process leads a shard, and what they hand over for others is passed over.
    async fn all_led(&self, shards: usize) {
        self.feed(0, move |feed| {
            Box::pin(async move {
                let mut led = feed.events.shards();
                led.wait_for(|led| led.len() == shards).await.expect("the engine runs");
            })
        })
        .await;
    }

    /// Has the stream of this shard do a job, and waits until it has.
    pub(crate) async fn feed<J>(&self, shard: usize, job: J)
    where
        J: for<'a> FnOnce(&'a Feed<'a>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> + Send + 'static,
    {
        let (done, is_done) = oneshot::channel();
        let job: Job = Box::new(move |feed| {
            Box::pin(async move {
                job(feed).await;
                let _ = done.send(());
            })
        });
        assert!(self.feeds[shard].send(job).await.is_ok(), "the stream runs");
        is_done.await.expect("the job ends");
    }

    /// The runs of this shard.
    pub(crate) fn tally(&self, shard: usize) -> &Tally {
        &self.tallies[shard]
    }

    /// Hands all of these over to their shard in batches, `rounds` times, each round after the runs of the one before:
    /// an id that still waits would absorb the next event.
    pub(crate) async fn rounds(&self, shard: usize, ids: &Arc<Vec<String>>, rounds: u64) {
        let (ids, tallies) = (Arc::clone(ids), Arc::clone(&self.tallies));
        self.feed(shard, move |feed| {
            Box::pin(async move {
                let tally = &tallies[shard];
                for _ in 0..rounds {
                    tally.aim(tally.runs() + ids.len() as u64);
                    feed.batches(&ids).await;
                    tally.reached().await;
                }
            })
        })
        .await;
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        let (shut, open) = self.gate.as_ref().expect("there is a gate");
        shut.store(false, Relaxed);
        open.send_replace(true);
    }

    /// How many ids wait or run.
    pub(crate) async fn owed(&self) -> u64 {
        let shards = self.handle.shards().await.expect("it runs");
        shards.iter().map(|shard| shard.counts.pending + shard.counts.running).sum()
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.running.await.expect("no panic").expect("a clean stop");
    }
}

/// A runtime of so many threads, beside the one that calls.
pub(crate) fn block_on<T>(threads: usize, future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Ids of 36 bytes, as they may look.
pub(crate) fn ids(count: usize) -> Vec<String> {
    (0..count).map(id).collect()
}

fn id(n: usize) -> String {
    format!("tenant-{:04}/database/orders-{n:010}", n % 1_000)
}
