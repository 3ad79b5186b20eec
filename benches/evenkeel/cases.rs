//! The cases. Each builds its ids before, and hands them over inside the timed part.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel::{
    Action, Engine, Event, EventStream, Events, Failure, Limits, Reconciler, ReconcilerOptions, Run, Sharding,
    StreamError,
};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::alloc;
use crate::floor;
use crate::measure::{Mark, Report, Spent, round};

/// Counts its runs and does nothing else.
#[derive(Clone, Default)]
struct Nothing {
    runs: Arc<AtomicU64>,
}

impl Reconciler for Nothing {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        std::hint::black_box(run.id());
        self.runs.fetch_add(1, Relaxed);
        Ok(Action::done())
    }
}

/// What a bench stream is told to do next.
type Job = Box<dyn for<'a> FnOnce(&'a Events) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> + Send>;

/// Hands over what it is told.
struct Feed(mpsc::Receiver<Job>);

impl EventStream for Feed {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        while let Some(job) = self.0.recv().await {
            job(&events).await;
        }
        events.stopping().await;
        Ok(())
    }
}

pub(crate) type Case = fn(&str, &mut Report);

pub(crate) fn all() -> Vec<(&'static str, Case)> {
    vec![
        ("floor/own/10000", floor_small),
        ("floor/own/1000000", floor_large),
        ("loop/noop/10000", noop_small),
        ("loop/noop/1000000", noop_large),
        ("loop/single/10000", single),
        ("loop/dedup/10", dedup),
        ("loop/idle-latency", idle_latency),
        ("loop/two-shards", two_shards),
    ]
}

const SMALL: usize = 10_000;
const LARGE: usize = 1_000_000;

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("tenant-{:04}/database/orders-{n:09}", n % 1_000)).collect()
}

fn floor_us(items: &[String], rounds: usize, waiting: usize) -> (f64, Spent) {
    let spent = floor::run(items, rounds, waiting);
    (spent.cpu.as_secs_f64() * 1e6 / (items.len() * rounds) as f64, spent)
}

fn floor_small(name: &str, report: &mut Report) {
    let ids = ids(SMALL);
    let (_, spent) = floor_us(&ids, 200, 1_024);
    report.case(name, 200 * SMALL as u64, spent, None, json!({}));
}

fn floor_large(name: &str, report: &mut Report) {
    let ids = ids(LARGE);
    let (_, spent) = floor_us(&ids, 1, LARGE + 1);
    report.case(name, LARGE as u64, spent, None, json!({}));
}

/// Collects metrics as an exporter does, and sends them nowhere.
struct Discard;

impl opentelemetry_sdk::metrics::exporter::PushMetricExporter for Discard {
    async fn export(&self, metrics: &opentelemetry_sdk::metrics::data::ResourceMetrics) -> OTelSdkResult {
        std::hint::black_box(metrics);
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> opentelemetry_sdk::metrics::Temporality {
        opentelemetry_sdk::metrics::Temporality::Cumulative
    }
}

/// An engine with metrics on, its feed, and its counter.
struct Bed {
    feed: mpsc::Sender<Job>,
    runs: Arc<AtomicU64>,
    handle: evenkeel::Handle,
    stop: oneshot::Sender<()>,
    running: tokio::task::JoinHandle<Result<(), evenkeel::EngineError>>,
    _metrics: opentelemetry_sdk::metrics::SdkMeterProvider,
}

impl Bed {
    async fn start(shards: u32) -> Self {
        let metrics = opentelemetry_sdk::metrics::SdkMeterProvider::builder().with_periodic_exporter(Discard).build();
        let reconciler = Nothing::default();
        let (feed, jobs) = mpsc::channel(16);
        let engine = Engine::builder("bench")
            .reconciler(reconciler.clone())
            .options(ReconcilerOptions::default())
            .sharding(Sharding { shards, ..Sharding::default() })
            .limits(Limits { admitted: 2_000_000, ..Limits::default() })
            .stream("feed", Feed(jobs))
            .meter(metrics.meter("evenkeel"))
            .build()
            .expect("the parts fit");
        let handle = engine.handle();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(engine.run(async {
            let _ = stopped.await;
        }));
        while handle.shards().await.expect("it runs").iter().any(|shard| !shard.led) {
            tokio::task::yield_now().await;
        }
        Self { feed, runs: reconciler.runs, handle, stop, running, _metrics: metrics }
    }

