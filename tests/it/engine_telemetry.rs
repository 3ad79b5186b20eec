//! What an engine tells of itself (T2, T3, T5, B75, B76): spans and metrics, as the SDK's exporters get them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel::engine::view::{IdState, WaitFor};
use evenkeel::id::ShardId;
use evenkeel::local::{ManualElector, MemoryStore};
use evenkeel::{
    Class, Event, EventStream, Events, Limits, ReconcilerOptions, RecordStore, Sharding, StreamError, Timing,
};
use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::sync::mpsc;

use super::engine_world::{Calls, Do, Feed, HOUR, MS, Running, SECOND, builder, options, until};
use super::store_conformance::cluster;

/// The spans that ended.
struct Spans {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
}

impl Spans {
    fn new() -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        Self { exporter, provider }
    }

    fn tracer(&self) -> BoxedTracer {
        BoxedTracer::new(Box::new(self.provider.tracer("evenkeel")))
    }

    fn all(&self) -> Vec<SpanData> {
        self.exporter.get_finished_spans().unwrap()
    }

    /// Items, each with its attempts in order; every attempt belongs to one.
    fn items(&self) -> Vec<(SpanData, Vec<SpanData>)> {
        let all = self.all();
        let (mut attempts, items): (Vec<_>, Vec<_>) = all.into_iter().partition(|span| span.name == "attempt");
        attempts.sort_by_key(|span| span.start_time);
        let items: Vec<_> = items
            .into_iter()
            .map(|item| {
                let of_item = |span: &&SpanData| span.parent_span_id == item.span_context.span_id();
                let own: Vec<SpanData> = attempts.iter().filter(of_item).cloned().collect();
                assert!(own.iter().all(|span| span.span_context.trace_id() == item.span_context.trace_id()));
                (item, own)
            })
            .collect();
        let placed: usize = items.iter().map(|(_, own)| own.len()).sum();
        assert_eq!(placed, attempts.len(), "an attempt without its item");
        items
    }
}

fn attribute(span: &SpanData, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.map(|attribute| attribute.value.to_string()).unwrap_or_default()
}

fn event_names(span: &SpanData) -> Vec<String> {
    span.events.iter().map(|event| event.name.to_string()).collect()
}

/// A producer's span.
fn producer(number: u64) -> SpanContext {
    let (trace, span) = (TraceId::from(u128::from(number) + 1), SpanId::from(number + 1));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default())
}

