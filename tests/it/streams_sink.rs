//! The engine's side of a stream, as a script: which shards are led, how much room they have, what was handed over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::id::{self, Partitioner, Router, ShardId, SourceId};
use evenkeel::{BoxFuture, Event, EventSink, EventStream, Events, Offer, Sent, Source, Sources, StreamError};
use opentelemetry::metrics::{Meter, MeterProvider, NoopMeterProvider};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// No test waits longer in real time; in virtual time it is soon over.
pub(crate) const DEADLINE: Duration = Duration::from_secs(3_600);

/// The first shard, which most tests do with.
pub(crate) const FIRST: ShardId = ShardId(0);

/// For tests that measure nothing.
pub(crate) fn no_meter() -> Meter {
    NoopMeterProvider::new().meter("none")
}

pub(crate) struct Sink {
    name: Arc<str>,
    router: Router,
    led: watch::Sender<Vec<ShardId>>,
    room_per_shard: usize,
    waiting: Mutex<HashMap<ShardId, usize>>,
    pub(crate) taken: Mutex<Vec<String>>,
    pub(crate) foreign: AtomicU32,
    changed: Notify,
    sources: Sources,
    pub(crate) opened: AtomicU32,
    pub(crate) stopping: CancellationToken,
    pub(crate) problem: Mutex<Option<String>>,
    pub(crate) errors: Mutex<Vec<&'static str>>,
    meter: Meter,
}

impl Sink {
    /// A sink of one shard that is led, with room for everything.
    pub(crate) fn new() -> Arc<Self> {
        Self::with(1, &[0], usize::MAX, no_meter())
    }

    pub(crate) fn with(shards: u32, led: &[u16], room_per_shard: usize, meter: Meter) -> Arc<Self> {
        Arc::new(Self {
            name: "all".into(),
            router: Router::new(Partitioner::Fnv1a, shards, 1).unwrap(),
            led: watch::Sender::new(led.iter().copied().map(ShardId).collect()),
            room_per_shard,
            waiting: Mutex::default(),
            taken: Mutex::default(),
            foreign: AtomicU32::new(0),
            changed: Notify::new(),
            sources: Sources::default(),
            opened: AtomicU32::new(0),
            stopping: CancellationToken::new(),
            problem: Mutex::default(),
            errors: Mutex::default(),
            meter,
        })
    }

    pub(crate) fn lead(&self, led: &[u16]) {
        self.led.send_replace(led.iter().copied().map(ShardId).collect());
        self.changed.notify_waiters();
    }

    /// Runs ids of a shard that wait, which makes room; says how many did.
    pub(crate) fn run(&self, shard: ShardId, at_most: usize) -> usize {
        let mut waiting = self.waiting.lock().unwrap();
        let here = waiting.entry(shard).or_default();
        let ran = at_most.min(*here);
        *here -= ran;
        self.changed.notify_waiters();
        ran
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().values().sum()
    }

    pub(crate) fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap().clone()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.taken.lock().unwrap())
    }

    /// Waits until something is so; every event that is taken and all else that changes here is looked at.
    pub(crate) async fn until(&self, mut so: impl FnMut(&Self) -> bool) {
        let looked = async {
            loop {
                let changed = self.changed.notified();
                if so(self) {
                    return;
                }
                changed.await;
            }
        };
        let taken = || self.taken.lock().unwrap().len();
        tokio::time::timeout(DEADLINE, looked).await.unwrap_or_else(|_| panic!("it never was; {} taken", taken()));
    }

    /// Runs a stream against this sink; the stream comes back when it ends.
    pub(crate) fn start<S: EventStream>(self: &Arc<Self>, mut stream: S) -> Running<S> {
        let events = Events::new(self.clone(), stream.class());
        tokio::spawn(async move {
            let result = stream.run(events).await;
            (stream, result)
        })
    }
}

pub(crate) type Running<S> = JoinHandle<(S, Result<(), StreamError>)>;

impl EventSink for Sink {
    fn offer(&self, event: &Event<'_>) -> Offer {
        if self.stopping.is_cancelled() {
            return Offer::Stopped;
        }
        if let Err(error) = id::check(event.id) {
            return Offer::Refused(error);
        }
        let Some(place) = self.router.place(event.id) else { return Offer::Sent(Sent::Dropped) };
        if !self.led.borrow().contains(&place.shard) {
            self.foreign.fetch_add(1, Ordering::Relaxed);
            return Offer::Sent(Sent::Foreign(place.shard));
        }
        let mut waiting = self.waiting.lock().unwrap();
        let here = waiting.entry(place.shard).or_default();
        if *here == self.room_per_shard {
            return Offer::Full(place.shard);
        }
        *here += 1;
        self.taken.lock().unwrap().push(event.id.to_owned());
        self.changed.notify_waiters();
        Offer::Sent(Sent::Taken)
    }

    fn room(&self, shard: ShardId) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let changed = self.changed.notified();
                let room = self.waiting.lock().unwrap().get(&shard).is_none_or(|here| *here < self.room_per_shard);
                if room || !self.led.borrow().contains(&shard) {
                    return;
                }
                changed.await;
            }
        })
    }

    fn open(&self, source: Source) -> SourceId {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.sources.open(source)
    }

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn shards(&self) -> watch::Receiver<Vec<ShardId>> {
        self.led.subscribe()
    }

    fn shard_of(&self, id: &str) -> Option<ShardId> {
        self.router.place(id).map(|place| place.shard)
    }

    fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    fn report(&self, problem: Option<String>) {
        *self.problem.lock().unwrap() = problem;
        self.changed.notify_waiters();
    }

    fn count_error(&self, name: &'static str) {
        self.errors.lock().unwrap().push(name);
        self.changed.notify_waiters();
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// A meter whose values can be read as a Prometheus page.
#[cfg(feature = "cli")]
pub(crate) fn measured() -> (Meter, impl Fn() -> String) {
    let registry = prometheus::Registry::new();
    let reader = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build().unwrap();
    let provider = opentelemetry_sdk::metrics::SdkMeterProvider::builder().with_reader(reader).build();
    let meter = provider.meter("evenkeel");
    let page = move || {
        // The provider lives as long as its page is looked at.
        let _ = &provider;
        prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    };
    (meter, page)
}
