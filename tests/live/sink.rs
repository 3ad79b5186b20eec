//! The engine's side of a stream, for tests of a stream alone: takes events, says when it is full, settles what it is
//! told to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel::id::{Partitioner, Receipt, Router, ShardId, SourceId};
use evenkeel::{BoxFuture, Class, Event, EventSink, Events, Offer, Sent, Source, Sources};
use opentelemetry::metrics::{Meter, MeterProvider as _, noop::NoopMeterProvider};
use opentelemetry::trace::SpanContext;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// An event that was handed over.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) id: String,
    pub(crate) receipt: Receipt,
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) offset: u64,
    pub(crate) trace: Option<SpanContext>,
}

#[derive(Default)]
struct State {
    got: Vec<Got>,
    waiting: usize,
    refused: usize,
    /// How many events may wait; beyond it the shard is full.
    room: usize,
    /// Events are done as soon as they come.
    at_once: bool,
    reports: Vec<Option<String>>,
    errors: BTreeMap<&'static str, u64>,
}

pub(crate) struct Sink {
    name: Arc<str>,
    router: Router,
    sources: Sources,
    led: watch::Sender<Vec<ShardId>>,
    stopping: CancellationToken,
    meter: Meter,
    state: Mutex<State>,
    freed: Notify,
}

impl Sink {
    /// A sink of all shards that never is full and settles at once.
    pub(crate) fn new(hash: Partitioner, shards: u16) -> Arc<Self> {
        Arc::new(Self {
            name: "test".into(),
            router: Router::new(hash, shards.into(), 1).unwrap(),
            sources: Sources::default(),
            led: watch::Sender::new((0..shards).map(ShardId).collect()),
            stopping: CancellationToken::new(),
            meter: NoopMeterProvider::new().meter("test"),
            state: Mutex::new(State { room: usize::MAX, at_once: true, ..State::default() }),
            freed: Notify::new(),
        })
    }

    pub(crate) fn events(self: &Arc<Self>) -> Events {
        Events::new(Arc::clone(self) as _, Class::Event)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps events until they are settled by hand.
    pub(crate) fn hold(&self) {
        self.lock().at_once = false;
    }

    /// Settles everything that waits, and everything that comes.
    pub(crate) fn release(&self) {
        self.lock().at_once = true;
        for got in self.got() {
            self.settle(&got);
        }
        self.lock().waiting = 0;
        self.freed.notify_waiters();
    }

    /// Lets so many events wait.
    pub(crate) fn set_room(&self, room: usize) {
        self.lock().room = room;
        self.freed.notify_waiters();
    }

    /// Says that an event is done.
    pub(crate) fn settle(&self, got: &Got) {
        let source = self.sources.get(got.receipt.source).unwrap();
        source.tracker.as_ref().unwrap().done(&[got.receipt.position]);
    }

    pub(crate) fn lead(&self, shards: &[u16]) {
        self.led.send_replace(shards.iter().map(|shard| ShardId(*shard)).collect());
    }

    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.lock().got.clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().got.len()
    }

    pub(crate) fn refused(&self) -> usize {
        self.lock().refused
    }

    /// The ids that came, each once.
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        self.lock().got.iter().map(|got| got.id.clone()).collect()
    }

    /// What is wrong now, in the stream's words.
    pub(crate) fn problem(&self) -> Option<String> {
        self.lock().reports.last().cloned().flatten()
    }

    /// Whether the stream ever said this.
    pub(crate) fn has_said(&self, part: &str) -> bool {
        self.lock().reports.iter().flatten().any(|report| report.contains(part))
    }

    pub(crate) fn errors(&self, name: &str) -> u64 {
        self.lock().errors.get(name).copied().unwrap_or_default()
    }
}

impl EventSink for Sink {
    fn offer(&self, event: &Event<'_>) -> Offer {
        if self.stopping.is_cancelled() {
            return Offer::Stopped;
        }
        if let Err(error) = evenkeel::id::check(event.id) {
            return Offer::Refused(error);
        }
        let Some(place) = self.router.place(event.id) else { return Offer::Sent(Sent::Dropped) };
        if !self.led.borrow().contains(&place.shard) {
            return Offer::Sent(Sent::Foreign(place.shard));
        }
        let source = self.sources.get(event.receipt.source).unwrap();
        let (topic, partition) = source.partition.clone().unwrap();
        let got = Got {
            id: event.id.to_string(),
            receipt: event.receipt,
            topic,
            partition,
            offset: event.receipt.position,
            trace: event.trace.clone(),
        };
        let mut state = self.lock();
        if state.waiting >= state.room {
            state.refused += 1;
            return Offer::Full(place.shard);
        }
        state.got.push(got);
        if state.at_once {
            source.tracker.as_ref().unwrap().done(&[event.receipt.position]);
        } else {
            state.waiting += 1;
        }
        Offer::Sent(Sent::Taken)
    }

    fn room(&self, _: ShardId) -> BoxFuture<'_, ()> {
        Box::pin(async {
            loop {
                let freed = self.freed.notified();
                {
                    let state = self.lock();
                    if state.waiting < state.room {
                        return;
                    }
                }
                freed.await;
            }
        })
    }

    fn open(&self, source: Source) -> SourceId {
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
        self.lock().reports.push(problem);
    }

    fn count_error(&self, name: &'static str) {
        *self.lock().errors.entry(name).or_default() += 1;
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