/// Hands over events with their producers' spans.
struct Traced(mpsc::UnboundedReceiver<(&'static str, u64)>);

impl EventStream for Traced {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        while let Some((id, number)) = self.0.recv().await {
            let trace = Some(producer(number));
            events.send_event(&Event { id, receipt: events.receipt(), trace }).await?;
        }
        events.stopping().await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn t2_k7_one_trace_from_the_first_event_to_done_through_all_attempts() {
    let spans = Spans::new();
    let (send, traced) = mpsc::unbounded_channel();
    let seen: Arc<std::sync::Mutex<Vec<SpanId>>> = Arc::default();
    let contexts = Arc::clone(&seen);
    let calls = Calls::new(move |run, number| {
        contexts.lock().unwrap().push(run.trace_context().unwrap().span_id());
        match number {
            1 | 2 => Do::fail(),
            3 => Do::Panic(Box::new(|| panic!("boom"))),
            _ => Do::done(),
        }
    });
    let engine = builder(calls.clone()).stream("traced", Traced(traced)).tracer(spans.tracer());
    let running = Running::start(engine).await;
    send.send(("x", 1)).unwrap();
    calls.until_count("x", 1).await;
    assert!(spans.all().iter().all(|span| span.name == "attempt"), "it goes on");
    // Another event while it waits for its retry: absorbed, and part of the same item.
    tokio::time::sleep(500 * MS).await;
    send.send(("x", 2)).unwrap();
    calls.until_count("x", 4).await;
    running.stop().await.unwrap();

    let items = spans.items();
    assert_eq!(items.len(), 1);
    let (item, attempts) = &items[0];
    assert_eq!(
        (&*item.name, &item.span_kind, item.parent_span_id),
        ("reconcile test", &SpanKind::Consumer, SpanId::INVALID)
    );
    assert_eq!((attribute(item, "evenkeel.id").as_str(), attribute(item, "evenkeel.outcome").as_str()), ("x", "done"));
    assert_eq!(item.status, Status::Ok);
    let links: Vec<TraceId> = item.links.iter().map(|link| link.span_context.trace_id()).collect();
    assert_eq!(links, [1, 2].map(|number| producer(number).trace_id()));
    let told: Vec<String> =
        event_names(item).into_iter().filter(|name| name == "requeue" || name == "enqueue").collect();
    assert_eq!(told, ["enqueue", "requeue", "requeue", "requeue"]);
    assert_eq!(event_names(item).iter().filter(|name| *name == "dequeue").count(), 4);
    assert!(item.start_time <= attempts[0].start_time && item.end_time >= attempts[3].end_time);
    let outcomes: Vec<_> = attempts.iter().map(|span| attribute(span, "evenkeel.outcome")).collect();
    assert_eq!(outcomes, ["failed", "failed", "panicked", "done"]);
    for (span, says) in attempts.iter().zip(["no route", "no route", "panicked: boom"]) {
        assert_eq!(span.status, Status::error(says));
        let event = &span.events[0];
        assert_eq!(event.name, if says.starts_with("panicked") { "panic" } else { "exception" });
        assert!(event.attributes.iter().any(|attribute| attribute.value.as_str() == says));
    }
    assert_eq!(attempts[3].status, Status::Unset);
    let given: Vec<SpanId> = attempts.iter().map(|span| span.span_context.span_id()).collect();
    assert_eq!(*seen.lock().unwrap(), given, "each run is told of its own span");
    let numbers: Vec<String> = attempts.iter().map(|span| attribute(span, "evenkeel.attempt")).collect();
    assert_eq!(numbers.len(), 4);
}

/// A share of the items has a trace, each whole or not at all; the others are told so.
#[tokio::test(start_paused = true)]
async fn t2_a_share_of_the_items_is_traced_and_keeps_its_choice_through_the_attempts() {
    for (share, expected) in [(0.0, 0..=0), (0.5, 100..=300), (1.0, 400..=400)] {
        let spans = Spans::new();
        let told: Arc<std::sync::Mutex<BTreeMap<String, BTreeSet<bool>>>> = Arc::default();
        let heard = Arc::clone(&told);
        let calls = Calls::new(move |run, number| {
            let context = run.trace_context().unwrap();
            assert!(context.is_valid());
            heard.lock().unwrap().entry(run.id().to_owned()).or_default().insert(context.is_sampled());
            if number < 3 { Do::fail() } else { Do::done() }
        });
        let (feed, events) = Feed::new(Class::Event);
        let engine = builder(calls.clone()).stream("events", feed).tracer(spans.tracer()).trace_share(share);
        let running = Running::start(engine).await;
        let ids: Vec<String> = (0..400).map(|number| format!("id-{number}")).collect();
        ids.iter().for_each(|id| _ = events.send(id));
        for id in &ids {
            calls.until_count(id, 3).await;
        }
        running.stop().await.unwrap();
        let items = spans.items();
        assert!(expected.contains(&items.len()), "{share}: {} of 400", items.len());
        assert!(items.iter().all(|(_, attempts)| attempts.len() == 3), "{share}: a trace begun in the middle");
        let told = told.lock().unwrap();
        assert!(told.values().all(|said| said.len() == 1), "{share}: the choice changed between attempts");
        assert_eq!(told.values().filter(|said| said.contains(&true)).count(), items.len());
    }
}

/// What ends an item, and what does not.
#[tokio::test(start_paused = true)]
async fn t2_an_item_ends_when_it_is_done_or_waits_for_somebody() {
    let spans = Spans::new();
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("cancelled", 1) => Do::Hold,
        ("asks", 1) => Do::again(HOUR),
        ("hopeless", _) => Do::give_up(),
        ("parked", 1) => Do::Hold,
        ("dirty", 1) => Do::Ignore,
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let running = Running::start(builder(calls.clone()).stream("events", feed).tracer(spans.tracer())).await;
    for id in ["cancelled", "asks", "hopeless", "parked", "dirty"] {
        events.send(id);
        calls.until_count(id, 1).await;
    }
    running.trigger("cancelled", WaitFor::Done).await;
    events.send("dirty");
    tokio::time::sleep(SECOND).await;
    calls.release("dirty");
    calls.until_count("dirty", 2).await;
    running.handle.cancel(vec!["parked".into()]).await.unwrap();
    running.until_state("parked", IdState::Parked).await;
    tokio::time::sleep(2 * HOUR).await;
    calls.until_count("asks", 2).await;
    running.stop().await.unwrap();
    let mut by_id: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for (item, attempts) in spans.items() {
        let told = (attribute(&item, "evenkeel.outcome"), attempts.len());
        by_id.entry(attribute(&item, "evenkeel.id")).or_default().push(told);
    }
    let told = |id: &str| by_id[id].iter().map(|(outcome, count)| (outcome.as_str(), *count)).collect::<Vec<_>>();
    assert_eq!(told("cancelled"), [("done", 2)], "a cancelled run is followed by another of the same item");
    assert_eq!(told("asks"), [("requeued", 1), ("done", 1)], "a time that was asked for is an item of its own");
    assert_eq!(told("hopeless"), [("given_up", 1)]);
    assert_eq!(told("parked"), [("cancelled", 1)]);
    assert_eq!(told("dirty"), [("done", 1), ("done", 1)], "what came during the run is answered by the next");
}

/// The numbers of one export, by instrument and attributes without controller and shard.
struct Numbers {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl Numbers {
    fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).with_interval(HOUR * 24).build();
        Self { exporter, provider: SdkMeterProvider::builder().with_reader(reader).build() }
    }

    fn builder(&self, calls: &Calls) -> evenkeel::Builder {
        builder(calls.clone()).meter(self.provider.meter("evenkeel"))
    }

    /// All of them now; sums and counts of histograms as `name.sum` and `name.count`.
    fn read(&self) -> BTreeMap<String, f64> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let exported = self.exporter.get_finished_metrics().unwrap();
        let mut numbers = BTreeMap::new();
        let metrics = exported.iter().flat_map(|resource| resource.scope_metrics()).flat_map(|scope| scope.metrics());
        for metric in metrics {
            let mut put = |name: &str, attributes: Vec<String>, value: f64| {
                let key = format!("{name}{{{}}}", attributes.join(","));
                assert!(numbers.insert(key.clone(), value).is_none(), "{key} twice");
            };
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => sum
                    .data_points()
                    .for_each(|point| put(metric.name(), labels(point.attributes()), number(point.value()))),
                AggregatedMetrics::U64(MetricData::Gauge(gauge)) => gauge
                    .data_points()
                    .for_each(|point| put(metric.name(), labels(point.attributes()), number(point.value()))),
                AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                    for point in histogram.data_points() {
                        put(&format!("{}.sum", metric.name()), labels(point.attributes()), point.sum());
                        put(&format!("{}.count", metric.name()), labels(point.attributes()), number(point.count()));
                    }
                }
                other => panic!("{}: {other:?}", metric.name()),
            }
        }
        numbers
    }

    /// One of them, summed over all attributes that hold these words.
    fn get(&self, name: &str, words: &[&str]) -> f64 {
        let numbers = self.read();
        let wanted = |key: &&String| key.split('{').next() == Some(name) && words.iter().all(|word| key.contains(word));
        numbers.keys().filter(wanted).map(|key| numbers[key]).sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

fn labels<'a>(attributes: impl Iterator<Item = &'a opentelemetry::KeyValue>) -> Vec<String> {
    let mut labels: Vec<String> =
        attributes.map(|attribute| format!("{}={}", attribute.key, attribute.value)).collect();
    labels.sort();
    labels
}