    async fn feed(&self, job: Job) {
        self.feed.send(job).await.ok().expect("the stream runs");
    }

    async fn until(&self, runs: u64) {
        while self.runs.load(Relaxed) < runs {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    /// Waits until the feed has handed over everything and nothing waits or runs.
    async fn rest(&self) {
        let (fed, done) = oneshot::channel();
        self.feed(Box::new(move |_| {
            Box::pin(async move {
                let _ = fed.send(());
            })
        }))
        .await;
        done.await.expect("the stream runs");
        // Asked twice: the first answer may come before the loop has taken what was fed last.
        let mut quiet = 0;
        while quiet < 2 {
            let shards = self.handle.shards().await.expect("it runs");
            let idle = shards.iter().all(|shard| shard.counts.pending + shard.counts.running == 0);
            quiet = if idle { quiet + 1 } else { 0 };
        }
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        self.running.await.expect("no panic").expect("a clean stop");
    }
}

fn block_on<T>(threads: usize, future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Hands over all ids in batches of 256, `rounds` times.
fn batches(ids: Arc<Vec<String>>, rounds: usize) -> Job {
    Box::new(move |events| {
        Box::pin(async move {
            for _ in 0..rounds {
                for chunk in ids.chunks(256) {
                    let batch: [Event<'_>; 256] = std::array::from_fn(|index| Event {
                        id: chunk.get(index).map_or("", String::as_str),
                        receipt: events.receipt(),
                        trace: None,
                    });
                    if events.send_all(&batch[..chunk.len()]).await.is_err() {
                        return;
                    }
                }
            }
        })
    })
}

fn noop_small(name: &str, report: &mut Report) {
    const ROUNDS: usize = 300;
    let ids = Arc::new(ids(SMALL));
    let (floor, _) = floor_us(&ids, 200, 1_024);
    let spent = block_on(1, async {
        let bed = Bed::start(1).await;
        bed.feed(batches(Arc::clone(&ids), 1)).await;
        bed.until(SMALL as u64).await;
        let mark = Mark::now();
        // An id that is still waiting absorbs the next round's event, so each round is waited for.
        for round in 0..ROUNDS {
            bed.feed(batches(Arc::clone(&ids), 1)).await;
            bed.until(((round + 2) * SMALL) as u64).await;
        }
        let spent = mark.spent();
        bed.stop().await;
        spent
    });
    report.case(name, (ROUNDS * SMALL) as u64, spent, Some(floor), json!({}));
}

fn noop_large(name: &str, report: &mut Report) {
    let ids = Arc::new(ids(LARGE));
    let (floor, _) = floor_us(&ids, 1, LARGE + 1);
    let (spent, bytes) = block_on(1, async {
        let bed = Bed::start(1).await;
        let before = alloc::live();
        let mark = Mark::now();
        bed.feed(batches(Arc::clone(&ids), 1)).await;
        bed.until(LARGE as u64).await;
        let spent = mark.spent();
        let bytes = alloc::live() - before;
        bed.stop().await;
        (spent, bytes)
    });
    let more = json!({"live_bytes": bytes});
    report.case(name, LARGE as u64, spent, Some(floor), more);
}

fn single(name: &str, report: &mut Report) {
    const ROUNDS: usize = 100;
    let ids = Arc::new(ids(SMALL));
    let (floor, _) = floor_us(&ids, 200, 1_024);
    let spent = block_on(2, async {
        let bed = Bed::start(1).await;
        let mark = Mark::now();
        for round in 0..ROUNDS {
            for id in ids.iter() {
                while bed.handle.trigger(id).is_err() {
                    tokio::task::yield_now().await;
                }
            }
            bed.until(((round + 1) * SMALL) as u64).await;
        }
        let spent = mark.spent();
        bed.stop().await;
        spent
    });
    report.case(name, (ROUNDS * SMALL) as u64, spent, Some(floor), json!({}));
}

fn dedup(name: &str, report: &mut Report) {
    const ROUNDS: usize = 50;
    let ids = Arc::new(ids(SMALL));
    let (floor, _) = floor_us(&ids, 200, 1_024);
    // Ten events an id in a row: the nine after the first are absorbed unless the loop is faster than the stream.
    let tenfold: Arc<Vec<String>> = Arc::new(ids.iter().flat_map(|id| std::iter::repeat_n(id.clone(), 10)).collect());
    let (spent, runs) = block_on(1, async {
        let bed = Bed::start(1).await;
        let mark = Mark::now();
        for _ in 0..ROUNDS {
            bed.feed(batches(Arc::clone(&tenfold), 1)).await;
            bed.rest().await;
        }
        let spent = mark.spent();
        let runs = bed.runs.load(Relaxed);
        bed.stop().await;
        (spent, runs)
    });
    let events = (ROUNDS * SMALL * 10) as u64;
    report.case(name, events, spent, Some(floor), json!({"events_per_run": round(events as f64 / runs as f64, 2)}));
}

fn idle_latency(name: &str, report: &mut Report) {
    const EVENTS: usize = 5_000;
    let (mut latencies, spent) = block_on(2, async {
        let bed = Bed::start(1).await;
        let (handle, runs) = (bed.handle.clone(), Arc::clone(&bed.runs));
        let mark = Mark::now();
        let latencies = std::thread::spawn(move || {
            let mut latencies = Vec::with_capacity(EVENTS);
            for n in 0..EVENTS {
                let before = runs.load(Relaxed);
                let begun = Instant::now();
                handle.trigger(&format!("id-{n}")).expect("an idle loop has room");
                while runs.load(Relaxed) == before {
                    std::hint::spin_loop();
                }
                latencies.push(begun.elapsed());
                std::thread::park_timeout(Duration::from_micros(100));
            }
            latencies
        });
        let latencies = tokio::task::spawn_blocking(move || latencies.join().expect("no panic")).await;
        let spent = mark.spent();
        bed.stop().await;
        (latencies.expect("no panic"), spent)
    });
    latencies.sort_unstable();
    let at = |share: f64| round(latencies[((EVENTS - 1) as f64 * share) as usize].as_secs_f64() * 1e6, 1);
    report.case(name, EVENTS as u64, spent, None, json!({"p50_us": at(0.5), "p99_us": at(0.99)}));
}

fn two_shards(name: &str, report: &mut Report) {
    const ROUNDS: usize = 200;
    let ids = Arc::new(ids(SMALL));
    let run = |shards: u32| {
        block_on(2, async {
            let bed = Bed::start(shards).await;
            let mark = Mark::now();
            for round in 0..ROUNDS {
                bed.feed(batches(Arc::clone(&ids), 1)).await;
                bed.until(((round + 1) * SMALL) as u64).await;
            }
            let spent = mark.spent();
            bed.stop().await;
            spent
        })
    };
    let (one, two) = (run(1), run(2));
    let speedup = round(one.wall.as_secs_f64() / two.wall.as_secs_f64(), 2);
    report.case(name, (ROUNDS * SMALL) as u64, two, None, json!({"of_one_shard": speedup}));
}

/// Exactly so many no-op reconciles of few ids, for counting instructions.
pub(crate) fn exactly(count: u64) {
    let ids = Arc::new(ids(1_000));
    block_on(1, async {
        let bed = Bed::start(1).await;
        let mut done = 0;
        while done < count {
            let part = usize::try_from((count - done).min(1_000)).expect("at most 1,000");
            let some = if part == 1_000 { Arc::clone(&ids) } else { Arc::new(ids[..part].to_vec()) };
            bed.feed(batches(some, 1)).await;
            done += part as u64;
            bed.until(done).await;
        }
        bed.stop().await;
    });
}