/// B75: ten wait, five are delayed, two run, twenty events are absorbed; time in the queue is not time of a run.
#[tokio::test(start_paused = true)]
async fn t3_b75_figures_count_what_is_there() {
    let numbers = Numbers::new();
    let calls = Calls::new(|run, _| match run.id().split('-').next().unwrap() {
        "delayed" => Do::again(HOUR),
        "runs" => Do::Hold,
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let options = ReconcilerOptions { workers: 2, concurrency: 2, timeout: None, ..options() };
    let running = Running::start(numbers.builder(&calls).options(options).stream("events", feed)).await;
    for number in 0..5 {
        events.send(&format!("delayed-{number}"));
    }
    events.until_low_water(5).await;
    // Ids of both workers, so that both run one.
    let ids: Vec<String> = (0..40).map(|number| format!("runs-{number}")).collect();
    for id in &ids {
        if calls.running() < 2 && running.explain(id).await.state == IdState::Idle {
            events.send(id);
            tokio::time::sleep(10 * MS).await;
        }
    }
    until("two run", || calls.running() == 2).await;
    let waiting_before = running.handle.status().await.unwrap().counts.pending;
    for number in 0..10 - waiting_before {
        events.send(&format!("waits-{number}"));
    }
    let runner = calls.all().into_iter().find(|call| call.ended.is_none()).unwrap().id;
    (0..20).for_each(|_| _ = events.send(&runner));
    let read = |name: &str, words: &[&str]| numbers.get(name, words);
    until("twenty are absorbed", || read("evenkeel.enqueues", &["already_present"]) >= 20.0).await;
    let counts = running.handle.status().await.unwrap().counts;
    assert_eq!((counts.pending, counts.delayed, counts.running), (10, 5, 2));
    for (name, wanted) in [("queue.depth", 10.0), ("delayed", 5.0), ("runs.active", 2.0), ("parked", 0.0)] {
        assert_eq!(read(&format!("evenkeel.{name}"), &[]), wanted, "{name}");
    }
    let admitted = read("evenkeel.enqueues", &["outcome=ok"]);
    assert_eq!(admitted, 17.0, "five, two and ten");
    assert_eq!(read("evenkeel.dequeues", &[]), 7.0);
    // An hour in the run, and behind it an hour in the queue: each in its own histogram.
    let (run_before, wait_before) = (read("evenkeel.run.duration.sum", &[]), read("evenkeel.queue.wait.sum", &[]));
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!((read("evenkeel.runs", &["outcome=done"]), run_before), (0.0, 0.0), "nothing counts before it is over");
    ids.iter().chain([&runner]).for_each(|id| calls.release(id));
    until("all are done", || read("evenkeel.queue.depth", &[]) == 0.0 && calls.running() == 0).await;
    let (run, wait) = (read("evenkeel.run.duration.sum", &["done"]), read("evenkeel.queue.wait.sum", &[]));
    assert!(run > 3_600.0 && run < 3_610.0, "two runs of half an hour: {run}");
    let waited = wait - wait_before;
    assert!(waited > 9.0 * 1_800.0 && waited < 10.0 * 1_810.0, "ten waits of half an hour: {waited}");
    assert!(running.handle.health().live, "idle is alive");
    running.stop().await.unwrap();
}

/// An event that is held back is counted so once, however long and however often the loop turns meanwhile.
#[tokio::test(start_paused = true)]
async fn b75_an_event_that_is_held_back_counts_once() {
    let numbers = Numbers::new();
    let calls = Calls::new(|run, _| if run.id() == "runs" { Do::Hold } else { Do::again(HOUR) });
    let (feed, events) = Feed::new(Class::Event);
    let limits = Limits { admitted: 1, ..Limits::default() };
    let running = Running::start(numbers.builder(&calls).limits(limits).stream("events", feed)).await;
    events.send("runs");
    calls.until_count("runs", 1).await;
    (0..100).for_each(|number| _ = events.send(&format!("held-{number}")));
    for _ in 0..50 {
        // Each question is a turn of the loop.
        running.explain("runs").await;
        tokio::time::sleep(SECOND / 10).await;
    }
    let rejected = || numbers.get("evenkeel.enqueues", &["rejected"]);
    assert!(rejected() <= 100.0, "{}", rejected());
    calls.release("runs");
    events.until_low_water(101).await;
    assert!(rejected() <= 100.0, "{}", rejected());
    assert_eq!(numbers.get("evenkeel.enqueues", &["outcome=ok"]), 101.0);
    running.stop().await.unwrap();
}

/// B76: the series depend on shards, streams and outcomes, never on ids; what is gone reports nothing.
#[tokio::test(start_paused = true)]
async fn b76_series_do_not_grow_with_ids_and_a_shard_that_left_reports_nothing() {
    let numbers = Numbers::new();
    let store = Arc::new(MemoryStore::new());
    let stands = store.check_cluster(&cluster()).await.unwrap();
    let (elector, leader) = ManualElector::new(store, &stands);
    let calls = Calls::new(|run, number| match (run.id().len() % 4, number) {
        (0, 1) => Do::fail(),
        (1, 1) => Do::again(SECOND),
        (2, 1) => Do::give_up(),
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let engine = numbers.builder(&calls).sharding(Sharding { shards: 2, ..Sharding::default() });
    let running = Running::begin(engine.elector(Arc::new(elector)).stream("events", feed));
    leader.become_leader(ShardId(0));
    leader.become_leader(ShardId(1));
    until("both are led", || numbers.get("evenkeel.leader", &[]) == 2.0).await;
    let mut series = BTreeSet::new();
    for round in 0..3 {
        for number in 0..200 {
            events.send(&format!("canary-{}-{round}-{number}", "x".repeat(number % 5)));
        }
        let before = calls.ids().len();
        until("they ran", || calls.ids().len() >= before.max((round + 1) * 200)).await;
        tokio::time::sleep(10 * SECOND).await;
        let now: BTreeSet<String> = numbers.read().into_keys().collect();
        assert!(now.iter().all(|key| !key.contains("canary")), "an id became an attribute");
        if round > 0 {
            assert_eq!(now, series, "series grew with the ids");
        }
        series = now;
    }
    let counters = |numbers: &Numbers| -> BTreeMap<String, f64> {
        let mut all = numbers.read();
        all.retain(|key, _| ["enqueues", "dequeues", "runs{", "leader.changes"].iter().any(|name| key.contains(name)));
        all
    };
    let before = counters(&numbers);
    let parked = numbers.get("evenkeel.parked", &["shard=0"]);
    assert!(parked > 0.0);
    leader.lose(ShardId(0));
    until("it is gone", || numbers.get("evenkeel.leader", &["shard=0"]) == 0.0).await;
    for name in ["parked", "delayed", "queue.depth", "runs.active", "owed_records"] {
        assert_eq!(numbers.get(&format!("evenkeel.{name}"), &["shard=0"]), 0.0, "{name}");
    }
    assert_eq!(numbers.get("evenkeel.leader", &[]), 1.0);
    leader.become_leader(ShardId(0));
    until("it is back", || numbers.get("evenkeel.leader", &[]) == 2.0).await;
    events.send("canary-after");
    calls.until_count("canary-after", 1).await;
    tokio::time::sleep(SECOND).await;
    let after = counters(&numbers);
    assert!(before.iter().all(|(key, value)| after[key] >= *value), "counters never go back: {before:?} {after:?}");
    assert_eq!(numbers.get("evenkeel.leader.changes", &["shard=0"]), 2.0);
    running.stop().await.unwrap();
}

/// The age of what is undone is in the status, from its arrival on, and gone with the success.
#[tokio::test(start_paused = true)]
async fn b75_the_oldest_undone_event_has_its_age() {
    let calls = Calls::new(|_, number| if number < 4 { Do::fail() } else { Do::done() });
    let (feed, events) = Feed::new(Class::Event);
    let timing = Timing { max_hold: HOUR, ..Timing::default() };
    let mut options = options();
    options.retry.initial = 100 * SECOND;
    options.retry.max_delay = 100 * SECOND;
    let running = Running::start(builder(calls.clone()).options(options).timing(timing).stream("events", feed)).await;
    let age = async || running.handle.status().await.unwrap().oldest_undone_seconds;
    assert_eq!(age().await, None);
    events.send("x");
    calls.until_count("x", 1).await;
    tokio::time::sleep(150 * SECOND).await;
    let seconds = age().await.unwrap();
    assert!((149.0..152.0).contains(&seconds), "{seconds}");
    events.send("later");
    calls.until_count("later", 1).await;
    let still = age().await.unwrap();
    assert!(still >= seconds, "the older one counts: {still}");
    events.until_low_water(2).await;
    assert_eq!(age().await, None);
    running.stop().await.unwrap();
}
